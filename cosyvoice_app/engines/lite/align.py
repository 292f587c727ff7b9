"""Which frames of a clip belong to which symbol of its words: time warping against a rendering of the same words.

    symbols ──► the model speaks them ──► MFCC ─┐
    clip ─────────────────────────────► MFCC ─┴─► warping path ──► frames a symbol ──► text features, F0, energy

The result feeds the decoder in the clip's place: run on it, the decoder says what the clip says, when the clip says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cosyvoice_app.engines.lite.acoustic import AcousticNet, expand, whole_frames
from cosyvoice_app.engines.lite.shape import cepstra, f0_curve, log_energy, loud, noise_floor_db, silent
from cosyvoice_app.engines.lite.vocoder import VOICED_ABOVE_HZ, Decoder
from cosyvoice_app.engines.lite.warp import Bools, Floats, Ints, Pauses, warp
from cosyvoice_app.types import FloatArray

_PAD = 0
_NOISE_SEED = 1
_LEAD = 4
"""Frames (80 a second) by which a symbol is heard before its own begin: 50 ms, as voicing shows in rendered speech."""
_WAIT_PRICE = 0.6
"""Per frame of a pause that only one side makes, in units of the mean distance between unrelated speech frames."""

_WORST_FRAMES = 60
_WORST_SHARE = 0.3
"""Share of the score that the worst 0.75 s of the clip's speech has: words left out are a fault of one place."""

GOOD_SCORE = 0.66
"""Over 12 speakers of English and Mandarin, right transcripts scored .71 to .86; the first 70 % of the words .46 to .62
but once .68, the first half at most .57, another sentence at most .50.
"""

_SILENT_SYMBOLS = frozenset(' ;:,.!?—…"()“”')
_VOICELESS = frozenset("ptkfshxθʃʧʦʨꭧɕʂçq")
_VOICED = frozenset("AIOQWYaeiouæɑɒɔəɚɛɜɤɨɪʊʌᵊᵻyøɯmnlɹwjɻŋ")


@dataclass(frozen=True, slots=True)
class Alignment:
    """A clip as the decoder's input.

    `frames` [N] int64: whole 40 Hz frames of each symbol, the pads at both ends included; zeros allowed; their sum T is
    the clip's whole frames. `text` [T, hidden]; `f0` [2T] in Hz, 0 unvoiced; `energy` [2T] as the decoder knows it.
    The clip times `gain` has the level of the decoder's own speech. `score` 0..1 says how surely these are the clip's
    words, `good` that they most likely are; `details` holds what it was made of.
    """

    frames: Tensor
    text: Tensor
    f0: Tensor
    energy: Tensor
    gain: float
    score: float
    good: bool
    details: Mapping[str, float]


def align(
    clip_24k: FloatArray | Tensor,
    symbols: str,
    *,
    net: AcousticNet,
    decoder: Decoder,
    style: Tensor,
    vocab: Mapping[str, int],
    f0_hz: FloatArray | None = None,
) -> Alignment:
    """Align mono [n] at 24 kHz to the symbols of its transcript, which voice `style` [1, 256] speaks to compare.

    `f0_hz` is the clip's F0 as `audio.pitch.track_f0` gives it at 80 frames a second; tracked here when not given.
    Costs one rendering of the text (another, with the durations found, made them worse). Tensors come back on the
    networks' device. A wrong transcript is no error: its score is low. Under 0.1 s of audio is a ValueError.
    """
    clip = torch.as_tensor(clip_24k, dtype=torch.float32).detach().cpu()
    total = len(clip) // net.config.frame_hop_samples
    if total < 4:
        raise ValueError(f"{len(clip)} samples are too few to align; 0.1 s is the least")
    clip = clip[: total * net.config.frame_hop_samples]
    sounds = np.array([False, *(s not in _SILENT_SYMBOLS for s in symbols), False])
    voice = _Voice(net, decoder, style, torch.tensor([_PAD, *(vocab[s] for s in symbols), _PAD]))
    f0, energy = f0_curve(clip, f0_hz), log_energy(clip)
    quiet, floor_db = silent(energy), noise_floor_db(energy)
    target = cepstra(clip, ~quiet, floor_db)
    pitch_hz = float(np.median(f0[f0 > 0])) if (f0 > 0).any() else 0.0

    guess = _first_guess(voice.expected, sounds, 0.5 * float((~quiet).sum()))
    speech = voice.speak(guess, pitch_hz)
    match = _Match.find(speech, guess, sounds, target, quiet, floor_db)
    frames = torch.from_numpy(match.frames(len(sounds), total)).to(voice.device)
    gain, curve = _levelled(clip, energy, speech)
    details = match.details(symbols, f0)
    excess = (1.0 - _WORST_SHARE) * details["excess"] + _WORST_SHARE * details["worst_excess"]
    score = float(np.clip(1.0 - excess, 0.0, 1.0))
    text = expand(voice.text, frames)
    f0_there, energy_there = (torch.from_numpy(a).float().to(voice.device) for a in (f0, curve))
    return Alignment(frames, text, f0_there, energy_there, gain, score, score >= GOOD_SCORE, details)


def _first_guess(expected: Tensor, sounds: Bools, spoken_frames: float) -> Tensor:
    """The predictor's durations, sped up or slowed down so that what sounds lasts as long as in the clip."""
    predicted = float(expected[torch.from_numpy(sounds)].sum())
    return whole_frames(expected, min(2.0, max(0.5, predicted / max(1.0, spoken_frames))))


@dataclass(frozen=True, slots=True)
class _Speech:
    wave: Tensor
    energy: Floats
    """As predicted, [2T]."""


class _Voice:
    """The base voice speaking one row of symbols at given durations."""

    def __init__(self, net: AcousticNet, decoder: Decoder, style: Tensor, ids: Tensor) -> None:
        self.net, self.decoder = net, decoder
        parameter, half = next(net.parameters()), net.config.style
        self.device = parameter.device
        self.acoustic = style[:, :half].to(self.device, torch.float32)
        self.prosodic = style[:, half:].to(self.device, parameter.dtype)
        with torch.no_grad():
            lengths = torch.tensor([len(ids)], device=self.device)
            encoded = net.encode(ids[None].to(self.device), lengths, self.prosodic)
        self.text, self.prosody = encoded.text[0].float(), encoded.prosody[0]
        self.expected = encoded.frames[0].float().cpu()

    @torch.no_grad()
    def speak(self, frames: Tensor, pitch_hz: float) -> _Speech:
        """At whole `frames` [N], F0 scaled to the median `pitch_hz` (0 leaves it)."""
        frames = frames.to(self.device)
        f0, energy = self.net.curves(expand(self.prosody, frames)[None], self.prosodic)
        f0, energy = f0.float(), energy.float()
        voiced = f0 > VOICED_ABOVE_HZ
        if pitch_hz > 0 and voiced.any():
            f0 = torch.where(voiced, f0 * (pitch_hz / f0[voiced].median()), f0)
        samples = int(frames.sum()) * self.net.config.frame_hop_samples
        noise = torch.randn(1, samples, generator=torch.Generator().manual_seed(_NOISE_SEED)).to(self.device)
        wave = self.decoder(expand(self.text, frames)[None], f0, energy, self.acoustic, noise)[0]
        return _Speech(wave.float().cpu(), energy[0].double().cpu().numpy())


@dataclass(frozen=True, slots=True)
class _Match:
    """A rendering laid over the clip: `path` [K, 2] of (rendering frame, clip frame), both 80 a second."""

    path: Ints
    owner: Ints
    """Symbol of each rendering frame."""
    d: Floats
    speech: Bools
    """Rendering frames that sound."""
    clip_speech: Bools
    possible: bool

    @staticmethod
    def find(
        speech: _Speech, frames: Tensor, sounds: Bools, target: Floats, quiet: Bools, floor_db: float
    ) -> _Match:
        owner = _heard(frames.numpy())
        own_quiet = silent(log_energy(speech.wave))
        source = cepstra(speech.wave, ~own_quiet, floor_db)
        d = np.sqrt(np.maximum((source**2).sum(1)[:, None] + (target**2).sum(1)[None] - 2.0 * source @ target.T, 0.0))
        d /= max(1e-9, d[~own_quiet][:, ~quiet].mean())
        waits = ~sounds[owner]
        path = warp(d, Pauses(waits, waits & own_quiet, quiet, _WAIT_PRICE))
        possible = path is not None
        if path is None:  # the clip is less than half or more than twice as long as can be
            n, m = d.shape
            path = np.stack([np.arange(m) * (n - 1) // max(1, m - 1), np.arange(m)], axis=1)
        return _Match(path, owner, d, ~own_quiet, ~quiet, possible)

    def frames(self, symbols: int, total: int) -> Ints:
        """Whole 40 Hz frames [N] of each symbol in the clip, together `total`."""
        first = np.searchsorted(self.owner[self.path[:, 0]], np.arange(symbols), side="left")
        starts = np.append(self.path[:, 1], 2 * total)[first] + _LEAD
        starts = np.append(np.minimum((starts + 1) // 2, total), total)
        starts[0] = 0
        return np.diff(starts)

    def details(self, symbols: str, f0: FloatArray) -> dict[str, float]:
        """What the score is made of, and what helps to understand it.

        `excess` is how much further than its nearest frame the clip's speech lies from the frames it is laid upon, in
        units of how much further unrelated speech lies: 0 for a perfect match, 1 for none; `worst_excess` is that of
        the worst 0.75 s. The other measures are shares of frames.
        """
        i, j = self.path.T
        spoken = self.d[self.speech][:, self.clip_speech]
        nearest = float(spoken.min(axis=0).mean()) if spoken.size else 0.0
        excess = (self.d[i, j][self.clip_speech[j]] - nearest) / max(1e-9, 1.0 - nearest)
        if not self.possible or not len(excess):
            excess = np.ones(1)
        window = min(_WORST_FRAMES, len(excess))
        worst = np.convolve(excess, np.full(window, 1.0 / window), "valid").max()
        kinds = np.array([0, *((s in _VOICED) - (s in _VOICELESS) for s in symbols), 0])[self.owner[i]]
        voiced = f0[j] > 0
        return {
            "excess": float(excess.mean()),
            "worst_excess": float(worst),
            "speech_agrees": float(np.mean(self.speech[i] == self.clip_speech[j])),
            "voiced_in_voiced": float(voiced[kinds > 0].mean()) if (kinds > 0).any() else 1.0,
            "voiced_in_voiceless": float(voiced[kinds < 0].mean()) if (kinds < 0).any() else 0.0,
        }


def _heard(frames: Ints) -> Ints:
    """Symbol heard in each frame (80 a second) of speech whose symbols have `frames` (40 a second) each."""
    owner = np.repeat(np.arange(len(frames)), 2 * frames)
    return np.concatenate([owner[_LEAD:], np.full(min(_LEAD, len(owner)), len(frames) - 1)])


def _levelled(clip: Tensor, energy: Floats, speech: _Speech) -> tuple[float, Floats]:
    """(gain that brings the clip to the rendering's level, the clip's energy there in the predictor's scale)."""
    rendered = log_energy(speech.wave)
    top = loud(rendered)
    gain = float(np.exp(0.5 * (rendered[top].mean() - energy[loud(energy)].mean())))
    return gain, log_energy(clip * gain) + float((speech.energy - rendered)[top].mean())
