"""From a clip to a LiteVoice: measure the speaker, choose the nearest stock voice, fit the decoder to the clip."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from cosyvoice_app.engines.lite.adapt import FAST, FULL, Copy, Fit, FitConfig, Target, fit, make_target, to_rate
from cosyvoice_app.engines.lite.align import align
from cosyvoice_app.engines.lite.model import LiteModel, Prosody
from cosyvoice_app.engines.lite.prosody import Shape
from cosyvoice_app.engines.lite.speak import LONGEST_SYMBOLS, encode_batch, shape_row, split_symbols
from cosyvoice_app.engines.lite.speaker import SpeakerStats, measure
from cosyvoice_app.engines.lite.styles import StockVoice
from cosyvoice_app.engines.lite.voice import LiteVoice, Measures, VoiceStore
from cosyvoice_app.errors import TextError
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.types import CancelToken, OnProgress, Progress, PromptClip, Refine, Voice

RECIPE = 2
"""Raised whenever the same clip would give another voice, so that cached ones are made again."""

SENTENCES = (
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "昨天早上我们在花园的椅子下面发现了一只黄色的小鸟。",
    "Many people think that music should be played with feeling, not only with skill.",
    "He asked whether anyone could join us for tea at five o'clock on Thursday.",
    "请把窗户关好，外面的风越来越大了。",
    "You should choose a good book and give it to your younger brother.",
)
"""What a fit makes the voice say. Nobody hears it; it covers the sounds of both languages."""
KEPT_APART = "Every child had two fresh oranges. 商店今天不开门。"

WHISPERED = "No voiced speech was found in the clip (a whisper?); the result speaks at the pitch of the base voice {}."

SPEED_LIMITS = (0.82, 1.2)
RANGE_LIMITS = (0.7, 1.4)


class LiteSpeakerEncoder:
    """Voices are cached on disk by the clip's content, its words, the model and the setting; never by a name."""

    def __init__(self, model: LiteModel, store: VoiceStore) -> None:
        self._model = model
        self._store = store

    def voice_key(self, clip: PromptClip, *, transcript: str, refine: Refine) -> str:
        model = self._model
        made_by = (model.model_hash, model.device.type, str(model.dtype), refine, str(RECIPE))
        parts = (clip.sha256, transcript.strip(), *made_by)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def encode(
        self, clip: PromptClip, *, transcript: str, refine: Refine, progress: OnProgress, cancel: CancelToken
    ) -> Voice:
        """Raises Cancelled between steps of a fit. A fit that fails its own judgement leaves the unfitted voice, and
        says so.

        At a `cancel.check` others may use the model: nothing of this voice is in it then. What a fit moves are its own
        tensors, which are in the model only inside a step's `functional_call`; PyTorch's modes belong to a thread.
        """
        key = self.voice_key(clip, transcript=transcript, refine=refine)
        voice = self._store.load(key) if refine != "off" else None
        if voice is None:
            progress(Progress("measuring", 0.0))
            voice = self._make(clip, transcript, refine, progress, cancel)
            if refine != "off":
                self._store.save(key, voice)
        return Voice(key, voice, voice.measures.notes, voice.measures.warnings, voice.size_bytes)

    def _make(
        self, clip: PromptClip, transcript: str, refine: Refine, progress: OnProgress, cancel: CancelToken
    ) -> LiteVoice:
        model = self._model
        stats = measure(clip.samples, clip.rate_hz)
        cancel.check()
        samples = torch.from_numpy(np.array(clip.samples)).to(model.device)  # a shared clip is read-only
        target = make_target(model, samples, clip.rate_hz)
        cancel.check()
        stock, _ = model.styles.nearest(target.speaker, stats.f0_median_hz)[0]
        measures = _measures(stock, stats)
        voice = LiteVoice(model.styles.style(stock.name).to(model.device), measures)
        if refine == "off":
            return voice
        copy, said = self._copy(samples, clip.rate_hz, transcript, voice)
        voice = replace(voice, measures=said)
        cancel.check()
        made = self._fit(voice, target, FULL if refine == "full" else FAST, copy, progress, cancel)
        return _with_fit(voice, made, refine)

    def _fit(
        self,
        voice: LiteVoice,
        target: Target,
        config: FitConfig,
        copy: Copy | None,
        progress: OnProgress,
        cancel: CancelToken,
    ) -> Fit:
        with torch.no_grad():
            spoken = self._rehearse(voice)
        half = self._model.config.style
        return fit(
            self._model,
            target,
            voice.style[:half],
            spoken[:-1],
            spoken[-1],
            config,
            copy=copy,
            progress=progress,
            cancel=cancel,
        )

    def _copy(self, samples: Tensor, rate_hz: int, transcript: str, voice: LiteVoice) -> tuple[Copy | None, Measures]:
        """The clip aligned to its words, when they were given and fit it; and the measures with what to say of it."""
        measures = voice.measures
        if not transcript.strip():
            return None, measures
        model = self._model
        try:
            segments = prepare(transcript, max_chars=None).segments
            symbols = " ".join(model.g2p(segment).symbols for segment in segments)
        except TextError as error:
            return None, _warned(measures, f"The clip's words can't be read ({error.message}) and were not used.")
        if len(symbols) > LONGEST_SYMBOLS:
            return None, _warned(
                measures,
                f"The clip's words are too long to align ({len(symbols)} sounds; at most "
                f"{LONGEST_SYMBOLS}) and were not used.",
            )
        at24 = to_rate(samples, rate_hz, model.config.rate_hz)
        found = align(
            at24, symbols, net=model.acoustic, decoder=model.decoder, style=voice.style[None], vocab=model.vocabulary
        )
        if not found.good:
            return None, _warned(
                measures,
                "The given words do not match what is heard in the clip "
                f"(match {found.score:.2f}), so they were not used. Correct them for a closer voice.",
            )
        note = f"The clip's words were found in it (match {found.score:.2f}) and used."
        size = len(found.text) * model.config.frame_hop_samples
        copy = Copy(Prosody(found.text, found.f0, found.energy), (at24 * found.gain)[:size])
        return copy, replace(measures, notes=(*measures.notes, note))

    def _rehearse(self, voice: LiteVoice) -> list[Prosody]:
        """The fit's sentences with this voice's prosody, the one that only judges last."""
        model, measures = self._model, voice.measures
        style = voice.style[model.config.style :]
        encoded = encode_batch(model, self._symbols, style.expand(len(self._symbols), -1))
        shape = Shape(measures.speed, measures.f0_median_hz, measures.f0_range)
        return [shape_row(model, encoded, i, style, shape) for i in range(len(self._symbols))]

    @cached_property
    def _symbols(self) -> list[str]:
        symbols = []
        for sentence in (*SENTENCES, KEPT_APART):
            segments = prepare(sentence, max_chars=None).segments
            symbols.append(split_symbols(" ".join(self._model.g2p(segment).symbols for segment in segments))[0])
        return symbols


def _measures(stock: StockVoice, stats: SpeakerStats) -> Measures:
    """Where the clip's voice lies beside the stock voice. A whisper has no F0: then the stock voice's own is kept."""
    span = stats.f0_range_semitones / stock.f0_range_semitones if stats.f0_range_semitones > 0 else 1.0
    rate = stats.syllables_per_s / stock.syllables_per_s if stats.syllables_per_s > 0 else 1.0
    return Measures(
        base=stock.name,
        f0_median_hz=round(stats.f0_median_hz, 2),
        f0_range=round(float(np.clip(span, *RANGE_LIMITS)), 3),
        speed=round(float(np.clip(rate, *SPEED_LIMITS)), 3),
        refined="off",
        notes=(f"Base voice {stock.name}, pitch {stats.f0_median_hz:.0f} Hz.",) if stats.f0_median_hz > 0 else (),
        warnings=() if stats.f0_median_hz > 0 else (WHISPERED.format(stock.name),),
    )


def _warned(measures: Measures, warning: str) -> Measures:
    return replace(measures, warnings=(*measures.warnings, warning))


def _with_fit(voice: LiteVoice, made: Fit, refine: Refine) -> LiteVoice:
    scores = {name: round(value, 4) for name, value in made.scores.items()}
    if made.fitted is None:
        warning = (
            "The voice could not be fitted to this clip without hurting the words; the nearest stock voice is used."
        )
        return replace(voice, measures=replace(_warned(voice.measures, warning), scores=scores))
    near = made.scores[f"speaker_{made.scale:g}"]
    kept = "" if made.scale == 1.0 else f", {made.scale:.0%} of the fit kept so that the words stay clear"
    note = (
        f"Fitted to the clip ({refine}{kept}): speaker similarity {made.scores['speaker_off']:.2f} before, "
        f"{near:.2f} after."
    )
    measures = replace(voice.measures, refined=refine, notes=(*voice.measures.notes, note), scores=scores)
    return LiteVoice(voice.style, measures, made.fitted)
