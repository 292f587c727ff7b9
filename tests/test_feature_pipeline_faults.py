"""The pipeline under callers that misbehave: callbacks that submit or exit, interrupts, timeouts, forks."""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from cosyvoice_app.audio.clip_features import ClipFeatures
from cosyvoice_app.audio.clip_loading import Loaded, Source
from cosyvoice_app.audio.feature_pipeline import FeaturePipeline
from cosyvoice_app.audio.grouping import Grouper
from cosyvoice_app.errors import BadInput, QueueFull
from cosyvoice_app.types import FloatArray

ROOT = Path(__file__).parents[1]
RATE_HZ = 16_000
TIMEOUT_S = 30.0


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@dataclass
class Peaks:
    """[B, frames, 1]: the largest of each 160 samples; computed when the gate is open."""

    rate_hz: int = RATE_HZ
    bins: int = 1
    gate: threading.Event = field(default_factory=threading.Event)

    def frames(self, samples: int) -> int:
        return samples // 160

    def __call__(self, samples: Tensor, lengths: Tensor, /, *, check: bool) -> Peaks.Result:
        assert self.gate.wait(2 * TIMEOUT_S)
        frames = samples.shape[1] // 160
        return self.Result(samples[:, : 160 * frames].reshape(len(samples), frames, 160).amax(dim=2, keepdim=True))

    @dataclass
    class Result:
        values: Tensor


def clip(seconds: float = 0.1) -> FloatArray:
    return np.full(round(seconds * RATE_HZ), 0.25, np.float32)


def closes(pipeline: FeaturePipeline) -> bool:
    """Whether `close` returns, without hanging the test, or the end of the program, when it doesn't."""
    closer = threading.Thread(target=pipeline.close, daemon=True)
    closer.start()
    closer.join(TIMEOUT_S)
    if closer.is_alive():
        atexit.unregister(pipeline.close)
    return not closer.is_alive()


def fill_by_samples(pipeline: FeaturePipeline, extractor: Peaks) -> list[Future[ClipFeatures]]:
    """20 s clips until the next array would have to wait, long before the queue of 64 is full."""
    futures: list[Future[ClipFeatures]] = []
    full = threading.Event()

    def fill() -> None:
        try:
            for _ in range(60):
                futures.append(pipeline.submit(clip(20.0), timeout=0.2))
        except QueueFull:
            full.set()

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    filler.join(TIMEOUT_S)
    if not full.is_set():
        extractor.gate.set()
        closes(pipeline)
        pytest.fail("a submit waited for longer than its timeout, or never had to wait")
    return futures


def test_a_submit_of_samples_waits_no_longer_than_it_was_told() -> None:
    extractor = Peaks()
    pipeline = FeaturePipeline(extractor, max_batch=1, queue=64)
    futures = fill_by_samples(pipeline, extractor)
    assert len(futures) < 20
    started = time.monotonic()
    with pytest.raises(QueueFull):
        pipeline.submit(clip(20.0), timeout=0.1)
    assert 0.09 < time.monotonic() - started < 5
    extractor.gate.set()
    assert pipeline.submit(clip(20.0)).result(TIMEOUT_S).frames == 2000, "and there is room again"
    assert closes(pipeline)
    assert all(future.result(0).frames == 2000 for future in futures)


def test_a_callback_that_submits_samples_never_waits_for_its_own_thread() -> None:
    extractor = Peaks()
    pipeline = FeaturePipeline(extractor, max_batch=1, queue=64)
    futures = fill_by_samples(pipeline, extractor)
    again: list[Future[ClipFeatures]] = []
    lock = threading.Lock()

    def back(_: Future[ClipFeatures]) -> None:
        made = pipeline.submit(clip(20.0))
        with lock:
            again.append(made)

    def feed() -> None:
        for _ in range(6):
            made = pipeline.submit(clip(20.0))
            made.add_done_callback(back)
            with lock:
                again.append(made)

    for future in futures:
        future.add_done_callback(back)
    feeders = [threading.Thread(target=feed, daemon=True) for _ in range(3)]
    for feeder in feeders:
        feeder.start()
    extractor.gate.set()
    for feeder in feeders:
        feeder.join(TIMEOUT_S)
    until = time.monotonic() + TIMEOUT_S
    while len(again) < len(futures) + 36 and time.monotonic() < until:
        time.sleep(0.01)
    assert closes(pipeline)
    assert not any(feeder.is_alive() for feeder in feeders), "a feeder hangs"
    assert len(again) == len(futures) + 36 and all(future.result(0).frames == 2000 for future in again)


def test_an_interrupt_while_samples_wait_for_room_leaves_a_pipeline_that_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extractor = Peaks()
    pipeline = FeaturePipeline(extractor, max_batch=1, queue=64)
    futures = fill_by_samples(pipeline, extractor)
    waiting = pipeline._waiting
    add = Grouper.add

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Grouper, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.submit(clip(20.0))

    def interrupted_after(self: Grouper[object], item: object, samples: int, deadline: float | None = None) -> bool:
        add(self, item, samples, deadline)
        raise KeyboardInterrupt

    extractor.gate.set()
    for future in futures:
        assert future.result(TIMEOUT_S).frames == 2000
    monkeypatch.setattr(Grouper, "add", interrupted_after)
    with pytest.raises(KeyboardInterrupt):
        pipeline.submit(clip())
    monkeypatch.setattr(Grouper, "add", add)
    assert closes(pipeline)
    assert waiting > 0 and pipeline._waiting == 0, "no place in the queue is lost"


def test_a_real_ctrl_c_in_a_submit_that_waits_ends_the_program() -> None:
    code = (
        "import threading, _thread, numpy as np\n"
        "from cosyvoice_app.audio.feature_pipeline import FeaturePipeline\n"
        "from test_feature_pipeline_faults import Peaks\n"
        "extractor = Peaks()\n"
        "pipeline = FeaturePipeline(extractor, max_batch=1)\n"
        "import signal, os\n"
        "threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "threading.Timer(1.5, extractor.gate.set).start()\n"
        "try:\n"
        "    for _ in range(60): pipeline.submit(np.zeros(320000, np.float32))\n"
        "except KeyboardInterrupt:\n"
        "    pipeline.close()\n"
        "    print('closed')\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, env=environ
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "closed\n", "")


def test_an_interrupt_while_samples_are_read_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    with FeaturePipeline(Peaks()) as pipeline:

        def interrupted(_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(pipeline, "_load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pipeline.submit(clip())
        assert pipeline._waiting == 0


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("stage", ["decode", "download", "drop"])
def test_whatever_a_callback_raises_the_next_clip_is_done(
    stage: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    extractor = Peaks()
    pipeline = FeaturePipeline(extractor, decoders=1, max_batch=1, max_wait_ms=0)

    def leave(_: Future[ClipFeatures]) -> None:
        raise error

    futures = [pipeline.submit(clip()) for _ in range(2)]
    if stage == "decode":
        load, may_load = pipeline._load, threading.Event()

        def load_later(source: Source) -> Loaded:
            assert may_load.wait(TIMEOUT_S)
            return load(source)

        monkeypatch.setattr(pipeline, "_load", load_later)
        bad = pipeline.submit(b"no audio")
        bad.add_done_callback(leave)
        may_load.set()
        with pytest.raises(BadInput):
            bad.result(TIMEOUT_S)
    for future in futures:
        future.add_done_callback(leave)
    if stage == "drop":
        with pipeline._lock:
            pipeline._dropping = True  # as a close without drain does
        extractor.gate.set()
        assert closes(pipeline) and all(future.done() for future in futures)
        return
    extractor.gate.set()
    good, bad = pipeline.submit(clip()), pipeline.submit(b"no audio")
    concurrent.futures.wait([good, bad], TIMEOUT_S)
    assert closes(pipeline)
    assert good.result(0).frames == 10 and isinstance(bad.exception(0), BadInput)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_is_told_to_make_its_own() -> None:
    """In a program of its own: to fork this one, with its many threads, would be to test them all."""
    code = (
        "import os, sys, numpy as np\n"
        "from cosyvoice_app.audio.feature_pipeline import FeaturePipeline\n"
        "from test_feature_pipeline_faults import Peaks, clip\n"
        "extractor = Peaks()\n"
        "extractor.gate.set()\n"
        "pipeline = FeaturePipeline(extractor)\n"
        "pipeline.submit(clip()).result()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        with pipeline: pipeline.submit(clip())\n"
        "    except RuntimeError as error:\n"
        "        os._exit(7 if 'forked' in str(error) else 8)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "pipeline.close()\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    ended = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ, start_new_session=True
    )
    try:
        assert ended.communicate(timeout=60)[0] == "7\n"
    except subprocess.TimeoutExpired:
        os.killpg(ended.pid, 9)
        raise


def test_the_grouper_gives_up_at_its_deadline() -> None:
    grouper: Grouper[object] = Grouper(8, 10**9, 60.0, hold_items=100, hold_samples=1000)
    first, second = object(), object()
    assert grouper.add(first, 1000)
    assert not grouper.add(second, 1000, time.monotonic() + 0.05)
    assert grouper.holds(first) and not grouper.holds(second)
    grouper.end()
    assert grouper.take() == [first]
