"""What the service counts, in Prometheus's text format. One registry per service, so that two never mix."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()  # type: ignore[no-untyped-call]  # a timestamp per series that no one reads, as many lines again

_SECONDS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)
_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 4, 8)


class Metrics:
    def __init__(self, *, waiting: Callable[[], float], running: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("cosyvoice_requests", "Requests by how they ended ('ok' or an error type)",
                                 ["outcome"], registry=self._registry)
        self._restarts = Counter("cosyvoice_worker_starts", "Engine worker processes started, by reason",
                                 ["reason"], registry=self._registry)
        self._latency = self._histogram("request_seconds", "From submission to the whole result", _SECONDS)
        self._first = self._histogram("first_audio_seconds", "From submission to the first finished segment", _SECONDS)
        self._wait = self._histogram("queue_seconds", "Time spent waiting in the queue", _SECONDS)
        self._rtf = self._histogram("rtf", "Synthesis time per second of audio, voice fitting excluded", _FACTORS)
        self._memory = Gauge("cosyvoice_worker_memory_bytes", "Memory of the engine worker", ["kind"],
                             registry=self._registry)
        Gauge("cosyvoice_queue_waiting", "Requests waiting", registry=self._registry).set_function(waiting)
        Gauge("cosyvoice_requests_running", "Requests running", registry=self._registry).set_function(running)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"cosyvoice_{name}", text, buckets=buckets, registry=self._registry)

    def finished(self, *, latency_s: float, first_audio_s: float, queue_s: float, rtf: float) -> None:
        self._requests.labels("ok").inc()
        self._latency.observe(latency_s)
        self._first.observe(first_audio_s)
        self._wait.observe(queue_s)
        self._rtf.observe(rtf)

    def failed(self, error_type: str) -> None:
        self._requests.labels(error_type).inc()

    def worker_started(self, reason: str) -> None:
        self._restarts.labels(reason).inc()

    def text(self, memory: dict[str, int]) -> bytes:
        """The page for a scraper; `memory` is the worker's, in bytes (empty when none runs)."""
        self._memory.clear()
        for kind, value in memory.items():
            self._memory.labels(kind).set(value)
        return generate_latest(self._registry)
