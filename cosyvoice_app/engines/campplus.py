"""CAM++ speaker encoder: 16 kHz samples -> 80-band Kaldi fbank -> a 192-d vector whose direction is the speaker.

Architecture: "CAM++: A Fast and Efficient Network for Speaker Verification Using Context-Aware Masking", Wang et al.
2023 (arXiv:2303.00332), sizes of 3D-Speaker's zh-en "advanced" model: a small 2-D convolutional front end that divides
frequency by 8 and keeps the frame rate, a strided convolution that halves the frame rate, three densely connected TDNN
blocks of 12, 24 and 16 layers whose outputs are gated by a mask computed from the clip's and the segment's mean, and
mean + standard deviation over time.

The encoder sits inside an optimisation loop on a CPU, so every batch norm that follows a convolution is folded into it
when the weights are loaded, the rest are one multiply-add, and the dense blocks work time-major ([B, T, C]), where a
1x1 convolution is a plain matrix product. Gradients flow to the input only; weights are frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.audio.features import FbankConfig, fbank
from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn.conv import Conv1d
from cosyvoice_app.nn.loading import assign_strict, load_tensors

EMBEDDING = 192
RATE_HZ = 16_000
FBANK = FbankConfig()
MIN_SAMPLES = FBANK.window_samples(RATE_HZ) + 2 * FBANK.shift_samples(RATE_HZ)
SEGMENT_FRAMES = 100  # of the halved frame rate: 2 s
GROWTH = 32
BOTTLENECK = 128
BLOCKS = ((12, 1), (24, 2), (16, 2))  # layers, dilation
BN_EPS = 1e-5


class Affine(nn.Module):
    """A batch norm in inference followed by ReLU, over the last axis."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x, self.scale).relu_()


class Residual(nn.Module):
    """Two 3x3 convolutions [B, C, F, T] with a shortcut; `stride` along frequency."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, stride=(stride, 1), padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, channels, 1, stride=(stride, 1)) if stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.conv1(x).relu_())
        out: Tensor = y.add_(x if self.shortcut is None else self.shortcut(x)).relu_()
        return out


class FrontEnd(nn.Module):
    """fbank [B, T, 80] -> [B, T, 320]."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.layer1 = nn.Sequential(Residual(channels, 2), Residual(channels, 1))
        self.layer2 = nn.Sequential(Residual(channels, 2), Residual(channels, 1))
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=(2, 1), padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)[:, None].contiguous(memory_format=torch.channels_last)
        out: Tensor = self.conv2(self.layer2(self.layer1(self.conv1(y).relu_()))).relu_()
        return out.flatten(1, 2).transpose(1, 2)


class MaskedTdnn(nn.Module):
    """One dense layer [B, T, C] -> [B, T, 32]: bottleneck, dilated convolution, context-aware mask."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.norm = Affine(channels)
        self.bottleneck = nn.Linear(channels, BOTTLENECK)
        self.local = Conv1d(BOTTLENECK, GROWTH, 3, dilation=dilation, bias=False)
        self.mask1 = nn.Linear(BOTTLENECK, BOTTLENECK // 2)
        self.mask2 = nn.Linear(BOTTLENECK // 2, GROWTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bottleneck(self.norm(x)).relu_()
        mask = self.mask2(self.mask1(_context(h)).relu_()).sigmoid()
        if mask.shape[1] > 1:
            mask = mask.repeat_interleave(SEGMENT_FRAMES, 1)[:, : x.shape[1]]
        out: Tensor = self.local(h) * mask
        return out


def _context(h: Tensor) -> Tensor:
    """Mean of the clip plus mean of each 2 s segment (the last may be short): [B, T, C] -> [B, segments, C]."""
    rows, frames, channels = h.shape
    whole = h.mean(1, keepdim=True)
    if frames <= SEGMENT_FRAMES:
        return 2.0 * whole
    segments = -(-frames // SEGMENT_FRAMES)
    spare = segments * SEGMENT_FRAMES - frames
    sums = F.pad(h, (0, 0, 0, spare)).reshape(rows, segments, SEGMENT_FRAMES, channels).sum(2)
    counts = h.new_full((segments, 1), float(SEGMENT_FRAMES))
    counts[-1] -= spare
    return whole + sums / counts


class DenseBlock(nn.ModuleList):
    """Each layer sees the outputs of all before it."""

    def __init__(self, channels: int, layers: int, dilation: int) -> None:
        super().__init__(MaskedTdnn(channels + n * GROWTH, dilation) for n in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = torch.cat((x, layer(x)), -1)
        return x


class Transit(nn.Module):
    def __init__(self, channels: int, *, bias: bool) -> None:
        super().__init__()
        self.norm = Affine(channels)
        self.linear = nn.Linear(channels, channels // 2, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.norm(x))
        return out


class CamPlusPlus(nn.Module):
    """fbank [B, T, 80], mean-subtracted -> embeddings [B, 192], not normalised. T >= 3; rows of a batch are equally
    long.
    """

    def __init__(self) -> None:
        super().__init__()
        self.head = FrontEnd()
        self.tdnn = nn.Conv1d(320, 128, 5, stride=2, padding=2)
        channels = 128
        self.blocks, self.transits = nn.ModuleList(), nn.ModuleList()
        for n, (layers, dilation) in enumerate(BLOCKS):
            self.blocks.append(DenseBlock(channels, layers, dilation))
            channels += layers * GROWTH
            self.transits.append(Transit(channels, bias=n == len(BLOCKS) - 1))  # the last one takes a batch norm in
            channels //= 2
        self.dense = nn.Linear(2 * channels, EMBEDDING)
        for weight in self.head.parameters():
            if weight.ndim == 4:  # channels last: two thirds of the default layout's time in oneDNN
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        self.requires_grad_(False)
        self.eval()

    def forward(self, features: Tensor) -> Tensor:
        x = self.tdnn(self.head(features).transpose(1, 2)).relu_().transpose(1, 2).contiguous()
        for block, transit in zip(self.blocks, self.transits, strict=True):
            x = transit(block(x))
        x = x.relu_()
        deviation, mean = torch.std_mean(x, dim=1, correction=1)  # its gradient at 0 is 0, unlike a root's
        out: Tensor = self.dense(torch.cat((mean, deviation), -1))
        return out


class SpeakerNet(nn.Module):
    """Who speaks, as a unit vector. Frozen; gradients flow to the samples."""

    def __init__(self, net: CamPlusPlus) -> None:
        super().__init__()
        self.net = net

    @staticmethod
    def load(path: Path) -> SpeakerNet:
        """`path`: CAM++ as written by `weights.convert_campplus`. Raises AssetError."""
        return SpeakerNet(load_campplus(path))

    def embed(self, samples: Tensor) -> Tensor:
        """Samples [B, n] at 16 kHz, equally long rows, n >= 720 -> unit vectors [B, 192].

        At least 2 s are needed for a vector to mean much. Raises ValueError on fewer than 720 samples.
        """
        if samples.shape[1] < MIN_SAMPLES:
            raise ValueError(f"{samples.shape[1]} samples are too few for a speaker vector; at least {MIN_SAMPLES}")
        features = fbank(samples, RATE_HZ, FBANK)
        embedding = self.net(features - features.mean(1, keepdim=True))
        return F.normalize(embedding, dim=-1)


def load_campplus(path: Path) -> CamPlusPlus:
    """The encoder with the weights of `path` (see `weights.convert_campplus`), norms folded. Raises AssetError."""
    net = CamPlusPlus()
    assign_strict(net, fold(load_tensors(path), str(path)), str(path))
    return net


def fold(state: Mapping[str, Tensor], source: str = "state") -> dict[str, Tensor]:
    """3D-Speaker's state dict -> ours: batch norms folded into the convolution before them, else turned into an affine.

    Raises AssetError for a name that is missing; one left over is reported by strict loading.
    """
    left = dict(state)
    out: dict[str, Tensor] = {}

    def take(name: str) -> Tensor:
        if name not in left:
            raise AssetError(f"{source} doesn't fit CamPlusPlus: missing: {name}.")
        return left.pop(name)

    def affine(norm: str) -> tuple[Tensor, Tensor]:
        mean, variance = take(f"{norm}.running_mean"), take(f"{norm}.running_var")
        scale = torch.rsqrt(variance + BN_EPS)
        if f"{norm}.weight" not in left:  # the last norm has no trained scale and shift
            return scale, -mean * scale
        scale = scale * take(f"{norm}.weight")
        return scale, take(f"{norm}.bias") - mean * scale

    def folded(to: str, conv: str, norm: str, *, matrix: bool = False) -> None:
        scale, shift = affine(norm)
        weight = take(f"{conv}.weight")
        weight = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
        out[f"{to}.weight"] = weight.squeeze(-1) if matrix else weight
        out[f"{to}.bias"] = shift

    def norm(to: str, name: str) -> None:
        out[f"{to}.scale"], out[f"{to}.shift"] = affine(name)

    folded("head.conv1", "head.conv1", "head.bn1")
    folded("head.conv2", "head.conv2", "head.bn2")
    for layer in ("head.layer1.0", "head.layer1.1", "head.layer2.0", "head.layer2.1"):
        folded(f"{layer}.conv1", f"{layer}.conv1", f"{layer}.bn1")
        folded(f"{layer}.conv2", f"{layer}.conv2", f"{layer}.bn2")
        if layer.endswith(".0"):
            folded(f"{layer}.shortcut", f"{layer}.shortcut.0", f"{layer}.shortcut.1")
    folded("tdnn", "xvector.tdnn.linear", "xvector.tdnn.nonlinear.batchnorm")
    for b, (layers, _) in enumerate(BLOCKS):
        for n in range(layers):
            to, name = f"blocks.{b}.{n}", f"xvector.block{b + 1}.tdnnd{n + 1}"
            norm(f"{to}.norm", f"{name}.nonlinear1.batchnorm")
            folded(f"{to}.bottleneck", f"{name}.linear1", f"{name}.nonlinear2.batchnorm", matrix=True)
            out[f"{to}.local.weight"] = take(f"{name}.cam_layer.linear_local.weight")
            for mine, theirs in (("mask1", "linear1"), ("mask2", "linear2")):
                out[f"{to}.{mine}.weight"] = take(f"{name}.cam_layer.{theirs}.weight").squeeze(-1)
                out[f"{to}.{mine}.bias"] = take(f"{name}.cam_layer.{theirs}.bias")
        norm(f"transits.{b}.norm", f"xvector.transit{b + 1}.nonlinear.batchnorm")
        if b < len(BLOCKS) - 1:
            out[f"transits.{b}.linear.weight"] = take(f"xvector.transit{b + 1}.linear.weight").squeeze(-1)
    folded("transits.2.linear", "xvector.transit3.linear", "xvector.out_nonlinear.batchnorm", matrix=True)
    folded("dense", "xvector.dense.linear", "xvector.dense.nonlinear.batchnorm", matrix=True)
    return out | left
