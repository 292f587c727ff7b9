"""Who sees whom in the DiT's attention: everyone, or chunks of 50 frames that see themselves and what came before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sight:
    """How queries see keys. All see all unless `mask` (True: seen, broadcast to [R, heads, queries, keys]) or `chunks`
    says otherwise; a chunk is (first query, end of the queries, how many keys they see).
    """

    mask: Tensor | None = None
    chunks: tuple[tuple[int, int, int], ...] = ()

    def look(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [R, queries, heads, head], k and v [R, keys, heads, head] -> [R, queries, heads * head]."""
        if not self.chunks:
            return _look(q, k, v, self.mask).flatten(2)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for a, b, seen in self.chunks:
            out[:, a:b] = _look(q[:, a:b], k[:, :seen], v[:, :seen], None)
        return out.flatten(2)


def _look(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def chunk_mask(start: int, end: int, chunk: int, device: torch.device) -> Tensor:
    """[end - start, end] bool: frames from `start` on see their own chunk and those before; chunks count from 0."""
    frame = torch.arange(end, device=device)
    last_seen = (frame[start:] // chunk + 1) * chunk
    return frame < last_seen[:, None]


def chunk_sight(start: int, end: int, chunk: int, device: torch.device) -> Sight:
    """The sight of frames `start` (a multiple of `chunk`) to `end` over frames 0 to `end`, none of them padding.

    On a CPU chunk by chunk, which leaves out the work that a mask only hides; on CUDA one kernel with a mask.
    """
    if start // chunk == (end - 1) // chunk:
        return Sight()
    if device.type != "cpu":
        return Sight(mask=chunk_mask(start, end, chunk, device))
    firsts = range(start, end, chunk)
    return Sight(chunks=tuple((a - start, min(a + chunk, end) - start, min(a + chunk, end)) for a in firsts))


def padded_sight(lengths: Tensor, frames: int, *, chunk: int | None, rows: int) -> Sight:
    """The sight of right-padded rows: keys [B] valid frames each, repeated to `rows` rows, within chunks if given."""
    frame = torch.arange(frames, device=lengths.device)
    mask = (frame < lengths[:, None])[:, None, None]  # [B, 1, 1, frames]
    if chunk is not None:
        mask = mask & chunk_mask(0, frames, chunk, lengths.device)
    return Sight(mask=mask.repeat(rows // len(lengths), 1, 1, 1))
