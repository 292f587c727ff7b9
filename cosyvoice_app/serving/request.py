"""What the page, the API and the CLI ask of the service, and what they get back. Picklable; no torch.

`Service` is the contract between web and serving: the web layer imports this file and `service.py` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from cosyvoice_app.errors import AppError
from cosyvoice_app.text.frontend import FrontEnd
from cosyvoice_app.text.pronunciations import NONE, Pronunciations
from cosyvoice_app.types import Audio, Capabilities, Progress, PromptClip, Refine
from cosyvoice_app.voices.cache import CacheCounts

Priority = Literal["interactive", "batch"]
"""Somebody waits and listens, or somebody will come back for it: batch requests run when no interactive one waits."""
EngineState = Literal["loading", "ready", "unloaded", "failed"]


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """One request, judged at the door: the clip is decoded, the seed is settled (`seed_was_random` tells how)."""

    clip: PromptClip
    text: str
    prompt_text: str = ""
    instruct: str = ""
    seed: int = 1
    seed_was_random: bool = False
    speed: float = 1.0
    refine: Refine = "fast"
    pronunciations: Pronunciations = NONE
    stream: bool = False
    """Give out parts of a segment as they are made, if the engine can."""
    source: Literal["page", "api", "cli"] = "api"
    client: str = ""
    """Who asks, as limits and fair turns count: a key's name, a page's session or an address. Never logged whole."""
    priority: Priority = "interactive"
    deadline_s: float | None = None
    """Give up with TimedOut unless the result is there so long after submission. None: the server's own limits."""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """What was made. `path` is the file in `outputs/`; `audio` is what that file holds, before 16-bit rounding."""

    audio: Audio
    path: Path | None
    seed: int
    segments: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    engine: str
    device: str
    precision: str
    model_hash: str
    voice_cached: bool
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds: queue_s, voice_s, synthesis_s (voice excluded), total_s (from submission). Milliseconds: first_audio_ms,
    from the start of the run. `rtf` = synthesis_s / duration."""
    prompt: dict[str, Any] = field(default_factory=dict)
    """Decoded clip as used: sha256, duration_s, rate_hz, rms_dbfs, container."""


@dataclass(frozen=True, slots=True)
class Queued:
    """`position` 0 = next."""

    position: int


@dataclass(frozen=True, slots=True)
class Working:
    progress: Progress


@dataclass(frozen=True, slots=True)
class Chunk:
    """Finished audio of segment `index`: the whole of it, levelled, with the pause after it or, of a streamed request,
    the part that is new."""

    audio: Audio
    index: int


@dataclass(frozen=True, slots=True)
class Done:
    result: SynthesisResult


@dataclass(frozen=True, slots=True)
class Failed:
    error: AppError


Event = Queued | Working | Chunk | Done | Failed


@dataclass(frozen=True, slots=True)
class Status:
    """The true state, read from the live worker."""

    state: EngineState
    detail: str
    engine: str
    device: str
    device_reason: str
    precision: str
    model_hash: str
    components: dict[str, str]
    memory: dict[str, int]
    capabilities: Capabilities | None
    queue: int
    running: int
    uptime_s: float
    worker_pid: int | None
    warnings: tuple[str, ...] = ()
    loads_on_demand: bool = False
    """Unloaded for want of requests: the next one is taken and loads it."""


class Ticket(Protocol):
    """A submitted request. `events` ends after Done or Failed. `cancel` is safe at any time and from any thread."""

    id: str
    request: SynthesisRequest

    @property
    def ended(self) -> bool: ...

    def events(self) -> Iterator[Event]: ...

    def result(self, timeout_s: float | None = None) -> SynthesisResult:
        """Wait; raises the AppError of a failed request, TimedOut after `timeout_s` (and cancels)."""
        ...

    def cancel(self) -> None: ...


class Service(Protocol):
    """Thread-safe. `submit` refuses at once with TextError, QueueFull or NoEngine; it never blocks on the engine."""

    def start(self) -> None: ...

    def submit(self, request: SynthesisRequest) -> Ticket: ...

    def read(self, text: str, own: Pronunciations = NONE) -> tuple[FrontEnd, tuple[str, ...]]:
        """What would be spoken, and what the engine would leave out. Raises TextError as `submit` would."""
        ...

    def capabilities(self) -> Capabilities | None:
        """The loaded engine's, or those of the engine that is going to be loaded; None while that is unknown."""
        ...

    def status(self) -> Status: ...

    def restart(self, *, drain: bool = False) -> tuple[Status, Status]:
        """End the worker process, start a new one, wait until it is ready or failed. Returns (before, after).

        What runs is stopped or, with `drain`, finished first. What waits goes on waiting and is served by the new one.
        """
        ...

    def unload(self) -> tuple[Status, Status]: ...

    def load(self) -> Status: ...

    def metrics(self) -> bytes:
        """Prometheus text."""
        ...

    def refused(self, reason: str) -> None:
        """Count a request that the web layer turned away itself ("rate_limited", "too_large", ...)."""
        ...

    def watch_cache(self, name: str, counts: Callable[[], CacheCounts]) -> None:
        """Show a cache of this process in the metrics."""
        ...

    def close(self) -> None: ...
