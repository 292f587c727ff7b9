"""The residual block shared by the prosody predictor and the decoder, time-major."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.nn.adain import AdaIN
from cosyvoice_app.nn.conv import Conv1d, DepthwiseUpsample2


class AdaINBlock(nn.Module):
    """[B, T, in] -> [B, T or 2T, out]: (AdaIN, leaky ReLU, conv) twice beside a shortcut, scaled by 1/sqrt 2.

    `mask` [B, T, 1] marks valid input frames, `mask_out` valid output frames (they differ when upsampling).
    """

    def __init__(self, in_channels: int, out_channels: int, style: int, *, upsample: bool = False) -> None:
        super().__init__()
        self.norm1 = AdaIN(style, in_channels)
        self.norm2 = AdaIN(style, out_channels)
        self.conv1 = Conv1d(in_channels, out_channels, 3)
        self.conv2 = Conv1d(out_channels, out_channels, 3)
        self.conv1x1 = Conv1d(in_channels, out_channels, 1, bias=False) if in_channels != out_channels else None
        self.pool = DepthwiseUpsample2(in_channels) if upsample else None

    def forward(self, x: Tensor, style: Tensor, mask: Tensor | None = None, mask_out: Tensor | None = None) -> Tensor:
        y = F.leaky_relu(self.norm1(x, style, mask), 0.2)
        if self.pool is not None:
            y = _masked(self.pool(y), mask_out)
            x = x.repeat_interleave(2, dim=1)
        y = _masked(self.conv1(y), mask_out)
        y = F.leaky_relu(self.norm2(y, style, mask_out), 0.2)
        y = self.conv2(y)
        shortcut = x if self.conv1x1 is None else self.conv1x1(x)
        return _masked((y + shortcut) * math.sqrt(0.5), mask_out)


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def length_mask(lengths: Tensor, longest: int) -> Tensor:
    """Lengths [B] -> mask [B, longest, 1] of 0.0 and 1.0 on the same device."""
    import torch

    steps = torch.arange(longest, device=lengths.device)
    return (steps[None] < lengths[:, None]).float()[:, :, None]
