"""`features --normalise` and `--sets`: each clip gets what was asked for, and its line says what that was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import clips as clip_maker
import numpy as np
import pytest
import torch
from safetensors import safe_open
from test_cli_features import manifest, noise, outputs, run, times, write

from cosyvoice_app.audio.clip_loading import load_clip
from cosyvoice_app.audio.feature_sets import built_in
from cosyvoice_app.audio.features import KINDS, Kind, extractor_for
from cosyvoice_app.audio.normalise import NORMS, NormConfig, NormKind, norm_for, normalise
from cosyvoice_app.audio.snr import estimate_snr
from cosyvoice_app.cli import feature_choices, feature_feed
from cosyvoice_app.cli.main import main
from cosyvoice_app.types import FloatArray

RATE_HZ = 16_000
# Sets that differ for every clip length of `write`, by rate alone: each of them needs a pipeline of its own.
MINE = """
[[set]]
name = "by rate {hz}"
why = "A pipeline of its own."
evidence = "None; for a test."
when = {{ rate_from_hz = {hz}, rate_to_hz = {hz} }}
fbank = {{ bins = {bins} }}
"""
SPOKEN = """
[[set]]
name = "cantonese"
why = "What the set is for."
evidence = "None; for a test."
when = { language = ["zh"], dialect = ["yue"] }
fbank = { bins = 30 }
normalisation = { kind = "window", window_s = 1.0 }
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_thread_is_left: None) -> None:
    monkeypatch.chdir(tmp_path)


def made(path: str, kind: Kind, norm: NormConfig, **changes: Any) -> FloatArray:
    """What the clip's features must be, by the functions of the library."""
    extractor = extractor_for(kind, **changes)
    loaded = load_clip(Path(path), extractor.rate_hz, max_seconds=60, max_bytes=1 << 24)
    features = extractor(torch.from_numpy(loaded.samples)[None])
    values: FloatArray = normalise(features.values, features.lengths, norm)[0].numpy()
    return values


def speech(path: str, rate_hz: int, noise_level: float) -> None:
    """Real speech, with noise added: at 0.05 that is under 15 dB."""
    samples, source_hz = clip_maker.read("p0_en.flac")
    samples = clip_maker.change_rate(samples, source_hz, rate_hz)
    samples = samples + noise_level * 10 * noise(len(samples) / rate_hz + 1, 1, rate_hz)[: len(samples)]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(clip_maker.wav_bytes(samples.astype(np.float32), rate_hz))


# --normalise


def test_normalisations_are_those_of_the_library() -> None:
    assert tuple(NORMS) == feature_choices.NORMALISATIONS


@pytest.mark.parametrize("norm", ["utterance", "exponential", "window"])
def test_each_clip_is_normalised_over_its_own_frames(norm: NormKind) -> None:
    for i in range(5):
        write(f"in/c{i}.wav", 0.5 + 0.03 * i, seed=i)
    write("in/short.wav", 0.01)
    write("in/long.wav", 5.0, seed=9)
    assert run("in", "--normalise", norm) == 0
    plain = extractor_for("fbank")
    for name, entry in manifest().items():
        values = np.load(Path("out", entry["output"]))
        wanted = made(f"in/{name}", "fbank", norm_for(norm))
        assert np.array_equal(values, wanted) and values.shape == (entry["frames"], plain.bins)
        assert entry["normalisation"]["kind"] == norm and entry["normalisation"]["variance"] is True
    assert not np.array_equal(np.load("out/long.npy"), made("in/long.wav", "fbank", norm_for("none")))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_normalised(kind: Kind) -> None:
    write("in/a.wav")
    assert run("in", "--normalise", "utterance", kind=kind) == 0
    assert np.array_equal(np.load("out/a.npy"), made("in/a.wav", kind, norm_for("utterance")))


def test_another_normalisation_is_made_again_and_the_same_is_passed_over() -> None:
    write("in/a.wav")
    assert run("in") == 0
    assert manifest()["a.wav"]["normalisation"] == {"kind": "none"}
    seen = [times()]
    for norm in ("utterance", "window", "none"):
        assert run("in", "--normalise", norm) == 0
        assert times() != seen[-1]
        seen.append(times())
    assert run("in") == 0
    assert times() == seen[-1], "none is what there is without it"


def test_a_safetensors_file_says_that_it_is_normalised() -> None:
    write("in/a.wav")
    assert run("in", "--format", "safetensors", "--normalise", "utterance") == 0
    with safe_open("out/a.safetensors", "np") as file:
        assert file.metadata()["normalisation"] == "utterance"


def test_a_span_in_the_features_own_shift() -> None:
    """The window is 300 frames whatever the shift; nothing of the command line is in seconds."""
    write("in/a.wav", 8.0)
    assert run("in", "--normalise", "window", "--set", "shift_ms=20") == 0
    assert np.array_equal(np.load("out/a.npy"), made("in/a.wav", "fbank", norm_for("window"), shift_ms=20.0))


# --sets


def test_each_clip_gets_the_set_for_its_rate_and_snr_and_says_why() -> None:
    for rate_hz in (8000, 16_000, 44_100):
        speech(f"in/clean{rate_hz}.wav", rate_hz, 0.0)
        speech(f"in/noisy{rate_hz}.wav", rate_hz, 0.05)
    assert run("in", "--sets", "auto", kind="mfcc") == 0
    wanted = {"clean8000": "narrow band", "noisy8000": "noisy narrow band", "clean16000": "default",
              "noisy16000": "noisy", "clean44100": "default", "noisy44100": "noisy"}  # fmt: skip
    entries = manifest()
    assert {name[:-4]: entry["set"] for name, entry in entries.items()} == wanted
    for name, entry in entries.items():
        own = load_clip(Path("in", name), None, max_seconds=60, max_bytes=1 << 24)
        (snr,) = estimate_snr(torch.from_numpy(own.samples)[None], own.rate_hz)
        choice = built_in().choose("mfcc", own.rate_hz, at_hz=RATE_HZ, snr_db=snr.db)
        assert entry["snr_db"] == pytest.approx(snr.db, abs=0.01)
        assert (entry["why"], entry["matched"], entry["set_source"]) == (choice.why, choice.matched, "built-in")
        assert entry["settings"] == dict(choice.parameters.changes)
        values = np.load(Path("out", entry["output"]))
        norm = choice.parameters.normalisation
        assert np.array_equal(values, made(f"in/{name}", "mfcc", norm, **choice.parameters.changes))
        assert entry["rate_hz"] == RATE_HZ and values.shape == (entry["frames"], entry["bins"])


def test_what_is_asked_for_wins_over_the_set() -> None:
    speech("in/a.wav", 8000, 0.05)
    assert run("in", "--sets", "auto", "--normalise", "none", "--set", "coefficients=13", kind="mfcc") == 0
    entry = manifest()["a.wav"]
    assert entry["set"] == "noisy narrow band" and entry["normalisation"] == {"kind": "none"}
    assert entry["settings"] == {"high_hz": 4000, "mels": 64, "coefficients": 13}
    wanted = made("in/a.wav", "mfcc", norm_for("none"), high_hz=4000.0, mels=64, coefficients=13)
    assert np.array_equal(np.load("out/a.npy"), wanted)


def test_language_and_dialect_choose_from_ones_own_sets() -> None:
    write("in/a.wav", 3.0)
    Path("mine.toml").write_text(SPOKEN, encoding="utf-8")
    assert run("in", "--sets", "mine.toml", "--language", "zh-HK", "--dialect", "yue") == 0
    entry = manifest()["a.wav"]
    assert (entry["set"], entry["set_source"], entry["bins"]) == ("cantonese", "mine.toml", 30)
    assert entry["normalisation"]["frames"] == 100
    before = times()
    assert run("in", "--sets", "mine.toml", "--language", "zh-HK", "--dialect", "yue") == 0
    assert times() == before
    assert run("in", "--sets", "mine.toml", "--language", "zh") == 0
    assert manifest()["a.wav"]["set_source"] == "built-in" and times() != before
    before = times()
    Path("mine.toml").write_text(SPOKEN.replace("30", "31"), encoding="utf-8")
    assert run("in", "--sets", "mine.toml", "--language", "zh") == 0
    assert times() != before, "another table, another config"


def test_more_choices_than_pipelines_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [8000 + 500 * i for i in range(9)]
    Path("mine.toml").write_text("".join(MINE.format(hz=hz, bins=20 + i) for i, hz in enumerate(rates)), "utf-8")
    for turn in range(4):
        for hz in rates:
            write(f"in/{turn}_{hz}.wav", 0.3, seed=turn, rate_hz=hz)
    most = 0
    submit = feature_feed.Pipelines.submit

    def counted(self: feature_feed.Pipelines, item: Any) -> Any:
        nonlocal most
        made = submit(self, item)
        most = max(most, len(self._open))
        return made

    monkeypatch.setattr(feature_feed.Pipelines, "submit", counted)
    assert run("in", "--sets", "mine.toml", "--batch", "2", "--workers", "3") == 0
    assert most == 4 and len(outputs()) == 36
    for name, entry in manifest().items():
        hz = int(name.split("_")[1][:-4])
        assert entry["bins"] == 20 + rates.index(hz) and np.load(Path("out", entry["output"])).shape[1] == entry["bins"]


def test_clips_that_cannot_be_chosen_for_fail_by_themselves(clips: Path, capsys: Any) -> None:
    write("in/good.wav")
    for name in ("text.wav", "zero.wav"):
        Path("in", name).write_bytes((clips / name).read_bytes())
    samples = noise(0.5)
    samples[100] = np.nan
    import soundfile

    soundfile.write("in/nan.wav", samples, RATE_HZ, subtype="FLOAT")
    Path("mine.toml").write_text(MINE.format(hz=8000, bins=40).replace("bins = 40", "high_hz = 7600"), "utf-8")
    write("in/narrow.wav", rate_hz=8000)
    assert run("in", "--sets", "auto", "--json") == 1
    assert json.loads(capsys.readouterr().out)["failed"] == 3
    entries = manifest()
    assert entries["good.wav"]["error"] is None and entries["narrow.wav"]["error"] is None
    assert "'nan.wav' holds a sample that is not a number" in entries["nan.wav"]["error"]
    assert "not audio" in entries["text.wav"]["error"] and "set" not in entries["text.wav"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sets", "none.toml"], "none.toml can't be read"),
        (["--sets", "wrong.toml"], "not valid TOML"),
        (["--language", "zh"], "give --sets too"),
        (["--dialect", "yue"], "give --sets too"),
        (["--sets", "auto", "--set", "bens=3"], "no setting 'bens'"),
        (["--set", "frame_ms=Infinity"], "frame_ms"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_made(arguments: list[str], says: str, capsys: Any) -> None:
    write("in/a.wav")
    Path("wrong.toml").write_text("[[set", encoding="utf-8")
    assert run("in", *arguments) == 2
    assert says in capsys.readouterr().err
    assert not Path("out").exists()


def test_an_interrupt_with_many_feeders_ends_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(40):
        write(f"in/c{i}.wav", 0.3, seed=i, rate_hz=8000 if i % 2 else RATE_HZ)
    take = feature_feed._next
    taken = 0

    def interrupted(finished: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken > 5:
            raise KeyboardInterrupt
        return take(finished)

    monkeypatch.setattr(feature_feed, "_next", interrupted)
    arguments = ["in", "--sets", "auto", "--kind", "mfcc", "--out", "out", "--batch", "2", "--workers", "4"]
    assert main(["features", *arguments, "--device", "cpu"]) == 130
    assert len(outputs()) == 5
    monkeypatch.setattr(feature_feed, "_next", take)
    assert run("in", "--sets", "auto", kind="mfcc") == 0 and len(outputs()) == 40
