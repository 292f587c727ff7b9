"""Mel filterbanks (Slaney's, HTK's, Kaldi's) and the cosine transform that makes cepstra of them.

What depends only on a config is built once per config, device and dtype.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cosyvoice_app.audio.config_checks import checked
from cosyvoice_app.errors import ConfigError

MelScale = Literal["kaldi", "htk", "slaney"]


class MelBank(NamedTuple):
    """What a filterbank depends on: `mel_filters`' arguments but for device and dtype."""

    bins: int
    n_fft: int
    rate_hz: int
    low_hz: float
    high_hz: float
    scale: MelScale
    slaney_norm: bool


# Built outside inference mode whoever asks first: what is cached must serve a backward pass later.
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def mel_filters(
    bins: int,
    n_fft: int,
    rate_hz: int,
    low_hz: float,
    high_hz: float,
    scale: MelScale,
    slaney_norm: bool,
    device: str,
    dtype: torch.dtype,
) -> Tensor:
    """Triangles [n_fft // 2 + 1, bins] over the frequencies of an `n_fft` spectrum at `rate_hz`.

    "kaldi" draws them over mel, "htk" and "slaney" over Hz (which differ in their mel). `slaney_norm` gives each
    triangle unit area over Hz. A filter narrower than the spectrum's bins may fall between two of them: it is 0.
    """
    checked("scale", MelScale, scale)
    if not 0 <= low_hz < high_hz <= rate_hz / 2:
        raise ConfigError(
            f"The mel filters go from {low_hz:g} to {high_hz:g} Hz; they must lie within 0 and {rate_hz / 2:g} Hz.",
            param="low_hz",
        )
    low, high = (float(_to_mel(torch.tensor(hz, dtype=torch.float64), scale)) for hz in (low_hz, high_hz))
    # Kaldi draws its triangles in float32, whose rounding moves the narrow top ones by a few parts in ten thousand.
    draw = torch.float32 if scale == "kaldi" else torch.float64
    frequencies = torch.arange(n_fft // 2 + 1, dtype=draw) * (rate_hz / n_fft)
    corners = low + (high - low) / (bins + 1) * torch.arange(bins + 2, dtype=draw)
    if scale == "kaldi":
        x = _to_mel(frequencies, scale)
        # Kaldi leaves the Nyquist bin out.
        x[-1] = math.inf
    else:
        x, corners = frequencies, _from_mel(corners, scale)
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    rising = (x[:, None] - left) / (centre - left)
    falling = (right - x[:, None]) / (right - centre)
    filters = torch.minimum(rising, falling).clamp_min(0.0)
    if slaney_norm:
        hz = corners if scale != "kaldi" else _from_mel(corners, scale)
        filters = filters * (2.0 / (hz[2:] - hz[:-2]))
    return filters.to(device, dtype)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def dct_matrix(
    bins: int, coefficients: int, lifter: int, device: str, dtype: torch.dtype, scale: float = 1.0
) -> Tensor:
    """DCT-II with orthonormal scaling [bins, coefficients]: cepstra are `log_mel @ dct_matrix(...)`.

    A `lifter` L above 0 multiplies coefficient k by 1 + L/2 sin(pi (k + 1) / L), which brings the higher coefficients
    up to the size of the lower ones (librosa's and HTK's curve, though HTK starts it at k, not k + 1). `scale` is for
    them all.
    """
    n, k = torch.arange(bins, dtype=torch.float64), torch.arange(coefficients, dtype=torch.float64)
    cosines = torch.cos(math.pi / bins * (n[:, None] + 0.5) * k) * math.sqrt(2.0 / bins)
    cosines[:, 0] = 1.0 / math.sqrt(bins)
    if lifter > 0:
        cosines = cosines * (1.0 + lifter / 2.0 * torch.sin(math.pi * (k + 1.0) / lifter))
    return (scale * cosines).to(device, dtype)


# Slaney: linear below 1 kHz (3 mel per 200 Hz), logarithmic above (27 mel per factor of 6.4).
_SLANEY_KNEE_HZ, _SLANEY_KNEE_MEL, _SLANEY_STEP = 1000.0, 15.0, math.log(6.4) / 27.0


def _to_mel(hz: Tensor, scale: MelScale) -> Tensor:
    if scale == "slaney":
        above = _SLANEY_KNEE_MEL + torch.log(hz.clamp_min(1e-9) / _SLANEY_KNEE_HZ) / _SLANEY_STEP
        return torch.where(hz < _SLANEY_KNEE_HZ, hz * 3.0 / 200.0, above)
    # Kaldi's 1127 and HTK's 2595 / ln 10 name the same curve, rounded differently.
    factor = 1127.0 if scale == "kaldi" else 2595.0 / math.log(10.0)
    return factor * torch.log(1.0 + hz / 700.0)


def _from_mel(mel: Tensor, scale: MelScale) -> Tensor:
    if scale == "slaney":
        above = _SLANEY_KNEE_HZ * torch.exp(_SLANEY_STEP * (mel - _SLANEY_KNEE_MEL))
        return torch.where(mel < _SLANEY_KNEE_MEL, mel * 200.0 / 3.0, above)
    factor = 1127.0 if scale == "kaldi" else 2595.0 / math.log(10.0)
    return 700.0 * (torch.exp(mel / factor) - 1.0)
