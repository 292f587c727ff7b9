"""`features` and the folders it meets: pipes, links in circles, long and clashing names, other runs and other kinds."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from test_cli_features import ROOT, manifest, manifest_by_source, outputs, run, times, write

from cosyvoice_app.cli import feature_files
from cosyvoice_app.cli.feature_names import chosen_names

TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_thread_is_left: None) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str, kind: str = "fbank") -> list[str]:
    return [sys.executable, "-m", "cosyvoice_app", "features", *arguments, "--kind", kind, "--device", "cpu"]


def environ() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


# what is found


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
def test_what_is_no_regular_file_is_left_out_with_a_warning() -> None:
    write("in/a.wav")
    os.mkfifo("in/b.wav")
    Path("in/c.wav").symlink_to("b.wav")
    ended = subprocess.run(
        call("in", "--out", "out"), env=environ(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert outputs() == {"a.npy"}
    assert ended.stderr.count("not a regular file") == 2 and "b.wav" in ended.stderr


@pytest.mark.parametrize("where", ["circle", "circle/deeper"])
@pytest.mark.parametrize("given", ["in", "in/a.wav"])
def test_an_out_folder_by_way_of_links_in_a_circle_is_refused(where: str, given: str, capsys: Any) -> None:
    write("in/a.wav")
    Path("circle").symlink_to("round")
    Path("round").symlink_to("circle")
    assert run(given, out=where) in (1, 2)
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "circle" in said and said.count("\n") == 1


# names


def test_a_folder_with_the_name_of_a_file_goes_beside_it() -> None:
    write("in/x.wav", seed=1)
    write("in/x.npy/b.wav", seed=2)
    write("in/X.npy/c.wav", seed=3)
    assert run("in") == 0
    assert outputs() == {"x_2.npy", "x.npy/b.npy", "X.npy/c.npy"}
    before = times()
    assert run("in") == 0 and times() == before


def test_a_folder_that_comes_later_makes_way_for_the_file_that_is_there() -> None:
    write("in/x.wav", seed=1)
    assert run("in") == 0
    before = times()
    write("in/x.npy/b.wav", seed=2)
    write("in/x.npy/c/d.wav", seed=3)
    assert run("in") == 0
    assert outputs() == {"x.npy", "x.npy_2/b.npy", "x.npy_2/c/d.npy"}
    assert times()["x.npy"] == before["x.npy"]
    assert run("in") == 0 and len(outputs()) == 3


@pytest.mark.parametrize("stem", ["x" * 251, "x" * 250 + "é", "好" * 83 + "a"])
def test_a_stem_too_long_for_the_ending_is_cut_and_stays_its_own(stem: str) -> None:
    assert len(os.fsencode(stem + ".wav")) <= 256
    stem = os.fsencode(stem)[:251].decode("utf-8", "ignore")
    write(Path("in", stem + ".wav"), seed=1)
    write(Path("in", stem + ".aif"), seed=2)
    assert run("in", "--format", "safetensors") == 0
    assert len(outputs()) == 2
    for name in outputs():
        assert name.startswith(stem[:50]) and len(os.fsencode(name)) <= 255
    before = times()
    assert run("in", "--format", "safetensors") == 0 and times() == before


def test_stems_that_differ_only_where_they_are_cut_get_distinct_names() -> None:
    wishes = [PurePosixPath("x" * 250 + end) for end in "abc"]
    names = chosen_names(wishes, [None] * 3, ".safetensors", [])
    assert len({name[-20:] for name in names}) == 3 and all(len(name) == 255 for name in names)


def test_names_of_random_trees_are_distinct_and_never_a_folder_of_another() -> None:
    chance = np.random.default_rng(7)
    for _ in range(200):
        parts = [[str(chance.choice(["a", "A", "a.npy", "a_2", "b"])) for _ in range(chance.integers(1, 4))]
                 for _ in range(12)]  # fmt: skip
        wishes = [PurePosixPath(*part) for part in parts]
        first = chosen_names(wishes[:6], [None] * 6, ".npy", [])
        names = chosen_names(wishes, [*first, *[None] * 6], ".npy", [])
        assert names[:6] == first
        files = {name.casefold() for name in names}
        assert len(files) == 12
        assert not files & {str(folder).casefold() for name in names for folder in PurePosixPath(name).parents}


def test_an_output_that_two_lines_claim_is_made_again_for_both(capsys: Any) -> None:
    write("in/a.wav", seed=1)
    write("in/b.wav", seed=2)
    assert run("in") == 0
    good = {name: np.load(Path("out", name)) for name in outputs()}
    path = Path("out/manifest.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace('"b.npy"', '"a.npy"'), encoding="utf-8")
    Path("out/b.npy").replace("out/a.npy")
    assert run("in") == 0
    assert "made again" in capsys.readouterr().err
    assert {entry["output"] for entry in manifest_by_source().values()} == {"a.npy", "b.npy"}
    assert all(np.array_equal(np.load(Path("out", name)), values) for name, values in good.items())


# other runs, other kinds


def test_a_second_run_into_the_folder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    for i in range(400):
        write(f"in/c{i}.wav", 2.0, seed=i)
    first = subprocess.Popen(call(str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--batch", "4", kind="mfcc"),
                             env=environ(), stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        until = time.monotonic() + TIMEOUT_S
        while not list(Path("out").rglob("*.npy")) and time.monotonic() < until:
            time.sleep(0.002)
        assert first.poll() is None
        first.send_signal(signal.SIGSTOP)
        for arguments in (["in"], ["in/c1.wav"]):
            second = subprocess.run(call(*arguments, "--out", "out", kind="mfcc"), env=environ(), capture_output=True,
                                    text=True, timeout=TIMEOUT_S, check=False)  # fmt: skip
            assert second.returncode == 2, second.stderr
            assert f"process {first.pid} on" in second.stderr
        first.send_signal(signal.SIGCONT)
        first.send_signal(signal.SIGINT)
        assert first.wait(TIMEOUT_S) == 130
    finally:
        if first.poll() is None:
            first.kill()
            first.wait()
    assert not Path("out/.features.holder").exists()
    assert run("in/c1.wav", kind="mfcc") == 0, "the lock goes with its process"


@pytest.mark.parametrize(("kind", "file_format"), [("mfcc", "npy"), ("fbank", "safetensors")])
def test_another_kind_or_format_needs_another_folder(kind: str, file_format: str, capsys: Any) -> None:
    write("in/a.wav")
    assert run("in") == 0
    before, lines = times(), Path("out/manifest.jsonl").read_bytes()
    assert run("in", "--format", file_format, kind=kind) == 2
    assert f"out holds fbank as npy; {kind} as {file_format} needs another folder" in capsys.readouterr().err
    assert times() == before and Path("out/manifest.jsonl").read_bytes() == lines
    assert manifest()["a.wav"]["kind"] == "fbank"


def test_a_manifest_that_cannot_be_added_to_ends_the_run_with_one_plain_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for i in range(3):
        write(f"in/c{i}.wav", seed=i)
    opened = Path.open

    def full(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if self.name == "manifest.jsonl" and "a" in mode:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(self, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    assert run("in") == 1
    said = capsys.readouterr().err
    assert "manifest.jsonl can't be written: No space left" in said and "Traceback" not in said
    monkeypatch.setattr(Path, "open", opened)
    assert run("in") == 0 and len(manifest()) == 3


def test_an_out_folder_that_goes_away_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write("in/a.wav")
    add = feature_files.FeatureManifest.add

    def gone(self: feature_files.FeatureManifest, *arguments: Any) -> None:
        shutil.rmtree("out")
        add(self, *arguments)

    monkeypatch.setattr(feature_files.FeatureManifest, "add", gone)
    assert run("in") == 1
    assert "manifest.jsonl can't be written" in capsys.readouterr().err


def test_the_lines_of_a_run_before_kinds_were_written_down_still_count() -> None:
    write("in/a.wav")
    assert run("in") == 0
    path = Path("out/manifest.jsonl")
    entry = json.loads(path.read_text(encoding="utf-8"))
    del entry["kind"]
    path.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    before = times()
    assert run("in") == 0 and times() == before
