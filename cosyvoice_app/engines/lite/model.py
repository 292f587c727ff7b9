"""The lite engine's networks, loaded once, and the plain act of speaking symbols with them. No state of a request.

A voice fitted to a clip is a set of generator tensors that differ from the released ones. A call on it has a decoder of
its own that shares all other tensors, so calls for many voices may go on at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module

from cosyvoice_app import assets
from cosyvoice_app.engines.campplus import SpeakerNet
from cosyvoice_app.engines.lite.acoustic import AcousticNet, expand
from cosyvoice_app.engines.lite.config import LiteConfig
from cosyvoice_app.engines.lite.g2p import G2PPaths, LiteG2P
from cosyvoice_app.engines.lite.styles import StyleTable
from cosyvoice_app.engines.lite.vocoder import Decoder
from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn.loading import assign_strict, load_tensors
from cosyvoice_app.nn.overlay import with_tensors
from cosyvoice_app.types import OnProgress, ignore_progress

PAD = 0
OUTPUT_GAIN = 1.5
"""The decoder speaks 3.5 dB below the level the release is heard at: its published graph leaves the inverse STFT's
window sum (1.5) in."""


@dataclass(frozen=True, slots=True)
class Prosody:
    """One row ready for the decoder: text features [T, hidden] at 40 Hz, F0 in Hz and log energy [2T] at 80 Hz."""

    text: Tensor
    f0: Tensor
    energy: Tensor

    @property
    def frames(self) -> int:
        return int(self.text.shape[0])

    def cut(self, start: int, frames: int) -> Prosody:
        """The piece of `frames` (40 Hz) from `start`."""
        end = start + frames
        return Prosody(self.text[start:end], self.f0[2 * start : 2 * end], self.energy[2 * start : 2 * end])


@dataclass(frozen=True, slots=True)
class Resonance:
    """What a fit moves: the style [128] of the generator's main path, and generator tensors in place of the released
    ones.
    """

    style: Tensor
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class LiteModel:
    """All networks and tables of the engine on one device, frozen and in inference mode."""

    config: LiteConfig
    acoustic: AcousticNet
    decoder: Decoder
    speaker: SpeakerNet
    styles: StyleTable
    g2p: LiteG2P
    vocabulary: Mapping[str, int]
    device: torch.device
    dtype: torch.dtype
    model_hash: str

    @staticmethod
    def load(
        cache: Path | None, device: torch.device, dtype: torch.dtype, progress: OnProgress = ignore_progress
    ) -> LiteModel:
        """Fetch what is missing, then load strictly. Raises AssetError with the remedy in it."""
        found = assets.fetch(cache=cache, progress=progress)
        config = LiteConfig()
        state = load_tensors(found["kokoro"])
        acoustic, decoder = AcousticNet(config), Decoder(config)
        prefix = "decoder."
        assign_strict(acoustic, {k: v for k, v in state.items() if not k.startswith(prefix)}, str(found["kokoro"]))
        assign_strict(
            decoder, {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}, str(found["kokoro"])
        )
        speaker = SpeakerNet.load(found["campplus"])
        for net in (acoustic, decoder, speaker):
            net.eval().requires_grad_(False).to(device)
        acoustic.to(dtype)
        g2p = LiteG2P(G2PPaths(found["misaki-us-gold"], found["misaki-us-silver"], found["g2p-en"], found["g2pm"]))
        return LiteModel(
            config,
            acoustic,
            decoder,
            speaker,
            StyleTable.load(),
            g2p,
            _vocabulary(found["kokoro-vocab"]),
            device,
            dtype,
            _hash_of(state),
        )

    def ids(self, symbols: str) -> Tensor:
        """Kokoro symbols -> ids [N + 2] with the pad at both ends. Symbols outside the vocabulary raise AssetError."""
        unknown = sorted({s for s in symbols if s not in self.vocabulary})
        if unknown:
            raise AssetError(f"The symbols {unknown} are not in the model's vocabulary; the installation is damaged.")
        return torch.tensor([PAD, *(self.vocabulary[s] for s in symbols), PAD], device=self.device)

    def decode(self, prosody: Prosody, style: Tensor, noise: Tensor, fitted: Resonance | None = None) -> Tensor:
        """One row -> samples [600 T] at 24 kHz. `style` is acoustic [128]; `fitted` is what a fit made of the
        generator.
        """
        inputs = (
            prosody.text[None].float(),
            prosody.f0[None].float(),
            prosody.energy[None].float(),
            style[None],
            noise[None],
        )
        decoder: Module = self.decoder
        if fitted is not None:
            decoder = with_tensors(decoder, {f"generator.{name}": tensor for name, tensor in fitted.weights.items()})
        wave: Tensor = decoder(*inputs, resonance=None if fitted is None else fitted.style[None])
        return wave[0] * OUTPUT_GAIN

    def noise(self, frames: int, seed: int) -> Tensor:
        """Standard normal noise for the excitation of `frames` (40 Hz), the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(frames * self.config.frame_hop_samples, generator=generator).to(self.device)


def expand_row(model: LiteModel, text: Tensor, prosody: Tensor, frames: Tensor, style: Tensor) -> Prosody:
    """Symbol features [N, ...] and whole frames [N] -> a Prosody with the predictor's F0 and energy."""
    f0, energy = model.acoustic.curves(expand(prosody, frames)[None], style[None].to(model.dtype))
    return Prosody(expand(text, frames).float(), f0[0].float(), energy[0].float())


def _vocabulary(path: Path) -> dict[str, int]:
    data = json.loads(path.read_text(encoding="utf-8"))
    table = data.get("vocab", data)
    return {str(symbol): int(index) for symbol, index in table.items()}


def _hash_of(state: Mapping[str, Tensor]) -> str:
    """A short name for these weights: SHA-256 over a sample of every tensor, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        flat = state[name].flatten()
        digest.update(f"{name}{tuple(state[name].shape)}".encode())
        digest.update(flat[:: max(1, len(flat) // 64)].contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def moving_names(generator: Mapping[str, Tensor]) -> list[str]:
    """Of the generator's tensors, those that a fit may move: convolution weights of its main path."""
    main_path = ("ups.", "resblocks.", "conv_post.")
    return [n for n, t in generator.items() if n.startswith(main_path) and n.endswith("weight") and t.dim() == 3]


def deltas_of(fitted: Resonance, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Half-precision differences from the released tensors: what is kept of a fit."""
    return {name: (tensor - released[name]).half() for name, tensor in fitted.weights.items()}


def rounded(fitted: Resonance, released: Mapping[str, Tensor]) -> Resonance:
    """The fit as it will come back from disk, so that a voice sounds the same before and after a restart.

    Adding a difference rounds, and taking it again can round it once more the other way; repeated until it stays.
    """
    for _ in range(4):
        deltas = deltas_of(fitted, released)
        again = Resonance(fitted.style, {name: add_delta(released[name], delta) for name, delta in deltas.items()})
        if all(torch.equal(again.weights[name], tensor) for name, tensor in fitted.weights.items()):
            break
        fitted = again
    return fitted


def add_delta(released: Tensor, delta: Tensor) -> Tensor:
    """A new tensor with the released one's memory layout, so that convolutions find their taps contiguous."""
    out = torch.empty_like(released, memory_format=torch.preserve_format)
    return torch.add(released, delta.to(released), out=out)
