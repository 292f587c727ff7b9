"""Aligning a clip to its words: the warping path's laws, the measures, and the whole on a small and on the real
model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache

import clips as clip_maker
import numpy as np
import pytest
import torch
from torch import Tensor

from cosyvoice_app.engines.lite import shape
from cosyvoice_app.engines.lite.acoustic import AcousticNet
from cosyvoice_app.engines.lite.align import Alignment, align
from cosyvoice_app.engines.lite.config import LiteConfig
from cosyvoice_app.engines.lite.vocoder import Decoder
from cosyvoice_app.engines.lite.warp import Bools, Floats, Pauses, warp

RATE_HZ = 24_000


def no_pauses(n: int, m: int) -> Pauses:
    return Pauses(np.zeros(n, bool), np.zeros(n, bool), np.zeros(m, bool), 1.0)


def least_cost(d: Floats, p: Pauses) -> float:
    """The same recursion, cell by cell, as it is written in the paper."""

    @cache
    def to(i: int, j: int) -> float:
        if i < 0 or j < 0:
            return math.inf
        if i == j == 0:
            return float(2 * d[0, 0])
        ways = [to(i - 1, j - 1) + 2 * d[i, j]]
        if j > 0:
            ways.append(to(i - 1, j - 2) + 2 * d[i, j - 1] + d[i, j])
        if i > 0:
            ways.append(to(i - 2, j - 1) + 2 * d[i - 1, j] + d[i, j])
        if p.row_waits[i] and p.column_silent[j]:
            ways.append(to(i, j - 1) + p.price)
        if p.row_silent[i]:
            ways.append(to(i - 1, j) + p.price)
        return float(min(ways))

    return to(d.shape[0] - 1, d.shape[1] - 1)


def cost_of(path: np.ndarray, d: Floats) -> float:
    """What a path without pauses costs: a diagonal step twice its cell's distance, a straight one once."""
    steps = np.diff(path, axis=0).sum(axis=1)
    return float(2.0 * d[0, 0] + (steps * d[tuple(path[1:].T)]).sum())


@pytest.mark.parametrize("seed", range(12))
def test_the_path_is_the_cheapest_there_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 12)), int(rng.integers(2, 12))
    d = rng.random((n, m))
    pauses = no_pauses(n, m)
    path, best = warp(d, pauses), least_cost(d, pauses)
    if path is None:
        assert best == math.inf and not (n - 1) / 2 <= m - 1 <= 2 * (n - 1)
    else:
        assert path[0].tolist() == [0, 0] and path[-1].tolist() == [n - 1, m - 1]
        assert cost_of(path, d) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(8))
def test_pauses_cost_their_price_and_no_more(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    n, m = 8, 14
    waits: Bools = rng.random(n) < 0.4
    pauses = Pauses(waits, waits & (rng.random(n) < 0.5), rng.random(m) < 0.6, 0.05)
    d = 1.0 + rng.random((n, m))
    path, best = warp(d, pauses), least_cost(d, pauses)
    assert (path is None) == (best == math.inf)
    if path is not None:
        steps = np.diff(path, axis=0)
        assert set(map(tuple, steps.tolist())) <= {(1, 1), (0, 1), (1, 0)}
        assert best <= least_cost(d, no_pauses(n, m))


def test_neither_side_runs_more_than_twice_as_fast() -> None:
    d = np.random.default_rng(5).random((60, 90))
    path = warp(d, no_pauses(60, 90))
    assert path is not None
    steps = np.diff(path, axis=0)
    for still in (0, 1):
        waiting = (steps[:, still] == 0).astype(int)
        assert not np.any(waiting[1:] & waiting[:-1])


def test_an_utterance_warped_onto_itself_stays_put() -> None:
    x = np.random.default_rng(6).standard_normal((50, 8))
    d = np.linalg.norm(x[:, None] - x[None], axis=2)
    path = warp(d, no_pauses(50, 50))
    assert path is not None and path.tolist() == [[i, i] for i in range(50)]


def test_a_long_pause_on_one_side_is_passed_where_it_may_be() -> None:
    x = np.random.default_rng(7).standard_normal((40, 8))
    x[20:22] = 0.0
    y = np.concatenate([x[:21], np.zeros((100, 8)), x[21:]])
    d = np.linalg.norm(x[:, None] - y[None], axis=2)
    waits, silent = np.zeros(40, bool), np.zeros(140, bool)
    waits[20:22], silent[20:122] = True, True
    assert warp(d, no_pauses(40, 140)) is None
    path = warp(d, Pauses(waits, waits, silent, 0.3))
    assert path is not None
    assert [j for i, j in path.tolist() if i < 20] == list(range(20))
    assert [j for i, j in path.tolist() if i >= 22] == list(range(122, 140))


def test_eight_seconds_are_warped_within_a_second() -> None:
    d = np.random.default_rng(8).random((640, 640))
    start = time.process_time()
    warp(d, no_pauses(640, 640))
    assert time.process_time() - start < 1.0


def sound(seed: int = 0, seconds: float = 1.0) -> Tensor:
    """A buzz of 120 Hz with a spectrum that changes, silent in its first and last fifth."""
    t = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    tilt = np.random.default_rng(seed).uniform(0.5, 2.0)
    wave = sum(np.sin(2 * np.pi * 120 * k * t) / k ** (1 + 0.5 * np.sin(2 * np.pi * tilt * t)) for k in range(1, 40))
    wave *= (t > 0.2 * seconds) & (t < 0.8 * seconds)
    return torch.from_numpy((0.05 * wave).astype(np.float32))


def test_energy_is_twice_the_log_of_the_level() -> None:
    wave = sound()
    loud = shape.loud(shape.log_energy(wave))
    rise = shape.log_energy(3.0 * wave) - shape.log_energy(wave)
    assert rise[loud] == pytest.approx(2 * math.log(3.0), abs=0.01)


def test_f0_and_energy_change_in_the_frame_whose_centre_they_change_at() -> None:
    wave = sound()
    on = np.arange(80) * 300 / RATE_HZ
    inside = (on > 0.25) & (on < 0.75)
    for f0 in (shape.f0_curve(wave), shape.f0_curve(wave, shape.track_f0(wave.numpy(), RATE_HZ))):
        assert f0[inside] == pytest.approx(120.0, rel=0.02)
        assert not f0[(on < 0.15) | (on > 0.85)].any()
    quiet = shape.silent(shape.log_energy(wave))
    assert not quiet[inside].any() and quiet[(on < 0.15) | (on > 0.85)].all()


def test_cepstra_know_neither_the_level_nor_the_room() -> None:
    wave = sound()
    speech = ~shape.silent(shape.log_energy(wave))
    plain = shape.cepstra(wave, speech, 40.0)
    assert shape.cepstra(0.1 * wave, speech, 40.0) == pytest.approx(plain, abs=1e-3)
    assert plain[speech].mean(axis=0) == pytest.approx(np.zeros(38), abs=1e-9)
    brighter = torch.nn.functional.conv1d(wave[None, None], torch.tensor([[[-0.5, 1.0]]]), padding=1)[0, 0, :-1]
    rounder = shape.cepstra(brighter, speech, 40.0)
    assert np.corrcoef(plain[speech].ravel(), rounder[speech].ravel())[0, 1] > 0.9


SMALL = LiteConfig(symbols=8, style=8, hidden=16, bert_embedding=8, bert_hidden=16, bert_heads=2, bert_ffn=16,
                   bert_layers=1, max_symbols=32, predictor_layers=1, decoder=32, decoder_residual=4,
                   resblock_kernels=(3,), resblock_dilations=(1,), noise_kernels=(3, 3), max_frames_per_symbol=12)
WORDS = {"a": 1, "s": 2, " ": 3, "m": 4}

Aligner = Callable[..., Alignment]


@pytest.fixture(scope="module")
def small() -> Aligner:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net, decoder, style = AcousticNet(SMALL).eval(), Decoder(SMALL).eval(), torch.randn(1, 16)
    return lambda clip, symbols="asa mas": align(
        clip, symbols, net=net.requires_grad_(False), decoder=decoder.requires_grad_(False), style=style, vocab=WORDS
    )


@pytest.mark.parametrize("extra", [0, 1, 599, 600])
def test_every_frame_of_the_clip_belongs_to_one_symbol(small: Aligner, extra: int) -> None:
    clip = torch.nn.functional.pad(sound(), (0, extra))
    found = small(clip)
    whole = len(clip) // 600
    assert found.frames.shape == (9,) and found.frames.dtype == torch.int64
    assert int(found.frames.sum()) == whole and bool((found.frames >= 0).all())
    assert found.text.shape == (whole, SMALL.hidden)
    assert found.f0.shape == found.energy.shape == (2 * whole,)
    assert bool(torch.isfinite(found.energy).all()) and 0.0 <= found.score <= 1.0


def test_the_text_of_a_frame_is_its_symbols(small: Aligner) -> None:
    found = small(sound())
    kinds = torch.unique_consecutive(found.text, dim=0)
    assert len(kinds) == int((found.frames > 0).sum())


def test_the_same_clip_gives_the_same_alignment_at_any_level(small: Aligner) -> None:
    first, again, quiet = small(sound()), small(sound().numpy()), small(0.2 * sound())
    assert torch.equal(first.frames, again.frames) and first.score == again.score
    assert torch.equal(first.frames, quiet.frames)
    assert quiet.gain == pytest.approx(5.0 * first.gain, rel=0.02)
    loud = shape.loud(first.energy.numpy())
    assert quiet.energy[loud].numpy() == pytest.approx(first.energy[loud].numpy(), abs=0.05)


@pytest.mark.parametrize("clip", [sound(seconds=0.2), sound(seconds=6.0), torch.zeros(RATE_HZ)],
                         ids=["hurried", "endless", "empty"])
def test_a_clip_that_cannot_be_those_words_is_not_good(small: Aligner, clip: Tensor) -> None:
    found = small(clip)
    assert int(found.frames.sum()) == len(clip) // 600
    assert not found.good


def test_less_than_a_tenth_of_a_second_is_refused(small: Aligner) -> None:
    with pytest.raises(ValueError, match="0.1 s"):
        small(torch.zeros(2000))


@pytest.mark.weights
@pytest.mark.slow
def test_real_words_are_found_and_others_are_not() -> None:
    from cosyvoice_app.engines.lite.model import LiteModel
    from cosyvoice_app.types import Segment, Text

    model = LiteModel.load(None, torch.device("cpu"), torch.float32)
    samples, rate_hz = clip_maker.read("p0_en.flac")
    assert rate_hz == RATE_HZ
    right, half = clip_maker.P0_TEXT, clip_maker.P0_TEXT.split(",")[0] + "."
    other = "Please bring three bags of rice and a bottle of water before dinner."
    found = {}
    for text in (right, half, other):
        symbols = model.g2p(Segment(text, (Text(text, "en"),))).symbols
        found[text] = align(samples, symbols, net=model.acoustic, decoder=model.decoder,
                            style=model.styles.style("am_michael")[None], vocab=model.vocabulary)
    assert found[right].good and not found[half].good and not found[other].good
    assert found[right].score > max(found[half].score, found[other].score) + 0.1
    # The clip is silent for its first 0.3 s, 12 frames; a symbol is heard two frames before its own begin.
    assert 10 <= int(found[right].frames[0]) <= 17
