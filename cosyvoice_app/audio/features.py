"""Audio to features, batched and differentiable: Kaldi filterbanks and log-mel spectrograms.

    fbank(samples [B, n], rate_hz, FbankConfig())  -> [B, frames, bins]
    log_mel(samples [B, n], LogMelConfig(...))     -> [B, frames, bins]

Configs are frozen; what depends only on them (windows, filterbanks) is built once per config, device and dtype. All
of it computes in at least float32: half-precision input is widened first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from cosyvoice_app.errors import ConfigError

MelScale = Literal["kaldi", "htk", "slaney"]
# Kaldi floors energies at float32's machine epsilon before the logarithm, whatever the dtype.
_KALDI_FLOOR = torch.finfo(torch.float32).eps


@dataclass(frozen=True, slots=True)
class FbankConfig:
    """Kaldi's `compute-fbank-feats` without dither. `high_hz` of 0 or less counts down from the Nyquist frequency."""

    bins: int = 80
    frame_ms: float = 25.0
    shift_ms: float = 10.0
    low_hz: float = 20.0
    high_hz: float = 0.0
    preemphasis: float = 0.97
    remove_dc: bool = True
    window: Literal["povey", "hann", "hamming"] = "povey"
    power: Literal[1, 2] = 2

    def __post_init__(self) -> None:
        _positive(self, "bins", "frame_ms", "shift_ms")

    def window_samples(self, rate_hz: int) -> int:
        return int(rate_hz * self.frame_ms * 0.001)

    def shift_samples(self, rate_hz: int) -> int:
        return int(rate_hz * self.shift_ms * 0.001)

    def frames(self, samples: int, rate_hz: int) -> int:
        """Frames that `samples` give: only whole ones ("snip edges"), so none when shorter than a frame."""
        window = self.window_samples(rate_hz)
        return 0 if samples < window else 1 + (samples - window) // self.shift_samples(rate_hz)


@dataclass(frozen=True, slots=True)
class LogMelConfig:
    """A log-mel spectrogram in the manner of vocoders.

    `filter_rate_hz` is the rate the filterbank is built for when that isn't the audio's: some models were trained with
    filters of another rate, and need the same again. `high_hz` of 0 is half of it. The logarithm is of
    `mel + floor` ("add") or of `max(mel, floor)` ("clamp"). `centre` pads by reflection, so that frame i is centred on
    sample i x hop_samples.
    """

    rate_hz: int
    n_fft: int
    window_samples: int
    hop_samples: int
    bins: int
    low_hz: float = 0.0
    high_hz: float = 0.0
    filter_rate_hz: int = 0
    scale: MelScale = "htk"
    slaney_norm: bool = False
    power: Literal[1, 2] = 2
    floor: float = 1e-5
    floor_mode: Literal["add", "clamp"] = "clamp"
    log: Literal["ln", "log10"] = "ln"
    centre: bool = True

    def __post_init__(self) -> None:
        _positive(self, "rate_hz", "n_fft", "window_samples", "hop_samples", "bins", "floor")
        if self.window_samples > self.n_fft:
            raise ConfigError(f"window_samples is {self.window_samples}; it must not pass n_fft, {self.n_fft}.",
                              param="window_samples")

    def frames(self, samples: int) -> int:
        extra = 2 * (self.n_fft // 2) if self.centre else 0
        return max(0, 1 + (samples + extra - self.n_fft) // self.hop_samples)


def _positive(config: object, *names: str) -> None:
    for name in names:
        if getattr(config, name) <= 0:
            raise ConfigError(f"{name} is {getattr(config, name)}; it must be greater than 0.", param=name)


def fbank(samples: Tensor, rate_hz: int, config: FbankConfig = FbankConfig()) -> Tensor:
    """Log mel energies [B, frames, bins] of `samples` [B, n] at `rate_hz`; equal to Kaldi's with dither 0.

    The scale of the samples only shifts the result: Kaldi itself works on 16-bit integers, so add ln(32768) * power
    to compare. `frames` is `config.frames(n, rate_hz)`, which may be 0.
    """
    samples = _widened(samples)
    window_samples, shift = config.window_samples(rate_hz), config.shift_samples(rate_hz)
    if samples.shape[-1] < window_samples:
        return samples.new_zeros(samples.shape[0], 0, config.bins)
    frames = samples.unfold(-1, window_samples, shift)
    if config.remove_dc:
        frames = frames - frames.mean(dim=-1, keepdim=True)
    if config.preemphasis:
        # The sample before the first is taken to be the first.
        before = torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
        frames = frames - config.preemphasis * before
    n_fft = 1 << (window_samples - 1).bit_length()
    frames = frames * _fbank_window(config.window, window_samples, frames.device, frames.dtype)
    spectrum = _magnitude(torch.fft.rfft(frames, n=n_fft), config.power)
    high_hz = config.high_hz if config.high_hz > 0 else rate_hz / 2 + config.high_hz
    filters = mel_filters(config.bins, n_fft, rate_hz, config.low_hz, high_hz, "kaldi", False, str(samples.device),
                          samples.dtype)
    return (spectrum @ filters).clamp_min(_KALDI_FLOOR).log()


def log_mel(samples: Tensor, config: LogMelConfig) -> Tensor:
    """Log-mel spectrogram [B, frames, bins] of `samples` [B, n] at `config.rate_hz`."""
    samples = _widened(samples)
    window = torch.hann_window(config.window_samples, periodic=True, device=samples.device, dtype=samples.dtype)
    spectrum = torch.stft(samples, config.n_fft, config.hop_samples, config.window_samples, window,
                          center=config.centre, pad_mode="reflect", return_complex=True)
    filter_rate_hz = config.filter_rate_hz or config.rate_hz
    filters = mel_filters(config.bins, config.n_fft, filter_rate_hz, config.low_hz,
                          config.high_hz or filter_rate_hz / 2, config.scale, config.slaney_norm,
                          str(samples.device), samples.dtype)
    mel = _magnitude(spectrum, config.power).transpose(1, 2) @ filters
    floored = mel + config.floor if config.floor_mode == "add" else mel.clamp_min(config.floor)
    return floored.log() if config.log == "ln" else floored.log10()


def _widened(samples: Tensor) -> Tensor:
    if samples.ndim != 2:
        raise ValueError(f"samples must be [B, n], got {tuple(samples.shape)}")
    return samples if samples.dtype == torch.float64 else samples.float()


def _magnitude(spectrum: Tensor, power: int) -> Tensor:
    # abs() has gradient 0 at 0, where the root of a sum of squares has none.
    return spectrum.abs() if power == 1 else spectrum.real.square() + spectrum.imag.square()


# Built outside inference mode whoever asks first: what is cached must serve a backward pass later.
@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _fbank_window(name: str, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    phase = 2 * math.pi * torch.arange(length, dtype=torch.float64) / (length - 1)
    if name == "hamming":
        window = 0.54 - 0.46 * torch.cos(phase)
    else:
        window = 0.5 - 0.5 * torch.cos(phase)
        if name == "povey":
            window = window.pow(0.85)
    return window.to(device, dtype)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def mel_filters(bins: int, n_fft: int, rate_hz: int, low_hz: float, high_hz: float, scale: MelScale, slaney_norm: bool,
                device: str, dtype: torch.dtype) -> Tensor:
    """Triangles [n_fft // 2 + 1, bins] over the frequencies of an `n_fft` spectrum at `rate_hz`.

    "kaldi" draws them over mel, "htk" and "slaney" over Hz (which differ in their mel). `slaney_norm` gives each
    triangle unit area over Hz.
    """
    if not 0 <= low_hz < high_hz <= rate_hz / 2:
        raise ConfigError(f"The mel filters go from {low_hz:g} to {high_hz:g} Hz; they must lie within 0 and "
                          f"{rate_hz / 2:g} Hz.", param="low_hz")
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
