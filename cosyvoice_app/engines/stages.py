"""How the pipeline calls an engine's parts: here one call after another; `serving/batcher.py` joins those of many jobs.

The pipeline has one row at a time and several jobs may be under way, each in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from cosyvoice_app.engines.base import Engine, StreamingEngine
from cosyvoice_app.types import Audio, CancelToken, Row, Voice


class Stages(Protocol):
    """Every call blocks until its own row is done and raises Cancelled soon after `cancel` is."""

    def aside(self) -> AbstractContextManager[None]:
        """To be entered while waiting for something that isn't the device, so that nobody waits for this job."""
        ...

    def encode(self, make: Callable[[CancelToken], Voice], *, cancel: CancelToken) -> Voice:
        """Run `make`, which uses the speaker encoder; others may be let in at its `check`s."""
        ...

    def predict(self, row: Row, *, cancel: CancelToken) -> Any:
        """Acoustic features of one row."""
        ...

    def decode(self, features: Any, row: Row, *, cancel: CancelToken) -> Audio:
        """Raw audio of one row."""
        ...

    def stream(self, row: Row, *, cancel: CancelToken) -> Iterator[Audio]:
        """Raw audio of one row in pieces; only asked of a StreamingEngine."""
        ...


class DirectStages:
    """For one job at a time: the engine is called as it stands."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def encode(self, make: Callable[[CancelToken], Voice], *, cancel: CancelToken) -> Voice:
        return make(cancel)

    def predict(self, row: Row, *, cancel: CancelToken) -> Any:
        (features,) = self._engine.acoustic_model.predict([row], cancel=cancel)
        return features

    def decode(self, features: Any, row: Row, *, cancel: CancelToken) -> Audio:
        (audio,) = self._engine.vocoder.decode([features], [row], cancel=cancel)
        return audio

    def stream(self, row: Row, *, cancel: CancelToken) -> Iterator[Audio]:
        engine = self._engine
        if not isinstance(engine, StreamingEngine):
            raise TypeError(f"the engine {engine.name} gives out no parts of a segment")
        return engine.streamer.stream(row, cancel=cancel)
