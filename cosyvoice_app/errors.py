"""Every error a user can meet: one tree that feeds the page, the HTTP API and the command line.

A message says what was wrong, what is allowed, and what to do. `param` names the field at fault.
Errors cross the process boundary as dicts (`to_dict`, `from_dict`), never as pickled exceptions.
"""

from __future__ import annotations

from typing import Any, ClassVar


class AppError(Exception):
    """Base of the tree. `http_status` and `type` are what the API answers with."""

    http_status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type, "message": self.message, "param": self.param, "retry_after_s": self.retry_after_s}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> AppError:
        kind = _BY_TYPE.get(data["type"], AppError)
        return kind(data["message"], param=data.get("param"), retry_after_s=data.get("retry_after_s"))


class BadInput(AppError):
    """The request itself is wrong; the same request will fail again."""

    http_status = 400
    type = "invalid_request_error"


class PromptError(BadInput):
    """The clip can't be used: not audio, too short, too long, too quiet."""

    type = "invalid_prompt"


class TextError(BadInput):
    """The text can't be spoken: empty, too long, nothing speakable."""

    type = "invalid_text"


class NotFound(AppError):
    http_status = 404
    type = "not_found"


class Unauthorized(AppError):
    http_status = 401
    type = "unauthorized"


class TooLarge(AppError):
    http_status = 413
    type = "too_large"


class QueueFull(AppError):
    http_status = 429
    type = "queue_full"


class RateLimited(AppError):
    """This client has asked too often, or has too much under way."""

    http_status = 429
    type = "rate_limited"


class TooSlow(AppError):
    """The request's body came in too slowly."""

    http_status = 408
    type = "too_slow"


class WrongHost(AppError):
    """The request was meant for a name that isn't this server's."""

    http_status = 421
    type = "wrong_host"


class NoEngine(AppError):
    """The engine is unloaded, still loading, or failed to load."""

    http_status = 503
    type = "no_engine"


class TimedOut(AppError):
    http_status = 504
    type = "timed_out"


class Cancelled(AppError):
    """The user pressed Stop or went away. Not a fault."""

    http_status = 499
    type = "cancelled"


class EngineFailure(AppError):
    """The engine raised, crashed or hung while working on this request."""

    type = "engine_failure"


class OutOfMemory(EngineFailure):
    type = "out_of_memory"


class BadAudio(EngineFailure):
    """The engine returned audio that must not be given out: NaN, silence, wrong length."""

    type = "bad_audio"


class AssetError(AppError):
    """Model files are missing, damaged or can't be fetched. The message holds the remedy."""

    http_status = 503
    type = "asset_error"


class DeviceError(AppError):
    """The asked device can't be used here. The message names the cause."""

    http_status = 503
    type = "device_error"


class ConfigError(AppError):
    """A setting is unknown or out of range."""

    http_status = 400
    type = "config_error"


def _tree(kind: type[AppError]) -> dict[str, type[AppError]]:
    found = {kind.type: kind}
    for child in kind.__subclasses__():
        found.update(_tree(child))
    return found


_BY_TYPE = _tree(AppError)


_MEMORY_CLASSES = ("OutOfMemoryError",)
_MEMORY_WORDS = ("out of memory", "allocate memory", "not enough memory", "cublas_status_alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """MemoryError, torch's OutOfMemoryError by name (torch need not be loaded), and the plain RuntimeErrors of CPU
    and CUDA allocators."""
    if isinstance(error, MemoryError | OutOfMemory):
        return True
    if any(kind.__name__ in _MEMORY_CLASSES for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _MEMORY_WORDS)
