"""Questions to the worker and its answers: how the page learns the true state instead of a remembered one."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from threading import Lock

from cosyvoice_app.serving.messages import AskStatus, Report
from cosyvoice_app.serving.process import WorkerProcess


class Reports:
    """Matches answers to questions. Any thread asks; the thread that hears the worker answers and forgets."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[int, Future[Report]] = {}
        self._next_token = 0
        self.last: Report | None = None
        """The latest answer of the present worker."""

    def ask(self, process: WorkerProcess, patience_s: float) -> Report | None:
        """The worker's own account of itself, or None when it does not answer in time or ends meanwhile."""
        question: Future[Report] = Future()
        with self._lock:
            self._next_token += 1
            token = self._next_token
            self._open[token] = question
        process.send(AskStatus(token))
        try:
            return question.result(patience_s)
        except NoAnswer:
            return None
        finally:
            with self._lock:
                self._open.pop(token, None)

    def answer(self, report: Report) -> None:
        with self._lock:
            self.last = report
            question = self._open.pop(report.token, None)
        if question is not None:
            question.set_result(report)

    def forget(self) -> None:
        """The worker is gone: whoever still waits need not wait longer."""
        with self._lock:
            questions, self._open, self.last = list(self._open.values()), {}, None
        for question in questions:
            question.set_exception(NoAnswer())
