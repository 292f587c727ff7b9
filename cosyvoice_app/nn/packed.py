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
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cosyvoice_app.nn.quantized import Int8Linear


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
        out: Tensor
        if self.half_weights:
            out = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        else:
            out = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


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
