"""Keys and values of past positions for many independent rows ("slots"), and attention over them.

Queries come in groups: `group` query heads share a key head. Layout of a layer: [2, slots, kv_heads, positions, head]
with keys first. A slot's entries at and after its length are leftovers, never read: attention looks at valid positions
only, and a new entry is written over the leftover before the length grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256
"""Positions are reserved in blocks, and CUDA graphs are captured per block count."""


def in_blocks(positions: int) -> int:
    return -(-positions // BLOCK) * BLOCK


class KvCache:
    """`lengths` is kept twice: `lengths` int64 [slots] on the device for kernels, `host_lengths` for decisions.

    On a CPU room is made as rows grow, up to `max_positions`. On CUDA it is all there from the start, since captured
    graphs hold its address.
    """

    def __init__(self, layers: int, slots: int, kv_heads: int, head: int, *, max_positions: int, device: torch.device,
                 dtype: torch.dtype) -> None:
        self.slots, self.max_positions = slots, max_positions
        # One more than can be used: a row that is full and no longer runs still has a place for the graph to write to.
        positions = in_blocks(max_positions + 1) if device.type == "cuda" else 0
        self.data = torch.zeros(layers, 2, slots, kv_heads, positions, head, device=device, dtype=dtype)
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)
        self.host_lengths = [0] * slots

    @property
    def positions(self) -> int:
        return self.data.shape[4]

    def reserve(self, positions: int) -> None:
        """Make room for `positions` in every slot. Raises ValueError above `max_positions`."""
        if positions > self.max_positions:
            raise ValueError(f"{positions} positions asked of a cache of at most {self.max_positions}")
        more = in_blocks(positions) - self.positions
        if more > 0:
            self.data = F.pad(self.data, (0, 0, 0, more))

    def set_length(self, slot: int, length: int) -> None:
        self.lengths[slot] = length
        self.host_lengths[slot] = length


class PromptAttention:
    """Causal attention inside right-padded prompts, whose keys and values go to `slots`.

    A valid query sees only positions before it, and padding comes after: no mask for lengths is needed.
    """

    def __init__(self, cache: KvCache, slots: Sequence[int], lengths: Sequence[int]) -> None:
        self.cache, self.slots, self.lengths = cache, slots, lengths

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, T, heads, head]; k, v [B, T, kv_heads, head] -> [B, T, heads * head]."""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        data = self.cache.data[layer]
        for row, (slot, length) in enumerate(zip(self.slots, self.lengths, strict=True)):
            data[0, slot, :, :length] = k[row, :, :length]
            data[1, slot, :, :length] = v[row, :, :length]
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class RowAttention:
    """One new position for each of `slots`, row by row over exactly the valid positions: fastest on a CPU, where a row
    is then the same to the bit in any batch.
    """

    def __init__(self, cache: KvCache, slots: Sequence[int]) -> None:
        self.cache = cache
        self.rows = [(row, slot, cache.host_lengths[slot]) for row, slot in enumerate(slots)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, 1, heads, head]; k, v [B, 1, kv_heads, head] -> [B, 1, heads * head]."""
        rows, _, heads, head = q.shape
        groups = q.view(rows, k.shape[2], heads // k.shape[2], head)  # a group's heads are its key head's queries
        keys, values = self.cache.data[layer].unbind(0)
        out = []
        for row, slot, past in self.rows:
            keys[slot, :, past] = k[row, 0]
            values[slot, :, past] = v[row, 0]
            out.append(F.scaled_dot_product_attention(
                groups[row : row + 1], keys[slot : slot + 1, :, : past + 1], values[slot : slot + 1, :, : past + 1]))
        return (out[0] if rows == 1 else torch.cat(out)).reshape(rows, 1, heads * head)


class BlockAttention:
    """One new position for every slot at once over the first `positions`, masked by the lengths on the device: nothing
    depends on the host, so it can be captured in a CUDA graph.
    """

    def __init__(self, cache: KvCache, positions: int) -> None:
        self.cache, self.positions = cache, positions
        self.rows = torch.arange(cache.slots, device=cache.lengths.device)
        places = torch.arange(positions, device=cache.lengths.device)
        self.mask = (places <= cache.lengths[:, None])[:, None, None]  # [slots, 1, 1, positions]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `RowAttention`, B = slots."""
        rows, _, heads, head = q.shape
        groups = q.view(rows, k.shape[2], heads // k.shape[2], head)
        keys, values = self.cache.data[layer].unbind(0)
        keys[self.rows, :, self.cache.lengths] = k[:, 0]
        values[self.rows, :, self.cache.lengths] = v[:, 0]
        mask = self.mask.expand(-1, groups.shape[1], groups.shape[2], -1)
        keys, values = keys[:, :, : self.positions], values[:, :, : self.positions]
        return F.scaled_dot_product_attention(groups, keys, values, attn_mask=mask).reshape(rows, 1, heads * head)
