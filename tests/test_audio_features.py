"""Features equal the references they come from, in batches, with gradients."""

from __future__ import annotations

import math

import clips as clip_maker
import pytest
import torch
import torchaudio
from torchaudio.compliance import kaldi

from cosyvoice_app.audio.features import FbankConfig, LogMelConfig, fbank, log_mel, mel_filters
from cosyvoice_app.errors import ConfigError

MEL = LogMelConfig(rate_hz=24000, n_fft=2048, window_samples=1200, hop_samples=300, bins=80)


def speech(rate_hz: int, seconds: float = 2.0) -> torch.Tensor:
    x, source_hz = clip_maker.read("p0_en.flac")
    moved = clip_maker.change_rate(x, source_hz, rate_hz)
    return torch.from_numpy(moved[rate_hz : rate_hz + int(seconds * rate_hz)].copy())


def assert_is_kaldis(x: torch.Tensor, rate_hz: int, config: FbankConfig, **options: object) -> None:
    """In float64 the two are one; in float32 they are within 1e-4 but in nearly empty bins, where each has its own
    noise.
    """
    exact = kaldi.fbank(x.double()[None], sample_frequency=rate_hz, dither=0.0, **options)
    ours = fbank(x.double()[None], rate_hz, config)[0]
    assert ours.shape == exact.shape
    assert (ours - exact).abs().max() < 1e-5
    single = fbank(x[None], rate_hz, config)[0]
    reference = kaldi.fbank(x[None], sample_frequency=rate_hz, dither=0.0, **options)
    heard = exact > exact.amax(dim=1, keepdim=True) - 8
    assert (single - reference)[heard].abs().max() < 1e-4
    assert (single - exact).abs().max() < 1e-3


@pytest.mark.parametrize("rate_hz", [8000, 11025, 16000, 22050, 24000, 44100, 48000])
def test_fbank_is_kaldis(rate_hz: int) -> None:
    assert_is_kaldis(speech(rate_hz), rate_hz, FbankConfig(), num_mel_bins=80)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (FbankConfig(bins=23), {"num_mel_bins": 23}),
        (FbankConfig(window="hamming"), {"num_mel_bins": 80, "window_type": "hamming"}),
        (FbankConfig(window="hann"), {"num_mel_bins": 80, "window_type": "hanning"}),
        (
            FbankConfig(remove_dc=False, preemphasis=0.0),
            {"num_mel_bins": 80, "remove_dc_offset": False, "preemphasis_coefficient": 0.0},
        ),
        (FbankConfig(low_hz=60.0, high_hz=-400.0), {"num_mel_bins": 80, "low_freq": 60.0, "high_freq": -400.0}),
        (FbankConfig(power=1), {"num_mel_bins": 80, "use_power": False}),
        (FbankConfig(frame_ms=32.0, shift_ms=8.0), {"num_mel_bins": 80, "frame_length": 32.0, "frame_shift": 8.0}),
    ],
)
def test_fbank_options_are_kaldis(config: FbankConfig, options: dict[str, object]) -> None:
    assert_is_kaldis(speech(16000), 16000, config, **options)


@pytest.mark.parametrize("signal", [torch.zeros(4000), torch.ones(4000), torch.sign(torch.sin(torch.arange(4000.0)))])
def test_fbank_of_edge_signals(signal: torch.Tensor) -> None:
    reference = kaldi.fbank(signal[None], num_mel_bins=80, sample_frequency=16000, dither=0.0)
    ours = fbank(signal[None], 16000)[0]
    assert torch.isfinite(ours).all()
    # At the floor float noise decides; compare where there is energy.
    heard = reference > reference.max() - 12
    assert (ours - reference)[heard].abs().max() < 1e-2


@pytest.mark.parametrize(("samples", "frames"), [(0, 0), (1, 0), (399, 0), (400, 1), (559, 1), (560, 2), (16000, 98)])
def test_only_whole_frames(samples: int, frames: int) -> None:
    assert FbankConfig().frames(samples, 16000) == frames
    assert fbank(torch.zeros(2, samples), 16000).shape == (2, frames, 80)


@pytest.mark.parametrize("of", ["fbank", "log_mel"])
def test_a_batch_equals_its_rows(of: str) -> None:
    batch = torch.stack([speech(24000), speech(24000).flip(0), 0.1 * speech(24000)])
    compute = (lambda b: fbank(b, 24000)) if of == "fbank" else (lambda b: log_mel(b, MEL))
    together = compute(batch)
    for i in range(3):
        assert torch.allclose(together[i], compute(batch[i : i + 1])[0], atol=1e-5)


@pytest.mark.parametrize("of", ["fbank", "log_mel"])
def test_gradients_are_right_and_finite_even_at_silence(of: str) -> None:
    small = LogMelConfig(
        rate_hz=8000, n_fft=64, window_samples=64, hop_samples=32, bins=6, floor_mode="add", floor=1e-3
    )
    few = FbankConfig(bins=6, frame_ms=8.0, shift_ms=4.0)
    compute = (lambda x: fbank(x, 8000, few)) if of == "fbank" else (lambda x: log_mel(x, small))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 160, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(compute, (x,), atol=1e-5)
    silent = torch.zeros(1, 1600, requires_grad=True)
    compute(silent).sum().backward()
    assert silent.grad is not None and torch.isfinite(silent.grad).all()


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("scale", "norm"), [("htk", False), ("htk", True), ("slaney", False), ("slaney", True)])
def test_mel_is_torchaudios(scale: str, norm: bool, power: int) -> None:
    x = speech(24000)
    reference = torchaudio.transforms.MelSpectrogram(
        24000,
        n_fft=2048,
        win_length=1200,
        hop_length=300,
        n_mels=80,
        power=power,
        mel_scale=scale,
        norm="slaney" if norm else None,
    )(x)
    config = LogMelConfig(
        rate_hz=24000,
        n_fft=2048,
        window_samples=1200,
        hop_samples=300,
        bins=80,
        scale=scale,  # type: ignore[arg-type]
        slaney_norm=norm,
        power=power,
        floor=1e-5,
        floor_mode="add",
    )  # type: ignore[arg-type]
    ours = log_mel(x[None], config)[0]
    assert ours.shape == (config.frames(len(x)), 80)
    assert (ours - (reference + 1e-5).log().T).abs().max() < 1e-3


def test_a_filterbank_of_another_rate() -> None:
    """Some vocoders were trained on 24 kHz audio with filters drawn for 16 kHz."""
    x = speech(24000)
    reference = torchaudio.transforms.MelSpectrogram(16000, n_fft=2048, win_length=1200, hop_length=300, n_mels=80)(x)
    config = LogMelConfig(
        rate_hz=24000, n_fft=2048, window_samples=1200, hop_samples=300, bins=80, filter_rate_hz=16000, floor_mode="add"
    )
    assert (log_mel(x[None], config)[0] - (reference + 1e-5).log().T).abs().max() < 1e-3


def test_log10_and_clamp() -> None:
    x = torch.zeros(1, 4800)
    config = LogMelConfig(
        rate_hz=24000, n_fft=1024, window_samples=1024, hop_samples=256, bins=40, log="log10", floor=1e-10
    )
    assert torch.allclose(log_mel(x, config), torch.tensor(-10.0))


def test_half_precision_input_is_widened() -> None:
    x = speech(16000)[None]
    assert fbank(x.bfloat16(), 16000).dtype == torch.float32
    assert fbank(x.double(), 16000).dtype == torch.float64


def test_what_inference_built_first_serves_training() -> None:
    config = FbankConfig(bins=17, frame_ms=23.0)
    mel = LogMelConfig(rate_hz=16000, n_fft=512, window_samples=400, hop_samples=160, bins=17)
    with torch.inference_mode():
        fbank(torch.zeros(1, 1600), 16000, config)
        log_mel(torch.zeros(1, 1600), mel)
    x = torch.randn(1, 1600, requires_grad=True)
    (fbank(x, 16000, config).sum() + log_mel(x, mel).sum()).backward()
    assert x.grad is not None


def test_filters_are_built_once() -> None:
    key = (80, 512, 16000, 20.0, 8000.0, "kaldi", False, "cpu", torch.float32)
    assert mel_filters(*key) is mel_filters(*key)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FbankConfig(bins=0),
        lambda: LogMelConfig(rate_hz=24000, n_fft=512, window_samples=1024, hop_samples=256, bins=80),
        lambda: log_mel(
            torch.zeros(1, 4800),
            LogMelConfig(rate_hz=24000, n_fft=512, window_samples=512, hop_samples=128, bins=8, high_hz=13000),
        ),
    ],
)
def test_impossible_configs_say_what_is_allowed(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


def test_unknown_keys_fail() -> None:
    with pytest.raises(TypeError, match="mels"):
        FbankConfig(mels=80)  # type: ignore[call-arg]


def test_kaldis_integer_scale_is_a_shift() -> None:
    x = speech(16000)[None]
    shifted = fbank(x * 32768.0, 16000) - fbank(x, 16000)
    heard = fbank(x, 16000) > -12
    assert torch.allclose(shifted[heard], torch.tensor(2 * math.log(32768.0)), atol=1e-3)
