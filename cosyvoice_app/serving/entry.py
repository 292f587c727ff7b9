"""Where the engine worker's process begins: ties its life to the web process's, then imports the rest.

Linux ends the worker with the web process whatever it is doing (`end_with_parent`). Elsewhere two of its threads notice
that pipes from the web process have closed: at once while Python runs, but not before a C call that holds the
interpreter's lock returns.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection

from cosyvoice_app.orphans import end_with_parent
from cosyvoice_app.settings import Settings


def main(line: Connection, settings: Settings, parent_pid: int) -> None:
    _leave_signals_to_parent()
    end_with_parent(parent_pid)
    threading.Thread(target=_watch_parent, name="parent-watch", daemon=True).start()
    from cosyvoice_app.serving import worker  # seconds, with the libraries behind it

    worker.main(line, settings)


def _leave_signals_to_parent() -> None:
    """Ctrl-C and a closed terminal reach all processes of the terminal; the web process ends this one in good order.
    SIGINT was held back by the starter until here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)
