"""Repetition-aware sampling over a batch, without a word to the host.

Chen et al. 2024, "VALL-E 2" (arXiv:2406.05370), section 3.2, with the constants of `SamplingConfig`: draw from the most
likely ids whose sum first reaches `top_p`, at most `top_k` of them; if that id came up lately, draw again from all ids
but that one.

Each step takes exactly two uniforms a row, used or not, and turns them into ids by the inverse of the cumulated
distribution. So a row's draws depend on its seed and its step, on nothing else in the batch, and the same uniforms give
the same ids on every device, up to the rounding of logits. `Draws` makes them on the CPU for that reason.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import SamplingConfig

UNIFORMS = 2
"""A step: one for the draw, one for the draw again."""
BLOCK_STEPS = 256


class Draws:
    """One request's stream of uniforms in [0, 1), made in blocks of one size so that length doesn't change them."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def block(self) -> Tensor:
        """The next float32 [BLOCK_STEPS, UNIFORMS], on the CPU."""
        return torch.rand(BLOCK_STEPS, UNIFORMS, generator=self._generator)


def without(logits: Tensor, first: int, last: int, where: Tensor) -> Tensor:
    """Logits [B, V] with ids first..last-1 made impossible in the rows where `where` [B] holds."""
    ids = torch.arange(logits.shape[1], device=logits.device)
    banned = (ids >= first) & (ids < last)
    return logits.masked_fill(banned & where[:, None], -torch.inf)


def nucleus(logits: Tensor, uniform: Tensor, config: SamplingConfig) -> Tensor:
    """Logits [B, V], uniforms [B] -> ids [B], from the top-p of the top-k. Equal ids come in the order of the
    vocabulary.
    """
    probabilities = logits.softmax(-1)
    ids = probabilities.topk(min(config.top_k, logits.shape[1])).indices.sort(-1).values
    likely, order = probabilities.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    before = F.pad(likely.cumsum(-1)[:, :-1], (1, 0))
    kept = torch.where(before < config.top_p, likely, 0.0)  # the one that crosses top_p is kept
    return ids.gather(1, _invert(kept, uniform)).squeeze(1)


def anything_but(logits: Tensor, ids: Tensor, uniform: Tensor) -> Tensor:
    """Logits [B, V], ids [B], uniforms [B] -> ids [B] from the whole distribution without `ids`."""
    return _invert(logits.scatter(1, ids[:, None], -torch.inf).softmax(-1), uniform).squeeze(1)


def sample(logits: Tensor, uniforms: Tensor, recent: Tensor, config: SamplingConfig) -> Tensor:
    """Logits [B, V], uniforms [B, 2], the last `window` ids [B, window] (any order, -1 = none) -> ids int64 [B]."""
    first = nucleus(logits, uniforms[:, 0], config)
    repeated = (recent == first[:, None]).sum(1) >= config.window * config.repeats
    return torch.where(repeated, anything_but(logits, first, uniforms[:, 1]), first)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index [B, 1] at which the running sum of weights [B, N] passes `uniform` of the whole.

    Summed in float64, so that the order of summing doesn't show. The target stays below the total: a weight of zero is
    never taken.
    """
    sums = weights.double().cumsum(-1)
    total = sums[:, -1:]
    target = torch.minimum(uniform.double()[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(sums, target, right=True)
