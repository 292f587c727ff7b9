"""Keeps one engine worker alive: what to do when it is ready, fails, crashes, hangs, idles or is told to go.

A state machine without threads of its own. Its owner holds one lock around every call and delivers every message of
every worker to `handle`. A worker's end always arrives as Gone, so all that follows an end is decided in one place.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cosyvoice_app.errors import AppError, EngineFailure, NoEngine, OutOfMemory, TimedOut
from cosyvoice_app.pipeline import EngineFacts
from cosyvoice_app.serving.breaker import Breaker
from cosyvoice_app.serving.messages import FromWorker, Gone, Heartbeat, LoadFailed, Loading, Ready, ToWorker
from cosyvoice_app.serving.process import KILL_S, OnMessage, WorkerProcess, describe_exit
from cosyvoice_app.serving.request import EngineState
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import Progress

log = logging.getLogger(__name__)

Ending = Literal["none", "respawn", "unload", "failed", "fault"]
"""What follows the worker's end. One that nobody wanted ("none") is a crash; "fault" is one by our own decision, after
a hang or a failure of the device, and counts as one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient the service is. Seconds, unless named otherwise."""

    heartbeat_s: float = 30.0
    """A ready worker this long without a sign of life hangs."""
    load_heartbeat_s: float = 180.0
    """The same while loading, when importing a big library from a slow disk can hold every thread up."""
    cancel_s: float = 30.0
    """How long a cancelled or timed-out job may take to let go before its worker is replaced."""
    stop_s: float = 3.0
    """How long a worker that is to end may take to do so by itself."""
    backoff_s: float = 0.5
    """Wait after the second crash in a row, doubled by each further one. The first costs none."""
    backoff_most_s: float = 30.0
    crashes: int = 5
    """So many crashes in a row, no request finished in between, and nothing is started for `cool_s`."""
    load_crashes: int = 3
    """The same while loading."""
    healthy_s: float = 60.0
    """A worker that was ready for so long before it crashed begins a new row."""
    cool_s: float = 30.0
    """How long nothing is started, doubled each time the one trial after it crashes too."""
    cool_most_s: float = 600.0
    answer_s: float = 1.0
    """How long a status question waits for the worker."""


class Supervisor:
    def __init__(self, settings: Settings, limits: Limits, *, on_message: OnMessage,
                 on_lost: Callable[[AppError], None], on_started: Callable[[str], None],
                 clock: Callable[[], float] = time.monotonic) -> None:
        """`on_lost` is told why the running requests can't be finished; `on_started` the reason of each start: start,
        load, restart, hang, crash, trial (after a cool-down) or demand."""
        self._settings = settings
        self._limits = limits
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_started = on_started
        self._clock = clock
        self._breaker = Breaker(limits.crashes, limits.load_crashes, limits.healthy_s, limits.backoff_s,
                                limits.backoff_most_s, limits.cool_s, limits.cool_most_s)
        self.process: WorkerProcess | None = None
        self.state: EngineState = "unloaded"
        self.detail = "not started"
        self.facts: EngineFacts | None = None
        """Of the engine that is loaded now."""
        self.last_facts: EngineFacts | None = None
        """Of the last one that was: what the next will most likely be."""
        self.last_pid: int | None = None
        """Of the present or the last worker, whose memory can be looked for after its end."""
        self.failure: AppError | None = None
        """Why the state is "failed", as the worker told it; None when it could not tell."""
        self.loads_on_demand = False
        """Unloaded for want of requests: the next one loads it and is not refused."""
        self._ending: Ending = "none"
        self._end_by = 0.0
        self._killed = False
        self._fault = ("", "")
        self._reason = "restart"
        self._start_at: float | None = None
        self._ready_at = self._active_at = clock()

    # What its owner asks for.

    def start(self, reason: str = "start") -> None:
        """Start a worker unless one is there. Asked for by a person, so earlier crashes are forgiven."""
        self._forgive()
        self._bring_up(reason)

    def end(self, then: Literal["respawn", "unload"], why: AppError) -> WorkerProcess | None:
        """Decide that the worker goes. Returns the process that the caller may stop, outside the lock, to wait for its
        end; None when there was none (and what follows has been done already). `tick` sees to its end either way."""
        self._forgive()
        self.loads_on_demand = False
        self._on_lost(why)
        if then == "unload":
            self._set("unloaded", "unloaded on request")
        else:
            self._set("loading", "starting a new engine process")
            if self.process is None:
                self._spawn("restart")
                return None
        if self.process is not None:
            self._leave(self.process, then, "restart")
        return self.process

    def replace(self, why: AppError) -> None:
        """Kill a worker that holds a request it was told to let go, and start another when it is gone."""
        if self.process is not None and self._ending == "none":
            self._kill(self.process, "respawn", why)

    def expect_end(self) -> None:
        """The worker said that its device failed and that it ends itself. Another one must follow."""
        if self.process is None or self._ending != "none":
            return
        self._on_lost(EngineFailure("The device failed during another request that ran beside this one. The engine is "
                                    "being started anew; send the request again."))
        self._fault = ("the device failed", "a new process is its only remedy")
        self._set("loading", "the device failed; starting a new engine process")
        self._leave(self.process, "fault")

    def send(self, message: ToWorker) -> None:
        if self.process is not None:
            self.process.send(message)

    def job_succeeded(self) -> None:
        self._breaker.succeeded()

    def note_activity(self) -> None:
        """Requests wait or run: said before each `tick` while they do. Loads an engine that was unloaded for want of
        them."""
        self._active_at = self._clock()
        if self.loads_on_demand:
            self._bring_up("demand")

    @property
    def loading_progress(self) -> Progress:
        return Progress("loading", None, self.detail)

    @property
    def trial(self) -> bool:
        """The worker is one try after many crashes: give it one request at a time until one succeeds."""
        return self._breaker.trial

    def refusal(self) -> NoEngine | None:
        """What a request is told that comes now; None when it may wait for the engine."""
        if self.state == "failed":
            left_s = None if self._start_at is None else max(1, math.ceil(self._start_at - self._clock()))
            return NoEngine(f"The engine could not be loaded: {self.detail}" if self.failure is not None else
                            f"The engine is not available: {self.detail}", retry_after_s=left_s)
        if self.state == "unloaded" and not self.loads_on_demand:
            return NoEngine("The engine is unloaded. Load it on the page or with POST /v1/engine/load.")
        return None

    # What happens to it.

    def handle(self, process: WorkerProcess, message: FromWorker) -> bool:
        """Take a message about the worker itself; False when it is about a job. Old workers are not listened to."""
        if process is not self.process:
            return True
        match message:
            case Loading():
                if self._ending == "none":
                    self.detail = message.progress.message or message.progress.stage
            case Ready():
                self.facts = self.last_facts = message.facts
                self._ready_at = self._active_at = self._clock()
                if self._ending == "none":
                    self._set("ready", "")
            case LoadFailed():
                self._load_failed(message.error)
            case Gone():
                self._gone(describe_exit(message.exit_code))
            case Heartbeat():
                pass
            case _:
                return False
        return True

    def tick(self) -> None:
        """Called several times a second: whatever is due."""
        now, idle_s = self._clock(), self._settings.idle_unload_s
        if self.process is None:
            if self._start_at is not None and now >= self._start_at:
                self._spawn("trial" if self._breaker.trial else "crash")
        elif self._ending != "none":
            self._see_out(self.process, now)
        elif self.process.silent_s > self._patience_s:
            self._hangs(self.process)
        elif idle_s and self.state == "ready" and now - self._active_at >= idle_s:
            self.loads_on_demand = True
            self._set("unloaded", f"unloaded after {idle_s} s without a request; the next request loads it")
            self._leave(self.process, "unload")

    @property
    def _patience_s(self) -> float:
        return self._limits.load_heartbeat_s if self.facts is None else self._limits.heartbeat_s

    def _bring_up(self, reason: str) -> None:
        self.loads_on_demand = False
        if self.process is None:
            self._spawn(reason)
        elif self._ending in ("unload", "failed"):
            self._ending, self._reason = "respawn", reason
            self._set("loading", "waiting for the old engine process to end")

    def _forgive(self) -> None:
        self._breaker.succeeded()
        self._start_at = None

    def _leave(self, process: WorkerProcess, then: Ending, reason: str = "restart") -> None:
        """Ask the worker to end; `tick` kills it when it does not. `reason`: of the start that follows."""
        self._ending, self._reason = then, reason
        self._end_by, self._killed = self._clock() + self._limits.stop_s, False
        process.ask_to_end()

    def _kill(self, process: WorkerProcess, then: Ending, why: AppError) -> None:
        log.error("replacing engine worker %s: %s", process.pid, why.message)
        self._ending, self._reason = then, "hang"
        self._end_by, self._killed = self._clock() + KILL_S, True
        self._on_lost(why)
        self._set("loading", f"replacing the engine process: {why.message}")
        process.kill(wait=False)

    def _hangs(self, process: WorkerProcess) -> None:
        silent_s = self._patience_s
        self._fault = ("the engine process hung", f"no sign of life for {silent_s:g} s")
        self._kill(process, "fault", TimedOut(
            f"The engine gave no sign of life for {silent_s:g} s and is being replaced. "
            "Send the request again; if it happens each time, try a shorter text."))

    def _see_out(self, process: WorkerProcess, now: float) -> None:
        """An end has been decided: kill the worker if it takes too long, go on without it if even that does."""
        if now < self._end_by:
            return
        if not self._killed:
            log.warning("engine worker %s did not end within %g s and is killed", process.pid, self._limits.stop_s)
            self._end_by, self._killed = now + KILL_S, True
            process.kill(wait=False)
        else:
            log.error("the system can't end engine worker %s; going on without it", process.pid)
            self._gone("for an unknown reason")

    def _spawn(self, reason: str) -> None:
        self._start_at = None
        self.facts = self.failure = None
        self._ending = "none"
        self._set("loading", "starting the engine process")
        try:
            self.process = WorkerProcess(self._settings, self._on_message)
        except Exception as error:  # a thread that can't be started is no OSError
            log.exception("no engine process could be started")
            self._set("failed", f"the system would not start the engine process: {error}")
            self._start_at = self._clock() + self._breaker.trip()
            return
        self.last_pid = self.process.pid
        self._on_started(reason)
        log.info("engine worker %s started (%s)", self.process.pid, reason)

    def _load_failed(self, error: dict[str, Any]) -> None:
        """Told by the worker, which ends itself then. Memory may be free again later; the rest is for a person."""
        if self.process is None or self._ending != "none":
            return
        self._leave(self.process, "failed")
        self.failure = AppError.from_dict(error)
        self._set("failed", self.failure.message)
        if isinstance(self.failure, OutOfMemory):
            self._start_at = self._clock() + self._breaker.trip()

    def _gone(self, how: str) -> None:
        ending = self._ending
        ready_s = None if self.facts is None else self._clock() - self._ready_at
        self.process, self.facts, self._ending = None, None, "none"
        if ending == "none":
            log.error("the engine worker ended, %s", how)
            self._crashed("the engine process ended", how, ready_s)
        elif ending == "fault":
            self._crashed(*self._fault, ready_s)
        elif ending == "respawn":
            self._spawn(self._reason)

    def _crashed(self, what: str, how: str, ready_s: float | None) -> None:
        """`ready_s`: how long the worker was ready; None when it was still loading."""
        delay_s = self._breaker.crashed(loading=ready_s is None, ready_s=ready_s or 0.0)
        when = "while loading" if ready_s is None else "in a row"
        opened = f"{what} {self._breaker.crashes} times {when} ({how}); another try is made after {delay_s:g} s"
        self._on_lost(EngineFailure(
            f"{what[0].upper()}{what[1:]} while it worked on this request ({how}). "
            "A new one is being started; send the request again." if not self._breaker.opened else
            f"This request can't be finished: {opened}."))
        if self._breaker.opened:
            log.error(opened)
            self._set("failed", f"{opened}, and at once when you restart the engine")
            self._start_at = self._clock() + delay_s
        elif delay_s == 0.0:
            self._spawn("crash")
        else:
            self._set("loading", f"{what} ({how}); starting another in {delay_s:g} s")
            self._start_at = self._clock() + delay_s

    def _set(self, state: EngineState, detail: str) -> None:
        self.state, self.detail = state, detail
