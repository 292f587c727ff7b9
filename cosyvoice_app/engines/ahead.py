"""Work done ahead of whoever needs it: an iterator run in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from cosyvoice_app.errors import Cancelled
from cosyvoice_app.types import CancelToken

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


class _End:
    pass


class _Stop:
    """Cancels the thread's work when the request is cancelled, or when nobody wants the rest."""

    def __init__(self, cancel: CancelToken) -> None:
        self._cancel = cancel
        self._unwanted = threading.Event()

    def set(self) -> None:
        self._unwanted.set()

    def check(self) -> None:
        self._cancel.check()
        if self._unwanted.is_set():
            raise Cancelled("The rest is not wanted any more.")


@contextmanager
def run_ahead(make: Callable[[CancelToken], Iterator[T]], cancel: CancelToken, *, depth: int) -> Iterator[Iterator[T]]:
    """The items of `make(token)`, made in a thread, up to `depth` finished ones waiting to be taken.

    What the thread raises is raised where the next item is taken. Leaving the block stops the work (its token raises
    Cancelled from then on) and waits for the thread: nothing runs on after it.
    """
    ready: queue.Queue[_Item[T] | _End | BaseException] = queue.Queue(depth)
    stop = _Stop(cancel)

    def put(item: _Item[T] | _End | BaseException) -> None:
        while True:
            stop.check()
            try:
                return ready.put(item, timeout=0.05)
            except queue.Full:
                continue

    def work() -> None:
        try:
            try:
                for value in make(stop):
                    put(_Item(value))
                put(_End())
            except Exception as error:  # noqa: BLE001 - it belongs to the one who takes the next item
                put(error)
        except Cancelled:
            return  # nobody waits for it

    def take() -> Iterator[T]:
        while True:
            try:
                item = ready.get(timeout=0.05)
            except queue.Empty:
                cancel.check()
                continue
            if isinstance(item, _End):
                return
            if isinstance(item, BaseException):
                raise item
            yield item.value

    thread = threading.Thread(target=work, name="ahead", daemon=True)
    thread.start()
    try:
        yield take()
    finally:
        stop.set()
        thread.join()
