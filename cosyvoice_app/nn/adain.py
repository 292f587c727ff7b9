"""Adaptive instance normalisation and the snake activation on time-major tensors [B, T, C].

AdaIN: Huang & Belongie 2017 (arXiv:1703.06868). Snake: Ziyin et al. 2020 (arXiv:2006.08195).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-5


def _row_moments(x: Tensor, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of one row [T, C], each [C]. `scratch`, shaped like x, may be overwritten.

    Threads share a sum by channels, so the bits don't depend on how many there are; the fused kernel adds up each
    thread's frames first.
    """
    wide = x if x.dtype == torch.float64 else x.float()
    mean = wide.sum(0) / len(x)
    squares = torch.mul(wide, wide, out=scratch if wide is x else None)
    variance = (squares.sum(0) / len(x) - mean.square()).clamp_(min=0.0)
    return mean.to(x.dtype), variance.to(x.dtype)


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

    def forward(
        self,
        x: Tensor,
        style: Tensor,
        mask: Tensor | None = None,
        gain: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """`gain` [C] multiplies the result, at no cost. Without a mask the result is a fresh tensor, or `out`, where
        that is given: for one row, without gradients.
        """
        gamma, beta = self.fc(style).chunk(2, dim=-1)
        gamma = 1.0 + gamma
        if gain is not None:
            gamma, beta = gamma * gain, beta * gain
        if mask is None and x.shape[0] == 1:
            if torch.is_grad_enabled() or x.device.type != "cpu":
                # One fused kernel, with a gradient: time takes the place of the batch.
                return F.batch_norm(x[0], None, None, gamma[0], beta[0], training=True, eps=EPS)[None]
            middle, spread = _row_moments(x[0], None if out is None else out[0])
            scale = gamma[0] * torch.rsqrt(spread + EPS)
            return torch.addcmul(beta[0] - middle * scale, x, scale, out=out)
        mean, variance = _moments(x, mask)
        scale = gamma[:, None] * torch.rsqrt(variance + EPS)
        y = torch.addcmul(beta[:, None] - mean * scale, x, scale)
        return y if mask is None else y * mask


class _UnitSnake(torch.autograd.Function):
    """x + sin(x)^2, whose slope is 1 + sin(2x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wave = x.sin()
        return torch.addcmul(x, wave, wave)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (2.0 * x).sin_().add_(1.0).mul_(grads[0])


def unit_snake_(x: Tensor) -> Tensor:
    """The snake activation of frequency 1, x + sin(x)^2; `x` may be overwritten.

    That of frequency a, x + sin(ax)^2 / a, is `unit_snake_(a * x) / a`: the first factor goes into what comes
    before, the second into the weights of what comes after, which leaves two passes over the data.
    """
    if torch.is_grad_enabled():
        out: Tensor = _UnitSnake.apply(x)  # type: ignore[no-untyped-call]
        return out
    wave = x.sin()
    return x.addcmul_(wave, wave)
