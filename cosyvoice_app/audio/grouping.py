"""Dynamic batches: items of like length are grouped, and a group leaves when it is full or has waited long enough."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

_SMALLEST, _LARGEST, _STEP = 1024, 1 << 40, 1.25


def _edges() -> Iterator[int]:
    edge = _SMALLEST
    while edge < _LARGEST:
        yield edge
        edge = -(-int(edge * _STEP) // 16) * 16


LENGTH_EDGES: tuple[int, ...] = tuple(_edges())
"""Lengths in samples, each about 1.25 times the one before it, from 1024 on and in multiples of 16."""


def length_bucket(samples: int) -> int:
    """The edge that `samples` is padded to at most. Above 1024 samples that is at most 26 % more."""
    return LENGTH_EDGES[bisect_left(LENGTH_EDGES, samples)]


@dataclass(slots=True)
class _Group(Generic[T]):
    since: float
    items: list[T] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Grouper(Generic[T]):
    """Collects items from several threads and hands them out in groups of one length bucket, to one taker.

    A group is ready with `most_items` items, with `most_samples` samples when padded to its bucket's edge, or `wait_s`
    after its first item. When no more can arrive before something leaves (`hold_items` or `hold_samples` are held),
    waiting would be idle, and the fullest group is ready at once.
    """

    def __init__(self, most_items: int, most_samples: int, wait_s: float, hold_items: int, hold_samples: int) -> None:
        self.most_samples = most_samples
        self._most_items, self._wait_s = most_items, wait_s
        self._hold_items, self._hold_samples = hold_items, hold_samples
        self._lock = threading.Lock()
        self._room_made, self._more_to_take = threading.Condition(self._lock), threading.Condition(self._lock)
        self._groups: dict[int, _Group[T]] = {}
        self._items = self._samples = 0
        self._ended = False

    def add(self, item: T, samples: int, deadline: float | None = None) -> bool:
        """Blocks while `hold_samples` are held, unless the grouper has ended; False, and the item is not taken, when
        that lasts until `deadline` (on time.monotonic's clock).
        """
        with self._lock:
            left = None if deadline is None else deadline - time.monotonic()
            if not self._room_made.wait_for(lambda: self._samples < self._hold_samples or self._ended, left):
                return False
            edge = length_bucket(samples)
            group = self._groups.setdefault(edge, _Group(time.monotonic()))
            group.items.append(item)
            group.lengths.append(samples)
            self._items += 1
            self._samples += samples
            # The taker is left to sleep where this changes nothing for it.
            if len(group.items) == 1 or len(group.items) >= self._room(edge) or self._is_full():
                self._more_to_take.notify()
            return True

    def holds(self, item: T) -> bool:
        with self._lock:
            return any(one is item for group in self._groups.values() for one in group.items)

    def take(self) -> list[T] | None:
        """The next group, or None once ended and empty. Blocks until one is ready."""
        with self._lock:
            while True:
                edge, wait_s = self._choose()
                if edge is not None:
                    return self._pop(edge)
                if self._ended and not self._groups:
                    return None
                self._more_to_take.wait(wait_s)

    def end(self) -> None:
        """Nothing more will come: what is held leaves without waiting for company."""
        with self._lock:
            self._ended = True
            self._room_made.notify_all()
            self._more_to_take.notify_all()

    def _is_full(self) -> bool:
        return self._items >= self._hold_items or self._samples >= self._hold_samples

    def _room(self, edge: int) -> int:
        return max(1, min(self._most_items, self.most_samples // edge))

    def _choose(self) -> tuple[int | None, float | None]:
        """The bucket to take from now, or how long until there is one (None: until something is added)."""
        if not self._groups:
            return None, None
        now = time.monotonic()
        ready = [
            edge
            for edge, group in self._groups.items()
            if len(group.items) >= self._room(edge) or now - group.since >= self._wait_s
        ]
        if ready or self._ended:
            return min(ready or self._groups, key=lambda edge: self._groups[edge].since), None
        if self._is_full():
            return max(self._groups, key=lambda edge: sum(self._groups[edge].lengths)), None
        return None, min(group.since for group in self._groups.values()) + self._wait_s - now

    def _pop(self, edge: int) -> list[T]:
        group, room = self._groups.pop(edge), self._room(edge)
        if len(group.items) > room:
            # The rest keeps its age: it has waited as long as its first item could have.
            self._groups[edge] = _Group(group.since, group.items[room:], group.lengths[room:])
        taken = group.items[:room]
        self._items -= len(taken)
        self._samples -= sum(group.lengths[:room])
        self._room_made.notify_all()
        return taken
