"""`run.sh` says plainly what is missing and passes on what it is given. Nothing here installs anything."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(os.name == "nt" or shutil.which("bash") is None, reason="needs bash")


def fake_project(tmp_path: Path) -> Path:
    """A copy of run.sh in a directory with a blank in its name, with a stand-in for every Python call."""
    root = tmp_path / "my project"
    root.mkdir()
    shutil.copy(ROOT / "run.sh", root)
    for name in ("requirements.txt", "requirements-dev.txt"):
        (root / name).write_text("nothing\n")
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # Answers the version check and the hash like Python, and logs everything else.
    python.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -c ]; then exit 0; fi\n'
        f'if [ "$1" = - ]; then shift; cat > /dev/null; exec cksum < "$1"; fi\n'
        f'echo "$CUDA_VISIBLE_DEVICES|$*" >> "{root}/calls"\n'
        'case "$*" in *"$FAIL_ON"*) [ -z "$FAIL_ON" ] || exit 1;; esac\n'
    )
    python.chmod(0o755)
    return root


def run(root: Path, *arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | environment
    return subprocess.run(
        [root / "run.sh", *arguments], cwd=cwd or root, env=env, capture_output=True, text=True, timeout=60
    )


def calls(root: Path) -> list[str]:
    file = root / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def test_options_reach_the_app_from_any_directory(tmp_path: Path) -> None:
    root = fake_project(tmp_path)
    assert run(root, "--port", "7999", "--host", "0.0.0.0", cwd=tmp_path).returncode == 0
    assert calls(root)[-1] == "0|app.py --port 7999 --host 0.0.0.0"


def test_a_second_run_installs_nothing(tmp_path: Path) -> None:
    root = fake_project(tmp_path)
    run(root)
    assert any("pip install" in call for call in calls(root))
    run(root)
    assert not any("pip install" in call for call in calls(root))
    (root / "requirements.txt").write_text("something else\n")
    run(root)
    assert any("pip install" in call for call in calls(root))


def test_a_failed_install_is_tried_again(tmp_path: Path) -> None:
    root = fake_project(tmp_path)
    done = run(root, FAIL_ON="pip install")
    assert done.returncode == 1 and "installing requirements.txt failed" in done.stderr
    calls(root)
    run(root)
    assert any("pip install" in call for call in calls(root))


@pytest.mark.parametrize(
    ("arguments", "fetches"),
    [([], True), (["--engine", "lite"], True), (["--engine=tone"], False), (["--help"], False)],
)
def test_model_files_are_fetched_for_the_engine_that_needs_them(
    tmp_path: Path, arguments: list[str], fetches: bool
) -> None:
    root = fake_project(tmp_path)
    run(root, *arguments)
    assert any("assets fetch" in call for call in calls(root)) == fetches


@pytest.mark.parametrize(("given", "used"), [(None, "0"), ("1", "1"), ("", "")])
def test_the_gpu_choice_is_passed_on(tmp_path: Path, given: str | None, used: str) -> None:
    root = fake_project(tmp_path)
    run(root, **({} if given is None else {"CUDA_VISIBLE_DEVICES": given}))
    assert calls(root)[-1].startswith(used + "|")


def test_tests_get_their_own_requirements_and_options(tmp_path: Path) -> None:
    root = fake_project(tmp_path)
    run(root, "test", "-k", "two words")
    made = calls(root)
    assert sum("pip install" in call for call in made) == 2 and made[-1] == "0|-m pytest -k two words"


def test_an_unknown_command_shows_what_there_is(tmp_path: Path) -> None:
    root = fake_project(tmp_path)
    done = run(root, "serv")
    assert done.returncode == 1 and 'no command "serv"' in done.stderr and "./run.sh test" in done.stderr
    assert not calls(root)


def test_no_suitable_python_is_said_with_the_way_out(tmp_path: Path) -> None:
    root = fake_project(tmp_path)
    shutil.rmtree(root / ".venv")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "env", "dirname", "readlink", "cat"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    old = tools / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.1"\nexit 1\n')
    old.chmod(0o755)
    done = run(root, PATH=str(tools))
    assert done.returncode == 1
    assert "Python 3.10 to 3.13 is needed, and this machine has Python 3.8.1" in done.stderr
    assert "apt-get install" in done.stderr


def test_a_python_without_venv_is_said_with_the_package(tmp_path: Path) -> None:
    root = fake_project(tmp_path)
    shutil.rmtree(root / ".venv")
    bare = tmp_path / "python-without-venv"
    bare.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexit 0\n')
    bare.chmod(0o755)
    done = run(root, PYTHON=str(bare))
    assert done.returncode == 1 and "apt-get install python3-venv" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_step_at_work_too(tmp_path: Path, number: signal.Signals, status: int) -> None:
    root = fake_project(tmp_path)
    python = root / ".venv" / "bin" / "python"
    with python.open("a") as file:
        file.write(f'case "$*" in *"pip install"*) echo $$ > "{root}/pid"; exec sleep 600;; esac\n')
    before = signal.signal(number, signal.SIG_DFL)  # a shell can't catch what was ignored when it began
    try:
        script = subprocess.Popen([root / "run.sh"], cwd=root, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(number, before)
    end = time.monotonic() + 30.0
    while not (root / "pid").exists() or not (root / "pid").read_text().strip():
        assert time.monotonic() < end
        time.sleep(0.02)
    script.send_signal(number)
    assert script.wait(30.0) == status
    assert script.stderr is not None
    said = script.stderr.read()
    script.stderr.close()
    assert "stopped" in said and "failed" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(int((root / "pid").read_text()), 0)
