"""The service that the page, the API and their users share: one queue, one engine worker, files at the end.

One thread (`_loop`) hears everything the worker says and decides everything that follows. Callers only queue, cancel
and wait. The web process that holds this object never imports an engine or torch.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from cosyvoice_app.engines import registry
from cosyvoice_app.errors import AppError, Cancelled, NoEngine, TimedOut
from cosyvoice_app.outputs import OutputStore
from cosyvoice_app.serving.delivery import Delivery
from cosyvoice_app.serving.flights import Flight, Flights, capacity
from cosyvoice_app.serving.messages import (
    Cancel,
    FromWorker,
    Gone,
    JobChunk,
    JobDone,
    JobFailed,
    JobProgress,
    Loading,
    Ready,
    Report,
    Run,
)
from cosyvoice_app.serving.metrics import Metrics
from cosyvoice_app.serving.planner import Planner
from cosyvoice_app.serving.process import WorkerProcess
from cosyvoice_app.serving.queue import RequestQueue
from cosyvoice_app.serving.reports import Reports
from cosyvoice_app.serving.request import Chunk, Failed, Status, SynthesisRequest, Ticket, Working
from cosyvoice_app.serving.state import describe
from cosyvoice_app.serving.supervisor import Limits, Supervisor
from cosyvoice_app.serving.ticket import RequestTicket
from cosyvoice_app.serving.vram import WorkerMemory
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.frontend import FrontEnd
from cosyvoice_app.text.pronunciations import NONE, Pronunciations
from cosyvoice_app.types import Capabilities
from cosyvoice_app.voices.cache import CacheCounts

log = logging.getLogger(__name__)

_TICK_S = 0.2
_FIRST_GUESS_S = 5.0
"""How long a request is taken to last until one has been seen."""


class EngineService:
    """Implements `serving.request.Service`."""

    def __init__(self, settings: Settings, *, outputs: OutputStore | None = None, limits: Limits | None = None) -> None:
        self._settings = settings
        self._limits = limits or Limits()
        self._planner = Planner(settings)
        self._expected = registry.capabilities(settings)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inbox: queue.SimpleQueue[tuple[WorkerProcess, FromWorker] | None] = queue.SimpleQueue()
        self._queue = RequestQueue(settings.max_queue)
        self._flights = Flights()
        self._typical_s = _FIRST_GUESS_S
        self._reports = Reports()
        self._memory = WorkerMemory()
        self._restarting: Future[tuple[Status, Status]] | None = None
        self._draining = False
        self._closed = False
        self._watched_at = 0.0
        self._started_at = time.monotonic()
        self._metrics = Metrics(waiting=lambda: len(self._queue), running=lambda: self._flights.wanted)
        self._delivery = Delivery(outputs or OutputStore(settings.outputs), self._metrics, self._fail)
        self._engine = Supervisor(settings, self._limits, on_lost=self._fail_running,
                                  on_message=lambda process, message: self._inbox.put((process, message)),
                                  on_started=self._metrics.worker_started)
        self._thread = threading.Thread(target=self._loop, name="engine-service", daemon=True)

    # What callers do.

    def start(self) -> None:
        """Start loading the engine and return at once."""
        with self._lock:
            self._engine.start()
        self._thread.start()

    def submit(self, request: SynthesisRequest) -> Ticket:
        try:
            return self._submit(request)
        except AppError as error:
            self._metrics.refused(error.type)
            raise

    def _submit(self, request: SynthesisRequest) -> Ticket:
        job = self._planner.job(request, self.capabilities())
        ticket = RequestTicket(request, job, self._cancel)
        with self._lock:
            self._refuse_without_engine()
            self._queue.push(ticket, retry_after_s=self._retry_after_s())
        self._inbox.put(None)
        return ticket

    def capabilities(self) -> Capabilities | None:
        """The loaded engine's, or those of the engine that is going to be loaded; None while that is unknown."""
        with self._lock:
            facts = self._engine.facts or self._engine.last_facts
        return facts.capabilities if facts else self._expected

    def read(self, text: str, own: Pronunciations = NONE) -> tuple[FrontEnd, tuple[str, ...]]:
        """What would be spoken, and what the engine would leave out. Raises TextError as `submit` would."""
        return self._planner.read(text, own, self.capabilities())

    def status(self) -> Status:
        answer, memory = self._ask(), self._memory_now()
        with self._lock:
            return describe(
                self._engine, self._settings, answer, self._reports.last, memory, silent_s=self._limits.answer_s,
                queue=len(self._queue), running=self._flights.wanted, draining=self._draining,
                uptime_s=time.monotonic() - self._started_at)

    def restart(self, *, drain: bool = False) -> tuple[Status, Status]:
        """A second call while one is under way waits for the same restart; one without `drain` ends the other's
        patience."""
        with self._lock:
            current = self._restarting
            mine: Future[tuple[Status, Status]] = Future()
            if current is None:
                self._restarting = mine
                self._draining = drain
            elif not drain:
                self._draining = False
            self._changed.notify_all()
        if current is not None:
            return current.result()
        try:
            self._drain()
            mine.set_result(self._end("respawn", "The engine was restarted while this request ran. Send it again."))
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                self._restarting = None
                self._draining = False
        return mine.result()

    def unload(self) -> tuple[Status, Status]:
        """Waiting requests are refused too: nothing would ever serve them."""
        return self._end("unload", "The engine was unloaded. Load it, then send the request again.")

    def load(self) -> Status:
        with self._lock:
            self._raise_if_closed()
            self._engine.start("load")
        self._wait_settled()
        return self.status()

    def metrics(self) -> bytes:
        """Prometheus text."""
        answer = self._ask()  # its counts were told as they came
        self._metrics.worker.tell(None, {**(answer.memory if answer else {}), **self._memory_now()})
        return self._metrics.text()

    def refused(self, reason: str) -> None:
        self._metrics.refused(reason)

    def watch_cache(self, name: str, counts: Callable[[], CacheCounts]) -> None:
        self._metrics.worker.watch_cache(name, counts)

    def close(self) -> None:
        """End the worker; everyone who still waits is told."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            gone = NoEngine("The server is shutting down.")
            self._fail_waiting(gone)
            process = self._engine.end("unload", gone)
            self._changed.notify_all()
        if process is not None:
            process.stop(self._limits.stop_s)
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._delivery.close()
        self._memory.close()
        with self._lock:
            self._changed.notify_all()

    # What the loop does.

    def _loop(self) -> None:
        while not self._closed:
            try:
                item = self._inbox.get(timeout=_TICK_S)
            except queue.Empty:
                item = None
            try:
                with self._lock:
                    if item is not None:
                        self._handle(*item)
                    self._watch()
                    self._refuse_waiting()
                    self._dispatch()
                    self._changed.notify_all()
            except Exception:
                log.exception("the service met an error of its own and goes on")

    def _handle(self, process: WorkerProcess, message: FromWorker) -> None:
        present = process is self._engine.process
        if self._engine.handle(process, message):
            if not present:
                return
            if isinstance(message, Loading):
                for ticket in self._queue:
                    ticket.post(Working(self._engine.loading_progress))
            if isinstance(message, Ready):
                self._flights.capacity = capacity(self._settings.max_batch, message.facts.capabilities)
            if isinstance(message, Gone):
                self._metrics.worker.ended()
                self._reports.forget()
        elif isinstance(message, Report):
            self._metrics.worker.tell(message)
            self._reports.answer(message)
        elif isinstance(message, JobProgress | JobChunk | JobDone | JobFailed):
            flight = self._flights.get(message.job_id)
            if flight is not None:
                self._heard(flight, message)

    def _heard(self, flight: Flight, message: JobProgress | JobChunk | JobDone | JobFailed) -> None:
        ticket = flight.ticket
        match message:
            case JobProgress():
                ticket.post(Working(message.progress))
            case JobChunk():
                ticket.first_audio_at = ticket.first_audio_at or time.monotonic()
                ticket.post(Chunk(message.audio, message.index))
            case JobFailed():
                self._flights.remove(ticket.id)
                self._fail(ticket, AppError.from_dict(message.error))
                if message.poisoned:
                    self._engine.expect_end()
            case JobDone():
                self._flights.remove(ticket.id)
                self._engine.job_succeeded()
                self._typical_s += 0.2 * (time.monotonic() - (ticket.started_at or 0.0) - self._typical_s)
                facts = self._engine.facts
                if facts is not None and not ticket.ended:
                    self._delivery.hand_over(ticket, message.spoken, facts)

    def _watch(self) -> None:
        """What time brings: hangs, due restarts, deadlines. Looks at every request, so not at every message."""
        if len(self._queue) or len(self._flights):
            self._engine.note_activity()
        self._engine.tick()
        now = time.monotonic()
        if now - self._watched_at < _TICK_S / 2:
            return
        self._watched_at = now
        for ticket in self._queue:
            waited_s = now - ticket.submitted_at
            if waited_s > self._settings.queue_timeout_s:
                self._give_up(ticket, TimedOut(
                    f"The request waited longer than the {self._settings.queue_timeout_s} s allowed and was given up. "
                    "Send it again when fewer are waiting, or raise --queue-timeout-s."))
            elif (late := ticket.late(now)) is not None:
                self._give_up(ticket, late)
        for flight in self._flights:
            if flight.abandoned_at is None:
                self._watch_running(flight, now)
        for ticket in self._delivery.pending():
            if (late := ticket.late(now)) is not None:
                self._fail(ticket, late)
        if self._flights.stuck(now, self._limits.cancel_s) and (
                not self._flights.wanted or self._flights.stuck(now, 2 * self._limits.cancel_s)):
            self._engine.replace(TimedOut("The engine did not let go of a stopped request and was replaced, which "
                                          "ended this one too. Send it again."))

    def _watch_running(self, flight: Flight, now: float) -> None:
        ticket = flight.ticket
        late = ticket.late(now)
        if late is None and ticket.started_at is not None and now - ticket.started_at > self._settings.timeout_s:
            late = TimedOut(f"The request ran longer than the {self._settings.timeout_s} s allowed and was stopped. "
                            "Try a shorter text, or raise --timeout-s.")
        if late is not None:
            self._abandon(flight, late)

    def _dispatch(self) -> None:
        """Hand on what waits, unless the worker must soon go: for a restart, or because it won't let go of a job."""
        if self._draining or self._delivery.is_full or self._flights.stuck(time.monotonic(), self._limits.cancel_s):
            return
        while self._engine.state == "ready" and len(self._queue) and self._flights.has_room:
            if self._engine.trial and len(self._flights):
                return
            ticket = self._queue.pop()
            if not ticket.ended:
                self._flights.add(ticket)
                self._engine.send(Run(ticket.id, ticket.job, ticket.request.priority))

    # How requests end badly.

    def _cancel(self, ticket: RequestTicket) -> None:
        with self._lock:
            flight = self._flights.get(ticket.id)
            if self._queue.remove(ticket):
                self._fail(ticket, Cancelled("The request was stopped before it began."))
            elif flight is not None and flight.abandoned_at is None:
                self._abandon(flight, Cancelled("The request was stopped."))
            else:  # its audio is being saved
                self._fail(ticket, Cancelled("The request was stopped."))
            self._changed.notify_all()

    def _give_up(self, ticket: RequestTicket, error: AppError) -> None:
        if self._queue.remove(ticket):
            self._fail(ticket, error)

    def _abandon(self, flight: Flight, error: AppError) -> None:
        """Tell the owner at once; the worker lets go at its next step, and is replaced if it does not."""
        flight.abandoned_at = time.monotonic()
        self._engine.send(Cancel(flight.ticket.id))
        self._fail(flight.ticket, error)

    def _fail(self, ticket: RequestTicket, error: AppError) -> None:
        if ticket.post(Failed(error)):
            self._metrics.failed(error.type)

    def _fail_running(self, error: AppError) -> None:
        for ticket in self._flights.clear():
            self._fail(ticket, error)

    def _refuse_waiting(self) -> None:
        """Nobody waits for an engine that will not come."""
        refusal = self._engine.refusal()
        if refusal is not None:
            self._fail_waiting(refusal)

    def _fail_waiting(self, error: AppError) -> None:
        for ticket in self._queue.drain():
            self._fail(ticket, error)

    # Helpers of the callers.

    def _drain(self) -> None:
        """Wait until nothing runs, if the restart is to be a patient one. Nothing runs longer than its time-out."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._draining or not self._flights.wanted)

    def _end(self, then: str, why: str) -> tuple[Status, Status]:
        before = self.status()
        with self._lock:
            self._raise_if_closed()
            error = NoEngine(why, retry_after_s=5)
            if then == "unload":
                self._fail_waiting(error)
            process = self._engine.end("unload" if then == "unload" else "respawn", error)
            self._changed.notify_all()
        if process is not None:
            process.stop(self._limits.stop_s)
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._engine.process is not process)
        self._wait_settled()
        return before, self.status()

    def _wait_settled(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._engine.state != "loading")

    def _memory_now(self) -> dict[str, int]:
        """As the system has it. Not with the lock held: a driver may take its time."""
        with self._lock:
            pid, device = self._engine.last_pid, self._engine.last_facts.device if self._engine.last_facts else ""
        return self._memory.read(pid, device)

    def _ask(self) -> Report | None:
        process = self._engine.process
        return None if process is None or self._closed else self._reports.ask(process, self._limits.answer_s)

    def _retry_after_s(self) -> int:
        """When a place in the full queue should be free: as soon as one request more has ended."""
        return max(1, min(600, math.ceil(self._typical_s)))

    def _refuse_without_engine(self) -> None:
        self._raise_if_closed()
        refusal = self._engine.refusal()
        if refusal is not None:
            raise refusal

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise NoEngine("The server is shutting down.")
