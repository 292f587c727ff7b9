"""Rows side by side, one core each, in place of one after another on all cores.

A row on all cores waits at the end of every operation for the slowest of them, and what is too small to share is done
by one while the others idle. Rows in lanes of their own meet nowhere. Both ways give the same bits: the operations in
use don't depend on how many threads share them (`nn/adain.py`, `nn/conv.py`), which the engine checks when it warms up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from cosyvoice_app.errors import Cancelled
from cosyvoice_app.types import CancelToken, NeverCancelled

Result = TypeVar("Result")

MOST_LANES = 8
UNSHARED = 0.11
"""Share of a row's time that more cores don't shorten: with two, a row takes 0.61 of its time on one (measured)."""
LOOK_S = 0.05
"""How often a cancelled batch is noticed."""


@dataclass(frozen=True, slots=True)
class Work(Generic[Result]):
    """Something to compute. `size` is proportional to its time. `narrow` work must have one thread, always: matrix
    products of fewer than 12 rows give other bits when threads share them.
    """

    size: float
    call: Callable[[], Result]
    narrow: bool = False


class Lanes:
    """Threads that each compute with one core. With one core, or on another device, work is done one after another."""

    def __init__(self, threads: int) -> None:
        """`threads`: cores there are for the caller's own computations."""
        self.count = min(threads, MOST_LANES)
        self.trusted = False
        """Whether work may go side by side: it is left to whoever has checked that results stay the same."""
        self._pool: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def run(self, works: Sequence[Work[Result]], cancel: CancelToken) -> list[Result]:
        """Results in order, each the same as alone. Raises Cancelled between works, and at once when all are in lanes;
        nothing computes on after the return.
        """
        if self.count < 2:
            return self._one_by_one(works, range(len(works)), cancel)
        alone = [i for i, work in enumerate(works) if not work.narrow]
        if self.trusted:
            beside = split(works, alone, self.count)
            alone = [i for i in alone if i not in beside]
        done = dict(zip(alone, self._one_by_one(works, alone, cancel), strict=True))
        rest = [i for i in range(len(works)) if i not in done]
        done |= zip(rest, self.beside([works[i] for i in rest], cancel), strict=True)
        return [done[i] for i in range(len(works))]

    def beside(self, works: Sequence[Work[Result]], cancel: CancelToken) -> list[Result]:
        """All of them in lanes, the longest first."""
        if not works:
            return []
        stop = threading.Event()
        order = sorted(range(len(works)), key=lambda i: -works[i].size)
        futures = {i: self._started().submit(_compute, works[i], stop) for i in order}
        try:
            waiting: set[Future[Result]] = set(futures.values())
            while waiting:
                ended, waiting = wait(waiting, LOOK_S, FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                cancel.check()  # in the caller's thread: what it does there may depend on the thread
        finally:
            stop.set()
            wait(futures.values())
        return [futures[i].result() for i in range(len(works))]

    def close(self) -> None:
        """End the threads."""
        with self._starting:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _one_by_one(self, works: Sequence[Work[Result]], which: Sequence[int], cancel: CancelToken) -> list[Result]:
        results = []
        for i in which:
            cancel.check()
            results.append(works[i].call())
        return results

    def _started(self) -> ThreadPoolExecutor:
        with self._starting:
            if self._pool is None:
                own = torch.get_num_threads()
                ready = threading.Barrier(self.count)
                self._pool = ThreadPoolExecutor(self.count, "lite-lane")
                for future in [self._pool.submit(_hold_to_one_core, ready) for _ in range(self.count)]:
                    future.result()
                torch.set_num_threads(own)  # new threads take what any thread set last
            return self._pool


def _hold_to_one_core(ready: threading.Barrier) -> None:
    torch.get_num_threads()  # a thread's first call takes the common number, and would undo the next line
    torch.set_num_threads(1)
    ready.wait()  # so that every thread of the pool has come by


def _compute(work: Work[Result], stop: threading.Event) -> Result:
    if stop.is_set():
        raise Cancelled("The batch is not wanted any more.")
    with torch.inference_mode():
        return work.call()


def split(works: Sequence[Work[Result]], which: Sequence[int], lanes: int) -> list[int]:
    """Those of `which` to run side by side, so that all take the least time; the others are better alone on all cores.

    Only the longest and the shortest are tried as the ones alone: an odd one out is one of them.
    """
    order = sorted(which, key=lambda i: -works[i].size)
    sizes = [works[i].size for i in order]
    share = UNSHARED + 1.0 / lanes
    best, beside = share * sum(sizes), (0, 0)
    for first in range(len(sizes)):
        for end in range(first + 2, len(sizes) + 1):
            time = share * (sum(sizes[:first]) + sum(sizes[end:])) + _makespan(sizes[first:end], lanes)
            if time < best:
                best, beside = time, (first, end)
    return order[slice(*beside)]


def _makespan(sizes: Sequence[float], lanes: int) -> float:
    """Time until the last of `sizes` is done, each taken in order by the first free lane."""
    busy = [0.0] * lanes
    for size in sizes:
        busy[busy.index(min(busy))] += size
    return max(busy)


def products_agree(lanes: Lanes) -> bool:
    """Whether matrix products that are not `narrow` have the same bits in a lane as on all cores.

    Which sizes don't is up to the library and the processor; the small ones are the ones at risk, and are all tried.
    """
    generator = torch.Generator().manual_seed(1)
    matrix, bias = torch.randn(512, 256, generator=generator), torch.randn(256, generator=generator)
    inputs = [torch.randn(rows, 512, generator=generator) for rows in (*range(16, 64), 87, 131, 260, 517)]

    def products() -> list[torch.Tensor]:
        return [torch.addmm(bias, x, matrix) for x in inputs]

    (beside,) = lanes.beside([Work(1.0, products)], NeverCancelled())
    return all(torch.equal(a, b) for a, b in zip(products(), beside, strict=True))
