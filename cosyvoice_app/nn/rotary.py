"""Rotary position embedding, half-split: channel i of a head turns with channel i + head / 2.

Su et al. 2021 (arXiv:2104.09864), in the channel order of Llama and Qwen2. Angles and products are float32.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RotaryTable:
    """Cosines and sines [positions, 1, head]; the sine's first half is negated, so that turning is two products."""

    def __init__(self, head: int, theta: float, positions: int, device: torch.device) -> None:
        self.head, self.theta, self.device = head, theta, device
        self.cos = self.sin = torch.empty(0, 1, head, device=device)
        self.reserve(positions)

    def reserve(self, positions: int) -> None:
        """Make the table at least `positions` long."""
        if positions <= self.cos.shape[0]:
            return
        exponents = torch.arange(0, self.head, 2, dtype=torch.float32) / self.head
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * (1.0 / self.theta**exponents)
        cos, sin = angles.cos(), angles.sin()
        self.cos = torch.cat((cos, cos), -1)[:, None].to(self.device)
        self.sin = torch.cat((-sin, sin), -1)[:, None].to(self.device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [..., heads, head] by the table's rows cos, sin [..., 1, head]. Float32 inside, x's dtype out."""
    whole = x.float()
    swapped = whole.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(whole * cos, swapped, sin).to(x.dtype)
