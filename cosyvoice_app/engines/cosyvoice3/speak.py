"""The parts that speak: style, language model, flow and vocoder. `streamer.py` does the same in pieces.

    text + voice + instruction ──► form ──► language model ──► speech tokens, 25 a second
    speech tokens + voice ──► flow ──► mel ──► tempo ──► vocoder ──► audio

What lies between the acoustic model and the vocoder are speech tokens: the flow belongs with the vocoder, as it does
upstream, so that the language model can already run on the next segment while both work on this one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from cosyvoice_app.engines.cosyvoice3 import forms
from cosyvoice_app.engines.cosyvoice3.config import RATE_HZ
from cosyvoice_app.engines.cosyvoice3.decoding import LmBatch, LmPrompt
from cosyvoice_app.engines.cosyvoice3.instructions import instruction
from cosyvoice_app.engines.cosyvoice3.lm_check import rows_agree
from cosyvoice_app.engines.cosyvoice3.lm_server import LmServer
from cosyvoice_app.engines.cosyvoice3.model import Model
from cosyvoice_app.engines.cosyvoice3.silence import SilenceFilter
from cosyvoice_app.engines.cosyvoice3.tempo import apply
from cosyvoice_app.engines.cosyvoice3.turns import Turns
from cosyvoice_app.engines.cosyvoice3.voice import ClonedVoice
from cosyvoice_app.engines.host_copies import host_copies
from cosyvoice_app.engines.speed import hold_speed
from cosyvoice_app.errors import BadAudio
from cosyvoice_app.types import Audio, CancelToken, Intent, Row, Style

log = logging.getLogger(__name__)

Tokens = tuple[int, ...]

MAX_POSITIONS = 8191
"""Of a row of the language model: a 30 s clip (750), its words, and 20 speech tokens for each of 300 text tokens. The
cache grows as far as it is used; a segment of 80 tokens needs a third of this."""
SHORTEST_TOKENS = 2
"""80 ms: less holds no word."""


@dataclass(frozen=True, slots=True)
class CosyVoice3Style:
    """`instruction` is the sentence before the text, or blank; `speed` the factor for the mel."""

    instruction: str
    speed: float


class CosyVoice3StyleEncoder:
    def encode(self, intent: Intent, *, speed: float) -> Style:
        asked = instruction(intent)
        allowed, held = hold_speed(speed * asked.speed)
        return Style(CosyVoice3Style(asked.sentence, allowed), (*asked.warnings, *held),
                     displaces_words=bool(asked.sentence))


class CosyVoice3AcousticModel:
    """The language model: rows to speech tokens, for any number of threads at once. Up to `slots` rows run together;
    the others wait in line."""

    def __init__(self, model: Model, turns: Turns, *, slots: int) -> None:
        self._model = model
        self._turns = turns
        self._slots = slots
        on_gpu = model.device.type == "cuda"
        self._stream = torch.cuda.Stream(model.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._lm = self._server()

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def busy(self) -> bool:
        """Whether any row runs or waits."""
        return self._lm.busy

    def warm_up(self) -> None:
        """Capture what is replayed later, so that no request waits for it. Before any request: where a row of a step is
        not what it is alone on this machine, rows run one at a time from here on."""
        on_gpu = self._stream is not None
        if self._slots > 1 and not self._on_device(lambda: rows_agree(self._model.lm, self._slots, one_shape=on_gpu)):
            log.warning("On this %s the language model's rows differ in their last bits by what runs beside them. They "
                        "run one at a time, so that a seed always gives the same audio.", self._model.device.type)
            self._slots = 1
            self._lm = self._server()
        self._on_device(self._batch.warm_up)

    def predict(self, rows: Sequence[Row], *, cancel: CancelToken) -> list[Tokens]:
        """Speech tokens of each row, long silences cut. Raises BadAudio for a row that says nothing."""
        made = self._lm.all_tokens([self.prompt(row) for row in rows], cancel=cancel)
        heard = []
        for row, tokens in zip(rows, made, strict=True):
            keeps = SilenceFilter().keeps
            heard.append(tuple(token for token in tokens if keeps(token)))
            if len(heard[-1]) < SHORTEST_TOKENS:
                raise silent(row)
        return heard

    def tokens(self, prompt: LmPrompt, *, cancel: CancelToken, ahead: int | None = None) -> Generator[int, None, None]:
        """The same of one row's `prompt`, one by one, made at most `ahead` before they are taken (None = no limit)."""
        keeps = SilenceFilter().keeps
        with closing(self._lm.tokens(prompt, cancel=cancel, ahead=ahead)) as made:
            for token in made:
                if keeps(token):
                    yield token

    def prompt(self, row: Row) -> LmPrompt:
        voice: ClonedVoice = row.voice.payload
        style: CosyVoice3Style = row.style.payload
        form = forms.build(self._model.tokenizer, row.segment.pieces, transcript=voice.transcript,
                           instruction=style.instruction)
        fewest, most = form.token_limits(self._model.config.sampling)
        speech = tuple(voice.features.tokens.tolist()) if form.uses_speech else ()
        return LmPrompt(text=form.ids, speech=speech, seed=row.seed, min_tokens=fewest, max_tokens=most)

    def close(self) -> None:
        self._lm.close()

    def _server(self) -> LmServer:
        self._batch = LmBatch(self._model.lm, slots=self._slots, max_positions=MAX_POSITIONS,
                              sampling=self._model.config.sampling)
        if self._stream is not None:  # what was made until now was made on the other one
            self._stream.wait_stream(torch.cuda.current_stream(self._model.device))
        return LmServer(self._batch, self._on_device)

    def _on_device(self, work: Callable[[], Any], *, brief: bool = False) -> Any:
        """Run `work` on this part's own stream or, on a CPU, when it is this part's turn. Not around a whole generator:
        modes would leak to whoever takes its items."""
        with torch.inference_mode():
            if self._stream is not None:
                with torch.cuda.stream(self._stream):
                    return work()
            with nullcontext() if brief else self._turns.turn():
                return work()


class CosyVoice3Vocoder:
    """Flow and vocoder: speech tokens to audio. For any threads; they take turns."""

    def __init__(self, model: Model, turns: Turns, *, steps: int) -> None:
        self._model = model
        self._turns = turns
        self._steps = steps

    def decode(self, features: Sequence[Tokens], rows: Sequence[Row], *, cancel: CancelToken) -> list[Audio]:
        """Audio at 24 kHz of each row's speech tokens, raw. Row by row: the same to the bit in any company. Raises
        Cancelled within a step of the flow's solver."""
        return [self._decode(tokens, row, cancel) for tokens, row in zip(features, rows, strict=True)]

    def _decode(self, said: Tokens, row: Row, cancel: CancelToken) -> Audio:
        cancel.check()
        prompt, device = row.voice.payload.features, self._model.device
        with torch.inference_mode(), self._turns.turn(cancel) as between:
            tokens = torch.cat((prompt.tokens, host_copies(device).to_device(torch.tensor(said))))
            mel = self._model.flow(
                tokens[None], torch.tensor([len(tokens)], device=device), prompt.mel[None],
                torch.tensor([len(prompt.mel)], device=device), prompt.speaker[None], steps=self._steps,
                between=between,
            )[:, len(prompt.mel) :]
            between()
            mel = apply(mel[0], row.style.payload.speed)
            wave = self._model.vocoder(mel[None], torch.tensor([len(mel)], device=device), between=between)
            return Audio(host_copies(device).to_host(wave[0]), RATE_HZ)


def silent(row: Row) -> BadAudio:
    return BadAudio(f'The model said nothing for "{row.segment.text}". Nothing was saved. Try another seed, or type '
                    "the clip's words.")
