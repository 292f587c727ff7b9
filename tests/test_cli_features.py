"""`features`: what it finds, writes, skips and says; and that stopping it loses nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import clips as clip_maker
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

from cosyvoice_app.audio.features import KINDS, Kind, extractor_for
from cosyvoice_app.cli import feature_files
from cosyvoice_app.cli import features as command
from cosyvoice_app.cli.main import main
from cosyvoice_app.types import FloatArray

ROOT = Path(__file__).parents[1]
RATE_HZ = 16_000


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_thread_is_left: None) -> None:
    monkeypatch.chdir(tmp_path)


def noise(seconds: float, seed: int = 0, rate_hz: int = RATE_HZ) -> FloatArray:
    samples = np.random.default_rng(seed).standard_normal(int(seconds * rate_hz)) * 0.1
    rounded: FloatArray = (np.rint(samples * 32767) / 32768).astype(np.float32)
    return rounded


def write(path: str | Path, seconds: float = 0.5, seed: int = 0, rate_hz: int = RATE_HZ) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(clip_maker.wav_bytes(noise(seconds, seed, rate_hz), rate_hz))
    return path


def run(*arguments: str | Path, kind: str = "fbank", out: str = "out") -> int:
    return main(["features", *map(str, arguments), "--kind", kind, "--out", out, "--device", "cpu"])


def manifest() -> dict[str, dict[str, Any]]:
    lines = Path("out/manifest.jsonl").read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    entries = [json.loads(line) for line in lines]
    assert len({entry["source"] for entry in entries}) == len(entries), "one line a clip"
    return {Path(entry["source"]).name: entry for entry in entries}


def outputs() -> set[str]:
    files = {path.relative_to("out").as_posix() for path in Path("out").rglob("*") if path.is_file()}
    return files - {"manifest.jsonl", ".features.lock"}


def times() -> dict[str, int]:
    return {name: Path("out", name).stat().st_mtime_ns for name in outputs()}


# what is written


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_becomes_a_folder_of_the_extractors_own_values(kind: Kind) -> None:
    extractor = extractor_for(kind)
    sources = {f"s{i % 2}/deep/c{i}": noise(0.3 + 0.2 * i, i, extractor.rate_hz) for i in range(5)}
    for i, name in enumerate(sources):
        write(f"in/{name}.wav", 0.3 + 0.2 * i, i, extractor.rate_hz)
    assert run("in", kind=kind) == 0
    assert outputs() == {f"{name}.npy" for name in sources}
    for name, samples in sources.items():
        values = np.load(f"out/{name}.npy")
        assert np.array_equal(values, extractor(torch.from_numpy(samples)[None]).values[0].numpy())
        entry = manifest()[f"{Path(name).name}.wav"]
        assert (entry["frames"], entry["bins"]) == values.shape
        assert (entry["rate_hz"], entry["error"]) == (extractor.rate_hz, None)
        assert entry["duration_s"] == pytest.approx(len(samples) / extractor.rate_hz)
        assert Path(entry["source"]).is_file() and Path("out", entry["output"]).is_file()


def test_kinds_are_those_of_the_extractors() -> None:
    assert command.KINDS == KINDS


def test_safetensors_hold_the_same_and_say_what_it_is() -> None:
    write("in/a.wav")
    assert run("in") == 0
    assert run("in", "--format", "safetensors", out="safe") == 0
    assert np.array_equal(load_file("safe/a.safetensors")["features"], np.load("out/a.npy"))
    with safe_open("safe/a.safetensors", "np") as file:
        assert file.metadata() == {"kind": "fbank", "rate_hz": "16000", "shift_samples": "160"}


@pytest.mark.parametrize("file_format", ["npy", "safetensors"])
def test_a_clip_shorter_than_a_frame_is_a_file_of_no_frames(file_format: str) -> None:
    write("in/a.wav", 0.01)
    assert run("in", "--format", file_format) == 0
    values = np.load("out/a.npy") if file_format == "npy" else load_file("out/a.safetensors")["features"]
    assert values.shape == (0, 80) and manifest()["a.wav"]["frames"] == 0


def test_settings_and_rate_are_obeyed() -> None:
    write("in/a.wav")
    assert run("in", "--set", "bins=40", "--set", "low-hz=50", "--rate", "8000") == 0
    assert np.load("out/a.npy").shape[1] == 40
    assert manifest()["a.wav"]["rate_hz"] == 8000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "bens=3"], "no setting 'bens'; it has bins"),
        (["--set", "bins"], "not of the form name=value"),
        (["--set", "bins=many"], "must be a whole number"),
        (["--set", "bins=4.5"], "must be a whole number"),
        (["--set", "bins=true"], "must be a whole number"),
        (["--set", "remove_dc=1"], "must be true or false"),
        (["--set", "low_hz=low"], "must be a number"),
        (["--set", "bins=0"], "greater than 0"),
        (["--set", "high_hz=9000"], "8000"),
        (["--device", "quantum"], "allowed: auto, cpu"),
        (["nowhere"], "no file or folder nowhere"),
        (["empty"], "no audio in empty"),
        (["--out", "in"], "lies in the input folder in"),
        (["--out", "in/deep/er"], "lies in the input folder in"),
        (["--out", "link/x"], "lies in the input folder in"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_made(arguments: list[str], says: str, capsys: Any) -> None:
    write("in/deep/a.wav")
    Path("empty").mkdir()
    Path("link").symlink_to("in/deep")
    call = ["empty"] if arguments == ["empty"] else ["in", *arguments]
    call = ["features", *call, "--kind", "fbank", *([] if "--out" in call else ["--out", "out"])]
    assert main(call) == 2
    assert says in capsys.readouterr().err
    assert not Path("out").exists() and len(list(Path("in").rglob("*"))) == 2


def test_whisper_takes_no_other_rate(capsys: Any) -> None:
    write("in/a.wav")
    assert run("in", "--rate", "8000", kind="whisper-mel") == 2
    assert "16000" in capsys.readouterr().err


# what is found


def test_content_decides_what_a_file_is_and_hidden_ones_are_passed_over(clips: Path) -> None:
    for name in ("mp3_named.wav", "wav_named.mp3", "c.webm", "c.m4a"):
        Path("in").mkdir(exist_ok=True)
        shutil.copy(clips / name, Path("in", name))
    write("in/.hidden.wav")
    write("in/.git/a.wav")
    write("in/LOUD.WAV")
    Path("in/notes.txt").write_text("no audio")
    assert run("in") == 0
    assert set(manifest()) == {"mp3_named.wav", "wav_named.mp3", "c.webm", "c.m4a", "LOUD.WAV"}


def test_a_file_named_outright_needs_no_ending(clips: Path) -> None:
    assert run(clips / "noext") == 0
    assert outputs() == {"noext.npy"}


def test_inputs_that_want_one_name_get_distinct_ones_and_keep_them() -> None:
    write("in/a.wav", seed=1)
    assert run("in") == 0
    for i, name in enumerate(("in/a.flac", "in/A.wave", "two/a.wav", "in/a_2.wav")):
        write(name, seed=2 + i)
    before = times()
    assert run("in", "two", "in/a.wav") == 0
    assert len(outputs()) == 5 and len({name.casefold() for name in outputs()}) == 5
    assert times()["a.npy"] == before["a.npy"], "the first keeps its name, and its file"
    seen = {entry["output"]: np.load(Path("out", entry["output"])) for entry in manifest_by_source().values()}
    assert len({values.tobytes() for values in seen.values()}) == 5
    after = times()
    assert run("two", "in") == 0
    assert times() == after


def manifest_by_source() -> dict[str, dict[str, Any]]:
    lines = Path("out/manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return {entry["source"]: entry for entry in map(json.loads, lines)}


@pytest.mark.parametrize("name", ["你好 世界.wav", "a\nb.wav", "x" * 251 + ".wav"])
def test_names_of_all_kinds(name: str) -> None:
    write(Path("in", name))
    assert run("in") == 0
    assert outputs() == {name[:-4] + ".npy"}
    assert run("in") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' file names are text")
def test_a_name_that_is_not_text() -> None:
    Path("in").mkdir()
    with open(b"in/\xff\xfe.wav", "wb") as file:
        file.write(clip_maker.wav_bytes(noise(0.5), RATE_HZ))
    assert run("in") == 0
    made = os.listdir(b"out")
    assert b"\xff\xfe.npy" in made
    when = os.stat(b"out/\xff\xfe.npy").st_mtime_ns
    assert run("in") == 0
    assert os.stat(b"out/\xff\xfe.npy").st_mtime_ns == when


# going on


def test_finished_clips_are_passed_over_until_something_changes(capsys: Any) -> None:
    for i in range(4):
        write(f"in/c{i}.wav", seed=i)
    assert run("in") == 0
    first = times()
    assert run("in") == 0
    assert "4 of 4 clips are finished already" in capsys.readouterr().err
    assert times() == first
    write("in/c1.wav", 0.7, seed=9)
    os.utime("in/c2.wav", ns=(1, 1))
    Path("out/c3.npy").write_bytes(b"")
    assert run("in") == 0
    changed = {name for name, when in times().items() if when != first[name]}
    assert changed == {"c1.npy", "c2.npy", "c3.npy"}
    again = times()
    assert run("in", "--set", "bins=40") == 0
    assert all(times()[name] != when for name, when in again.items())
    assert all(np.load(Path("out", name)).shape[1] == 40 for name in outputs())


def test_a_manifest_cut_short_costs_its_last_clip_only() -> None:
    for i in range(3):
        write(f"in/c{i}.wav", seed=i)
    assert run("in") == 0
    first = times()
    path = Path("out/manifest.jsonl")
    path.write_bytes(path.read_bytes()[:-40])
    assert run("in") == 0
    assert {name for name, when in times().items() if when != first[name]} == {"c2.npy"}
    assert len(manifest()) == 3


def test_bad_files_are_written_down_and_the_rest_go_on(clips: Path, capsys: Any) -> None:
    for name in ("text.wav", "zero.wav", "header.wav", "p.wav", "len_15.1.wav"):
        Path("in").mkdir(exist_ok=True)
        shutil.copy(clips / name, Path("in", name))
    assert run("in", "--max-seconds", "10") == 1
    shown = capsys.readouterr()
    assert "1 of 5 clips done, 4 failed" in shown.out
    assert "text.wav" in shown.err and "not audio" in shown.err
    entries = manifest()
    assert outputs() == {"p.npy"}
    assert {name for name, entry in entries.items() if entry["error"]} == set(entries) - {"p.wav"}
    assert "15 s long; at most 10 s" in entries["len_15.1.wav"]["error"]
    assert all(entry["frames"] is None for entry in entries.values() if entry["error"])
    shutil.copy(clips / "c.mp3", "in/text.wav")
    assert run("in") == 1
    assert "4 failed" not in capsys.readouterr().out and manifest()["text.wav"]["error"] is None


def test_json_says_what_was_done(capsys: Any) -> None:
    for i in range(3):
        write(f"in/c{i}.wav", seed=i)
    Path("in/bad.wav").write_bytes(b"bad")
    assert run("in", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["clips"], report["done"], report["skipped"], report["failed"]) == (4, 3, 0, 1)
    assert report["audio_s"] == pytest.approx(1.5)
    assert report["device"] == "cpu" and report["clips_per_s"] > 0
    assert run("in", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["done"], report["skipped"], report["failed"]) == (0, 3, 1)
    assert run("nowhere", "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["param"] == "in"


def test_a_full_disk_ends_the_run_and_leaves_it_to_be_gone_on_with(monkeypatch: Any, capsys: Any) -> None:
    for i in range(6):
        write(f"in/c{i}.wav", seed=i)
    wrote = []

    def full(path: Path, data: list[bytes | memoryview]) -> None:
        wrote.append(path)
        if len(wrote) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        feature_files.write_whole(path, data)

    monkeypatch.setattr(command, "write_whole", full)
    assert run("in", "--batch", "2") == 1
    assert "No space left" in capsys.readouterr().err
    assert len(wrote) == 3 and len(outputs()) == len(manifest()) == 2
    monkeypatch.setattr(command, "write_whole", feature_files.write_whole)
    assert run("in") == 0
    assert len(outputs()) == 6


def test_an_error_of_one_output_is_that_clips_own(capsys: Any) -> None:
    for name in ("in/a.wav", "in/b.wav"):
        write(name)
    Path("out/a.npy").mkdir(parents=True)
    assert run("in") == 1
    assert manifest()["a.wav"]["error"].startswith("IsADirectoryError")
    assert Path("out/b.npy").is_file() and not list(Path("out").rglob(".unfinished*"))


def test_ctrl_c_leaves_whole_files_and_the_next_call_goes_on(tmp_path: Path) -> None:
    for i in range(400):
        write(f"in/s{i % 7}/c{i}.wav", 2.0, seed=i)
    call = [sys.executable, "-m", "cosyvoice_app", "features", str(tmp_path / "in"), "--kind", "mfcc", "--out",
            str(tmp_path / "out"), "--device", "cpu", "--batch", "4"]  # fmt: skip
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(call, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while len(list(Path("out").rglob("*.npy"))) < 5 and child.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert said.strip().endswith("stopped") and "Traceback" not in said
    made = times()
    assert 5 <= len(made) < 400
    assert not list(Path("out").rglob(".unfinished*"))
    listed = {entry["output"] for entry in manifest().values()}
    assert listed <= set(made) and len(set(made) - listed) <= 1, "but for one, stopped between its file and its line"
    assert all(np.load(Path("out", name)).shape == (201, 80) for name in made)
    done = subprocess.run([*call, "--json"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["skipped"], report["done"]) == (len(listed), 400 - len(listed))
    assert len(outputs()) == 400 and all(times()[name] == made[name] for name in listed)


def test_help_shows_every_option(capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main(["features", "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for option in ("--kind", "--out", "--format", "--device", "--rate", "--batch", "--workers", "--set", "--normalise",
                   "--sets", "--language", "--dialect", "--json"):  # fmt: skip
        assert re.search(rf"^  {option}\b", shown, re.MULTILINE)


def test_progress_is_shown_on_a_terminal_only(monkeypatch: Any, capsys: Any) -> None:
    for i in range(3):
        write(f"in/c{i}.wav", seed=i)
    assert run("in") == 0
    assert "clips," not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run("in", "--set", "bins=23") == 0
    assert re.search(r"\r1/3 clips, \d+/s, \d+ s left, 0 failed", capsys.readouterr().err)
