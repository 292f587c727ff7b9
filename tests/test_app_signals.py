"""`app.py` and the ways to end it: each leaves no process, no taken port and no traceback behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import psutil
import pytest
from web_server import START_S, free_port, launch, wait_ready

from cosyvoice_app.web.server import claim_port

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="these signals are POSIX's")]

INT, TERM, HUP, KILL = (getattr(signal, name, signal.SIGTERM) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"))
EXIT_S = 20.0


def all_processes(server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    process = psutil.Process(server.pid)
    return [process, *process.children(recursive=True)]


def is_over(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def until(what: object, timeout_s: float = EXIT_S) -> None:
    end = time.monotonic() + timeout_s
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


def send(server: subprocess.Popen[bytes], signals: Sequence[signal.Signals], to_all: Sequence[psutil.Process]) -> None:
    """As a terminal does it: to every process that runs in it."""
    for number in signals:
        for process in to_all:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        time.sleep(0.1)


def check_nothing_is_left(
    server: subprocess.Popen[bytes], processes: list[psutil.Process], port: int, log: Path, statuses: set[int]
) -> None:
    assert server.wait(EXIT_S) in statuses
    until(lambda: all(map(is_over, processes)))
    claim_port("127.0.0.1", port).close()
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.mark.parametrize(("signals", "statuses"), [
    ((INT,), {0, 130}), ((INT, INT, INT), {0, 130}), ((TERM,), {0, -TERM}), ((HUP,), {0, -HUP, -TERM}),
], ids=["ctrl-c", "ctrl-c three times", "SIGTERM", "terminal closed"])
def test_an_end_at_work_tells_who_waits_and_leaves_nothing(
    tmp_path: Path, p0_wav: Path, signals: tuple[signal.Signals, ...], statuses: set[int]
) -> None:
    port = free_port()
    with inherited(HUP, signal.SIG_DFL):
        server, log = launch(tmp_path, port, "--engine", "tone")
    url = f"http://127.0.0.1:{port}"
    wait_ready(url, server, log)
    told: list[httpx.Response] = []

    def ask() -> None:
        told.append(httpx.post(f"{url}/v1/clone", files={"file": ("a.wav", p0_wav.read_bytes())},
                               data={"text": "好。", "seed": "9010"}, timeout=60))

    client = threading.Thread(target=ask)
    client.start()
    until(lambda: httpx.get(f"{url}/health").json()["running"] == 1, 60.0)
    processes = all_processes(server)
    send(server, signals, processes if signals[0] is not TERM else processes[:1])
    check_nothing_is_left(server, processes, port, log, statuses)
    client.join()
    assert told[0].status_code == 503 and "shutting down" in told[0].text


def test_ctrl_c_while_the_engine_loads(tmp_path: Path) -> None:
    port = free_port()
    server, log = launch(tmp_path, port, "--engine", "engines_for_supervision:LockedLoading")
    end = time.monotonic() + START_S
    while "about to be stuck" not in _detail(port):
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    processes = all_processes(server)
    send(server, (INT, INT), processes)
    check_nothing_is_left(server, processes, port, log, {0, 130})


def _detail(port: int) -> str:
    try:
        return str(httpx.get(f"http://127.0.0.1:{port}/health").json()["detail"])
    except httpx.TransportError:
        return ""


@contextlib.contextmanager
def inherited(number: signal.Signals, way: signal.Handlers) -> Iterator[None]:
    """What is started inside meets a signal so at first, however these tests themselves were started."""
    before = signal.signal(number, way)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("after_s", [0.5, 2.0])
def test_ctrl_c_before_it_serves(tmp_path: Path, after_s: float) -> None:
    """While libraries are imported."""
    port = free_port()
    with inherited(INT, signal.SIG_DFL):
        server, log = launch(tmp_path, port, "--engine", "tone")
    time.sleep(after_s)
    send(server, (INT,), all_processes(server))
    check_nothing_is_left(server, [], port, log, {0, 130})


def test_a_server_started_to_stay_is_not_ended_by_its_terminal(tmp_path: Path) -> None:
    port = free_port()
    with inherited(HUP, signal.SIG_IGN):  # what nohup does
        server, log = launch(tmp_path, port, "--engine", "tone")
    wait_ready(f"http://127.0.0.1:{port}", server, log)
    processes = all_processes(server)
    send(server, (HUP,), processes)
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    server.kill()
    check_nothing_is_left(server, processes, port, log, {-KILL})
