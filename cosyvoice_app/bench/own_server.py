"""A server of the bench's own: `app.py` as a user starts it, on a free port, all its files in one folder."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from cosyvoice_app.errors import EngineFailure

ROOT = Path(__file__).parents[2]
START_S = 600.0
_END_S = 30.0
_POLL_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server a bench starts."""
    parser.add_argument("--engine", default="tone", help="the server's engine [default: %(default)s]")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="options for the server, in one string")


@dataclass(frozen=True)
class OwnServer:
    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def web(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    def log(self) -> str:
        return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")

    def health(self) -> dict[str, Any]:
        report: dict[str, Any] = httpx.get(f"{self.url}/health", timeout=60.0, trust_env=False).json()
        return report

    def let_idle_threads_go(self) -> None:
        """The pool that reads and writes for requests drops the threads idle for ten seconds when it is next used, and
        only then. /health is answered by threads of its own."""
        httpx.get(f"{self.url}/v1/voices", timeout=60.0, trust_env=False).raise_for_status()

    def worker_pid(self) -> int | None:
        pid: int | None = self.health()["worker_pid"]
        return pid

    def workers(self) -> list[int]:
        """The engine's processes that live; one, unless one has just been lost."""
        return [child.pid for child in self.web.children() if _is_worker(child)]

    def wait_ready(self, *, other_than: int | None = None, timeout_s: float = START_S) -> dict[str, Any]:
        """Until the engine is ready in a process other than `other_than`. Raises EngineFailure after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise EngineFailure(f"The server ended with {self.process.returncode}:\n{self.log()[-4000:]}")
            try:
                report = self.health()
                if report["state"] == "ready" and report["worker_pid"] != other_than:
                    return report
                if report["state"] == "failed":
                    raise EngineFailure(f"The engine can't be loaded: {report['detail']}")
            except httpx.TransportError:
                time.sleep(_POLL_S)  # it doesn't listen yet
            time.sleep(_POLL_S)
        raise EngineFailure(f"The engine was not ready after {timeout_s:g} s:\n{self.log()[-4000:]}")


def _is_worker(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "spawn_main" in " ".join(process.cmdline())
    except psutil.Error:
        return False


@contextmanager
def own_server(engine: str, *options: str, folder: Path | None = None) -> Iterator[OwnServer]:
    """Yields once the engine is ready; ends the server as Ctrl-C does. `engine` may be found by PYTHONPATH."""
    with tempfile.TemporaryDirectory(prefix="cosyvoice-bench-") as scratch:
        home = folder or Path(scratch)
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        port = _free_port()
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COSYVOICE_")}
        inherited = [os.path.abspath(part) for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *inherited])  # it runs in another folder
        environ["TMPDIR"] = environ["TEMP"] = str(home / "tmp")
        command = [sys.executable, str(ROOT / "app.py"), "--engine", engine, "--port", str(port),
                   *(part for name in ("outputs", "voices", "cache") for part in (f"--{name}", str(home / name))),
                   *options]
        with (home / "server.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=home, env=environ, stdout=log, stderr=subprocess.STDOUT)
        server = OwnServer(f"http://127.0.0.1:{port}", home, process)
        try:
            server.wait_ready()
            yield server
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
