"""/openapi.json against the server, by schemathesis: what it says is sent and answered, and nothing else.

Bounded and the same every time. Left out is `positive_data_acceptance`: that a text can be spoken and a file is a clip
can't be said in a schema. The engine's own routes are few and slow, so they get few examples.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import CHECKS, load_all_checks
from web_server import Server

load_all_checks()
SEED = 20261201
LEFT_OUT = "positive_data_acceptance"
ENGINE = "^/v1/engine/"

pytestmark = pytest.mark.slow


def run(server: Server, folder: Path, *options: str) -> str:
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"),
        *("--seed", str(SEED), "--exclude-checks", LEFT_OUT, "--generation-database", "none"),
        *options,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_route_keeps_to_the_document(server: Server, tmp_path: Path) -> None:
    said = run(server, tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", "8",
               "--exclude-path-regex", ENGINE)  # fmt: skip
    assert "Selected: 9/12" in said


def test_the_engines_routes_too(server: Server, tmp_path: Path) -> None:
    said = run(server, tmp_path, "--phases", "fuzzing", "--max-examples", "2", "--include-path-regex", ENGINE)
    assert "Selected: 3/12" in said
    assert httpx.post(f"{server.url}/v1/engine/load", timeout=60).json()["after"]["state"] == "ready"


def test_speech_that_the_document_allows_is_said_or_refused_with_reason(server: Server, p0_wav: Path) -> None:
    made = httpx.post(f"{server.url}/v1/voices", files={"file": p0_wav.read_bytes()}, data={"name": "schema"}).json()
    document: Any = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen: Counter[int] = Counter()

    @seed(SEED)
    @settings(max_examples=25, deadline=None, phases=[Phase.generate], database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=document["/v1/audio/speech"]["POST"].as_strategy())
    def check(case: schemathesis.Case) -> None:
        case.body["voice"] = made["id"]
        case.body["input"] = case.body["input"] or "好。"
        case.headers.pop("x-timeout-s", None)  # a deadline too short is 504, which is right and not what is asked here
        answer = case.call_and_validate(excluded_checks=[CHECKS.get_one(LEFT_OUT)], timeout=60)
        seen[answer.status_code] += 1

    check()
    assert seen[200] and set(seen) <= {200, 400}, seen
