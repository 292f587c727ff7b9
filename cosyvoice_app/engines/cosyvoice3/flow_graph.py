"""The whole solver as one CUDA graph a shape, for batches so small that kernels take longer to start than to run.

Ten steps of 22 blocks are some four thousand kernels. Lengths are rounded up to a bucket and the rest is masked, so
that few graphs serve all requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.dit import Schedule
from cosyvoice_app.engines.cosyvoice3.flow_attend import Sight, padded_sight
from cosyvoice_app.nn.step_graph import Capturer

MAX_FRAMES = 8192
"""Of all rows together, guided ones twice. Above, kernels run longer than they take to start."""
KEPT = 16

Solve = Callable[[Tensor, int, Sight, Schedule], Tensor]


def bucket(frames: int) -> int:
    """The length that serves `frames`: in steps of 64, and of an eighth of the length from 512 on."""
    step = max(64, 1 << max(0, (frames - 1).bit_length() - 3))
    return -(-frames // step) * step


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    given: Tensor
    mask: Tensor
    mel: Tensor  # lies in the pool of all graphs: to be copied before another runs
    schedule: Schedule  # the graph reads its memory


class Graphs:
    """The graphs made so far, the least used dropped first. Not for several threads at once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], _Graph] = OrderedDict()
        self._capturer: Capturer | None = None

    def serve(self, given: Tensor) -> bool:
        """Whether a batch with this input [R, T, C] is one for a graph."""
        return given.is_cuda and given.shape[0] * bucket(given.shape[1]) <= MAX_FRAMES

    def run(self, solve: Solve, given: Tensor, ends: Tensor, *, rows: int, chunk: int | None,
            schedule: Schedule) -> Tensor:
        """`solve(given, rows, sight, schedule)` for rows that end at `ends` [rows] frames -> mel [rows, T, 80]."""
        frames = given.shape[1]
        size = bucket(frames)
        mask = padded_sight(ends, size, chunk=chunk, rows=len(given)).mask
        assert mask is not None
        given = F.pad(given, (0, 0, 0, size - frames))
        key = (rows, tuple(given.shape), chunk, schedule.steps)
        made = self._kept.get(key) or self._capture(solve, given, mask, rows, schedule)
        self._kept[key] = made
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        made.given.copy_(given)
        made.mask.copy_(mask)
        made.graph.replay()
        return made.mel[:, :frames].clone()

    def _capture(self, solve: Solve, given: Tensor, mask: Tensor, rows: int, schedule: Schedule) -> _Graph:
        given, mask = given.clone(), mask.clone()
        if self._capturer is None:
            self._capturer = Capturer(given.device)
        graph, mel = self._capturer.capture(lambda: solve(given, rows, Sight(mask), schedule), warm_ups=1)
        return _Graph(graph, given, mask, mel, schedule)
