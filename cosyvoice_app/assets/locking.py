"""One process at a time where files are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from cosyvoice_app.types import OnProgress, Progress


@contextmanager
def locked(file: Path, what: str, progress: OnProgress) -> Iterator[None]:
    """Hold `file` as a lock; `what` is named to whoever has to wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(file)
    try:
        lock.acquire(timeout=0.1)
    except filelock.Timeout:
        progress(Progress("asset", None, f"{what}: another process is fetching it; waiting"))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
