"""From a clip and a text to that voice saying it: the whole product on one page.

    text     ──► front end ──► segments            plan()
    clip     ──► speaker encoder ──► Voice         Pipeline._voice(), cached by content
    instruct ──► style encoder ──► Style
    segment + Voice + Style + seed ──► acoustic model ──► vocoder ──► checked audio
    segments joined, each with the pause after it

`plan` needs no engine and runs where the request arrives, so that bad text is refused before it waits for anything.
`Pipeline` runs beside the engine. It knows nothing of files, processes or queues.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cosyvoice_app.audio.level import check_part, judge, trim_silence
from cosyvoice_app.engines.ahead import run_ahead
from cosyvoice_app.engines.base import Engine, StreamingEngine
from cosyvoice_app.engines.failure import translate
from cosyvoice_app.engines.stages import DirectStages, Stages
from cosyvoice_app.errors import BadAudio, BadInput, Cancelled, EngineFailure, OutOfMemory
from cosyvoice_app.text.frontend import DEFAULT_LIMITS, prepare
from cosyvoice_app.text.instruct import parse_instruct
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.text.notices import unspoken
from cosyvoice_app.text.pronunciations import NONE, Pronunciations
from cosyvoice_app.text.transcript import prepare_transcript
from cosyvoice_app.types import (
    PROMPT_TEXT_MAX_CHARS,
    SEED_MAX,
    SEED_MIN,
    Audio,
    CancelToken,
    Capabilities,
    Intent,
    NeverCancelled,
    OnProgress,
    Progress,
    PromptClip,
    Refine,
    Row,
    Segment,
    Style,
    Utterance,
    Voice,
    ignore_progress,
)
from cosyvoice_app.voices.cache import VoiceCache

SPEED_MIN, SPEED_MAX = 0.5, 2.0
INSTRUCT_MAX_CHARS = 500

OnChunk = Callable[[Audio, int], None]
"""Called with finished audio, in order, and the index of its segment: a whole segment and the pause after it or, of a
streamed job, the part that is new."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a loaded engine says of itself; fixed as long as it lives."""

    engine: str
    device: str
    device_reason: str
    precision: str
    model_hash: str
    capabilities: Capabilities

    @classmethod
    def of(cls, engine: Engine) -> EngineFacts:
        return cls(engine.name, engine.device, engine.device_reason, engine.precision, engine.model_hash,
                   engine.capabilities)


@dataclass(frozen=True, slots=True)
class Job:
    """A request with its text prepared: everything the engine's side needs, and nothing it must look up."""

    clip: PromptClip
    segments: tuple[Segment, ...]
    intent: Intent
    seed: int
    transcript: str = ""
    speed: float = 1.0
    refine: Refine = "fast"
    stream: bool = False
    """Give out parts of a segment as they are made, if the engine can. It may then sound minutely different."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spoken:
    """What the pipeline made. Timings in seconds: voice_s, synthesis_s, total_s; first_audio_ms in milliseconds, from
    the start of the run to the first finished segment; rtf = synthesis_s / duration of the audio."""

    audio: Audio
    voice_cached: bool
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    timings: dict[str, float]


def plan(clip: PromptClip, text: str, *, seed: int, max_chars: int, transcript: str = "", instruct: str = "",
         speed: float = 1.0, refine: Refine = "fast", engine: Capabilities | None = None,
         pronunciations: Pronunciations = NONE) -> Job:
    """Prepare a request for an engine that can do `engine` (None: unknown yet, so the default lengths are used).

    Raises TextError for text that can't be spoken, BadInput for a seed or speed out of range and for words of the clip
    or an instruction that are too long.
    """
    transcript = bounded(transcript, "prompt_text", PROMPT_TEXT_MAX_CHARS)
    instruct = bounded(instruct, "instruct", INSTRUCT_MAX_CHARS)
    if not SEED_MIN <= seed <= SEED_MAX:
        raise BadInput(f"The seed is {seed}; allowed: {SEED_MIN} to {SEED_MAX}, or blank for a random one.",
                       param="seed")
    if not SPEED_MIN <= speed <= SPEED_MAX:
        raise BadInput(f"The speed is {speed:g}; allowed: {SPEED_MIN:g} to {SPEED_MAX:g}.", param="speed")
    languages = engine.languages if engine else NATIVE_LANGUAGES
    front = prepare(text, max_chars=max_chars, limits=engine.split if engine else DEFAULT_LIMITS,
                    pronunciations=pronunciations, languages=languages)
    words = prepare_transcript(transcript, clip.report.get("speech_s", clip.duration_s), pronunciations=pronunciations,
                               languages=languages)
    missing = unspoken(front.segments, engine) if engine else ()
    return Job(
        clip=clip, segments=front.segments, intent=parse_instruct(instruct), seed=seed,
        transcript=words.text, speed=speed, refine=refine,
        warnings=(*clip.warnings, *words.warnings, *front.warnings, *missing),
    )


def bounded(raw: str | None, param: str, limit_chars: int) -> str:
    """`raw` without spaces at its ends. Raises BadInput naming `param` when that is longer than `limit_chars`."""
    text = (raw or "").strip()
    if len(text) > limit_chars:
        raise BadInput(f"{param} has {len(text)} characters; at most {limit_chars} are allowed.", param=param)
    return text


def segment_seed(seed: int, index: int) -> int:
    """Seed of one segment: the first 31 bits of SHA-256 of "seed:index", so that neighbours share nothing and
    a segment sounds the same whichever segments are run together with it."""
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class Pipeline:
    """Runs jobs on one engine. Holds no state of a request: several threads may each run one, if each brings stages
    that keep the engine to one caller at a time."""

    def __init__(self, engine: Engine, voices: VoiceCache) -> None:
        self._engine = engine
        self._voices = voices

    def run(self, job: Job, *, on_progress: OnProgress = ignore_progress, on_chunk: OnChunk | None = None,
            cancel: CancelToken | None = None, stages: Stages | None = None) -> Spoken:
        """Make the audio of `job`. Raises Cancelled, OutOfMemory, BadAudio, EngineFailure or what the encoder says of
        the clip; a failed job leaves nothing behind."""
        try:
            with _engine_errors():
                return self._run(job, on_progress, on_chunk, cancel or NeverCancelled(),
                                 stages or DirectStages(self._engine))
        except OutOfMemory:
            self._voices.clear()  # whatever is kept only to save time
            raise

    def _run(self, job: Job, on_progress: OnProgress, on_chunk: OnChunk | None, cancel: CancelToken,
             stages: Stages) -> Spoken:
        started = time.perf_counter()
        unspoken = self._engine.check_text(job.segments)  # before the clip costs anything
        voice, cached = self._voice(job, on_progress, cancel, stages)
        style = self._engine.style_encoder.encode(job.intent, speed=job.speed)
        voice_s = time.perf_counter() - started
        utterance = Utterance(job.segments, job.intent, job.seed, job.speed, job.clip.sha256)
        rows = [Row(utterance, index, voice, style, segment_seed(job.seed, index))
                for index in range(len(job.segments))]
        pieces: list[Audio] = []
        first_audio_s = 0.0
        # Closed whatever happens: what runs ahead ends with it.
        with closing(self._speak(rows, job.stream, on_progress, cancel, stages)) as spoken:
            for index, piece in spoken:
                first_audio_s = first_audio_s or time.perf_counter() - started
                if on_chunk is not None:
                    on_chunk(piece, index)
                pieces.append(piece)
        cancel.check()
        audio = _join(pieces)
        total_s = time.perf_counter() - started
        synthesis_s = total_s - voice_s
        return Spoken(
            audio=audio, voice_cached=cached, notes=voice.notes, warnings=self._warnings(job, unspoken, voice, style),
            timings={"voice_s": voice_s, "synthesis_s": synthesis_s, "total_s": total_s,
                     "first_audio_ms": 1000.0 * first_audio_s, "rtf": synthesis_s / audio.duration_s},
        )

    def _voice(self, job: Job, on_progress: OnProgress, cancel: CancelToken, stages: Stages) -> tuple[Voice, bool]:
        encoder = self._engine.speaker_encoder
        refine = self._refine(job.refine)
        key = encoder.voice_key(job.clip, transcript=job.transcript, refine=refine)

        def make(token: CancelToken) -> Voice:
            on_progress(Progress("voice", 0.0))
            return encoder.encode(job.clip, transcript=job.transcript, refine=refine, progress=on_progress,
                                  cancel=token)

        with stages.aside():
            return self._voices.obtain(key, lambda: stages.encode(make, cancel=cancel), cancel=cancel)

    def _refine(self, asked: Refine) -> Refine:
        """`asked`, or the most the engine has when it has no such step."""
        offered = self._engine.capabilities.refine
        return asked if asked in offered else offered[-1]

    def _speak(
        self, rows: list[Row], stream: bool, on_progress: OnProgress, cancel: CancelToken, stages: Stages
    ) -> Generator[tuple[int, Audio], None, None]:
        """(index of the segment, finished audio), in order."""

        def report(index: int) -> None:
            cancel.check()
            on_progress(Progress("speaking", index / len(rows), f"{index + 1}/{len(rows)}"))

        def predict(row: Row, token: CancelToken) -> Any:
            return stages.predict(row, cancel=token)

        engine = self._engine
        if stream and isinstance(engine, StreamingEngine):
            for row in rows:
                report(row.index)
                for piece in _with_pause_after(stages.stream(row, cancel=cancel), row):
                    yield row.index, piece
        elif engine.capabilities.overlaps and len(rows) > 1:
            with run_ahead(lambda token: (predict(row, token) for row in rows), cancel, depth=1) as ahead:
                for row, features in zip(rows, ahead, strict=True):
                    report(row.index)
                    yield row.index, self._decode(row, features, cancel, stages)
        else:
            for row in rows:
                report(row.index)
                yield row.index, self._decode(row, predict(row, cancel), cancel, stages)

    def _decode(self, row: Row, features: Any, cancel: CancelToken, stages: Stages) -> Audio:
        raw = stages.decode(features, row, cancel=cancel)
        audio = judge(raw, row.segment, speed=_whole_speed(row))
        if self._engine.capabilities.trim_silence:
            audio = trim_silence(audio)
        return audio if _is_last(row) else _with_pause(audio, row.segment.pause_after_ms)

    def _warnings(self, job: Job, unspoken: tuple[str, ...], voice: Voice, style: Style) -> tuple[str, ...]:
        warnings = [*job.warnings, *unspoken, *voice.warnings, *style.warnings]
        if self._engine.capabilities.needs_transcript and not (job.transcript or style.displaces_words):
            warnings.append("This engine copies a voice more closely with the clip's words: type what is said in it.")
        return tuple(dict.fromkeys(warnings))


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Everything an engine raises leaves as an error of the product's tree, its cause chained for the log."""
    try:
        yield
    except Cancelled:
        raise
    except Exception as error:
        known = translate(error)
        if known is error:
            raise
        raise known from error


def _is_last(row: Row) -> bool:
    return row.index == len(row.utterance.segments) - 1


def _whole_speed(row: Row) -> float:
    return row.utterance.speed * row.utterance.intent.speed


def _with_pause_after(parts: Iterator[Audio], row: Row) -> Iterator[Audio]:
    """The parts of a streamed segment, each checked as it passes, and the whole at the end; then the pause.

    A part can't be quietened for what follows, so a peak above 1 is an error here.
    """
    told: list[Audio] = []
    for part in parts:
        if not len(part.samples):
            continue
        check_part(part)
        told.append(part)
        yield part
    whole = _join(told) if told else Audio(np.zeros(0, dtype=np.float32), 1)
    judge(whole, row.segment, speed=_whole_speed(row))
    if not _is_last(row) and row.segment.pause_after_ms:
        yield _silence(row.segment.pause_after_ms, whole.rate_hz)


def _silence(pause_ms: int, rate_hz: int) -> Audio:
    return Audio(np.zeros(round(pause_ms * rate_hz / 1000), dtype=np.float32), rate_hz)


def _with_pause(audio: Audio, pause_ms: int) -> Audio:
    return _join([audio, _silence(pause_ms, audio.rate_hz)])


def _join(pieces: list[Audio]) -> Audio:
    rates = {piece.rate_hz for piece in pieces}
    if len(rates) > 1:
        raise BadAudio(f"The engine changed its sample rate within one text ({', '.join(map(str, sorted(rates)))} Hz). "
                       "Nothing was saved.")
    if not pieces:
        raise EngineFailure("There was no segment to speak.")
    return Audio(np.concatenate([piece.samples for piece in pieces]), pieces[0].rate_hz)
