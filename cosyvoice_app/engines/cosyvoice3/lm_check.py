"""Whether a row of a step is what it is alone, to the bit, on this machine: looked at once, before anyone is served.

Libraries choose kernels by processor, version and shape. What the tests found on one machine needn't hold on another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.lm import LM, Attention
from cosyvoice_app.nn.kv_cache import BLOCK, BlockAttention, KvCache, RowAttention

_PAST = 20
"""Positions before the step of the first row; each further row has some more."""


@torch.inference_mode()
def rows_agree(lm: LM, slots: int, *, one_shape: bool) -> bool:
    """Compare the logits of one step: rows beside any number of others and alone or, where a step has one shape
    (see `LmBatch`), beside others of another content and over more blocks of positions."""
    numbers = torch.Generator().manual_seed(0)
    positions = 3 * BLOCK if one_shape else _PAST + 2 * slots
    cache = lm.new_cache(slots, positions - 1, whole=one_shape)
    for slot in range(slots):
        cache.reserve(slot, _PAST + 2 * slot + 1)
        past = cache.of(slot)
        past.copy_(torch.randn(past.shape, generator=numbers))
        cache.set_length(slot, _PAST + 2 * slot)
    h = torch.randn(slots, 1, lm.config.width, generator=numbers).to(lm.device)
    if not one_shape:
        alone = torch.cat([_logits(lm, h[slot : slot + 1], cache, RowAttention(cache, [slot]), [slot])
                           for slot in range(slots)])
        return all(torch.equal(_logits(lm, h[:count], cache, RowAttention(cache, range(count)), range(count)),
                               alone[:count]) for count in range(2, slots + 1))
    every = range(slots)
    first = _logits(lm, h, cache, BlockAttention(cache, BLOCK), every)
    others = torch.cat((h[:1], torch.randn(h[1:].shape, generator=numbers).to(h)))
    beside = _logits(lm, others, cache, BlockAttention(cache, BLOCK), every)
    longer = [_logits(lm, h, cache, BlockAttention(cache, blocks * BLOCK), every) for blocks in (2, 3)]
    return torch.equal(beside[0], first[0]) and all(torch.equal(logits, first) for logits in longer)


def _logits(lm: LM, h: Tensor, cache: KvCache, attend: Attention, slots: range | list[int]) -> Tensor:
    rotary = lm.new_rotary()
    rotary.reserve(max(cache.host_lengths) + 1)
    at = cache.lengths[torch.tensor(list(slots), device=lm.device)]
    if isinstance(attend, RowAttention):
        h, at = lm.filled_up(h, at)
    out: Tensor = lm(h, rotary.cos[at][:, None], rotary.sin[at][:, None], attend)
    return lm.logits(out[:, 0])[: len(slots)]
