"""A segment in pieces: flow and vocoder follow the language model from hop to hop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import torch

from cosyvoice_app.engines.ahead import run_ahead
from cosyvoice_app.engines.cosyvoice3.config import FRAMES_PER_TOKEN, RATE_HZ
from cosyvoice_app.engines.cosyvoice3.decoding import LmPrompt
from cosyvoice_app.engines.cosyvoice3.flow_stream import FlowPrefix, FlowStream, bytes_per_frame, flow_prefix
from cosyvoice_app.engines.cosyvoice3.hops import Hops
from cosyvoice_app.engines.cosyvoice3.model import Model
from cosyvoice_app.engines.cosyvoice3.prompt import PromptFeatures
from cosyvoice_app.engines.cosyvoice3.speak import SHORTEST_TOKENS, CosyVoice3AcousticModel, silent
from cosyvoice_app.engines.cosyvoice3.stream_memory import StreamMemory
from cosyvoice_app.engines.cosyvoice3.tempo import Tempo
from cosyvoice_app.engines.cosyvoice3.turns import Turns
from cosyvoice_app.engines.cosyvoice3.vocoder_stream import VocoderStream
from cosyvoice_app.engines.host_copies import host_copies
from cosyvoice_app.types import Audio, CancelToken, Row

_ROOM_FRAMES = 200
"""Room for a short text whose few tokens say little about its length."""


class CosyVoice3Streamer:
    """For any threads: each stream has a flow and a vocoder state of its own; they share the memory for it."""

    def __init__(self, model: Model, acoustic: CosyVoice3AcousticModel, turns: Turns, memory: StreamMemory, *,
                 steps: int, overlaps: bool, cache_bytes: int, prefix_bytes: int) -> None:
        """`overlaps` runs the language model ahead of the flow; else it makes a token when the flow needs one.
        `cache_bytes` bounds what the flow keeps of a running stream (beyond, it computes again), `memory` what all of
        them keep. What the flow makes of the latest voice's prompt is kept for the next segment in that voice, if it
        fits in `prefix_bytes`."""
        self._model = model
        self._acoustic = acoustic
        self._turns = turns
        self._memory = memory
        self._steps = steps
        self._overlaps = overlaps
        self._cache_bytes = cache_bytes
        self._prefix_bytes = prefix_bytes
        self._latest: tuple[PromptFeatures, FlowPrefix] | None = None
        self._making_prefix = threading.Lock()

    def stream(self, row: Row, *, cancel: CancelToken) -> Iterator[Audio]:
        """Audio at 24 kHz, piece by piece. Its whole is what one run under the streaming mask gives, which differs
        slightly from the unstreamed result: there every frame sees the whole segment. Waits while other streams hold
        the memory that this one may need."""
        prompt = self._acoustic.prompt(row)
        frames = self._frames(row.voice.payload.features, prompt)
        size_bytes = min(self._cache_bytes, frames * self._bytes_per_frame())
        with self._memory.lend(size_bytes, cancel), self._tokens(prompt, cancel) as tokens:
            yield from self._stream(row, tokens, size_bytes, cancel)

    @contextmanager
    def _tokens(self, prompt: LmPrompt, cancel: CancelToken) -> Iterator[Iterator[int]]:
        if self._overlaps:
            with run_ahead(lambda token: self._acoustic.tokens(prompt, cancel=token), cancel, depth=4096) as ahead:
                yield ahead
        else:
            # Closed here and now: a generator left to the collector would keep its slot until then.
            with closing(self._acoustic.tokens(prompt, cancel=cancel, ahead=1)) as tokens:
                yield tokens

    def _stream(self, row: Row, tokens: Iterator[int], size_bytes: int, cancel: CancelToken) -> Iterator[Audio]:
        features = row.voice.payload.features
        audio = _Stream(self._model, row, self._turns, steps=self._steps, cache_bytes=size_bytes,
                        prefix=self._prefix(features, cancel))
        hops = Hops(len(features.tokens), self._model.config.flow.lookahead_tokens)
        waiting: list[int] = []
        count = 0
        for token in tokens:
            waiting.append(token)
            count += 1
            if hops.due(count):
                cancel.check()
                yield audio.push(waiting, cancel, final=False)
                waiting = []
        if count < SHORTEST_TOKENS:
            raise silent(row)
        cancel.check()
        yield audio.push(waiting, cancel, final=True)

    def _bytes_per_frame(self) -> int:
        return bytes_per_frame(self._model.flow, self._model.flow.schedule(self._steps))

    def _frames(self, features: PromptFeatures, prompt: LmPrompt) -> int:
        """How long the stream may get: the prompt, and half of the most tokens, which few texts reach."""
        return len(features.mel) + max(_ROOM_FRAMES, FRAMES_PER_TOKEN * prompt.max_tokens // 2)

    def _prefix(self, features: PromptFeatures, cancel: CancelToken) -> FlowPrefix | None:
        if len(features.mel) * self._bytes_per_frame() > self._prefix_bytes:
            return None
        while not self._making_prefix.acquire(timeout=0.05):
            cancel.check()
        try:
            if self._latest is None or self._latest[0] is not features:
                self._latest = None  # frees the old one, unless a stream still uses it, before a new one is made
                with torch.inference_mode(), self._turns.turn(cancel) as between:
                    made = flow_prefix(self._model.flow, features.tokens, features.mel, features.speaker, self._steps,
                                       between)
                self._latest = (features, made)
            return self._latest[1]
        finally:
            self._making_prefix.release()


class _Stream:
    """The streamed flow, tempo and vocoder of one segment."""

    @torch.inference_mode()
    def __init__(self, model: Model, row: Row, turns: Turns, *, steps: int, cache_bytes: int,
                 prefix: FlowPrefix | None) -> None:
        features = row.voice.payload.features
        self._device, self._turns = model.device, turns
        self._flow = FlowStream(model.flow, features.tokens, features.mel, features.speaker, steps=steps,
                                cache_bytes=cache_bytes, prefix=prefix)
        self._tempo = Tempo(row.style.payload.speed)
        self._vocoder = VocoderStream(model.vocoder)

    @torch.inference_mode()
    def push(self, tokens: list[int], cancel: CancelToken, *, final: bool) -> Audio:
        with self._turns.turn(cancel) as between:
            ids = host_copies(self._device).to_device(torch.tensor(tokens, dtype=torch.long))
            mel = self._flow.push(ids, final=final, between=between)
            wave = self._vocoder.push(self._tempo.push(mel, final=final), final=final)
            return Audio(host_copies(self._device).to_host(wave), RATE_HZ)
