"""Segments to features to audio, and instruct intents to a style: the lite engine's acoustic model, vocoder and
style encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from cosyvoice_app.engines.lite.acoustic import Encoded
from cosyvoice_app.engines.lite.lanes import Lanes, Work
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
NARROW = 16
"""Symbols or frames of a pass below which its products have so few rows that they need one thread (`lanes.Work`)."""


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
    def __init__(self, model: LiteModel, lanes: Lanes) -> None:
        self._model = model
        self._lanes = lanes

    @torch.inference_mode()
    def predict(self, rows: Sequence[Row], *, cancel: CancelToken) -> list[Features]:
        """Every pass is encoded by itself, and shaped by its row's voice, style and seed: no bit depends on others."""
        works = []
        for row in rows:
            cancel.check()
            works.append(self.works(row))
        shaped = iter(self._lanes.run([work for own in works for work in own], cancel))
        results = []
        for own in works:
            passes = [next(shaped) for _ in own]
            results.append(Features(tuple(prosody for prosody, _ in passes), tuple(seed for _, seed in passes)))
        return results

    def works(self, row: Row) -> list[Work[tuple[Prosody, int]]]:
        """One for each pass of a row: its prosody and the seed of its noise."""
        return [
            Work(len(part), partial(self._shaped, row, place, part), len(part) < NARROW)
            for place, part in enumerate(split_symbols(self._model.g2p(row.segment).symbols))
        ]

    def _shaped(self, row: Row, place: int, symbols: str) -> tuple[Prosody, int]:
        style = voice_of(row).style[self._model.config.style :]
        rng = np.random.default_rng([row.seed, place])
        encoded = encode_batch(self._model, [symbols], style[None])
        return shape_row(self._model, encoded, 0, style, shape_of(row), rng), int(rng.integers(2**31))


class LiteVocoder:
    def __init__(self, model: LiteModel, lanes: Lanes) -> None:
        self._model = model
        self._lanes = lanes

    @torch.inference_mode()
    def decode(self, features: Sequence[Features], rows: Sequence[Row], *, cancel: CancelToken) -> list[Audio]:
        works = [self.works(item, row) for item, row in zip(features, rows, strict=True)]
        waves = iter(self._lanes.run([work for own in works for work in own], cancel))
        results = []
        for own, row in zip(works, rows, strict=True):
            samples = torch.cat([next(waves) for _ in own]).float().cpu().numpy()
            style: LiteStyle = row.style.payload
            rate_hz = self._model.config.rate_hz
            results.append(Audio(levelled(samples, rate_hz, style.loudness_db), rate_hz))
        return results

    def works(self, features: Features, row: Row) -> list[Work[torch.Tensor]]:
        """One for each pass of a row: its samples."""
        return [
            Work(prosody.frames, partial(self._wave, prosody, seed, voice_of(row)), prosody.frames < NARROW)
            for prosody, seed in zip(features.passes, features.seeds, strict=True)
        ]

    def _wave(self, prosody: Prosody, seed: int, voice: LiteVoice) -> torch.Tensor:
        noise = self._model.noise(prosody.frames, seed)
        return self._model.decode(prosody, voice.style[: self._model.config.style], noise, voice.fitted)


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


def levelled(samples: np.ndarray, rate_hz: int, loudness_db: float) -> np.ndarray:
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
