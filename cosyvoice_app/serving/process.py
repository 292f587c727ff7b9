"""One worker process, seen from the web process: start it, talk to it without ever blocking, end it for good."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any

import psutil

from cosyvoice_app.serving import entry
from cosyvoice_app.serving.messages import FromWorker, Gone, Shutdown, ToWorker
from cosyvoice_app.settings import Settings

log = logging.getLogger(__name__)

LINGER_S = 5.0
"""How long a worker may take to end once it has closed its line."""
KILL_S = 5.0
"""How long the system may take to end a killed process. Longer: the kernel holds it (state D), and nothing helps."""
_LOOK_S = 0.5
"""How often a silent process is looked at: its pipes stay open when a child of its own has them too."""

OnMessage = Callable[["WorkerProcess", FromWorker], None]


class WorkerProcess:
    """`on_message` is called from the keeper thread, in order; the last message is Gone.

    Sending goes through a thread of its own: a worker that stopped reading fills the pipe, and must not hold up
    the one who is about to notice that. Raises OSError when the system won't start a process or a thread.
    """

    def __init__(self, settings: Settings, on_message: OnMessage) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe(duplex=True)
        self._process = context.Process(target=entry.main, args=(theirs, settings, os.getpid()), name="engine-worker",
                                        daemon=True)
        self._on_message = on_message
        self._outbox: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._asked_to_end = False
        self._gone = threading.Event()
        self._sender = threading.Thread(target=self._write, name="worker-sender", daemon=True)
        started: Future[None] = Future()
        self._keeper = threading.Thread(target=self._keep, args=(theirs, started), name="worker-keeper", daemon=True)
        self._last_seen = time.monotonic()
        try:
            self._sender.start()
            self._keeper.start()
        except RuntimeError as error:  # no more threads to be had
            self._outbox.put(None)
            self._line.close()
            theirs.close()
            raise OSError(f"no thread could be started for the engine process: {error}") from error
        started.result()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def silent_s(self) -> float:
        """Seconds since the worker was last heard of, heartbeats included."""
        return time.monotonic() - self._last_seen

    def send(self, message: ToWorker) -> None:
        """Never blocks; a message to a process that is gone is dropped (its Gone tells the rest)."""
        self._outbox.put(message)

    def ask_to_end(self) -> None:
        """Politely, and once. It need not obey."""
        if not self._asked_to_end:
            self._asked_to_end = True
            self.send(Shutdown())

    def stop(self, grace_s: float) -> bool:
        """End the process: politely, then not. True when it is gone, and its memory with it; False, after `grace_s` +
        KILL_S, when the system can't end it."""
        self.ask_to_end()
        return self._gone.wait(grace_s) or self.kill()

    def kill(self, *, wait: bool = True) -> bool:
        """End it now, with the processes it started. True when it is gone."""
        if not self._gone.is_set() and self._process.exitcode is None:
            children = _children(self.pid)
            self._process.kill()
            for child in children:
                with suppress(psutil.Error):
                    child.kill()
        return self._gone.wait(KILL_S if wait else 0.0)

    def _keep(self, theirs: Connection, started: Future[None]) -> None:
        """Start the process, deliver what it says until it is dead, reap it.

        All in one thread, because Linux ends the worker when the thread that started it ends (`end_with_parent`): any
        other might be somebody's who goes before.
        """
        try:
            _hold_back_ctrl_c()
            self._process.start()
        except Exception as error:  # noqa: BLE001 - raised again by the constructor
            self._outbox.put(None)
            self._sender.join()
            self._line.close()
            started.set_exception(error)
            return
        finally:
            theirs.close()
        _alive.add(self)
        started.set_result(None)
        self._deliver()
        if not self._ends_within(LINGER_S):
            self._process.kill()
            if not self._ends_within(KILL_S):
                log.error("the system can't end worker %s; its memory stays taken until it does", self.pid)
        self._outbox.put(None)
        self._sender.join(KILL_S)
        if not self._sender.is_alive():
            self._line.close()
        _alive.discard(self)
        self._gone.set()
        self._on_message(self, Gone(self._process.exitcode))

    def _deliver(self) -> None:
        try:
            while True:
                ready = wait_for_any([self._line, self._process.sentinel], _LOOK_S)
                if self._line in ready:
                    message: FromWorker = self._line.recv()
                    self._last_seen = time.monotonic()
                    self._on_message(self, message)
                elif ready or self._process.exitcode is not None:
                    return
        except (EOFError, OSError):
            log.debug("worker %s closed its line", self.pid)
        except Exception:
            log.exception("worker %s sent what can't be read, so it is ended", self.pid)
            self._process.kill()

    def _ends_within(self, patience_s: float) -> bool:
        end = time.monotonic() + patience_s
        while self._process.exitcode is None:
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._line.send(message)
            except OSError:
                return


def _hold_back_ctrl_c() -> None:
    """Of this thread and what it starts: a Ctrl-C must not meet the child before it can ignore it."""
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # else started with the worker, and it would lift the block
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _children(pid: int | None) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True)) if pid is not None else []
    except psutil.Error:
        return []


_alive: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _kill_all() -> None:
    """Before multiprocessing's own exit, which asks politely and then waits without end."""
    for process in list(_alive):
        process.kill(wait=False)


atexit.register(_kill_all)


def describe_exit(exit_code: int | None) -> str:
    """Words for how a process ended: "exit code 3", "killed by SIGKILL (9); ..."."""
    if exit_code is None:
        return "for an unknown reason"
    if exit_code >= 0:
        return f"with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "signal"
    hint = ", often the system running out of memory" if name == "SIGKILL" else ""
    return f"killed by {name} ({-exit_code}){hint}"
