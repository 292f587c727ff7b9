"""A pipeline's clips and batches on their way through it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from cosyvoice_app.audio.clip_features import ClipFeatures
from cosyvoice_app.audio.clip_loading import Loaded, Source
from cosyvoice_app.audio.pools import Mark
from cosyvoice_app.audio.transfer import OnDevice
from cosyvoice_app.types import FloatArray

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Clip:
    source: Source | None
    future: Future[ClipFeatures] = field(default_factory=Future)
    loaded: Loaded | None = None
    is_queued: bool = True

    @property
    def samples(self) -> FloatArray:
        return self.ready.samples

    @property
    def ready(self) -> Loaded:
        assert self.loaded is not None
        return self.loaded


@dataclass(slots=True, eq=False)
class Batch:
    """`parts` are (first row, end row, values): one, or several where rows had to be computed by themselves."""

    clips: Sequence[Clip]
    on_device: OnDevice
    parts: list[tuple[int, int, Tensor]] = field(default_factory=list)
    computed: Mark | None = None


def finish(end: Callable[[], object]) -> None:
    """End a future, by one of its methods. concurrent.futures stops only an Exception of its callbacks; what they raise
    besides, such as SystemExit, must not end the thread that all other clips need.
    """
    try:
        end()
    except BaseException:
        log.exception("a callback of a clip's future raised")
