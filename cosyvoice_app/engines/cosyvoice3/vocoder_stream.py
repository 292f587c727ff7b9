"""The vocoder piece by piece: what has been pushed so far is never computed again, and the pieces join exactly."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import HOP_SAMPLES
from cosyvoice_app.engines.cosyvoice3.vocoder import LIMIT, Vocoder
from cosyvoice_app.engines.cosyvoice3.vocoder_source import Phase
from cosyvoice_app.nn.causal import History

HELD_FRAMES = 8
"""Mel frames whose samples wait for more mel: the official number. The network itself looks 5 frames ahead (4, and the
overlap of the last spectra)."""


class VocoderStream:
    """One run. Joined, the pieces are what `Vocoder.forward` makes of the whole mel, to within 1e-5.

    Between pushes it keeps the last input frames of every layer, the phase of the excitation, and the spectra and
    samples that overlap the next piece: about 0.6 MB at the official size, whatever the length of the run.
    """

    def __init__(self, vocoder: Vocoder, *, noise: Tensor | None = None) -> None:
        """`noise` as in `Vocoder.forward`."""
        self._vocoder, self._noise = vocoder, noise
        self._history: History = {}
        self._f0_history: History = {}
        self._phase = Phase()
        self._frames = 0
        """Mel frames pushed so far."""
        self._done = 0
        """Mel frames that went through the network."""
        self._is_over = False
        config, spectra = vocoder.config, vocoder.spectra
        empty = spectra.analysis.new_empty
        self._mel = empty(1, 0, config.mels)  # from frame `done` on
        self._excitation = empty(1, 0)  # from the first sample that the next spectrum sees
        self._spectra = empty(1, vocoder.past_spectra - 1, config.fft + 2).zero_()  # those before the next
        self._parts = empty(1, spectra.overlap - 1, config.fft + 2).zero_()  # of the wave: those before the next
        self._wave = empty(0)  # made, not yet given out

    def push(self, mel: Tensor, *, final: bool) -> Tensor:
        """mel [T, 80] float32, the next T frames (0 too) -> the samples [n] that no later frame will change.

        Until `final`, all but the last 8 frames pushed so far are given out, 480 samples each; with `final` the rest.
        Raises ValueError after the final push, and for a mel of another shape.
        """
        if self._is_over:
            raise ValueError("the final push has been made; start a new VocoderStream for the next run")
        if mel.ndim != 2 or mel.shape[1] != self._mel.shape[2]:
            raise ValueError(f"mel is {list(mel.shape)}, expected [frames, {self._mel.shape[2]}]")
        self._is_over = final
        self._mel = torch.cat([self._mel, mel[None].to(self._mel)], 1)
        self._frames += mel.shape[0]
        stop = self._frames if final else self._frames - HELD_FRAMES + 1
        if stop > self._done:
            self._wave = torch.cat([self._wave, self._advance(stop, final)])
        held = 0 if final else min(self._frames, HELD_FRAMES) * HOP_SAMPLES
        ready = self._frames * HOP_SAMPLES - held - self._given
        out, self._wave = self._wave[:ready], self._wave[ready:].clone()
        self._given += ready
        return out

    _given = 0

    def _advance(self, stop: int, final: bool) -> Tensor:
        """Samples that become final with the frames from `done` to `stop`; `stop` is the end of the run if `final`."""
        vocoder, spectra = self._vocoder, self._vocoder.spectra
        config, is_first = vocoder.config, self._done == 0
        if final:
            self._mel = F.pad(self._mel, (0, 0, 0, config.pre_lookahead))
        self._excite(stop if final else stop + 1, is_first, final)

        frames = stop * vocoder.rate + 1 - (0 if is_first else self._done * vocoder.rate + 1)
        used = (frames - 1) * spectra.hop + spectra.size
        seen = torch.cat([self._spectra, spectra(self._excitation[:, :used])], 1)
        count = stop - self._done
        features = vocoder.decode(self._mel[:, : count + config.pre_lookahead], seen, self._history)
        parts = torch.cat([self._parts, spectra.polar(features)], 1)
        if final:
            parts = F.pad(parts, (0, 0, 0, 1))
        blocks = spectra.invert(parts)
        if is_first:
            blocks = blocks[:, vocoder.skipped_blocks :]
            blocks[:, 0] *= spectra.at_start
        if final:
            blocks[:, -1] *= spectra.at_end

        self._mel = self._mel[:, count:].clone()
        self._excitation = self._excitation[:, frames * spectra.hop :].clone()
        self._spectra = seen[:, seen.shape[1] - vocoder.past_spectra :].clone()
        self._parts = parts[:, parts.shape[1] - spectra.overlap + 1 :].clone()
        self._done = stop
        return blocks.flatten().clamp_(-LIMIT, LIMIT)

    def _excite(self, stop: int, is_first: bool, final: bool) -> None:
        """Make the excitation up to frame `stop`: one frame more than the network takes, for the spectra's overlap."""
        vocoder = self._vocoder
        start = self._phase.frame
        if stop > start:
            seen = self._mel[:, start - self._done : stop + vocoder.config.f0_lookahead - self._done]
            f0 = vocoder.f0_predictor(seen, self._f0_history)
            samples = vocoder.m_source(f0, self._phase, self._noise)
            if is_first:
                samples = vocoder.spectra.mirror_start(samples)
            self._excitation = torch.cat([self._excitation, samples], 1)
        if final:
            self._excitation = vocoder.spectra.mirror_end(self._excitation)
