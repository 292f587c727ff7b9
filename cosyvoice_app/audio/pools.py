"""Buffers made once and used again: a bounded pool whose buffers are never handed out while a stream still uses them.

All are made beforehand, for the largest size that is usual. What is larger still is rounded up to a power of two, and
a larger idle buffer serves a smaller need, so that exceptions too soon find a buffer that is there already.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cosyvoice_app.errors import QueueFull

_SMALLEST_BYTES = 1 << 16


class Mark(Protocol):
    """A point in a stream's work; torch.cuda.Event is one."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class PoolClosed(Exception):
    """The pool was closed while, or before, a buffer was asked for."""


@dataclass(slots=True, eq=False)
class Buffer:
    """`data` is uint8 [capacity], aligned for every dtype; `busy_until` is the last use of it by a stream."""

    data: Tensor
    busy_until: Mark | None = None

    @property
    def capacity(self) -> int:
        return self.data.numel()

    def is_ready(self) -> bool:
        return self.busy_until is None or self.busy_until.query()


@dataclass(frozen=True, slots=True)
class PoolStats:
    """`allocations` counts those made beforehand too. `waits` counts requests that found every buffer in use."""

    allocations: int
    waits: int
    in_use: int
    idle: int
    bytes: int


def rounded_size(size: int) -> int:
    """The power of two, at least 64 KiB, that holds `size` bytes."""
    return max(_SMALLEST_BYTES, 1 << max(0, size - 1).bit_length())


class BufferPool:
    """At most `count` buffers on `device`, in use and idle together. Safe to use from several threads.

    `prepared` bytes are the size of those made beforehand. `pinned` asks for page-locked host memory, from which a copy
    to the device can overlap with work. A buffer above `keep_bytes` (made for one exceptional request) is given back to
    the system instead of kept.
    """

    def __init__(
        self, count: int, *, prepared: int = 0, device: str = "cpu", pinned: bool = False, keep_bytes: int = 1 << 30
    ) -> None:
        self._count, self._keep_bytes = count, keep_bytes
        self._device, self._pinned = torch.device(device), pinned
        self._changed = threading.Condition()
        self._idle: list[Buffer] = []
        self._in_use: set[int] = set()
        self._making = self._allocations = self._waits = self._bytes = 0
        self._closed = False
        if prepared:
            for buffer in [self._make(rounded_size(prepared)) for _ in range(count)]:
                self.release(buffer)

    def acquire(self, size: int, *, timeout: float | None = None) -> Buffer:
        """A buffer of at least `size` bytes that no stream uses any more; waits while all are in use.

        Raises QueueFull after `timeout` seconds, PoolClosed, and whatever the allocator says (the pool stays whole).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waited = False
        with self._changed:
            while True:
                if self._closed:
                    raise PoolClosed
                found = self._take_idle(size)
                if found is not None or self._has_room():
                    break
                self._waits += not waited
                waited = True
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise QueueFull(f"All {self._count} buffers are in use. Try again when less is running.")
                self._changed.wait(left)
            too_small = self._give_up_one() if found is None else None
        # Outside the lock, so that others may go on meanwhile.
        if found is not None:
            self._settle(found)
            return found
        try:
            if too_small is not None and too_small.busy_until is not None:
                too_small.busy_until.synchronize()
            del too_small
            return self._make(rounded_size(size))
        finally:
            with self._changed:
                self._making -= 1
                self._changed.notify_all()

    def release(self, buffer: Buffer, busy_until: Mark | None = None) -> None:
        """Give a buffer back. Streams may still use it until `busy_until` is passed."""
        with self._changed:
            if id(buffer) not in self._in_use:
                raise ValueError("The buffer is not one that this pool has handed out.")
            buffer.busy_until = busy_until
            keep = buffer.capacity <= self._keep_bytes and not self._closed
        try:
            if not keep and busy_until is not None:
                busy_until.synchronize()
        finally:
            with self._changed:
                self._in_use.remove(id(buffer))
                if keep and not self._closed:
                    self._idle.append(buffer)
                else:
                    self._bytes -= buffer.capacity
                self._changed.notify_all()

    def close(self) -> None:
        """Let go of idle buffers and wake who waits; buffers in use are let go when they are given back."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._bytes -= sum(buffer.capacity for buffer in idle)
            self._changed.notify_all()
        for buffer in idle:
            if buffer.busy_until is not None:
                with contextlib.suppress(RuntimeError):  # a device that failed doesn't use it any more
                    buffer.busy_until.synchronize()

    def stats(self) -> PoolStats:
        with self._changed:
            return PoolStats(self._allocations, self._waits, len(self._in_use), len(self._idle), self._bytes)

    def _take_idle(self, size: int) -> Buffer | None:
        """The smallest idle buffer that is large enough, ready ones first, and the last used, which caches may know."""
        fitting = [buffer for buffer in reversed(self._idle) if buffer.capacity >= size]
        if not fitting:
            return None
        best = min(fitting, key=lambda buffer: (not buffer.is_ready(), buffer.capacity))
        self._idle.remove(best)
        self._in_use.add(id(best))
        return best

    def _has_room(self) -> bool:
        return bool(self._idle) or len(self._in_use) + self._making < self._count

    def _give_up_one(self) -> Buffer | None:
        """Reserve a place for a buffer to be made; when all are taken, the smallest idle one makes way."""
        self._making += 1
        if len(self._idle) + len(self._in_use) + self._making <= self._count:
            return None
        smallest = min(self._idle, key=lambda buffer: (not buffer.is_ready(), buffer.capacity))
        self._idle.remove(smallest)
        self._bytes -= smallest.capacity
        return smallest

    def _settle(self, buffer: Buffer) -> None:
        """Wait until no stream uses the buffer; returns at once when its mark was passed long ago."""
        try:
            if buffer.busy_until is not None:
                buffer.busy_until.synchronize()
        except BaseException:
            # The device failed: the buffer is let go, so that those who wait for one are told so too.
            with self._changed:
                self._in_use.remove(id(buffer))
                self._bytes -= buffer.capacity
                self._changed.notify_all()
            raise
        buffer.busy_until = None

    def _make(self, capacity: int) -> Buffer:
        buffer = Buffer(torch.empty(capacity, dtype=torch.uint8, device=self._device, pin_memory=self._pinned))
        with self._changed:
            self._allocations += 1
            self._bytes += capacity
            self._in_use.add(id(buffer))
        return buffer
