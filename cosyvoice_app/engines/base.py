"""The five parts every engine supplies, and nothing else. `pipeline.py` is written against this file only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from cosyvoice_app.types import (
    Audio,
    CacheCounts,
    CancelToken,
    Capabilities,
    Intent,
    OnProgress,
    PromptClip,
    Refine,
    Row,
    Segment,
    Style,
    Voice,
)


class SpeakerEncoder(Protocol):
    def voice_key(self, clip: PromptClip, *, transcript: str, refine: Refine) -> str:
        """Cache key: clip content + transcript + model hash + refinement. Never a name."""
        ...

    def encode(
        self, clip: PromptClip, *, transcript: str, refine: Refine, progress: OnProgress, cancel: CancelToken
    ) -> Voice:
        """Make a Voice from a clip. May take long (refinement): reports progress and checks `cancel` between steps."""
        ...


class StyleEncoder(Protocol):
    def encode(self, intent: Intent, *, speed: float) -> Style:
        """`speed` is the request's own factor (1.0 = as the voice speaks), multiplied with the intent's."""
        ...


class AcousticModel(Protocol):
    def predict(self, rows: Sequence[Row], *, cancel: CancelToken) -> list[Any]:
        """Acoustic features of each row, in order. The features' type is between this part and the vocoder."""
        ...


class Vocoder(Protocol):
    def decode(self, features: Sequence[Any], rows: Sequence[Row], *, cancel: CancelToken) -> list[Audio]:
        """Audio of each row, in order, raw: the pipeline checks and levels it."""
        ...


@runtime_checkable
class Engine(Protocol):
    """An engine owns its device. Built by `registry.create(settings)`; `warm_up` runs before it is called ready."""

    name: str
    capabilities: Capabilities
    device: str
    device_reason: str
    precision: str
    model_hash: str
    speaker_encoder: SpeakerEncoder
    style_encoder: StyleEncoder
    acoustic_model: AcousticModel
    vocoder: Vocoder

    def check_text(self, segments: Sequence[Segment]) -> tuple[str, ...]:
        """Warnings that quote what this engine will not speak; asked before any work on a request.

        Raises TextError for a segment that it can't speak at all.
        """
        ...

    def components(self) -> dict[str, str]:
        """Device in use per component, read from the live object: {"speaker_encoder": "cpu", ...}."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes: at least {"rss": ..., "device_allocated": ..., "device_reserved": ...}."""
        ...

    def warm_up(self) -> None: ...

    def close(self) -> None: ...


class Streamer(Protocol):
    def stream(self, row: Row, *, cancel: CancelToken) -> Iterator[Audio]:
        """The audio of one row in pieces, raw, each given out as soon as nothing that follows can change it."""
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that can give out a segment before the whole of it is made."""

    streamer: Streamer


@runtime_checkable
class CachingEngine(Engine, Protocol):
    """An engine that keeps things between requests and counts how often that helped."""

    def caches(self) -> dict[str, CacheCounts]: ...
