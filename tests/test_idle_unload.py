"""`--idle-unload-s` from end to end: the worker goes, the next request waits for another one and is served."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from cosyvoice_app.serving.request import SynthesisRequest, Working
from cosyvoice_app.serving.service import EngineService
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import PromptClip


def settle(service: EngineService, state: str) -> None:
    end = time.monotonic() + 60.0
    while (status := service.status()).state != state:
        assert time.monotonic() < end, f"still {status.state}: {status.detail}"
        time.sleep(0.02)


@pytest.mark.slow
def test_an_idle_engine_goes_and_the_next_request_brings_it_back(tmp_path: Path, p0: PromptClip) -> None:
    service = EngineService(Settings(engine="engines_for_tests:SlowToLoad", outputs=tmp_path, cache=tmp_path,
                                     idle_unload_s=1))
    service.start()
    try:
        settle(service, "ready")
        pid = service.status().worker_pid
        assert pid is not None
        running = service.submit(SynthesisRequest(p0, "Hello.", seed=9010))  # works for 2 s: that is not idling
        assert running.result(60.0).path and service.status().worker_pid == pid
        settle(service, "unloaded")
        assert "1 s without a request" in service.status().detail
        while service.status().worker_pid is not None:
            time.sleep(0.02)
        assert not psutil.pid_exists(pid) and service.status().memory["rss"] == 0
        assert service.capabilities() is not None
        ticket = service.submit(SynthesisRequest(p0, "Hello again."))
        assert ticket.result(60.0).path
        assert any(isinstance(event, Working) and event.progress.stage == "loading" for event in ticket.events())
        assert b'cosyvoice_worker_starts_total{reason="demand"} 1.0' in service.metrics()
    finally:
        service.close()
