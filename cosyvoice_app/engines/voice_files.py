"""A folder of voices kept on disk, one safetensors file each, named by the voice's key: written whole or not at all,
the least recently used thrown away. A cache: what can't be read counts as absent, what can't be written is not kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

log = logging.getLogger(__name__)

T = TypeVar("T")


class VoiceFiles:
    """`keep` files at most; `what` names one in the log ("fitted voice")."""

    def __init__(self, folder: Path, *, keep: int, what: str) -> None:
        self._folder, self._keep, self._what = folder, keep, what

    def load(self, key: str, read: Callable[[Path], T]) -> T | None:
        """What `read` makes of the key's file. None if there is none, or `read` raises what a damaged file raises."""
        path = self._path(key)
        if not path.is_file():
            return None
        try:
            voice = read(path)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            log.warning("the %s %s can't be read and is made again: %s", self._what, path, error)
            return None
        with contextlib.suppress(OSError):  # a read-only cache still serves; only its order of use is not kept
            os.utime(path)
        return voice

    def save(self, key: str, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
        """Write atomically. A full or read-only disk costs the file, not the voice: it is logged."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as place:
                save_file(dict(tensors), Path(place) / "voice", metadata=dict(meta))
                os.replace(Path(place) / "voice", self._path(key))
            self._prune()
        except (OSError, SafetensorError) as error:  # the library reports a full disk as its own error
            log.warning("the %s could not be kept in %s: %s", self._what, self._folder, error)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.safetensors"

    def _prune(self) -> None:
        files = sorted(self._folder.glob("*.safetensors"), key=_last_used, reverse=True)
        for old in files[self._keep :]:
            old.unlink(missing_ok=True)


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process pruned it
        return 0.0
