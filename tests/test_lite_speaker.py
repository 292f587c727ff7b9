"""Speaker statistics and the table of stock voices."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cosyvoice_app.engines.lite.speaker import measure, robust_f0
from cosyvoice_app.engines.lite.styles import PITCH_FREE_SEMITONES, StockVoice, StyleTable
from cosyvoice_app.errors import AssetError, BadInput
from cosyvoice_app.types import FloatArray

RATE_HZ = 24_000


def babble(syllables_per_s: float, f0_hz: float, seconds: float = 4.0, gain: float = 0.2) -> FloatArray:
    """Voiced bumps at a known rate; pitch swings by 4 semitones in all."""
    t = np.arange(int(RATE_HZ * seconds)) / RATE_HZ
    pitch = f0_hz * 2 ** (2 / 12 * np.sin(2 * math.pi * 0.5 * t))
    phase = 2 * math.pi * np.cumsum(pitch) / RATE_HZ
    voice = sum(np.sin(h * phase) / h for h in range(1, 11))
    envelope = 0.05 + 0.95 * np.sin(math.pi * syllables_per_s * t) ** 2
    return np.asarray(gain * voice * envelope, np.float32)


@pytest.mark.parametrize("rate", [3.0, 5.0])
@pytest.mark.parametrize("f0_hz", [110.0, 220.0])
def test_pitch_range_and_rate_of_a_known_signal(rate: float, f0_hz: float) -> None:
    stats = measure(babble(rate, f0_hz), RATE_HZ)
    assert stats.f0_median_hz == pytest.approx(f0_hz, rel=0.03)
    assert 3.0 < stats.f0_range_semitones < 4.2
    assert stats.syllables_per_s * stats.speech_s == pytest.approx(rate * 4.0, abs=1.5)


def test_pauses_and_level_do_not_change_rate_or_pitch() -> None:
    speech = babble(4.0, 150.0, 2.0)
    gap = np.zeros(RATE_HZ, np.float32)
    plain, paused = measure(speech, RATE_HZ), measure(np.concatenate([gap, speech, gap, speech, gap]), RATE_HZ)
    quiet = measure(speech * np.float32(0.1), RATE_HZ)
    for other in (paused, quiet):
        assert other.syllables_per_s == pytest.approx(plain.syllables_per_s, rel=0.1)
        assert other.f0_median_hz == pytest.approx(plain.f0_median_hz, rel=0.01)
    assert plain.level_dbfs - quiet.level_dbfs == pytest.approx(20.0, abs=0.2)
    assert paused.level_dbfs == pytest.approx(plain.level_dbfs, abs=0.5)


def test_noise_has_no_pitch_and_no_syllables() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, RATE_HZ).astype(np.float32)
    stats = measure(noise, RATE_HZ, np.zeros(80, np.float32))
    assert (stats.f0_median_hz, stats.f0_range_semitones, stats.syllables_per_s) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("samples", [np.zeros(0, np.float32), np.zeros(5, np.float32), np.zeros(RATE_HZ, np.float32)])
def test_nothing_to_measure_gives_zeros(samples: FloatArray) -> None:
    stats = measure(samples, RATE_HZ)
    assert stats.f0_median_hz == 0.0 and stats.syllables_per_s == 0.0 and math.isfinite(stats.level_dbfs)


def test_octave_errors_do_not_move_the_median_or_the_range() -> None:
    f0 = 120.0 * 2 ** (np.linspace(-2, 2, 200) / 12)
    clean = robust_f0(f0)
    faulty = robust_f0(np.concatenate([f0, np.zeros(50), f0[:20] * 2, f0[:20] / 2]))
    assert clean[0] == pytest.approx(120.0, rel=0.01) and clean[1] == pytest.approx(3.2, abs=0.1)
    assert faulty == pytest.approx(clean, rel=0.02)


def voice(name: str, f0_hz: float, language: str = "en-us", quality_mos: float = 3.5) -> StockVoice:
    return StockVoice(name, language, "female", f0_hz, 5.0, 4.0, 12.0, quality_mos)


def table() -> StyleTable:
    voices = (voice("low", 100.0), voice("high", 200.0), voice("zh", 150.0, "zh"))
    return StyleTable(voices, torch.arange(3.0)[:, None].expand(3, 256), torch.eye(3, 192))


def test_nearest_by_speaker_then_by_pitch() -> None:
    between = torch.zeros(192)
    between[:2] = 1.0
    assert table().nearest(torch.eye(192)[1])[0][0].name == "high"
    assert table().nearest(between, 105.0)[0][0].name == "low"
    assert table().nearest(between, 190.0)[0][0].name == "high"
    within = 100.0 * 2 ** (PITCH_FREE_SEMITONES / 12 * 0.99)
    scores = {v.name: score for v, score in table().nearest(between, within, count=3)}
    assert scores["low"] == pytest.approx(math.sqrt(0.5))


def test_a_rough_voice_must_be_much_nearer() -> None:
    rough = StyleTable((voice("rough", 100.0, quality_mos=2.6), voice("clean", 100.0)), torch.zeros(2, 256),
                       torch.eye(2, 192))
    nearly = torch.zeros(192)
    nearly[0], nearly[1] = 1.2, 1.0
    assert rough.nearest(nearly, 100.0)[0][0].name == "clean"
    assert rough.nearest(torch.eye(192)[0], 100.0)[0][0].name == "rough"


def test_languages_keep_only_their_voices() -> None:
    assert [v.name for v, _ in table().nearest(torch.eye(192)[0], count=9, languages=("zh",))] == ["zh"]
    with pytest.raises(BadInput, match="xx"):
        table().nearest(torch.eye(192)[0], languages=("xx",))


def test_unknown_voice_lists_the_known() -> None:
    assert table().style("high")[0] == 1.0
    with pytest.raises(BadInput, match="low, high, zh"):
        table().style("alto")


def test_committed_table_is_whole() -> None:
    found = StyleTable.load()
    assert len(found.voices) == 54 and len({v.name for v in found.voices}) == 54
    assert torch.isfinite(found.styles).all()
    torch.testing.assert_close(found.speakers.norm(dim=1), torch.ones(54), atol=1e-3, rtol=0)
    assert sum(v.language == "zh" for v in found.voices) == 8
    medians = {g: np.median([v.f0_median_hz for v in found.voices if v.gender == g]) for g in ("female", "male")}
    assert 150 < medians["female"] < 260 and 80 < medians["male"] < 160
    for v, vector in zip(found.voices, found.speakers, strict=True):
        assert found.nearest(vector, v.f0_median_hz)[0][0].name == v.name


def test_two_files_that_disagree_are_refused(tmp_path: Path) -> None:
    (tmp_path / "styles.json").write_text(json.dumps({"voices": []}))
    save_file({"styles": torch.zeros(1, 256), "speakers": torch.zeros(1, 192)}, tmp_path / "styles.safetensors")
    with pytest.raises(AssetError, match="Reinstall"):
        StyleTable.load(tmp_path)
    (tmp_path / "styles.json").unlink()
    with pytest.raises(AssetError, match="damaged"):
        StyleTable.load(tmp_path)
