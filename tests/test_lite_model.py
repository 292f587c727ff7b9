"""Laws of the lite engine's networks, on small seeded ones: a row's result does not depend on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cosyvoice_app.engines.lite.acoustic import AcousticNet, expand
from cosyvoice_app.engines.lite.config import LiteConfig
from cosyvoice_app.engines.lite.prosody import Shape, plan_frames, shape_f0
from cosyvoice_app.engines.lite.speak import split_symbols
from cosyvoice_app.engines.lite.vocoder import Decoder

SMALL = LiteConfig(
    symbols=20,
    style=8,
    hidden=16,
    bert_embedding=8,
    bert_hidden=16,
    bert_heads=2,
    bert_ffn=32,
    bert_layers=2,
    max_symbols=64,
    decoder=32,
    decoder_residual=4,
)


def seeded(kind):
    torch.manual_seed(5)
    net = kind(SMALL).eval().requires_grad_(False)
    for parameter in net.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.1)
    return net


@pytest.fixture(scope="module")
def acoustic():
    return seeded(AcousticNet)


@pytest.fixture(scope="module")
def decoder():
    return seeded(Decoder)


def test_a_row_of_a_batch_equals_the_row_alone(acoustic):
    rows = [torch.randint(1, 20, (n,)) for n in (12, 7, 3)]
    lengths = torch.tensor([len(r) for r in rows])
    styles = torch.randn(3, SMALL.style)
    together = acoustic.encode(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths, styles)
    for i, row in enumerate(rows):
        alone = acoustic.encode(row[None], lengths[i : i + 1], styles[i : i + 1])
        size = len(row)
        for mine, other in (
            (together.text, alone.text),
            (together.prosody, alone.prosody),
            (together.frames, alone.frames),
        ):
            assert torch.allclose(mine[i, :size], other[0], atol=1e-4)


def test_curves_of_a_padded_row_equal_the_row_alone(acoustic):
    styles = torch.randn(2, SMALL.style)
    rows = [torch.randn(n, SMALL.hidden + SMALL.style) for n in (10, 6)]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    f0, energy = acoustic.curves(padded, styles, torch.tensor([10, 6]))
    for i, row in enumerate(rows):
        alone_f0, alone_energy = acoustic.curves(row[None], styles[i : i + 1])
        assert torch.allclose(f0[i, : 2 * len(row)], alone_f0[0], atol=1e-4)
        assert torch.allclose(energy[i, : 2 * len(row)], alone_energy[0], atol=1e-4)


def test_audio_of_a_padded_row_equals_the_row_alone(decoder):
    lengths, styles = torch.tensor([9, 5]), torch.randn(2, SMALL.style)
    text, f0, energy = torch.zeros(2, 9, SMALL.hidden), torch.zeros(2, 18), torch.zeros(2, 18)
    noise = torch.randn(2, 9 * SMALL.frame_hop_samples)
    for i, size in enumerate(lengths.tolist()):
        text[i, :size] = torch.randn(size, SMALL.hidden)
        f0[i, : 2 * size], energy[i, : 2 * size] = 150.0 + 10.0 * i, torch.randn(2 * size)
    together = decoder(text, f0, energy, styles, noise, lengths)
    hop = SMALL.frame_hop_samples
    for i, size in enumerate(lengths.tolist()):
        alone = decoder(
            text[i : i + 1, :size],
            f0[i : i + 1, : 2 * size],
            energy[i : i + 1, : 2 * size],
            styles[i : i + 1],
            noise[i : i + 1, : size * hop],
        )
        assert alone.shape == (1, size * hop)
        assert torch.allclose(together[i, : size * hop], alone[0], atol=1e-3)


def test_inverse_stft_equals_torch(decoder):
    torch.manual_seed(0)
    x = torch.randn(2, 31, SMALL.n_fft + 2)
    bins = SMALL.n_fft // 2 + 1
    spectrum = torch.polar(torch.exp(x[..., :bins]), torch.sin(x[..., bins:])).transpose(1, 2)
    theirs = torch.istft(spectrum, SMALL.n_fft, SMALL.istft_hop_samples, window=torch.hann_window(SMALL.n_fft))
    assert torch.allclose(decoder.generator._inverse_stft(x, None), theirs, atol=1e-4)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.0, 1.7, 2.2])
def test_planned_length_follows_speed(speed):
    expected = torch.rand(200) * 6 + 2
    frames = plan_frames(expected, speed)
    assert frames.min() >= 1
    assert abs(int(frames.sum()) - float(expected.sum()) / speed) <= 0.03 * float(expected.sum()) / speed + 1


def test_seed_changes_rhythm_and_melody_a_little_and_alike_each_time():
    expected = torch.rand(60) * 5 + 2
    f0 = torch.full((400,), 180.0)
    f0[::7] = 0.0

    def take(seed):
        rng = np.random.default_rng(seed)
        return plan_frames(expected, 1.0, rng), shape_f0(f0, Shape(), 80.0, rng)

    one, same, other = take(1), take(1), take(2)
    assert torch.equal(one[0], same[0]) and torch.equal(one[1], same[1])
    assert not torch.equal(one[0], other[0]) and not torch.equal(one[1], other[1])
    assert abs(int(one[0].sum()) / int(other[0].sum()) - 1.0) < 0.2
    voiced = f0 > 0
    drift = 12 * torch.log2(one[1][voiced] / f0[voiced])
    assert 0.1 < drift.abs().max() < 2.5
    assert not one[1][~voiced].any()


def test_median_range_and_shift_of_the_melody():
    f0 = 150.0 * torch.exp2(torch.sin(torch.arange(300) * 0.1) * 3 / 12)
    shaped = shape_f0(f0, Shape(f0_median_hz=220.0, f0_range=2.0, f0_shift_semitones=-12.0), 80.0)
    assert float(shaped.median()) == pytest.approx(110.0, rel=0.01)
    span = 12 * float(torch.log2(shaped.max() / shaped.min()))
    assert span == pytest.approx(12.0, abs=0.3)


def test_long_symbols_are_cut_at_marks_and_nothing_is_lost():
    sentence = "ðə wˈɛðəɹ wʌz kˈɑm, ænd ði ˈOld bˈOt dɹˈɪftᵊd. "
    whole = sentence * 20
    pieces = split_symbols(whole.strip(), 100)
    assert all(len(p) <= 100 for p in pieces)
    assert "".join(" ".join(pieces).split()) == "".join(whole.split())
    assert all(p[-1] in ",." for p in pieces)
    assert split_symbols("a" * 250, 100) == ["a" * 100, "a" * 100, "a" * 50]


def test_expand_repeats_each_symbol():
    features = torch.arange(3.0)[:, None]
    assert expand(features, torch.tensor([2, 0, 1])).flatten().tolist() == [0.0, 0.0, 2.0]
