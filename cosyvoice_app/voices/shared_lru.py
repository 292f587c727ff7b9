"""A bounded cache for threads: what is there is given out, what is being made is waited for and not made twice, and
the least recently used goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from cosyvoice_app.types import CacheCounts, CancelToken, NeverCancelled

T = TypeVar("T")

_LOOK_S = 0.1
"""How often one who waits looks whether he was cancelled. What he waits for wakes him at once."""


class _Making(Generic[T]):
    """One thing under way. `made` is handed to who waits even if the cache can't keep it."""

    def __init__(self) -> None:
        self.ended = False
        self.made: tuple[T] | None = None


class SharedLru(Generic[T]):
    """At most `most_items` things of `most_bytes` together, as `size_of` counts them. The one used last stays, whatever
    it takes: it is in use.
    """

    def __init__(self, *, most_bytes: int, most_items: int, size_of: Callable[[T], int]) -> None:
        if most_bytes < 0:
            raise ValueError(f"most_bytes is {most_bytes}; it must not be negative")
        if most_items < 1:
            raise ValueError(f"most_items is {most_items}; it must be 1 or more")
        self._most_bytes, self._most_items, self._size_of = most_bytes, most_items, size_of
        self._items: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._making: dict[str, _Making[T]] = {}
        self._changed = threading.Condition()
        self._hits = self._misses = self._bytes = 0

    def obtain(self, key: str, make: Callable[[], T], *, cancel: CancelToken | None = None) -> tuple[T, bool]:
        """(the thing, was it spared the making). Raises Cancelled while it waits, and whatever `make` raises.

        Nobody gets another's failure: whoever waits for a making and sees it fail makes the thing himself, for the
        reason may have been the other's own, a cancel above all.
        """
        cancel = cancel or NeverCancelled()
        mine: _Making[T] = _Making()
        try:
            with self._changed:
                known = self._known_or_begun(key, mine, cancel)
            if known is not None:
                return known[0], True
            made = make()
            with self._changed:
                mine.made = (made,)
                self._keep(key, made)
            return made, False
        finally:
            # Also for an interrupt at whatever line: a making that never ends would be waited for for ever.
            if self._making.get(key) is mine:
                with self._changed:
                    mine.ended = True
                    del self._making[key]
                    self._changed.notify_all()

    def clear(self) -> None:
        """Let go of all that is kept. What is being made meanwhile is kept when it is done: it is in use."""
        with self._changed:
            self._items.clear()
            self._bytes = 0

    def counts(self) -> CacheCounts:
        with self._changed:
            return CacheCounts(self._hits, self._misses, len(self._items), self._bytes)

    def __len__(self) -> int:
        return len(self._items)

    def _known_or_begun(self, key: str, mine: _Making[T], cancel: CancelToken) -> tuple[T] | None:
        """The thing, or None when `mine` is now the making of it."""
        while True:
            if (kept := self._items.get(key)) is not None:
                self._items.move_to_end(key)
                self._hits += 1
                return (kept[0],)
            other = self._making.get(key)
            if other is None:
                self._misses += 1
                self._making[key] = mine
                return None
            while not other.ended:
                cancel.check()
                self._changed.wait(_LOOK_S)
            if other.made is not None:
                self._hits += 1
                return other.made

    def _keep(self, key: str, made: T) -> None:
        size = self._size_of(made)
        self._items[key] = (made, size)
        self._bytes += size
        while len(self._items) > 1 and (len(self._items) > self._most_items or self._bytes > self._most_bytes):
            _, (_, freed) = self._items.popitem(last=False)
            self._bytes -= freed
