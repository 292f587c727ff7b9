"""Keeps one engine worker alive: what to do when it is ready, fails, crashes, hangs or is told to go.

A state machine without threads of its own. Its owner holds one lock around every call and delivers every message of
every worker to `handle`. A worker's end always arrives as Gone, so all that follows an end is decided in one place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cosyvoice_app.errors import AppError, EngineFailure, TimedOut
from cosyvoice_app.pipeline import EngineFacts
from cosyvoice_app.serving.messages import FromWorker, Gone, Heartbeat, LoadFailed, Loading, Ready, ToWorker
from cosyvoice_app.serving.process import OnMessage, WorkerProcess, describe_exit
from cosyvoice_app.serving.request import EngineState
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import Progress

log = logging.getLogger(__name__)

Ending = Literal["none", "respawn", "unload", "failed"]
"""What follows the worker's end: an end nobody wanted ("none") is a crash."""


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
    backoff_s: float = 0.5
    backoff_most_s: float = 30.0
    load_crashes: int = 3
    """So many crashes in a row before the engine was ever ready, and it counts as failed."""
    answer_s: float = 1.0
    """How long a status question waits for the worker."""


class Supervisor:
    def __init__(self, settings: Settings, limits: Limits, *, on_message: OnMessage,
                 on_lost: Callable[[AppError], None], on_started: Callable[[str], None]) -> None:
        """`on_lost` is told why the running request can't be finished; `on_started` the reason of each start."""
        self._settings = settings
        self._limits = limits
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_started = on_started
        self.process: WorkerProcess | None = None
        self.state: EngineState = "unloaded"
        self.detail = "not started"
        self.facts: EngineFacts | None = None
        self._ending: Ending = "none"
        self._respawn_at: float | None = None
        self._crashes = 0

    def start(self, reason: str = "start") -> None:
        """Start a worker unless one is there. Asked for by a person, so earlier crashes are forgiven."""
        self._crashes, self._respawn_at = 0, None
        if self.process is None:
            self._spawn(reason)
        elif self._ending in ("unload", "failed"):
            self._ending = "respawn"
            self._set("loading", "waiting for the old engine process to end")

    def end(self, then: Literal["respawn", "unload"], why: AppError) -> WorkerProcess | None:
        """Decide that the worker goes. Returns the process the caller must stop, outside the lock; None when there was
        none (and what follows has been done already)."""
        self._on_lost(why)
        self._crashes = 0
        self._respawn_at = None
        if then == "unload":
            self._set("unloaded", "unloaded on request")
        else:
            self._set("loading", "starting a new engine process")
        if self.process is None:
            if then == "respawn":
                self._spawn("restart")
            return None
        self._ending = then
        return self.process

    def replace(self, why: AppError) -> None:
        """Kill a worker that can't be trusted and start another when it is gone."""
        if self.process is None:
            return
        log.error("replacing engine worker %s: %s", self.process.pid, why.message)
        self._on_lost(why)
        self._crashes += self.facts is None
        if self._crashes >= self._limits.load_crashes:
            self._ending = "failed"
            self._set("failed", f"the engine hung {self._crashes} times while loading")
        else:
            self._ending = "respawn"
            self._set("loading", f"replacing the engine process: {why.message}")
        self.process.kill(wait=False)

    def send(self, message: ToWorker) -> None:
        if self.process is not None:
            self.process.send(message)

    def handle(self, process: WorkerProcess, message: FromWorker) -> bool:
        """Take a message about the worker itself; False when it is about a job. Old workers are not listened to."""
        if process is not self.process:
            return True
        match message:
            case Loading():
                self.detail = message.progress.message or message.progress.stage
            case Ready():
                self.facts = message.facts
                if self._ending == "none":
                    self._set("ready", "")
            case LoadFailed():
                self._failed(message.error)
            case Gone():
                self._gone(message.exit_code)
            case Heartbeat():
                pass
            case _:
                return False
        return True

    def expect_end(self) -> None:
        """The worker said that it ends itself, and another one must follow."""
        self._ending = "respawn"
        self._set("loading", "the device failed; starting a new engine process")

    def tick(self) -> None:
        """Called several times a second: hangs and due restarts."""
        patience_s = self._limits.heartbeat_s if self.state == "ready" else self._limits.load_heartbeat_s
        if self.process is not None and self.process.silent_s > patience_s and self._ending == "none":
            self.replace(TimedOut(
                f"The engine gave no sign of life for {patience_s:g} s and is being replaced. "
                "Send the request again; if it happens each time, try a shorter text."))
        if self._respawn_at is not None and time.monotonic() >= self._respawn_at:
            self._respawn_at = None
            self._spawn("crash")

    @property
    def loading_progress(self) -> Progress:
        return Progress("loading", None, self.detail)

    def _spawn(self, reason: str) -> None:
        self.facts = None
        self._ending = "none"
        self._set("loading", "starting the engine process")
        try:
            self.process = WorkerProcess(self._settings, self._on_message)
        except OSError as error:
            log.exception("no engine process could be started")
            self._set("failed", f"the system would not start the engine process: {error}")
            return
        self._on_started(reason)
        log.info("engine worker %s started (%s)", self.process.pid, reason)

    def _failed(self, error: dict[str, Any]) -> None:
        if self._ending == "none":
            self._ending = "failed"
            self._set("failed", error["message"])

    def _gone(self, exit_code: int | None) -> None:
        ending, was_loading = self._ending, self.facts is None
        self.process, self.facts, self._ending = None, None, "none"
        if ending == "respawn":
            self._spawn("restart")
        elif ending == "none":
            self._crashed(describe_exit(exit_code), was_loading)

    def _crashed(self, how: str, was_loading: bool) -> None:
        self._crashes += 1
        log.error("the engine worker ended, %s", how)
        self._on_lost(EngineFailure(f"The engine process ended while it worked on this request ({how}). "
                                    "A new one is being started; send the request again."))
        if was_loading and self._crashes >= self._limits.load_crashes:
            self._set("failed", f"the engine process ended {self._crashes} times while loading ({how})")
            return
        delay_s = min(self._limits.backoff_most_s, self._limits.backoff_s * 2.0 ** (self._crashes - 1))
        self._set("loading", f"the engine process ended ({how}); starting another")
        self._respawn_at = time.monotonic() + delay_s

    def job_succeeded(self) -> None:
        self._crashes = 0

    def _set(self, state: EngineState, detail: str) -> None:
        self.state, self.detail = state, detail
