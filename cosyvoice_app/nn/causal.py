"""Causal convolution on time-major tensors [B, T, C], whole or piece by piece with the same result.

A causal layer sees its own frame and frames before it. What it needs of a piece's past are its last input frames; a
`History` keeps them between the pieces of one run. At the start of a run the past is zeros.

The left context lies in the same buffer as the piece, in front of it, so that the layer before writes its result right
where the convolution reads it: no padded copy is made.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.nn.conv import filter_major

History = dict[nn.Module, Tensor]
"""The last input frames [B, context, C] of each causal layer of one run. An empty one starts a run."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, *, dilation: int = 1, stride: int = 1) -> Tensor:
    """x [B, N, I], weight [O, I, K] -> [B, (N - (K - 1) * dilation - 1) // stride + 1, O], without padding.

    On a CPU the library's channels-last kernel takes time-major memory as it is: 1.1 to 2.8 times as fast as `conv1d`
    on [B, C, T] at the sizes of a vocoder. float64, which that kernel doesn't know, goes as one product a tap.
    """
    if x.dtype == torch.float64 and stride == 1:
        count = x.shape[1] - (weight.shape[2] - 1) * dilation
        taps = weight.permute(2, 1, 0)
        out = x[:, :count] @ taps[0]
        for k in range(1, len(taps)):
            out += x[:, k * dilation : k * dilation + count] @ taps[k]
        return out if bias is None else out.add_(bias)
    if x.device.type == "cpu":
        filters = weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        image = x.transpose(1, 2).unsqueeze(2)
        return F.conv2d(image, filters, bias, (1, stride), 0, (1, dilation)).squeeze(2).transpose(1, 2)
    return F.conv1d(x.transpose(1, 2), weight, bias, stride, 0, dilation).transpose(1, 2)


class CausalConv1d(nn.Module):
    """[B, T, in] -> [B, T, out]; frame t is made of the frames t, t - dilation, ... of the input."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, dilation: int = 1) -> None:
        super().__init__()
        self.dilation = dilation
        self.context = (kernel - 1) * dilation
        self.weight = nn.Parameter(filter_major(torch.empty(out_channels, in_channels, kernel).normal_(0.0, 0.02)))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def open(self, rows: int, frames: int, history: History) -> tuple[Tensor, Tensor]:
        """A buffer with the past filled in, and the part of it to write a piece to, [B, T, in]."""
        buffer = self.weight.new_empty(rows, self.context + frames, self.weight.shape[1])
        past = history.get(self)
        if past is None:
            buffer[:, : self.context].zero_()
        else:
            buffer[:, : self.context].copy_(past)
        return buffer, buffer[:, self.context :]

    def close(self, buffer: Tensor, frames: int, history: History) -> Tensor:
        """Convolve a buffer of `open` once it is written, and remember its end. The result is a fresh tensor."""
        history[self] = buffer[:, frames : frames + self.context].clone()
        return convolve(buffer, self.weight, self.bias, dilation=self.dilation)

    def forward(self, x: Tensor, history: History) -> Tensor:
        buffer, piece = self.open(x.shape[0], x.shape[1], history)
        piece.copy_(x)
        return self.close(buffer, x.shape[1], history)


class LookaheadConv1d(nn.Module):
    """[B, T + kernel - 1, in] -> [B, T, out]: frame t is made of the frames t to t + kernel - 1 of the input.

    The caller supplies the frames ahead (zeros after the end), so a piece needs no history.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(filter_major(torch.empty(out_channels, in_channels, kernel).normal_(0.0, 0.02)))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, self.weight, self.bias)


class UpsampledConv1d(CausalConv1d):
    """Each frame repeated `rate` times, then a causal convolution: [B, T, in] -> [B, T * rate, out].

    The repeats are never made. All `rate` output frames of one input frame come from a convolution at the low rate,
    whose filters are sums of neighbouring taps (`phase_filters`): with kernel 16 and rate 8, 3 taps in place of 16.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, rate: int) -> None:
        super().__init__(in_channels, out_channels * rate, phase_taps(kernel, rate))
        self.out_channels = out_channels

    def forward(self, x: Tensor, history: History) -> Tensor:
        return super().forward(x, history).reshape(x.shape[0], -1, self.out_channels)


def phase_taps(kernel: int, rate: int) -> int:
    """Input frames that the `rate` output frames of one input frame see together."""
    return -(-(kernel - 1) // rate) + 1


def phase_filters(weight: Tensor, rate: int) -> Tensor:
    """Weight [O, I, K] of a causal convolution after repeating frames `rate` times -> [rate * O, I, taps] before it."""
    size, channels, kernel = weight.shape
    taps = phase_taps(kernel, rate)
    filters = weight.new_zeros(rate, size, channels, taps)
    for phase in range(rate):
        for k in range(kernel):
            filters[phase, :, :, taps - 1 + (phase - (kernel - 1) + k) // rate] += weight[:, :, k]
    return filters.flatten(0, 1)


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha, alpha by channel (arXiv:2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """Written to `out`, which is another tensor than x [B, T, C]."""
        wave = torch.mul(x, self.alpha, out=out).sin_().square_()
        return torch.addcmul(x, wave, 1.0 / (self.alpha + 1e-9), out=out)
