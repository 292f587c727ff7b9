"""What an exception of an engine means to the person who asked: one place that reads library errors."""

from __future__ import annotations

import gc
import logging
import sys

from cosyvoice_app.errors import AppError, EngineFailure, OutOfMemory, is_out_of_memory

_POISON_WORDS = ("cuda error", "device-side assert", "illegal memory access", "cudnn_status_execution_failed")

log = logging.getLogger(__name__)


def is_poisonous(error: BaseException) -> bool:
    """True when the device context can't be trusted any more, so that only a new process helps."""
    return not is_out_of_memory(error) and any(word in str(error).lower() for word in _POISON_WORDS)


def translate(error: Exception) -> AppError:
    """The error of the product's own tree that `error` amounts to. AppErrors pass unchanged, but for memory."""
    if is_out_of_memory(error):
        return OutOfMemory(
            "The device ran out of memory on this request. Try a shorter text or a shorter clip, or close other "
            "programs that use the device. The engine is still running."
        )
    if isinstance(error, AppError):
        return error
    cause = f"{type(error).__name__}: {error}".strip().rstrip(":")
    return EngineFailure(f"The engine failed on this request ({cause[:300]}). The engine's log has the details.")


def release_memory() -> None:
    """Give back what a failed or finished request held: collect cycles, then empty torch's device cache if in use.

    Never raises: it is asked for after a failure, which must be told whatever the device does.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    except Exception:
        log.exception("the device's memory could not be given back")
