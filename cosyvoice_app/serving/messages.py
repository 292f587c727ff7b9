"""What crosses between the web process and the engine worker: plain frozen data, pickled by multiprocessing.

Errors travel as `AppError.to_dict()`, so that a worker can't make the web process unpickle an engine's own classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cosyvoice_app.pipeline import EngineFacts, Job, Spoken
from cosyvoice_app.serving.batches import StageCounts
from cosyvoice_app.serving.request import Priority
from cosyvoice_app.types import Audio, Progress
from cosyvoice_app.voices.cache import CacheCounts

# To the worker.


@dataclass(frozen=True, slots=True)
class Run:
    job_id: str
    job: Job
    priority: Priority = "interactive"


@dataclass(frozen=True, slots=True)
class Cancel:
    job_id: str


@dataclass(frozen=True, slots=True)
class AskStatus:
    token: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    pass


ToWorker = Run | Cancel | AskStatus | Shutdown

# From the worker.


@dataclass(frozen=True, slots=True)
class Loading:
    progress: Progress


@dataclass(frozen=True, slots=True)
class Ready:
    facts: EngineFacts


@dataclass(frozen=True, slots=True)
class LoadFailed:
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobProgress:
    job_id: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class JobChunk:
    job_id: str
    audio: Audio
    index: int


@dataclass(frozen=True, slots=True)
class JobDone:
    job_id: str
    spoken: Spoken


@dataclass(frozen=True, slots=True)
class JobFailed:
    """`poisoned`: the device can't be trusted any more and the worker is about to end itself."""

    job_id: str
    error: dict[str, Any]
    poisoned: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The live state, read when asked for. `components` is empty until the engine is loaded.

    `stages` and `caches` count from the worker's start.
    """

    token: int
    components: dict[str, str]
    memory: dict[str, int]
    stages: dict[str, StageCounts] = field(default_factory=dict)
    caches: dict[str, CacheCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    pass


@dataclass(frozen=True, slots=True)
class Gone:
    """Made by the web process's own reader when the worker's end of the line closes."""

    exit_code: int | None


FromWorker = Loading | Ready | LoadFailed | JobProgress | JobChunk | JobDone | JobFailed | Report | Heartbeat | Gone
