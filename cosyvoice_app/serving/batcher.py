"""Joins what many jobs ask of one engine into batches, and lets one call at a time onto the device.

    job threads ──predict, decode, encode──► calls that wait ──► one lane thread ──► engine

Jobs share the lane as clients share the queue, segment by segment: who had fewest since he came is next, the older one
of two, so a long text yields to a short one that came later and yet goes on. A segment of a batch job costs eight.
Others of the same kind and of similar length go with the next, up to `max_rows`. The lane waits for more only while a
job that is not waiting here yet is known to be on its way, and at most `wait_ms`: a job alone never waits. A row's
result must not depend on its batch; that is the engine's law, so nothing here can change what anyone hears.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from cosyvoice_app.engines.base import Engine, StreamingEngine
from cosyvoice_app.engines.failure import is_poisonous, release_memory
from cosyvoice_app.errors import Cancelled, EngineFailure, is_out_of_memory
from cosyvoice_app.serving.batches import StageCounts
from cosyvoice_app.serving.request import Priority
from cosyvoice_app.text.sizes import sounds
from cosyvoice_app.types import Audio, CancelToken, Row, Voice

log = logging.getLogger(__name__)

Stage = Literal["predict", "decode"]

_LOOK_S = 0.05
"""How often a waiting job looks whether it was cancelled."""
_SIMILAR = 2.0
"""Rows longer than others by more than this factor have no batch with them: the short one would wait for the long."""
_COST = {"interactive": 1.0, "batch": 8.0}
"""Of a segment, in turns."""
_FIT_COST = 1.0
"""Of the work between two checks while a voice is made, whoever asks: others may wait for the same voice."""
_GROW_AFTER = 50
"""So many batches without running out of memory, and batches may have one row more again."""


@dataclass(slots=True, eq=False)
class _Call:
    """One thing asked of the device. `done` is set when the caller may go on; a turn ends with `given_back`."""

    job: JobStages
    stage: Stage | Literal["turn"]
    cancel: CancelToken
    row: Row | None = None
    features: Any = None
    result: Any = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    given_back: threading.Event = field(default_factory=threading.Event)
    batch: Sequence[_Call] = ()
    """Those with whom it is on the device."""
    size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.row is not None:
            self.size = sounds(self.row.segment.pieces)

    @property
    def order(self) -> tuple[float, int]:
        return self.job.tag + self.cost, self.job.number

    @property
    def cost(self) -> float:
        return _FIT_COST if self.stage == "turn" else self.job.cost

    @property
    def unwanted(self) -> bool:
        """On the device, and nobody wants what comes of it."""
        return bool(self.batch) and all(_is_cancelled(call.cancel) for call in self.batch)


class _AllCancelled:
    """The token of a batch: cancelled when none of its rows is wanted any more."""

    def __init__(self, calls: Sequence[_Call]) -> None:
        self._calls = calls

    def check(self) -> None:
        if all(_is_cancelled(call.cancel) for call in self._calls):
            raise Cancelled("No row of the batch is wanted any more.")


def _is_cancelled(token: CancelToken) -> bool:
    try:
        token.check()
    except Cancelled:
        return True
    return False


class BatchedStages:
    """One for an engine. Jobs announce themselves with `job` and call through what it gives them."""

    def __init__(self, engine: Engine, *, max_batch: int, wait_ms: int) -> None:
        """No batch has more than `max_batch` rows, or than the engine finds useful."""
        self.engine = engine
        self.max_rows = max(1, min(max_batch, engine.capabilities.max_rows))
        self.counts: dict[str, StageCounts] = {"predict": StageCounts(), "decode": StageCounts()}
        self._rows_now = self.max_rows
        self._good_batches = 0
        self._wait_s = wait_ms / 1000.0
        self._numbers = itertools.count()
        self._virtual = 0.0
        self._changed = threading.Condition()
        self._waiting: list[_Call] = []
        self._jobs: set[JobStages] = set()
        self._closed = False
        self._lane = threading.Thread(target=self._run, name="device-lane", daemon=True)
        self._lane.start()

    @contextmanager
    def job(self, priority: Priority) -> Iterator[JobStages]:
        """The stages as one job calls them."""
        with self._changed:
            job = JobStages(self, next(self._numbers), _COST[priority], self._virtual)
            self._jobs.add(job)
        try:
            yield job
        finally:
            with self._changed:
                self._jobs.discard(job)
                self._changed.notify_all()

    def close(self) -> None:
        """End the lane. Calls that still wait fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._lane.join()

    # What jobs call.

    def ask(self, call: _Call) -> Any:
        """Wait for the call's result, or raise its error, or Cancelled at once when the job is stopped; but a call that
        has the device for nobody else is waited for, so that an engine that never lets go is seen."""
        call.cancel.check()
        with self._changed:
            if self._closed:
                raise EngineFailure("The engine is being ended.")
            self._waiting.append(call)
            call.job.calls += 1
            self._changed.notify_all()
        try:
            while not call.done.wait(_LOOK_S):
                if not call.unwanted:
                    call.cancel.check()
        finally:
            with self._changed:
                if call in self._waiting:
                    self._waiting.remove(call)
                call.job.calls -= 1
                if call.stage != "turn":
                    call.job.next_stage = "decode" if call.stage == "predict" else "predict"
                if call.stage == "decode":
                    call.job.tag += call.cost
                self._changed.notify_all()
        if call.error is not None:
            raise call.error
        return call.result

    @contextmanager
    def turn(self, job: JobStages, cancel: CancelToken) -> Iterator[None]:
        """The device to oneself, until the end of the block."""
        call = _Call(job, "turn", cancel)
        try:
            self.ask(call)
            yield
        finally:
            with self._changed:
                job.tag += call.cost
            call.given_back.set()  # also when it was granted the moment the job was stopped

    @contextmanager
    def aside(self, job: JobStages) -> Iterator[None]:
        """Nobody waits for this job: it does something long elsewhere."""
        with self._changed:
            job.aside_for += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                job.aside_for -= 1

    def others_wait(self) -> bool:
        return bool(self._waiting)

    # The lane.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    break
                calls = self._gather()
            try:
                if calls:
                    self._serve(calls)
            except BaseException as error:  # the lane must live: without it nobody is served, and nobody would know
                log.exception("the lane met an error of its own and goes on")
                for call in calls:
                    if not call.done.is_set():
                        _settle(call, error=EngineFailure(f"The engine failed on this request ({error})."))
            del calls  # the lane must not keep a batch's audio until the next one comes
        for call in self._waiting:
            _settle(call, error=EngineFailure("The engine was ended."))

    def _gather(self) -> list[_Call]:
        """The next batch, taken out of the waiting calls. Waits, holding the lock only between looks."""
        until = time.monotonic() + self._wait_s
        while True:
            if not self._waiting or self._closed:
                return []
            calls = self._next_batch()
            left_s = until - time.monotonic()
            full = calls[0].stage == "turn" or len(calls) >= self._rows_now
            if full or left_s <= 0 or not any(job.comes_for(calls[0].stage) for job in self._jobs):
                break
            self._changed.wait(left_s)
        for call in calls:
            self._waiting.remove(call)
        self._virtual = max(self._virtual, calls[0].job.tag)
        return calls

    def _next_batch(self) -> list[_Call]:
        waiting = sorted(self._waiting, key=lambda call: call.order)
        head = waiting[0]
        if head.stage == "turn":
            return [head]
        fitting = [call for call in waiting if call.stage == head.stage
                   and call.size <= _SIMILAR * head.size and head.size <= _SIMILAR * call.size]
        return fitting[: self._rows_now]

    def _serve(self, calls: list[_Call]) -> None:
        if calls[0].stage == "turn":
            (call,) = calls
            call.done.set()
            call.given_back.wait()
            return
        wanted = [call for call in calls if not _is_cancelled(call.cancel)]
        if wanted:
            self._batch(wanted)

    def _batch(self, calls: list[_Call]) -> bool:
        """Run a batch. One row's failure costs nobody else: what fails together is run again in parts. False when a row
        ran out of memory all alone."""
        stage = calls[0].stage
        assert stage != "turn"
        for call in calls:
            call.batch = calls
        counts = self.counts[stage]
        started = time.perf_counter()
        try:
            results = self._call(stage, calls)
        except Exception as error:  # noqa: BLE001 - handed to whoever asked
            counts.busy_s += time.perf_counter() - started
            if len(calls) == 1 or is_poisonous(error) or isinstance(error, Cancelled):
                for call in calls:
                    _settle(call, error=error)
                return not is_out_of_memory(error)
            again = error
        else:
            counts.busy_s += time.perf_counter() - started
            counts.add(len(calls))
            self._grow()
            for call, result in zip(calls, results, strict=True):
                _settle(call, result=result)
            return True
        rows_before = self._rows_now
        if is_out_of_memory(again):
            self._rows_now, self._good_batches = max(1, len(calls) // 2), 0
            counts.halved += 1
            parts = [calls[: len(calls) // 2], calls[len(calls) // 2 :]]
        else:
            parts = [[call] for call in calls]
        del again  # its traceback holds the batch's tensors
        release_memory()
        fits = all([self._batch(part) for part in parts])  # noqa: C419 - every part, whatever another does
        if not fits:
            self._rows_now = rows_before  # it was one row too large for the device, not the batch
        return fits

    def _call(self, stage: Stage, calls: Sequence[_Call]) -> list[Any]:
        rows = [call.row for call in calls if call.row is not None]
        cancel = _AllCancelled(calls)
        results: list[Any]
        if stage == "predict":
            results = self.engine.acoustic_model.predict(rows, cancel=cancel)
        else:
            results = self.engine.vocoder.decode([call.features for call in calls], rows, cancel=cancel)
        if len(results) != len(rows):
            raise EngineFailure(f"The engine gave {len(results)} results for {len(rows)} segments.")
        return results

    def _grow(self) -> None:
        self._good_batches += 1
        if self._rows_now < self.max_rows and self._good_batches >= _GROW_AFTER:
            self._rows_now, self._good_batches = self._rows_now + 1, 0


def _settle(call: _Call, *, result: Any = None, error: BaseException | None = None) -> None:
    call.result, call.error = result, error
    call.done.set()


class _Yielding:
    """The cancel token of a turn: at each check, whoever else waits gets the device for one call first."""

    def __init__(self, give_way: Callable[[], None], cancel: CancelToken) -> None:
        self._give_way, self._cancel = give_way, cancel

    def check(self) -> None:
        self._cancel.check()
        self._give_way()


class JobStages:
    """Implements `engines.stages.Stages` for one job. The counts are the lane's: it reads and writes them under its
    lock."""

    def __init__(self, stages: BatchedStages, number: int, cost: float, tag: float) -> None:
        """`tag`: the turns that jobs of its standing had when it came, and then its own on top."""
        self._stages = stages
        self.number = number
        self.cost = cost
        self.tag = tag
        self.calls = 0
        self.aside_for = 0
        self.next_stage: Stage = "predict"

    def comes_for(self, stage: str) -> bool:
        """Is it on its way to ask for `stage`?"""
        return not self.calls and not self.aside_for and self.next_stage == stage

    def aside(self) -> AbstractContextManager[None]:
        return self._stages.aside(self)

    def encode(self, make: Callable[[CancelToken], Voice], *, cancel: CancelToken) -> Voice:
        stages = self._stages
        with ExitStack() as held:
            held.enter_context(stages.turn(self, cancel))

            def give_way() -> None:
                if stages.others_wait():
                    held.close()
                    held.enter_context(stages.turn(self, cancel))

            return make(_Yielding(give_way, cancel))

    def predict(self, row: Row, *, cancel: CancelToken) -> Any:
        engine = self._stages.engine
        if not engine.capabilities.concurrent:
            return self._stages.ask(_Call(self, "predict", cancel, row))
        with self.aside():
            (features,) = engine.acoustic_model.predict([row], cancel=cancel)
        self.next_stage = "decode"
        return features

    def decode(self, features: Any, row: Row, *, cancel: CancelToken) -> Audio:
        audio: Audio = self._stages.ask(_Call(self, "decode", cancel, row, features))
        return audio

    def stream(self, row: Row, *, cancel: CancelToken) -> Iterator[Audio]:
        stages, engine = self._stages, self._stages.engine
        if not isinstance(engine, StreamingEngine):
            raise TypeError(f"the engine {engine.name} gives out no parts of a segment")
        alone = not engine.capabilities.concurrent
        with self.aside(), closing(_generator(engine.streamer.stream(row, cancel=cancel))) as pieces:
            while True:
                with stages.turn(self, cancel) if alone else nullcontext():
                    piece = next(pieces, None)
                if piece is None:
                    return
                yield piece


def _generator(pieces: Iterator[Audio]) -> Generator[Audio, None, None]:
    yield from pieces
