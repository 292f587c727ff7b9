"""Adaptive instance normalisation and the snake activation on time-major tensors [B, T, C].

AdaIN: Huang & Belongie 2017 (arXiv:1703.06868). Snake: Ziyin et al. 2020 (arXiv:2006.08195).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-5


def _moments(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over valid frames, each [B, 1, C]. `mask` is [B, T, 1], 1 where valid."""
    if mask is None:
        variance, mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
        return mean, variance
    count = mask.sum(1, keepdim=True).clamp(min=1.0)
    mean = (x * mask).sum(1, keepdim=True) / count
    variance = ((x - mean) * mask).square().sum(1, keepdim=True) / count
    return mean, variance


class AdaIN(nn.Module):
    """Normalise each channel over time, then scale and shift it by a linear function of the style [B, style]."""

    def __init__(self, style_size: int, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(style_size, 2 * channels)

    def forward(self, x: Tensor, style: Tensor, mask: Tensor | None = None) -> Tensor:
        gamma, beta = self.fc(style).chunk(2, dim=-1)
        if mask is None and x.shape[0] == 1:  # one fused kernel: time takes the place of the batch
            y = F.batch_norm(x[0], None, None, 1.0 + gamma[0], beta[0], training=True, eps=EPS)
            return y[None]
        mean, variance = _moments(x, mask)
        scale = (1.0 + gamma[:, None]) * torch.rsqrt(variance + EPS)
        y = torch.addcmul(beta[:, None] - mean * scale, x, scale)
        return y if mask is None else y * mask


class _Snake(torch.autograd.Function):
    """x + sin(ax)^2 / a, written x + (1 - cos(2ax)) / (2a), whose slope is 1 + sin(2ax). Saves only x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor) -> Tensor:
        ctx.save_for_backward(x, alpha)
        half = 0.5 / alpha
        wave = (x * (2.0 * alpha)).cos_().neg_().add_(1.0)
        return torch.addcmul(x, wave, half)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        x, alpha = ctx.saved_tensors
        grad, angle = grads[0], x * (2.0 * alpha)
        grad_alpha = None
        if ctx.needs_input_grad[1]:
            slope = (x * angle.sin()) / alpha - (1.0 - angle.cos()) * (0.5 / alpha.square())
            grad_alpha = (grad * slope).sum((0, 1))
        return angle.sin_().add_(1.0).mul_(grad), grad_alpha


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x [B, T, C], alpha [C]."""
    out: Tensor = _Snake.apply(x, alpha)  # type: ignore[no-untyped-call]
    return out
