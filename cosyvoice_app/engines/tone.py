"""The tone engine: a test double with a name. It hums one tone per request, so that a mix-up is heard and measured.

24 kHz mono, amplitude 0.3, 0.05 s per character, 10 ms fades. The pitch is a hash of all that must decide the result
(text, clip, instruct, seed), so equal requests give equal samples and different ones differ. Seeds 9001-9010 play the
faults an engine can have; see `_FAULTS` and `_decode`.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from cosyvoice_app.engines.base import AcousticModel, SpeakerEncoder, StyleEncoder, Vocoder
from cosyvoice_app.engines.capabilities import TONE
from cosyvoice_app.engines.memory import read_memory
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import (
    Audio,
    CancelToken,
    FloatArray,
    Intent,
    OnProgress,
    Progress,
    PromptClip,
    Refine,
    Row,
    Segment,
    Style,
    Utterance,
    Voice,
)

RATE_HZ = TONE.rate_hz
AMPLITUDE = 0.3
SECONDS_PER_CHARACTER = 0.05
FADE_S = 0.01

SEED_OUT_OF_MEMORY = 9006
SEED_QUIET_16K, SEED_QUIET_44K = 9008, 9009
SEED_SLOW = 9010


def _with_one_inf(tone: FloatArray) -> FloatArray:
    spoiled: FloatArray = tone.copy()
    spoiled[len(spoiled) // 2] = np.inf
    return spoiled


_FAULTS: dict[int, Callable[[FloatArray], FloatArray]] = {
    9001: lambda tone: np.full_like(tone, np.nan),
    9002: lambda tone: np.zeros_like(tone),
    9003: lambda tone: tone[:0],
    9004: _with_one_inf,
    9005: lambda tone: tone[:5],
}


def frequency_hz(utterance: Utterance) -> float:
    """300 Hz and up, from the joined text, the clip's hash, the instruct and the seed."""
    said = f"{utterance.joined_text}{utterance.prompt_sha256}{utterance.intent.text}{utterance.seed}"
    return 300.0 + (zlib.crc32(said.encode()) % 100_003) / 50.0


def tone(frequency: float, duration_s: float, *, rate_hz: int = RATE_HZ, amplitude: float = AMPLITUDE,
         fade_s: float = FADE_S) -> FloatArray:
    """A sine [round(duration_s * rate_hz)] with linear fades at both ends."""
    count = round(duration_s * rate_hz)
    wave = amplitude * np.sin(2.0 * np.pi * frequency * np.arange(count) / rate_hz)
    fade = min(round(fade_s * rate_hz), count // 2)
    if fade:
        ramp = np.linspace(0.0, 1.0, fade, endpoint=False)
        wave[:fade] *= ramp
        wave[-fade:] *= ramp[::-1]
    return wave.astype(np.float32)


class ToneSpeaker:
    model_hash = "tone"

    def voice_key(self, clip: PromptClip, *, transcript: str, refine: Refine) -> str:
        return f"tone:{clip.sha256}:{refine}:{transcript}"

    def encode(
        self, clip: PromptClip, *, transcript: str, refine: Refine, progress: OnProgress, cancel: CancelToken
    ) -> Voice:
        cancel.check()
        progress(Progress("voice", 1.0))
        return Voice(self.voice_key(clip, transcript=transcript, refine=refine), payload=clip.sha256, size_bytes=64)


class ToneStyle:
    """Keeps the last instruct texts it was given, exactly as they came, so that a test can read them."""

    def __init__(self) -> None:
        self.instructs: deque[str] = deque(maxlen=100)

    def encode(self, intent: Intent, *, speed: float) -> Style:
        self.instructs.append(intent.text)
        return Style(payload=intent.text)


class ToneAcoustic:
    """Its features are frequencies. The time a model would take is slept here, once a request."""

    def __init__(self, sleep_s: float, step_s: float, steps: int) -> None:
        self._sleep_s, self._step_s, self._steps = sleep_s, step_s, steps

    def predict(self, rows: Sequence[Row], *, cancel: CancelToken) -> list[Any]:
        for row in rows:
            cancel.check()
            if row.index == 0:
                self._work(row.utterance.seed, cancel)
            if row.utterance.seed == SEED_OUT_OF_MEMORY:
                raise MemoryError("seed 9006 plays an engine that runs out of memory")
        return [frequency_hz(row.utterance) for row in rows]

    def _work(self, seed: int, cancel: CancelToken) -> None:
        time.sleep(self._sleep_s)
        if seed == SEED_SLOW:
            for _ in range(self._steps):
                cancel.check()
                time.sleep(self._step_s)


class ToneVocoder:
    def decode(self, features: Sequence[Any], rows: Sequence[Row], *, cancel: CancelToken) -> list[Audio]:
        return [self._decode(frequency, row) for frequency, row in zip(features, rows, strict=True)]

    def _decode(self, frequency: float, row: Row) -> Audio:
        seed = row.utterance.seed
        if seed in (SEED_QUIET_16K, SEED_QUIET_44K):
            rate_hz = 16_000 if seed == SEED_QUIET_16K else 44_100
            quiet = 10.0 ** (-30.0 / 20.0)
            return Audio(tone(440.0, 1.0, rate_hz=rate_hz, amplitude=quiet, fade_s=0.0), rate_hz)
        duration_s = SECONDS_PER_CHARACTER * len(row.segment.text)
        if seed in _FAULTS:
            return Audio(_FAULTS[seed](tone(frequency, duration_s, fade_s=0.0)), RATE_HZ)
        return Audio(tone(frequency, duration_s), RATE_HZ)


class ToneEngine:
    """Satisfies `engines.base.Engine`. The sleeps are class attributes so that a test's subclass can be quick."""

    sleep_s: ClassVar[float] = 0.3
    step_s: ClassVar[float] = 1.0
    steps: ClassVar[int] = 20

    name = "tone"
    model_hash = "tone-1"
    precision = "fp32"
    device = "cpu"
    device_reason = "the tone engine only runs on the CPU"
    capabilities = TONE

    def __init__(self) -> None:
        self.speaker_encoder: SpeakerEncoder = ToneSpeaker()
        self._style = ToneStyle()
        self.style_encoder: StyleEncoder = self._style
        self.acoustic_model: AcousticModel = ToneAcoustic(self.sleep_s, self.step_s, self.steps)
        self.vocoder: Vocoder = ToneVocoder()

    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> ToneEngine:
        progress(Progress("loading", 1.0))
        return cls()

    @property
    def instructs(self) -> tuple[str, ...]:
        """The instruct texts received, oldest first."""
        return tuple(self._style.instructs)

    def check_text(self, segments: Sequence[Segment]) -> tuple[str, ...]:
        return ()

    def components(self) -> dict[str, str]:
        return dict.fromkeys(("speaker_encoder", "style_encoder", "acoustic_model", "vocoder"), self.device)

    def memory(self) -> dict[str, int]:
        return read_memory(self.device)

    def warm_up(self) -> None:
        tone(440.0, 0.1)

    def close(self) -> None:
        self._style.instructs.clear()
