"""The parts that speak: style, language model, flow and vocoder, whole or streamed.

    text + voice + instruction ──► form ──► language model ──► speech tokens, 25 a second
    speech tokens + voice ──► flow ──► mel ──► tempo ──► vocoder ──► audio

What lies between the acoustic model and the vocoder are speech tokens: the flow belongs with the vocoder, as it does
upstream, so that the language model can already run on the next segment while both work on this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cosyvoice_app.engines.ahead import run_ahead
from cosyvoice_app.engines.cosyvoice3 import forms
from cosyvoice_app.engines.cosyvoice3.config import FRAMES_PER_TOKEN, HOP_SAMPLES, RATE_HZ
from cosyvoice_app.engines.cosyvoice3.decoding import LmBatch, LmPrompt
from cosyvoice_app.engines.cosyvoice3.flow_stream import FlowPrefix, FlowStream, bytes_per_frame, flow_prefix
from cosyvoice_app.engines.cosyvoice3.hops import Hops
from cosyvoice_app.engines.cosyvoice3.instructions import instruction
from cosyvoice_app.engines.cosyvoice3.model import Model
from cosyvoice_app.engines.cosyvoice3.prompt import PromptFeatures
from cosyvoice_app.engines.cosyvoice3.silence import SilenceFilter
from cosyvoice_app.engines.cosyvoice3.tempo import Tempo, apply
from cosyvoice_app.engines.cosyvoice3.vocoder_stream import VocoderStream
from cosyvoice_app.engines.cosyvoice3.voice import ClonedVoice
from cosyvoice_app.engines.speed import hold_speed
from cosyvoice_app.errors import BadAudio
from cosyvoice_app.types import Audio, CancelToken, Intent, Row, Style

T = TypeVar("T")
Tokens = tuple[int, ...]

MAX_POSITIONS = 8191
"""Of a row of the language model: a 30 s clip (750), its words, and 20 speech tokens for each of 300 text tokens. The
cache grows as far as it is used; a segment of 80 tokens needs a third of this."""
_SHORTEST_TOKENS = 2
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
    """The language model: rows to speech tokens. One caller at a time; others wait."""

    def __init__(self, model: Model, *, slots: int) -> None:
        self._model = model
        self._batch = LmBatch(model.lm, slots=slots, max_positions=MAX_POSITIONS, sampling=model.config.sampling)
        self._slots = slots
        self._busy = threading.Lock()
        on_gpu = model.device.type == "cuda"
        self._stream = torch.cuda.Stream(model.device) if on_gpu else None  # type: ignore[no-untyped-call]
        if self._stream is not None:  # what was made until now was made on the other one
            self._stream.wait_stream(torch.cuda.current_stream(model.device))

    def warm_up(self) -> None:
        """Capture what is replayed later, so that no request waits for it."""
        self._on_device(self._batch.warm_up)

    def predict(self, rows: Sequence[Row], *, cancel: CancelToken) -> list[Tokens]:
        """Speech tokens of each row, long silences cut. Raises BadAudio for a row that says nothing."""
        made: list[Tokens] = []
        for start in range(0, len(rows), self._slots):
            made += self._predict(rows[start : start + self._slots], cancel)
        return made

    def tokens(self, row: Row, *, cancel: CancelToken) -> Generator[int, None, None]:
        """The same of one row, one by one."""
        with closing(self._run([row], cancel)) as made:
            for _, token in made:
                yield token

    def _predict(self, rows: Sequence[Row], cancel: CancelToken) -> list[Tokens]:
        made: list[list[int]] = [[] for _ in rows]
        for index, token in self._run(rows, cancel):
            made[index].append(token)
        for row, tokens in zip(rows, made, strict=True):
            if len(tokens) < _SHORTEST_TOKENS:
                raise _silent(row)
        return [tuple(tokens) for tokens in made]

    def _run(self, rows: Sequence[Row], cancel: CancelToken) -> Generator[tuple[int, int], None, None]:
        """(index of the row, token) as they come. Gives the slots back whatever happens."""
        prompts = [self._prompt(row) for row in rows]
        batch = self._batch
        with self._alone(cancel):
            active = dict(zip(self._on_device(lambda: batch.add_many(prompts)), range(len(rows)), strict=True))
            filters = [SilenceFilter() for _ in rows]
            try:
                while active:
                    cancel.check()
                    for slot, token in self._on_device(batch.step).items():
                        if token is None:
                            del active[slot]
                            self._release(slot)
                        elif filters[active[slot]].keeps(token):
                            yield active[slot], token
            finally:
                for slot in active:
                    self._release(slot)

    def _prompt(self, row: Row) -> LmPrompt:
        voice: ClonedVoice = row.voice.payload
        style: CosyVoice3Style = row.style.payload
        form = forms.build(self._model.tokenizer, row.segment.pieces, transcript=voice.transcript,
                           instruction=style.instruction)
        fewest, most = form.token_limits(self._model.config.sampling)
        speech = tuple(voice.features.tokens.tolist()) if form.uses_speech else ()
        return LmPrompt(text=form.ids, speech=speech, seed=row.seed, min_tokens=fewest, max_tokens=most)

    def _release(self, slot: int) -> None:
        self._on_device(lambda: self._batch.release(slot))

    @contextmanager
    def _alone(self, cancel: CancelToken) -> Iterator[None]:
        while not self._busy.acquire(timeout=0.1):
            cancel.check()
        try:
            yield
        finally:
            self._busy.release()

    def _on_device(self, work: Callable[[], T]) -> T:
        """Run `work` on this part's own stream. Not around a whole generator: modes would leak to whoever takes its
        items."""
        with torch.inference_mode(), torch.cuda.stream(self._stream) if self._stream else nullcontext():
            return work()


class CosyVoice3Vocoder:
    """Flow and vocoder: speech tokens to audio."""

    def __init__(self, model: Model, *, steps: int) -> None:
        self._model = model
        self._steps = steps

    def decode(self, features: Sequence[Tokens], rows: Sequence[Row], *, cancel: CancelToken) -> list[Audio]:
        """Audio at 24 kHz of each row's speech tokens, raw."""
        cancel.check()
        with torch.inference_mode():
            mels = self._mels(features, [row.voice.payload for row in rows])
            cancel.check()
            speeds = [row.style.payload.speed for row in rows]
            mels = [apply(mel, speed) for mel, speed in zip(mels, speeds, strict=True)]
            frames = torch.tensor([len(mel) for mel in mels], device=self._model.device)
            waves = self._model.vocoder(pad_sequence(mels, batch_first=True), frames).cpu().numpy()
        return [Audio(wave[: len(mel) * HOP_SAMPLES].copy(), RATE_HZ) for wave, mel in zip(waves, mels, strict=True)]

    def _mels(self, features: Sequence[Tokens], voices: Sequence[ClonedVoice]) -> list[Tensor]:
        device = self._model.device
        prompts = [voice.features for voice in voices]
        tokens = [torch.cat((prompt.tokens, torch.tensor(said, device=device)))
                  for prompt, said in zip(prompts, features, strict=True)]
        lengths = torch.tensor([len(row) for row in tokens], device=device)
        prompt_frames = torch.tensor([len(prompt.mel) for prompt in prompts], device=device)
        mel = self._model.flow(
            pad_sequence(tokens, batch_first=True), lengths,
            pad_sequence([prompt.mel for prompt in prompts], batch_first=True), prompt_frames,
            torch.stack([prompt.speaker for prompt in prompts]), steps=self._steps,
        )
        return [mel[i, len(prompt.mel) : FRAMES_PER_TOKEN * len(row)]
                for i, (prompt, row) in enumerate(zip(prompts, tokens, strict=True))]


class CosyVoice3Streamer:
    """A segment in pieces: the language model runs ahead of the flow where the device gives both room."""

    def __init__(self, model: Model, acoustic: CosyVoice3AcousticModel, *, steps: int, overlaps: bool,
                 cache_bytes: int, prefix_bytes: int) -> None:
        """`overlaps` runs the language model in a thread of its own. `cache_bytes` bounds what the flow keeps of a
        running stream; beyond, it computes again. What it makes of the latest voice's prompt is kept for the next
        segment in that voice, if it fits in `prefix_bytes`."""
        self._model = model
        self._acoustic = acoustic
        self._steps = steps
        self._overlaps = overlaps
        self._cache_bytes = cache_bytes
        self._prefix_bytes = prefix_bytes
        self._latest: tuple[PromptFeatures, FlowPrefix] | None = None

    def stream(self, row: Row, *, cancel: CancelToken) -> Iterator[Audio]:
        """Audio at 24 kHz, piece by piece. Its whole is what one run under the streaming mask gives, which differs
        slightly from the unstreamed result: there every frame sees the whole segment."""
        if not self._overlaps:
            # Closed here and now: a generator left to the collector would keep the model to itself until then.
            with closing(self._acoustic.tokens(row, cancel=cancel)) as tokens:
                yield from self._stream(row, tokens, cancel)
            return
        with run_ahead(lambda token: self._acoustic.tokens(row, cancel=token), cancel, depth=4096) as ahead:
            yield from self._stream(row, ahead, cancel)

    def _stream(self, row: Row, tokens: Iterator[int], cancel: CancelToken) -> Iterator[Audio]:
        audio = _Stream(self._model, row, self._steps, self._cache_bytes, self._prefix(row.voice.payload.features))
        hops = Hops(len(row.voice.payload.features.tokens), self._model.config.flow.lookahead_tokens)
        waiting: list[int] = []
        count = 0
        for token in tokens:
            waiting.append(token)
            count += 1
            if hops.due(count):
                cancel.check()
                yield audio.push(waiting, final=False)
                waiting = []
        if count < _SHORTEST_TOKENS:
            raise _silent(row)
        cancel.check()
        yield audio.push(waiting, final=True)

    @torch.inference_mode()
    def _prefix(self, features: PromptFeatures) -> FlowPrefix | None:
        flow, latest = self._model.flow, self._latest
        if latest is not None and latest[0] is features:
            return latest[1]
        self._latest = None  # frees the old one before a new one is made
        if len(features.mel) * bytes_per_frame(flow, flow.schedule(self._steps)) > self._prefix_bytes:
            return None
        prefix = flow_prefix(flow, features.tokens, features.mel, features.speaker, self._steps)
        self._latest = (features, prefix)
        return prefix


class _Stream:
    """The streamed flow, tempo and vocoder of one segment."""

    @torch.inference_mode()
    def __init__(self, model: Model, row: Row, steps: int, cache_bytes: int, prefix: FlowPrefix | None) -> None:
        features = row.voice.payload.features
        self._device = model.device
        self._flow = FlowStream(model.flow, features.tokens, features.mel, features.speaker, steps=steps,
                                cache_bytes=cache_bytes, prefix=prefix)
        self._tempo = Tempo(row.style.payload.speed)
        self._vocoder = VocoderStream(model.vocoder)

    @torch.inference_mode()
    def push(self, tokens: list[int], *, final: bool) -> Audio:
        mel = self._flow.push(torch.tensor(tokens, dtype=torch.long, device=self._device), final=final)
        wave = self._vocoder.push(self._tempo.push(mel, final=final), final=final)
        return Audio(wave.cpu().numpy(), RATE_HZ)


def _silent(row: Row) -> BadAudio:
    return BadAudio(f'The model said nothing for "{row.segment.text}". Nothing was saved. Try another seed, or type '
                    "the clip's words.")
