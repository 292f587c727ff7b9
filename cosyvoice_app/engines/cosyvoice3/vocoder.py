"""CausalHiFT: mel [B, T, 80] at 50 Hz to samples [B, 480 T] at 24 kHz.

    mel ──► F0 ──► excitation ──► spectra ─┐ 8, 40 and 120 times the frame rate
    mel ──► conv ──► up 8 ──► (+) ──► up 5 ──► (+) ──► up 3 ──► (+) ──► spectra ──► samples

Everything is causal but for a few frames that the first layers look ahead, so a run can be cut into pieces: `decode`
takes a piece and a `History`, and `vocoder_stream.py` does so with the rest. On a CPU a whole run is cut too, so that
memory doesn't grow with its length.

Always float32 (the F0 predictor float64). On CUDA the caller turns TF32 off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.engines.cosyvoice3.config import HOP_SAMPLES, VocoderConfig
from cosyvoice_app.engines.cosyvoice3.turns import Between, go_on
from cosyvoice_app.engines.cosyvoice3.vocoder_source import F0Predictor, HarmonicSource, Phase
from cosyvoice_app.engines.cosyvoice3.vocoder_spectrum import Spectra
from cosyvoice_app.engines.cosyvoice3.weights import REMEDY
from cosyvoice_app.nn.causal import (
    CausalConv1d,
    History,
    LookaheadConv1d,
    Snake,
    UpsampledConv1d,
    convolve,
    phase_filters,
)
from cosyvoice_app.nn.conv import filter_major
from cosyvoice_app.nn.loading import assign_strict
from cosyvoice_app.nn.weight_norm import fold_weight_norm

LIMIT = 0.99
SLOPE = 0.1
LAST_SLOPE = 0.01
POST_KERNEL = 7
CPU_PIECE_FRAMES = 256


class ResBlock(nn.Module):
    """Three rounds of (snake, dilated convolution, snake, convolution), a residual each. The input is left alone."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(CausalConv1d(channels, channels, kernel, dilation=d) for d in dilations)
        self.convs2 = nn.ModuleList(CausalConv1d(channels, channels, kernel) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor, history: History) -> Tensor:
        for snake1, conv1, snake2, conv2 in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            x = _snake_conv(snake2, conv2, _snake_conv(snake1, conv1, x, history), history).add_(x)
        return x


def _snake_conv(snake: nn.Module, conv: nn.Module, x: Tensor, history: History) -> Tensor:
    assert isinstance(conv, CausalConv1d)
    buffer, piece = conv.open(x.shape[0], x.shape[1], history)
    snake(x, piece)
    return conv.close(buffer, x.shape[1], history)


class SourceDown(nn.Module):
    """Spectra of the excitation, brought down to a stage's rate: kernel twice the stride (1 for stride 1), unpadded."""

    def __init__(self, bins: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        kernel = 1 if stride == 1 else 2 * stride
        self.weight = nn.Parameter(filter_major(torch.empty(channels, bins, kernel).normal_(0.0, 0.02)))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, spectra: Tensor) -> Tensor:
        return convolve(spectra, self.weight, self.bias, stride=self.stride)


class Vocoder(nn.Module):
    """The whole of CausalHiFT. Made by `load`; frozen. Nothing of a run is kept on it."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        bins = config.fft + 2
        widths = [config.width >> (i + 1) for i in range(len(config.rates))]
        self.rate = math.prod(config.rates)
        """Spectra a mel frame: 120."""
        strides = [math.prod(config.rates[i + 1 :]) for i in range(len(config.rates))]
        self.past_spectra = strides[0]
        """Spectra before a piece that its first frame sees: 15."""
        self.f0_predictor = F0Predictor(config)
        self.m_source = HarmonicSource(config)
        self.spectra = Spectra(config)
        self.conv_pre = LookaheadConv1d(config.mels, config.width, config.pre_lookahead + 1)
        self.ups = nn.ModuleList(
            UpsampledConv1d(2 * w, w, k, rate=r)
            for w, k, r in zip(widths, config.rate_kernels, config.rates, strict=True)
        )
        self.source_downs = nn.ModuleList(SourceDown(bins, w, s) for w, s in zip(widths, strides, strict=True))
        self.source_resblocks = nn.ModuleList(
            ResBlock(w, k, config.dilations) for w, k in zip(widths, config.source_kernels, strict=True)
        )
        self.resblocks = nn.ModuleList(
            ResBlock(w, k, config.dilations) for w in widths for k in config.resblock_kernels
        )
        self.conv_post = CausalConv1d(widths[-1], bins, POST_KERNEL)
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def load(
        cls, state: Mapping[str, Tensor], config: VocoderConfig, *, device: torch.device, source: str
    ) -> Vocoder:
        """From the official state dict: names with or without the prefix `generator.`, weight norm in either spelling.

        `source` is named in errors. Raises AssetError that lists every name or shape that doesn't fit.
        """
        named = {name.removeprefix("generator."): value for name, value in state.items()}
        # Where float64 is computed in, weight norm is undone in it too.
        folded = fold_weight_norm(
            {n: v.double() if n.startswith("f0_predictor.") else v for n, v in named.items()}
        )
        for i, rate in enumerate(config.rates):
            weight, bias = folded.get(f"ups.{i}.weight"), folded.get(f"ups.{i}.bias")
            if weight is not None and weight.ndim == 3:
                folded[f"ups.{i}.weight"] = phase_filters(weight, rate)
            if bias is not None and bias.ndim == 1:
                folded[f"ups.{i}.bias"] = bias.repeat(rate)
        vocoder = cls(config)
        assign_strict(vocoder, folded, source, remedy=REMEDY)
        return vocoder.to(device)

    def forward(self, mel: Tensor, frames: Tensor, noise: Tensor | None = None, *, between: Between = go_on) -> Tensor:
        """mel [B, T, 80] float32, `frames` [B] int64 valid ones of each row (1..T) -> samples [B, 480 T] within +-0.99.

        Samples past a row's end are 0, and what mel holds there is not seen. `noise` [1, at least 480 T, 9] in [0, 1)
        takes the place of the built-in noise. `between` is called before each piece that a run is cut into.

        A row is what it is alone: to the bit on a CPU, where rows go one by one and none pays for another's length; to
        float32's rounding elsewhere.
        """
        if mel.device.type != "cpu" or mel.shape[0] == 1:
            return self.together(mel, frames, noise, between=between)
        waves = mel.new_zeros(mel.shape[0], mel.shape[1] * HOP_SAMPLES)
        for row, count in enumerate(frames.tolist()):
            alone = self.together(mel[row : row + 1, :count], frames[row : row + 1], noise, between=between)
            waves[row, : count * HOP_SAMPLES] = alone[0]
        return waves

    def together(self, mel: Tensor, frames: Tensor, noise: Tensor | None = None, *, between: Between = go_on
                 ) -> Tensor:
        """`forward` of all rows at once. A row's own end is made exact: what is past it reaches none of its samples."""
        rows, longest, _ = mel.shape
        frames = frames.to(mel.device)
        inside = torch.arange(longest, device=mel.device) < frames[:, None]
        ahead = self.config.pre_lookahead
        mel = F.pad(mel.masked_fill(~inside[..., None], 0.0), (0, 0, 0, ahead))
        f0 = self.f0_predictor(mel[:, : longest + self.config.f0_lookahead], {})
        excitation = self.m_source(f0, Phase(), noise)
        excitation = self.spectra.mirror_start(self.spectra.mirror_ends(excitation, frames * HOP_SAMPLES))
        spectra = F.pad(self.spectra(excitation), (0, 0, self.past_spectra - 1, 0))
        parts = self.spectra.polar(self.decode(mel, spectra, {}, between))
        if rows > 1:  # spectra after a row's end don't sound in its last samples
            sounding = torch.arange(parts.shape[1], device=mel.device) <= (frames * self.rate)[:, None]
            parts = parts.masked_fill(~sounding[..., None], 0.0)
        blocks = self.spectra.invert(F.pad(parts, (0, 0, self.spectra.overlap - 1, 1)))[:, self.skipped_blocks :]
        blocks[:, 0] *= self.spectra.at_start
        blocks[torch.arange(rows, device=mel.device), frames * self.rate - 1] *= self.spectra.at_end
        wave = blocks.reshape(rows, longest, HOP_SAMPLES).clamp_(-LIMIT, LIMIT)
        return wave.masked_fill_(~inside[..., None], 0.0).flatten(1)

    @property
    def skipped_blocks(self) -> int:
        """Blocks of 4 samples of the inverse transform that lie before the first sample."""
        return self.spectra.edge // self.spectra.hop

    def decode(self, mel: Tensor, spectra: Tensor, history: History, between: Between = go_on) -> Tensor:
        """The network: mel [B, K + 4, 80] and the excitation's spectra [B, 15 + 120 K, 18] of K frames -> [B, F, 18].

        The 4 frames of mel are those after the K; the first 15 spectra are those up to and with the one at the first
        frame's start (zeros before the run). F is 120 K, and one more in a run's first piece, which `history` being
        empty marks: the last stage repeats its second frame in front of the first.
        """
        count = mel.shape[1] - self.config.pre_lookahead
        size = CPU_PIECE_FRAMES if mel.device.type == "cpu" else count
        parts = []
        for start in range(0, count, size):
            between()
            stop = min(start + size, count)
            seen = spectra[:, start * self.rate : stop * self.rate + self.past_spectra]
            parts.append(self._piece(mel[:, start : stop + self.config.pre_lookahead], seen, history))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _piece(self, mel: Tensor, spectra: Tensor, history: History) -> Tensor:
        is_first = not history
        kernels = len(self.config.resblock_kernels)
        x: Tensor = self.conv_pre(mel)
        for stage, (up, down, source_block) in enumerate(
            zip(self.ups, self.source_downs, self.source_resblocks, strict=True)
        ):
            x = up(F.leaky_relu_(x, SLOPE), history)
            is_last = stage == len(self.ups) - 1
            if is_last and is_first:
                x = torch.cat([x[:, 1:2], x], 1)
            assert isinstance(down, SourceDown)
            skipped = self.past_spectra - (down.stride if not is_last or is_first else 0)
            x += source_block(down(spectra[:, skipped:]), history)
            blocks = self.resblocks[stage * kernels : (stage + 1) * kernels]
            total: Tensor = blocks[0](x, history)
            for block in blocks[1:]:
                total += block(x, history)
            x = total.div_(kernels)
        return self.conv_post(F.leaky_relu_(x, LAST_SLOPE), history)
