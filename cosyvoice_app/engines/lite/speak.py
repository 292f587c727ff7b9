"""Segments to features to audio, and instruct intents to a style: the lite engine's acoustic model, vocoder and
style encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cosyvoice_app.engines.lite.acoustic import Encoded
from cosyvoice_app.engines.lite.model import LiteModel, Prosody, expand_row
from cosyvoice_app.engines.lite.prosody import Shape, plan_frames, shape_f0
from cosyvoice_app.engines.lite.voice import LiteVoice
from cosyvoice_app.engines.speed import hold_speed
from cosyvoice_app.types import Audio, CancelToken, Intent, Row, Style

SPEECH_RMS = 0.08
"""Level of speaking time that every segment is brought to (-22 dBFS), so that segments and voices are equally loud."""
PEAK = 0.97
LONGEST_SYMBOLS = 400
"""A pass longer than this is cut at a mark or a space; the text encoder takes 510 at most."""
FASTEST = 2.2


@dataclass(frozen=True, slots=True)
class LiteStyle:
    """An intent in numbers: factors on speed and melody, shifts in semitones and decibels."""

    speed: float
    pitch_semitones: float
    pitch_range: float
    loudness_db: float


@dataclass(frozen=True, slots=True)
class Features:
    """A segment before the decoder: one Prosody a pass, and the noise seed of each."""

    passes: tuple[Prosody, ...]
    seeds: tuple[int, ...]


class LiteStyleEncoder:
    """Prosody does what prosody can; the rest is said."""

    def encode(self, intent: Intent, *, speed: float) -> Style:
        warnings = []
        if intent.dialect:
            warnings.append(
                f"This engine speaks no dialect: “{intent.dialect}” was left out; the text is read in "
                "standard Mandarin or American English."
            )
        if intent.role:
            warnings.append(f"This engine plays no roles: “{intent.role}” was left out.")
        others = [u for u in intent.unmet if u not in (intent.dialect, intent.role)]
        if others:
            warnings.append(
                "This part of the instruction was not understood and has no effect: "
                + ", ".join(f"“{u}”" for u in others)
                + "."
            )
        allowed, held = hold_speed(speed * intent.speed, fastest=FASTEST)
        return Style(
            LiteStyle(allowed, intent.pitch_semitones, intent.pitch_range, intent.loudness_db), (*warnings, *held)
        )


class LiteAcousticModel:
    def __init__(self, model: LiteModel) -> None:
        self._model = model

    @torch.inference_mode()
    def predict(self, rows: Sequence[Row], *, cancel: CancelToken) -> list[Features]:
        """Passes of all rows are encoded together; each is shaped by its own voice, style and seed."""
        spoken = [split_symbols(self._model.g2p(row.segment).symbols) for row in rows]
        cancel.check()
        owners = [(row, place) for row, parts in zip(rows, spoken, strict=True) for place in range(len(parts))]
        symbols = [part for parts in spoken for part in parts]
        styles = torch.stack([voice_of(row).style[self._model.config.style :] for row, _ in owners])
        encoded = encode_batch(self._model, symbols, styles)
        shaped = []
        for i, (row, place) in enumerate(owners):
            cancel.check()
            rng = np.random.default_rng([row.seed, place])
            shaped.append((shape_row(self._model, encoded, i, styles[i], shape_of(row), rng), int(rng.integers(2**31))))
        results, at = [], 0
        for parts in spoken:
            own = shaped[at : at + len(parts)]
            results.append(Features(tuple(p for p, _ in own), tuple(s for _, s in own)))
            at += len(parts)
        return results


class LiteVocoder:
    def __init__(self, model: LiteModel) -> None:
        self._model = model

    @torch.inference_mode()
    def decode(self, features: Sequence[Features], rows: Sequence[Row], *, cancel: CancelToken) -> list[Audio]:
        results = []
        for item, row in zip(features, rows, strict=True):
            voice = voice_of(row)
            waves = []
            for prosody, seed in zip(item.passes, item.seeds, strict=True):
                cancel.check()
                noise = self._model.noise(prosody.frames, seed)
                waves.append(self._model.decode(prosody, voice.style[: self._model.config.style], noise, voice.fitted))
            samples = torch.cat(waves).float().cpu().numpy()
            style: LiteStyle = row.style.payload
            results.append(
                Audio(_levelled(samples, self._model.config.rate_hz, style.loudness_db), self._model.config.rate_hz)
            )
        return results


def voice_of(row: Row) -> LiteVoice:
    voice: LiteVoice = row.voice.payload
    return voice


def shape_of(row: Row) -> Shape:
    style: LiteStyle = row.style.payload
    measures = voice_of(row).measures
    return Shape(
        speed=float(np.clip(style.speed * measures.speed, 0.4, 2.5)),
        f0_median_hz=measures.f0_median_hz,
        f0_range=measures.f0_range * style.pitch_range,
        f0_shift_semitones=style.pitch_semitones,
    )


def encode_batch(model: LiteModel, symbols: Sequence[str], styles: torch.Tensor) -> Encoded:
    """Symbol strings and prosodic styles [B, 128] -> encoded rows, padded."""
    ids = [model.ids(s) for s in symbols]
    lengths = torch.tensor([len(i) for i in ids], device=model.device)
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return model.acoustic.encode(padded, lengths, styles.to(model.dtype))


def shape_row(
    model: LiteModel,
    encoded: Encoded,
    row: int,
    style: torch.Tensor,
    shape: Shape,
    rng: np.random.Generator | None = None,
) -> Prosody:
    """Row `row` of `encoded` with its own rate, melody and rhythm; `style` is its prosodic half [128]."""
    size = int(encoded.lengths[row])
    frames = plan_frames(encoded.frames[row, :size].float(), shape.speed, rng)
    plain = expand_row(model, encoded.text[row, :size], encoded.prosody[row, :size], frames, style)
    return Prosody(plain.text, shape_f0(plain.f0, shape, model.config.prosody_rate_hz, rng), plain.energy)


def split_symbols(symbols: str, longest: int = LONGEST_SYMBOLS) -> list[str]:
    """Pieces of at most `longest`, cut after the last mark that fits, else after the last space. Nothing is lost."""
    pieces = []
    while len(symbols) > longest:
        head = symbols[:longest]
        cut = max(head.rfind(mark) for mark in ".!?;:,…—") + 1 or head.rfind(" ") + 1 or longest
        pieces.append(symbols[:cut].strip())
        symbols = symbols[cut:].strip()
    return [p for p in [*pieces, symbols] if p]


def _levelled(samples: np.ndarray, rate_hz: int, loudness_db: float) -> np.ndarray:
    """Speaking time at SPEECH_RMS plus `loudness_db`; scaled down whole when a peak would pass full scale."""
    size = rate_hz // 50
    power = (
        np.square(samples[: len(samples) // size * size].reshape(-1, size)).mean(1)
        if len(samples) >= size
        else np.zeros(0)
    )
    if not len(power) or not np.isfinite(power).all() or power.max() <= 0.0:
        return samples
    level = float(np.sqrt(power[power > 0.01 * power.max()].mean()))
    gain = SPEECH_RMS * 10.0 ** (loudness_db / 20.0) / level
    peak = float(np.abs(samples).max()) * gain
    return (samples * (gain if peak <= PEAK else gain * PEAK / peak)).astype(np.float32)
