"""Recognising a clip's words is optional: what is missing is named with its remedy, and torch never comes along."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cosyvoice_app import assets
from cosyvoice_app.audio import recognise
from cosyvoice_app.cli.main import main
from cosyvoice_app.errors import AssetError

ROOT = Path(__file__).parent.parent
SAMPLES = np.zeros(16_000, np.float32)


def heard(text: str, logprob: float = -0.3, no_speech: float = 0.0) -> Any:
    return SimpleNamespace(text=text, avg_logprob=logprob, no_speech_prob=no_speech)


@pytest.fixture
def whisper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A recogniser in place of the package: hears what `segments` says, remembers what it was given."""
    double = SimpleNamespace(segments=[], audio=None)

    def transcribe(audio: np.ndarray, **_: Any) -> Any:
        double.audio = audio
        return iter(double.segments), None

    monkeypatch.setattr(recognise, "why_not", lambda cache=None: "")
    monkeypatch.setattr(recognise, "_model", lambda folder: SimpleNamespace(transcribe=transcribe))
    monkeypatch.setattr(assets, "path", lambda name, *, cache=None: tmp_path)
    return double


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognise, "PACKAGE", "no_such_package")
    assert "requirements-recognise.txt" in recognise.why_not()
    with pytest.raises(AssetError, match="faster-whisper, which is not installed"):
        recognise.recognise_english(SAMPLES, 16_000)


def test_a_missing_model_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recognise, "PACKAGE", "json")
    assert "assets fetch whisper-tiny-en" in recognise.why_not(tmp_path)
    with pytest.raises(AssetError, match="assets fetch whisper-tiny-en"):
        recognise.recognise_english(SAMPLES, 16_000, cache=tmp_path)


def test_any_rate_reaches_the_model_at_16_khz(whisper: Any) -> None:
    for rate_hz in (16_000, 24_000, 44_100):
        recognise.recognise_english(np.zeros(rate_hz, np.float32), rate_hz)
        assert whisper.audio.shape == (16_000,) and whisper.audio.dtype == np.float32


@pytest.mark.parametrize(("segments", "words"), [
    ([heard(" Good morning,"), heard(" all. ")], "Good morning, all."),
    ([heard("Thank you for watching.", logprob=-1.1)], None),
    ([heard("Thank you.", no_speech=0.9)], None),
    ([heard(" Good morning."), heard("Bye.", logprob=-2.0)], "Good morning."),
    ([heard("  ")], None),
    ([], None),
], ids=["joined", "unsure", "no-speech", "partly-sure", "blank", "silence"])
def test_only_words_the_model_is_sure_of_are_given(whisper: Any, segments: list[Any], words: str | None) -> None:
    whisper.segments = segments
    assert recognise.recognise_english(SAMPLES, 16_000) == words


def test_check_prompt_prints_the_words(whisper: Any, p0_wav: Path, capsys: Any) -> None:
    whisper.segments = [heard(" And always that same pretext.")]
    assert main(["check-prompt", str(p0_wav), "--words"]) == 0
    assert "words: And always that same pretext." in capsys.readouterr().out
    assert main(["check-prompt", str(p0_wav), "--words", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["words"] == "And always that same pretext."
    assert main(["check-prompt", str(p0_wav), "--json"]) == 0
    assert "words" not in json.loads(capsys.readouterr().out)


def test_check_prompt_without_the_recogniser_says_how_to_get_it(
    p0_wav: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognise, "PACKAGE", "no_such_package")
    assert main(["check-prompt", str(p0_wav), "--words"]) == 1
    assert "requirements-recognise.txt" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(bool(recognise.why_not()), reason="faster-whisper or its model is not installed")
def test_a_real_clip_is_understood_without_torch(p0_wav: Path, p1_wav: Path) -> None:
    code = (
        "import sys, pathlib; from cosyvoice_app.audio.prompt import load_prompt\n"
        "from cosyvoice_app.audio.recognise import recognise_english\n"
        "clips = [load_prompt(pathlib.Path(p)) for p in sys.argv[1:]]\n"
        "print([recognise_english(c.samples, c.rate_hz) for c in clips], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(p0_wav), str(p1_wav)], cwd=ROOT, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "same pretext is offered" in done.stdout and done.stdout.strip().endswith("None] False")


def test_nothing_heavy_is_imported_until_it_is_used() -> None:
    code = "import sys, cosyvoice_app.audio.recognise; print({'torch', 'faster_whisper'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_extra_is_declared() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "optional-dependencies.recognise" in text and (ROOT / "requirements-recognise.txt").is_file()
    assert find_spec("cosyvoice_app.audio.recognise") is not None
