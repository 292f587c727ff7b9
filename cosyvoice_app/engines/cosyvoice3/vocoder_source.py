"""Mel -> F0 -> excitation: what the vocoder's network shapes into a voice.

The excitation is a neural source-filter (arXiv:1904.12088) as the official model was trained with it: the phase of each
harmonic advances once a mel frame, so its "sine" is constant within a frame's 480 samples; and the noise is uniform in
[0, 1), the same in every run. F0 decides, by a threshold, between two kinds of excitation, and its sum is a phase of
1e5 rad and more: so it is computed in float64 and the phase summed in float64. The rest of the phase's arithmetic is
rounded to float32 as the official code does, since at such sizes the rounding can be measured in the samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.engines.cosyvoice3.config import HOP_SAMPLES, RATE_HZ, VocoderConfig
from cosyvoice_app.nn.causal import CausalConv1d, History, LookaheadConv1d

SINE_AMPLITUDE = 0.1
VOICED_ABOVE_HZ = 10.0
VOICED_NOISE = 0.003
UNVOICED_NOISE = SINE_AMPLITUDE / 3
F0_CONVS = (2, 4, 6, 8)
"""Numbers of the causal convolutions in the official names; an activation stands between two."""


class F0Predictor(nn.Module):
    """Mel with `f0_lookahead` frames more than asked for, [B, T + 3, 80] -> F0 in Hz [B, T] float32. float64 inside."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        width = config.f0_width
        self.condnet = nn.ModuleDict({"0": LookaheadConv1d(config.mels, width, config.f0_lookahead + 1)})
        self.condnet.update({str(n): CausalConv1d(width, width, 3) for n in F0_CONVS})
        self.classifier = nn.Linear(width, 1)
        self.double()

    def forward(self, mel: Tensor, history: History) -> Tensor:
        x = F.elu_(self.condnet["0"](mel.double()))
        for n in F0_CONVS:
            x = F.elu_(self.condnet[str(n)](x, history))
        f0: Tensor = self.classifier(x)
        return f0.squeeze(-1).abs().float()


@dataclass(slots=True)
class Phase:
    """Where the excitation of one run stands."""

    frame: int = 0
    cycles: Tensor | None = None
    """Sum of the harmonics' cycles a sample over the frames so far, [B, 1, harmonics], float64. None is zero."""


class HarmonicSource(nn.Module):
    """F0 in Hz [B, T] -> excitation [B, T * 480] in (-1, 1)."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.l_linear = nn.Linear(config.harmonics, 1)

    def forward(self, f0: Tensor, phase: Phase, noise: Tensor | None = None) -> Tensor:
        """`phase` is where f0's first frame stands, and is moved on. `noise`: a table [1, samples, harmonics] from
        sample 0 of the run on, in place of `uniform_noise`."""
        weight, bias = self.l_linear.weight[0], self.l_linear.bias
        harmonics = len(weight)
        numbers = torch.arange(1, harmonics + 1, dtype=f0.dtype, device=f0.device)
        cycles = (f0[..., None] * numbers / RATE_HZ).remainder(1.0).double().cumsum(1)
        if phase.cycles is not None:
            cycles += phase.cycles
        start, phase.frame = phase.frame * HOP_SAMPLES, phase.frame + f0.shape[1]
        phase.cycles = cycles[:, -1:].clone()
        angle = cycles.float() * 2 * math.pi * HOP_SAMPLES
        voiced = (f0 > VOICED_ABOVE_HZ).to(f0.dtype)
        tones = SINE_AMPLITUDE * voiced * (torch.sin(angle) @ weight) + bias  # [B, T]
        level = voiced * VOICED_NOISE + (1.0 - voiced) * UNVOICED_NOISE
        count = f0.shape[1] * HOP_SAMPLES
        if noise is None:
            mixed = mixed_noise(start, count, weight)
        else:
            mixed = noise[0, start : start + count].to(weight) @ weight
        samples = torch.addcmul(tones[..., None], level[..., None], mixed.reshape(1, -1, HOP_SAMPLES))
        return samples.tanh_().flatten(1)


NOISE_BLOCK_SAMPLES = 4096
"""Samples whose noise is made at once on a CPU: the numbers then stay in its cache."""


def mixed_noise(start: int, count: int, weight: Tensor) -> Tensor:
    """Noise of `count` samples from sample `start` on, weighted over the harmonics [H] -> [count]."""
    block = NOISE_BLOCK_SAMPLES if weight.device.type == "cpu" else RATE_HZ * 60
    parts = [
        uniform_noise(n, min(block, start + count - n), len(weight), weight.device) @ weight
        for n in range(start, start + count, block)
    ]
    return torch.cat(parts) if parts else weight.new_empty(0)


def uniform_noise(start: int, count: int, harmonics: int, device: torch.device) -> Tensor:
    """Uniform in [0, 1), [count, harmonics], float32: a hash of the sample's and harmonic's number.

    So the numbers are the same on every device and however a run is cut, and no table is kept. The hash is two rounds
    of shift and multiply on 32 bits; its multiplier is below 2^31, so that no product leaves int64.
    """
    x = torch.arange(start * harmonics, (start + count) * harmonics, device=device).add_(0x2545F491).bitwise_and_(_BITS)
    for _ in range(2):
        x = x.bitwise_xor_(x >> 16).mul_(0x045D9F3B).bitwise_and_(_BITS)
    x = x.bitwise_xor_(x >> 16) >> 8
    return x.float().mul_(2.0**-24).reshape(count, harmonics)


_BITS = 0xFFFFFFFF
