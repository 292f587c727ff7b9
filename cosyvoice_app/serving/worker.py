"""The engine worker: a process that owns the device, runs the jobs it is sent and says what it is doing.

Its main thread loads the engine and starts a thread for each job; `batcher.py` lets them onto the device. A listener
thread takes orders and answers questions meanwhile, and another one beats, so that a process that is stuck (and not
merely busy) can be told from one that works. How many jobs run at once is up to whoever sends them.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import threading
from multiprocessing.connection import Connection

from cosyvoice_app.console import make_safe
from cosyvoice_app.engines import registry
from cosyvoice_app.engines.base import CachingEngine, Engine
from cosyvoice_app.engines.failure import is_poisonous, release_memory, translate
from cosyvoice_app.engines.memory import read_memory
from cosyvoice_app.errors import AppError, Cancelled, ConfigError, EngineFailure, OutOfMemory, is_out_of_memory
from cosyvoice_app.pipeline import EngineFacts, Pipeline
from cosyvoice_app.serving.batcher import BatchedStages
from cosyvoice_app.serving.messages import (
    AskStatus,
    Cancel,
    FromWorker,
    Heartbeat,
    JobChunk,
    JobDone,
    JobFailed,
    JobProgress,
    LoadFailed,
    Loading,
    Ready,
    Report,
    Run,
    Shutdown,
    ToWorker,
)
from cosyvoice_app.settings import Settings
from cosyvoice_app.voices.cache import MB, VoiceCache

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0


class JobCancel:
    """The cancel token of one job; `set` may be called from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        if self._event.is_set():
            raise Cancelled("The request was stopped.")


class Worker:
    def __init__(self, line: Connection, settings: Settings) -> None:
        self._line = line
        self._settings = settings
        self._send_lock = threading.Lock()
        self._orders: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._cancels: dict[str, JobCancel] = {}
        self._voices = VoiceCache(settings.voice_memory_mb * MB)
        self._engine: Engine | None = None
        self._stages: BatchedStages | None = None
        self._poisoned = False

    def main(self) -> None:
        threading.Thread(target=self._listen, name="listener", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        engine = self._load()
        if engine is None:
            return
        stages = BatchedStages(engine, max_batch=self._settings.max_batch, wait_ms=self._settings.batch_wait_ms)
        self._engine, self._stages = engine, stages
        pipeline = Pipeline(engine, self._voices)
        self._send(self._report(0))  # so that something is known even if the first question is answered late
        self._send(Ready(EngineFacts.of(engine)))
        running: list[threading.Thread] = []
        while (order := self._orders.get()) is not None:
            running = [thread for thread in running if thread.is_alive()]
            thread = threading.Thread(target=self._run, args=(pipeline, stages, order), name=f"job-{order.job_id[:8]}",
                                      daemon=True)
            thread.start()
            running.append(thread)
        if self._poisoned:
            return  # the other jobs' threads may hang on the device for ever
        for thread in running:
            thread.join()
        stages.close()
        engine.close()

    def _load(self) -> Engine | None:
        try:
            engine = registry.create(self._settings, lambda progress: self._send(Loading(progress)))
            engine.warm_up()
        except AppError as error:
            log.error("the engine can't be loaded: %s", error.message)
            self._send(LoadFailed(error.to_dict()))
        except ImportError as error:
            log.exception("the engine can't be loaded")
            cause = ConfigError(f"The engine needs something that is not installed: {error}.", param="engine")
            self._send(LoadFailed(cause.to_dict()))
        except Exception as error:
            log.exception("the engine can't be loaded")
            self._send(LoadFailed(_load_error(error).to_dict()))
        else:
            return engine
        return None

    def _run(self, pipeline: Pipeline, stages: BatchedStages, order: Run) -> None:
        """Run one job and tell the end of it."""
        job_id = order.job_id
        cancel = self._cancels.setdefault(job_id, JobCancel())
        poisoned = False
        answer: FromWorker
        try:
            with stages.job(order.priority) as own:
                spoken = pipeline.run(
                    order.job, cancel=cancel, stages=own,
                    on_progress=lambda progress: self._send(JobProgress(job_id, progress)),
                    on_chunk=lambda audio, index: self._send(JobChunk(job_id, audio, index)),
                )
            answer = JobDone(job_id, spoken)
        except Cancelled as error:
            answer = JobFailed(job_id, error.to_dict())
        except Exception as error:
            unforeseen = not isinstance(error, AppError) or error.__cause__ is not None
            log.error("job %s failed: %s", job_id, error, exc_info=unforeseen)
            poisoned = is_poisonous(error.__cause__ or error)
            answer = JobFailed(job_id, translate(error).to_dict(), poisoned)
        self._cancels.pop(job_id, None)
        if isinstance(answer, JobFailed) and not poisoned:  # a device that failed may hang when it is asked to
            release_memory()  # after the except block: until then the traceback holds the job's tensors
        self._send(answer)
        if poisoned:
            self._poisoned = True
            self._orders.put(None)

    def _listen(self) -> None:
        while True:
            try:
                order: ToWorker = self._line.recv()
            except (EOFError, OSError):
                os._exit(0)  # the web process is gone; nobody is left to work for
            except Exception:
                log.exception("an order can't be read, and without orders this process is of no use")
                os._exit(1)
            match order:
                case Run():
                    self._cancels[order.job_id] = JobCancel()
                    self._orders.put(order)
                case Cancel():
                    token = self._cancels.get(order.job_id)
                    if token is not None:
                        token.set()
                case AskStatus():
                    self._send(self._report(order.token))
                case Shutdown():
                    self._orders.put(None)
                    for token in list(self._cancels.values()):
                        token.set()
                    if self._engine is None:
                        os._exit(0)  # loading can't be interrupted politely

    def _report(self, token: int) -> Report:
        engine, stages = self._engine, self._stages
        components: dict[str, str] = {}
        memory = read_memory()
        caches = {"voice_memory": self._voices.counts()}
        if engine is not None:
            try:
                components, memory = engine.components(), engine.memory()
                if isinstance(engine, CachingEngine):
                    caches |= engine.caches()
            except Exception:
                log.exception("the engine can't say how it is")
        return Report(token, components, memory, dict(stages.counts) if stages else {}, caches)

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(HEARTBEAT_S):
            self._send(Heartbeat())

    def _send(self, message: FromWorker) -> None:
        try:
            with self._send_lock:
                self._line.send(message)
        except OSError:
            os._exit(0)


def _load_error(error: Exception) -> AppError:
    if is_out_of_memory(error):
        return OutOfMemory("There is not enough memory to load the model. Close other programs that use the device, or "
                           "start with --device cpu or a smaller --precision.")
    return EngineFailure(f"The engine failed while loading ({type(error).__name__}: {error}). "
                         "The engine's log has the details.")


def main(line: Connection, settings: Settings) -> None:
    """Entry of the spawned process. Ctrl-C is the web process's to handle: it ends this one in good order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    make_safe()
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s worker: %(message)s")
    Worker(line, settings).main()
