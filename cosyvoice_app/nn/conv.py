"""One-dimensional convolution on time-major tensors [B, T, C], fast forwards and backwards on a CPU.

A stride-1 convolution is a sum of one matrix product a tap: `out[t] += x[t + offset] @ w[tap]`. Written so, no
padded or unfolded copy of the input is made, channels are contiguous, and the gradients are matrix products too. Long
inputs go to the library's channels-last kernel, which takes the same memory. Measured on two cores this is 1.4 to 2.9
times as fast as `torch.nn.functional.conv1d` on [B, C, T]. On CUDA the library's own kernel is used.

Parameters keep PyTorch's shape [out, in, kernel] and names; their memory is laid out [out, kernel, in], which is
the kernel's own layout and of which a tap is a matrix that no product has to copy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def filter_major(weight: Tensor) -> Tensor:
    """The same [out, in, kernel] tensor with memory laid out [out, kernel, in]."""
    return weight.permute(0, 2, 1).contiguous().permute(0, 2, 1)


def _span(length: int, offset: int) -> tuple[slice, slice]:
    """Output rows and input rows of the tap that reads `offset` rows ahead."""
    return slice(max(0, -offset), length - max(0, offset)), slice(max(0, offset), length - max(0, -offset))


LONG = 8
"""From this many frames a channel on, the library's channels-last kernel is the faster one (280 against 215 GFLOP/s at
24 000 frames of 128 channels on two cores; 160 against 220 at 80 frames of 1024)."""
NARROW = 128
"""The most channels it is used for: beyond, products by blocks are as fast, and of the kernels it chooses there some
give other bits when it has more threads."""
BLOCK = 512
"""Frames a product works on when there are more: what all its taps read stays in the cache (1.2 times as fast)."""


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    """Same-length convolution of x [B, T, I] with weight [O, I, K] on a CPU -> a fresh [B, T, O]."""
    halo = weight.shape[2] // 2 * dilation
    return _convolve_padded(F.pad(x, (0, 0, halo, halo)) if halo else x, weight, bias, dilation)


def _convolve_padded(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    """Convolution of x [B, T + (K - 1) * dilation, I] with weight [O, I, K] on a CPU -> a fresh [B, T, O].

    Its bits don't depend on how many threads share the work. That is why the edges are padded here and not by the
    library's kernel: it treats the edges of what each thread takes in another order.
    """
    rows, kernel, channels = x.shape[0], weight.shape[2], weight.shape[1]
    length = x.shape[1] - (kernel - 1) * dilation
    if length >= LONG * channels and channels <= NARROW and x.dtype == torch.float32:
        image = x.transpose(1, 2).unsqueeze(2)  # [B, I, 1, T], channels last already
        filters = weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        done = F.conv2d(image, filters, bias, dilation=(1, dilation)).contiguous(memory_format=torch.channels_last)
        # The same memory as [B, T, O], and not a view: callers may write into it.
        size = (rows, length, weight.shape[0])
        strides = (length * size[2], size[2], 1)
        return x.new_empty(0).set_(done.untyped_storage(), done.storage_offset(), size, strides)
    taps = weight.permute(2, 1, 0)
    out = x.new_empty(rows, length, weight.shape[0])
    # The last block takes what is left, so that none is tiny: products of fewer than 12 frames vary with the threads.
    starts = range(0, max(1, length // BLOCK) * BLOCK, BLOCK)
    for row in range(rows):
        for start in starts:
            end = length if start == starts[-1] else start + BLOCK
            part = out[row, start:end]
            if bias is None:
                torch.mm(x[row, start:end], taps[0], out=part)
            else:
                torch.addmm(bias, x[row, start:end], taps[0], out=part)
            for tap in range(1, kernel):
                part.addmm_(x[row, start + tap * dilation : end + tap * dilation], taps[tap])
    return out


class _TapConv(torch.autograd.Function):
    """Same-length convolution of x [B, T, I] with weight [O, I, K] (K odd) and zero padding, by taps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dilation, ctx.has_bias = dilation, bias is not None
        return _convolve(x, weight, bias, dilation)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        grad = grads[0].contiguous()
        x, weight = ctx.saved_tensors
        rows, length, _ = x.shape
        kernel, dilation = weight.shape[2], ctx.dilation
        need_x, need_w, need_b = ctx.needs_input_grad[:3]
        grad_x = _convolve(grad, filter_major(weight.transpose(0, 1).flip(2)), None, dilation) if need_x else None
        grad_taps = x.new_zeros(weight.shape[0], kernel, weight.shape[1]) if need_w else None
        if grad_taps is not None:
            for tap in range(kernel):
                offset = (tap - kernel // 2) * dilation
                if abs(offset) < length:
                    to, frm = _span(length, offset)
                    for row in range(rows):
                        grad_taps[:, tap].addmm_(grad[row, to].T, x[row, frm])
        grad_weight = grad_taps.permute(0, 2, 1) if grad_taps is not None else None
        grad_bias = grad.sum((0, 1)) if ctx.has_bias and need_b else None
        return grad_x, grad_weight, grad_bias, None


class Conv1d(nn.Module):
    """Same-length convolution [B, T, in] -> [B, T, out], zero padded, odd kernel, any dilation."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int = 1, *, dilation: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, not {kernel}")
        self.kernel, self.dilation = kernel, dilation
        self.weight = nn.Parameter(filter_major(torch.empty(out_channels, in_channels, kernel).normal_(0.0, 0.02)))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def open(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A buffer for an input shaped like x [B, T, in], and the part of it to write that to: no padded copy is made.
        CPU, no gradients.
        """
        halo = self.kernel // 2 * self.dilation
        buffer = x.new_empty(x.shape[0], x.shape[1] + 2 * halo, x.shape[2])
        buffer[:, :halo].zero_()
        buffer[:, halo + x.shape[1] :].zero_()
        return buffer, buffer[:, halo : halo + x.shape[1]]

    def close(self, buffer: Tensor, gain: Tensor | None = None) -> Tensor:
        """Convolve a buffer of `open` once it is written; as `forward` otherwise."""
        weight = self.weight if gain is None else self.weight * gain[:, None]
        return _convolve_padded(buffer, weight, self.bias, self.dilation)

    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        """`gain` [in] multiplies the input's channels, at the cost of a pass over the weights. The result is a fresh
        tensor.
        """
        weight = self.weight if gain is None else self.weight * gain[:, None]
        if x.device.type != "cpu":
            pad = (self.kernel - 1) // 2 * self.dilation
            y = F.conv1d(x.transpose(1, 2), weight, self.bias, padding=pad, dilation=self.dilation)
            return y.transpose(1, 2)
        out: Tensor = _TapConv.apply(x.contiguous(), weight, self.bias, self.dilation)  # type: ignore[no-untyped-call]
        return out


class StridedConv1d(nn.Module):
    """Plain strided convolution [B, T, in] -> [B, T', out]; `padding` frames of zeros at both ends."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, stride: int, padding: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel).normal_(0.0, 0.02))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.weight.shape[2]
        if x.device.type == "cpu" and x.shape[0] == 1 and kernel in (self.stride, 2 * self.stride) and x.shape[2] > 1:
            return self._by_blocks(x[0], kernel // self.stride)[None]
        y = F.conv1d(x.transpose(1, 2), self.weight, self.bias, stride=self.stride, padding=self.padding)
        return y.transpose(1, 2).contiguous()

    def _by_blocks(self, x: Tensor, parts: int) -> Tensor:
        """One row [T, in] whose kernel is `parts` strides long: a stride of frames is a row of a matrix product, whose
        bits don't depend on how many threads share it.
        """
        stride, size = self.stride, self.stride * x.shape[1]
        steps = (len(x) + 2 * self.padding) // stride  # what the last, broken stride holds is never reached
        count = steps - parts + 1
        blocks = F.pad(x, (0, 0, self.padding, self.padding))[: steps * stride].reshape(steps, size)
        taps = self.weight.permute(2, 1, 0).reshape(parts, size, -1)
        out = torch.addmm(self.bias, blocks[:count], taps[0])
        for part in range(1, parts):
            out.addmm_(blocks[part : part + count], taps[part])
        return out


class TransposedConv1d(nn.Module):
    """Upsampling convolution [B, T, in] -> [B, T * stride, out], kernel = 2 * stride, even trim on both sides.

    Each output block of `stride` samples sums two input frames, so it is two matrix products and an add.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels, 2 * stride).normal_(0.0, 0.02))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        stride, out = self.stride, self.weight.shape[1]
        blocks = x @ self.weight.permute(0, 2, 1).reshape(x.shape[2], -1)  # [B, T, 2 * stride * out]
        first, second = blocks.reshape(rows, length, 2, stride * out).unbind(2)
        full = F.pad(first, (0, 0, 0, 1)) + F.pad(second, (0, 0, 1, 0))  # [B, T + 1, stride * out]
        full = full.reshape(rows, (length + 1) * stride, out)
        trim = stride // 2
        return full[:, trim : trim + length * stride] + self.bias


class DepthwiseUpsample2(nn.Module):
    """Transposed depthwise convolution, kernel 3, stride 2, [B, T, C] -> [B, 2T, C] (padding 1, output padding 1).

    Even outputs see the middle tap of one frame; odd outputs the outer taps of two neighbours.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, 3).normal_(0.0, 0.02))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        left, middle, right = self.weight[:, 0].unbind(1)
        after = F.pad(x[:, 1:], (0, 0, 0, 1))
        even, odd = x * middle, x * right + after * left
        return torch.stack([even, odd], dim=2).reshape(x.shape[0], -1, x.shape[2]) + self.bias
