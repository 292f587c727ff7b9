"""Text features, F0, energy and a style in; a waveform out: the iSTFTNet decoder of StyleTTS 2 (arXiv:2306.07691).

Everything is time-major [B, T, C]. Frame rates: text features 40 a second, F0 and energy 80, the generator's two stages
800 and 4800, the inverse STFT 24 000. The harmonic source's noise comes from the caller's generator: no global state.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.engines.lite.blocks import AdaINBlock, length_mask
from cosyvoice_app.engines.lite.config import LiteConfig
from cosyvoice_app.nn.adain import AdaIN, unit_snake_
from cosyvoice_app.nn.conv import Conv1d, StridedConv1d, TransposedConv1d

SINE_AMPLITUDE = 0.1
VOICED_NOISE = 0.003
VOICED_ABOVE_HZ = 10.0


class ResBlock(nn.Module):
    """Three rounds of (AdaIN, snake, dilated conv, AdaIN, snake, conv) with a residual each."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...], style: int) -> None:
        super().__init__()
        n = len(dilations)
        self.convs1 = nn.ModuleList(Conv1d(channels, channels, kernel, dilation=d) for d in dilations)
        self.convs2 = nn.ModuleList(Conv1d(channels, channels, kernel) for _ in dilations)
        self.adain1 = nn.ModuleList(AdaIN(style, channels) for _ in range(n))
        self.adain2 = nn.ModuleList(AdaIN(style, channels) for _ in range(n))
        self.alpha1 = nn.ParameterList(nn.Parameter(torch.ones(1, channels, 1)) for _ in range(n))
        self.alpha2 = nn.ParameterList(nn.Parameter(torch.ones(1, channels, 1)) for _ in range(n))

    def forward(self, x: Tensor, style: Tensor, mask: Tensor | None = None) -> Tensor:
        for i in range(len(self.convs1)):
            y = _snake_conv(x, style, mask, self.adain1[i], self.alpha1[i].flatten(), self.convs1[i])
            y = _snake_conv(y, style, mask, self.adain2[i], self.alpha2[i].flatten(), self.convs2[i])
            x = y.add_(x)
        return x


def _snake_conv(
    x: Tensor, style: Tensor, mask: Tensor | None, norm: nn.Module, alpha: Tensor, conv: nn.Module
) -> Tensor:
    """(AdaIN, snake of frequency `alpha`, conv): [B, T, C] -> a fresh [B, T, C]."""
    assert isinstance(conv, Conv1d)
    if mask is None and len(x) == 1 and x.device.type == "cpu" and not torch.is_grad_enabled():
        buffer, inner = conv.open(x)
        unit_snake_(norm(x, style, gain=alpha, out=inner))
        return conv.close(buffer, 1.0 / alpha)
    y = conv(unit_snake_(norm(x, style, mask, alpha)), 1.0 / alpha)
    return y if mask is None else y * mask


class HarmonicSource(nn.Module):
    """F0 [B, T] at 80 Hz -> excitation [B, T * 300]: a sum of harmonics where voiced, noise where not.

    After the neural source-filter model (arXiv:1904.12088). The nine noises of the original are independent and enter
    linearly, so one noise scaled by the norm of the mixing weights has the same distribution.
    """

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        self.config = config
        self.l_linear = nn.Linear(config.harmonics + 1, 1)

    def forward(self, f0: Tensor, noise: Tensor) -> Tensor:
        """`noise` [B, T * 300] is standard normal, drawn by the caller."""
        hop = self.config.prosody_hop_samples
        cycles = (f0.double() * hop / self.config.rate_hz).cumsum(1)
        cycles = F.interpolate(cycles[:, None], scale_factor=float(hop), mode="linear")[:, 0]
        phase = (2.0 * math.pi * torch.remainder(cycles, 1.0)).float()
        voiced = (f0 > VOICED_ABOVE_HZ).float().repeat_interleave(hop, dim=1)
        weight, bias = self.l_linear.weight[0], self.l_linear.bias
        tones = sum((weight[h] * torch.sin((h + 1) * phase) for h in range(len(weight))), torch.zeros_like(phase))
        noise_level = voiced * VOICED_NOISE + (1.0 - voiced) * SINE_AMPLITUDE / 3.0
        return torch.tanh(tones * voiced * SINE_AMPLITUDE + noise * noise_level * weight.norm() + bias)


class Generator(nn.Module):
    """Decoder features [B, T, 512] at 80 Hz -> waveform [B, T * 300]."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        self.config = config
        size = config.decoder // 2
        widths = (size // 2, size // 4)
        bins = config.n_fft + 2
        self.m_source = HarmonicSource(config)
        self.ups = nn.ModuleList(
            TransposedConv1d(c_in, c_out, stride=rate)
            for c_in, c_out, rate in zip((size, widths[0]), widths, config.upsample_rates, strict=True)
        )
        rate = config.upsample_rates[1]
        self.noise_convs = nn.ModuleList(
            [
                StridedConv1d(bins, widths[0], 2 * rate, stride=rate, padding=(rate + 1) // 2),
                StridedConv1d(bins, widths[1], 1, stride=1, padding=0),
            ]
        )
        self.noise_res = nn.ModuleList(
            ResBlock(w, k, config.resblock_dilations, config.style)
            for w, k in zip(widths, config.noise_kernels, strict=True)
        )
        self.resblocks = nn.ModuleList(
            ResBlock(w, k, config.resblock_dilations, config.style) for w in widths for k in config.resblock_kernels
        )
        self.conv_post = Conv1d(widths[1], bins, 7)
        window = torch.hann_window(config.n_fft, periodic=True, dtype=torch.float64)
        self.register_buffer("window", window.float(), persistent=False)
        self.register_buffer("synthesis", _synthesis_basis(config.n_fft, window), persistent=False)
        self.window: Tensor
        self.synthesis: Tensor

    def _source_spectrum(self, f0: Tensor, noise: Tensor, lengths: Tensor | None) -> Tensor:
        """Magnitude and phase of the excitation, [B, T * 60 + 1, n_fft + 2]. No gradient: it is an input.

        Rows of differing length are analysed one by one, since the analysis reflects the signal at its own end.
        """
        if lengths is not None:
            size = self.config.prosody_hop_samples
            rows = [
                self._source_spectrum(f0[i : i + 1, :n], noise[i : i + 1, : n * size], None)[0]
                for i, n in enumerate(lengths.tolist())
            ]
            return nn.utils.rnn.pad_sequence(rows, batch_first=True)
        with torch.no_grad():
            source = self.m_source(f0, noise)
            n_fft, hop = self.config.n_fft, self.config.istft_hop_samples
            spectrum = torch.stft(source, n_fft, hop, window=self.window, return_complex=True)
            return torch.cat([spectrum.abs(), _angle(spectrum)], dim=1).transpose(1, 2)

    def excite(self, style: Tensor, f0: Tensor, noise: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """The harmonic source as each stage hears it: [B, T * 10, 256] and [B, T * 60 + 1, 128].

        `lengths` [B]: valid frames (80 Hz) when rows differ; None when all are whole.
        """
        source = self._source_spectrum(f0, noise, lengths)
        excitations = []
        for stage, (conv, block) in enumerate(zip(self.noise_convs, self.noise_res, strict=True)):
            excitation = conv(source)
            mask = self._stage_mask(stage, lengths, excitation.shape[1])
            excitations.append(block(excitation if mask is None else excitation * mask, style, mask))
        return excitations

    def resonate(self, x: Tensor, style: Tensor, excitations: list[Tensor], lengths: Tensor | None = None) -> Tensor:
        """Decoder features x [B, T, 512] and the excitations of `excite`, left as they are -> waveform [B, T * 300]."""
        count = len(self.config.resblock_kernels)
        for stage, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            if stage == len(self.ups) - 1:  # one frame more, so that the inverse STFT yields whole hops
                x = torch.cat([x[:, 1:2], x], dim=1)
            mask = self._stage_mask(stage, lengths, x.shape[1])
            x = (x if mask is None else x * mask).add_(excitations[stage])
            blocks = self.resblocks[stage * count : (stage + 1) * count]
            total = blocks[0](x, style, mask)
            for block in blocks[1:]:
                total.add_(block(x, style, mask))
            x = total.div_(count)
        mask = self._stage_mask(len(self.ups) - 1, lengths, x.shape[1])
        return self._inverse_stft(self.conv_post(F.leaky_relu(x)), mask)

    def _stage_mask(self, stage: int, lengths: Tensor | None, longest: int) -> Tensor | None:
        if lengths is None:
            return None
        scale = math.prod(self.config.upsample_rates[: stage + 1])
        return length_mask(lengths * scale + int(stage == len(self.ups) - 1), longest)

    def _inverse_stft(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, N, n_fft + 2] (log magnitude, phase through a sine) -> [B, (N - 1) * hop], by overlap-add."""
        bins, n_fft, hop = self.config.n_fft // 2 + 1, self.config.n_fft, self.config.istft_hop_samples
        magnitude, phase = torch.exp(x[..., :bins]), torch.sin(x[..., bins:])
        spectrum = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=-1)
        pieces = spectrum @ self.synthesis
        envelope = self.window.square().expand(1, x.shape[1], n_fft)
        if mask is not None:
            pieces, envelope = pieces * mask, envelope * mask
        trim, length = n_fft // 2, (x.shape[1] - 1) * hop
        wave = _overlap_add(pieces, hop)[:, trim : trim + length]
        weight = _overlap_add(envelope, hop)[:, trim : trim + length]
        return wave / weight.clamp(min=1e-8)


def _angle(spectrum: Tensor) -> Tensor:
    """Phases of [B, bins, N]. On a CPU in pieces that one thread computes: where a thread's share ends, single elements
    are computed by another routine, with other last bits.
    """
    if spectrum.device.type != "cpu":
        return spectrum.angle()
    size = max(1, 30_000 // (spectrum.shape[0] * spectrum.shape[1]))
    return torch.cat([piece.angle() for piece in torch.split(spectrum, size, dim=-1)], dim=-1)


def _synthesis_basis(n_fft: int, window: Tensor) -> Tensor:
    """[n_fft + 2, n_fft]: real and imaginary parts of one frame -> windowed samples (inverse real DFT as a matrix)."""
    eye = torch.eye(n_fft // 2 + 1, dtype=torch.complex128)
    real = torch.fft.irfft(eye, n=n_fft)
    imaginary = torch.fft.irfft(1j * eye, n=n_fft)
    return (torch.cat([real, imaginary]) * window).float()


def _overlap_add(frames: Tensor, hop: int) -> Tensor:
    """[B, N, n_fft] -> [B, (N - 1) * hop + n_fft]; n_fft a multiple of hop."""
    rows, count, size = frames.shape
    overlap = size // hop
    parts = frames.reshape(rows, count, overlap, hop)
    total = frames.new_zeros(rows, count + overlap - 1, hop)
    for k in range(overlap):
        total = total + F.pad(parts[:, :, k], (0, 0, k, overlap - 1 - k))
    return total.reshape(rows, -1)


class Decoder(nn.Module):
    """Text features [B, T, 512] at 40 Hz, F0 and energy [B, 2T] at 80 Hz, style [B, 128] -> waveform [B, 600 T]."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        self.config = config
        width, residual, style = config.decoder, config.decoder_residual, config.style
        wide = width + 2 + residual
        self.encode = AdaINBlock(config.hidden + 2, width, style)
        self.decode = nn.ModuleList(
            [AdaINBlock(wide, width, style) for _ in range(3)] + [AdaINBlock(wide, width // 2, style, upsample=True)]
        )
        self.F0_conv = StridedConv1d(1, 1, 3, stride=2, padding=1)
        self.N_conv = StridedConv1d(1, 1, 3, stride=2, padding=1)
        self.asr_res = nn.Sequential(Conv1d(config.hidden, residual, 1))
        self.generator = Generator(config)

    def features(
        self, text: Tensor, f0: Tensor, energy: Tensor, style: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        """What the generator works on, [B, 2T, 512]. `lengths` [B] in frames of 40 Hz when rows differ; inputs are zero
        beyond them.
        """
        mask = None if lengths is None else length_mask(lengths, text.shape[1])
        mask2 = None if lengths is None else length_mask(lengths * 2, 2 * text.shape[1])
        f0_down, energy_down = self.F0_conv(f0[..., None]), self.N_conv(energy[..., None])
        residual = self.asr_res(text)
        if mask is not None:
            f0_down, energy_down, residual = f0_down * mask, energy_down * mask, residual * mask
        x: Tensor = self.encode(torch.cat([text, f0_down, energy_down], dim=-1), style, mask, mask)
        for i, block in enumerate(self.decode):
            last = i == len(self.decode) - 1
            x = block(torch.cat([x, residual, f0_down, energy_down], dim=-1), style, mask, mask2 if last else mask)
        return x

    def forward(
        self,
        text: Tensor,
        f0: Tensor,
        energy: Tensor,
        style: Tensor,
        noise: Tensor,
        lengths: Tensor | None = None,
        resonance: Tensor | None = None,
    ) -> Tensor:
        """`noise` [B, 600 T] standard normal. `resonance` [B, 128]: another style for the generator's main path
        alone, which is what a fitted voice moves."""
        x = self.features(text, f0, energy, style, lengths)
        lengths2 = None if lengths is None else lengths * 2
        excitations = self.generator.excite(style, f0, noise, lengths2)
        wave: Tensor = self.generator.resonate(x, style if resonance is None else resonance, excitations, lengths2)
        return wave
