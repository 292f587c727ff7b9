"""Laws of the cosyvoice3 vocoder at toy size, and values of the official code made once by tests/parity/vocoder.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cv3_vocoder_weights import official_state, random_mel

from cosyvoice_app.engines.cosyvoice3.config import HOP_SAMPLES, TINY
from cosyvoice_app.engines.cosyvoice3.vocoder import LIMIT, Vocoder
from cosyvoice_app.engines.cosyvoice3.vocoder_source import (
    VOICED_ABOVE_HZ,
    HarmonicSource,
    Phase,
    mixed_noise,
    uniform_noise,
)
from cosyvoice_app.engines.cosyvoice3.vocoder_spectrum import Spectra
from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn.causal import CausalConv1d, UpsampledConv1d, convolve, phase_filters

CONFIG = TINY.vocoder
CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent / "data" / "cv3_vocoder_golden.npz"


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def vocoder():
    return load(official_state(CONFIG))


def load(state):
    return Vocoder.load(state, CONFIG, device=CPU, source="hift.pt")


def single(vocoder, mel):
    return vocoder(mel, torch.tensor([mel.shape[1]]))


# Against the official code


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def test_f0_is_the_official_one_in_both_regimes(vocoder, golden):
    f0 = vocoder.f0_predictor(F.pad(random_mel(1, 24), (0, 0, 0, CONFIG.f0_lookahead)), {})
    torch.testing.assert_close(f0[0], golden["f0"], rtol=1e-6, atol=1e-5)
    voiced = golden["f0"] > VOICED_ABOVE_HZ
    assert 2 <= int(voiced.sum()) <= 22


@pytest.mark.parametrize("frames", [1, 9, 24])
def test_the_wave_is_the_official_one(vocoder, golden, frames):
    expected = golden[f"wave_{frames}"]
    wave = single(vocoder, random_mel(1, 24)[:, :frames])[0]
    assert expected.abs().max() < LIMIT  # nothing is hidden by the limit
    assert (wave - expected).abs().max() < 1e-4 * expected.abs().max()


# Shape, range, determinism


@pytest.mark.parametrize("frames", range(1, 13))
def test_every_frame_is_480_samples(vocoder, frames):
    wave = single(vocoder, random_mel(1, frames))
    assert wave.shape == (1, HOP_SAMPLES * frames) and wave.dtype == torch.float32
    assert torch.isfinite(wave).all() and wave.abs().max() > 0.01


def test_the_same_input_gives_the_same_bits(vocoder):
    mel = random_mel(1, 20)
    assert torch.equal(single(vocoder, mel), single(vocoder, mel))


def test_a_loud_wave_stops_at_the_limit():
    state = official_state(CONFIG)
    state["conv_post.bias"][: CONFIG.fft // 2 + 1] += 50.0  # exp of it is beyond the magnitude's limit too
    wave = single(load(state), random_mel(1, 10))
    assert wave.abs().max() == pytest.approx(LIMIT)


def test_the_input_is_left_as_it_is(vocoder):
    mel = random_mel(2, 10)
    before = mel.clone()
    vocoder(mel, torch.tensor([10, 4]))
    assert torch.equal(mel, before)


# Rows and pieces


@pytest.mark.parametrize(("way", "tolerance"), [("forward", 0.0), ("together", 1e-6)])
def test_a_row_of_a_batch_is_the_row_alone_to_its_end(vocoder, way, tolerance):
    """Last samples included; zeros after. To the bit on a CPU; rows that go together to within 1e-6 of up to 0.1."""
    mel, frames = random_mel(5, 30), torch.tensor([30, 1, 13, 29, 7])
    waves = getattr(vocoder, way)(mel, frames)
    assert waves.shape == (5, 30 * HOP_SAMPLES)
    for row, count in enumerate(frames.tolist()):
        alone = single(vocoder, mel[row : row + 1, :count])[0]
        assert (waves[row, : count * HOP_SAMPLES] - alone).abs().max() <= tolerance
        assert not waves[row, count * HOP_SAMPLES :].any()


@pytest.mark.parametrize("way", ["forward", "together"])
def test_what_lies_past_a_row_is_not_seen(vocoder, way):
    mel, frames = random_mel(2, 12), torch.tensor([12, 5])
    dirty = mel.clone()
    dirty[1, 5:] = 1e6
    run = getattr(vocoder, way)
    assert torch.equal(run(mel, frames), run(dirty, frames))


@pytest.mark.parametrize("way", ["forward", "together"])
def test_a_batch_shorter_than_its_padding(vocoder, way):
    waves = getattr(vocoder, way)(random_mel(2, 12), torch.tensor([5, 3]))
    assert waves.shape == (2, 12 * HOP_SAMPLES) and not waves[:, 5 * HOP_SAMPLES :].any()
    alone = single(vocoder, random_mel(2, 12)[:1, :5])
    assert (waves[:1, : 5 * HOP_SAMPLES] - alone).abs().max() < 1e-6


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_the_size_of_the_pieces_does_not_matter(vocoder, monkeypatch, piece):
    mel = random_mel(2, 40)
    frames = torch.tensor([40, 21])
    whole = vocoder.together(mel, frames)
    monkeypatch.setattr("cosyvoice_app.engines.cosyvoice3.vocoder.CPU_PIECE_FRAMES", piece)
    assert (vocoder.together(mel, frames) - whole).abs().max() < 1e-6


def test_a_change_of_mel_is_heard_after_it_and_at_most_5_frames_before(vocoder):
    mel = random_mel(1, 30)
    changed = mel.clone()
    changed[:, 20] += 3.0
    differs = (single(vocoder, mel) != single(vocoder, changed))[0].nonzero()
    assert 15 * HOP_SAMPLES <= int(differs[0]) < 17 * HOP_SAMPLES


# Excitation


def source():
    module = HarmonicSource(CONFIG)
    module.l_linear.weight.copy_(torch.linspace(-1.0, 1.0, CONFIG.harmonics)[None])
    module.l_linear.bias.fill_(0.1)
    return module


def test_noise_does_not_depend_on_how_a_run_is_cut():
    whole = uniform_noise(0, 5000, 9, CPU)
    assert torch.equal(whole[1234:], uniform_noise(1234, 5000 - 1234, 9, CPU))
    weight = torch.linspace(-1.0, 1.0, 9)
    mixed = mixed_noise(100, 9000, weight)
    torch.testing.assert_close(mixed, uniform_noise(100, 9000, 9, CPU) @ weight)
    assert mixed_noise(5, 0, weight).shape == (0,)


def test_noise_is_uniform_from_0_to_1_and_independent():
    noise = uniform_noise(0, 200_000, 9, CPU).double()
    assert 0.0 <= noise.min() and noise.max() < 1.0
    counts = torch.histc(noise, 20, 0.0, 1.0) / noise.numel()
    assert (counts - 0.05).abs().max() < 0.001
    centred = noise - noise.mean()
    assert abs(noise.mean() - 0.5) < 0.001 and abs(centred.var() - 1 / 12) < 0.001
    across = centred.T @ centred / len(centred) * 12
    assert (across - torch.eye(9)).abs().max() < 0.01
    for lag in (1, 2, 4, 16, 480, 4096, 24_000):
        assert (centred[lag:] * centred[:-lag]).mean(0).abs().max() * 12 < 0.01, lag
    spectrum = torch.fft.rfft(centred[:, 0]).abs().square()[1:] / len(centred) * 12
    assert spectrum.max() < 20  # white: each bin is exponential with mean 1


def test_noise_goes_on_late_in_a_long_run():
    late = uniform_noise(2**28, 1000, 9, CPU)
    assert 0.0 <= late.min() and late.max() < 1.0 and late.std() > 0.25


def test_a_table_of_noise_takes_the_place_of_the_built_in(vocoder):
    mel = random_mel(1, 10)
    table = uniform_noise(0, 10 * HOP_SAMPLES, CONFIG.harmonics, CPU)[None]
    count = torch.tensor([10])
    torch.testing.assert_close(vocoder(mel, count, noise=table), vocoder(mel, count), rtol=0.0, atol=1e-6)
    assert (vocoder(mel, count, noise=1.0 - table) - vocoder(mel, count)).abs().max() > 1e-4


def test_voiced_frames_hold_a_tone_and_unvoiced_ones_noise():
    module = source()
    f0 = torch.tensor([[213.0, 213.0, 5.0, VOICED_ABOVE_HZ]])
    frames = module(f0, Phase()).reshape(4, HOP_SAMPLES)
    still = module(f0, Phase(), torch.zeros(1, 4 * HOP_SAMPLES, CONFIG.harmonics)).reshape(4, HOP_SAMPLES)
    assert torch.equal(still, still[:, :1].expand(-1, HOP_SAMPLES))  # constant within a frame
    bias = torch.tanh(torch.tensor(0.1))
    assert (still[2:] - bias).abs().max() < 1e-6 and (still[:2] - bias).abs().min() > 1e-4
    spread = frames.std(1)
    assert spread[2:].min() > 8 * spread[:2].max()


def test_the_phase_goes_on_from_piece_to_piece_to_the_bit():
    """In float64 the sums are exact, in whatever order. The samples' own sums may round differently."""
    module = source()
    f0 = torch.linspace(0.0, 400.0, 1000)[None]
    phase, phase_of_whole = Phase(), Phase()
    whole = module(f0, phase_of_whole)
    parts = [module(f0[:, a : a + 177], phase) for a in range(0, 1000, 177)]
    assert phase.frame == phase_of_whole.frame == 1000
    assert torch.equal(phase.cycles, phase_of_whole.cycles)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0.0, atol=3e-7)


# Building blocks


@pytest.mark.parametrize("lengths", [[48, 12], [20, 40]])
def test_spectra_are_those_of_the_library(lengths):
    spectra, window = Spectra(CONFIG), torch.hann_window(CONFIG.fft)
    samples = torch.randn(2, max(lengths), generator=torch.Generator().manual_seed(2))
    ours = spectra(spectra.mirror_start(spectra.mirror_ends(samples, torch.tensor(lengths))))
    for row, length in enumerate(lengths):
        expected = torch.stft(samples[row, :length], CONFIG.fft, CONFIG.hop, window=window, return_complex=True).T
        expected = torch.cat([expected.real, expected.imag], 1)
        torch.testing.assert_close(ours[row, : length // CONFIG.hop + 1], expected, rtol=0.0, atol=1e-5)


def test_the_inverse_gives_back_the_samples():
    spectra = Spectra(CONFIG)
    samples = torch.randn(1, 64, generator=torch.Generator().manual_seed(2))
    parts = spectra(spectra.mirror_end(spectra.mirror_start(samples)))
    blocks = spectra.invert(F.pad(parts, (0, 0, spectra.overlap - 1, 1)))[:, 2:]
    blocks[:, 0] *= spectra.at_start
    blocks[:, -1] *= spectra.at_end
    torch.testing.assert_close(blocks.flatten(1), samples, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(("kernel", "rate"), [(16, 8), (11, 5), (7, 3), (4, 1), (3, 4)])
def test_phases_are_the_convolution_of_repeated_frames(kernel, rate):
    generator = torch.Generator().manual_seed(kernel)
    weight, bias = torch.randn(6, 4, kernel, generator=generator), torch.randn(6, generator=generator)
    x = torch.randn(2, 9, 4, generator=generator)
    repeated = x.repeat_interleave(rate, 1).transpose(1, 2)
    expected = F.conv1d(F.pad(repeated, (kernel - 1, 0)), weight, bias).transpose(1, 2)
    layer = UpsampledConv1d(4, 6, kernel, rate=rate)
    layer.weight.copy_(phase_filters(weight, rate))
    layer.bias.copy_(bias.repeat(rate))
    torch.testing.assert_close(layer(x, {}), expected, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (7, 3), (11, 5), (1, 1)])
def test_a_causal_convolution_cut_anywhere(kernel, dilation, dtype):
    generator = torch.Generator().manual_seed(kernel)
    layer = CausalConv1d(4, 6, kernel, dilation=dilation).to(dtype)
    layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
    x = torch.randn(2, 70, 4, generator=generator, dtype=dtype)
    padded = F.pad(x.transpose(1, 2), (layer.context, 0))
    expected = F.conv1d(padded, layer.weight, layer.bias, dilation=dilation).transpose(1, 2)
    for piece in (1, 3, 64, 70):
        history = {}
        parts = [layer(x[:, a : a + piece], history) for a in range(0, 70, piece)]
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0.0, atol=2e-5)


def test_a_strided_convolution():
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(2, 50, 4, generator=generator), torch.randn(6, 4, 10, generator=generator)
    expected = F.conv1d(x.transpose(1, 2), weight, stride=5).transpose(1, 2)
    torch.testing.assert_close(convolve(x, weight, None, stride=5), expected, rtol=0.0, atol=1e-5)


# Loading


def test_the_prefix_and_the_old_spelling_load_the_same(vocoder):
    other = {}
    for name, value in official_state(CONFIG).items():
        name = name.replace("parametrizations.weight.original0", "weight_g")
        other["generator." + name.replace("parametrizations.weight.original1", "weight_v")] = value
    mel = random_mel(1, 5)
    assert torch.equal(single(load(other), mel), single(vocoder, mel))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("conv_pre.bias", None, "missing: conv_pre.bias"),
        ("ups.0.bias", None, "missing: ups.0.bias"),
        ("ups.1.parametrizations.weight.original0", None, "missing: ups.1.weight"),
        ("extra.weight", torch.ones(2), "not expected: extra.weight"),
        ("conv_post.bias", torch.ones(3), "conv_post.bias is [3], expected [18]"),
        ("resblocks.4.activations1.1.alpha", torch.ones(2, 2), "resblocks.4.activations1.1.alpha is [2, 2]"),
    ],
)
def test_loading_is_strict(name, change, message):
    state = official_state(CONFIG)
    state.pop(name, None)
    if change is not None:
        state[name] = change
    with pytest.raises(AssetError) as caught:
        load(state)
    assert message in str(caught.value) and "hift.pt" in str(caught.value)


def test_precision_and_freezing(vocoder):
    for name, parameter in vocoder.named_parameters():
        assert parameter.dtype == (torch.float64 if name.startswith("f0_predictor.") else torch.float32)
        assert not parameter.requires_grad
    assert not vocoder.training


def test_the_official_size_is_the_official_number_of_values():
    from cosyvoice_app.engines.cosyvoice3.config import VocoderConfig

    assert sum(value.numel() for value in official_state(VocoderConfig()).values()) == 20_779_887


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_samples_of_the_cpu(vocoder, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    device = torch.device("cuda")
    on_gpu = Vocoder.load(official_state(CONFIG), CONFIG, device=device, source="hift.pt")
    mel, frames = random_mel(2, 40), torch.tensor([40, 17])
    waves = on_gpu(mel.to(device), frames.to(device)).cpu()
    assert (waves - vocoder(mel, frames)).abs().max() < 1e-4
