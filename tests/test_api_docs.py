"""Every example of docs/api.md, run as a user would: copied, only the address changed, from another folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import pytest
from web_server import Server

DOCS = Path(__file__).parents[1] / "docs" / "api.md"
EXAMPLES = re.findall(r"```(bash|python)\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)


def test_the_document_has_examples() -> None:
    assert len(EXAMPLES) >= 6
    assert {kind for kind, _ in EXAMPLES} == {"bash", "python"}


# The last example ends and starts the engine, so the order of the document is kept.
@pytest.mark.parametrize(("kind", "code"), EXAMPLES, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(EXAMPLES)])
def test_example(server: Server, p0_wav: Path, tmp_path: Path, kind: str, code: str) -> None:
    assert "http://127.0.0.1:7860" in code
    code = code.replace("http://127.0.0.1:7860", server.url)
    shutil.copy(p0_wav, tmp_path / "me.wav")
    if kind == "bash":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        command = ["bash", "-euo", "pipefail", "-c", code]
    else:
        command = [sys.executable, "-c", code]
    environ = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    ran = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for named in re.findall(r"\w+\.wav", code):
        if named == "openai.wav":  # streamed: its header can't know the length
            assert len((tmp_path / named).read_bytes()) > 10_000
        else:
            with wave.open(str(tmp_path / named)) as file:
                assert file.getnframes() > 0.2 * file.getframerate()
