"""From what the worker made to a file: a disk that is slow, full or behind, and owners who leave meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services import QUICK, Start, ask, say, settle

from cosyvoice_app.errors import AppError, Cancelled, TimedOut
from cosyvoice_app.outputs import OutputStore
from cosyvoice_app.types import PromptClip


class SlowDisk(OutputStore):
    """Writes nothing until it is `free`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.free, self.asked = threading.Event(), threading.Event()

    def save(self, audio: Any, sidecar: Any) -> Path:
        self.asked.set()
        assert self.free.wait(60.0)
        return super().save(audio, sidecar)


@pytest.fixture
def disk(start: Start, tmp_path: Path) -> Iterator[SlowDisk]:
    """Free before `start` closes the services, which waits for what is being saved."""
    slow = SlowDisk(tmp_path / "slow")
    yield slow
    slow.free.set()


def test_a_disk_that_refuses_is_told_to_its_owner(start: Start, tmp_path: Path, p0: PromptClip) -> None:
    class FullDisk(OutputStore):
        def save(self, audio: Any, sidecar: Any) -> Path:
            raise AppError("The result can't be written: No space left on device.")

    service = start(outputs=FullDisk(tmp_path / "full"))
    for _ in range(2):
        with pytest.raises(AppError, match="No space left"):
            say(service, p0)


@pytest.mark.parametrize("how", ["stopped", "late"])
def test_who_leaves_while_it_is_saved_leaves_no_file(start: Start, disk: SlowDisk, p0: PromptClip, how: str) -> None:
    service = start(outputs=disk)
    ticket = service.submit(ask(p0, deadline_s=None if how == "stopped" else 3.0))
    assert disk.asked.wait(60.0)
    if how == "stopped":
        ticket.cancel()
    with pytest.raises(Cancelled if how == "stopped" else TimedOut):
        ticket.result(60.0)
    disk.free.set()
    kept = say(service, p0)
    service.close()  # waits for what is still being saved
    assert kept.path is not None
    assert {path.stem for path in disk.folder.iterdir()} == {kept.path.stem}


def test_nothing_more_is_made_than_a_slow_disk_can_catch_up_with(
    start: Start, disk: SlowDisk, p0: PromptClip
) -> None:
    service = start(QUICK, outputs=disk)
    tickets = [service.submit(ask(p0, seed=seed)) for seed in range(1, 81)]
    end = time.monotonic() + 60.0
    while (status := settle(service)).running or status.queue == 80:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert status.queue >= 80 - 32 - 8  # the most that may be pending, and those that ran when that was reached
    disk.free.set()
    assert len({ticket.result(60.0).path for ticket in tickets}) == 80
