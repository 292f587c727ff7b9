"""A worker that is killed while many ask: nobody hears a lie, and the queue survives. The long form: `bench chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosyvoice_app.bench.chaos import WAITING, wreck
from cosyvoice_app.bench.own_server import own_server

pytestmark = pytest.mark.slow


def test_five_kills_under_load_cost_only_what_was_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "load"))
    told: list[str] = []
    with own_server("load_engine:LoadTone") as server:
        found = wreck(server, kills=5, clients=12, restarts=1, uploads=20, say=told.append)
        assert found["faults"] == []
        assert len(server.workers()) == 1
    queue = found["queue_kept"]
    assert queue["running"] == queue["told"] >= 1 and queue["right"] >= queue["waiting"] >= WAITING
    answers = found["answers"]
    assert answers["right"] > 5 and set(answers) <= {"right", "told", "broken off", "refused"}
    assert found["rude"]["uploads broken off"] == 20 and found["rude"]["slow readers"] >= 1
    assert found["rude"]["left early"] + found["rude"]["left in the middle"] > 0
    assert server.process.poll() is not None
