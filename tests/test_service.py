"""The service with a real worker process and engines that behave and misbehave: what one request may cost others."""

from __future__ import annotations

import gc
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from services import (
    IMPATIENT,
    MEMORY_SEED,
    QUICK,
    SLOW_SEED,
    Start,
    ask,
    end_of,
    pcm_hash,
    say,
    settle,
    until_running,
)

from cosyvoice_app.engines.tone import ToneEngine
from cosyvoice_app.errors import (
    BadAudio,
    Cancelled,
    NoEngine,
    OutOfMemory,
    QueueFull,
    TextError,
    TimedOut,
)
from cosyvoice_app.outputs import OutputStore
from cosyvoice_app.pipeline import EngineFacts
from cosyvoice_app.serving.messages import Report
from cosyvoice_app.serving.process import describe_exit
from cosyvoice_app.serving.request import Done, Failed, Queued, SynthesisResult
from cosyvoice_app.serving.service import EngineService
from cosyvoice_app.serving.state import device_warnings
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import PromptClip

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineService]:
    """One service for the tests that leave it as they found it."""
    service = EngineService(Settings(engine=QUICK, outputs=tmp_path_factory.mktemp("shared")), limits=IMPATIENT)
    service.start()
    settle(service)
    yield service
    service.close()


# Results.


def test_one_seed_is_one_result_across_order_and_restarts(start: Start, p0: PromptClip) -> None:
    service = start()
    text = "海边的风很凉快。"
    hashes = [pcm_hash(say(service, p0, text, 42).path) for _ in range(2)]
    say(service, p0, "Something else.", 9)
    hashes.append(pcm_hash(say(service, p0, text, 42).path))
    service.restart()
    hashes.append(pcm_hash(say(service, p0, text, 42).path))
    assert len(set(hashes)) == 1
    assert pcm_hash(say(service, p0, text, 43).path) not in hashes


def test_sixteen_at_once_each_get_their_own(shared: EngineService, p0: PromptClip, p1: PromptClip) -> None:
    service = shared
    asked = [(clip, f"Text number {n} of eight.") for n in range(8) for clip in (p0, p1)]
    alone = [pcm_hash(say(service, clip, text).path) for clip, text in asked]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda item: say(service, *item), asked))
    assert [pcm_hash(result.path) for result in together] == alone
    assert len({result.path for result in together}) == len(set(alone)) == 16


def test_requests_of_one_instant_name_their_own_files(start: Start, tmp_path: Path, p0: PromptClip) -> None:
    store = OutputStore(tmp_path / "frozen", clock=lambda: datetime(2026, 3, 4, 12, 0, 0))
    service = start(outputs=store)
    tickets = [service.submit(ask(p0, seed=seed)) for seed in range(1, 7)]
    paths = [ticket.result(60.0).path for ticket in tickets]
    assert len({pcm_hash(path) for path in paths}) == 6
    assert {path.name for path in paths if path} == \
        {"output_20260304_120000.wav", *(f"output_20260304_120000_{n}.wav" for n in range(2, 7))}


@pytest.mark.parametrize(("seed", "rate_hz"), [(9008, 16_000), (9009, 44_100)])
def test_the_file_has_the_engine_s_rate_and_level(
    shared: EngineService, p0: PromptClip, seed: int, rate_hz: int
) -> None:
    result = say(shared, p0, "Hi.", seed)
    assert result.path is not None
    with wave.open(str(result.path), "rb") as file:
        assert (file.getframerate(), file.getnframes(), file.getsampwidth()) == (rate_hz, rate_hz, 2)
    assert abs(result.audio.samples).max() == pytest.approx(10 ** (-30 / 20), rel=0.02)


def test_the_result_tells_what_was_done(shared: EngineService, p0: PromptClip) -> None:
    service = shared
    say(service, p0)
    result = say(service, p0, "One more.")
    assert result.voice_cached
    assert (result.engine, result.device, result.seed) == ("tone", "cpu", 7)
    assert result.segments == ("One more.",)
    assert result.prompt["sha256"] == p0.sha256
    assert result.timings["total_s"] >= result.timings["synthesis_s"] > 0
    assert result.timings["rtf"] == pytest.approx(result.timings["synthesis_s"] / result.audio.duration_s)


# Errors cost only their own request.


@pytest.mark.parametrize("seed", [9001, 9002, 9003, 9004, 9005])
def test_broken_audio_makes_no_file(shared: EngineService, p0: PromptClip, seed: int) -> None:
    folder = folder_of(say(shared, p0))
    before = sorted(folder.iterdir())
    with pytest.raises(BadAudio, match="no usable audio"):
        say(shared, p0, seed=seed)
    assert sorted(folder.iterdir()) == before
    assert say(shared, p0).path


def folder_of(result: SynthesisResult) -> Path:
    assert result.path is not None
    return result.path.parent


def test_out_of_memory_is_survived_again_and_again(shared: EngineService, p0: PromptClip) -> None:
    service = shared
    good, pid = pcm_hash(say(service, p0).path), service.status().worker_pid
    for _ in range(5):
        with pytest.raises(OutOfMemory, match=r"memory.*shorter text"):
            say(service, p0, seed=MEMORY_SEED)
        assert pcm_hash(say(service, p0).path) == good
    tickets = [service.submit(ask(p0, seed=seed)) for seed in (7, MEMORY_SEED, 7, 7)]
    ends = [end_of(ticket) for ticket in tickets]
    assert [type(end) for end in ends] == [Done, Failed, Done, Done]
    assert {pcm_hash(end.result.path) for end in ends if isinstance(end, Done)} == {good}
    assert service.status().worker_pid == pid


def test_bad_text_is_refused_before_it_waits(start: Start, p0: PromptClip) -> None:
    service = start(max_chars=20)
    for text in ("", "。。。", "a" * 21):
        with pytest.raises(TextError):
            service.submit(ask(p0, text))
    assert service.status().queue == 0
    assert say(service, p0).path


# Queue and cancel.


def test_places_in_the_queue_are_honest_and_a_waiting_request_can_leave(start: Start, p0: PromptClip) -> None:
    service = start(max_batch=1)
    running = service.submit(ask(p0, seed=SLOW_SEED))
    until_running(service, running)
    first, second, third = (service.submit(ask(p0, seed=seed)) for seed in (1, 2, 3))
    assert service.status().queue == 3
    second.cancel()
    with pytest.raises(Cancelled):
        second.result(1.0)
    running.cancel()
    first.result(60.0)
    third.result(60.0)
    assert [e.position for e in third.events() if isinstance(e, Queued)] == [2, 1, 0]
    assert [e.position for e in first.events() if isinstance(e, Queued)] == [0]


def test_a_full_queue_says_when_to_come_back(start: Start, p0: PromptClip) -> None:
    service = start(max_queue=2, max_batch=1)
    running = service.submit(ask(p0, seed=SLOW_SEED))
    until_running(service, running)
    waiting = [service.submit(ask(p0, seed=seed)) for seed in (1, 2)]
    with pytest.raises(QueueFull, match="2 requests are waiting") as caught:
        service.submit(ask(p0))
    assert caught.value.retry_after_s and caught.value.retry_after_s >= 1
    running.cancel()
    assert all(ticket.result(60.0).path for ticket in waiting)


def test_an_abandoned_request_lets_go_of_the_engine(shared: EngineService, p0: PromptClip) -> None:
    service = shared
    folder = folder_of(say(service, p0, "你好。"))
    files = len(list(folder.iterdir()))
    threads, pid = threading.active_count(), service.status().worker_pid
    abandoned = service.submit(ask(p0, seed=SLOW_SEED))
    until_running(service, abandoned)
    abandoned.cancel()
    began = time.monotonic()
    say(service, p0, "你好。")
    assert time.monotonic() - began < 1.5
    with pytest.raises(Cancelled):
        abandoned.result(1.0)
    abandoned.cancel()  # again, after its end: nothing happens
    assert len(list(folder.iterdir())) == files + 2  # the second result and its sidecar, nothing half-written
    assert threading.active_count() == threads
    assert service.status().worker_pid == pid


def test_waiting_for_a_result_no_longer_than_asked_cancels_it(shared: EngineService, p0: PromptClip) -> None:
    service = shared
    ticket = service.submit(ask(p0, seed=SLOW_SEED))
    with pytest.raises(TimedOut, match=r"0\.2 s"):
        ticket.result(0.2)
    with pytest.raises(Cancelled):
        ticket.result(1.0)


def test_ctrl_c_is_the_web_process_s_business(shared: EngineService, p0: PromptClip) -> None:
    service = shared
    pid = service.status().worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    assert say(service, p0).path
    assert service.status().worker_pid == pid


# Loading, restart, unload.


def test_ready_means_ready(start: Start, p0: PromptClip) -> None:
    service = start("engines_for_tests:SlowToLoad", wait=False)
    status = service.status()
    assert (status.state, status.capabilities, status.components) == ("loading", None, {})
    early = service.submit(ask(p0))  # waits for the engine instead of failing
    status = settle(service)
    assert set(status.components.values()) == {"cpu"}
    assert status.memory["rss"] > 10_000_000
    assert early.result(60.0).path
    times = []
    for seed in range(1, 5):
        began = time.monotonic()
        say(service, p0, seed=seed)
        times.append(time.monotonic() - began)
    assert times[0] <= 2 * statistics.median(times[1:]) + 0.3  # the warm-up alone takes 0.5


def test_restart_is_a_new_process_and_the_queue_survives(start: Start, p0: PromptClip) -> None:
    service = start(max_batch=1)
    pids = [service.status().worker_pid]
    for _ in range(3):
        before, after = service.restart()
        assert (before.worker_pid, after.state) == (pids[-1], "ready")
        assert before.memory["rss"] > 0 and after.memory["rss"] > 0
        pids.append(after.worker_pid)
    assert len(set(pids)) == 4
    running = service.submit(ask(p0, seed=SLOW_SEED))
    waiting = [service.submit(ask(p0, seed=seed)) for seed in (1, 2)]
    until_running(service, running)
    service.restart()
    with pytest.raises(NoEngine, match="restarted"):
        running.result(1.0)
    assert all(ticket.result(60.0).path for ticket in waiting)
    assert [child.pid for child in psutil.Process().children() if child.pid in pids[:4]] == []


def test_pressing_restart_twice_restarts_once(start: Start) -> None:
    service = start("engines_for_tests:SlowToLoad")
    with ThreadPoolExecutor(2) as pool:
        (before_a, after_a), (before_b, after_b) = pool.map(lambda _: service.restart(), range(2))
    assert before_a.worker_pid == before_b.worker_pid
    assert after_a.worker_pid == after_b.worker_pid != before_a.worker_pid
    assert after_a.state == "ready"


def test_unload_frees_the_process_and_load_brings_one_back(start: Start, p0: PromptClip) -> None:
    service = start()
    running, waiting = service.submit(ask(p0, seed=SLOW_SEED)), service.submit(ask(p0))
    until_running(service, running)
    before, after = service.unload()
    assert before.worker_pid is not None and not psutil.pid_exists(before.worker_pid)
    assert (after.state, after.worker_pid, after.memory["rss"]) == ("unloaded", None, 0)
    for ticket in (running, waiting):
        with pytest.raises(NoEngine, match="unloaded"):
            ticket.result(1.0)
    with pytest.raises(NoEngine, match="unloaded"):
        service.submit(ask(p0))
    assert service.unload()[1].state == "unloaded"
    assert service.load().state == "ready"
    assert service.load().state == "ready"  # and again: nothing to do
    assert say(service, p0).path


def test_unload_need_not_wait_for_a_slow_load(start: Start) -> None:
    service = start("engines_for_tests:TakesForever", wait=False)
    assert service.unload()[1].state == "unloaded"  # returns at all
    assert service.status().worker_pid is None


def test_an_engine_without_its_files_fails_once_and_says_why(start: Start, p0: PromptClip) -> None:
    service = start("engines_for_tests:WithoutFiles", wait=False)
    waiting = service.submit(ask(p0))
    status = settle(service, state="failed")
    assert "weights.bin is missing" in status.detail
    with pytest.raises(NoEngine, match=r"weights\.bin is missing"):
        waiting.result(60.0)
    with pytest.raises(NoEngine, match=r"weights\.bin is missing"):
        service.submit(ask(p0))
    assert service.restart()[1].state == "failed"


def test_an_engine_that_dies_while_loading_is_tried_three_times(start: Start, tmp_path: Path) -> None:
    service = start("engines_for_tests:DiesWhileLoading", wait=False)
    status = settle(service, state="failed")
    assert "3 times while loading (with exit code 7)" in status.detail
    assert (tmp_path / "attempts").read_text() == "xxx"
    assert service.load().state == "failed"
    assert (tmp_path / "attempts").read_text() == "xxxxxx"


def test_closing_tells_everyone_and_leaves_nothing(start: Start, p0: PromptClip) -> None:
    threads = threading.active_count()
    service = start()
    running, waiting = service.submit(ask(p0, seed=SLOW_SEED)), service.submit(ask(p0))
    until_running(service, running)
    pid = service.status().worker_pid
    service.close()
    service.close()
    for ticket in (running, waiting):
        with pytest.raises(NoEngine, match="shutting down"):
            ticket.result(1.0)
    with pytest.raises(NoEngine):
        service.submit(ask(p0))
    assert pid is not None and not psutil.pid_exists(pid)
    assert threading.active_count() == threads


def test_the_worker_dies_with_a_killed_web_process(tmp_path: Path) -> None:
    script = (
        "import time; from pathlib import Path; import sys\n"
        "from cosyvoice_app.serving.service import EngineService; from cosyvoice_app.settings import Settings\n"
        "if __name__ == '__main__':\n"
        "    service = EngineService(Settings(engine='tone', outputs=Path(sys.argv[1]))); service.start()\n"
        "    print(service.load().worker_pid, flush=True); time.sleep(60)\n"
    )
    (tmp_path / "serve.py").write_text(script)
    web = subprocess.Popen([sys.executable, tmp_path / "serve.py", tmp_path], stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert web.stdout is not None
    worker = psutil.Process(int(web.stdout.readline()))
    web.kill()
    web.wait()
    web.stdout.close()
    worker.wait(timeout=5)
    assert not worker.is_running()


# What is reported.


def test_the_web_process_imports_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cosyvoice_app.audio.prompt import load_prompt\n"
        "from cosyvoice_app.serving.request import SynthesisRequest\n"
        "from cosyvoice_app.serving.service import EngineService; from cosyvoice_app.settings import Settings\n"
        "from cosyvoice_app.voices.library import VoiceLibrary\n"
        "if __name__ == '__main__':\n"
        "    service = EngineService(Settings(engine='tone', outputs=Path(sys.argv[1]))); service.start()\n"
        "    clip = load_prompt(Path(sys.argv[2]))\n"
        "    assert service.submit(SynthesisRequest(clip, 'Hello.')).result(20).path\n"
        "    print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'torchaudio', 'gradio'}))\n"
        "    service.close()\n"
    )
    (tmp_path / "serve.py").write_text(script)
    done = subprocess.run([sys.executable, tmp_path / "serve.py", tmp_path, ROOT / "tests" / "data" / "p0_en.flac"],
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_status_warns_when_a_component_is_not_where_it_was_asked_to_be() -> None:
    facts = EngineFacts("lite", "cpu", "no usable GPU", "fp32", "hash", ToneEngine.capabilities)
    assert "runs on cpu: no usable GPU" in device_warnings("cuda", facts, None)[0]
    assert device_warnings("auto", facts, Report(1, {"vocoder": "cpu"}, {})) == ()
    on_gpu = EngineFacts("lite", "cuda:0", "found", "fp32", "hash", ToneEngine.capabilities)
    report = Report(1, {"vocoder": "cuda:0", "speaker_encoder": "cpu"}, {})
    assert "speaker_encoder on cpu" in device_warnings("cuda", on_gpu, report)[0]


def test_metrics_count_what_happened(start: Start, p0: PromptClip) -> None:
    service = start()
    say(service, p0)
    with pytest.raises(BadAudio):
        say(service, p0, seed=9001)
    text = service.metrics().decode()
    assert 'cosyvoice_requests_total{outcome="ok"} 1.0' in text
    assert 'cosyvoice_requests_total{outcome="bad_audio"} 1.0' in text
    assert "cosyvoice_request_seconds_count 1.0" in text
    assert 'cosyvoice_worker_memory_bytes{kind="rss"}' in text
    assert "cosyvoice_queue_waiting 0.0" in text


def test_nothing_grows_from_call_to_call(start: Start, p0: PromptClip) -> None:
    service = start()

    def use() -> tuple[int, int, int, int, int]:
        gc.collect()  # what earlier tests left behind isn't ours to count, whenever it goes
        here, worker = psutil.Process(), psutil.Process(service.status().worker_pid)
        return (here.num_fds(), threading.active_count(), worker.num_fds(), worker.num_threads(),
                worker.memory_info().rss)

    for _ in range(5):
        say(service, p0)
    before = use()
    for _ in range(15):
        say(service, p0)
    for length in range(5, 200, 13):
        say(service, p0, "a word " * (length // 7 + 1))
    for _ in range(8):
        with pytest.raises(OutOfMemory):
            say(service, p0, seed=MEMORY_SEED)
    after = use()
    for then, now in zip(before[:4], after[:4], strict=True):
        assert now - then <= 2
    assert after[4] - before[4] < 20_000_000


@pytest.mark.parametrize(("code", "words"), [
    (3, "with exit code 3"), (-11, "killed by SIGSEGV (11)"), (-9, "running out of memory"), (None, "unknown"),
])
def test_an_exit_code_is_put_in_words(code: int | None, words: str) -> None:
    assert words in describe_exit(code)
