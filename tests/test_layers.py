"""Imports point one way, and the web process stays free of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_imports_point_one_way() -> None:
    pytest.importorskip("importlinter")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "app",
        "cosyvoice_app.web.server",
        "cosyvoice_app.serving.service",
        "cosyvoice_app.text",
        "cosyvoice_app.assets",
        "cosyvoice_app.cli.main",
    ],
)
def test_importing_it_brings_no_torch(module: str) -> None:
    """torch costs seconds and hundreds of MB; only the worker pays them."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_every_package_says_what_it_is() -> None:
    for file in (ROOT / "cosyvoice_app").rglob("*.py"):
        text = file.read_text(encoding="utf-8").strip()
        assert not text or text.startswith(('"""', 'r"""')), f"{file.relative_to(ROOT)} has no docstring"
