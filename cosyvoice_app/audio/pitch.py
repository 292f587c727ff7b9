"""Fundamental frequency by autocorrelation, after P. Boersma, "Accurate short-term analysis of the fundamental
frequency and the harmonics-to-noise ratio of a sampled sound", IFA Proceedings 17 (1993).

Each frame's autocorrelation, divided by its window's, gives candidates; a path of least cost through them decides
between octaves and between voiced and unvoiced. The costs and their defaults are the paper's, later refined values
included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cosyvoice_app.errors import ConfigError
from cosyvoice_app.types import FloatArray

_Floats = npt.NDArray[np.float64]
# The autocorrelation is interpolated to this many points a sample before its peaks are located by a parabola.
_OVERSAMPLING = 2
_CHUNK_FRAMES = 128


@dataclass(frozen=True, slots=True)
class PitchConfig:
    """`floor_hz` sets the window (three periods); costs are per 10 ms, strengths are autocorrelations (0 to 1).

    A frame is called unvoiced when it peaks under `silence` of the whole, or when no period repeats better than
    `voicing`.
    """

    frame_rate_hz: float = 80.0
    floor_hz: float = 75.0
    ceiling_hz: float = 600.0
    candidates: int = 15
    silence: float = 0.03
    voicing: float = 0.45
    octave_cost: float = 0.01
    octave_jump_cost: float = 0.35
    voicing_change_cost: float = 0.14

    def __post_init__(self) -> None:
        if not 0 < self.floor_hz < self.ceiling_hz:
            raise ConfigError(f"Pitch limits are {self.floor_hz:g} to {self.ceiling_hz:g} Hz; the floor must be "
                              "above 0 and below the ceiling.", param="floor_hz")
        if self.frame_rate_hz <= 0 or self.candidates < 2:
            raise ConfigError("frame_rate_hz must be above 0 and candidates at least 2.", param="frame_rate_hz")


def track_f0(samples: FloatArray, rate_hz: int, config: PitchConfig = PitchConfig()) -> FloatArray:
    """F0 in Hz of mono [n], float32 [frames], 0 where unvoiced. Frame i is centred at (i + 0.5) / frame_rate_hz
    seconds; there are round(n / rate_hz * frame_rate_hz) of them.
    """
    frames = round(len(samples) / rate_hz * config.frame_rate_hz)
    x = np.asarray(samples, np.float64)
    peak = float(np.abs(x - x.mean()).max()) if len(x) else 0.0
    if frames == 0 or peak == 0.0:
        return np.zeros(frames, np.float32)
    f0_hz, strength = _all_candidates(x, rate_hz, frames, peak, config)
    return _best_path(f0_hz, strength, config).astype(np.float32)


def _all_candidates(x: _Floats, rate_hz: int, frames: int, peak: float, config: PitchConfig) -> tuple[_Floats, _Floats]:
    """F0 (0 = unvoiced, always first) and strength of each candidate, both [frames, candidates]; -inf marks no
    candidate.
    """
    period = rate_hz / config.floor_hz
    half = int(1.5 * period)
    window = np.hanning(2 * half + 3)[1:-1]
    n_fft = 1 << int(np.ceil(np.log2(1.5 * len(window))))
    # Peaks just outside the range still have to be seen falling off inside it.
    last = int(min(np.ceil(period) + 2, half))
    own = _autocorrelation(window[None], n_fft)[0, : last * _OVERSAMPLING + 1]
    own = own / own[0]
    centres = np.rint((np.arange(frames) + 0.5) / config.frame_rate_hz * rate_hz).astype(np.int64)
    padded = np.concatenate([np.zeros(half), x, np.zeros(half + 1 + rate_hz)])
    around = np.arange(-half, half + 1)
    # The local mean spans one longest period to each side, the local peak half of one.
    near = np.abs(around) <= int(period)
    nearest = np.abs(around) <= int(period / 2) + 1
    f0_hz, strength = np.zeros((frames, config.candidates)), np.full((frames, config.candidates), -np.inf)
    for first in range(0, frames, _CHUNK_FRAMES):
        rows = slice(first, min(first + _CHUNK_FRAMES, frames))
        piece = padded[centres[rows, None] + half + around[None]]
        piece = piece - piece[:, near].mean(axis=1, keepdims=True)
        loudness = np.minimum(np.abs(piece[:, nearest]).max(axis=1) / peak, 1.0)
        raw = _autocorrelation(piece * window, n_fft)[:, : last * _OVERSAMPLING + 1]
        r = raw / np.maximum(raw[:, :1], 1e-30) / own
        strength[rows, 0] = config.voicing + np.maximum(0.0, 2.0 - loudness / (config.silence / (1.0 + config.voicing)))
        _voiced_candidates(r, rate_hz * _OVERSAMPLING, config, f0_hz[rows], strength[rows])
    return f0_hz, strength


def _autocorrelation(rows: _Floats, n_fft: int) -> _Floats:
    """Autocorrelation of each row at every 1 / _OVERSAMPLING sample of lag, normalised so that lag 0 is the energy."""
    power = np.abs(np.fft.rfft(rows, n_fft, axis=1)) ** 2
    # A longer inverse transform of the same spectrum interpolates band-limitedly between the lags.
    return np.fft.irfft(power, n_fft * _OVERSAMPLING, axis=1) * _OVERSAMPLING


def _voiced_candidates(r: _Floats, lag_rate_hz: float, config: PitchConfig, f0_hz: _Floats, strength: _Floats) -> None:
    """Fill columns 1.. of `f0_hz` and `strength` [rows, candidates] with the strongest peaks of `r` [rows, lags]."""
    left, centre, right = r[:, :-2], r[:, 1:-1], r[:, 2:]
    curve = 2.0 * centre - left - right
    is_peak = (centre > left) & (centre >= right) & (centre > 0.5 * config.voicing)
    safe = np.where(curve > 0, curve, 1.0)
    offset = np.where(is_peak, 0.5 * (right - left) / safe, 0.0)
    height = centre + 0.25 * (right - left) * offset
    # Above 1 is an artefact of dividing by a small window value; mirrored, as the better it looks the less it is.
    height = np.where(height > 1.0, 1.0 / np.maximum(height, 1e-9), height)
    hz = lag_rate_hz / (np.arange(1, r.shape[1] - 1) + offset)
    usable = is_peak & (hz >= config.floor_hz) & (hz <= config.ceiling_hz)
    score = np.where(usable, height - config.octave_cost * np.log2(config.floor_hz / hz), -np.inf)
    keep = min(config.candidates - 1, score.shape[1])
    best = np.argpartition(score, -keep, axis=1)[:, -keep:]
    f0_hz[:, 1:keep + 1] = np.take_along_axis(hz, best, axis=1)
    strength[:, 1:keep + 1] = np.take_along_axis(score, best, axis=1)


def _best_path(f0_hz: _Floats, strength: _Floats, config: PitchConfig) -> _Floats:
    """Viterbi: the sequence of candidates with the greatest strength less the costs of jumping between neighbours."""
    per_step = config.frame_rate_hz / 100.0
    jump, change = config.octave_jump_cost * per_step, config.voicing_change_cost * per_step
    frames = len(f0_hz)
    voiced = f0_hz > 0
    log_hz = np.log2(np.where(voiced, f0_hz, 1.0))
    total = strength[0].copy()
    back = np.zeros(f0_hz.shape, np.int64)
    for i in range(1, frames):
        both = voiced[i - 1][:, None] & voiced[i][None]
        either = voiced[i - 1][:, None] ^ voiced[i][None]
        cost = jump * both * np.abs(log_hz[i - 1][:, None] - log_hz[i][None]) + change * either
        through = total[:, None] - cost
        back[i] = through.argmax(axis=0)
        total = through.max(axis=0) + strength[i]
    path = np.empty(frames, np.int64)
    path[-1] = int(total.argmax())
    for i in range(frames - 1, 0, -1):
        path[i - 1] = back[i, path[i]]
    return f0_hz[np.arange(frames), path]
