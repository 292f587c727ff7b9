"""Audio to features, batched and differentiable: MFCC, Kaldi filterbanks, log-mel spectrograms of several makes.

    extractor_for("mfcc", 16000)(samples [B, n], lengths [B])  -> Features: values [B, frames, bins], lengths [B]
    fbank(samples [B, n], rate_hz, FbankConfig())              -> [B, frames, bins]
    mfcc, log_mel, whisper_mel, mel24k                         likewise, for clips that are all n samples long
    deltas(Features)                                           -> Features

Configs are frozen; what depends only on them (windows, filterbanks) is built once per config, device and dtype. All
of it computes in at least float32: half-precision input is widened first, float64 stays what it is. On the CPU a clip's
features are the same to the bit in any batch, with any padding and any number of threads.

All are differentiable but for the corners of their clamps: below a floor the gradient is 0, and where a clip's own
maximum sets the floor (Whisper's, `top_db`) it flows to that maximum too.
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor

from cosyvoice_app.audio.config_checks import RateHz, Within, checked
from cosyvoice_app.audio.feature_configs import (
    Config,
    FbankConfig,
    LogMelConfig,
    Mel24kConfig,
    MfccConfig,
    WhisperMelConfig,
    bound,
    power_of_two,
)
from cosyvoice_app.audio.framing import (
    Framing,
    checked_lengths,
    frame_audio,
    frame_mask,
    frames_of,
    padded_frames,
    refuse_not_finite,
    samples_of,
    window,
)
from cosyvoice_app.audio.mel import MelScale, dct_matrix, mel_filters
from cosyvoice_app.audio.spectral import (
    Spectral,
    all_cepstra,
    feature_rows,
    in_blocks,
    magnitude_spectrum,
    power_spectrum,
    through_blocks,
)
from cosyvoice_app.errors import BadInput, ConfigError

__all__ = [
    "KINDS", "Extractor", "FbankConfig", "Features", "Framing", "Kind", "LogMelConfig", "Mel24kConfig", "MelScale",
    "MfccConfig", "WhisperMelConfig", "dct_matrix", "deltas", "extractor_for", "fbank", "frame_audio", "frame_mask",
    "log_mel", "magnitude_spectrum", "mel24k", "mel_filters", "mfcc", "power_spectrum", "samples_of", "whisper_mel",
    "window",
]  # fmt: skip

Kind = Literal["mfcc", "fbank", "logmel", "whisper-mel", "mel24k"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_WHISPER_RATE_HZ, _MEL24K_RATE_HZ = 16_000, 24_000
_FBANK, _MFCC = FbankConfig(), MfccConfig()


@dataclass(frozen=True, slots=True)
class Features:
    """values [B, frames, bins], float32 (float64 of float64 samples); rows past `lengths` [B] int64 are exactly 0."""

    values: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class Extractor:
    """A config bound to a sample rate. Holds no state: any number of threads may call it at once."""

    kind: Kind
    config: Config
    rate_hz: int
    """Rate of the samples it takes."""
    bins: int = field(init=False)
    framing: Framing = field(init=False, repr=False)
    _spectral: Spectral = field(init=False, repr=False)

    def __post_init__(self) -> None:
        framing, spectral = bound(self.config, self.rate_hz)
        bins = self.config.coefficients if isinstance(self.config, MfccConfig) else self.config.bins
        for name, value in (("bins", bins), ("framing", framing), ("_spectral", spectral)):
            object.__setattr__(self, name, value)
        # Built now, so that what can't be built is refused now.
        mel_filters(*spectral.bank, "cpu", torch.float32)
        window(spectral.window, spectral.frame, spectral.periodic, torch.device("cpu"), torch.float32)

    @property
    def shift_samples(self) -> int:
        return self.framing.shift

    @property
    def needs_whole_clip(self) -> bool:
        """Whether a frame depends on the clip's maximum: then it can't be streamed."""
        return isinstance(self.config, WhisperMelConfig) or getattr(self.config, "top_db", None) is not None

    def frames(self, samples: int) -> int:
        """Frames that a clip of so many samples gives."""
        return self.framing.frames(samples)

    def rows(self, frames: Tensor) -> Tensor:
        """Frames of samples [N, framing.frame] -> [N, bins], each by itself; not where it `needs_whole_clip`.

        Without gradients on the CPU, where a row's bits don't depend on the others.
        """
        if frames.device.type != "cpu":
            return feature_rows(frames, self._spectral)
        values = frames.new_empty(len(frames), self.bins)
        through_blocks([(frames, 0)], self._spectral, values)
        return values

    def __call__(self, samples: Tensor, lengths: Tensor | None = None, *, check: bool = True) -> Features:
        """Features of `samples` [B, n], whose clips are `lengths` [B] samples long (None: all n).

        What lies past a clip's length is never looked at. BadInput names the clip that holds a NaN or an infinity;
        `check=False` spares a device that question, which it must be waited for. BadInput also when the samples are no
        floats: whole numbers don't say what stands for 1.
        """
        samples = widened(samples)
        own = checked_lengths(samples, lengths) if lengths is not None else None
        if check:
            refuse_not_finite(samples, own)
        with _full_precision(samples.device.type):
            if samples.device.type == "cpu" and not (samples.requires_grad and torch.is_grad_enabled()):
                sizes = own.tolist() if own is not None else [samples.shape[1]] * len(samples)
                counts, values = self._packed(samples, sizes)
            else:
                counts, values = self._padded(samples, own)
            if self.needs_whole_clip and values.numel():
                values = self._floored(values, counts)
            if lengths is not None:
                values = torch.where(frame_mask(counts, values.shape[1])[..., None], values, 0.0)
        return Features(values, counts)

    def _packed(self, samples: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        """Frames of each clip, and what `_spectral` makes of these alone, zeros after them [B, frames, columns]."""
        counts = [self.framing.frames(size) for size in sizes]
        longest, columns = max(counts, default=0), self._spectral.columns
        if not longest:
            return torch.tensor(counts, dtype=torch.int64), samples.new_zeros(len(samples), 0, self.bins)
        new = samples.new_empty if len(set(sizes)) == 1 else samples.new_zeros
        values = new(len(samples), longest, columns)
        frames = ((frames_of(samples[i, :size], self.framing), i * longest) for i, size in enumerate(sizes))
        through_blocks(frames, self._spectral, values.view(-1, columns))
        return torch.tensor(counts, dtype=torch.int64), values

    def _padded(self, samples: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Frames of each clip, and what `_spectral` makes of as many as the longest has [B, frames, columns]."""
        own = checked_lengths(samples, lengths)
        counts, frames = self.framing.frame_counts(own), padded_frames(samples, own, self.framing)
        if not frames.shape[1]:
            return counts, samples.new_zeros(len(samples), 0, self.bins)
        spec = self._spectral
        rows = in_blocks(lambda block: feature_rows(block, spec), frames.flatten(0, 1), spec.block_rows)
        return counts, rows.view(len(samples), frames.shape[1], rows.shape[1])

    def _floored(self, log_mel: Tensor, lengths: Tensor) -> Tensor:
        """What follows where a clip's own maximum sets the floor: log mel [B, frames, bins] -> [B, frames, bins]."""
        own = log_mel
        if log_mel.device.type != "cpu" or int(lengths.min()) < log_mel.shape[1]:
            own = log_mel.masked_fill(~frame_mask(lengths, log_mel.shape[1])[..., None], -torch.inf)
        loudest = own.amax(dim=(1, 2), keepdim=True)
        if not isinstance(self.config, MfccConfig):
            return (torch.maximum(log_mel, loudest - 8.0) + 4.0) / 4.0
        floored = torch.maximum(log_mel, loudest - (self.config.top_db or 0.0) / 10.0)
        rows = all_cepstra(floored.flatten(0, 1), self.config.coefficients, self.config.lifter)
        return rows.view(*floored.shape[:2], self.bins)


_CONFIGS: dict[str, type[MfccConfig | FbankConfig | LogMelConfig | WhisperMelConfig | Mel24kConfig]] = {
    "mfcc": MfccConfig,
    "fbank": FbankConfig,
    "logmel": LogMelConfig,
    "whisper-mel": WhisperMelConfig,
    "mel24k": Mel24kConfig,
}
_ONLY_RATE_HZ = {"whisper-mel": _WHISPER_RATE_HZ, "mel24k": _MEL24K_RATE_HZ}


def extractor_for(kind: Kind, rate_hz: int | None = None, **changes: Any) -> Extractor:
    """The extractor of `kind` with its config's defaults but for `changes`.

    `rate_hz` is 16 kHz unless the kind has a rate of its own ("mel24k": 24 kHz, "whisper-mel": 16 kHz). "logmel" has
    the other kinds' 25 and 10 ms, 80 bins. ConfigError names what is allowed.
    """
    if kind not in _CONFIGS:
        raise ConfigError(f"There is no kind of features {kind!r}; there are {', '.join(KINDS)}.", param="kind")
    only = _ONLY_RATE_HZ.get(kind)
    rate_hz = rate_hz or only or 16_000
    if only and rate_hz != only:
        raise ConfigError(f"{kind} is for {only} Hz, not {rate_hz}: change the rate first.", param="rate_hz")
    rate_hz = checked("rate_hz", RateHz, rate_hz)
    config = _CONFIGS[kind]
    allowed = [field.name for field in dataclasses.fields(config) if field.name != "rate_hz"]
    for name in changes:
        if name not in allowed:
            raise ConfigError(f"{kind} has no setting {name!r}; it has {', '.join(allowed)}.", param=name)
    if config is LogMelConfig:
        frame = samples_of(25.0, rate_hz)
        given = {"rate_hz": rate_hz, "n_fft": power_of_two(frame), "window_samples": frame,
                 "hop_samples": samples_of(10.0, rate_hz), "bins": 80}  # fmt: skip
        changes = {**given, **changes}
    return Extractor(kind, config(**changes), rate_hz)


def fbank(samples: Tensor, rate_hz: int, config: FbankConfig = _FBANK) -> Tensor:
    """Log mel energies [B, frames, bins] of `samples` [B, n] at `rate_hz`; equal to Kaldi's with dither 0.

    The scale of the samples only shifts the result: Kaldi itself works on 16-bit integers, so add ln(32768) * power
    to compare. `frames` is `config.frames(n, rate_hz)`, which may be 0.
    """
    return _values("fbank", samples, rate_hz, config)


def log_mel(samples: Tensor, config: LogMelConfig) -> Tensor:
    """Log-mel spectrogram [B, frames, bins] of `samples` [B, n] at `config.rate_hz`."""
    return _values("logmel", samples, config.rate_hz, config)


def mfcc(samples: Tensor, rate_hz: int, config: MfccConfig = _MFCC) -> Tensor:
    """Cepstra [B, frames, coefficients] of `samples` [B, n] at `rate_hz`; equal to librosa's (see MfccConfig)."""
    return _values("mfcc", samples, rate_hz, config)


def whisper_mel(samples: Tensor, bins: Literal[80, 128] = 128) -> Tensor:
    """Whisper's log-mel [B, n // 160, bins] of `samples` [B, n] at 16 kHz."""
    return _values("whisper-mel", samples, _WHISPER_RATE_HZ, WhisperMelConfig(bins))


def mel24k(samples: Tensor, high_hz: float = 0.0) -> Tensor:
    """Log magnitude mel [B, n // 480, 80] of `samples` [B, n] at 24 kHz, up to `high_hz` (0: 12 kHz)."""
    return _values("mel24k", samples, _MEL24K_RATE_HZ, Mel24kConfig(high_hz=high_hz))


def _values(kind: Kind, samples: Tensor, rate_hz: int, config: Config) -> Tensor:
    return _extractor(kind, config, rate_hz)(samples, check=False).values


_extractor = lru_cache(maxsize=64)(Extractor)


def deltas(features: Features, reach: int = 2) -> Features:
    """Slope of each bin over time, by regression over `reach` frames on either side; apply it twice for acceleration.

    A clip's first and last frame stand in for those beyond its ends.
    """
    reach = checked("reach", Annotated[int, Within(1, 1000)], reach)
    values, lengths = features.values, features.lengths
    frames = values.shape[1]
    if not frames:
        return features
    at = torch.arange(frames, device=values.device)
    last = (lengths - 1).clamp_min(0)[:, None]
    slope = torch.zeros_like(values)
    for step in range(1, reach + 1):
        after, before = (
            values.gather(1, index[..., None].expand_as(values))
            for index in (torch.minimum(at + step, last), torch.minimum((at - step).clamp_min(0), last))
        )
        slope = slope + step * (after - before)
    slope = slope / (2 * sum(step * step for step in range(1, reach + 1)))
    return Features(slope * frame_mask(lengths, frames)[..., None], lengths)


def _full_precision(device: str) -> AbstractContextManager[object]:
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def widened(samples: Tensor) -> Tensor:
    if samples.ndim != 2:
        raise ValueError(f"samples must be [B, n], got {tuple(samples.shape)}")
    if not samples.dtype.is_floating_point:
        raise BadInput(f"samples are {samples.dtype}; they must be floats, from -1 to 1.", param="samples")
    return samples if samples.dtype == torch.float64 else samples.float()
