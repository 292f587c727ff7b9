"""Decoding with slots: rows join and leave a running batch at any step.

    add ──► prefill into a free slot, draw the first id ──► step: give it out
                                                     step: feed the last id, draw the next, give it out ──► … ──► None

Everything that a step needs lies in tensors of one row a slot on the device. The host counts and reads the new ids once
a step; it writes only when a row comes, ends or needs its next random numbers.

A row's ids depend on its prompt and seed, on no other row. On a CPU that holds to the bit up to `STEP_ROWS` slots: a
prompt is prefilled alone, attention goes row by row, and so do products where the library's order of summing changes
with the number of rows (`nn.packed`). On CUDA a prompt goes alone too, and a step has all slots whoever is there; what
remains is that attention runs over as many blocks of positions as the longest row has. `lm_check` looks at both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import SamplingConfig
from cosyvoice_app.engines.cosyvoice3.lm import LM, Attention
from cosyvoice_app.engines.cosyvoice3.sampler import BLOCK_STEPS, UNIFORMS, Draws, sample, without
from cosyvoice_app.errors import TextError
from cosyvoice_app.nn.kv_cache import BlockAttention, PromptAttention, RowAttention, in_blocks
from cosyvoice_app.nn.step_graph import StepGraphs


@dataclass(frozen=True, slots=True)
class LmPrompt:
    """`text`: ids of the clip's transcript, then of what to say. `speech`: the clip's speech tokens, or none.

    At least `min_tokens` (where stops are masked) and at most `max_tokens` speech tokens are made.
    """

    text: tuple[int, ...]
    speech: tuple[int, ...]
    seed: int
    min_tokens: int
    max_tokens: int

    @property
    def length(self) -> int:
        return 2 + len(self.text) + len(self.speech)

    @property
    def positions(self) -> int:
        """Needed at most: the last id is given out without being fed."""
        return self.length + max(0, self.max_tokens - 1)


@dataclass(slots=True)
class _Row:
    """What the host knows of a running row: `made` ids are drawn; `fresh` until the first of them is given out."""

    draws: Draws
    max_tokens: int
    made: int = 0
    fresh: bool = True
    ended: bool = False


class LmBatch:
    """`slots` rows of at most `max_positions` positions. Not thread-safe: one thread adds, steps and releases.

    `mask_stops` forbids every mark below a row's `min_tokens`; False forbids only the start mark, as the official code
    does. `greedy` takes the likeliest id instead of drawing. `one_shape` (the default on CUDA) computes all slots at
    every step; else a step computes rows that have something to do, and no others. On CUDA `graphs` replays captured
    steps.
    """

    @torch.inference_mode()
    def __init__(self, lm: LM, *, slots: int, max_positions: int, sampling: SamplingConfig, mask_stops: bool = True,
                 greedy: bool = False, graphs: bool = True, one_shape: bool | None = None) -> None:
        if slots < 1 or max_positions < 3:
            raise ValueError(f"need at least 1 slot and 3 positions, not {slots} and {max_positions}")
        self.lm, self.sampling, self.greedy = lm, sampling, greedy
        device = lm.device
        self._one_shape = device.type == "cuda" if one_shape is None else one_shape
        self.cache, self.rotary = lm.new_cache(slots, max_positions, whole=self._one_shape), lm.new_rotary()
        self.rotary.reserve(self.cache.positions)
        c = lm.config
        self._banned = (c.speech_vocab, c.rows) if mask_stops else (c.start, c.start + 1)
        self._rows: list[_Row | None] = [None] * slots
        self._ids = torch.zeros(slots, dtype=torch.long, device=device)
        self._made = torch.zeros(slots, dtype=torch.long, device=device)
        self._min_tokens = torch.zeros(slots, dtype=torch.long, device=device)
        self._recent = torch.full((slots, sampling.window), -1, dtype=torch.long, device=device)
        self._uniforms = torch.zeros(slots, BLOCK_STEPS, UNIFORMS, device=device)
        self._live = torch.zeros(slots, dtype=torch.bool, device=device)
        self._every = torch.arange(slots, device=device)
        self._went_live: list[int] = []  # the slots that `_live` says
        self._graphs = StepGraphs(self._step_all, device) if device.type == "cuda" and graphs else None

    @property
    def free(self) -> int:
        """Slots that a prompt can be added to."""
        return self._rows.count(None)

    @property
    def running(self) -> tuple[int, ...]:
        """Slots that the next step will answer for."""
        return tuple(slot for slot, row in enumerate(self._rows) if row is not None and not row.ended)

    def add_many(self, prompts: Sequence[LmPrompt]) -> list[int]:
        """`add` each. Raises before any is added what is wrong with one; what fails later takes no slot either."""
        for prompt in prompts:
            self.check(prompt)
        slots: list[int] = []
        try:
            for prompt in prompts:
                slots.append(self.add(prompt))
        except BaseException:
            for slot in slots:
                self.release(slot)
            raise
        return slots

    @torch.inference_mode()
    def add(self, prompt: LmPrompt) -> int:
        """Prefill into a free slot and return it. Raises TextError for a prompt that can't be held, ValueError when no
        slot is free."""
        self.check(prompt)
        slot = next((slot for slot, row in enumerate(self._rows) if row is None), None)
        if slot is None:
            raise ValueError("there are no free slots; release one first")
        row = _Row(Draws(prompt.seed), prompt.max_tokens, made=1)
        try:
            self._prefill(slot, prompt, row)
        except BaseException:
            self.cache.set_length(slot, 0)
            raise
        self._rows[slot] = row  # last: what fails above takes no slot
        return slot

    def _prefill(self, slot: int, prompt: LmPrompt, row: _Row) -> None:
        lm, length = self.lm, prompt.length
        self._reserve(slot, length)
        h = lm.embed_prompt(prompt.text, prompt.speech)[None]
        cos, sin = self.rotary.cos[None, :length], self.rotary.sin[None, :length]
        hidden = lm(h, cos, sin, PromptAttention(self.cache, [slot], [length]))
        logits = lm.logits(hidden[:, -1])
        self.cache.set_length(slot, length)
        self._made[slot] = 0
        self._min_tokens[slot] = prompt.min_tokens
        self._recent[slot] = -1
        self._uniforms[slot] = row.draws.block().to(lm.device)
        self._draw(logits, torch.tensor([slot], device=lm.device))

    @torch.inference_mode()
    def step(self, only: Collection[int] | None = None) -> dict[int, int | None]:
        """The next speech id of every running row; None for one that ended, by a mark or by its `max_tokens`.

        A row that ended is left out from then on, and keeps its slot until `release`. With `only`, rows in other slots
        stay as they are.
        """
        given: list[int] = []
        out: dict[int, int | None] = {}
        to_feed: list[int] = []
        for slot in self.running:
            if only is not None and slot not in only:
                continue
            row = self._rows[slot]
            assert row is not None
            if row.max_tokens == 0 or (not row.fresh and row.made >= row.max_tokens):
                row.ended, out[slot] = True, None
                continue
            given.append(slot)
            if row.fresh:
                row.fresh = False
            else:
                to_feed.append(slot)
        if to_feed:
            self._advance(to_feed)
        ids = self._ids.tolist() if given else []
        for slot in given:
            row = self._rows[slot]
            assert row is not None
            row.ended = ids[slot] >= self.lm.config.speech_vocab
            out[slot] = None if row.ended else ids[slot]
        return out

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """Free the slot, whether its row has ended or not."""
        if self._rows[slot] is None:
            raise ValueError(f"slot {slot} is free already")
        self._rows[slot] = None  # first: it is free even if the device fails
        self.cache.set_length(slot, 0)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture the graphs of every length, so that no request waits for it. Does nothing without graphs."""
        if self._graphs is not None:
            for positions in range(in_blocks(1), self.cache.positions + 1, in_blocks(1)):
                self._capture(positions)

    def check(self, prompt: LmPrompt) -> None:
        """Raise TextError for a prompt that can't be held, ValueError for one that means nothing."""
        room, c = self.cache.max_positions, self.lm.config
        if not prompt.text:
            raise TextError("There is no text to speak. Give at least one word.", param="text")
        if prompt.positions > room:
            raise TextError(
                f"The text is too long for the language model: {len(prompt.text)} text tokens, {len(prompt.speech)} "
                f"tokens of the clip and up to {prompt.max_tokens} to be spoken need {prompt.positions} positions, and "
                f"{room} are there. Shorten the text or the clip.", param="text")
        ranges = ((prompt.text, c.text_vocab), (prompt.speech, c.speech_vocab))
        if not all(0 <= i < end for ids, end in ranges for i in ids):
            raise ValueError(f"text ids must be below {c.text_vocab} and speech ids below {c.speech_vocab}")
        if prompt.min_tokens < 0 or prompt.max_tokens < prompt.min_tokens:
            raise ValueError(f"need 0 <= min_tokens <= max_tokens, not {prompt.min_tokens} and {prompt.max_tokens}")

    def _reserve(self, slot: int, positions: int) -> None:
        self.cache.reserve(slot, positions)
        self.rotary.reserve(in_blocks(positions))

    def _count(self, slot: int) -> None:
        """An id more was drawn: keep the host's counts, and the next block of uniforms in time."""
        row = self._rows[slot]
        assert row is not None
        row.made += 1
        if row.made % BLOCK_STEPS == 0:
            self._uniforms[slot] = row.draws.block().to(self.lm.device)

    def _advance(self, slots: list[int]) -> None:
        """Feed the last id of each of `slots` and draw its next."""
        if self._one_shape:
            positions = in_blocks(1 + max(self.cache.host_lengths[slot] for slot in slots))
            if self._graphs is not None:
                self._capture(positions)
            self._go_live(slots)
            if self._graphs is not None:
                self._graphs.run(positions)
            else:
                self._step_all(positions)
        else:
            for slot in slots:
                self._reserve(slot, 1 + self.cache.host_lengths[slot])
            self._step_some(slots)
        for slot in slots:
            self.cache.host_lengths[slot] += 1
            self._count(slot)

    def _capture(self, positions: int) -> None:
        assert self._graphs is not None
        if positions in self._graphs:
            return
        self._go_live([])  # warming up then writes only what is overwritten before it is read
        self._graphs.prepare(positions)

    def _go_live(self, slots: list[int]) -> None:
        """The next step changes only these. Written when they aren't so already, for a copy makes the host wait."""
        if slots != self._went_live:
            live = torch.zeros(len(self._rows), dtype=torch.bool)
            live[slots] = True
            self._live.copy_(live)
            self._went_live = slots

    def _step_some(self, slots: list[int]) -> None:
        """Only rows that have something to do, each over exactly its own positions."""
        rows = torch.tensor(slots, device=self.lm.device)
        h, positions = self.lm.filled_up(self.lm.embed_speech(self._ids[rows])[:, None], self.cache.lengths[rows])
        logits = self._forward(h, positions, RowAttention(self.cache, slots))
        self._draw(logits[: len(slots)], rows)
        self.cache.lengths[rows] += 1

    def _step_all(self, positions: int) -> None:
        """Every slot, of one shape always; only rows that are `_live` are changed by it."""
        h = self.lm.embed_speech(self._ids)[:, None]
        logits = self._forward(h, self.cache.lengths, BlockAttention(self.cache, positions))
        self._draw(logits, self._every, self._live)
        self.cache.lengths.add_(self._live)

    def _forward(self, h: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """Embeddings [B, 1, width] at `positions` [B] -> logits [B, rows]."""
        cos, sin = self.rotary.cos[positions][:, None], self.rotary.sin[positions][:, None]
        out: Tensor = self.lm(h, cos, sin, attend)
        return self.lm.logits(out[:, 0])

    def _draw(self, logits: Tensor, rows: Tensor, live: Tensor | None = None) -> None:
        """Draw the next id of `rows` from logits [B, V] and note it, in rows that are live (None = all)."""
        made = self._made[rows]
        logits = without(logits, *self._banned, made < self._min_tokens[rows])
        if self.greedy:
            ids = logits.argmax(-1)
        else:
            ids = sample(logits, self._uniforms[rows, made % BLOCK_STEPS], self._recent[rows], self.sampling)
        place = made % self.sampling.window
        if live is None:
            self._recent[rows, place] = ids
            self._ids[rows] = ids
            self._made[rows] = made + 1
        else:
            self._recent[rows, place] = torch.where(live, ids, self._recent[rows, place])
            self._ids.copy_(torch.where(live, ids, self._ids))
            self._made.add_(live)
