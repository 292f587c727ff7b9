"""From what the worker made to a file and a result in its owner's hands, in threads that hold nobody else up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cosyvoice_app.errors import AppError
from cosyvoice_app.outputs import OutputStore, describe, describe_prompt
from cosyvoice_app.pipeline import EngineFacts, Spoken
from cosyvoice_app.serving.metrics import Metrics
from cosyvoice_app.serving.request import Done, SynthesisResult
from cosyvoice_app.serving.ticket import RequestTicket

log = logging.getLogger(__name__)

_SAVERS = 4
"""Saving waits for the disk; so many files may wait at once."""
_MOST_PENDING = 32


class Delivery:
    def __init__(self, outputs: OutputStore, metrics: Metrics, fail: Callable[[RequestTicket, AppError], None]) -> None:
        self._outputs = outputs
        self._metrics = metrics
        self._fail = fail
        self._savers = ThreadPoolExecutor(_SAVERS, thread_name_prefix="saver")
        self._lock = threading.Lock()
        self._pending: set[RequestTicket] = set()

    def hand_over(self, ticket: RequestTicket, spoken: Spoken, facts: EngineFacts) -> None:
        """Return at once; the owner hears Done or Failed."""
        with self._lock:
            self._pending.add(ticket)
        self._savers.submit(self._deliver, ticket, spoken, facts, time.monotonic())

    @property
    def is_full(self) -> bool:
        """The disk is behind: nothing more should be made before it has caught up."""
        return len(self._pending) >= _MOST_PENDING

    def pending(self) -> list[RequestTicket]:
        """Those whose audio is made and not saved yet."""
        with self._lock:
            return list(self._pending)

    def close(self) -> None:
        """Wait until everything handed over is delivered."""
        self._savers.shutdown(wait=True)

    def _deliver(self, ticket: RequestTicket, spoken: Spoken, facts: EngineFacts, made_at: float) -> None:
        try:
            if not ticket.ended:
                self._save(ticket, spoken, facts, made_at)
        except AppError as error:
            self._fail(ticket, error)
        except Exception as error:
            log.exception("a result could not be saved")
            self._fail(ticket, AppError(f"The result could not be saved ({type(error).__name__})."))
        finally:
            with self._lock:
                self._pending.discard(ticket)

    def _save(self, ticket: RequestTicket, spoken: Spoken, facts: EngineFacts, made_at: float) -> None:
        request, job = ticket.request, ticket.job
        started_at = ticket.started_at or ticket.submitted_at
        timings = {**spoken.timings, "queue_s": started_at - ticket.submitted_at,
                   "total_s": made_at - ticket.submitted_at}
        path = self._outputs.save(spoken.audio, describe(request.text, job, spoken, facts, timings))
        result = SynthesisResult(
            audio=spoken.audio, path=path, seed=job.seed, segments=tuple(segment.text for segment in job.segments),
            warnings=spoken.warnings, notes=spoken.notes, engine=facts.engine, device=facts.device,
            precision=facts.precision, model_hash=facts.model_hash, voice_cached=spoken.voice_cached, timings=timings,
            prompt=describe_prompt(job.clip),
        )
        if not ticket.post(Done(result)):  # stopped or late meanwhile: its owner was told that there is no result
            self._outputs.remove(path)
        else:
            first_audio_at = ticket.first_audio_at or made_at
            self._metrics.finished(timings, first_audio_s=first_audio_at - ticket.submitted_at,
                                   save_s=time.monotonic() - made_at)
