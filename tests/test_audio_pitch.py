"""The pitch tracker finds what was put in, at any rate, and calls silence and noise unvoiced."""

from __future__ import annotations

import clips as clip_maker
import numpy as np
import pytest

from cosyvoice_app.audio.pitch import PitchConfig, track_f0
from cosyvoice_app.errors import ConfigError


def harmonics(f0_hz: np.ndarray, rate_hz: int) -> np.ndarray:
    """A buzz with falling harmonics below 4 kHz, following `f0_hz` sample by sample."""
    phase = 2 * np.pi * np.cumsum(f0_hz) / rate_hz
    out = np.zeros(len(f0_hz))
    for k in range(1, 60):
        out += np.where(k * f0_hz < min(4000, rate_hz / 2.2), np.sin(k * phase) / k, 0.0)
    return (0.3 * out / np.abs(out).max()).astype(np.float32)


@pytest.mark.parametrize("rate_hz", [8000, 16000, 22050, 24000, 48000])
@pytest.mark.parametrize(("start_hz", "end_hz"), [(80, 80), (100, 220), (300, 120), (400, 560)])
def test_glides(rate_hz: int, start_hz: float, end_hz: float) -> None:
    n = 2 * rate_hz
    truth = np.geomspace(start_hz, end_hz, n)
    found = track_f0(harmonics(truth, rate_hz), rate_hz)
    assert found.shape == (160,) and found.dtype == np.float32
    at = ((np.arange(160) + 0.5) / 80 * rate_hz).astype(int)
    inner = slice(4, -4)
    assert (found[inner] > 0).all()
    assert np.abs(found[inner] / truth[at][inner] - 1).max() < 0.01


def test_a_bare_sine_has_its_own_pitch() -> None:
    t = np.arange(24000) / 24000
    found = track_f0((0.1 * np.sin(2 * np.pi * 440 * t)).astype(np.float32), 24000)
    assert np.allclose(found[4:-4], 440, rtol=0.003)


def test_a_missing_fundamental_is_still_heard() -> None:
    t = np.arange(24000) / 24000
    x = sum(np.sin(2 * np.pi * 150 * k * t) for k in (2, 3, 4, 5))
    assert np.allclose(track_f0((0.1 * x).astype(np.float32), 24000)[4:-4], 150, rtol=0.005)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_unvoiced(seed: int) -> None:
    noise = np.random.default_rng(seed).standard_normal(48000).astype(np.float32)
    assert (track_f0(0.1 * noise, 24000) > 0).mean() < 0.1


@pytest.mark.parametrize(
    "x",
    [np.zeros(24000, np.float32), np.full(24000, 0.5, np.float32), np.zeros(0, np.float32), np.ones(10, np.float32)],
)
def test_nothing_to_hear_is_unvoiced(x: np.ndarray) -> None:
    assert not track_f0(x, 24000).any()
    assert len(track_f0(x, 24000)) == round(len(x) / 24000 * 80)


def test_pauses_are_unvoiced_and_voiced_parts_are_not() -> None:
    rate_hz = 24000
    buzz = harmonics(np.full(rate_hz, 140.0), rate_hz)
    found = track_f0(np.concatenate([buzz, np.zeros(rate_hz, np.float32), buzz]), rate_hz)
    assert (found[4:76] > 0).all() and not found[84:156].any() and (found[164:236] > 0).all()


def test_loudness_does_not_matter() -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    assert np.allclose(track_f0(x, rate_hz), track_f0(0.01 * x, rate_hz), rtol=1e-4)


def test_the_rate_of_the_recording_does_not_matter() -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    a, b = track_f0(x, rate_hz), track_f0(clip_maker.change_rate(x, rate_hz, 16000), 16000)
    both = (a > 0) & (b > 0)
    assert ((a > 0) == (b > 0)).mean() > 0.97 and np.median(np.abs(a[both] / b[both] - 1)) < 0.002


@pytest.mark.parametrize("frame_rate_hz", [40.0, 50.0, 80.0, 100.0])
def test_frames_are_where_they_say(frame_rate_hz: float) -> None:
    rate_hz = 24000
    truth = np.geomspace(100, 200, 3 * rate_hz)
    found = track_f0(harmonics(truth, rate_hz), rate_hz, PitchConfig(frame_rate_hz=frame_rate_hz))
    assert len(found) == round(3 * frame_rate_hz)
    at = ((np.arange(len(found)) + 0.5) / frame_rate_hz * rate_hz).astype(int)
    assert np.abs(found[4:-4] / truth[at][4:-4] - 1).max() < 0.01


def test_limits_are_kept() -> None:
    t = np.arange(48000) / 24000
    high = (0.3 * np.sin(2 * np.pi * 500 * t)).astype(np.float32)
    found = track_f0(high, 24000, PitchConfig(ceiling_hz=300.0))
    assert found.max() <= 300.0


def test_a_real_man_and_a_real_woman() -> None:
    """Medians from Praat's own tracker (Praat 6.4, defaults, 12.5 ms steps): 142.8 and 181.8 Hz."""
    for name, median_hz in (("p0_en.flac", 142.8), ("p1_zh.flac", 181.8)):
        x, rate_hz = clip_maker.read(name)
        found = track_f0(x, rate_hz)
        assert np.median(found[found > 0]) == pytest.approx(median_hz, rel=0.02)


@pytest.mark.parametrize("options", [{"floor_hz": 0.0}, {"floor_hz": 700.0}, {"candidates": 1}, {"frame_rate_hz": 0.0}])
def test_impossible_configs(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        PitchConfig(**options)  # type: ignore[arg-type]
