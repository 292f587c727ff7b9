"""What a feature pipeline takes and gives: the extractor it drives, a clip's features, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from cosyvoice_app.audio.pools import PoolStats
from cosyvoice_app.types import FloatArray


class BatchFeatures(Protocol):
    @property
    def values(self) -> Tensor: ...


class BatchExtractor(Protocol):
    """What is needed of an extractor; `features.Extractor` is one. `values` must be a new tensor [B, frames, bins].

    `check` is always False: that samples are finite was seen to before they came to the device.
    """

    @property
    def rate_hz(self) -> int: ...
    @property
    def bins(self) -> int: ...
    def frames(self, samples: int, /) -> int: ...
    def __call__(self, samples: Tensor, lengths: Tensor, /, *, check: bool) -> BatchFeatures: ...


@dataclass(frozen=True, slots=True)
class ClipFeatures:
    """`values` float32 [frames, bins]. `rate_hz` is that of the samples the features were made of, `source_rate_hz` and
    `seconds` those of the clip as it came.

    On the CPU the values are rows of their batch's result, uncopied, which lives as long as any of them is kept: copy
    those that are kept while most others are not.
    """

    values: FloatArray
    rate_hz: int
    source_rate_hz: int
    seconds: float

    @property
    def frames(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class PipelineStats:
    """Of what has been through a batch. `padded_s` over `seconds` is what padding cost; `memory_splits` counts batches
    that ran out of memory. `pools` are "input" and, on CUDA, "staging" and "output".

    `device_segments` counts what torch has taken from the CUDA driver for this process; like the pools' allocations it
    stands still after warm-up.
    """

    clips: int
    batches: int
    seconds: float
    padded_s: float
    memory_splits: int
    pools: dict[str, PoolStats]
    device_segments: int | None
