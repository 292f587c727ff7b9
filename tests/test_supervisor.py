"""The supervisor's decisions, with processes and time that are played: crashes, hangs, idling, failed loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cosyvoice_app.engines.tone import ToneEngine
from cosyvoice_app.errors import AppError, AssetError, EngineFailure, NoEngine, OutOfMemory, TimedOut
from cosyvoice_app.pipeline import EngineFacts
from cosyvoice_app.serving import supervisor as supervisor_module
from cosyvoice_app.serving.messages import FromWorker, Gone, LoadFailed, Loading, Ready
from cosyvoice_app.serving.process import KILL_S
from cosyvoice_app.serving.supervisor import Limits, Supervisor
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import Progress

FACTS = EngineFacts.of(ToneEngine())
LIMITS = Limits()
RESTART = NoEngine("restarted")


class FakeProcess:
    """What a worker process is to the supervisor. `silent_s` is set by the test."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.silent_s = 0.0
        self.asked = self.killed = False

    def ask_to_end(self) -> None:
        self.asked = True

    def kill(self, *, wait: bool = True) -> bool:
        self.killed = True
        return False

    def send(self, message: object) -> None:
        pass


class World:
    """A supervisor, its clock, the processes it started and what it told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.now = 1000.0
        self.processes: list[FakeProcess] = []
        self.reasons: list[str] = []
        self.lost: list[AppError] = []
        self.no_process: OSError | None = None
        monkeypatch.setattr(supervisor_module, "WorkerProcess", self._new_process)
        self.engine = Supervisor(Settings(engine="tone", **options), LIMITS, on_message=lambda *_: None,
                                 on_lost=self.lost.append, on_started=self.reasons.append, clock=lambda: self.now)

    def _new_process(self, settings: Settings, on_message: object) -> FakeProcess:
        if self.no_process is not None:
            raise self.no_process
        self.processes.append(FakeProcess(len(self.processes) + 1))
        return self.processes[-1]

    @property
    def worker(self) -> FakeProcess:
        return self.processes[-1]

    def hear(self, message: FromWorker, worker: FakeProcess | None = None) -> None:
        self.engine.handle(worker or self.worker, message)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.engine.tick()

    def ready(self) -> None:
        self.engine.start()
        self.hear(Ready(FACTS))
        assert self.engine.state == "ready"

    def crash(self, *, loading: bool = False) -> None:
        if not loading and self.engine.state != "ready":
            self.hear(Ready(FACTS))
        self.hear(Gone(-11))

    def next_start_s(self, most_s: float = 10_000.0) -> float:
        """Seconds from now till the next worker is started, to a tenth."""
        started, begun = len(self.processes), self.now
        while len(self.processes) == started:
            assert self.now - begun < most_s
            self.wait(0.1)
        return round(self.now - begun, 1)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


Build = Callable[..., World]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    return lambda **options: World(monkeypatch, **options)


# Crashes.


def test_after_a_lone_crash_the_next_worker_starts_at_once(world: World) -> None:
    world.ready()
    world.crash()
    assert len(world.processes) == 2 and world.engine.state == "loading"
    assert isinstance(world.lost[-1], EngineFailure) and "SIGSEGV (11)" in world.lost[-1].message
    assert world.reasons == ["start", "crash"]


def test_each_further_crash_in_a_row_waits_twice_as_long(world: World) -> None:
    world.ready()
    world.crash()
    delays = []
    for _ in range(3):
        world.crash()
        delays.append(world.next_start_s())
    assert delays == pytest.approx([0.5, 1.0, 2.0], abs=0.11)


def test_five_crashes_in_a_row_open_the_breaker(world: World) -> None:
    world.ready()
    for _ in range(4):
        world.crash()
        world.wait(5.0)
        assert world.engine.refusal() is None
    world.crash()
    started = len(world.processes)
    assert world.engine.state == "failed" and "5 times in a row" in world.engine.detail
    refusal = world.engine.refusal()
    assert refusal is not None and refusal.http_status == 503 and refusal.retry_after_s == 30
    world.wait(20.0)
    refusal = world.engine.refusal()
    assert refusal is not None and refusal.retry_after_s == 10
    assert len(world.processes) == started


def opened(world: World) -> None:
    world.ready()
    for _ in range(5):
        world.crash()
        world.wait(5.0)
    assert world.engine.state == "failed"


def test_after_the_cool_down_one_trial_whose_crash_doubles_it(world: World) -> None:
    opened(world)
    assert world.next_start_s() == pytest.approx(25.0, abs=0.2)  # 5 of the 30 s have passed
    assert world.engine.trial and world.engine.refusal() is None and world.reasons[-1] == "trial"
    world.crash()
    assert world.engine.state == "failed"
    assert world.next_start_s() == pytest.approx(60.0, abs=0.2)
    world.crash(loading=True)
    assert world.next_start_s() == pytest.approx(120.0, abs=0.2)
    for _ in range(5):
        world.crash()
        last_s = world.next_start_s()
    assert last_s == pytest.approx(LIMITS.cool_most_s, abs=0.2)


def test_a_success_in_the_trial_closes_the_breaker(world: World) -> None:
    opened(world)
    world.next_start_s()
    world.hear(Ready(FACTS))
    world.engine.job_succeeded()
    assert not world.engine.trial
    started = len(world.processes)
    world.crash()
    assert len(world.processes) == started + 1 and world.engine.refusal() is None


def test_fifty_crashes_with_successes_between_them_never_open_it(world: World) -> None:
    world.ready()
    for round_ in range(50):
        if world.engine.state != "ready":
            world.hear(Ready(FACTS))
        world.engine.job_succeeded()
        world.crash()
        assert len(world.processes) == round_ + 2 and world.engine.refusal() is None
        world.now += 0.5


def test_a_worker_that_lived_well_for_long_starts_a_new_row(world: World) -> None:
    """Nobody asks for anything, and every two minutes something kills the worker."""
    world.ready()
    for _ in range(20):
        world.wait(120.0)
        started = len(world.processes)
        world.crash()
        assert len(world.processes) == started + 1
        world.hear(Ready(FACTS))


def test_three_crashes_while_loading_are_enough(world: World) -> None:
    world.engine.start()
    for _ in range(3):
        world.crash(loading=True)
        world.wait(1.0)
    assert world.engine.state == "failed" and "3 times while loading" in world.engine.detail


@pytest.mark.parametrize("ask", ["start", "restart"])
def test_a_person_is_not_made_to_wait_for_the_cool_down(world: World, ask: str) -> None:
    opened(world)
    started = len(world.processes)
    if ask == "start":
        world.engine.start("load")
    else:
        assert world.engine.end("respawn", RESTART) is None
    assert len(world.processes) == started + 1 and world.engine.state == "loading" and not world.engine.trial
    world.crash()
    assert len(world.processes) == started + 2, "the row was forgiven"


def test_a_system_that_starts_no_process_is_told_and_tried_again(world: World) -> None:
    world.no_process = OSError("no more processes")
    world.engine.start()
    refusal = world.engine.refusal()
    assert world.engine.state == "failed" and refusal is not None and "no more processes" in refusal.message
    world.no_process = None
    assert world.next_start_s() == pytest.approx(30.0, abs=0.2)


# Hangs, and ends that don't come.


@pytest.mark.parametrize(("loaded", "patience_s"), [(True, LIMITS.heartbeat_s), (False, LIMITS.load_heartbeat_s)])
def test_a_silent_worker_is_killed_and_replaced(world: World, loaded: bool, patience_s: float) -> None:
    world.engine.start()
    if loaded:
        world.hear(Ready(FACTS))
    world.worker.silent_s = patience_s - 1
    world.wait(0.2)
    assert not world.worker.killed
    world.worker.silent_s = patience_s + 1
    world.wait(0.2)
    assert world.worker.killed and isinstance(world.lost[-1], TimedOut) and len(world.processes) == 1
    world.hear(Gone(-9))
    assert len(world.processes) == 2


def test_hangs_count_like_crashes(world: World) -> None:
    world.ready()
    for _ in range(5):
        if world.engine.state != "ready":
            world.hear(Ready(FACTS))
        world.worker.silent_s = 31.0
        world.wait(0.2)
        world.hear(Gone(-9))
        world.wait(5.0)
    assert world.engine.state == "failed" and "hung 5 times in a row" in world.engine.detail


def test_a_worker_that_keeps_a_stopped_request_is_replaced_and_counts_as_no_crash(world: World) -> None:
    world.ready()
    for round_ in range(10):
        world.engine.replace(TimedOut("did not let go"))
        assert world.worker.killed and world.engine.state == "loading"
        world.hear(Gone(-9))
        assert len(world.processes) == round_ + 2
        world.hear(Ready(FACTS))


@pytest.mark.parametrize("ending", ["unload", "restart", "device failed", "load failed"])
def test_whatever_the_reason_a_worker_that_does_not_end_is_killed(world: World, ending: str) -> None:
    world.engine.start()
    if ending == "load failed":
        world.hear(LoadFailed(AssetError("no weights").to_dict()))
    else:
        world.hear(Ready(FACTS))
    if ending == "device failed":
        world.engine.expect_end()
    elif ending != "load failed":
        world.engine.end("unload" if ending == "unload" else "respawn", RESTART)
    world.wait(LIMITS.stop_s - 0.1)
    assert world.worker.asked and not world.worker.killed
    world.wait(0.2)
    assert world.worker.killed


def test_a_process_that_the_system_can_t_end_is_not_waited_for(world: World) -> None:
    world.ready()
    stuck = world.worker
    world.engine.end("respawn", RESTART)
    for _ in range(10):
        world.wait(1.0)
    assert LIMITS.stop_s + KILL_S < 10.0
    assert len(world.processes) == 2 and world.engine.state == "loading"
    world.hear(Ready(FACTS))
    world.hear(Gone(None), stuck)  # it did end at last
    assert world.engine.state == "ready" and len(world.processes) == 2


def test_a_failed_device_takes_all_requests_and_counts(world: World) -> None:
    world.ready()
    for _ in range(5):
        if world.engine.state != "ready":
            world.hear(Ready(FACTS))
        world.lost.clear()
        world.engine.expect_end()
        assert "device failed" in world.lost[0].message and world.engine.state == "loading"
        world.hear(Gone(0))
        world.wait(5.0)
    assert world.engine.state == "failed" and "the device failed 5 times" in world.engine.detail


# Failed loads.


def test_a_failed_load_says_why_and_what_to_do_and_restart_works_after_it(world: World) -> None:
    told = AssetError("weights.bin is missing. Run: assets fetch")
    world.engine.start()
    world.hear(LoadFailed(told.to_dict()))
    world.hear(Gone(0))
    refusal = world.engine.refusal()
    assert world.engine.state == "failed" and world.engine.detail == told.message
    assert refusal is not None and told.message in refusal.message and refusal.retry_after_s is None
    assert isinstance(world.engine.failure, AssetError)
    world.wait(10_000.0)
    assert len(world.processes) == 1, "files don't come by themselves"
    world.engine.end("respawn", RESTART)
    world.hear(Ready(FACTS))
    assert world.engine.state == "ready" and world.engine.failure is None


def test_a_restart_while_a_failed_worker_still_ends_waits_for_it(world: World) -> None:
    world.engine.start()
    world.hear(LoadFailed(AssetError("no weights").to_dict()))
    world.engine.start("load")
    assert world.engine.state == "loading" and len(world.processes) == 1
    world.hear(Gone(0))
    assert len(world.processes) == 2 and world.reasons[-1] == "load"


def test_too_little_memory_to_load_is_tried_again_later(world: World) -> None:
    world.engine.start()
    world.hear(LoadFailed(OutOfMemory("not enough memory").to_dict()))
    world.hear(Gone(0))
    refusal = world.engine.refusal()
    assert refusal is not None and refusal.retry_after_s == 30
    assert world.next_start_s() == pytest.approx(30.0, abs=0.2)
    world.hear(LoadFailed(OutOfMemory("not enough memory").to_dict()))
    world.hear(Gone(0))
    assert world.next_start_s() == pytest.approx(60.0, abs=0.2)


# Idling.


def test_an_idle_engine_is_unloaded_and_loaded_by_the_next_request(build: Build) -> None:
    world = build(idle_unload_s=60)
    world.ready()
    world.wait(59.0)
    assert world.engine.state == "ready"
    world.engine.note_activity()
    world.wait(59.0)
    assert world.engine.state == "ready", "a request came meanwhile"
    world.wait(2.0)
    assert world.engine.state == "unloaded" and "60 s without a request" in world.engine.detail
    assert world.worker.asked and not world.lost
    assert world.engine.loads_on_demand and world.engine.refusal() is None
    world.hear(Gone(0))
    world.wait(1000.0)
    assert len(world.processes) == 1 and world.engine.process is None
    assert world.engine.last_facts == FACTS and world.engine.last_pid == 1
    world.engine.note_activity()
    assert world.engine.state == "loading" and world.reasons == ["start", "demand"]
    assert not world.engine.loads_on_demand
    world.hear(Ready(FACTS))
    world.wait(59.0)
    assert world.engine.state == "ready"


def test_a_request_that_comes_while_the_idle_worker_ends_is_served_by_the_next(build: Build) -> None:
    world = build(idle_unload_s=60)
    world.ready()
    world.wait(61.0)
    world.engine.note_activity()
    assert world.engine.state == "loading" and len(world.processes) == 1
    world.hear(Gone(0))
    assert len(world.processes) == 2 and world.reasons[-1] == "demand"


def test_an_engine_that_a_person_unloaded_stays_so(build: Build) -> None:
    world = build(idle_unload_s=60)
    world.ready()
    world.wait(61.0)
    world.hear(Gone(0))
    world.engine.end("unload", RESTART)
    world.engine.note_activity()
    refusal = world.engine.refusal()
    assert refusal is not None and "unloaded" in refusal.message
    assert world.engine.state == "unloaded" and len(world.processes) == 1


def test_without_the_option_nothing_idles_out(world: World) -> None:
    world.ready()
    world.wait(1_000_000.0)
    assert world.engine.state == "ready"


def test_slow_loading_is_no_idling(build: Build) -> None:
    world = build(idle_unload_s=60)
    world.engine.start()
    world.wait(170.0)
    world.hear(Loading(Progress("loading", 0.5, "half way")))
    assert (world.engine.state, world.engine.detail) == ("loading", "half way")
    world.hear(Ready(FACTS))
    world.wait(59.0)
    assert world.engine.state == "ready"


def test_an_idle_unload_of_a_worker_that_hangs_at_its_end_is_bounded(build: Build) -> None:
    world = build(idle_unload_s=60)
    world.ready()
    world.wait(61.0)
    world.wait(LIMITS.stop_s + 0.1)
    assert world.worker.killed
    world.wait(KILL_S + 0.1)
    assert world.engine.process is None and world.engine.loads_on_demand


def test_an_old_worker_is_not_listened_to(world: World) -> None:
    world.ready()
    old = world.worker
    world.crash()
    world.hear(Ready(replace(FACTS, device="cuda:7")), old)
    assert world.engine.state == "loading" and world.engine.facts is None
