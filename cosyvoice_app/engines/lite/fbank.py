"""Kaldi's log mel energies of 16 kHz samples, batched and differentiable, as CAM++ was trained on.

They are those of `compute-fbank-feats` with 80 bands and no dither, on samples in [-1, 1] (3D-Speaker's scale): 25 ms frames every 10 ms, whole frames only, DC removed, pre-emphasis 0.97, Povey window, power spectrum of 512
points, mel bands from 20 Hz to 8 kHz, natural log.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

RATE_HZ = 16_000
MEL_BANDS = 80
FRAME_SAMPLES, HOP_SAMPLES, N_FFT = 400, 160, 512
LOW_HZ, HIGH_HZ = 20.0, 8000.0
PRE_EMPHASIS = 0.97


class Fbank(nn.Module):
    """Samples [B, n] at 16 kHz -> log mel energies [B, T, 80], T = 1 + (n - 400) // 160. n >= 400."""

    def __init__(self) -> None:
        super().__init__()
        window = torch.hann_window(FRAME_SAMPLES, periodic=False, dtype=torch.float64).pow(0.85)
        self.register_buffer("frame_matrix", _frame_matrix(window), persistent=False)
        self.register_buffer("bands", _mel_bands(), persistent=False)
        self.frame_matrix: Tensor
        self.bands: Tensor

    def forward(self, samples: Tensor) -> Tensor:
        frames = samples.unfold(1, FRAME_SAMPLES, HOP_SAMPLES)
        spectrum = torch.fft.rfft(frames @ self.frame_matrix, n=N_FFT)
        power = spectrum.real.square() + spectrum.imag.square()
        energies = power[..., : N_FFT // 2] @ self.bands
        out: Tensor = energies.clamp(min=torch.finfo(torch.float32).eps).log()
        return out


def _frame_matrix(window: Tensor) -> Tensor:
    """[400, 400]: DC removal, pre-emphasis and window as one product (all three are linear in the frame)."""
    size = len(window)
    eye = torch.eye(size, dtype=torch.float64)
    centred = eye - 1.0 / size
    before = torch.cat([centred[:, :1], centred[:, :-1]], dim=1)  # the first sample is its own predecessor
    return ((centred - PRE_EMPHASIS * before) * window).float()


def _mel_bands() -> Tensor:
    """[256, 80] triangles, linear in mel; the bin at half the rate is not used, as in Kaldi."""

    def mel(hz: Tensor) -> Tensor:
        return 1127.0 * torch.log1p(hz / 700.0)

    low, high = mel(torch.tensor([LOW_HZ, HIGH_HZ], dtype=torch.float64)).tolist()
    edges = torch.linspace(low, high, MEL_BANDS + 2, dtype=torch.float64)
    bins = mel(torch.arange(N_FFT // 2, dtype=torch.float64) * (RATE_HZ / N_FFT))[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0.0).float()
