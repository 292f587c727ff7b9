"""The prompt doctor: limits by decoded content, measures that match what was built into the clip, refusals with
numbers.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import clips as clip_maker
import numpy as np
import pytest

from cosyvoice_app.audio.prompt import PromptRefused, examine, load_prompt, prompt_from_samples
from cosyvoice_app.errors import AppError, PromptError
from cosyvoice_app.types import PromptClip


def _p0() -> tuple[np.ndarray, int]:
    return clip_maker.read("p0_en.flac")


def _wav(samples: np.ndarray, rate_hz: int = 24000, subtype: str = "FLOAT") -> bytes:
    return clip_maker.wav_bytes(np.asarray(samples, np.float32), rate_hz, subtype)


def test_a_good_clip_has_no_warnings(p0: PromptClip, p1: PromptClip) -> None:
    for clip in (p0, p1):
        assert clip.warnings == () and clip.report["ok"]
        assert clip.duration_s == 6.0 and clip.rate_hz == 24000
        assert clip.report["leading_silence_s"] == pytest.approx(0.3, abs=0.05)
        assert clip.report["trailing_silence_s"] == pytest.approx(0.3, abs=0.05)
        assert not clip.report["stops_mid_sound"] and not clip.report["starts_mid_sound"]


@pytest.mark.parametrize("seconds", [3.0, 15.0])
def test_limits_are_inclusive(clips: Path, seconds: float) -> None:
    assert load_prompt(clips / f"len_{seconds}.wav").duration_s == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize("seconds", [2.9, 15.1, 31.0, 120.0])
def test_outside_the_limits_is_refused_with_numbers_and_fast(clips: Path, seconds: float) -> None:
    start = time.perf_counter()
    with pytest.raises(PromptRefused) as caught:
        load_prompt(clips / f"len_{seconds}.wav")
    assert time.perf_counter() - start < 2.0
    message = caught.value.message
    assert f"{seconds:.1f} s" in message and "3 to 15 s" in message
    assert caught.value.report["duration_s"] == pytest.approx(seconds, abs=0.01)
    assert caught.value.http_status == 400 and caught.value.type == "invalid_prompt"


def test_stereo_counts_its_time_once(clips: Path) -> None:
    assert load_prompt(clips / "st_48000.wav").duration_s == pytest.approx(6.0, abs=0.01)


def test_cut_file_is_judged_by_what_it_holds(clips: Path) -> None:
    with pytest.raises(PromptError, match=r"2\.0 s"):
        load_prompt(clips / "cut.wav")


@pytest.mark.parametrize("seconds", [15.1, 31.0, 120.0])
def test_the_offered_stretch_is_itself_a_good_clip(clips: Path, seconds: float) -> None:
    file = clips / f"len_{seconds}.wav"
    report = examine(file)
    start, end = report["suggested_window_s"]
    assert f"{start:.1f} to {end:.1f} s" in report["error"]
    clip = load_prompt(file, window_s=(start, end))
    assert 3.0 <= clip.duration_s <= 15.0
    assert not clip.report["stops_mid_sound"] and not clip.report["starts_mid_sound"]
    assert clip.report["speech_s"] > 8.0


def test_the_offered_stretch_avoids_the_silent_part() -> None:
    x, rate_hz = _p0()
    report = examine(_wav(np.concatenate([np.zeros(30 * rate_hz), x, x, np.zeros(30 * rate_hz)])))
    start, end = report["suggested_window_s"]
    assert start > 29.5 and end < 42.5


def test_speech_without_a_pause_still_gets_an_offer() -> None:
    rng = np.random.default_rng(0)
    report = examine(_wav(0.1 * rng.standard_normal(24000 * 40)))
    start, end = report["suggested_window_s"]
    assert end - start == pytest.approx(15.0, abs=0.05)


@pytest.mark.parametrize("window", [(-1.0, 5.0), (5.0, 5.0), (2.0, 90.0), (float("nan"), 4.0)])
def test_an_impossible_stretch_is_refused(clips: Path, window: tuple[float, float]) -> None:
    with pytest.raises(PromptError, match="stretch"):
        load_prompt(clips / "len_31.0.wav", window_s=window)


@pytest.mark.parametrize(
    ("rate_hz", "warns"),
    [(8000, True), (11025, True), (16000, False), (22050, False), (44100, False), (48000, False), (96000, False)],
)
def test_low_rates_warn_with_the_measured_rate(clips: Path, rate_hz: int, warns: bool) -> None:
    clip = load_prompt(clips / f"sr_{rate_hz}.wav")
    assert clip.rate_hz == rate_hz
    assert ("low_rate" in clip.report["findings"]) == warns
    assert not warns or any(str(rate_hz) in w and "16000" in w for w in clip.warnings)


def test_a_rate_under_the_minimum_is_refused_with_both_numbers() -> None:
    with pytest.raises(PromptError, match=r"6000 .* 8000"):
        load_prompt(_wav(clip_maker.change_rate(_p0()[0], 24000, 6000), 6000))


def test_identity_is_the_content_not_the_container_or_name(clips: Path) -> None:
    plain = load_prompt(clips / "p.wav")
    assert {load_prompt(clips / name).sha256 for name in ("c.flac", "noext", "wav_named.mp3")} == {plain.sha256}
    assert load_prompt((clips / "p.wav").read_bytes(), name_hint="🎤é.wav").sha256 == plain.sha256
    other = prompt_from_samples(plain.samples, 24001)
    assert other.sha256 != plain.sha256


@pytest.mark.parametrize(
    "name",
    ["睡前 故事(1).wav", "🎤é.wav", "🎤e\u0301.wav", "a'b\";$(touch pwned).wav", "x" * 236 + ".wav", "CON.wav", ".wav"],
)
def test_names_never_matter(tmp_path: Path, clips: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes((clips / "p.wav").read_bytes())
    assert load_prompt(file, name_hint=name).sha256 == load_prompt(clips / "p.wav").sha256
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(bad: float) -> None:
    x, _ = _p0()
    x[1000] = bad
    with pytest.raises(PromptError, match="1 samples that are not finite"):
        load_prompt(_wav(x))


def test_float_wav_over_full_scale_is_scaled_not_cut() -> None:
    x, rate_hz = _p0()
    clip = load_prompt(_wav(x / np.abs(x).max() * 3.0))
    assert np.abs(clip.samples).max() == pytest.approx(1.0)
    assert np.corrcoef(clip.samples, x)[0, 1] > 0.9999
    assert "clipped" not in clip.report["findings"]
    assert rate_hz == clip.rate_hz


def test_silence_is_refused_with_its_level() -> None:
    for level in (0.0, 1e-4):
        with pytest.raises(PromptRefused, match="silent.*dBFS"):
            load_prompt(_wav(level * np.sin(np.arange(24000 * 5))))


def test_a_cough_in_silence_is_not_speech_enough() -> None:
    x = np.zeros(24000 * 5, np.float32)
    x[48000 : 48000 + 4800] = 0.5 * np.random.default_rng(1).standard_normal(4800)
    with pytest.raises(PromptRefused, match=r"Only 0\.\d s"):
        load_prompt(_wav(np.clip(x, -1, 1)))


def test_clipping_is_measured() -> None:
    x, _ = _p0()
    x = x / np.abs(x).max()
    clean, hot = load_prompt(_wav(x)), load_prompt(_wav(np.clip(x * 8, -1, 1)))
    assert clean.report["clipping_share"] == 0.0 and "clipped" not in clean.report["findings"]
    assert hot.report["clipping_share"] > 0.005 and "clipped" in hot.report["findings"]


@pytest.mark.parametrize("snr_db", [0, 5, 10, 20, 30])
def test_snr_estimate_follows_the_noise(snr_db: int) -> None:
    x, _ = _p0()
    noise = np.random.default_rng(2).standard_normal(len(x)).astype(np.float32)
    active = np.abs(x) > 0.01
    gain = np.sqrt(np.mean(x[active] ** 2)) / 10 ** (snr_db / 20)
    clip = load_prompt(_wav(x + gain * noise))
    assert clip.report["snr_db"] == pytest.approx(snr_db, abs=4.0)
    assert ("noisy" in clip.report["findings"]) == (clip.report["snr_db"] < 15)


def test_a_clip_that_stops_mid_vowel_is_noticed() -> None:
    x, rate_hz = _p0()
    level = np.convolve(x**2, np.ones(480) / 480, "same")
    loud = int(np.argmax(level[4 * rate_hz :]) + 4 * rate_hz)
    report = load_prompt(_wav(x[:loud])).report
    assert report["stops_mid_sound"] and "stops_mid_sound" in report["findings"]
    backwards = load_prompt(_wav(x[:loud][::-1])).report
    assert backwards["starts_mid_sound"] and not backwards["stops_mid_sound"]


def test_long_silence_at_an_end_is_noticed() -> None:
    x, rate_hz = _p0()
    clip = load_prompt(_wav(np.concatenate([x, np.zeros(3 * rate_hz)])))
    assert clip.report["trailing_silence_s"] == pytest.approx(3.3, abs=0.05)
    assert "long_silence" in clip.report["findings"]


def test_reports_are_json_and_never_raise(clips: Path) -> None:
    for file in clips.iterdir():
        report = json.loads(json.dumps(examine(file), allow_nan=False))
        assert report["ok"] == (report["error"] is None)
        assert len(report["findings"]) == len(report["warnings"])


@pytest.mark.parametrize(
    "array", [np.float32(0.5), np.zeros(0), np.zeros((2, 2, 2)), np.zeros(10, complex), np.array(["a", "b"])]
)
def test_arrays_that_are_no_clip(array: np.ndarray) -> None:
    with pytest.raises(PromptError):
        prompt_from_samples(array, 24000)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float64"])
def test_arrays_of_any_sample_type(dtype: str) -> None:
    x, rate_hz = _p0()
    scaled = {"uint8": x * 127 + 128, "int16": x * 32767, "int32": x.astype(np.float64) * (2**31 - 1), "float64": x}[
        dtype
    ]
    clip = prompt_from_samples(scaled.astype(dtype), rate_hz)
    assert np.allclose(clip.samples, x, atol=0.01)
    stereo = prompt_from_samples(np.stack([scaled, scaled], 1).astype(dtype), rate_hz)
    assert stereo.report["channels"] == 2 and stereo.duration_s == clip.duration_s


def test_every_refusal_crosses_the_process_boundary(clips: Path) -> None:
    for name in ("len_2.9.wav", "text.wav", "zero.wav"):
        with pytest.raises(PromptError) as caught:
            load_prompt(clips / name)
        again = AppError.from_dict(caught.value.to_dict())
        assert type(again) is PromptError and again.message == caught.value.message
