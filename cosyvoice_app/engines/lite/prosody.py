"""From what the predictor expects to what is spoken: rate, rhythm, melody and level, shaped by voice, style and seed.

Every change is a smooth one around the predicted curve, small enough that no word is lost: durations within a few per
cent of the plan, pitch within a semitone of the melody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

VOICED_ABOVE_HZ = 30.0
F0_FLOOR_HZ, F0_CEILING_HZ = 55.0, 700.0

RHYTHM_SPREAD = 0.05
"""Standard deviation of the seed's change of a symbol's duration, in natural-log units, before smoothing over
symbols.
"""
RATE_SPREAD = 0.03
MELODY_SPREAD_SEMITONES = 0.7
MELODY_SPAN_S = 0.5
RANGE_SPREAD = 0.10

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a voice and a style bend the predicted prosody. The defaults change nothing.

    `f0_median_hz` 0 keeps the predicted median. `f0_range` stretches the melody about its median (1 = as predicted).
    """

    speed: float = 1.0
    f0_median_hz: float = 0.0
    f0_range: float = 1.0
    f0_shift_semitones: float = 0.0


def plan_frames(expected: Tensor, speed: float, rng: np.random.Generator | None = None) -> Tensor:
    """Expected frames a symbol [N] -> whole frames [N], each at least 1. With `rng`, the seed's own rhythm.

    Rounding carries its remainder on to the next symbol, so that the length is kept; a symbol
    keeps its one frame, though, so that speech of many short symbols comes out some per cent longer at high speed.
    """
    wanted = expected.double().cpu().numpy() / speed
    if rng is not None:
        wander = _smooth(rng.standard_normal(len(wanted)), 1.5)
        wanted = wanted * np.exp(RHYTHM_SPREAD * wander + RATE_SPREAD * np.clip(rng.standard_normal(), -2.0, 2.0))
    ends = np.rint(np.cumsum(wanted))
    frames = np.maximum(np.diff(ends, prepend=0.0), 1.0)
    return torch.from_numpy(frames.astype(np.int64)).to(expected.device)


def shape_f0(f0: Tensor, shape: Shape, frame_rate_hz: float, rng: np.random.Generator | None = None) -> Tensor:
    """Predicted F0 [T] in Hz (0 or small = unvoiced) -> shaped F0 [T]; unvoiced frames are left alone."""
    voiced = f0 > VOICED_ABOVE_HZ
    if not bool(voiced.any()):
        return f0
    median = float(f0[voiced].median())
    target = shape.f0_median_hz if shape.f0_median_hz > 0 else median
    target *= 2.0 ** (shape.f0_shift_semitones / 12.0)
    melody = 12.0 * torch.log2(f0.clamp(min=1.0) / median)
    spread = shape.f0_range
    if rng is not None:
        spread *= math.exp(RANGE_SPREAD * float(np.clip(rng.standard_normal(), -2.0, 2.0)))
        wander = _smooth(rng.standard_normal(len(f0)), MELODY_SPAN_S * frame_rate_hz)
        melody = melody + MELODY_SPREAD_SEMITONES * torch.from_numpy(wander).to(f0)
    shaped = target * torch.exp2(melody * spread / 12.0)
    return torch.where(voiced, shaped.clamp(F0_FLOOR_HZ, F0_CEILING_HZ), f0)


def _smooth(noise: _Floats, span: float) -> _Floats:
    """White noise [N] -> unit-variance noise smoothed by a Gaussian of `span` points, clipped at two deviations."""
    reach = max(1, math.ceil(3.0 * span))
    kernel = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / span))
    kernel /= np.sqrt(np.square(kernel).sum())
    smooth = np.convolve(np.pad(noise, reach, mode="wrap" if len(noise) > reach else "edge"), kernel, mode="valid")
    return np.clip(smooth[: len(noise)], -2.0, 2.0)
