"""What the serving benches ask a server, and how they tell a right answer from a wrong one by its content.

Every request of the pool is answered once with nothing beside it; that answer's samples are what any later answer to
the same request must hold. For the tone engine the client also knows the pitch and the length by itself, so there a
request nobody has sent before (`fresh`) can be judged too: two requests in flight are hardly ever the same one.
"""

from __future__ import annotations

import hashlib
import io
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import soundfile

from cosyvoice_app.engines.capabilities import TONE
from cosyvoice_app.engines.tone import SECONDS_PER_CHARACTER
from cosyvoice_app.text.frontend import prepare

Pcm = np.ndarray[tuple[int], np.dtype[np.int16]]
Verdict = Literal["right", "refused", "told", "broken off", "wrong", "someone else's", "not told"]
"""`told`: an HTTP error of the documented form. `broken off`: the body ended with a transport error, so no client can
take it for a whole. `refused`: 429 with Retry-After. `not told`: no answer at all, or an error without its form."""

SAMPLES = Path(__file__).parents[1] / "web" / "samples"
CLIPS = (SAMPLES / "en.flac", SAMPLES / "zh.flac")

TEXTS = (
    "The ferry leaves at seven.",
    "Please close the window before you go.",
    "We planted beans along the southern fence.",
    "今天的课到这里就结束了。",
    "Her train was late, so we walked back through the old town.",
    "他把钥匙放在桌上，然后出去了。",
    "Bread, butter and a little salt.",
    "雨停了，我们去河边看看吧。",
    "The second floor is closed until Monday. Take the stairs on the left, and mind the wet paint.",
    "明天早上八点开会，请不要迟到。",
)
# (path, format, stream_format): each kind of answer that a client can ask for.
KINDS: tuple[tuple[str, str, str | None], ...] = (
    ("speech", "wav", None), ("speech", "pcm", "audio"), ("clone", "wav", None), ("speech", "mp3", None),
    ("speech", "wav", "audio"), ("speech", "opus", "audio"), ("speech", "flac", None), ("speech", "pcm", "sse"),
    ("clone", "flac", None), ("speech", "mp3", "audio"), ("speech", "flac", "audio"), ("clone", "opus", None),
    ("speech", "aac", "audio"),
)
LOSSY = ("mp3", "opus", "aac")
LOSSY_SLACK_SAMPLES = 4_000
"""What they may add to the length: their frames and their start-up."""
PITCH_SLACK_HZ = 1.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `clip` is an index into the clips (and the voices saved from them)."""

    text: str
    clip: int
    seed: int
    path: str = "speech"
    fmt: str = "wav"
    stream: str | None = None

    @property
    def name(self) -> str:
        return f"{self.path} {self.fmt}" + (f" {self.stream}" if self.stream else "")


@dataclass(frozen=True, slots=True)
class Expected:
    """What an answer must hold. `sha256` of the samples is known from a serial run. For the tone engine the rest is
    reckoned here: `said` is the text as it is spoken, `samples` its length, `pitch_hz` the tone."""

    sha256: str | None = None
    said: str = ""
    samples: int | None = None
    pitch_hz: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Times are seconds since the request was begun; `first_s` is the first audio byte."""

    status: int
    body: bytes = b""
    first_s: float | None = None
    done_s: float = 0.0
    broke_off: bool = False
    error_type: str | None = None
    retry_after_s: int | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """A pool of requests with their right answers. `tone` allows requests outside the pool."""

    url: str
    clips: tuple[str, ...]
    clip_hashes: tuple[str, ...]
    voices: tuple[str, ...]
    pool: tuple[Ask, ...]
    expected: tuple[Expected, ...]
    tone: bool
    api_key: str = ""

    def draw(self, dice: random.Random) -> tuple[Ask, Expected]:
        """A request of the pool; for the tone engine every second one with a seed of its own."""
        index = dice.randrange(len(self.pool))
        ask, expected = self.pool[index], self.expected[index]
        if self.tone and dice.random() < 0.5:
            ask = replace(ask, seed=dice.randrange(10_000, 100_000_000))
            pitch = tone_pitch_hz(expected.said, self.clip_hashes[ask.clip], ask.seed)
            expected = replace(expected, sha256=None, pitch_hz=pitch)
        return ask, expected

    def known(self) -> Mapping[str, int]:
        """Hash of the samples to the place in the pool."""
        return {right.sha256: index for index, right in enumerate(self.expected) if right.sha256}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Traffic:
        lists = {name: tuple(data[name]) for name in ("clips", "clip_hashes", "voices")}
        return cls(url=data["url"], tone=data["tone"], api_key=data["api_key"], **lists,
                   pool=tuple(Ask(**ask) for ask in data["pool"]),
                   expected=tuple(Expected(**right) for right in data["expected"]))


def make_pool(size: int, *, clips: int = len(CLIPS)) -> tuple[Ask, ...]:
    """`size` different requests that go through kinds, texts and clips at different paces."""
    return tuple(Ask(TEXTS[index % len(TEXTS)], index % clips, 100 + index, *KINDS[index % len(KINDS)])
                 for index in range(size))


def tone_expected(ask: Ask, clip_hash: str) -> Expected:
    """Pitch and length by the tone engine's published formula, reckoned on this side of the line."""
    segments = prepare(ask.text, max_chars=1_000, limits=TONE.split, languages=TONE.languages).segments
    said = "".join(segment.text for segment in segments)
    spoken = sum(round(SECONDS_PER_CHARACTER * len(segment.text) * TONE.rate_hz) for segment in segments)
    pauses = sum(round(segment.pause_after_ms * TONE.rate_hz / 1000) for segment in segments[:-1])
    return Expected(None, said, spoken + pauses, tone_pitch_hz(said, clip_hash, ask.seed))


def tone_pitch_hz(said: str, clip_hash: str, seed: int) -> float:
    """Without an instruct text, whose place is between the clip's hash and the seed."""
    return 300.0 + (zlib.crc32(f"{said}{clip_hash}{seed}".encode()) % 100_003) / 50.0


def decode(body: bytes, fmt: str) -> Pcm:
    """16-bit samples [n] of a whole answer. Raises ValueError for what is no such file."""
    try:
        if fmt == "pcm":
            return np.frombuffer(body, "<i2")
        if fmt == "wav":
            return _wav(body)
        if fmt in ("flac", "aac"):  # libsndfile reads no AAC, and no FLAC that doesn't know its length: a streamed one
            with av.open(io.BytesIO(body)) as file:
                joined = np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])
            return joined.astype(np.int16) if fmt == "flac" else np.rint(joined * 32767.0).astype(np.int16)
        samples, _ = soundfile.read(io.BytesIO(body), dtype="int16")
    except (soundfile.SoundFileError, av.FFmpegError, IndexError) as error:
        raise ValueError(f"not a {fmt} file: {error}") from error
    return samples


def _wav(body: bytes) -> Pcm:
    if body[:4] != b"RIFF" or len(body) < 44:
        raise ValueError("not a wav file")
    told = int.from_bytes(body[40:44], "little")
    if told < 0xFFFFFFFF - 36 and told != len(body) - 44:
        raise ValueError(f"the wav header says {told} bytes and {len(body) - 44} follow")
    return np.frombuffer(body[44:], "<i2")


def sha256(samples: Pcm) -> str:
    return hashlib.sha256(np.ascontiguousarray(samples).tobytes()).hexdigest()


def pitch_hz(samples: Pcm, rate_hz: int = TONE.rate_hz) -> float:
    """The strongest frequency in the first second, to about 0.1 Hz: the spectrum's peak, with a parabola laid through
    the logarithms of it and its neighbours."""
    first = samples[:rate_hz].astype(np.float64)
    count = len(first)
    if count < rate_hz // 50:
        return 0.0
    spectrum = np.log(np.abs(np.fft.rfft(first * np.hanning(count), 4 * rate_hz)) + 1e-9)
    peak = int(np.clip(np.argmax(spectrum), 1, len(spectrum) - 2))
    left, top, right = spectrum[peak - 1 : peak + 2]
    shift = 0.5 * (left - right) / (left - 2.0 * top + right)
    return float((peak + shift) / 4.0)


def judge(ask: Ask, right: Expected, answer: Answer, known: Mapping[str, int]) -> tuple[Verdict, str]:
    """The verdict on an answer, and what was found where it isn't right."""
    if answer.status == 429 and answer.retry_after_s:
        return "refused", ""
    if answer.status != 200 or (answer.error_type and not answer.broke_off):
        formed = answer.error_type is not None and answer.status != 429
        return ("told" if formed else "not told"), f"{answer.status} {answer.error_type}"
    if answer.broke_off:
        return "broken off", answer.error_type or ""
    try:
        samples = decode(answer.body, ask.fmt)
    except ValueError as error:
        return "wrong", str(error)
    return _judge_samples(ask, right, samples, known)


def _judge_samples(ask: Ask, right: Expected, samples: Pcm, known: Mapping[str, int]) -> tuple[Verdict, str]:
    found = sha256(samples)
    if right.sha256 == found and right.pitch_hz is None:
        return "right", ""
    if found in known and right.sha256 != found:
        return "someone else's", f"the samples are those of request {known[found]} of the pool"
    if right.samples is not None:
        slack = LOSSY_SLACK_SAMPLES if ask.fmt in LOSSY else 0
        if not right.samples <= len(samples) <= right.samples + slack:
            return "wrong", f"{len(samples)} samples instead of {right.samples}"
    if right.pitch_hz is not None and abs(pitch_hz(samples) - right.pitch_hz) > PITCH_SLACK_HZ:
        return "someone else's", f"{pitch_hz(samples):.1f} Hz instead of {right.pitch_hz:.1f}"
    if right.sha256 is not None and right.sha256 != found:
        return "wrong", f"{len(samples)} samples, but not those of the serial run"
    return "right", ""


def percentiles(values_s: Sequence[float]) -> dict[str, float | None]:
    """p50, p95 and p99 (nearest rank) of seconds; None when there are none."""
    ordered = sorted(values_s)

    def at(percent: int) -> float | None:
        return round(ordered[-(-percent * len(ordered) // 100) - 1], 3) if ordered else None

    return {"p50": at(50), "p95": at(95), "p99": at(99)}
