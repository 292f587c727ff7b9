"""The DiT's matrices in 8-bit integers on a CPU. (On CUDA they are `nn.quantized.Int8Linear`, which computes the same.)

A flow's product has hundreds of rows. There the integer kernel of `nn.quantized` is slow: at 900 rows on two AVX2 cores
it takes 1.7 to 2 times as long as fp32 (two passes), or as long as fp32 and 1.7 % off (one pass). Turning the matrix
back into floats for each product takes 1.2 to 1.4 times as long, and only the weights are rounded (0.4 % off for evenly
spread, 0.7 % for normally distributed ones).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.nn.quantized import quantize_rows


class WideInt8Linear(nn.Module):
    """x [..., in] -> [..., out], in x's dtype; for many rows of x at a time."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.whole: Tensor
        self.scale: Tensor
        whole, scale = quantize_rows(linear.weight.detach())
        self.register_buffer("whole", whole)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        product = F.linear(x, self.whole.to(x.dtype))
        return torch.addcmul(self.bias.to(x.dtype), product, self.scale.to(x.dtype))
