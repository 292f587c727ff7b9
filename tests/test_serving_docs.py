"""docs/serving.md: its quick commands run as they stand, its long ones are called rightly, what it lists is there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import httpx
import pytest
from web_server import ROOT, Server, running

from cosyvoice_app.bench import make_parser
from cosyvoice_app.settings import Settings

TEXT = (ROOT / "docs" / "serving.md").read_text("utf-8")
QUICK = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
LONG = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines() if line]


@pytest.fixture(scope="module")
def server_to_restart(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with running(tmp_path_factory.mktemp("serving")) as live:
        yield live


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("block", QUICK, ids=lambda block: block.split("7860")[-1].split()[0])
def test_quick_commands_run(block: str, server_to_restart: Server, tmp_path: Path, p0_wav: Path) -> None:
    assert "http://127.0.0.1:7860" in block
    shutil.copy(p0_wav, tmp_path / "me.wav")
    command = ["bash", "-euo", "pipefail", "-c", block.replace("http://127.0.0.1:7860", server_to_restart.url)]
    environ = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    ran = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout or (tmp_path / "later.wav").stat().st_size > 10_000


def test_long_commands_are_called_rightly() -> None:
    assert LONG
    for line in LONG:
        program, *arguments = [word for word in shlex.split(line) if not word.startswith("PYTHONPATH=")]
        if program == "locust":
            assert (ROOT / arguments[arguments.index("-f") + 1]).is_file()
            continue
        assert [program, *arguments[:3]] == ["python", "-m", "cosyvoice_app", "bench"], line
        make_parser().parse_args(arguments[3:])


def test_every_metric_is_told_of_and_every_one_told_of_is_there(server_to_restart: Server, p0_wav: Path) -> None:
    httpx.post(f"{server_to_restart.url}/v1/clone", files={"file": ("a.wav", p0_wav.read_bytes())},
               data={"text": "Hello."}, timeout=60).raise_for_status()  # fmt: skip
    page = httpx.get(f"{server_to_restart.url}/metrics", timeout=60).text
    found = set(re.findall(r"^# TYPE (cosyvoice_\w+)", page, re.MULTILINE))
    told = set(re.findall(r"^\| `(cosyvoice_\w+)", TEXT, re.MULTILINE))
    assert told == found


def test_options_told_of_exist_with_the_defaults_told() -> None:
    known = {"--" + field.name.replace("_", "-"): field.default for field in fields(Settings)}
    named = set(re.findall(r"`(--[a-z-]+)", TEXT))
    assert named - set(known) == set()
    told = re.findall(r"`(--[a-z-]+)` (?:\()?(\d+)\b", TEXT)
    assert len(told) >= 5
    for name, default in told:
        if name != "--max-batch" or default != "1":
            assert known[name] == int(default), name


def test_nothing_is_left_to_be_filled_in() -> None:
    assert "GAP-" not in TEXT
