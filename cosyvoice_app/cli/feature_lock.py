"""One run at a time into an output folder: two would give one name to two clips."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

from cosyvoice_app.errors import AppError, BadInput

LOCK, HOLDER = ".features.lock", ".features.holder"
"""The holder is written beside the lock, since some versions of filelock empty the file that they ask for."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold `folder`, made if need be. BadInput names the run that holds it already; AppError when it can't be made or
    written to. The lock ends with the process, however that ends; its empty file stays.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise BadInput(
            f"Another run writes into {folder}: {_holder(folder)}. Wait for it, or choose another folder.", param="out"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise AppError(f"{folder} can't be written to: {getattr(error, 'strerror', None) or error}.") from error
    holder = folder / HOLDER
    try:
        facts = {"process": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        # For people to read; a run doesn't depend on it.
        with contextlib.suppress(OSError):
            holder.write_text(json.dumps(facts), encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    try:
        facts = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
        return f"process {facts['process']} on {facts['host']}, since {facts['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it doesn't say which"
