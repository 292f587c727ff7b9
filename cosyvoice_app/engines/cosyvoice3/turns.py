"""Turns at the device: threads that compute give way to each other between their steps, in the order they came.

Two threads that compute at once on a CPU would each get half of every core and spoil the other's cache.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cosyvoice_app.types import CancelToken

Between = Callable[[], None]
"""Called between two steps of long work."""


def go_on() -> None:
    """A `Between` that does nothing."""


class Turns:
    """One thread has the turn, the others wait in line. Not to be nested."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        """The first has the turn."""

    @contextmanager
    def turn(self, cancel: CancelToken | None = None) -> Iterator[Between]:
        """Wait for the turn, run the block, hand it on. The block calls what it is given between its steps: it lets
        those in who came meanwhile, and checks `cancel` while nothing is held, so that a check may wait for others."""
        me = object()
        self._wait(me)

        def between() -> None:
            self._leave(me)
            if cancel is not None:
                cancel.check()
            self._wait(me)

        try:
            yield between
        finally:
            self._leave(me)

    def _wait(self, me: object) -> None:
        with self._changed:
            self._line.append(me)
            try:
                while self._line[0] is not me:
                    self._changed.wait()
            except BaseException:  # an interrupt: whoever comes after must not wait for this one
                self._line.remove(me)
                self._changed.notify_all()
                raise

    def _leave(self, me: object) -> None:
        with self._changed:
            if me in self._line:
                self._line.remove(me)
                self._changed.notify_all()


class Checked:
    """A cancel token that hands the turn on at every check."""

    def __init__(self, between: Between) -> None:
        self._between = between

    def check(self) -> None:
        self._between()
