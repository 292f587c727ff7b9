"""One row decoded alone: what rows of a batch, and the official code's ids, are compared with."""

from __future__ import annotations

from collections.abc import Iterator

from cosyvoice_app.engines.cosyvoice3.config import SamplingConfig
from cosyvoice_app.engines.cosyvoice3.decoding import LmBatch, LmPrompt
from cosyvoice_app.engines.cosyvoice3.lm import LM


def generate(lm: LM, prompt: LmPrompt, sampling: SamplingConfig, *, mask_stops: bool = True, greedy: bool = False
             ) -> Iterator[int]:
    """The speech ids, one at a time, from a batch of one slot with just the positions that the prompt may need."""
    batch = LmBatch(lm, slots=1, max_positions=max(3, prompt.positions), sampling=sampling, mask_stops=mask_stops,
                    greedy=greedy, graphs=False)
    slot = batch.add(prompt)
    while (speech_id := batch.step()[slot]) is not None:
        yield speech_id
