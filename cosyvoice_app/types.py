"""The nouns of the product, shared by every layer. Plain frozen data: numpy arrays, no torch, no behaviour.

Audio is float32 mono in [-1, 1], shape [samples], always beside its `rate_hz`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Refine = Literal["off", "fast", "full"]
Language = Literal["en", "zh"]

SEED_MIN, SEED_MAX = 1, 100_000_000
PROMPT_TEXT_MAX_CHARS = 1000
"""Longest words of a clip."""


@dataclass(frozen=True, slots=True)
class Audio:
    """Float32 mono `samples` [n] in [-1, 1] at `rate_hz`."""

    samples: FloatArray
    rate_hz: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate_hz


@dataclass(frozen=True, slots=True)
class PromptClip:
    """A decoded, judged clip. `sha256` is of the decoded float32 mono samples and their rate, never of the file or
    its name.

    `rms_dbfs` and `duration_s` are measured on the decoded audio. `report` is the prompt doctor's, JSON-ready.
    """

    samples: FloatArray
    rate_hz: int
    sha256: str
    rms_dbfs: float
    container: str
    warnings: tuple[str, ...] = ()
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate_hz


@dataclass(frozen=True, slots=True)
class Text:
    """Plain words as they go to the tokenizer, and the language they will be read in: a code of
    `Capabilities.languages`."""

    text: str
    language: str


@dataclass(frozen=True, slots=True)
class Pinyin:
    """One Mandarin syllable spelled by the user: `[h][ào]` is initial "h", toned final "ào" (NFC). Initial may be
    empty.
    """

    initial: str
    final: str


@dataclass(frozen=True, slots=True)
class Arpabet:
    """One English word spelled by the user as ARPAbet symbols: `[M][AY0]` is ("M", "AY0")."""

    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A non-verbal event such as `[breath]`, kept for engines that have it. `name` is the bare word."""

    name: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause the user asked for with `[pause 0.8s]` or `[0.8s]`."""

    ms: int


Piece = Text | Pinyin | Arpabet | Event | Pause


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch the engine speaks in one go.

    `text` is exactly what goes to the tokenizer, tags written out in canonical form; `pieces` is the same, typed.
    `pause_after_ms` is the silence to put after it when another segment follows.
    """

    text: str
    pieces: tuple[Piece, ...]
    pause_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """A stretch of a segment as written, and how it will be read where that isn't plain (`hào`), else nothing."""

    text: str
    reading: str = ""


@dataclass(frozen=True, slots=True)
class Intent:
    """What an instruct text asks for, engine-independent. Factors are relative: 1.0 changes nothing.

    `unmet` quotes the parts that were understood but that no factor here expresses (dialects, roles) and the parts
    that were not understood; each engine says in a warning what it can't do. With `emotion_only` the factors are what
    the cues of `emotion` give, however strong, and nothing else was asked of the prosody.
    """

    speed: float = 1.0
    pitch_semitones: float = 0.0
    pitch_range: float = 1.0
    loudness_db: float = 0.0
    emotion: str | None = None
    emotion_only: bool = False
    dialect: str | None = None
    role: str | None = None
    unmet: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Utterance:
    """A whole request as the engine sees it."""

    segments: tuple[Segment, ...]
    intent: Intent
    seed: int
    speed: float = 1.0
    prompt_sha256: str = ""

    @property
    def joined_text(self) -> str:
        return "".join(s.text for s in self.segments)


@dataclass(frozen=True, slots=True)
class Voice:
    """What a speaker encoder made of a clip. `key` is the cache key; `payload` belongs to the engine that made it."""

    key: str
    payload: Any
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    size_bytes: int = 0
    """Memory that keeping it takes, on whatever device."""


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Since the cache was made: `hits` were spared the making; `kept` things of `size_bytes` together are there."""

    hits: int
    misses: int
    kept: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Style:
    """What a style encoder made of an Intent; `payload` belongs to the engine. `warnings` say what it can't do.

    `displaces_words`: the engine doesn't use the clip's words beside this style.
    """

    payload: Any
    warnings: tuple[str, ...] = ()
    displaces_words: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One segment to be spoken: the unit that is batched. `seed` is derived from the request's seed and `index`."""

    utterance: Utterance
    index: int
    voice: Voice
    style: Style
    seed: int

    @property
    def segment(self) -> Segment:
        return self.utterance.segments[self.index]


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """How an engine likes its segments. A stretch of text is cut only above `most`; whole sentences are joined while
    they stay within `most` and either is shorter than `least`, or the stretch so far is shorter than `fill`.

    `unit` is what is counted: "sounds", about one phoneme each, or "tokens", one for a Han character and about one
    for each four letters, as byte-pair tokenizers cut.
    """

    most: int = 150
    least: int = 30
    fill: int = 0
    unit: Literal["sounds", "tokens"] = "sounds"

    def __post_init__(self) -> None:
        if self.most < 20 or not 0 <= self.least <= self.most or not 0 <= self.fill <= self.most:
            raise ValueError(f"{self}: need most >= 20, and least and fill from 0 to most")


InstructKind = Literal["speed", "pitch", "range", "loudness", "emotion", "dialect", "role", "free"]
"""What an instruct text can ask for; "free" is wording of any kind, which the model itself reads."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, as the page and the API show it. `events` are names as in `Event`."""

    languages: tuple[str, ...]
    streaming: bool
    instruct: tuple[InstructKind, ...]
    needs_transcript: bool
    rate_hz: int
    max_prompt_s: float
    refine: tuple[Refine, ...] = ("off",)
    events: tuple[str, ...] = ()
    split: SplitLimits = SplitLimits()
    trim_silence: bool = False
    """True asks the pipeline to cut silence beyond 0.5 s before and 0.8 s after the speech of a segment."""
    overlaps: bool = False
    """True lets the pipeline predict the next segment in a second thread while the vocoder works on this one."""
    max_rows: int = 1
    """So many rows in one call of `predict` or `decode` are faster than one after another; more gain nothing."""
    concurrent: bool = False
    """True: `predict` and `stream` may be called from several threads at once; the engine joins the calls itself."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`fraction` in 0..1 or None when it can't be known; `stage` is a stable word (i18n key), `message` is for
    people.
    """

    stage: str
    fraction: float | None = None
    message: str = ""


class CancelToken(Protocol):
    """Checked between steps of work. `check` raises `errors.Cancelled` once cancelled."""

    def check(self) -> None: ...


class NeverCancelled:
    def check(self) -> None:
        return None


OnProgress = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    return None
