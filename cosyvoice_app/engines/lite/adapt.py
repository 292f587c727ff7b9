"""Fit the decoder to a clip: the step that turns a stock voice into the clip's.

    sentences nobody said ──► frozen text side, prosody at the clip's pitch ──► decoder ──► a piece of speech
    piece ──► CAM++ ──► as near as possible to the clip's vector           (who speaks)
    piece ──► mel statistics ──► as near as possible to the clip's          (how the voice is coloured)
    aligned clip, when its words are known ──► decoder ──► log-mel distance to the clip itself

Only the decoder's convolutions and the acoustic half of the style move; what is said and how is decided before the decoder
and stays. A clip needs no transcript. Afterwards the fit is judged on a sentence it was not fitted on: the words must still
be those of the unfitted voice, and the speaker must be nearer; otherwise the fit is halved, and in the end thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torchaudio.functional as AF
from torch import Tensor

from cosyvoice_app.audio.features import LogMelConfig, log_mel
from cosyvoice_app.engines.lite.model import LiteModel, Prosody
from cosyvoice_app.types import CancelToken, NeverCancelled, OnProgress, Progress, ignore_progress

SPEAKER_RATE_HZ = 16_000
MEL = LogMelConfig(rate_hz=24_000, n_fft=1024, window_samples=1024, hop_samples=240, bins=80, power=1, floor=1e-4, floor_mode="add")
FINE_MEL = LogMelConfig(rate_hz=24_000, n_fft=512, window_samples=360, hop_samples=120, bins=80, power=1, floor=1e-4, floor_mode="add")
SPEECH_LEVEL = 0.08
"""RMS of speaking time that clip and piece are brought to before they are compared."""


LOWEST_BAND_HZ = 60.0
BANDWIDTH_USED = 0.46
"""Share of the clip's rate below which its spectrum is trusted: a resampler's slope lies above."""


@dataclass(frozen=True, slots=True)
class FitConfig:
    """One setting of the fit. Pieces are in frames of 40 Hz."""

    steps: int
    piece_frames: int = 60
    weight_rate: float = 1e-4
    style_rate: float = 1e-2
    colour: float = 0.3
    """Weight of the mel statistics beside the speaker term (1.0)."""
    reconstruction: float = 0.5
    seed: int = 7


FAST = FitConfig(steps=14)
FULL = FitConfig(steps=40)


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
class Fit:
    """`changed` decoder tensors and the acoustic `style` [128]; `scores` on the sentence kept apart; `scale` of the fit that
    was kept: 1 whole, 0 thrown away."""

    changed: Mapping[str, Tensor]
    style: Tensor
    scores: dict[str, float]
    scale: float


def make_target(model: LiteModel, samples: Tensor, rate_hz: int) -> Target:
    """`samples` [n] mono at `rate_hz`."""
    with torch.no_grad():
        at16 = to_rate(samples, rate_hz, SPEAKER_RATE_HZ)
        at24 = to_rate(samples, rate_hz, model.config.rate_hz)
        speaker = model.speaker.embed(_levelled(at16, SPEAKER_RATE_HZ)[None])[0]
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


def trainable(model: LiteModel) -> dict[str, Tensor]:
    """The decoder tensors a fit may move: convolution weights, the two scalar ones on F0 and energy apart."""
    return {
        name: tensor
        for name, tensor in model.decoder.named_parameters()
        if name.endswith("weight") and tensor.dim() == 3 and tensor.shape[1] > 1
    }


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
    """Fit the decoder to `target`. `style` [128] is the base voice's acoustic half; `sentences` are unspoken text with
    prosody at the clip's pitch, `kept_apart` one more that only judges. Raises Cancelled; nothing outlives a cancelled fit.
    """
    cancel = cancel or NeverCancelled()
    released = trainable(model)
    weights = {name: tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for name, tensor in released.items()}
    moving = style.detach().clone().requires_grad_()
    optimiser = torch.optim.Adam(
        [{"params": list(weights.values()), "lr": config.weight_rate}, {"params": [moving], "lr": config.style_rate}],
        betas=(0.8, 0.95),
    )
    rng = np.random.default_rng(config.seed)
    pieces = _pieces(sentences, config.piece_frames, rng)
    for step in range(config.steps):
        cancel.check()
        progress(Progress("fitting", step / config.steps, f"{step + 1}/{config.steps}"))
        decay = 0.1 + 0.9 * 0.5 * (1.0 + np.cos(np.pi * step / config.steps))
        for group, rate in zip(optimiser.param_groups, (config.weight_rate, config.style_rate), strict=True):
            group["lr"] = rate * decay
        optimiser.zero_grad(set_to_none=True)
        if copy is not None and step % 2 == 1:
            loss = _copy_loss(model, target, copy, moving, weights, config, rng, step)
        else:
            loss = _piece_loss(model, target, next(pieces), moving, weights, config, step)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    progress(Progress("judging", 1.0))
    return judge(model, target, style, moving.detach(), {n: w.detach() for n, w in weights.items()}, kept_apart)


def _pieces(sentences: Sequence[Prosody], frames: int, rng: np.random.Generator) -> Iterator[Prosody]:
    """Random pieces, the sentences in turn."""
    while True:
        for sentence in sentences:
            size = min(frames, sentence.frames)
            yield sentence.cut(int(rng.integers(0, sentence.frames - size + 1)), size)


def _speaker_loss(model: LiteModel, target: Target, wave: Tensor) -> Tensor:
    at16 = to_rate(wave, model.config.rate_hz, SPEAKER_RATE_HZ)
    return 1.0 - model.speaker.embed(at16[None])[0] @ target.speaker


def _colour_loss(model: LiteModel, target: Target, wave: Tensor) -> Tensor:
    mean, deviation = _colour(_levelled(wave, model.config.rate_hz))
    apart = (mean - target.colour[0]).abs() + (deviation - target.colour[1]).abs()
    return (apart * target.bands).sum() / target.bands.sum()


def _piece_loss(
    model: LiteModel, target: Target, piece: Prosody, style: Tensor, weights: Mapping[str, Tensor], config: FitConfig, step: int
) -> Tensor:
    wave = model.decode(piece, style, model.noise(piece.frames, config.seed + step), weights)
    return _speaker_loss(model, target, wave) + config.colour * _colour_loss(model, target, wave)


def _copy_loss(
    model: LiteModel, target: Target, copy: Copy, style: Tensor, weights: Mapping[str, Tensor], config: FitConfig,
    rng: np.random.Generator, step: int,
) -> Tensor:
    """Rebuild a random piece of the clip: log-mel distance at two resolutions, and the speaker term."""
    size = min(config.piece_frames, copy.prosody.frames)
    start = int(rng.integers(0, copy.prosody.frames - size + 1))
    hop = model.config.frame_hop_samples
    wave = model.decode(copy.prosody.cut(start, size), style, model.noise(size, config.seed + step), weights)
    real = copy.samples[start * hop : (start + size) * hop]
    wave, real = wave[: len(real)], real[: len(wave)]
    gain = (real.square().mean() / wave.detach().square().mean().clamp(min=1e-9)).sqrt()
    distance = torch.zeros((), device=wave.device)
    for mel in (MEL, FINE_MEL):
        apart = (log_mel((wave * gain)[None], mel) - log_mel(real[None], mel))[0].abs()
        distance = distance + (apart * target.bands).sum() / (target.bands.sum() * len(apart))
    return config.reconstruction * distance + 0.5 * _speaker_loss(model, target, wave)


KEEP_WORDS = 0.80
"""Least agreement of a fitted sentence with the unfitted one (see `_agreement`)."""


def judge(
    model: LiteModel, target: Target, style: Tensor, fitted: Tensor, weights: Mapping[str, Tensor], sentence: Prosody
) -> Fit:
    """The whole fit, half of it, a quarter, or none: the most that keeps the words and brings the speaker nearer."""
    noise = model.noise(sentence.frames, 1)
    with torch.no_grad():
        plain = model.decode(sentence, style, noise)
        base = float(1.0 - _speaker_loss(model, target, plain))
        scores: dict[str, float] = {"speaker_off": base}
        for scale in (1.0, 0.5, 0.25):
            released = trainable(model)
            changed = {name: torch.lerp(released[name], weights[name], scale) for name in weights}
            moved = torch.lerp(style, fitted, scale)
            wave = model.decode(sentence, moved, noise, changed)
            near, same = float(1.0 - _speaker_loss(model, target, wave)), _agreement(plain, wave)
            scores[f"speaker_{scale:g}"], scores[f"words_{scale:g}"] = near, same
            if np.isfinite(near) and near > base and same >= KEEP_WORDS:
                return Fit(changed, moved, scores, scale)
    return Fit({}, style, scores, 0.0)


def _agreement(plain: Tensor, fitted: Tensor) -> float:
    """How far two renderings with the same timing say the same, 0..1: mean correlation over bands of their log-mel
    movement in time, each band's mean and deviation taken out, so that a change of timbre counts for nothing.
    """
    a, b = (log_mel(w[None], MEL)[0] for w in (plain, fitted))
    a, b = ((m - m.mean(0)) / m.std(0).clamp(min=1e-3) for m in (a, b))
    return float((a * b).mean())
