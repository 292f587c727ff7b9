"""Every example of the README runs as it stands there, on a fresh server and from another folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import wave
from pathlib import Path

import pytest
from web_server import ROOT, Server, running

README = (ROOT / "README.md").read_text(encoding="utf-8")
BASH = re.findall(r"```bash\n(.*?)```", README, re.S)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.fixture(scope="module")
def readme_server(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with running(tmp_path_factory.mktemp("readme")) as live:
        yield live


def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COSYVOICE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
    ours = {"PATH": path, "PYTHONPATH": str(ROOT), "COSYVOICE_ENGINE": "tone"}
    return kept | ours | {f"COSYVOICE_{n.upper()}": str(tmp_path / n) for n in ("voices", "cache", "outputs")}


def prepared(block: str, server: Server, tmp_path: Path, p0_wav: Path) -> str:
    (tmp_path / "me.wav").write_bytes(p0_wav.read_bytes())
    return block.replace("http://127.0.0.1:7860", server.url)


def assert_playable(folder: Path) -> None:
    made = [file for file in folder.glob("*.wav") if file.name != "me.wav"]
    assert made
    for file in made:
        with wave.open(str(file)) as audio:
            assert audio.getnframes() / audio.getframerate() > 0.3


@pytest.mark.parametrize("block", BASH, ids=lambda block: block.split()[0])
def test_shell_examples(block: str, readme_server: Server, tmp_path: Path, p0_wav: Path) -> None:
    subprocess.run(["bash", "-euc", prepared(block, readme_server, tmp_path, p0_wav)], cwd=tmp_path, check=True,
                   env=environment(tmp_path), timeout=300)  # fmt: skip
    assert_playable(tmp_path)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.split()[1])
def test_python_examples(block: str, readme_server: Server, tmp_path: Path, p0_wav: Path) -> None:
    pytest.importorskip("openai")
    subprocess.run([sys.executable, "-c", prepared(block, readme_server, tmp_path, p0_wav)], cwd=tmp_path, check=True,
                   env=environment(tmp_path), timeout=300)  # fmt: skip
    assert_playable(tmp_path)


def test_named_files_exist() -> None:
    for name in ("docs/decisions.md", "docs/quality.md", "docs/screenshot.png", "tests/data/ATTRIBUTION.md", "LICENSE",
                 ".ci/run", "cosyvoice_app/pipeline.py", "cosyvoice_app/engines/base.py"):  # fmt: skip
        assert name.split("/")[-1] in README
        assert (ROOT / name).exists(), f"README.md speaks of {name}, which is not there"


def test_the_pronunciation_file_of_the_readme_is_a_right_one(tmp_path: Path) -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", README, re.S)
    (tmp_path / "pronunciations.toml").write_text(toml, encoding="utf-8")
    said = subprocess.run(
        [sys.executable, "-m", "cosyvoice_app", "normalize", "行家说 Siobhan 来了。", "--json"],
        cwd=tmp_path, check=True, env=environment(tmp_path), timeout=120, capture_output=True,
    )  # fmt: skip
    assert json.loads(said.stdout)["segments"] == ["[h][áng][j][iā]说 [SH][IH0][V][AO1][N] 来了。"]
