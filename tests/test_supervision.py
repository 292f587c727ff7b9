"""Real worker processes, in every state they can be in: each is gone in time, and none outlives the web process."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from cosyvoice_app.errors import EngineFailure, NoEngine
from cosyvoice_app.pipeline import plan
from cosyvoice_app.serving import process as process_module
from cosyvoice_app.serving.messages import AskStatus, FromWorker, Gone, JobProgress, Loading, Ready, Report, Run
from cosyvoice_app.serving.process import WorkerProcess
from cosyvoice_app.serving.request import Queued, Status, SynthesisRequest
from cosyvoice_app.serving.service import EngineService
from cosyvoice_app.serving.supervisor import Limits
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import PromptClip

ROOT = Path(__file__).parents[1]
QUICK = "engines_for_tests:QuickTone"
MINE = "engines_for_supervision"
SLOW_SEED = 9010
BOUND_S = 10.0
"""The law: in whatever state, the old process is gone within this."""
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")

M = TypeVar("M")


class Watched:
    """A worker and what it said."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.heard: queue.SimpleQueue[FromWorker] = queue.SimpleQueue()
        self.process = WorkerProcess(Settings(engine=engine, cache=folder), lambda _, message: self.heard.put(message))

    def until(self, kind: type[M], timeout_s: float = 60.0) -> M:
        end = time.monotonic() + timeout_s
        while True:
            message = self.heard.get(timeout=max(0.01, end - time.monotonic()))
            if isinstance(message, kind):
                return message

    def run_slow_job(self, clip: PromptClip) -> None:
        self.process.send(Run("slow", plan(clip, "Hello there.", seed=SLOW_SEED, max_chars=200)))
        self.until(JobProgress)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


Start = Callable[[str], Watched]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[Watched] = []

    def start_one(engine: str) -> Watched:
        workers.append(Watched(engine, tmp_path))
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.process.kill()


def eventually(what: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def ended(process: psutil.Process) -> bool:
    """Gone, or a zombie that whoever has adopted it has yet to bury."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def idle(start: Start, clip: PromptClip) -> Watched:
    worker = start(QUICK)
    worker.until(Ready)
    return worker


def deaf_to_cancel(start: Start, clip: PromptClip) -> Watched:
    worker = start("engines_for_tests:DeafTone")
    worker.until(Ready)
    worker.run_slow_job(clip)
    return worker


def just_started(start: Start, clip: PromptClip) -> Watched:
    return start(QUICK)


def loading_in_c(start: Start, clip: PromptClip) -> Watched:
    worker = start(f"{MINE}:LockedLoading")
    worker.until(Loading)
    return worker


def dead(start: Start, clip: PromptClip) -> Watched:
    worker = idle(start, clip)
    os.kill(worker.pid, signal.SIGKILL)
    return worker


def stopped(start: Start, clip: PromptClip) -> Watched:
    worker = idle(start, clip)
    os.kill(worker.pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
    return worker


def hanging_at_exit(start: Start, clip: PromptClip) -> Watched:
    worker = start(f"{MINE}:HangsAtExit")
    worker.until(Ready)
    return worker


STATES = [loading_in_c, stopped, hanging_at_exit,
          *(pytest.param(state, marks=pytest.mark.slow) for state in (idle, deaf_to_cancel, just_started, dead))]


@pytest.mark.parametrize("state", STATES)
def test_a_worker_is_gone_in_time_in_every_state(
    state: Callable[[Start, PromptClip], Watched], start: Start, p0: PromptClip
) -> None:
    worker = state(start, p0)
    began = time.monotonic()
    assert worker.process.stop(1.0)
    assert time.monotonic() - began < BOUND_S
    assert not psutil.pid_exists(worker.pid)
    worker.until(Gone, 5.0)
    assert worker.heard.empty(), "Gone is the last thing heard"


def test_a_process_that_the_system_does_not_end_is_not_waited_for(
    start: Start, p0: PromptClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in the kernel's hands (state D) can't be made here; one whose kill does nothing is like it."""
    worker = stopped(start, p0)
    monkeypatch.setattr(process_module, "KILL_S", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(worker.process._process, "kill", lambda: None)
        assert not worker.process.stop(0.1)
    assert psutil.pid_exists(worker.pid)


def test_the_worker_s_own_processes_go_with_it(start: Start) -> None:
    """They share its pipes, which must not make it look alive."""
    worker = start(f"{MINE}:HasAChild")
    child = psutil.Process(int(worker.until(Loading).progress.message))
    worker.until(Ready)
    assert worker.process.kill()
    eventually(lambda: ended(child), BOUND_S)


@pytest.mark.slow
def test_a_dead_worker_is_noticed_while_its_child_lives_on(start: Start) -> None:
    worker = start(f"{MINE}:HasAChild")
    child = psutil.Process(int(worker.until(Loading).progress.message))
    worker.until(Ready)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.until(Gone, 20.0).exit_code == -signal.SIGKILL
    child.kill()


def test_a_worker_outlives_the_thread_that_asked_for_it(start: Start) -> None:
    made: list[Watched] = []

    def ask() -> None:
        made.append(start(QUICK))
        made[0].until(Ready)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    made[0].process.send(AskStatus(5))
    assert made[0].until(Report).token == 5


@pytest.mark.slow
def test_threads_end_with_their_worker(start: Start) -> None:
    threads = threading.active_count()
    worker = start(QUICK)
    worker.until(Ready)
    assert worker.process.stop(5.0)
    eventually(lambda: threading.active_count() == threads)


def test_no_process_to_be_had_is_an_error_that_leaves_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", refuse)
    threads = threading.active_count()
    with pytest.raises(OSError, match="temporarily unavailable"):
        start(QUICK)
    eventually(lambda: threading.active_count() == threads)


@pytest.mark.parametrize("thread", ["worker-sender", "worker-keeper"])
def test_no_thread_to_be_had_is_an_error_that_leaves_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    begin = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == thread:
            raise RuntimeError("can't start new thread")
        begin(self)

    monkeypatch.setattr("threading.Thread.start", refuse)
    threads, files = threading.active_count(), psutil.Process().num_fds()
    with pytest.raises(OSError, match="can't start new thread"):
        start(QUICK)
    eventually(lambda: threading.active_count() <= threads and psutil.Process().num_fds() <= files)


# No orphans.

_WEB = """
import os, sys, time
from pathlib import Path
from cosyvoice_app.serving.messages import Loading, Ready
from cosyvoice_app.serving.process import WorkerProcess
from cosyvoice_app.settings import Settings

if __name__ == "__main__":
    def hear(process, message):
        if isinstance(message, (Loading, Ready)):
            os.write(1, f"{process.pid}\\n".encode())
    workers = [WorkerProcess(Settings(engine=engine, cache=Path(sys.argv[1])), hear) for engine in sys.argv[2:]]
    time.sleep(600)
"""


@linux_only
def test_no_worker_outlives_a_killed_web_process_whatever_it_does(tmp_path: Path) -> None:
    """Idle, stopped, stuck in C code while loading or when ready: most of these get to run no Python any more."""
    (tmp_path / "web.py").write_text(_WEB)
    engines = (f"{MINE}:LockedLoading", f"{MINE}:LockedWhenReady", QUICK, "engines_for_tests:SlowToLoad")
    web = subprocess.Popen([sys.executable, tmp_path / "web.py", tmp_path, *engines], stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"})
    assert web.stdout is not None
    children = {int(web.stdout.readline()) for _ in range(3)}
    while len(children) < 4:
        children.add(int(web.stdout.readline()))
    workers = [psutil.Process(pid) for pid in children]
    workers[-1].send_signal(signal.SIGSTOP)
    time.sleep(1.0)  # till LockedWhenReady is locked; if it isn't yet, it ends all the same
    web.kill()
    web.wait()
    web.stdout.close()
    eventually(lambda: all(map(ended, workers)), BOUND_S)


@linux_only
def test_a_worker_whose_web_process_died_before_it_could_ask_ends_too() -> None:
    script = "from cosyvoice_app.orphans import end_with_parent; end_with_parent(1 << 30); print('lives on')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (0, "")


# The service over it.


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., EngineService]]:
    services: list[EngineService] = []

    def serve_one(engine: str, **options: object) -> EngineService:
        limits = replace(Limits(), stop_s=1.0, cancel_s=1.0, **options)  # type: ignore[arg-type]
        services.append(EngineService(Settings(engine=engine, outputs=tmp_path / "outputs", cache=tmp_path),
                                      limits=limits))
        services[-1].start()
        return services[-1]

    yield serve_one
    for service in services:
        service.close()


def settle(service: EngineService, state: str = "ready") -> Status:
    eventually(lambda: service.status().state == state, 60.0)
    return service.status()


@pytest.mark.slow
def test_a_failed_load_says_why_and_a_restart_works_once_it_is_mended(
    serve: Callable[..., EngineService], tmp_path: Path, p0: PromptClip
) -> None:
    service = serve(f"{MINE}:NeedsItsFile")
    assert "weights is missing. Run:" in settle(service, "failed").detail
    assert service.restart()[1].state == "failed"
    (tmp_path / "weights").touch()
    assert service.restart()[1].state == "ready"
    assert service.submit(SynthesisRequest(p0, "Hello.")).result(60.0).path
    (tmp_path / "weights").unlink()
    assert "weights is missing" in service.restart()[1].detail
    (tmp_path / "weights").touch()
    assert service.load().state == "ready"


@pytest.mark.slow
def test_a_failed_worker_that_hangs_at_its_exit_blocks_nothing(serve: Callable[..., EngineService]) -> None:
    service = serve(f"{MINE}:FailsAndHangsAtExit")
    pid = settle(service, "failed").worker_pid
    eventually(lambda: service.status().worker_pid is None, BOUND_S)
    assert pid is None or not psutil.pid_exists(pid)


@pytest.mark.slow
def test_requests_that_crash_the_worker_open_the_breaker_and_a_good_one_closes_it(
    serve: Callable[..., EngineService], p0: PromptClip
) -> None:
    service = serve(f"{MINE}:Crashes", crashes=2, cool_s=2.0, backoff_s=0.05)
    for _ in range(2):
        settle(service)
        with pytest.raises(EngineFailure, match="exit code 11"):
            service.submit(SynthesisRequest(p0, "Hello.", seed=SLOW_SEED)).result(60.0)
    assert "ended 2 times in a row" in service.status().detail
    with pytest.raises(NoEngine, match="another try"):
        service.submit(SynthesisRequest(p0, "Hello."))
    settle(service)
    assert service.submit(SynthesisRequest(p0, "Hello.")).result(60.0).path
    with pytest.raises(EngineFailure):
        service.submit(SynthesisRequest(p0, "Hello.", seed=SLOW_SEED)).result(60.0)
    settle(service)


@pytest.mark.slow
def test_killed_again_and_again_under_load_it_comes_back_at_once(
    serve: Callable[..., EngineService], p0: PromptClip
) -> None:
    service = serve(QUICK)
    for _ in range(3):
        settle(service)
        assert service.submit(SynthesisRequest(p0, "Hello.")).result(60.0).path
        running = service.submit(SynthesisRequest(p0, "Hello.", seed=SLOW_SEED))
        next(event for event in running.events() if not isinstance(event, Queued))
        pid = service.status().worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineFailure):
            running.result(60.0)
        eventually(lambda old=pid: service.status().worker_pid not in (None, old), 5.0)  # type: ignore[misc]
