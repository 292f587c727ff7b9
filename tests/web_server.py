"""A live server for tests: `app.py` as a user starts it, with the tone engine, on a free port, from another folder."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[1]
START_S = 120


@dataclass(frozen=True)
class Server:
    url: str
    port: int
    outputs: Path
    process: subprocess.Popen[bytes]
    log: Path

    def saved(self) -> set[str]:
        return {path.name for path in self.outputs.glob("*.wav")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(folder: Path, port: int, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
    folder.mkdir(parents=True, exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COSYVOICE_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [
        sys.executable,
        str(ROOT / "app.py"),
        "--port",
        str(port),
        "--outputs",
        str(folder / "outputs"),
        "--voices",
        str(folder / "voices"),
        "--cache",
        str(folder / "cache"),
        *options,
    ]
    log = folder / "server.log"
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=log.open("wb"), stderr=subprocess.STDOUT), log


@contextmanager
def running(folder: Path, *options: str, engine: str = "tone") -> Iterator[Server]:
    """Yields once the engine is ready; ends the server as Ctrl-C does."""
    port = free_port()
    process, log = launch(folder, port, "--engine", engine, *options)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, process, log)
        yield Server(url, port, folder / "outputs", process, log)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"not ready after {START_S} s:\n{log.read_text()}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that don't end or block it."""
    with running(tmp_path_factory.mktemp("server")) as live:
        yield live


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def pcm_hash(wav: bytes) -> str:
    """Of the samples and their rate, not of the file."""
    with wave.open(io.BytesIO(wav)) as file:
        frames = file.readframes(file.getnframes())
        return hashlib.sha256(f"{file.getframerate()}".encode() + frames).hexdigest()
