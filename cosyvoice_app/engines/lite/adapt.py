"""Fit the generator to a clip: the step that turns a stock voice into the clip's.

    sentences nobody said ──► text side and decoder, frozen ──► generator ──► a piece of speech
    piece ──► CAM++ ──► as near as possible to the clip's vector              (who speaks)
    piece ──► mel statistics ──► as near as possible to the clip's             (how the voice is coloured)
    piece ──► log-mel movement ──► as near as possible to the unfitted piece's (what is said, and how cleanly)
    aligned clip, when its words are known ──► generator ──► log-mel distance to the clip itself

Only the convolutions of the generator's main path and its style move. All before it is computed once a piece. A clip
needs no transcript. Afterwards the fit is judged on a sentence it was not fitted on: the words must still be those of
the unfitted voice, and the speaker must be nearer; otherwise half of the fit is tried, and in the end none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torchaudio.functional as AF
from torch import Tensor
from torch.func import functional_call

from cosyvoice_app.audio.features import LogMelConfig, log_mel
from cosyvoice_app.engines.lite.model import OUTPUT_GAIN, LiteModel, Prosody, Resonance, moving_names, rounded
from cosyvoice_app.types import CancelToken, NeverCancelled, OnProgress, Progress, ignore_progress

SPEAKER_RATE_HZ = 16_000
MEL = LogMelConfig(
    rate_hz=24_000, n_fft=1024, window_samples=1024, hop_samples=240, bins=80, power=1, floor=1e-4, floor_mode="add"
)
FINE_MEL = LogMelConfig(
    rate_hz=24_000, n_fft=512, window_samples=360, hop_samples=120, bins=80, power=1, floor=1e-4, floor_mode="add"
)
SPEECH_LEVEL = 0.08
"""RMS of speaking time that clip and piece are brought to before they are compared."""
LOWEST_BAND_HZ = 60.0
BANDWIDTH_USED = 0.46
"""Share of the clip's rate below which its spectrum is trusted: a resampler's slope lies above."""


@dataclass(frozen=True, slots=True)
class FitConfig:
    """One setting of the fit. `piece_frames` are of 40 Hz; `pieces` of unspoken text are made, then taken in turn."""

    steps: int
    pieces: int
    piece_frames: int = 60
    weight_rate: float = 5e-5
    style_rate: float = 1e-2
    speaker: float = 1.0
    colour: float = 0.3
    anchor: float = 0.5
    copy: float = 0.5
    copy_speaker: float = 0.5
    seed: int = 7


FAST = FitConfig(steps=14, pieces=6)
FULL = FitConfig(steps=45, pieces=12)


@dataclass(frozen=True, slots=True)
class Target:
    """What a fit aims at, from the clip: its CAM++ vector [192] and its mel statistics (mean, deviation) [80] with the
    bands that the clip's bandwidth covers."""

    speaker: Tensor
    colour: tuple[Tensor, Tensor]
    bands: Tensor


@dataclass(frozen=True, slots=True)
class Copy:
    """A clip aligned to its words: decoder inputs and the clip's own samples at 24 kHz, frame for frame."""

    prosody: Prosody
    samples: Tensor


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece up to the generator's main path. `reference` [n] is the unfitted rendering, or the clip itself."""

    features: Tensor
    excitations: list[Tensor]
    reference: Tensor
    is_copy: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """`fitted` is None when the fit was thrown away; `scale` is the part of it that was kept. `scores` are of the
    sentence kept apart: speaker similarity and agreement of words, unfitted and at each scale tried."""

    fitted: Resonance | None
    scores: dict[str, float]
    scale: float


def make_target(model: LiteModel, samples: Tensor, rate_hz: int) -> Target:
    """`samples` [n] mono at `rate_hz`."""
    with torch.no_grad():
        at16 = to_rate(samples, rate_hz, SPEAKER_RATE_HZ)
        at24 = to_rate(samples, rate_hz, model.config.rate_hz)
        speaker = model.speaker.embed(at16[None])[0]
        colour = _colour(_levelled(at24, model.config.rate_hz))
        top_mel = 2595.0 * np.log10(1.0 + MEL.rate_hz / 2 / 700.0)
        centres_mel = np.linspace(0.0, top_mel, MEL.bins + 2)[1:-1]
        centres_hz = torch.from_numpy(700.0 * (10.0 ** (centres_mel / 2595.0) - 1.0))
        bands = ((centres_hz > LOWEST_BAND_HZ) & (centres_hz < BANDWIDTH_USED * rate_hz)).float().to(samples.device)
    return Target(speaker, colour, bands)


def to_rate(samples: Tensor, rate_hz: int, to_hz: int) -> Tensor:
    return samples if rate_hz == to_hz else AF.resample(samples, rate_hz, to_hz)


def _speech_level(samples: Tensor, rate_hz: int) -> Tensor:
    """RMS over 20 ms frames louder than a tenth of the loudest."""
    size = rate_hz // 50
    frames = samples[: len(samples) // size * size].view(-1, size).square().mean(1)
    return frames[frames > 0.01 * frames.max()].mean().sqrt().clamp(min=1e-6)


def _levelled(samples: Tensor, rate_hz: int) -> Tensor:
    return samples * (SPEECH_LEVEL / _speech_level(samples.detach(), rate_hz))


def _colour(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each log-mel band over the louder frames: the long-term spectrum and its life."""
    mel = log_mel(samples[None], MEL)[0]
    loud = mel.exp().sum(1)
    mel = mel[loud > 0.1 * torch.quantile(loud.detach(), 0.9)]
    return mel.mean(0), mel.std(0)


def moving(model: LiteModel) -> dict[str, Tensor]:
    """The generator tensors a fit may move: convolution weights of its main path."""
    parameters = dict(model.decoder.generator.named_parameters())
    return {name: parameters[name] for name in moving_names(parameters)}


def fit(
    model: LiteModel,
    target: Target,
    style: Tensor,
    sentences: Sequence[Prosody],
    kept_apart: Prosody,
    config: FitConfig,
    *,
    copy: Copy | None = None,
    progress: OnProgress = ignore_progress,
    cancel: CancelToken | None = None,
) -> Fit:
    """Fit the generator to `target`. `style` [128] is the base voice's acoustic half; `sentences` are unspoken text
    with prosody at the clip's pitch, `kept_apart` one more that only judges. Raises Cancelled; nothing outlives a
    cancelled fit.
    """
    cancel = cancel or NeverCancelled()
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in moving(model).items()}
    own = style.detach().clone().requires_grad_()
    optimiser = torch.optim.Adam(
        [{"params": list(weights.values()), "lr": config.weight_rate}, {"params": [own], "lr": config.style_rate}]
    )
    progress(Progress("fitting", 0.0))
    pieces: list[_Piece] = []
    for step in range(config.steps):
        cancel.check()  # others may use the model here: between steps it holds its released tensors
        with torch.no_grad():
            if step < config.pieces:
                pieces.append(_prepare(model, sentences, copy, style, config, step))
        piece = pieces[step % config.pieces]
        optimiser.zero_grad(set_to_none=True)
        wave = _render(model, piece, own, weights)
        loss = (
            _copy_loss(model, target, wave, piece, config)
            if piece.is_copy
            else _piece_loss(model, target, wave, piece, config)
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        progress(Progress("fitting", (step + 1) / config.steps, f"{step + 1}/{config.steps}"))
    cancel.check()
    progress(Progress("judging"))
    fitted = Resonance(own.detach(), {name: weight.detach() for name, weight in weights.items()})
    return judge(model, target, style, fitted, kept_apart, cancel)


def _prepare(
    model: LiteModel, sentences: Sequence[Prosody], copy: Copy | None, style: Tensor, config: FitConfig, index: int
) -> _Piece:
    """Piece `index`: every second one of the aligned clip when there is one, the others of the sentences."""
    is_copy = copy is not None and index % 2 == 1
    whole = copy.prosody if copy is not None and is_copy else sentences[index % len(sentences)]
    size = min(config.piece_frames, whole.frames)
    start = int(np.random.default_rng([config.seed, index]).integers(0, whole.frames - size + 1))
    piece = whole.cut(start, size)
    noise = model.noise(size, config.seed + index)[None]
    text, f0, energy = piece.text[None], piece.f0[None], piece.energy[None]
    generator = model.decoder.generator
    features = model.decoder.features(text, f0, energy, style[None])
    excitations = generator.excite(style[None], f0, noise)
    if copy is not None and is_copy:
        hop = model.config.frame_hop_samples
        reference = copy.samples[start * hop : (start + size) * hop]
    else:
        reference = generator.resonate(features, style[None], excitations)[0] * OUTPUT_GAIN
    return _Piece(features, excitations, reference, is_copy)


def _render(model: LiteModel, piece: _Piece, style: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    wave: Tensor = functional_call(
        _MainPath(model),
        {f"generator.{n}": w for n, w in weights.items()},
        (piece.features, style[None], piece.excitations),
    )
    return wave[0] * OUTPUT_GAIN


class _MainPath(torch.nn.Module):
    """`Generator.resonate` as a module's forward, which is what `functional_call` needs."""

    def __init__(self, model: LiteModel) -> None:
        super().__init__()
        self.generator = model.decoder.generator

    def forward(self, features: Tensor, style: Tensor, excitations: list[Tensor]) -> Tensor:
        return self.generator.resonate(features, style, excitations)


def _speaker_loss(model: LiteModel, target: Target, wave: Tensor) -> Tensor:
    at16 = to_rate(wave, model.config.rate_hz, SPEAKER_RATE_HZ)
    return 1.0 - model.speaker.embed(at16[None])[0] @ target.speaker


def _piece_loss(model: LiteModel, target: Target, wave: Tensor, piece: _Piece, config: FitConfig) -> Tensor:
    mean, deviation = _colour(_levelled(wave, model.config.rate_hz))
    apart = (mean - target.colour[0]).abs() + (deviation - target.colour[1]).abs()
    colour = (apart * target.bands).sum() / target.bands.sum()
    ours, theirs = (_movement(log_mel(w[None], MEL)[0]) for w in (wave, piece.reference))
    anchor = (ours - theirs).abs().mean()
    return config.speaker * _speaker_loss(model, target, wave) + config.colour * colour + config.anchor * anchor


def _movement(mel: Tensor) -> Tensor:
    """A log-mel spectrogram [frames, bins] less each band's mean: what changes in time, not how the voice is
    coloured.
    """
    return mel - mel.mean(0)


def _copy_loss(model: LiteModel, target: Target, wave: Tensor, piece: _Piece, config: FitConfig) -> Tensor:
    """Rebuild a piece of the clip: log-mel distance at two resolutions, and the speaker term."""
    real = piece.reference[: len(wave)]
    wave = wave[: len(real)]
    gain = (real.square().mean() / wave.detach().square().mean().clamp(min=1e-9)).sqrt()
    distance = torch.zeros((), device=wave.device)
    for mel in (MEL, FINE_MEL):
        apart = (log_mel((wave * gain)[None], mel) - log_mel(real[None], mel))[0].abs()
        distance = distance + (apart * target.bands).sum() / (target.bands.sum() * len(apart))
    return config.copy * distance + config.copy_speaker * _speaker_loss(model, target, wave)


JUDGED_FRAMES = 120
KEEP_WORDS = 0.80
"""Least agreement of a fitted sentence with the unfitted one (see `_agreement`). Measured: good fits 0.88 to 0.93;
weights disturbed at random 0.78 with 4 % of words misheard, 0.68 with 19 %, 0.60 with half of them."""


def judge(
    model: LiteModel,
    target: Target,
    style: Tensor,
    fitted: Resonance,
    sentence: Prosody,
    cancel: CancelToken | None = None,
) -> Fit:
    """The whole fit, half of it, a quarter, or none: the most that keeps the words and brings the speaker nearer."""
    sentence = sentence.cut(0, min(JUDGED_FRAMES, sentence.frames))
    noise = model.noise(sentence.frames, 1)
    with torch.no_grad():
        plain = model.decode(sentence, style, noise)
        base = float(1.0 - _speaker_loss(model, target, plain))
        scores = {"speaker_off": base}
        released = moving(model)
        for scale in (1.0, 0.5, 0.25):
            (cancel or NeverCancelled()).check()
            part = Resonance(
                torch.lerp(style, fitted.style, scale),
                {name: torch.lerp(released[name], tensor, scale) for name, tensor in fitted.weights.items()},
            )
            part = rounded(part, released)
            wave = model.decode(sentence, style, noise, part)
            near, same = float(1.0 - _speaker_loss(model, target, wave)), _agreement(plain, wave)
            scores[f"speaker_{scale:g}"], scores[f"words_{scale:g}"] = near, same
            if np.isfinite(near) and near > base and same >= KEEP_WORDS:
                return Fit(part, scores, scale)
    return Fit(None, scores, 0.0)


def _agreement(plain: Tensor, fitted: Tensor) -> float:
    """How far two renderings with the same timing say the same, -1..1: correlation of how their spectra move in speech,
    each frame's level and each band's mean taken out, so that neither loudness nor a change of timbre counts.
    """
    a, b = (log_mel(w[None], MEL)[0] for w in (plain, fitted))
    loud = a.exp().sum(1)
    speech = loud > 0.05 * loud.max()
    a, b = (_movement(m[speech] - m[speech].mean(1, keepdim=True)) for m in (a, b))
    return float((a * b).sum() / (a.norm() * b.norm()).clamp(min=1e-9))
