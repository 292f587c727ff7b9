"""The SNR estimate follows known noise on real voices, is the prompt doctor's, and says when it can't be trusted."""

from __future__ import annotations

import math

import clips as clip_maker
import numpy as np
import pytest
import torch

from cosyvoice_app.audio.prompt import prompt_from_samples
from cosyvoice_app.audio.snr import estimate_snr, snr_db
from cosyvoice_app.audio.vad import measure
from cosyvoice_app.errors import BadInput


def noise(kind: str, n: int, seed: int) -> np.ndarray:
    """Of unit power; pink falls by 3 dB an octave."""
    white = np.random.default_rng(seed).standard_normal(n)
    if kind == "white":
        return white
    spectrum = np.fft.rfft(white)
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    pink = np.fft.irfft(spectrum, n)
    return pink / pink.std()


def noisy(name: str, kind: str, wanted_db: float, rate_hz: int = 16000, seed: int = 0) -> np.ndarray:
    """Speech with noise so far under the mean power of its active frames."""
    x, source_hz = clip_maker.read(name)
    x = clip_maker.change_rate(x, source_hz, rate_hz)
    active = np.repeat(measure(x, rate_hz).active, rate_hz // 100)[: len(x)]
    level = np.sqrt(np.mean(np.square(x[: len(active)][active])))
    return (x + noise(kind, len(x), seed) * level / 10 ** (wanted_db / 20)).astype(np.float32)


@pytest.mark.parametrize("rate_hz", [8000, 16000])
@pytest.mark.parametrize("kind", ["white", "pink"])
@pytest.mark.parametrize("name", ["p0_en.flac", "p1_zh.flac"])
def test_the_estimate_follows_the_noise(name: str, kind: str, rate_hz: int) -> None:
    """Within 5 dB under white noise and 7 under pink, whose slow swings look like speech; never out of order by 5 dB
    steps but for the swings.
    """
    steps = (0, 5, 10, 15, 20, 25, 30)
    got = np.array(
        [
            snr_db(torch.from_numpy(np.stack([noisy(name, kind, db, rate_hz, seed) for db in steps])), rate_hz).numpy()
            for seed in range(3)
        ]
    )
    assert np.abs(got - steps).max() < (5.0 if kind == "white" else 7.0)
    assert (np.diff(got.mean(axis=0)) > 0).all()


def test_it_is_the_prompt_doctors_number_for_every_clip_of_a_batch() -> None:
    a, b = noisy("p0_en.flac", "white", 12), noisy("p1_zh.flac", "pink", 18)[:60_000]
    batch = torch.full((2, len(a)), math.nan)
    batch[0], batch[1, : len(b)] = torch.from_numpy(a), torch.from_numpy(b)
    found = estimate_snr(batch, 16000, torch.tensor([len(a), len(b)]))
    for clip, one in zip((a, b), found, strict=True):
        assert round(one.db, 1) == prompt_from_samples(clip, 16000).report["snr_db"]
        assert (one.db, one.speech_s, one.weak) == (measure(clip, 16000).snr_db, measure(clip, 16000).speech_s, "")
        assert estimate_snr(torch.from_numpy(clip)[None], 16000) == (one,)


def test_without_speech_there_is_no_number() -> None:
    hiss = torch.from_numpy(0.1 * noise("white", 48_000, 1)).float()
    tone = 0.1 * torch.sin(torch.arange(48_000) * 0.1)
    found = estimate_snr(torch.stack([hiss, tone, torch.zeros(48_000)]), 16000)
    assert all(math.isnan(one.db) and one.weak == "no speech was found" for one in found)
    for n in (0, 1, 100):
        assert snr_db(torch.zeros(1, n), 16000).isnan().all()


def test_pauses_of_digital_zero_make_a_weak_estimate() -> None:
    """A gate leaves nothing to measure noise on. P1's pauses are such: with noise 40 dB under the speech the estimate
    rises, where a true one would fall.
    """
    x, rate_hz = clip_maker.read("p1_zh.flac")
    (gated,) = estimate_snr(torch.from_numpy(x)[None], rate_hz)
    assert "may be far higher" in gated.weak
    (filled,) = estimate_snr(torch.from_numpy(noisy("p1_zh.flac", "white", 40, rate_hz))[None], rate_hz)
    assert filled.weak == ""
    assert filled.db > gated.db + 10


def test_broken_input_is_refused_by_clip() -> None:
    batch = torch.zeros(3, 1000)
    batch[1, 5] = math.inf
    with pytest.raises(BadInput, match="Clip 1 "):
        snr_db(batch, 16000)
    assert snr_db(batch, 16000, torch.tensor([1000, 5, 1000])).shape == (3,)
    with pytest.raises(BadInput, match="numbers of 0 to 1000"):
        snr_db(batch, 16000, torch.tensor([1, 2, 1001]))
    for lengths in ([9, 9, 9], torch.tensor([1.5, 2.0, 3.0]), torch.tensor([[9, 9, 9]])):
        with pytest.raises(BadInput, match="3 whole numbers"):
            snr_db(torch.zeros(3, 1000), 16000, lengths)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="clips, samples"):
        snr_db(torch.zeros(5), 16000)
