"""What the page's buttons do. One `Desk` serves every visitor; what is a visitor's own is kept under their session."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi.concurrency import run_in_threadpool

from cosyvoice_app.audio.encode import encode
from cosyvoice_app.audio.prompt import examine
from cosyvoice_app.audio.recognise import recognise_english
from cosyvoice_app.engines import registry
from cosyvoice_app.errors import AppError, AssetError, BadInput, EngineFailure
from cosyvoice_app.pipeline import INSTRUCT_MAX_CHARS, SPEED_MAX, SPEED_MIN
from cosyvoice_app.serving.request import Chunk, Done, Failed, Queued, Service, Status, Ticket, Working
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.text.tags import write
from cosyvoice_app.text.transcript import prepare_transcript
from cosyvoice_app.types import PROMPT_TEXT_MAX_CHARS, Audio, Said, Segment
from cosyvoice_app.voices.clips import ClipCache
from cosyvoice_app.web import page_parts
from cosyvoice_app.web.answers import report
from cosyvoice_app.web.control import EngineControl
from cosyvoice_app.web.door import make_request, random_seed, settle_pronunciations, settle_seed, settle_speed
from cosyvoice_app.web.follow import follow
from cosyvoice_app.web.i18n import Lang, error_heading, say
from cosyvoice_app.web.live import Live
from cosyvoice_app.web.visitor import client_of, language

MB = 1_000_000
SAMPLES = Path(__file__).with_name("samples")
SAMPLE_WORDS: dict[Lang, str] = {
    "en": "And always that same pretext is offered, it looks like the thing.",
    "zh": "所有因外部冲击导致房价泡沫破灭的经济体",
}
Shown = tuple[Any, Any, Any]
CLIP_MOST_S = 86_400.0
"""Beyond any clip; and neither infinite nor NaN is below it."""


class Desk:
    def __init__(
        self,
        settings: Settings,
        service: Service,
        uploads: Path,
        clips: ClipCache | None = None,
        control: EngineControl | None = None,
    ) -> None:
        self._clips = clips or ClipCache()
        self._control = control or EngineControl(service)
        self.settings = settings
        self.service = service
        self.uploads = uploads
        self.live = Live()
        self._tickets: dict[str, set[Ticket]] = {}
        self._lock = threading.Lock()
        self._readings: Callable[[Segment], Sequence[Said]] | None = None

    # one request

    def check_fields(
        self,
        clip: str | None,
        text: str,
        prompt_text: str,
        instruct: str,
        seed: str,
        speed: float,
        refine: str,
        pronunciations: str,
        request: gr.Request,
    ) -> list[dict[str, Any]]:
        """Runs before the queue: one verdict a field, shown at the field, so that nothing typed is lost."""
        lang, limit = language(request), self.settings.max_chars
        count = len((text or "").strip())
        text_said = (
            say(lang, "need_text", limit=limit) if not count else say(lang, "text_long", count=count, limit=limit)
        )

        def short(value: str, most: int) -> dict[str, Any]:
            return gr.validate(len(value or "") <= most, say(lang, "instruct_long", count=len(value or ""), limit=most))

        return [
            gr.validate(bool(clip), say(lang, "need_clip")),
            gr.validate(0 < count <= limit, text_said),
            short(prompt_text, PROMPT_TEXT_MAX_CHARS),
            short(instruct, INSTRUCT_MAX_CHARS),
            gr.validate(_accepts(settle_seed, seed), say(lang, "bad_seed")),
            gr.validate(_accepts(settle_speed, speed), say(lang, "bad_speed", low=SPEED_MIN, high=SPEED_MAX)),
            gr.validate(True, ""),
            gr.validate(_accepts(settle_pronunciations, pronunciations), _trouble(pronunciations)),
        ]

    async def synthesize(
        self,
        clip: str | None,
        text: str,
        prompt_text: str,
        instruct: str,
        seed: str,
        speed: float,
        refine: str,
        pronunciations: str,
        request: gr.Request,
    ) -> AsyncIterator[Shown]:
        """Say a text in the voice of a clip. Returns the audio file, what was done as JSON, and the same as HTML.

        Args:
            clip: Audio file with 3-15 seconds of one person speaking.
            text: What to say, in English or Chinese or another language of the engine.
            prompt_text: The clip's exact words; optional, brings the voice closer.
            instruct: How to say it, for example "speak gently, slower"; optional.
            seed: Whole number from 1 to 100000000, or blank for a random one.
            speed: 1 is as the voice speaks.
            refine: How far the voice is fitted to the clip: off, fast or full.
            pronunciations: Readings of words, one "word = reading" a line, such as "行家 = háng jiā"; optional.
        """
        lang = language(request)
        yield None, None, page_parts.progress(None, lang)
        try:
            if not clip:
                raise BadInput("There is no clip: upload an audio file with 3 to 15 s of speech.", param="clip")
            prompt = await run_in_threadpool(
                self._clips.load, Path(clip), name_hint=Path(clip).name, max_bytes=self._max_bytes
            )
            asked = make_request(
                prompt,
                text or "",
                prompt_text=prompt_text,
                instruct=instruct,
                seed=seed,
                speed=speed,
                refine=refine,
                pronunciations=pronunciations,
                default_refine=self.settings.refine,
                source="page",
                client=client_of(request),
            )
            ticket = await run_in_threadpool(self.service.submit, asked)
            with self._kept(request.session_hash or ticket.id, ticket), self.live.broadcast() as broadcast:
                yield gr.skip(), gr.skip(), page_parts.progress(None, lang, broadcast.token)
                async for event in follow(ticket):
                    if isinstance(event, (Queued, Working)):
                        yield gr.skip(), gr.skip(), page_parts.progress(event, lang, broadcast.token)
                    elif isinstance(event, Chunk):
                        broadcast.add(event.audio)
                    elif isinstance(event, Failed):
                        raise event.error
                    elif isinstance(event, Done):
                        broadcast.end(whole=True)
                        made = event.result
                        html = await run_in_threadpool(page_parts.result, made, self.settings.outputs, lang)
                        handed_out = await run_in_threadpool(self._hand_out, made.path)
                        yield handed_out, report(made), html
                        return
            raise EngineFailure("The request ended without a result.")
        except AppError as error:
            yield None, None, page_parts.failure(error, lang)
            # Already shown in place; raised so that API callers get an error and not an empty result.
            raise gr.Error(
                error.message, title=error_heading(lang, error.type), visible=False, print_exception=False
            ) from error

    def _hand_out(self, path: Path | None) -> str | None:
        """A copy where Gradio serves from, under a name that can't be guessed: `outputs/` itself is never served."""
        if path is None:
            return None
        folder = tempfile.mkdtemp(prefix="result-", dir=self.uploads)
        return str(shutil.copyfile(path, Path(folder) / path.name))

    def stop(self, request: gr.Request) -> None:
        self._cancel_all(request.session_hash or "")

    def leave(self, request: gr.Request) -> None:
        """The tab was closed or reloaded."""
        self._cancel_all(request.session_hash or "")

    @contextmanager
    def _kept(self, session: str, ticket: Ticket) -> Iterator[None]:
        with self._lock:
            self._tickets.setdefault(session, set()).add(ticket)
        try:
            yield
        finally:
            with self._lock:
                mine = self._tickets[session]
                mine.discard(ticket)
                if not mine:
                    del self._tickets[session]

    def _cancel_all(self, session: str) -> None:
        with self._lock:
            tickets = list(self._tickets.get(session, ()))
        for ticket in tickets:
            ticket.cancel()

    # the words, while they are typed

    def read(self, text: str, pronunciations: str, request: gr.Request) -> str:
        """Show what will be read of a text: its parts, numbers as words, tags, pauses, and what is left out, as HTML.

        Args:
            text: What to say.
            pronunciations: Readings of words, one "word = reading" a line; optional.
        """
        lang = language(request)
        if not (text or "").strip():
            return ""
        try:
            front, notices = self.service.read(text, settle_pronunciations(pronunciations))
            said = [self._reader(segment) for segment in front.segments]
        except AppError as error:
            return page_parts.failure(error, lang)
        return page_parts.reading(front, said, notices, text, lang)

    def _reader(self, segment: Segment) -> Sequence[Said]:
        """The segment in stretches, with the engine's readings where it tells them before it is loaded."""
        with self._lock:
            if self._readings is None:
                try:
                    self._readings = registry.reader(self.settings) or _as_written
                except AssetError:  # fetched when the engine loads for the first time; asked again then
                    return _as_written(segment)
        return self._readings(segment)

    def check_words(self, words: str, found: dict[str, Any] | None, request: gr.Request) -> str:
        """Whether the clip's words can be what the clip says, by their number and its length."""
        speech_s = _seconds(found, "speech_s")
        if not speech_s or not isinstance(found, dict) or not found.get("ok") or not isinstance(words, str):
            return ""
        if not words.strip():
            return ""
        engine = self.service.capabilities()
        warnings = prepare_transcript(words[:PROMPT_TEXT_MAX_CHARS], speech_s[0],
                                      languages=engine.languages if engine else NATIVE_LANGUAGES).warnings
        return page_parts.remarks(warnings, language(request))

    # the clip

    @property
    def _max_bytes(self) -> int:
        return self.settings.max_upload_mb * MB

    def check_prompt(self, clip: str | None, request: gr.Request) -> tuple[dict[str, Any] | None, str, Any]:
        """Judge a clip: length, rate, level, noise, and whether it can be used. Returns the report, and it as HTML.

        Args:
            clip: Audio file with 3-15 seconds of one person speaking.
        """
        lang = language(request)
        found = None
        if clip:
            found = examine(Path(clip), name_hint=Path(clip).name, max_bytes=self._max_bytes, load=self._clips.load)
        offers_stretch = bool(found and found.get("suggested_window_s"))
        return found, page_parts.doctor(found, lang), gr.update(visible=offers_stretch)

    def use_stretch(self, clip: str | None, found: dict[str, Any] | None) -> Any:
        """The best stretch of a clip that is too long, as a new clip."""
        window_s = _seconds(found, "suggested_window_s")
        if not clip or len(window_s) != 2 or not window_s[0] < window_s[1]:
            return gr.skip()
        try:
            prompt = self._clips.load(Path(clip), window_s=(window_s[0], window_s[1]), max_bytes=self._max_bytes)
        except AppError as error:
            raise gr.Error(error.message, print_exception=False) from error
        path = Path(tempfile.mkdtemp(prefix="stretch-", dir=self.uploads)) / "clip.wav"
        path.write_bytes(encode(Audio(prompt.samples, prompt.rate_hz), "wav"))
        return str(path)

    def use_sample(self, lang: Lang) -> tuple[str, str]:
        """A clip that comes with the app, for visitors without one, and its words. See samples/ATTRIBUTION.md."""
        prompt = self._clips.load(SAMPLES / f"{lang}.flac")
        path = Path(tempfile.mkdtemp(prefix="sample-", dir=self.uploads)) / f"sample_{lang}.wav"
        path.write_bytes(encode(Audio(prompt.samples, prompt.rate_hz), "wav"))
        return str(path), SAMPLE_WORDS[lang]

    async def recognise_words(self, clip: str | None, typed: str, request: gr.Request) -> tuple[Any, str]:
        """The words of an English clip for its box, and a remark. Unless words were heard, the box stays as it is."""
        lang = language(request)
        if not clip:
            return gr.skip(), page_parts.note(say(lang, "need_clip"))
        try:
            words = await asyncio.to_thread(self._heard, Path(clip))
        except AppError as error:
            return gr.skip(), page_parts.failure(error, lang)
        if words is None:
            return gr.skip(), page_parts.note(say(lang, "words_none"))
        remark = page_parts.note(say(lang, "words_check"))
        typed = (typed or "").strip()
        if typed and typed != words:  # undo in the browser doesn't bring them back
            remark += page_parts.note(say(lang, "words_before", words=typed))
        return words, remark

    def _heard(self, clip: Path) -> str | None:
        prompt = self._clips.load(clip, name_hint=clip.name, max_bytes=self._max_bytes)
        return recognise_english(prompt.samples, prompt.rate_hz, cache=self.settings.cache)

    def random_seed(self) -> str:
        """A random seed from 1 to 100000000."""
        return str(random_seed())

    # the engine

    def greet(self, request: gr.Request) -> tuple[Any, Any]:
        """The choices the loaded engine has, and whether to ask again (while it is still loading)."""
        lang = language(request)
        capabilities = self.service.status().capabilities
        if capabilities is None:
            return gr.skip(), gr.update(active=True)
        choices = [(say(lang, f"refine_{choice}"), choice) for choice in capabilities.refine]
        chosen = self.settings.refine if self.settings.refine in capabilities.refine else capabilities.refine[0]
        return gr.update(choices=choices, value=chosen, visible=len(choices) > 1), gr.update(active=False)

    async def restart(self, drain: bool, request: gr.Request) -> AsyncIterator[str]:
        """Restart the engine's process; its memory is given back. Returns memory before and after, as HTML.

        Args:
            drain: Let the requests that run finish first; otherwise they are stopped.
        """
        doing = "draining" if drain else "restarting"
        async for html in self._change(doing, lambda: self._control.restart("drain" if drain else "cancel"), request):
            yield html

    async def unload(self, request: gr.Request) -> AsyncIterator[str]:
        """End the engine's process until it is loaded again."""
        async for html in self._change("unloading", self._control.unload, request):
            yield html

    async def load(self, request: gr.Request) -> AsyncIterator[str]:
        """Start the engine's process."""

        async def do() -> tuple[None, Status]:
            return None, await self._control.load()

        async for html in self._change("loading", do, request):
            yield html

    async def _change(
        self, doing: str, do: Callable[[], Awaitable[tuple[Status | None, Status]]], request: gr.Request
    ) -> AsyncIterator[str]:
        lang = language(request)
        yield page_parts.note(say(lang, doing))
        try:
            before, after = await do()
        except AppError as error:
            yield page_parts.failure(error, lang)
            raise gr.Error(error.message, visible=False, print_exception=False) from error
        yield page_parts.change(before, after, lang)


def _seconds(found: Any, name: str) -> list[float]:
    """The times under a name of a clip's report, which comes back from the page and may be anything; else none."""
    value = found.get(name) if isinstance(found, dict) else None
    times = value if isinstance(value, list | tuple) else [value]
    fit = [float(time) for time in times if isinstance(time, int | float) and 0 <= time < CLIP_MOST_S]
    return fit if len(fit) == len(times) else []


def _as_written(segment: Segment) -> Sequence[Said]:
    return [Said(write(piece)) for piece in segment.pieces]


def _trouble(pronunciations: str) -> str:
    try:
        settle_pronunciations(pronunciations)
    except BadInput as error:
        return error.message
    return ""


def _accepts(settle: Callable[[Any], Any], raw: Any) -> bool:
    try:
        settle(raw)
    except BadInput:
        return False
    return True
