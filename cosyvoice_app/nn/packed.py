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
precision rows are filled up to a number for which the order is one and the same, three on AVX2. That costs next to
nothing, since so small a product is bound by reading the weights.
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
_MOST_ADDED = 3


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
        if rows > STEP_ROWS or rows == 0:
            return self.product(x)
        sizes = half_sizes() if self.half_weights else (1,)
        if rows in sizes:
            return self.product(x)
        flat = x.reshape(rows, self.in_features)
        size = next((size for size in sizes if size > rows), 0)
        if size:
            out = self.product(F.pad(flat, (0, 0, 0, size - rows)))[:rows]
        else:
            out = torch.cat([self(row) for row in flat[:, None]])
        return out.view(*x.shape[:-1], self.out_features)

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
    """Numbers of rows among which a product of half precision weights sums in one order on this processor, ascending.

    The first is what a single row is filled up to. (1,) where there are no two such numbers.
    """
    numbers = torch.Generator().manual_seed(0)
    layer = PackedLinear(torch.randn(64, 256, generator=numbers), None, half=True)
    row = torch.randn(1, 256, generator=numbers)
    made = {size: layer.product(row.repeat(size, 1)) for size in range(1, STEP_ROWS + _MOST_ADDED + 1)}
    for least in range(1, _MOST_ADDED + 2):
        alike = tuple(size for size, out in made.items() if size >= least and bool((out == made[least][0]).all()))
        if len(alike) > 1 and alike[0] == least:
            return alike
    return (1,)


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
