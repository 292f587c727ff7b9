"""Every example of docs/api.md, run as a user would: copied, only the address changed, from another folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
from web_server import ROOT, Server, running

DOCS = Path(__file__).parents[1] / "docs" / "api.md"
EXAMPLES = re.findall(r"```(bash|python|js)\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)


def test_the_document_has_examples() -> None:
    assert len(EXAMPLES) >= 6
    assert {kind for kind, _ in EXAMPLES} == {"bash", "python", "js"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that runs with `--api-keys keys.json`, in the folder where the file is."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys.json").write_text('{"keys": []}\n')
    (folder / "keys.json").chmod(0o600)
    with running(folder, "--api-keys", "keys.json") as live:
        yield live


# The last example ends and starts the engine, so the order of the document is kept.
@pytest.mark.parametrize(("kind", "code"), EXAMPLES, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(EXAMPLES)])
def test_example(
    server: Server, request: pytest.FixtureRequest, p0_wav: Path, tmp_path: Path, kind: str, code: str
) -> None:
    assert "http://127.0.0.1:7860" in code
    if "keys.json" in code:
        server = request.getfixturevalue("keyed")
        tmp_path = server.outputs.parent
    code = code.replace("http://127.0.0.1:7860", server.url)
    shutil.copy(p0_wav, tmp_path / "me.wav")
    if kind == "bash":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        command = ["bash", "-euo", "pipefail", "-c", code]
    elif kind == "js":
        if shutil.which("node") is None:
            pytest.skip("node is not installed")
        command = ["node", "--input-type=module", "-e", code]
    else:
        command = [sys.executable, "-c", code]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    ran = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for named in re.findall(r"\w+\.wav", code):
        if named == "openai.wav":  # streamed: its header can't know the length
            assert len((tmp_path / named).read_bytes()) > 10_000
        else:
            with wave.open(str(tmp_path / named)) as file:
                assert file.getnframes() > 0.2 * file.getframerate()
