"""A worker that dies, hangs, won't let go or loses its device: what it costs those who asked, and what comes after."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import psutil
import pytest
from services import IMPATIENT, SLOW_SEED, Start, ask, say, until_running

from cosyvoice_app.errors import EngineFailure, TimedOut
from cosyvoice_app.serving.request import Ticket
from cosyvoice_app.serving.service import EngineService
from cosyvoice_app.types import PromptClip


def one_runs_and_one_waits(service: EngineService, clip: PromptClip) -> tuple[Ticket, Ticket, int]:
    """Of an engine that takes one at a time; and its process."""
    running = service.submit(ask(clip, seed=SLOW_SEED))
    waiting = service.submit(ask(clip))
    until_running(service, running)
    pid = service.status().worker_pid
    assert pid is not None
    return running, waiting, pid


def test_a_killed_worker_costs_the_running_request_only(start: Start, p0: PromptClip) -> None:
    service = start(max_batch=1)
    running, waiting, pid = one_runs_and_one_waits(service, p0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineFailure, match=r"SIGKILL \(9\)"):
        running.result(60.0)
    assert waiting.result(60.0).path
    assert service.status().worker_pid != pid
    assert not psutil.pid_exists(pid)


def test_a_stuck_worker_is_replaced(start: Start, p0: PromptClip) -> None:
    service = start(max_batch=1, limits=replace(IMPATIENT, heartbeat_s=3.0))
    running, waiting, pid = one_runs_and_one_waits(service, p0)
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    status = service.status()
    assert status.worker_pid == pid and "did not answer" in status.warnings[0]
    with pytest.raises(TimedOut, match="no sign of life"):
        running.result(60.0)
    assert waiting.result(60.0).path
    assert not psutil.pid_exists(pid)


def test_a_request_over_its_time_ends_and_a_deaf_engine_with_it(start: Start, p0: PromptClip) -> None:
    service = start("engines_for_tests:DeafTone", timeout_s=1, max_batch=1)
    pid = service.status().worker_pid
    running = service.submit(ask(p0, seed=SLOW_SEED))
    waiting = service.submit(ask(p0))
    with pytest.raises(TimedOut, match="1 s allowed"):
        running.result(60.0)
    assert waiting.result(60.0).path
    assert service.status().worker_pid != pid


def test_an_obedient_engine_is_kept_when_a_request_times_out(start: Start, p0: PromptClip) -> None:
    service = start(timeout_s=1)
    pid = service.status().worker_pid
    with pytest.raises(TimedOut):
        service.submit(ask(p0, seed=SLOW_SEED)).result(60.0)
    assert say(service, p0).path
    assert service.status().worker_pid == pid


def test_a_lane_that_hangs_costs_its_batch_and_no_one_who_waits(start: Start, p0: PromptClip) -> None:
    service = start("engines_for_tests:DeafLane")
    pid = service.status().worker_pid
    running = service.submit(ask(p0, seed=SLOW_SEED))
    until_running(service, running)
    time.sleep(1.0)  # till it has the lane to itself
    behind = [service.submit(ask(p0, seed=seed)) for seed in range(1, 16)]  # with it as many as the worker has at once
    late = service.submit(ask(p0, seed=99))
    running.cancel()
    for ticket in behind:
        with pytest.raises(TimedOut, match="did not let go"):
            ticket.result(60.0)
    assert late.result(60.0).path
    assert service.status().worker_pid != pid


def test_a_failed_device_is_told_to_all_who_ran_and_a_new_process_serves_the_rest(
    start: Start, p0: PromptClip
) -> None:
    service = start("engines_for_tests:LosesItsDevice", max_batch=2)
    pid = service.status().worker_pid
    beside = service.submit(ask(p0, seed=9011))
    until_running(service, beside)
    bad = service.submit(ask(p0, seed=SLOW_SEED))
    waiting = service.submit(ask(p0))
    with pytest.raises(EngineFailure, match="device-side assert"):
        bad.result(60.0)
    with pytest.raises(EngineFailure, match="device failed during another request"):
        beside.result(60.0)
    assert waiting.result(60.0).path
    assert service.status().worker_pid != pid
