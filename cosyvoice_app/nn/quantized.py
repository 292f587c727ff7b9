"""Linear layers and tables held in 8-bit integers, one scale a row of the matrix: a quarter of float32's memory.

What is approximated: weights only. Each row of a matrix (an output channel) is rounded to 255 levels, symmetric about
zero, between minus and plus its largest magnitude. For normally distributed weights the product is then 0.8 % off with
896 columns and 0.9 % with 4864 (root mean square, relative to the output); a row with one weight far above the rest
loses more.

On a CPU the product runs in FBGEMM's int8 kernel, which wants integer activations too. The kernel adds pairs of 8 x 8
bit products in 16 bits and saturates, so activations may use 7 bits only, far too few for a language model's outliers.
So every row of activations is given to it twice: rounded to 7 bits of its own largest magnitude, and what
the rounding left, again in 7 bits. Together that is one part in 16 000, far below the error of the weights. With one
row the kernel is bound by reading the weights and the second half costs nothing that could be measured; with 4 rows it
costs two fifths, with 128 as much again. Without it the product would be 1.8 to 2.0 % off.

Scales are of one row, never of the batch, and the sums are of integers, so a row's result is the same to the bit
whatever else is in the batch.

Elsewhere (CUDA, or a CPU without FBGEMM) there is no integer kernel here: each product first turns the whole matrix
back into floats, multiplied by its scales in float32 and then rounded to the activations' dtype. That saves memory, not
time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 127
COARSE = 63
"""Largest 7-bit activation, so that a pair of products stays below 2^15: 2 * (64 + 63) * 127 = 32 258."""
FINE = 2 * COARSE
"""Steps into which one coarse step is divided: what rounding left is at most half a coarse step."""
ZERO_POINT = 64
CHUNK_ROWS = 8192
"""Rows quantised at a time, so that turning a large table small never needs a second large one."""


def has_int8_kernel(device: torch.device) -> bool:
    return device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Floats [rows, columns] -> int8 [rows, columns] and float32 scales [rows]; weight ~ int8 * scale."""
    whole = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for start in range(0, weight.shape[0], CHUNK_ROWS):
        part = weight[start : start + CHUNK_ROWS].float()
        scale = part.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny * LEVELS).div_(LEVELS)
        whole[start : start + CHUNK_ROWS] = (part / scale[:, None]).round_().to(torch.int8)
        scales[start : start + CHUNK_ROWS] = scale
    return whole, scales


def _pack(whole: Tensor, scales: Tensor) -> Any:
    """FBGEMM's own layout of the matrix. The engine is a process-wide setting, read only while packing."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        zeros = torch.zeros(len(scales), dtype=torch.long)
        weight = torch._make_per_channel_quantized_tensor(whole, scales.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(weight, None)
    finally:
        torch.backends.quantized.engine = engine


class Int8Linear(nn.Module):
    """x [..., in] -> [..., out], in x's dtype. Lives on the device it was made on."""

    def __init__(self, whole: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """`whole` int8 [out, in], `scale` float32 [out], `bias` float32 [out]."""
        super().__init__()
        self.out_features, self.in_features = whole.shape
        self.packed = _pack(whole, scale) if has_int8_kernel(whole.device) else None
        self.weight: Tensor | None
        self.scale: Tensor | None
        self.bias: Tensor | None
        kept = self.packed is None  # the kernel's layout holds both, and a second copy would double the memory
        self.register_buffer("weight", whole if kept else None)
        self.register_buffer("scale", scale if kept else None)
        self.register_buffer("bias", bias)

    @staticmethod
    def from_linear(linear: nn.Linear) -> Int8Linear:
        """From float32 weights: others were rounded once already."""
        whole, scale = quantize_rows(linear.weight.detach())
        bias = linear.bias.detach() if linear.bias is not None else None
        return Int8Linear(whole, scale, bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            out = self._in_integers(x.reshape(-1, self.in_features).float())
            return out.to(x.dtype).view(*x.shape[:-1], self.out_features)
        return F.linear(x, self._as_floats(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    def _as_floats(self, dtype: torch.dtype) -> Tensor:
        assert self.weight is not None and self.scale is not None
        matrix = torch.empty(self.weight.shape, dtype=dtype, device=self.weight.device)
        # Computed in float32 and rounded while it is written, without a float32 copy of the matrix in between.
        return torch.mul(self.weight, self.scale[:, None], out=matrix)

    def _in_integers(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        step = x.abs().amax(1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny * COARSE).div_(COARSE)
        fine = x / step
        coarse = fine.round()
        both = self._product(torch.cat((coarse, fine.sub_(coarse).mul_(FINE))))
        out = torch.add(both[:rows], both[rows:], alpha=1.0 / FINE)
        return out.mul_(step) if self.bias is None else torch.addcmul(self.bias, out, step)

    def _product(self, integers: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            integers, 1.0, ZERO_POINT, self.packed)
        return out


class Int8Embedding(nn.Module):
    """A table of rows that is only looked up: ids [...] -> [..., width] float32. A row of 896 is off by 0.8 % (RMS)."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.weight: Tensor
        self.scale: Tensor
        whole, scale = quantize_rows(table.detach())
        self.register_buffer("weight", whole)
        self.register_buffer("scale", scale)

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids].float() * self.scale[ids, None]
