"""Random weights for the vocoder under the official names and shapes, the same wherever they are made.

Scaled so that a normal-valued mel gives voiced and unvoiced frames and a wave that isn't cut off at its limit.
"""

from __future__ import annotations

import numpy as np
import torch


def official_state(config, seed: int = 3) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    state: dict[str, torch.Tensor] = {}

    def put(name, shape, scale=1.0, offset=0.0):
        value = offset + scale * rng.standard_normal(shape)
        state[name] = torch.from_numpy(np.asarray(value, dtype=np.float32))

    def normed(name, size, channels, kernel, gain=1.0):
        put(f"{name}.bias", (size,), 0.05)
        put(f"{name}.parametrizations.weight.original0", (size, 1, 1), 0.1 * gain, gain)
        put(f"{name}.parametrizations.weight.original1", (size, channels, kernel))

    def resblock(name, channels, kernel):
        for j in range(len(config.dilations)):
            normed(f"{name}.convs1.{j}", channels, channels, kernel, 0.8)
            normed(f"{name}.convs2.{j}", channels, channels, kernel, 0.4)
            put(f"{name}.activations1.{j}.alpha", (channels,), 0.1, 1.0)
            put(f"{name}.activations2.{j}.alpha", (channels,), 0.1, 1.0)

    bins = config.fft + 2
    put("m_source.l_linear.weight", (1, config.harmonics))
    put("m_source.l_linear.bias", (1,), 0.1)
    normed("conv_pre", config.width, config.mels, config.pre_lookahead + 1)
    widths = [config.width >> (i + 1) for i in range(3)]
    for i, (width, kernel, source_kernel) in enumerate(
        zip(widths, config.rate_kernels, config.source_kernels, strict=True)
    ):
        normed(f"ups.{i}", width, 2 * width, kernel)
        stride = int(np.prod(config.rates[i + 1 :], dtype=int))
        down = 1 if stride == 1 else 2 * stride
        put(f"source_downs.{i}.weight", (width, bins, down), 3.0 / (bins * down) ** 0.5)
        put(f"source_downs.{i}.bias", (width,), 0.05)
        resblock(f"source_resblocks.{i}", width, source_kernel)
        for j, resblock_kernel in enumerate(config.resblock_kernels):
            resblock(f"resblocks.{3 * i + j}", width, resblock_kernel)
    normed("conv_post", bins, widths[-1], 7, 0.3)
    state["conv_post.bias"][: bins // 2] -= 2.5
    for n in (0, 2, 4, 6, 8):
        channels, kernel = (config.mels, config.f0_lookahead + 1) if n == 0 else (config.f0_width, 3)
        normed(f"f0_predictor.condnet.{n}", config.f0_width, channels, kernel, 1.5)
    put("f0_predictor.classifier.weight", (1, config.f0_width), 40.0 / config.f0_width**0.5)
    put("f0_predictor.classifier.bias", (1,), 0.0, 10.0)
    return state


def random_mel(rows: int, frames: int, seed: int = 4) -> torch.Tensor:
    """[B, T, 80]: normal values that hold for some frames, as speech does."""
    rng = np.random.default_rng(seed)
    steps = rng.standard_normal((rows, frames + 4, 80))
    mel = sum(steps[:, n : n + frames] for n in range(5)) / 5**0.5
    return torch.from_numpy(mel.astype(np.float32))
