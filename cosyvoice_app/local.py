"""The engine in this very process, for the command line and benchmarks: no worker, no queue, one job after another."""

from __future__ import annotations

from types import TracebackType

from cosyvoice_app.console import ProgressLine
from cosyvoice_app.engines import registry
from cosyvoice_app.engines.failure import release_memory
from cosyvoice_app.errors import AppError
from cosyvoice_app.pipeline import EngineFacts, Job, Pipeline, Spoken
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import Progress
from cosyvoice_app.voices.cache import VoiceCache


class LocalEngine:
    """Use as a context manager. Raises what `registry.create` raises."""

    def __init__(self, settings: Settings, *, warm_up: bool = False) -> None:
        self._line = ProgressLine()
        try:
            self.engine = registry.create(settings, self._show)
            if warm_up:
                self.engine.warm_up()
        finally:
            self._line.clear()
        self.facts = EngineFacts.of(self.engine)
        self._pipeline = Pipeline(self.engine, VoiceCache())

    def run(self, job: Job) -> Spoken:
        """Raises as Pipeline.run does; the engine can be used again afterwards."""
        try:
            return self._pipeline.run(job, on_progress=self._show)
        except AppError:
            release_memory()
            raise
        finally:
            self._line.clear()

    def _show(self, progress: Progress) -> None:
        share = "" if progress.fraction is None else f" {100 * progress.fraction:3.0f} %"
        self._line.show(f"{progress.stage}{share} {progress.message}")

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.engine.close()
