"""Keys and values of past positions for many independent rows ("slots"), and attention over them.

Queries come in groups: `group` query heads share a key head. Layout of a slot: [layers, 2, kv_heads, positions, head]
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

    Each slot has memory of its own, made as its row grows and let go with it. With `whole` (the default on CUDA) all of
    it is one tensor that is there from the start, since captured graphs hold its address.
    """

    def __init__(self, layers: int, slots: int, kv_heads: int, head: int, *, max_positions: int, device: torch.device,
                 dtype: torch.dtype, whole: bool | None = None) -> None:
        self.slots, self.max_positions = slots, max_positions
        self.whole = device.type == "cuda" if whole is None else whole
        # One more than can be used: a row that is full and no longer runs still has a place for the graph to write to.
        self.positions = in_blocks(max_positions + 1) if self.whole else 0
        """Of every slot of a `whole` cache, else 0."""
        self.data = torch.zeros(layers, 2, slots, kv_heads, self.positions, head, device=device, dtype=dtype)
        """Layout [layers, 2, slots, kv_heads, positions, head]; without positions where slots have their own."""
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)
        self.host_lengths = [0] * slots
        self._own = [self.data[:, :, slot] for slot in range(slots)]

    def of(self, slot: int) -> Tensor:
        """[layers, 2, kv_heads, positions, head], to be read and written in place; good until the next `reserve`."""
        return self._own[slot]

    def reserve(self, slot: int, positions: int) -> None:
        """Make room for `positions` in `slot`. Raises ValueError above `max_positions`."""
        if positions > self.max_positions:
            raise ValueError(f"{positions} positions asked of a cache of at most {self.max_positions}")
        more = in_blocks(positions) - self._own[slot].shape[3]
        if more > 0:
            self._own[slot] = F.pad(self._own[slot], (0, 0, 0, more))

    def set_length(self, slot: int, length: int) -> None:
        """A length of 0 frees what the slot alone holds."""
        self.host_lengths[slot] = length
        if length == 0:
            self._own[slot] = self.data[:, :, slot]
        self.lengths[slot] = length


class PromptAttention:
    """Causal attention inside right-padded prompts, whose keys and values go to `slots`.

    A valid query sees only positions before it, and padding comes after: no mask for lengths is needed.
    """

    def __init__(self, cache: KvCache, slots: Sequence[int], lengths: Sequence[int]) -> None:
        self.cache, self.slots, self.lengths = cache, slots, lengths

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, T, heads, head]; k, v [B, T, kv_heads, head] -> [B, T, heads * head]."""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        for row, (slot, length) in enumerate(zip(self.slots, self.lengths, strict=True)):
            keys, values = self.cache.of(slot)[layer]
            keys[:, :length] = k[row, :, :length]
            values[:, :length] = v[row, :, :length]
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
        """q [B, 1, heads, head]; k, v [B, 1, kv_heads, head] -> [B, 1, heads * head]. Rows after the slots' are none:
        zeros."""
        rows, _, heads, head = q.shape
        groups = q.view(rows, k.shape[2], heads // k.shape[2], head)  # a group's heads are its key head's queries
        out = []
        for row, slot, past in self.rows:
            own = self.cache.of(slot)[layer]
            own[0, :, past] = k[row, 0]
            own[1, :, past] = v[row, 0]
            out.append(F.scaled_dot_product_attention(
                groups[row : row + 1], own[:1, :, : past + 1], own[1:, :, : past + 1]))
        if rows > len(out):
            out.append(out[0].new_zeros(rows - len(out), *out[0].shape[1:]))
        return (out[0] if rows == 1 else torch.cat(out)).reshape(rows, 1, heads * head)


class BlockAttention:
    """One new position for every slot at once over the first `positions`, masked by the lengths on the device: nothing
    depends on the host, so it can be captured in a CUDA graph. For a `whole` cache.
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
