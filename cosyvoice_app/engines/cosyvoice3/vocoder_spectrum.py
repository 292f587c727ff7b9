"""Short-time spectra of the excitation, and the wave from predicted spectra: 16-point frames every 4 samples.

Frames are so short that the transforms are small matrix products. Both are centred, as `torch.stft` with its defaults:
frame n sees samples 4n - 8 to 4n + 7, the signal is mirrored at its ends, n samples give n / 4 + 1 frames.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.engines.cosyvoice3.config import VocoderConfig

MAX_MAGNITUDE = 100.0


class Spectra(nn.Module):
    """Holds the two bases; nothing of it is trained or stored."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.size, self.hop = config.fft, config.hop
        self.edge = config.fft // 2
        self.bins = config.fft // 2 + 1
        self.overlap = config.fft // config.hop
        window = torch.hann_window(config.fft, periodic=True, dtype=torch.float64)
        analysis = torch.fft.rfft(torch.eye(config.fft, dtype=torch.float64))
        eye = torch.eye(self.bins, dtype=torch.complex128)
        synthesis = torch.cat([torch.fft.irfft(eye, n=config.fft), torch.fft.irfft(1j * eye, n=config.fft)])
        # Windows that overlap; where a frame is missing at either end, fewer do.
        energy = window.square().reshape(self.overlap, self.hop)
        whole = energy.sum(0)
        self._keep("analysis", torch.cat([analysis.real, analysis.imag], 1) * window[:, None])
        self._keep("synthesis", synthesis * (window / whole.repeat(self.overlap)))
        self._keep("at_start", whole / energy[:-1].sum(0))
        self._keep("at_end", whole / energy[1:].sum(0))
        self.analysis: Tensor
        self.synthesis: Tensor
        self.at_start: Tensor
        self.at_end: Tensor

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value.float(), persistent=False)

    def mirror_start(self, samples: Tensor) -> Tensor:
        """[B, n] -> [B, 8 + n]."""
        return torch.cat([samples[:, 1 : self.edge + 1].flip(1), samples], 1)

    def mirror_end(self, samples: Tensor) -> Tensor:
        """[B, n] -> [B, n + 8]."""
        return torch.cat([samples, samples[:, -self.edge - 1 : -1].flip(1)], 1)

    def mirror_ends(self, samples: Tensor, lengths: Tensor) -> Tensor:
        """[B, n] -> [B, n + 8], each row mirrored at its own end. `lengths` [B] in samples, at least 9."""
        samples = F.pad(samples, (0, self.edge))
        beyond = lengths[:, None] + torch.arange(self.edge, device=samples.device)
        return samples.scatter_(1, beyond, samples.gather(1, 2 * lengths[:, None] - 2 - beyond))

    def forward(self, samples: Tensor) -> Tensor:
        """Samples [B, 4(F - 1) + 16] -> real and imaginary parts [B, F, 18]."""
        return samples.unfold(1, self.size, self.hop) @ self.analysis

    def polar(self, x: Tensor) -> Tensor:
        """Log magnitude and (through a sine) phase in radians -> real and imaginary parts, all [B, F, 18]."""
        magnitude = torch.exp(x[..., : self.bins]).clamp_(max=MAX_MAGNITUDE)
        phase = torch.sin(x[..., self.bins :])
        return torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], -1)

    def invert(self, parts: Tensor) -> Tensor:
        """Real and imaginary parts [B, 3 + F, 18], the three being those before -> blocks of samples [B, F, 4].

        Block n is the first 4 samples that frame n sees; no later frame adds to them.
        """
        pieces = parts @ self.synthesis
        past, hop = self.overlap - 1, self.hop
        count = parts.shape[1] - past
        blocks = pieces[:, past:, :hop].clone()
        for k in range(1, self.overlap):
            blocks += pieces[:, past - k : past - k + count, k * hop : (k + 1) * hop]
        return blocks
