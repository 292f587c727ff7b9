"""What running streams may keep in memory, all of them together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from cosyvoice_app.types import CancelToken

_CHECK_S = 0.05


class StreamMemory:
    """`total_bytes`, lent first come, first served. How much a stream is lent depends on the stream alone, never on
    what others hold: what it computes anew for lack of room is rounded differently, and one seed must be one result."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._lent_bytes = 0
        self._changed = threading.Condition()
        self._line: deque[object] = deque()

    @property
    def lent_bytes(self) -> int:
        return self._lent_bytes

    @contextmanager
    def lend(self, size_bytes: int, cancel: CancelToken) -> Iterator[None]:
        """Wait until so much is free (all of it for more than there is), hold it for the block. Raises Cancelled."""
        size_bytes = min(size_bytes, self._total_bytes)
        me = object()
        with self._changed:
            self._line.append(me)
        try:
            while not self._took(me, size_bytes):
                cancel.check()
        finally:
            with self._changed:
                if me in self._line:  # cancelled
                    self._line.remove(me)
                    self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._lent_bytes -= size_bytes
                self._changed.notify_all()

    def _took(self, me: object, size_bytes: int) -> bool:
        with self._changed:
            if self._line[0] is not me or self._lent_bytes + size_bytes > self._total_bytes:
                self._changed.wait(_CHECK_S)
                return False
            self._line.popleft()
            self._lent_bytes += size_bytes
            self._changed.notify_all()
            return True
