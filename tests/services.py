"""A service with a real worker process, and what its tests ask of it."""

from __future__ import annotations

import hashlib
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cosyvoice_app.serving.request import Done, Failed, Queued, Status, SynthesisRequest, SynthesisResult, Ticket
from cosyvoice_app.serving.service import EngineService
from cosyvoice_app.serving.supervisor import Limits
from cosyvoice_app.types import PromptClip

QUICK = "engines_for_tests:QuickTone"
SLOW_SEED, MEMORY_SEED = 9010, 9006
IMPATIENT = Limits(heartbeat_s=20.0, cancel_s=0.5, stop_s=1.0, backoff_s=0.05)

Start = Callable[..., EngineService]
"""The fixture `start`: engine and options in, a service out that is closed at the end of the test."""


def settle(service: EngineService, *, state: str = "ready", timeout_s: float = 60.0) -> Status:
    end = time.monotonic() + timeout_s
    while (status := service.status()).state != state:
        assert time.monotonic() < end, f"still {status.state}: {status.detail}"
        time.sleep(0.02)
    return status


def ask(clip: PromptClip, text: str = "Hello there.", seed: int = 7, **fields: Any) -> SynthesisRequest:
    return SynthesisRequest(clip, text, seed=seed, **fields)


def say(service: EngineService, clip: PromptClip, text: str = "Hello there.", seed: int = 7) -> SynthesisResult:
    return service.submit(ask(clip, text, seed)).result(60.0)


def pcm_hash(path: Path | None) -> str:
    assert path is not None
    with wave.open(str(path), "rb") as file:
        return hashlib.sha256(file.readframes(file.getnframes())).hexdigest()


def until_running(service: EngineService, ticket: Ticket) -> None:
    for event in ticket.events():
        if not isinstance(event, Queued):
            return
    raise AssertionError("the request never ran")


def end_of(ticket: Ticket) -> Done | Failed:
    *_, last = ticket.events()
    assert isinstance(last, Done | Failed)
    return last
