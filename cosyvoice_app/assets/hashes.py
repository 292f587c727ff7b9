"""SHA-256 of large files, remembered: reading 4 GB takes many seconds, and doctor must not take them.

Remembered by path, size and time of change in `<cache>/hashes.json`; a file that has changed is read anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import filelock

from cosyvoice_app.assets.store import cache_dir

_BLOCK_BYTES = 4 << 20
_MOST = 500


class HashCache:
    """Losing it costs time only, so whatever can't be read or written is left."""

    def __init__(self, cache: Path | None = None) -> None:
        self._file = cache_dir(cache) / "hashes.json"

    def known(self, file: Path) -> str | None:
        """The hash, when `file` was read before and looks unchanged since."""
        try:
            return self._read().get(_key(file))
        except OSError:
            return None

    def sha256(self, file: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str:
        """Read `file` unless it is known; `on_bytes` gets the bytes so far. Raises OSError for an unreadable file."""
        if found := self.known(file):
            on_bytes(file.stat().st_size)
            return found
        digest, done, key = hashlib.sha256(), 0, _key(file)
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
                done += len(block)
                on_bytes(done)
        if key == _key(file):  # else it changed while it was read
            self.remember(file, digest.hexdigest())
        return digest.hexdigest()

    def remember(self, file: Path, sha256: str) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(f"{self._file}.lock", timeout=5):
                table = self._read()
                table.pop(_key(file), None)
                table[_key(file)] = sha256
                part = self._file.with_suffix(".part")
                part.write_text(json.dumps(dict(list(table.items())[-_MOST:]), indent=0), encoding="utf-8")
                os.replace(part, self._file)
        except (OSError, filelock.Timeout):
            return

    def _read(self) -> dict[str, str]:
        try:
            table = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return table if isinstance(table, dict) else {}


def _key(file: Path) -> str:
    stat = file.stat()
    return f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
