"""Samples to overlapping frames: windows, frame counts, masks, and the tape that holds the frames of a whole batch.

Milliseconds become samples rounded down, as in Kaldi: 25 and 10 ms are 275 and 110 samples at 11025 Hz, 551 and 220 at
22050 Hz. Frame i starts at i x shift samples exactly, so times are i x shift / rate, not i x 10 ms, at such rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from cosyvoice_app.errors import BadInput, ConfigError

WindowName = Literal["hann", "hamming", "povey", "blackman", "rectangular"]
Pad = Literal["zeros", "reflect"]
_PADS = get_args(Pad)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""What lengths may be of."""


def samples_of(ms: float, rate_hz: int) -> int:
    """Whole samples in `ms`. The margin keeps float noise from taking one away: 44.1 x 10 is 441."""
    samples = rate_hz * ms / 1000.0 + 1e-6
    if not math.isfinite(samples):
        raise ConfigError(f"{ms} ms at {rate_hz} Hz is no number of samples.", param="frame_ms")
    return math.floor(samples)


# Built outside inference mode whoever asks first: what is cached must serve a backward pass later.
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def window(name: WindowName, length: int, periodic: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[length]. Symmetric windows reach the same value at both ends; periodic ones would at sample `length`, so that
    they add up when they overlap. Povey is a Hann window to the power 0.85, which keeps its ends above 0 a little.
    """
    if length == 1:
        return torch.ones(1, device=device, dtype=dtype)
    phase = 2 * math.pi * torch.arange(length, dtype=torch.float64) / (length if periodic else length - 1)
    if name == "rectangular":
        shape = torch.ones(length, dtype=torch.float64)
    elif name == "hamming":
        shape = 0.54 - 0.46 * torch.cos(phase)
    elif name == "blackman":
        shape = 0.42 - 0.5 * torch.cos(phase) + 0.08 * torch.cos(2 * phase)
    elif name in ("hann", "povey"):
        shape = 0.5 - 0.5 * torch.cos(phase)
        shape = shape.pow(0.85) if name == "povey" else shape
    else:
        raise ConfigError(
            f"There is no window {name!r}; there are hann, hamming, povey, blackman and rectangular.", param="window"
        )
    return shape.to(device, dtype)


@dataclass(frozen=True, slots=True)
class Framing:
    """Where frames lie: frame i covers samples i x shift - left onwards. Before the clip and up to `right` samples
    after it there are zeros, or the clip reflected about its first and last sample (and again, when it is shorter
    than that). Without padding ("snip edges") only whole frames count. A clip without samples has no frames.
    """

    frame: int
    shift: int
    left: int = 0
    right: int = 0
    pad: Pad = "zeros"

    def __post_init__(self) -> None:
        if self.frame < 1 or self.shift < 1:
            raise ConfigError(
                f"Frames of {self.frame} samples every {self.shift}: both must be at least 1. Take longer frames or a "
                "higher rate.",
                param="frame_ms",
            )
        if self.pad not in _PADS:
            raise ConfigError(f"pad is {self.pad!r}; it must be one of {', '.join(map(repr, _PADS))}.", param="pad")

    @staticmethod
    def centred(frame: int, shift: int, pad: Pad = "zeros", n_fft: int = 0) -> Framing:
        """Frame i's middle on sample i x shift, counting 1 + samples // shift of them as an STFT of `n_fft` does
        whose window lies in the middle of it."""
        n_fft = n_fft or frame
        left = n_fft // 2 - (n_fft - frame) // 2
        return Framing(frame, shift, left, 2 * (n_fft // 2) - n_fft + frame - left, pad)

    def frames(self, samples: int) -> int:
        beyond = samples + self.left + self.right - self.frame
        return 0 if samples <= 0 or beyond < 0 else 1 + beyond // self.shift

    def frame_counts(self, lengths: Tensor) -> Tensor:
        """`frames` of each of `lengths`, on their device."""
        beyond = lengths + (self.left + self.right - self.frame)
        return torch.where((lengths > 0) & (beyond >= 0), 1 + beyond.div(self.shift, rounding_mode="floor"), 0)


def frame_mask(lengths: Tensor, frames: int) -> Tensor:
    """[B, frames], true where a frame is the clip's own."""
    return torch.arange(frames, device=lengths.device) < lengths[:, None]


def frame_audio(
    samples: Tensor,
    rate_hz: int,
    frame_ms: float = 25.0,
    shift_ms: float = 10.0,
    lengths: Tensor | None = None,
    *,
    centre: bool = False,
    pad: Pad = "zeros",
) -> tuple[Tensor, Tensor]:
    """Frames [B, frames, frame_samples] of `samples` [B, n], and how many of them are each clip's own [B].

    The frames are a strided view: of `samples` themselves when edges are snipped, of one padded copy when `centre`.
    Frames past a clip's own hold whatever lies there; `frame_mask` tells them apart.
    """
    frame, shift = samples_of(frame_ms, rate_hz), samples_of(shift_ms, rate_hz)
    framing = Framing.centred(frame, shift, pad) if centre else Framing(frame, shift)
    lengths = checked_lengths(samples, lengths)
    counts = framing.frame_counts(lengths)
    frames = framing.frames(samples.shape[-1])
    if frames == 0:
        return samples.new_zeros(samples.shape[0], 0, frame), counts
    padded = _padded_to(samples, lengths, framing, (frames - 1) * shift + frame) if centre else samples
    return padded.unfold(-1, frame, shift)[:, :frames], counts


def checked_lengths(samples: Tensor, lengths: Tensor | None) -> Tensor:
    if samples.ndim != 2:
        raise ValueError(f"samples must be [B, n], got {tuple(samples.shape)}")
    batch, n = samples.shape
    if lengths is None:
        return torch.full((batch,), n, dtype=torch.int64, device=samples.device)
    if not isinstance(lengths, Tensor):
        raise ValueError(f"lengths must be a tensor of whole numbers [{batch}], got a {type(lengths).__name__}")
    if lengths.shape != (batch,) or lengths.dtype not in WHOLE:
        raise ValueError(f"lengths must be whole numbers [{batch}], got {lengths.dtype} {tuple(lengths.shape)}")
    if lengths.device.type == "cpu" and batch and not 0 <= int(lengths.min()) <= int(lengths.max()) <= n:
        raise ValueError(f"lengths must lie within 0 and {n}, got {lengths.tolist()}")
    return lengths.to(samples.device, torch.int64)


def refuse_not_finite(samples: Tensor, lengths: Tensor | None) -> None:
    """BadInput that names the first clip with a NaN or an infinity among its own samples."""
    # A sum is several times cheaper than asking each sample; only where it isn't finite is there more to ask.
    if math.isfinite(samples.sum().item()):
        return
    bad = ~samples.isfinite()
    if lengths is not None:
        bad &= torch.arange(samples.shape[1], device=samples.device) < lengths.to(samples.device)[:, None]
    found = bad.nonzero()
    if len(found):
        clip, at = found[0].tolist()
        raise BadInput(
            f"Clip {clip} of the batch (counting from 0) holds {samples[clip, at].item()} at sample {at}; every sample "
            "must be a finite number.",
            param="samples",
        )


def reflected(index: Tensor, length: Tensor | int) -> Tensor:
    """`index` folded back into 0 .. length - 1 as often as it takes."""
    period = 2 * (length - 1)
    period = period.clamp_min(1) if isinstance(period, Tensor) else max(period, 1)
    within = index.remainder(period)
    return torch.minimum(within, period - within)


def _padded_to(samples: Tensor, lengths: Tensor, framing: Framing, total: int) -> Tensor:
    """[B, total]: the clips with `framing`'s padding around each one's own end."""
    at = torch.arange(-framing.left, total - framing.left, device=samples.device).expand(len(lengths), total)
    ends = lengths[:, None]
    if framing.pad == "reflect":
        inside = at < ends + framing.right
        at = reflected(at, ends)
    else:
        inside = (at >= 0) & (at < ends)
    return torch.where(inside, samples.gather(1, at.clamp(0, samples.shape[1] - 1)), 0.0)


def frames_of(clip: Tensor, framing: Framing) -> Tensor:
    """The frames [k, frame] of one clip [n]: a view of the clip, or of one padded copy where there is padding."""
    n, left = clip.shape[0], framing.left
    count = framing.frames(n)
    if not count:
        return clip.new_zeros(0, framing.frame)
    after = (count - 1) * framing.shift - left + framing.frame - n
    """Samples that the last frame needs beyond the clip."""
    if left <= 0 and after <= 0:
        clip = clip[-left:]
    elif framing.pad == "zeros":
        zeros = clip.new_zeros(max(left, after, 0))
        clip = torch.cat([zeros[: max(left, 0)], clip, zeros[: max(after, 0)]])
    elif n > max(left, after):
        clip = torch.cat([clip[1 : left + 1].flip(0), clip, clip[n - 1 - max(after, 0) : n - 1].flip(0)])
    else:
        clip = clip[reflected(torch.arange(-left, n + after, device=clip.device), n)]
    return clip.unfold(0, framing.frame, framing.shift)[:count]


def padded_frames(samples: Tensor, lengths: Tensor, framing: Framing) -> Tensor:
    """Frames [B, frames, frame] of `samples` [B, n], padded from each clip's own end, without asking the device how
    long the clips are. Past a clip's own frames lies whatever lies there.
    """
    count = framing.frames(samples.shape[1])
    if not count:
        return samples.new_zeros(len(samples), 0, framing.frame)
    if framing.left or framing.right:
        samples = _padded_to(samples, lengths, framing, (count - 1) * framing.shift + framing.frame)
    return samples.unfold(-1, framing.frame, framing.shift)
