"""Requests made ready for an engine where they arrive, so that bad text is refused before it waits for anything."""

from __future__ import annotations

from dataclasses import replace

from cosyvoice_app.pipeline import Job, plan
from cosyvoice_app.serving.request import SynthesisRequest
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.frontend import DEFAULT_LIMITS, FrontEnd, prepare
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.text.notices import unspoken
from cosyvoice_app.text.pronunciation_file import PronunciationFile
from cosyvoice_app.text.pronunciations import Pronunciations
from cosyvoice_app.types import Capabilities


class Planner:
    """Knows the server's options and its own word list, which is read again when it changes. Safe for threads."""

    def __init__(self, settings: Settings) -> None:
        self._max_chars = settings.max_chars
        self._pronunciations = PronunciationFile(settings.pronunciations)

    def job(self, request: SynthesisRequest, engine: Capabilities | None) -> Job:
        """Raises as `pipeline.plan` does."""
        entries, trouble = self._pronunciations.current()
        job = plan(request.clip, request.text, seed=request.seed, max_chars=self._max_chars,
                   transcript=request.prompt_text, instruct=request.instruct, speed=request.speed,
                   refine=request.refine, engine=engine, pronunciations=request.pronunciations.over(entries))
        return replace(job, stream=request.stream, warnings=(*job.warnings, *trouble))

    def read(self, text: str, own: Pronunciations,
             engine: Capabilities | None) -> tuple[FrontEnd, tuple[str, ...]]:
        """What would be spoken, and what the engine would leave out. Raises TextError as `job` would."""
        entries, trouble = self._pronunciations.current()
        front = prepare(text, max_chars=self._max_chars, limits=engine.split if engine else DEFAULT_LIMITS,
                        pronunciations=own.over(entries), languages=engine.languages if engine else NATIVE_LANGUAGES)
        return front, (*(unspoken(front.segments, engine) if engine else ()), *trouble)
