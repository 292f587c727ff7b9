"""What can be measured of a speaker without a model: pitch, its range, how fast and how loud they speak. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cosyvoice_app.audio.pitch import PitchConfig, track_f0
from cosyvoice_app.types import FloatArray

_Floats = npt.NDArray[np.float64]

_FRAME_S = 0.01
_SMOOTH_S = 0.05
SPEECH_BELOW_PEAK_DB = 25.0
"""A frame is speech when it lies less than this under the loud parts (95th percentile)."""
NUCLEUS_DIP_DB = 2.0
"""Least dip of loudness between two syllable nuclei (de Jong & Wempe)."""


@dataclass(frozen=True, slots=True)
class SpeakerStats:
    """`f0_range_semitones` is the distance between the 10th and 90th percentile of voiced frames.

    `syllables_per_s` counts speaking time only, pauses left out. `level_dbfs` is the RMS of the speaking time. With no
    voiced frame (a whisper) both F0 values are 0.
    """

    f0_median_hz: float
    f0_range_semitones: float
    syllables_per_s: float
    level_dbfs: float
    speech_s: float


def measure(samples: FloatArray, rate_hz: int, f0_hz: FloatArray | None = None) -> SpeakerStats:
    """Statistics of a mono clip [n]. `f0_hz` is its F0 at 80 frames a second (0 = unvoiced), tracked here when not
    given.
    """
    f0 = np.asarray(track_f0(samples, rate_hz) if f0_hz is None else f0_hz, np.float64)
    level_db = _envelope_db(samples, rate_hz)
    if not len(level_db):
        return SpeakerStats(0.0, 0.0, 0.0, -120.0, 0.0)
    speech = level_db > np.percentile(level_db, 95) - SPEECH_BELOW_PEAK_DB
    speech_s = float(speech.sum()) * _FRAME_S
    median, spread = robust_f0(f0)
    nuclei = _syllable_nuclei(level_db, speech, _voicing(f0, len(level_db)))
    power = np.mean(10.0 ** (level_db[speech] / 10.0)) if speech.any() else 0.0
    rate = len(nuclei) / speech_s if speech_s > 0 else 0.0
    return SpeakerStats(median, spread, rate, float(10.0 * np.log10(max(power, 1e-12))), speech_s)


def robust_f0(f0_hz: npt.NDArray[np.floating]) -> tuple[float, float]:
    """(median in Hz, 10th-to-90th percentile range in semitones) of the voiced frames, octave errors left out.

    A tracker's typical fault is a jump by an octave; frames further than 9 semitones from a first median are dropped.
    """
    voiced = np.asarray(f0_hz, np.float64)
    voiced = voiced[voiced > 0]
    if not len(voiced):
        return 0.0, 0.0
    pitch = 12.0 * np.log2(voiced)
    pitch = pitch[np.abs(pitch - np.median(pitch)) <= 9.0]
    low, middle, high = np.percentile(pitch, [10, 50, 90])
    return float(2.0 ** (middle / 12.0)), float(high - low)


def _envelope_db(samples: FloatArray, rate_hz: int) -> _Floats:
    """Loudness every 10 ms over a 50 ms Hann window, dBFS [frames]."""
    hop = max(1, round(_FRAME_S * rate_hz))
    size = max(2, round(_SMOOTH_S * rate_hz)) | 1
    x = np.asarray(samples, np.float64)
    if len(x) < hop:
        return np.zeros(0)
    window = np.hanning(size + 2)[1:-1]
    power = np.convolve(np.square(x - x.mean()), window / window.sum(), mode="same")
    frames = len(x) // hop
    return np.asarray(10.0 * np.log10(np.maximum(power[hop // 2 :: hop][:frames], 1e-12)))


def _voicing(f0: _Floats, frames: int) -> npt.NDArray[np.bool_]:
    """Voicing at the envelope's frame rate."""
    if not len(f0):
        return np.zeros(frames, bool)
    at = ((np.arange(frames) + 0.5) * _FRAME_S * PitchConfig().frame_rate_hz).astype(np.int64)
    return np.asarray(f0[np.minimum(at, len(f0) - 1)] > 0)


def _syllable_nuclei(level_db: _Floats, speech: npt.NDArray[np.bool_], voiced: npt.NDArray[np.bool_]) -> list[int]:
    """Frames of voiced loudness peaks with a dip of 2 dB before the next.

    After N. de Jong & T. Wempe, "Praat script to detect syllable nuclei and measure speech rate automatically",
    Behavior Research Methods 41 (2009). It misses unstressed syllables, alike for every speaker.
    """
    nuclei: list[int] = []
    best, lowest = -1, np.inf
    for t in range(len(level_db)):
        value = level_db[t]
        if best >= 0 and value < level_db[best] - NUCLEUS_DIP_DB:
            nuclei.append(best)
            best, lowest = -1, value
        elif best < 0:
            lowest = min(lowest, value)
            if value >= lowest + NUCLEUS_DIP_DB or not nuclei:
                best = t if speech[t] and voiced[t] else best
        elif value > level_db[best] and speech[t] and voiced[t]:
            best = t
    if best >= 0:
        nuclei.append(best)
    return nuclei
