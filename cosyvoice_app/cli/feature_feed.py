"""Clips to the pipelines of what was chosen for them, and their results as they finish."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cosyvoice_app.cli.feature_choices import Choices, Chosen
from cosyvoice_app.cli.feature_files import Item

if TYPE_CHECKING:
    from cosyvoice_app.audio.clip_features import ClipFeatures
    from cosyvoice_app.audio.feature_pipeline import FeaturePipeline

_MOST_OPEN = 4
"""Pipelines at once: each has buffers of its own. The built-in sets are not more for any kind."""


@dataclass(frozen=True, slots=True)
class Done:
    """`chosen` is None where nothing could be chosen; the future says why."""

    item: Item
    chosen: Chosen | None
    future: Future[ClipFeatures]


class Pipelines:
    """A pipeline for each distinct choice, the least used of which is ended where there would be too many."""

    def __init__(self, choices: Choices, make: Callable[[Chosen], FeaturePipeline], max_seconds: float) -> None:
        self._choices, self._make, self._max_seconds = choices, make, max_seconds
        self._open: dict[object, FeaturePipeline] = {}
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, item: Item) -> tuple[Chosen | None, Future[ClipFeatures]]:
        """Waits while the clip's pipeline is full, and lets other threads wait too. RuntimeError once closed."""
        try:
            chosen = self._chosen(item.source)
        except Exception as error:  # noqa: BLE001 - the clip's own: it goes where its result would
            failed: Future[ClipFeatures] = Future()
            failed.set_exception(error)
            return None, failed
        with self._lock:
            if self._closed:
                raise RuntimeError("The pipelines are closed.")
            pipeline = self._open.pop(chosen.key, None)
            if pipeline is None:
                if len(self._open) >= _MOST_OPEN:
                    self._open.pop(next(iter(self._open))).close()
                pipeline = self._make(chosen)
            self._open[chosen.key] = pipeline  # the last used is the last
            return chosen, pipeline.submit(item.source)

    def _chosen(self, source: Path) -> Chosen:
        if not self._choices.needs_clip:
            return self._choices.plain
        import torch

        from cosyvoice_app.audio.clip_loading import load_clip, not_finite
        from cosyvoice_app.audio.snr import estimate_snr

        # The pipeline reads the clip again: decoded ones that wait would take far more memory than their paths do.
        clip = load_clip(source, None, max_seconds=self._max_seconds, max_bytes=1 << 30)
        samples = torch.from_numpy(clip.samples)
        if not samples.isfinite().all():
            raise not_finite(clip)
        snr_db = estimate_snr(samples[None], clip.rate_hz)[0].db if len(clip.samples) else math.nan
        return self._choices.choose(clip.rate_hz, snr_db)

    def close(self) -> None:
        """What is not in a batch yet is cancelled, and a submit that waits ends."""
        self._closed = True
        # Without the lock, which a submit that waits holds; then what was opened meanwhile.
        for pipeline in list(self._open.values()):
            pipeline.close(drain=False)
        with self._lock:
            for pipeline in self._open.values():
                pipeline.close(drain=False)


def results(
    pipelines: Pipelines, todo: Sequence[Item], *, feeders: int, most_ahead: int
) -> Generator[Done, None, None]:
    """Each item with its finished future, as they finish; closes the pipelines. `most_ahead` bounds the results that
    wait to be taken, `feeders` are the threads that choose and submit.
    """
    finished: queue.SimpleQueue[Done | BaseException] = queue.SimpleQueue()
    room = threading.Semaphore(most_ahead)
    stopping = threading.Event()
    waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in todo:
        waiting.put(item)

    def feed() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                room.acquire()
                if stopping.is_set():
                    return
                submit(waiting.get_nowait())

    def submit(item: Item) -> None:
        chosen, future = pipelines.submit(item)
        future.add_done_callback(lambda done: finished.put(Done(item, chosen, done)))

    def guarded() -> None:
        try:
            feed()
        except BaseException as error:  # noqa: BLE001 - raised where the results are taken
            finished.put(error)

    threads = [threading.Thread(target=guarded, name="features-feed", daemon=True) for _ in range(feeders)]
    for thread in threads:
        thread.start()
    try:
        for _ in todo:
            result = _next(finished)
            if isinstance(result, BaseException):
                raise result
            yield result
            room.release()
    finally:
        stopping.set()
        room.release(feeders)
        # A submit that waits is woken by this; after a complete run nothing is left to cancel.
        pipelines.close()
        for thread in threads:
            thread.join()


def _next(finished: queue.SimpleQueue[Done | BaseException]) -> Done | BaseException:
    while True:
        try:
            # Not for ever: on Windows Ctrl-C isn't noticed inside an endless wait.
            return finished.get(timeout=0.5)
        except queue.Empty:
            continue
