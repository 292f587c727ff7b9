"""Every example of docs/features.md runs as it stands there, and its picture is drawn by its script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
MANUAL = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, p0_wav: Path) -> Path:
    (tmp_path / "recordings" / "monday").mkdir(parents=True)
    for place in ("me.wav", "recordings/one.wav", "recordings/monday/two.wav"):
        (tmp_path / place).write_bytes(p0_wav.read_bytes())
    return tmp_path


def run(command: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(command, cwd=folder, env=environ, check=True, timeout=300, capture_output=True, text=True)
    return done.stdout


def test_the_commands_make_a_file_a_clip(folder: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", MANUAL, re.S)
    run(["bash", "-euc", commands], folder)
    assert sorted(path.name for path in folder.glob("mfcc/**/*.npy")) == ["one.npy", "two.npy"]
    assert np.load(next(folder.glob("mfcc/**/two.npy"))).shape[1] == 80
    assert len(list(folder.glob("fbank/**/*.safetensors"))) == 3


@pytest.mark.parametrize("number", [0, 1])
def test_the_python_examples_run(folder: Path, number: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```", MANUAL, re.S)
    assert len(blocks) == 2
    assert run([sys.executable, "-c", blocks[number]], folder).strip()


def test_the_picture_is_drawn_by_its_script(tmp_path: Path) -> None:
    run([sys.executable, str(ROOT / "docs" / "make_features.py"), "--out", str(tmp_path / "drawn.png")], tmp_path)
    drawn, kept = (np.asarray(Image.open(path).convert("RGB"), int) for path in
                   (tmp_path / "drawn.png", ROOT / "docs" / "features.png"))  # fmt: skip
    assert drawn.shape == kept.shape
    assert np.mean(np.abs(drawn - kept)) < 4, "docs/features.png is not what the script draws now"
