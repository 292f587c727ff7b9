"""The command line, run as users run it: exit statuses, plain errors, files."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any, ClassVar

import pytest
from engines_for_tests import QuickTone

from cosyvoice_app.bench.latency import DEFAULT_TEXT
from cosyvoice_app.cli.main import main
from cosyvoice_app.engines.tone import ToneSpeaker
from cosyvoice_app.types import PromptClip, Voice

ROOT = Path(__file__).parents[1]
ENGINE = ("--engine", "engines_for_tests:QuickTone")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("COSYVOICE_"):
            monkeypatch.delenv(name)


def frames(path: Path) -> bytes:
    with wave.open(str(path), "rb") as file:
        return file.readframes(file.getnframes())


# synth


def test_synth_writes_into_outputs_with_a_sidecar(p0_wav: Path, tmp_path: Path, capsys: Any) -> None:
    call = ["synth", "--prompt", str(p0_wav), "--text", "Hello.", "--seed", "5", "--outputs", "made", *ENGINE]
    assert main(call) == 0
    (wav,) = (tmp_path / "made").glob("*.wav")
    assert capsys.readouterr().out.splitlines()[0] == str(wav)
    sidecar = json.loads(wav.with_suffix(".json").read_text(encoding="utf-8"))
    assert (sidecar["seed"], sidecar["text"], sidecar["engine"]) == (5, "Hello.", "tone")


def test_synth_json_holds_what_makes_the_same_audio_again(p0_wav: Path, capsys: Any) -> None:
    call = ["synth", "--prompt", str(p0_wav), "--text", "Hello.", "--json", *ENGINE]
    assert main([*call, "--out", "a.wav"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seed_was_random"]
    assert main([*call, "--out", "b.wav", "--seed", str(report["seed"])]) == 0
    again = json.loads(capsys.readouterr().out)
    assert not again["seed_was_random"]
    assert frames(Path("a.wav")) == frames(Path("b.wav"))
    for key in ("path", "seed", "warnings", "segments", "timings", "prompt", "duration_s", "model_hash"):
        assert key in again


@pytest.mark.parametrize(("ending", "magic"), [("wav", b"RIFF"), ("flac", b"fLaC"), ("opus", b"OggS")])
def test_out_s_ending_is_its_format(p0_wav: Path, ending: str, magic: bytes) -> None:
    out = Path("folder", f"x.{ending}")
    assert main(["synth", "--prompt", str(p0_wav), "--text", "Hello.", "--out", str(out), *ENGINE]) == 0
    assert out.read_bytes()[:4] == magic


@pytest.mark.parametrize(("arguments", "says"), [
    (("--text", "。。。"), "nothing to speak"),
    (("--text", "Hi", "--seed", "0"), "seed is '0'"),
    (("--text", "Hi", "--seed", "1.5"), "seed is '1.5'"),
    (("--text", "Hi", "--speed", "fast"), "speed is 'fast'"),
    (("--text", "Hi", "--speed", "9"), "speed is 9"),
    (("--text", "a" * 201), "201 characters"),
    (("--text", "Hi", "--out", "x.xyz"), "allowed: wav"),
    (("--text", "Hi", "--engine", "nothing"), "allowed: auto"),
    (("--text", "Hi", "--threads", "many"), "whole number"),
])
def test_a_wrong_call_is_refused_plainly(p0_wav: Path, capsys: Any, arguments: tuple[str, ...], says: str) -> None:
    assert main(["synth", "--prompt", str(p0_wav), *ENGINE, *arguments]) == 2
    said = capsys.readouterr()
    assert says in said.err and said.err.startswith("error: ")
    assert "Traceback" not in said.err and said.out == ""
    assert not list(Path().rglob("*.wav"))


@pytest.mark.parametrize(("clip", "says"), [
    ("text.wav", "not audio"), ("len_2.9.wav", "2.9 s"), ("missing.wav", "no clip"),
])
def test_a_wrong_clip_is_refused_plainly(clips: Path, capsys: Any, clip: str, says: str) -> None:
    assert main(["synth", "--prompt", str(clips / clip), "--text", "Hi", *ENGINE]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("seed", [9001, 9003, 9006])
def test_failed_work_is_status_one_and_no_file(p0_wav: Path, capsys: Any, seed: int) -> None:
    call = ["synth", "--prompt", str(p0_wav), "--text", "Hi", "--seed", str(seed), *ENGINE]
    assert main(call) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert main([*call, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["type"] in ("bad_audio", "out_of_memory")
    assert not list(Path().rglob("*.wav"))


def test_options_come_from_the_environment_too(p0_wav: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSYVOICE_ENGINE", ENGINE[1])
    monkeypatch.setenv("COSYVOICE_OUTPUTS", "from_env")
    assert main(["synth", "--prompt", str(p0_wav), "--text", "Hello."]) == 0
    assert list(Path("from_env").glob("*.wav"))


# batch


def table(path: Path, *rows: dict[str, str], columns: tuple[str, ...] = ("id", "prompt", "text", "seed")) -> Path:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def row(name: str, text: str = "Hello.", prompt: str = "p.wav", **fields: str) -> dict[str, str]:
    return {"id": name, "prompt": prompt, "text": text, **fields}


def manifest() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out/manifest.jsonl").read_text(encoding="utf-8").splitlines()]


class CountingTone(QuickTone):
    made: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.speaker_encoder = CountingSpeaker()


class CountingSpeaker(ToneSpeaker):
    def encode(self, clip: PromptClip, **options: Any) -> Voice:
        CountingTone.made.append(clip.sha256)
        return super().encode(clip, **options)


def run_batch(jobs: Path, *, engine: tuple[str, str] = ENGINE) -> int:
    return main(["batch", str(jobs), "--out", "out", *engine])


def test_batch_goes_on_past_failures_and_finishes_later(clips: Path, capsys: Any) -> None:
    jobs = table(clips / "jobs.csv", row("a", "Hello.", seed="3"), row("坏", "。。。"), row("noclip", prompt="nope"),
                 row("oom", seed="9006"), row("z", "你好。"))
    assert run_batch(jobs) == 1
    lines = manifest()
    assert [line["id"] for line in lines] == ["a", "坏", "noclip", "oom", "z"]
    assert [line["error"] is None for line in lines] == [True, False, False, False, True]
    assert lines[0] | {"rtf": 0, "first_audio_ms": 0} == {
        "id": "a", "path": "a.wav", "seed": 3, "engine": "tone", "device": "cpu", "duration_s": lines[0]["duration_s"],
        "rtf": 0, "first_audio_ms": 0, "warnings": lines[0]["warnings"], "error": None,
        "fingerprint": lines[0]["fingerprint"]}
    first = Path("out/a.wav").stat().st_mtime_ns
    jobs = table(clips / "jobs.csv", row("a", "Hello.", seed="3"), row("坏", "好。"), row("noclip"),
                 row("oom", seed="4"), row("z", "你好！再见。"))
    capsys.readouterr()
    assert run_batch(jobs) == 0
    assert "1 of 5 rows are finished already" in capsys.readouterr().err
    assert Path("out/a.wav").stat().st_mtime_ns == first
    assert [(line["id"], line["error"]) for line in manifest()] == \
        [(name, None) for name in ("a", "坏", "noclip", "oom", "z")]
    assert sorted(path.name for path in Path("out").iterdir()) == \
        sorted(["a.wav", "坏.wav", "noclip.wav", "oom.wav", "z.wav", "manifest.jsonl"])


def test_a_lost_wav_or_a_cut_manifest_line_is_made_again(clips: Path) -> None:
    jobs = table(clips / "jobs.csv", row("a", seed="1"), row("b", seed="2"))
    assert run_batch(jobs) == 0
    before = {name: frames(Path(f"out/{name}.wav")) for name in "ab"}
    Path("out/a.wav").unlink()
    text = Path("out/manifest.jsonl").read_text(encoding="utf-8")
    Path("out/manifest.jsonl").write_text(text[:-20], encoding="utf-8")
    assert run_batch(jobs) == 0
    assert {name: frames(Path(f"out/{name}.wav")) for name in "ab"} == before
    assert [line["id"] for line in manifest()] == ["a", "b"]


def test_rows_of_one_clip_share_its_voice(clips: Path) -> None:
    CountingTone.made.clear()
    jobs = table(clips / "jobs.csv", row("a"), row("b"), row("c", prompt="c.flac"),
                 row("d", prompt=str(clips / "p.wav")))
    assert run_batch(jobs, engine=("--engine", "test_cli:CountingTone")) == 0
    assert len(CountingTone.made) == len(set(CountingTone.made)) <= 2


@pytest.mark.parametrize(("names", "says"), [
    (("a", "a"), "Line 3: the id 'a' is used already in line 2"),
    (("a", "A"), "used already"), (("",), "is empty"), (("../x",), "not safe"), (("a/b",), "not safe"),
    ((".hidden",), "not safe"), (("x.",), "not safe"), (("CON",), "reserved"), (("x" * 101,), "too long"),
])
def test_ids_that_make_no_file_name_stop_the_batch_before_it_begins(
    clips: Path, capsys: Any, names: tuple[str, ...], says: str
) -> None:
    assert run_batch(table(clips / "jobs.csv", *[row(name) for name in names])) == 2
    assert says in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.parametrize(("content", "says"), [
    ("id,text\na,b\n", "lacks prompt"), ("id,prompt,text,mood\na,b,c,d\n", "invents a column (mood)"),
    ("id,prompt,text\na,b\n", "Line 2 has more or fewer"), ("id,prompt,text\na,b,c,d\n", "Line 2 has more or fewer"),
    ("id,prompt,text\n", "no rows"), ("", "lacks id, prompt, text"),
])
def test_a_bad_table_says_what_is_wrong(tmp_path: Path, capsys: Any, content: str, says: str) -> None:
    (tmp_path / "jobs.csv").write_text(content)
    assert run_batch(tmp_path / "jobs.csv") == 2
    assert says in capsys.readouterr().err


# the small commands


def test_normalize_prints_what_goes_to_the_tokenizer(capsys: Any) -> None:
    assert main(["normalize", "请把书[h][uán]给图书馆。", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"segments", "warnings"}
    assert "[h][uán]" in "".join(report["segments"])
    assert main(["normalize", "。。。"]) == 2


def test_a_console_without_the_characters_prints_all_the_same() -> None:
    text = "今天很开心😂，𠮷野家。"
    results = []
    for encoding in ("utf-8", "gbk:strict"):
        environ = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
        call = [sys.executable, "-m", "cosyvoice_app", "normalize", text]
        plain = subprocess.run(call, capture_output=True, cwd=ROOT, env=environ, timeout=60)
        assert plain.returncode == 0 and b"Traceback" not in plain.stderr
        done = subprocess.run([*call, "--json"], capture_output=True, cwd=ROOT, env=environ, timeout=60)
        results.append(json.loads(done.stdout.decode(encoding.partition(":")[0])))
    assert results[0] == results[1]


def test_check_prompt_tells_good_from_bad(clips: Path, capsys: Any) -> None:
    assert main(["check-prompt", str(clips / "p.wav"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["duration_s"] == pytest.approx(6.0, abs=0.1)
    assert main(["check-prompt", str(clips / "len_15.1.wav"), "--json"]) == 2
    assert not json.loads(capsys.readouterr().out)["ok"]
    assert main(["check-prompt", str(clips / "text.wav")]) == 2
    assert "not audio" in capsys.readouterr().err


def test_voices_from_saving_to_speaking_to_moving_house(p0_wav: Path, capsys: Any) -> None:
    here, there = ("--voices", "here"), ("--voices", "there")
    assert main(["voices", "add", str(p0_wav), "--name", "Anna", "--json", *here]) == 0
    (saved,) = json.loads(capsys.readouterr().out)["voices"]
    say = ["synth", "--text", "Hello.", "--seed", "3", *ENGINE]
    assert main([*say, "--voice", saved["id"], "--out", "saved.wav", *here]) == 0
    assert main([*say, "--prompt", str(p0_wav), "--out", "clip.wav"]) == 0
    assert frames(Path("saved.wav")) == frames(Path("clip.wav"))
    assert main(["voices", "export", "all.zip", *here]) == 0
    assert main(["voices", "import", "all.zip", *there]) == 0
    assert main(["voices", "remove", saved["id"], *there]) == 0
    assert main(["voices", "remove", saved["id"], *there]) == 2
    capsys.readouterr()
    assert main(["voices", "list", *here]) == 0
    assert "Anna" in capsys.readouterr().out


def test_bench_ends_with_one_line_of_json(p0_wav: Path, capsys: Any) -> None:
    assert main(["bench", "latency", "--prompt", str(p0_wav), "--runs", "2", *ENGINE]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["runs"], report["characters"]) == (2, len(DEFAULT_TEXT))
    assert report["rtf"]["min"] <= report["rtf"]["median"] <= report["rtf"]["max"]
    assert main(["bench", "latency", "--prompt", str(p0_wav), "--runs", "0", *ENGINE]) == 2


def test_doctor_names_the_device_or_the_trouble(capsys: Any, tmp_path: Path) -> None:
    cache = ("--cache", str(tmp_path))
    assert main(["doctor", "--json", "--device", "cpu", "--engine", "tone", *cache]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device"] == {"name": "cpu", "why": "asked for by --device cpu"}
    assert main(["doctor", "--device", "cuda:99", *cache]) == 1
    assert "PROBLEM: --device cuda:99 can't be used" in capsys.readouterr().out


@pytest.mark.parametrize("command", [
    "", "synth", "batch", "normalize", "check-prompt", "voices", "assets", "bench", "doctor",
])
def test_every_command_explains_itself(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    assert "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("call", [[], ["nonsense"], ["synth"], ["synth", "--text", "x"], ["batch", "x.csv"]])
def test_a_call_that_makes_no_sense_is_status_two(call: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(call)
    assert end.value.code == 2


def test_a_prompt_that_no_file_system_would_take_costs_its_row_only(tmp_path: Path, p0_wav: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(f"id,prompt,text\nbad,{'a' * 300},Hello.\ngood,{p0_wav},One line\u2028of text.\n", encoding="utf-8")
    arguments = ["batch", str(jobs), "--out", str(tmp_path / "out"), *ENGINE]
    assert main(arguments) == 1
    rows = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_text("utf-8").split("\n") if line]
    assert {r["id"]: bool(r["error"]) for r in rows} == {"bad": True, "good": False}
    made = (tmp_path / "out" / "good.wav").stat().st_mtime_ns
    assert main(arguments) == 1
    assert (tmp_path / "out" / "good.wav").stat().st_mtime_ns == made, "a finished row is not made again"


def test_normalize_cuts_as_the_engine_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = "今天我们去公园里走一走吧。" * 12 + "[breath]好。"
    counts = {}
    for engine in ("lite", "cosyvoice3"):
        assert main(["normalize", text, "--json", "--engine", engine]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert "".join(answer["segments"]) == text
        counts[engine] = (len(answer["segments"]), len(answer["warnings"]))
    assert counts["lite"][0] > counts["cosyvoice3"][0] > 1
    assert (counts["lite"][1], counts["cosyvoice3"][1]) == (1, 0), "the lite engine has no breath"


def test_a_wrong_pronunciation_file_is_an_error_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.toml"
    words.write_text('[zh]\n"好" = "hao"\n', encoding="utf-8")
    assert main(["normalize", "好", "--pronunciations", str(words)]) != 0
    assert "好" in capsys.readouterr().err
    assert main(["normalize", "好", "--pronunciations", str(tmp_path / "none.toml")]) != 0
    assert "no pronunciation file" in capsys.readouterr().err
