"""The requirements fit together here, and resolve to ready-made packages on every platform and Python that is
claimed.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = ("x86_64-manylinux_2_28", "windows")


def lines(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line.split("#")[0].strip() for line in text if line.split("#")[0].strip()]


def test_what_is_installed_fits_together() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_torch_and_torchaudio_are_one_exact_release() -> None:
    pins = dict(line.split("==") for line in lines("requirements.txt") if line.startswith("torch"))
    assert pins["torch"] == pins["torchaudio"]


def test_every_requirement_has_a_lower_bound_and_nothing_names_a_host() -> None:
    for line in lines("requirements.txt"):
        assert re.search(r"[=>]=", line), line
        assert "://" not in line and not line.startswith("-"), line


def test_every_import_of_the_app_is_required() -> None:
    """A package that is only there because another one brought it may leave with it."""
    names = {re.split(r"[\[=<>]", line)[0].lower().replace("-", "_") for line in lines("requirements.txt")}
    provided = names | {"starlette", "cosyvoice_app"}  # starlette is FastAPI's own other half
    renamed = {"PIL": "pillow", "yaml": "pyyaml"}
    found: dict[str, str] = {}
    for file in [*(ROOT / "cosyvoice_app").rglob("*.py"), ROOT / "app.py"]:
        if "train" in file.parts:  # maintainers' scripts, with requirements of their own
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for module in modules:
                found.setdefault(module.split(".")[0], file.name)
    missing = {
        name: file
        for name, file in found.items()
        if name not in sys.stdlib_module_names and renamed.get(name, name) not in provided
    }
    assert not missing, f"imported but not in requirements.txt: {missing}"


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_resolves_to_ready_made_packages(python: str, platform: str, tmp_path: Path) -> None:
    """With uv: pip's own dry run evaluates markers for the machine it runs on, whatever `--platform` says."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        pytest.skip("uv is not installed")
    done = subprocess.run(
        [uv, "pip", "compile", "--quiet", "--native-tls", "--only-binary", ":all:", "--python-version", python,
         "--python-platform", platform, "--output-file", str(tmp_path / "out.txt"), str(ROOT / "requirements.txt")],
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    if re.search(r"error sending request|dns error|failed to fetch|timed out", done.stderr, re.I):
        pytest.skip(f"no registry within reach: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert "torch==" in (tmp_path / "out.txt").read_text()


def test_an_unclaimed_python_is_refused_with_a_plain_message() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.10,<3.14"' in text
