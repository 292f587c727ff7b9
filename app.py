"""`python app.py`: parse the options, build the service, serve the page and the API on one port."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading

_EXIT_S = 5.0
"""Longest that threads still at work may hold up the end of the process."""


def main() -> int:
    """The exit status: 0, 2 for what the user must change, 130 after Ctrl-C."""
    try:
        return _serve()
    except KeyboardInterrupt:
        return 130


def _serve() -> int:
    from cosyvoice_app import settings as settings_module
    from cosyvoice_app.errors import AppError
    from cosyvoice_app.web import logs

    parser = argparse.ArgumentParser(
        prog="app.py", description="Zero-shot voice cloning: page and HTTP API on one port."
    )
    settings_module.add_arguments(parser)
    arguments = parser.parse_args()
    _end_with_terminal()
    try:
        settings = settings_module.resolve(arguments)
        logs.configure(settings)
        from cosyvoice_app.serving.service import EngineService
        from cosyvoice_app.voices.library import VoiceLibrary
        from cosyvoice_app.web.server import serve

        service = EngineService(settings)
        try:
            serve(settings, service, VoiceLibrary(settings))
        finally:
            service.close()  # again: a second Ctrl-C skips the server's own end
    except AppError as error:
        print(f"app.py: {error.message}", file=sys.stderr)
        return 2
    return 0


def _end_with_terminal() -> None:
    """A closed terminal ends the server as SIGTERM does, unless it was started to stay (nohup)."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def _leave(status: int) -> None:
    """End this process, within `_EXIT_S` whatever its threads still do, and whatever keys are pressed meanwhile."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # the page's many objects need not be collected one by one, which takes a second
    end = threading.Timer(_EXIT_S, os._exit, (status,))
    end.daemon = True
    end.start()
    sys.exit(status)


if __name__ == "__main__":  # the engine worker is a spawned process and imports this file again
    _leave(main())
