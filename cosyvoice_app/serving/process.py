"""One worker process, seen from the web process: start it, talk to it without ever blocking, end it for good."""

from __future__ import annotations

import logging
import multiprocessing
import queue
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any

from cosyvoice_app.serving import worker
from cosyvoice_app.serving.messages import FromWorker, Gone, Shutdown, ToWorker
from cosyvoice_app.settings import Settings

log = logging.getLogger(__name__)

_LINGER_S = 5.0
"""How long a worker may take to end once it has closed its line."""

OnMessage = Callable[["WorkerProcess", FromWorker], None]


class WorkerProcess:
    """`on_message` is called from a reader thread, in order; the last message is Gone.

    Sending goes through a thread of its own: a worker that stopped reading fills the pipe, and must not hold up
    the one who is about to notice that.
    """

    def __init__(self, settings: Settings, on_message: OnMessage) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=True)
        self._line: Connection = ours
        self._process = context.Process(target=worker.main, args=(theirs, settings), name="engine-worker", daemon=True)
        self._process.start()
        theirs.close()
        self._on_message = on_message
        self._outbox: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._last_seen = time.monotonic()
        self._gone = threading.Event()
        self._reader = threading.Thread(target=self._read, name="worker-reader", daemon=True)
        self._sender = threading.Thread(target=self._write, name="worker-sender", daemon=True)
        self._reader.start()
        self._sender.start()

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

    def stop(self, grace_s: float) -> None:
        """End the process: politely, then not. Returns when it is gone, and its memory with it."""
        self.send(Shutdown())
        self._gone.wait(grace_s)
        self.kill()

    def kill(self, *, wait: bool = True) -> None:
        if not self._gone.is_set():
            self._process.kill()
        if wait:
            self._gone.wait()

    def _read(self) -> None:
        """Deliver messages until the process is dead, then reap it. No other thread waits for the process."""
        try:
            while self._line in wait_for_any([self._line, self._process.sentinel]):
                message: FromWorker = self._line.recv()
                self._last_seen = time.monotonic()
                self._on_message(self, message)
        except (EOFError, OSError):
            log.debug("worker %s closed its line", self.pid)
        self._process.join(_LINGER_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._outbox.put(None)
        self._sender.join()
        self._line.close()
        self._gone.set()
        self._on_message(self, Gone(self._process.exitcode))

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._line.send(message)
            except OSError:
                return


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
