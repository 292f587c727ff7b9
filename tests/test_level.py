"""The audio gate: broken audio never passes, good audio passes untouched."""

from __future__ import annotations

import numpy as np
import pytest

from cosyvoice_app.audio.level import dbfs, frame_rms, judge, trim_silence
from cosyvoice_app.engines.tone import tone
from cosyvoice_app.errors import BadAudio
from cosyvoice_app.types import Arpabet, Audio, Pause, Segment, Text

RATE = 24_000
SEGMENT = Segment("hello there", (Text("hello there", "en"),))


def speech(duration_s: float = 1.0, amplitude: float = 0.3) -> Audio:
    return Audio(tone(200.0, duration_s, amplitude=amplitude), RATE)


@pytest.mark.parametrize("amplitude", [0.0316, 0.3, 1.0])
def test_good_audio_keeps_its_very_samples(amplitude: float) -> None:
    audio = speech(amplitude=amplitude)
    assert np.array_equal(judge(audio, SEGMENT).samples, audio.samples)


def test_only_a_peak_over_full_scale_is_scaled_and_then_to_one() -> None:
    loud = Audio(speech().samples * 5.0, RATE)
    judged = judge(loud, SEGMENT)
    assert np.abs(judged.samples).max() == pytest.approx(1.0)
    assert np.allclose(judged.samples * np.abs(loud.samples).max(), loud.samples, atol=1e-5)


@pytest.mark.parametrize(("spoil", "cause"), [
    (lambda x: x * np.nan, "not finite"),
    (lambda x: np.where(np.arange(len(x)) == 7, np.inf, x), "1 of 24000"),
    (lambda x: x * 0, "only zeros"),
    (lambda x: x * 1e-4, "silence"),
    (lambda x: x[:0], "no samples"),
    (lambda x: x[:5], "0.0002083 s"),
    (lambda x: np.stack([x, x]), "one channel"),
])
def test_broken_audio_is_refused_with_the_cause(spoil: object, cause: str) -> None:
    assert callable(spoil)
    with pytest.raises(BadAudio, match="no usable audio") as caught:
        judge(Audio(spoil(speech().samples), RATE), SEGMENT)
    assert cause in caught.value.message


def test_length_is_judged_by_what_is_spoken() -> None:
    long_text = "word " * 60
    with pytest.raises(BadAudio, match="characters"):
        judge(speech(0.5), Segment(long_text, (Text(long_text, "en"),)))
    with pytest.raises(BadAudio, match="characters"):
        judge(speech(30.0), Segment("hi", (Text("hi", "en"),)))
    symbols = ("M", "AY0", "N", "AH0", "T")
    tag = "".join(f"[{symbol}]" for symbol in symbols) * 30
    judge(speech(0.4), Segment(tag, (Arpabet(symbols * 30),)))  # one word, however long its spelling
    judge(speech(14.0), Segment("hi[pause 8s]", (Text("hi", "en"), Pause(8000))))


def test_trimming_keeps_half_a_second_before_and_less_than_one_after() -> None:
    silence = np.zeros(2 * RATE, dtype=np.float32)
    padded = Audio(np.concatenate([silence, speech().samples, silence]), RATE)
    trimmed = trim_silence(padded)
    assert trimmed.duration_s == pytest.approx(1.0 + 0.5 + 0.8, abs=0.05)
    assert np.array_equal(trim_silence(speech()).samples, speech().samples)
    quiet = Audio(silence, RATE)
    assert trim_silence(quiet) is quiet


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_cut_in_a_hum_does_not_click(mirrored: bool) -> None:
    hum = (0.012 * np.cos(2 * np.pi * 100 * np.arange(2 * RATE) / RATE)).astype(np.float32)  # -41 dBFS
    audio = np.concatenate([speech().samples, hum])
    cut = trim_silence(Audio(audio[::-1].copy() if mirrored else audio, RATE)).samples
    cut = cut[::-1] if mirrored else cut
    assert len(cut) < len(audio)
    after = np.concatenate([cut[-round(0.3 * RATE) :], np.zeros(round(0.1 * RATE), np.float32)])
    assert np.abs(np.diff(after, 2)).max() <= 3 * np.abs(np.diff(hum, 2)).max(), "no corner sharper than the hum's own"
    assert np.array_equal(cut[: RATE], audio[:RATE]), "an end that wasn't cut is left as it is"


def test_frame_rms_counts_a_short_last_frame_by_its_own_length() -> None:
    ones = np.ones(round(0.02 * RATE) + 3, dtype=np.float32)
    assert frame_rms(ones, RATE) == pytest.approx([1.0, 1.0])
    assert dbfs(0.1) == pytest.approx(-20.0)
