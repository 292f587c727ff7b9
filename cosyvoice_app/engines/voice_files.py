"""A folder of voices kept on disk, one safetensors file each, named by the voice's key: written whole or not at all,
the least recently used thrown away. A cache: what can't be read counts as absent, what can't be written is not kept.
Several processes may use one folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from cosyvoice_app.leftovers import remove_leftovers
from cosyvoice_app.types import CacheCounts

log = logging.getLogger(__name__)

T = TypeVar("T")

_TEMP_PREFIX = ".unfinished-"


class VoiceFiles:
    """At most `keep` files of `most_bytes` together (None: however large; 0: none is written or read); `what` names
    one in the log ("fitted voice"). Safe to use from several threads.
    """

    def __init__(self, folder: Path, *, keep: int, what: str, most_bytes: int | None = None) -> None:
        if most_bytes is not None and most_bytes < 0:
            raise ValueError(f"most_bytes is {most_bytes}; it must not be negative")
        self._folder, self._keep, self._what, self._most_bytes = folder, keep, what, most_bytes
        self._counting = threading.Lock()
        self._hits = self._misses = 0

    def load(self, key: str, read: Callable[[Path], T]) -> T | None:
        """What `read` makes of the key's file. None if there is none, or `read` raises what a damaged file raises."""
        voice = self._load(self._path(key), read) if self._most_bytes != 0 else None
        with self._counting:
            self._hits += voice is not None
            self._misses += voice is None
        return voice

    def save(self, key: str, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
        """Write atomically. A full or read-only disk costs the file, not the voice: it is logged."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        try:
            if self._most_bytes is None or (size <= self._most_bytes and self._most_bytes > 0):
                self._write(self._path(key), tensors, meta)
            self._prune()
        except (OSError, SafetensorError) as error:  # the library reports a full disk as its own error
            log.warning("the %s could not be kept in %s: %s", self._what, self._folder, error)

    def counts(self) -> CacheCounts:
        """Of this process's use; the files are all there are."""
        files = self._files()
        with self._counting:
            return CacheCounts(self._hits, self._misses, len(files), sum(size for _, size, _ in files))

    def _load(self, path: Path, read: Callable[[Path], T]) -> T | None:
        if not path.is_file():
            return None
        try:
            voice = read(path)
        except FileNotFoundError:  # another process pruned it
            return None
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            log.warning("the %s %s can't be read and is made again: %s", self._what, path, error)
            return None
        with contextlib.suppress(OSError):  # a read-only cache still serves; only its order of use is not kept
            os.utime(path)
        return voice

    def _write(self, path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f"{_TEMP_PREFIX}{uuid.uuid4().hex}"
        try:
            save_file(dict(tensors), part, metadata=dict(meta))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.safetensors"

    def _prune(self) -> None:
        remove_leftovers(self._folder, f"{_TEMP_PREFIX}*")
        total = 0
        for place, (_, size, path) in enumerate(sorted(self._files(), reverse=True)):
            total += size
            if place >= self._keep or (self._most_bytes is not None and total > self._most_bytes):
                with contextlib.suppress(OSError):  # Windows keeps a file that someone reads
                    path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[float, int, Path]]:
        """(when it was last used, its size in bytes, where) of each."""
        found = []
        for path in self._folder.glob("*.safetensors"):
            with contextlib.suppress(FileNotFoundError):  # another process pruned it
                facts = path.stat()
                found.append((facts.st_mtime, facts.st_size, path))
        return found
