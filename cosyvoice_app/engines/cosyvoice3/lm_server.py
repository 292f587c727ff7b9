"""One running batch of the language model for callers in many threads: rows join and leave between its steps.

There is no thread here. One of the callers who wait drives the batch for all: it takes in who stands in line, makes
steps, hands out the tokens, and passes the wheel on once it has what it wants. So nothing runs when nobody waits, and
nothing has to be ended.

A row is stepped while its caller wants more of it: at most `ahead` tokens lie ready. While others stand in line for a
slot every row runs on, so that it ends and makes room; what then lies ready is bounded by the row's `max_tokens`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from cosyvoice_app.engines.cosyvoice3.decoding import LmBatch, LmPrompt
from cosyvoice_app.engines.failure import translate
from cosyvoice_app.errors import EngineFailure, is_out_of_memory
from cosyvoice_app.types import CancelToken

_CHECK_S = 0.05
"""How often a caller who waits looks at its cancel token."""
_INTERRUPTED = "The engine was interrupted while it made this. Ask again."


class OnDevice(Protocol):
    """Runs `work` where and when the language model may compute. `brief` work computes nothing worth waiting for."""

    def __call__(self, work: Callable[[], Any], *, brief: bool = False) -> Any: ...


class _Row:
    """A caller's row: in line, in a slot, or over (ended, failed, left)."""

    def __init__(self, prompt: LmPrompt, lock: threading.Lock, *, ahead: int | None, whole: bool) -> None:
        self.prompt, self.ahead, self.whole = prompt, ahead, whole
        self.slot: int | None = None
        self.ready: deque[int] = deque()
        self.over = False
        self.error: Exception | None = None
        self.waits = False
        self.changed = threading.Condition(lock)

    @property
    def wants_more(self) -> bool:
        return self.ahead is None or len(self.ready) < self.ahead

    @property
    def has_news(self) -> bool:
        return self.over or (bool(self.ready) and not self.whole)


class LmServer:
    """`batch` belongs to this object alone; what it does on the device goes through `on_device`."""

    def __init__(self, batch: LmBatch, on_device: OnDevice) -> None:
        self._batch, self._on_device = batch, on_device
        self._lock = threading.Lock()
        """Guards what follows. The device works without it, for the one at the wheel."""
        self._driven = False
        self._closed = False
        self._line: deque[_Row] = deque()
        self._rows: dict[int, _Row] = {}
        self._to_release: list[int] = []
        self._too_many: int | None = None
        """So many rows, and no memory for one more."""

    @property
    def busy(self) -> bool:
        """Whether a row runs or waits, or a slot is still to be released."""
        with self._lock:
            return bool(self._rows or self._line or self._to_release)

    def tokens(self, prompt: LmPrompt, *, cancel: CancelToken, ahead: int | None = None) -> Generator[int, None, None]:
        """The speech ids of a row, one by one; `ahead` (at least 1, None = no limit) as above.

        Raises TextError for a prompt that can't be held, Cancelled, and OutOfMemory or EngineFailure for what a step
        raised. Close the generator or run it to its end: until then the row may hold a slot.
        """
        row = self._queue(prompt, ahead=ahead, whole=False)
        try:
            while True:
                self._wait(row, cancel)
                with self._lock:
                    if not row.ready:
                        return
                    token = row.ready.popleft()
                yield token
        finally:
            self._leave(row)

    def all_tokens(self, prompts: Sequence[LmPrompt], *, cancel: CancelToken) -> list[list[int]]:
        """All ids of each row, in order. What is wrong with one is raised, and the others are dropped."""
        rows: list[_Row] = []
        try:
            for prompt in prompts:
                rows.append(self._queue(prompt, ahead=None, whole=True))
            for row in rows:
                self._wait(row, cancel)
            return [list(row.ready) for row in rows]
        finally:
            for row in rows:
                self._leave(row)

    def close(self) -> None:
        """Rows that run or wait end with EngineFailure, and so does whoever comes later."""
        with self._lock:
            self._closed = True
            waiting = (*self._line,)
            self._line.clear()
            self._fail((*waiting, *self._rows.values()), _unloaded())
        self._tidy()

    def _queue(self, prompt: LmPrompt, *, ahead: int | None, whole: bool) -> _Row:
        self._batch.check(prompt)
        row = _Row(prompt, self._lock, ahead=ahead, whole=whole)
        with self._lock:
            if self._closed:
                raise _unloaded()
            self._line.append(row)
        return row

    def _wait(self, row: _Row, cancel: CancelToken) -> None:
        """Until there is news of `row`, driving where nobody does. Raises its error."""
        while True:
            cancel.check()
            with self._lock:
                if row.error is not None:
                    raise row.error
                if row.has_news:
                    return
                if self._driven:
                    row.waits = True
                    row.changed.wait(_CHECK_S)
                    row.waits = False
                    continue
                self._driven = True
            try:
                while not row.has_news:
                    cancel.check()
                    self._advance()
            finally:
                self._hand_over()

    def _leave(self, row: _Row) -> None:
        """The caller goes: its row gives up its place or its slot, at the latest after the step under way."""
        with self._lock:
            if row in self._line:
                self._line.remove(row)
            self._end(row)
        self._tidy()

    def _tidy(self) -> None:
        """Release what is to be released, if nobody drives (who drives does it)."""
        with self._lock:
            if self._driven:
                return
            self._driven = True
        try:
            self._release()
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        """Leave the wheel, and wake one who waits to take it."""
        with self._lock:
            self._driven = False
            for row in (*self._rows.values(), *self._line):
                if row.waits:
                    row.changed.notify()
                    return

    # With the lock held.

    def _end(self, row: _Row) -> None:
        row.over = True
        if row.slot is not None:
            del self._rows[row.slot]
            self._to_release.append(row.slot)
            row.slot = None
        row.changed.notify()

    def _fail(self, rows: Iterable[_Row], error: BaseException) -> None:
        for row in tuple(rows):
            # An error of its own for each: several threads raise it.
            row.error = translate(error) if isinstance(error, Exception) else EngineFailure(_INTERRUPTED)
            if row.error is not error:
                row.error.__cause__ = error
            self._end(row)

    # At the wheel, without the lock.

    def _advance(self) -> None:
        """Release, take in, make one step. Raises only what is nobody's error, such as an interrupt."""
        try:
            self._release()
            self._take_in()
            self._step()
        except BaseException as error:
            with self._lock:
                self._fail(self._rows.values(), error)
            self._release()
            if not isinstance(error, Exception):
                raise

    def _release(self) -> None:
        while True:
            with self._lock:
                if not self._to_release:
                    return
                slot = self._to_release.pop()
                self._too_many = None
            self._on_device(partial(self._batch.release, slot), brief=True)

    def _take_in(self) -> None:
        """The first in line, if there is room: one a step, since each prompt keeps the running rows waiting."""
        with self._lock:
            full = not self._batch.free or (self._too_many is not None and len(self._rows) >= self._too_many)
            if full or not self._line:
                return
            row = self._line.popleft()
        try:
            slot = self._on_device(lambda: self._batch.add(row.prompt))
        except BaseException as error:
            with self._lock:
                if is_out_of_memory(error) and self._rows and not row.over:
                    self._too_many = len(self._rows)
                    self._line.appendleft(row)
                else:
                    self._fail((row,), error)
            if not isinstance(error, Exception):
                raise
            return
        with self._lock:
            row.slot = slot
            self._rows[slot] = row
            if row.over:  # left meanwhile
                self._end(row)
            elif self._closed:
                self._fail((row,), _unloaded())

    def _step(self) -> None:
        with self._lock:
            slots = [slot for slot, row in self._rows.items() if self._line or row.wants_more]
        if not slots:
            return
        given = self._on_device(lambda: self._batch.step(slots))
        with self._lock:
            for slot, token in given.items():
                row = self._rows.get(slot)
                if row is None:
                    continue  # left meanwhile
                if token is None:
                    self._end(row)
                else:
                    row.ready.append(token)
                    if not row.whole:
                        row.changed.notify()


def _unloaded() -> EngineFailure:
    return EngineFailure("The engine was unloaded while this was asked of it. Ask again once it is loaded.")
