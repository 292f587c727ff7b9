"""What is counted of batches: plain data that crosses from the worker to the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class StageCounts:
    """Of one stage since its worker started: batches by their number of rows, seconds on the device, and how often a
    batch was halved for lack of memory."""

    batches: dict[int, int] = field(default_factory=dict)
    busy_s: float = 0.0
    halved: int = 0

    def add(self, rows: int) -> None:
        self.batches = {**self.batches, rows: self.batches.get(rows, 0) + 1}  # a new one: others may be reading
