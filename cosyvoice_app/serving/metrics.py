"""What the service counts, in Prometheus's text format. One registry per service, so that two never mix."""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from cosyvoice_app.serving.messages import Report
from cosyvoice_app.voices.cache import CacheCounts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()  # type: ignore[no-untyped-call]  # a timestamp per series that no one reads, as many lines again

_SECONDS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)
_SHORT_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)
_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 4, 8)
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256)


class Metrics:
    def __init__(self, *, waiting: Callable[[], float], running: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("cosyvoice_requests", "Requests by how they ended ('ok' or an error type)",
                                 ["outcome"], registry=self._registry)
        self._refusals = Counter("cosyvoice_refusals", "Requests turned away at the door, by reason", ["reason"],
                                 registry=self._registry)
        self._starts = Counter("cosyvoice_worker_starts", "Engine worker processes started, by reason",
                               ["reason"], registry=self._registry)
        self._latency = self._histogram("request_seconds", "From submission to the whole result", _SECONDS)
        self._first = self._histogram("first_audio_seconds", "From submission to the first finished audio", _SECONDS)
        self._stage = {stage: self._histogram(f"{stage}_seconds", text, _SECONDS if stage != "save" else _SHORT_SECONDS)
                       for stage, text in (("queue", "Waiting in the queue"),
                                           ("voice", "Making the voice of the clip, or finding it"),
                                           ("synthesis", "From voice to audio, waiting for the device included"),
                                           ("save", "Writing the result to disk"))}
        self._rtf = self._histogram("rtf", "Synthesis time per second of audio, voice fitting excluded", _FACTORS)
        Gauge("cosyvoice_queue_waiting", "Requests waiting", registry=self._registry).set_function(waiting)
        Gauge("cosyvoice_requests_running", "Requests running", registry=self._registry).set_function(running)
        self.worker = WorkerCounts()
        self._registry.register(self.worker)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"cosyvoice_{name}", text, buckets=buckets, registry=self._registry)

    def finished(self, timings: Mapping[str, float], *, first_audio_s: float, save_s: float) -> None:
        """A request that ended well; `timings` as in SynthesisResult."""
        self._requests.labels("ok").inc()
        self._latency.observe(timings["total_s"])
        self._first.observe(first_audio_s)
        for stage in ("queue", "voice", "synthesis"):
            self._stage[stage].observe(timings[f"{stage}_s"])
        self._stage["save"].observe(save_s)
        self._rtf.observe(timings["rtf"])

    def failed(self, error_type: str) -> None:
        self._requests.labels(error_type).inc()

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()

    def worker_started(self, reason: str) -> None:
        self._starts.labels(reason).inc()

    def text(self) -> bytes:
        """The page for a scraper."""
        return generate_latest(self._registry)


class WorkerCounts(Collector):
    """What the worker counts since it started, and what its predecessors had: totals never fall at a restart.

    Also the caches of this process, which are asked when the page is read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Report | None = None
        self._memory: dict[str, int] = {}
        self._batches: dict[str, Tally[int]] = {}
        self._sums: Tally[tuple[str, str]] = Tally()
        self._caches: dict[str, Callable[[], CacheCounts]] = {}

    def watch_cache(self, name: str, counts: Callable[[], CacheCounts]) -> None:
        with self._lock:
            self._caches[name] = counts

    def tell(self, report: Report | None, memory: dict[str, int] | None = None) -> None:
        """The worker's latest account, None when it gave none, and the system's."""
        with self._lock:
            self._last = report or self._last
            self._memory = memory or self._memory

    def ended(self) -> None:
        """The worker is gone: what it had counted becomes part of the past."""
        with self._lock:
            self._batches, self._sums = self._totals()
            self._last = None

    def _totals(self) -> tuple[dict[str, Tally[int]], Tally[tuple[str, str]]]:
        batches = {stage: Tally(tally) for stage, tally in self._batches.items()}
        sums = Tally(self._sums)
        if self._last is not None:
            for stage, counts in self._last.stages.items():
                batches.setdefault(stage, Tally()).update(counts.batches)
                sums["busy", stage] += counts.busy_s  # type: ignore[assignment]  # seconds, counted like the rest
                sums["halved", stage] += counts.halved
            for name, cache in self._last.caches.items():
                sums["hits", name] += cache.hits
                sums["misses", name] += cache.misses
        return batches, sums

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            batches, sums = self._totals()
            here = dict(self._caches)
            caches = dict(self._last.caches) if self._last else {}
            memory = dict(self._memory)
        for name, counts in here.items():
            caches[name] = counts()
            sums["hits", name], sums["misses", name] = caches[name].hits, caches[name].misses
        sizes = HistogramMetricFamily("cosyvoice_batch_rows", "Segments that went through a stage together",
                                      labels=["stage"])
        for stage, tally in batches.items():
            upto = [(str(bound), float(sum(n for rows, n in tally.items() if rows <= bound))) for bound in _ROWS]
            total = float(sum(tally.values()))
            sizes.add_metric([stage], [*upto, ("+Inf", total)], sum(rows * n for rows, n in tally.items()))
        yield sizes
        for key, name, text, label in (
            ("busy", "cosyvoice_stage_busy_seconds", "Seconds that a stage kept the device busy", "stage"),
            ("halved", "cosyvoice_batches_halved", "Batches halved for lack of memory", "stage"),
            ("hits", "cosyvoice_cache_hits", "Things found in a cache", "cache"),
            ("misses", "cosyvoice_cache_misses", "Things not found in a cache", "cache"),
        ):
            family = CounterMetricFamily(name, text, labels=[label])
            for (kind, of), value in sums.items():
                if kind == key:
                    family.add_metric([of], value)
            yield family
        held = GaugeMetricFamily("cosyvoice_cache_bytes", "What a cache holds", labels=["cache"])
        for name, found in caches.items():
            held.add_metric([name], found.size_bytes)
        yield held
        used = GaugeMetricFamily("cosyvoice_worker_memory_bytes", "Memory of the engine worker", labels=["kind"])
        for kind, value in memory.items():
            used.add_metric([kind], value)
        yield used
