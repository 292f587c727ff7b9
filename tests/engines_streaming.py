"""Engines whose sound tells whether anything was lost, added or cut where segments meet.

They say one sine right through a text, phase and all, and fade it where the text asks for a pause. `GatedSine` waits
before its second segment until the test opens its gate, so that a test knows what a request has said so far.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cosyvoice_app.engines.capabilities import TONE
from cosyvoice_app.engines.tone import ToneEngine
from cosyvoice_app.errors import BadAudio
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import Audio, CancelToken, OnProgress, Row, SplitLimits

RATE_HZ = TONE.rate_hz
SEGMENT_SAMPLES = 31_289  # 1.3 s: no whole number of periods, of milliseconds or of any codec's frames
FADE_SAMPLES = 480
SEED_FAILS = 77
"""Fails in its second segment."""
GATE_S = 60.0


def hertz(seed: int) -> int:
    return 400 + 10 * (seed % 50)


def sine(start: int, count: int, seed: int) -> npt.NDArray[np.float32]:
    """`count` samples of the sine of `seed`, from sample `start` on."""
    angle = 2.0 * np.pi * hertz(seed) / RATE_HZ * np.arange(start, start + count)
    return (0.5 * np.sin(angle)).astype(np.float32)


class _Vocoder:
    def decode(self, features: Sequence[Any], rows: Sequence[Row], *, cancel: CancelToken) -> list[Audio]:
        return [self.one(row, cancel) for row in rows]

    def one(self, row: Row, cancel: CancelToken) -> Audio:
        segments, seed = row.utterance.segments, row.utterance.seed
        if seed == SEED_FAILS and row.index:
            raise BadAudio("The engine gave no usable audio: seed 77 fails after its first segment.")
        samples = sine(row.index * SEGMENT_SAMPLES, SEGMENT_SAMPLES, seed)
        ramp = 0.5 - 0.5 * np.cos(np.pi * np.arange(FADE_SAMPLES) / FADE_SAMPLES)
        if row.index and segments[row.index - 1].pause_after_ms:
            samples[:FADE_SAMPLES] *= ramp
        if segments[row.index].pause_after_ms:
            samples[-FADE_SAMPLES:] *= ramp[::-1]
        return Audio(samples, RATE_HZ)


class SteadySine(ToneEngine):
    sleep_s = 0.0
    capabilities = replace(TONE, split=SplitLimits(most=20, least=1))

    def __init__(self) -> None:
        super().__init__()
        self.vocoder = _Vocoder()


class _Gated(_Vocoder):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def one(self, row: Row, cancel: CancelToken) -> Audio:
        end = time.monotonic() + GATE_S
        while row.index and not gate(self._folder, row.utterance.seed).exists() and time.monotonic() < end:
            cancel.check()
            time.sleep(0.01)
        return super().one(row, cancel)


class GatedSine(SteadySine):
    @classmethod
    def load(cls, settings: Settings, progress: OnProgress) -> GatedSine:
        assert settings.cache is not None
        one = cls()
        one.vocoder = _Gated(settings.cache)
        return one


def gate(cache: Path, seed: int) -> Path:
    """The file that lets the requests of `seed` go on."""
    return cache / f"gate-{seed}"


def open_gate(cache: Path, seed: int) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    gate(cache, seed).touch()
