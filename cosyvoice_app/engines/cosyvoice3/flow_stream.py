"""The flow for speech that is still being made: mel comes as soon as it is final, and no frame is computed twice.

Under the chunk mask nothing looks ahead of its chunk of 50 frames, so a finished chunk never changes. Later chunks
need of it, at every solver step, each block's keys and values and the last frames that the two position convolutions
read. These are kept; a push then costs its own new chunks. All pushes together give the mel of one run of
`Flow.forward(chunked=True)`, up to the rounding of sums.

Kept keys and values are large (see `bytes_per_frame`: 3.6 MB a frame at fp32, 1.8 MB in half precision). Where
`cache_bytes` is used up, the chunks kept so far stay, and all after them are computed anew at every push: the same mel,
later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import FRAMES_PER_TOKEN
from cosyvoice_app.engines.cosyvoice3.dit import Schedule
from cosyvoice_app.engines.cosyvoice3.flow import Flow
from cosyvoice_app.engines.cosyvoice3.flow_attend import chunk_sight
from cosyvoice_app.engines.cosyvoice3.turns import Between, go_on
from cosyvoice_app.errors import EngineFailure

CACHE_BYTES = {"cuda": 4 << 30, "cpu": 3 << 30}
GROWTH = 1.5

Tails = tuple[Tensor, Tensor]


def bytes_per_frame(flow: Flow, schedule: Schedule) -> int:
    """Bytes of keys and values a frame: of every step and block, for both rows of the guidance."""
    config = flow.config
    values = schedule.steps * config.blocks * (2 if flow.guided else 1) * 2 * config.heads * config.head
    return values * flow.dit.compute_dtype.itemsize


@dataclass(slots=True)
class _Kept:
    """What finished frames leave behind. `base`, if any, is shared and never written to; its frames come first."""

    limit: int
    base: _Kept | None = None
    frames: int = 0
    """Frames kept, those of `base` included: a multiple of the chunk."""
    seen: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """By (step, block): keys and values [R, capacity, 2, heads, head] of the frames after `base`'s."""
    tails: dict[int, Tails] = field(default_factory=dict)
    """By step: the last inputs [R, C, reach] of the position convolutions before `frames`."""

    def extend(self, step: int, block: int, fresh: Tensor) -> Tensor:
        """Keys and values of all frames, given those of the frames from `frames` on, of which as many as fit are kept.

        fresh [R, n, 2, heads, head] -> [R, frames + n, 2, heads, head].
        """
        offset = self.base.frames if self.base else 0
        start, end = self.frames - offset, self.frames - offset + fresh.shape[1]
        fits = min(end, self.limit - offset)
        own = self._room(step, block, fits, fresh)
        if fits > start:
            own[:, start:fits] = fresh[:, :fits - start]
        parts = [own[:, :fits]]
        if self.base is not None:
            parts.insert(0, self.base.seen[step, block][:, :offset])
        if fits < end:
            parts.append(fresh[:, fits - start:])
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _room(self, step: int, block: int, frames: int, like: Tensor) -> Tensor:
        own = self.seen.get((step, block))
        if own is None or own.shape[1] < frames:
            offset = self.base.frames if self.base else 0
            capacity = min(self.limit - offset, max(frames, int(GROWTH * own.shape[1]) if own is not None else 0))
            grown = like.new_empty(like.shape[0], capacity, *like.shape[2:])
            if own is not None:
                grown[:, :own.shape[1]] = own
            self.seen[step, block] = own = grown
        return own


class FlowPrefix:
    """The chunks of a prompt that no speech can change, computed once for a voice and shared by its streams.

    `frames` of them are kept: whole chunks whose look-ahead lies within the prompt. Made by `flow_prefix`; read-only.
    """

    def __init__(self, kept: _Kept, prompt: tuple[Tensor, Tensor, Tensor], steps: int) -> None:
        self._kept, self._prompt, self._steps = kept, prompt, steps

    @property
    def frames(self) -> int:
        return self._kept.frames

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self._kept.seen.values())


class FlowStream:
    """One request's mel, made as its tokens come. Not for several threads at once."""

    def __init__(self, flow: Flow, prompt_tokens: Tensor, prompt_mel: Tensor, speaker: Tensor, *,
                 steps: int | None = None, cache_bytes: int | None = None, prefix: FlowPrefix | None = None) -> None:
        """`prompt_tokens` [n] int64 and `prompt_mel` [2n, 80] of the same audio, n >= 0; `speaker` [192].

        `cache_bytes` bounds the kept keys and values of this stream (a prefix's not counted); None is `CACHE_BYTES`.
        `prefix` must be of this flow and prompt. Raises EngineFailure where the parts don't fit.
        """
        if len(prompt_mel) != FRAMES_PER_TOKEN * len(prompt_tokens):
            raise EngineFailure(f"A prompt of {len(prompt_tokens)} tokens goes with {FRAMES_PER_TOKEN} mel frames a "
                                f"token, not with {len(prompt_mel)} in all. Trim both.", param="prompt_mel")
        device, chunk = flow.device, flow.config.chunk_frames
        self._flow, self._schedule = flow, flow.schedule(steps)
        self._prompt = (prompt_tokens.to(device), prompt_mel.to(device).float(), speaker.to(device))
        flow.check_ids(self._prompt[0])
        flow.check_frames(len(prompt_mel))
        if prefix is not None:
            same = all(a.shape == b.shape and torch.equal(a, b)
                       for a, b in zip(prefix._prompt, self._prompt, strict=True))
            if not same or prefix._steps != self._schedule.steps:
                raise EngineFailure("The flow's prefix is of another prompt, speaker or number of steps. Make "
                                    "one of this.", param="prefix")
        base = prefix._kept if prefix is not None and prefix.frames else None
        room = CACHE_BYTES["cpu" if device.type == "cpu" else "cuda"] if cache_bytes is None else cache_bytes
        start = base.frames if base else 0
        limit = start + room // bytes_per_frame(flow, self._schedule) // chunk * chunk
        self._kept = _Kept(limit, base, start, tails=dict(base.tails) if base else {})
        self._speaker = flow.project_speaker(self._prompt[2][None])
        self._tokens = self._prompt[0]
        self._done = start
        self._ended = False

    @property
    def frames(self) -> int:
        """Frames made so far, the prompt's included."""
        return self._done

    def push(self, tokens: Tensor, *, final: bool, between: Between = go_on) -> Tensor:
        """Take the next `tokens` [k] int64, k >= 0 -> the speech's mel [frames, 80] fp32 that became final by them.

        Whole chunks of 25 tokens counted from the prompt's start whose next 3 tokens are known; with `final` all that
        is left. `between` is called before each step of the solver; the stream is lost if it raises. Raises as
        `Flow.forward` does, and EngineFailure after `final`.
        """
        flow, config = self._flow, self._flow.config
        if self._ended:
            raise EngineFailure("The flow's stream was pushed to after its final push. Make a new stream.")
        tokens = tokens.to(flow.device)
        flow.check_ids(tokens)
        flow.check_frames(FRAMES_PER_TOKEN * (len(self._tokens) + len(tokens)))
        self._tokens = torch.cat((self._tokens, tokens))
        self._ended = final
        end = FRAMES_PER_TOKEN * len(self._tokens)
        if not final:
            known = max(0, end - FRAMES_PER_TOKEN * config.lookahead_tokens)
            end = known // config.chunk_frames * config.chunk_frames
        if end <= self._done:
            return self._prompt[1].new_zeros(0, config.mels)
        start = self._kept.frames
        mel = self._solve(start, end, final, between)
        fresh = mel[max(self._done, len(self._prompt[1])) - start:]
        self._done = end
        flow.check_finite(fresh)
        if final:
            self._kept = _Kept(0)
        return fresh

    def _solve(self, start: int, end: int, final: bool, between: Between) -> Tensor:
        """Mel [end - start, 80] of frames `start` to `end`; keeps what later chunks need of them."""
        flow, kept, schedule = self._flow, self._kept, self._schedule
        given = flow.dit.given(self._cond(start, end)[None], self._mu(start, end), self._speaker, guided=flow.guided)
        x = flow.noise[start:end][None].clone()
        rotary = flow.rotary[start:end]
        sight = chunk_sight(start, end, flow.config.chunk_frames, flow.device)
        keep = start if final else max(start, min(end, kept.limit))
        for step in range(schedule.steps):
            between()

            def attend(block: int, qkv: Tensor, step: int = step) -> Tensor:
                return sight.look(qkv[:, :, 0], *kept.extend(step, block, qkv[:, :, 1:]).unbind(2))

            velocity, first, second = flow.dit(x, given, schedule, step, rotary, attend, kept.tails.get(step))
            flow.advance_(x, velocity, schedule.spans[step])
            if keep > start:
                tail = slice(keep - start, keep - start + flow.dit.positions.reach)
                kept.tails[step] = (first[:, :, tail].clone(), second[:, :, tail].clone())
        kept.frames = keep
        return x[0]

    def _cond(self, start: int, end: int) -> Tensor:
        """The prompt's mel within frames `start` to `end`, zeros after it."""
        prompt = self._prompt[1][start:end]
        cond = prompt.new_zeros(end - start, self._flow.config.mels)
        cond[:len(prompt)] = prompt
        return cond

    def _mu(self, start: int, end: int) -> Tensor:
        """[1, end - start, 80]: features of the tokens of frames `start` to `end`, from the few tokens they see."""
        first, last = start // FRAMES_PER_TOKEN, end // FRAMES_PER_TOKEN
        ahead = self._flow.config.lookahead_tokens
        begun = min(first, 2)
        embedded = self._flow.embedding(self._tokens[first - begun:last + ahead])
        missing = last + ahead - len(self._tokens)
        if missing > 0:
            embedded = torch.cat((embedded, embedded.new_zeros(missing, embedded.shape[1])))
        return self._flow.look_ahead(embedded[None], begun=begun)


def flow_prefix(flow: Flow, prompt_tokens: Tensor, prompt_mel: Tensor, speaker: Tensor, steps: int | None = None,
                between: Between = go_on) -> FlowPrefix:
    """What streams of one voice can share; arguments as for `FlowStream`. A short prompt may leave nothing to share.

    Its size is not bounded here (a prompt of 10 s takes 1.8 GB at fp32): whoever keeps it minds `FlowPrefix.nbytes`.
    """
    per_frame = bytes_per_frame(flow, flow.schedule(steps))
    stream = FlowStream(flow, prompt_tokens, prompt_mel, speaker, steps=steps,
                        cache_bytes=per_frame * (len(prompt_mel) + flow.config.chunk_frames))
    stream.push(prompt_tokens[:0], final=False, between=between)
    return FlowPrefix(stream._kept, stream._prompt, stream._schedule.steps)
