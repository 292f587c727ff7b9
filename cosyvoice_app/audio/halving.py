"""What to do when a batch fails: find the clip at fault, or make the batch smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cosyvoice_app.errors import is_out_of_memory

T = TypeVar("T")


def by_halves(
    work: Callable[[int, int], T],
    start: int,
    stop: int,
    failed: Callable[[int, int, BaseException], None],
    shrunk: Callable[[int, int], None],
    halved: bool = False,
) -> list[T]:
    """Results of `work(first, end)` that together cover the rows from `start` to `stop` but those that failed.

    Out of memory: `shrunk` is told, both halves (or the only row, again) are tried once, and what still doesn't fit
    fails together. Any other error: halves again and again, until it is with the row it belongs to.
    """
    if start == stop:
        return []
    try:
        return [work(start, stop)]
    except BaseException as error:  # noqa: BLE001 - as in concurrent.futures: given to whoever waits for the result
        caught = error
    try:
        memory = is_out_of_memory(caught)
        if memory:
            # The frames of the traceback hold the tensors that there was no memory for.
            caught.__traceback__ = caught.__context__ = None
            shrunk(start, stop)
        if halved if memory else stop - start == 1:
            failed(start, stop, caught)
            return []
    finally:
        del caught
    half = (start + stop + 1) // 2
    rest = [(start, half), (half, stop)]
    return [result for a, b in rest for result in by_halves(work, a, b, failed, shrunk, halved or memory)]
