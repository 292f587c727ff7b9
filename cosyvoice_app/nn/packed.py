"""Linear layers whose matrix is laid out for the CPU's kernels once, when loading.

PyTorch's own product reads a plain matrix. On two AVX2 cores that were not idle, over all matrices of a 0.36 B
transformer (a quarter of them timed), best of 4 to 40 runs, in ms:

| rows | plain float32 | oneDNN float32 | FBGEMM half | FBGEMM int8, one pass (`quantized.py`) |
|---|---|---|---|---|
| 1 | 122 | 72 | 40 | 26 |
| 8 | 378 | 166 | 73 | 30 |
| 128 | 1000 | 690 | 610 | 380 |

Half here means the weights: they are kept in 16 bits (11 of mantissa) and turned to float32 inside the kernel;
activations and sums are float32. That serves "bf16" and "fp16" on a CPU alike, since rounding to bfloat16 first would
only lose bits.

Both libraries sum in another order for another number of rows, so that a row's last bits would depend on its company.
Up to `STEP_ROWS` rows they don't: float32 rows then go one by one (two at once take twice as long anyway), and in half
precision rows go in pairs, a single one with a row of zeros beside it. A pair costs 5 % more than one row. Three to six
rows at once have one order too, on AVX2, and four cost 15 to 20 % more than one; but then so would a single row.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.nn.quantized import Int8Linear

STEP_ROWS = 8
"""Up to so many rows of a product, each is the same to the bit whatever the others are and however many."""


class PackedLinear(nn.Module):
    """x [..., in] float32 -> [..., out] float32 on a CPU; weights in float32, or in half precision (`half`)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, half: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.half_weights = half
        weight = weight.detach().float()
        self.bias = None if bias is None else bias.detach().float().clone()  # of no file that it may be mapped from
        self.packed: Any
        if half:
            self.packed = torch.ops.quantized.linear_prepack_fp16(weight, self.bias)
        else:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // self.in_features
        sizes = half_sizes() if self.half_weights else (1,)
        if rows > STEP_ROWS or rows == 0 or rows in sizes:
            return self.product(x)
        flat, out = x.reshape(rows, self.in_features), []
        for start in range(0, rows, sizes[-1]):
            part = flat[start : start + sizes[-1]]
            size = next(size for size in sizes if size >= len(part))
            filled = part if size == len(part) else F.pad(part, (0, 0, 0, size - len(part)))
            out.append(self.product(filled)[: len(part)])
        return torch.cat(out).view(*x.shape[:-1], self.out_features)

    def product(self, x: Tensor) -> Tensor:
        """As `forward`, in one call of the library."""
        out: Tensor
        if self.half_weights:
            out = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        else:
            out = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


@cache
def half_sizes() -> tuple[int, ...]:
    """Numbers of rows that a product of half precision weights is given, ascending: those that sum in the same order as
    one row does or, where no other does, two."""
    numbers = torch.Generator().manual_seed(0)
    layer = PackedLinear(torch.randn(64, 256, generator=numbers), None, half=True)
    row = torch.randn(1, 256, generator=numbers)
    made = {size: layer.product(row.repeat(size, 1)) for size in range(1, STEP_ROWS + 1)}
    as_one = tuple(size for size, out in made.items() if bool((out == made[1]).all()))
    return as_one if len(as_one) > 1 else (2,)


def pack(linear: nn.Linear, precision: str) -> nn.Module:
    """The fastest layer for `precision` (fp32, bf16, fp16, int8) on the device where `linear` lies.

    Where this processor's PyTorch lacks a kernel, and on CUDA, `linear` itself serves.
    """
    if precision == "int8":
        return Int8Linear.from_linear(linear)
    if linear.weight.device.type != "cpu":
        return linear
    if precision == "fp32":
        return PackedLinear(linear.weight, linear.bias, half=False) if torch._C._has_mkldnn else linear
    if "fbgemm" in torch.backends.quantized.supported_engines:
        return PackedLinear(linear.weight, linear.bias, half=True)
    return linear
