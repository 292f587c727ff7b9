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
from dataclasses import replace

from cosyvoice_app.engines import registry
from cosyvoice_app.errors import AppError, Cancelled, NoEngine, TimedOut
from cosyvoice_app.outputs import OutputStore, describe, describe_prompt
from cosyvoice_app.pipeline import EngineFacts, Spoken, plan
from cosyvoice_app.serving.messages import (
    Cancel,
    FromWorker,
    Gone,
    JobChunk,
    JobDone,
    JobFailed,
    JobProgress,
    Loading,
    Report,
    Run,
)
from cosyvoice_app.serving.metrics import Metrics
from cosyvoice_app.serving.process import WorkerProcess
from cosyvoice_app.serving.queue import RequestQueue, RequestTicket
from cosyvoice_app.serving.reports import Reports
from cosyvoice_app.serving.request import (
    Chunk,
    Done,
    Failed,
    Status,
    SynthesisRequest,
    SynthesisResult,
    Ticket,
    Working,
)
from cosyvoice_app.serving.supervisor import Limits, Supervisor
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.frontend import DEFAULT_LIMITS, FrontEnd, prepare
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.text.notices import unspoken
from cosyvoice_app.text.pronunciation_file import PronunciationFile
from cosyvoice_app.text.pronunciations import NONE, Pronunciations
from cosyvoice_app.types import Capabilities

log = logging.getLogger(__name__)

_TICK_S = 0.2
_FIRST_GUESS_S = 5.0
"""How long a request is taken to last until one has been seen."""


class EngineService:
    """Implements `serving.request.Service`."""

    def __init__(self, settings: Settings, *, outputs: OutputStore | None = None, limits: Limits | None = None) -> None:
        self._settings = settings
        self._limits = limits or Limits()
        self._outputs = outputs or OutputStore(settings.outputs)
        self._pronunciations = PronunciationFile(settings.pronunciations)
        self._expected = registry.capabilities(settings)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inbox: queue.SimpleQueue[tuple[WorkerProcess, FromWorker] | None] = queue.SimpleQueue()
        self._queue = RequestQueue(settings.max_queue)
        self._running: RequestTicket | None = None
        self._abandoned_at: float | None = None
        self._typical_s = _FIRST_GUESS_S
        self._reports = Reports()
        self._restarting: Future[tuple[Status, Status]] | None = None
        self._closed = False
        self._started_at = time.monotonic()
        self._metrics = Metrics(waiting=lambda: len(self._queue), running=lambda: int(self._running is not None))
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
        entries, trouble = self._pronunciations.current()
        job = plan(request.clip, request.text, seed=request.seed, max_chars=self._settings.max_chars,
                   transcript=request.prompt_text, instruct=request.instruct, speed=request.speed,
                   refine=request.refine, engine=self.capabilities(),
                   pronunciations=request.pronunciations.over(entries))
        job = replace(job, stream=request.stream, warnings=(*job.warnings, *trouble))
        ticket = RequestTicket(request, job, self._cancel)
        with self._lock:
            self._refuse_without_engine()
            self._queue.push(ticket, retry_after_s=self._retry_after_s())
        self._inbox.put(None)
        return ticket

    def capabilities(self) -> Capabilities | None:
        """The loaded engine's, or those of the engine that is going to be loaded; None while that is unknown."""
        with self._lock:
            facts = self._engine.facts
        return facts.capabilities if facts else self._expected

    def read(self, text: str, own: Pronunciations = NONE) -> tuple[FrontEnd, tuple[str, ...]]:
        """What would be spoken, and what the engine would leave out. Raises TextError as `submit` would."""
        entries, trouble = self._pronunciations.current()
        engine = self.capabilities()
        front = prepare(text, max_chars=self._settings.max_chars, limits=engine.split if engine else DEFAULT_LIMITS,
                        pronunciations=own.over(entries),
                        languages=engine.languages if engine else NATIVE_LANGUAGES)
        return front, (*(unspoken(front.segments, engine) if engine else ()), *trouble)

    def status(self) -> Status:
        answer = self._ask()
        with self._lock:
            engine, facts = self._engine, self._engine.facts
            warnings = _device_warnings(self._settings.device, facts, answer)
            if answer is None and engine.process is not None:
                warnings += (f"The engine process did not answer within {self._limits.answer_s:g} s; "
                             "its memory and devices are the last it reported.",)
                answer = self._reports.last
            return Status(
                state=engine.state, detail=engine.detail,
                engine=facts.engine if facts else self._settings.engine,
                device=facts.device if facts else "",
                device_reason=facts.device_reason if facts else "",
                precision=facts.precision if facts else "",
                model_hash=facts.model_hash if facts else "",
                components=answer.components if answer else {},
                memory=answer.memory if answer else {"rss": 0, "device_allocated": 0, "device_reserved": 0},
                capabilities=facts.capabilities if facts else None,
                queue=len(self._queue), running=int(self._running is not None and self._abandoned_at is None),
                uptime_s=time.monotonic() - self._started_at,
                worker_pid=engine.process.pid if engine.process else None, warnings=warnings,
            )

    def restart(self, *, drain: bool = False) -> tuple[Status, Status]:
        """A second call while one is under way waits for the same restart."""
        with self._lock:
            current = self._restarting
            mine: Future[tuple[Status, Status]] = Future()
            if current is None:
                self._restarting = mine
        if current is not None:
            return current.result()
        try:
            mine.set_result(self._end("respawn", "The engine was restarted while this request ran. Send it again."))
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                self._restarting = None
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
        answer = self._ask()
        return self._metrics.text(answer.memory if answer else {})

    def close(self) -> None:
        """End the worker; everyone who still waits is told."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            gone = NoEngine("The server is shutting down.")
            self._fail_waiting(gone)
            process = self._engine.end("unload", gone)
        if process is not None:
            process.stop(self._limits.stop_s)
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()
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
                    deliver = self._handle(*item) if item is not None else None
                    self._watch()
                    if self._engine.state == "failed":  # also when no process could be started to say so
                        self._fail_waiting(self._no_engine())
                    self._dispatch()
                    self._changed.notify_all()
                if deliver is not None:
                    deliver()
            except Exception:
                log.exception("the service met an error of its own and goes on")

    def _handle(self, process: WorkerProcess, message: FromWorker) -> Callable[[], None] | None:
        if self._engine.handle(process, message):
            if isinstance(message, Loading):
                self._tell_waiting()
            if isinstance(message, Gone):
                self._reports.forget()
            if self._engine.state == "failed":
                self._fail_waiting(self._no_engine())
            return None
        if isinstance(message, Report):
            self._reports.answer(message)
            return None
        ticket = self._running
        if ticket is None or message.job_id != ticket.id:  # type: ignore[union-attr]
            return None
        match message:
            case JobProgress():
                ticket.post(Working(message.progress))
            case JobChunk():
                ticket.first_audio_at = ticket.first_audio_at or time.monotonic()
                ticket.post(Chunk(message.audio, message.index))
            case JobFailed():
                self._running = self._abandoned_at = None
                self._fail(ticket, AppError.from_dict(message.error))
                if message.poisoned:
                    self._engine.expect_end()
            case JobDone():
                self._running = self._abandoned_at = None
                self._engine.job_succeeded()
                facts = self._engine.facts
                if facts is not None and not ticket.ended:
                    return lambda: self._deliver(ticket, message.spoken, facts)
        return None

    def _watch(self) -> None:
        self._engine.tick()
        ticket, now = self._running, time.monotonic()
        if ticket is None or ticket.started_at is None:
            return
        if self._abandoned_at is not None:
            if now - self._abandoned_at > self._limits.cancel_s:
                self._engine.replace(TimedOut("The engine did not let go of a stopped request."))
        elif now - ticket.started_at > self._settings.timeout_s:
            self._abandon(ticket, TimedOut(
                f"The request ran longer than the {self._settings.timeout_s} s allowed and was stopped. "
                "Try a shorter text, or raise --timeout-s."))

    def _dispatch(self) -> None:
        while self._engine.state == "ready" and self._running is None and len(self._queue):
            ticket = self._queue.pop()
            if ticket.ended:
                continue
            ticket.started_at = time.monotonic()
            self._running = ticket
            self._engine.send(Run(ticket.id, ticket.job))

    def _deliver(self, ticket: RequestTicket, spoken: Spoken, facts: EngineFacts) -> None:
        """Write the file and hand out the result. Outside the lock: a slow disk holds up nobody else's request."""
        request, job = ticket.request, ticket.job
        started, now = ticket.started_at or ticket.submitted_at, time.monotonic()
        self._typical_s += 0.2 * (now - started - self._typical_s)
        timings = {**spoken.timings, "queue_s": started - ticket.submitted_at, "total_s": now - ticket.submitted_at}
        try:
            path = self._outputs.save(spoken.audio, describe(request.text, job, spoken, facts, timings))
        except AppError as error:
            self._fail(ticket, error)
            return
        except Exception as error:
            log.exception("a result could not be saved")
            self._fail(ticket, AppError(f"The result could not be saved ({type(error).__name__})."))
            return
        ticket.post(Done(SynthesisResult(
            audio=spoken.audio, path=path, seed=job.seed, segments=tuple(segment.text for segment in job.segments),
            warnings=spoken.warnings, notes=spoken.notes, engine=facts.engine, device=facts.device,
            precision=facts.precision, model_hash=facts.model_hash, voice_cached=spoken.voice_cached, timings=timings,
            prompt=describe_prompt(job.clip),
        )))
        self._metrics.finished(latency_s=timings["total_s"], queue_s=timings["queue_s"], rtf=timings["rtf"],
                               first_audio_s=(ticket.first_audio_at or now) - ticket.submitted_at)

    # How requests end badly.

    def _cancel(self, ticket: RequestTicket) -> None:
        with self._lock:
            if self._queue.remove(ticket):
                self._fail(ticket, Cancelled("The request was stopped before it began."))
            elif self._running is ticket and self._abandoned_at is None:
                self._abandon(ticket, Cancelled("The request was stopped."))

    def _abandon(self, ticket: RequestTicket, error: AppError) -> None:
        """Tell the owner at once; the worker lets go at its next step, and is replaced if it does not."""
        self._abandoned_at = time.monotonic()
        self._engine.send(Cancel(ticket.id))
        self._fail(ticket, error)

    def _fail(self, ticket: RequestTicket, error: AppError) -> None:
        if ticket.post(Failed(error)):
            self._metrics.failed(error.type)

    def _fail_running(self, error: AppError) -> None:
        ticket, self._running, self._abandoned_at = self._running, None, None
        if ticket is not None:
            self._fail(ticket, error)

    def _fail_waiting(self, error: AppError) -> None:
        for ticket in self._queue.drain():
            self._fail(ticket, error)

    # Helpers of the callers.

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

    def _ask(self) -> Report | None:
        process = self._engine.process
        return None if process is None or self._closed else self._reports.ask(process, self._limits.answer_s)

    def _tell_waiting(self) -> None:
        for ticket in self._queue:
            ticket.post(Working(self._engine.loading_progress))

    def _retry_after_s(self) -> int:
        return max(1, min(600, math.ceil(self._typical_s)))

    def _refuse_without_engine(self) -> None:
        self._raise_if_closed()
        if self._engine.state in ("unloaded", "failed"):
            raise self._no_engine()

    def _no_engine(self) -> NoEngine:
        if self._engine.state == "failed":
            return NoEngine(f"The engine could not be loaded: {self._engine.detail}")
        return NoEngine("The engine is unloaded. Load it on the page or with POST /v1/engine/load.")

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise NoEngine("The server is shutting down.")


def _device_warnings(asked: str, facts: EngineFacts | None, report: Report | None) -> tuple[str, ...]:
    """Say it when a component does not run where the engine does, or the engine not where it was asked to.

    A style encoder reads words and may do so on the CPU without a loss.
    """
    if facts is None:
        return ()
    warnings = []
    if asked != "auto" and not facts.device.startswith(asked):
        warnings.append(f"--device {asked} was asked for, but the engine runs on {facts.device}: "
                        f"{facts.device_reason}.")
    elsewhere = {name: place for name, place in (report.components if report else {}).items()
                 if place.partition(":")[0] != facts.device.partition(":")[0] and name != "style_encoder"}
    if elsewhere:
        places = ", ".join(f"{name} on {place}" for name, place in elsewhere.items())
        warnings.append(f"The engine runs on {facts.device}, but {places}.")
    return tuple(warnings)
