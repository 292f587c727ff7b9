"""What can be asked of the features: one frozen config a kind, and what each means at a sample rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from cosyvoice_app.audio.config_checks import (
    MAX_POINTS,
    Bins,
    Hz,
    Milliseconds,
    Points,
    RateHz,
    Within,
    check_settings,
    checked,
)
from cosyvoice_app.audio.framing import Framing, Pad, WindowName, samples_of
from cosyvoice_app.audio.mel import MelBank, MelScale
from cosyvoice_app.audio.spectral import SHIFT, Spectral
from cosyvoice_app.errors import ConfigError

# Kaldi floors energies at float32's machine epsilon before the logarithm, whatever the dtype.
_KALDI_FLOOR = torch.finfo(torch.float32).eps
# float32 must hold a floor, and hold it still with the filters' gain for cepstra.
Floor = Annotated[float, Within(1e-37, 1e30)]


@dataclass(frozen=True, slots=True)
class MfccConfig:
    """Mel cepstra as librosa's `feature.mfcc(n_fft=..., win_length=..., hop_length=...)` computes them.

    Centred frames (zeros beyond the clip), periodic window in the middle of `n_fft` points (0: the next power of two),
    power, `scale` filters, 10 log10(max(mel, floor)), orthonormal DCT-II, lifter. Two things differ from librosa's
    defaults: frames are 25 and 10 ms rather than 2048 and 512 samples, and `top_db` is off, since it lets a clip's
    loudest frame change all others; 80 is librosa's. `high_hz` of 0 is the Nyquist frequency.
    """

    coefficients: Bins = 80
    mels: Bins = 128
    frame_ms: Milliseconds = 25.0
    shift_ms: Milliseconds = 10.0
    n_fft: Annotated[int, Within(0, MAX_POINTS)] = 0
    low_hz: Hz = 0.0
    high_hz: Hz = 0.0
    scale: MelScale = "slaney"
    slaney_norm: bool = True
    window: WindowName = "hann"
    centre: bool = True
    pad: Pad = "zeros"
    power: Literal[1, 2] = 2
    floor: Floor = 1e-10
    top_db: Annotated[float, Within(0.0, 1000.0, above=True)] | None = None
    lifter: Annotated[int, Within(0, 10_000)] = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.coefficients > self.mels:
            raise ConfigError(
                f"{self.coefficients} coefficients of {self.mels} mels; there can't be more than mels.",
                param="coefficients",
            )


@dataclass(frozen=True, slots=True)
class FbankConfig:
    """Kaldi's `compute-fbank-feats` without dither. `high_hz` of 0 or less counts down from the Nyquist frequency."""

    bins: Bins = 80
    frame_ms: Milliseconds = 25.0
    shift_ms: Milliseconds = 10.0
    low_hz: Hz = 20.0
    high_hz: Annotated[float, Within(-500_000.0, 500_000.0)] = 0.0
    preemphasis: Annotated[float, Within(0.0, 1.0)] = 0.97
    remove_dc: bool = True
    window: Literal["povey", "hann", "hamming"] = "povey"
    power: Literal[1, 2] = 2

    def __post_init__(self) -> None:
        check_settings(self)

    def window_samples(self, rate_hz: int) -> int:
        return samples_of(self.frame_ms, rate_hz)

    def shift_samples(self, rate_hz: int) -> int:
        return samples_of(self.shift_ms, rate_hz)

    def frames(self, samples: int, rate_hz: int) -> int:
        """Frames that `samples` give: only whole ones ("snip edges"), so none when shorter than a frame."""
        return Framing(self.window_samples(rate_hz), self.shift_samples(rate_hz)).frames(samples)


@dataclass(frozen=True, slots=True)
class LogMelConfig:
    """A log-mel spectrogram in the manner of vocoders.

    `filter_rate_hz` is the rate the filterbank is built for when that isn't the audio's: some models were trained with
    filters of another rate, and need the same again. `high_hz` of 0 is half of it. The logarithm is of
    `mel + floor` ("add") or of `max(mel, floor)` ("clamp"). `centre` pads by reflection, so that frame i is centred on
    sample i x hop_samples.
    """

    rate_hz: RateHz
    n_fft: Points
    window_samples: Points
    hop_samples: Annotated[int, Within(0, 2**24, above=True)]
    bins: Bins
    low_hz: Hz = 0.0
    high_hz: Hz = 0.0
    filter_rate_hz: Annotated[int, Within(0, 1_000_000)] = 0
    scale: MelScale = "htk"
    slaney_norm: bool = False
    power: Literal[1, 2] = 2
    floor: Floor = 1e-5
    floor_mode: Literal["add", "clamp"] = "clamp"
    log: Literal["ln", "log10"] = "ln"
    centre: bool = True

    def __post_init__(self) -> None:
        check_settings(self)
        if self.window_samples > self.n_fft:
            raise ConfigError(
                f"window_samples is {self.window_samples}; it must not pass n_fft, {self.n_fft}.",
                param="window_samples",
            )

    def frames(self, samples: int) -> int:
        return self.framing().frames(samples)

    def framing(self) -> Framing:
        if self.centre:
            return Framing.centred(self.window_samples, self.hop_samples, "reflect", self.n_fft)
        # An STFT keeps its frames of n_fft points within the clip, the window in their middle.
        before = (self.n_fft - self.window_samples) // 2
        return Framing(self.window_samples, self.hop_samples, -before, before + self.window_samples - self.n_fft)


@dataclass(frozen=True, slots=True)
class WhisperMelConfig:
    """Whisper's log-mel at 16 kHz, not padded to 30 s: Slaney filters, log10, no more than 8 below the clip's own
    maximum, (x + 4) / 4. Samples // 160 frames. 128 bins for large-v3 and speech tokenizers, 80 for older models.
    """

    bins: Literal[80, 128] = 128

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class Mel24kConfig:
    """The 24 kHz mel of Matcha's vocoder and its kin: magnitude, Slaney filters, ln(max(x, 1e-5)). Samples // 480
    frames. `high_hz` of 0 is the Nyquist frequency; models before CosyVoice 3 want 8000.
    """

    bins: Bins = 80
    high_hz: Hz = 0.0

    def __post_init__(self) -> None:
        check_settings(self)


Config = MfccConfig | FbankConfig | LogMelConfig | WhisperMelConfig | Mel24kConfig


def bound(config: Config, rate_hz: int) -> tuple[Framing, Spectral]:
    """Where the frames of `config` lie at `rate_hz`, and what is done to each up to the logarithm."""
    rate_hz = checked("rate_hz", RateHz, rate_hz)
    if isinstance(config, FbankConfig):
        framing = Framing(config.window_samples(rate_hz), config.shift_samples(rate_hz))
        high_hz = config.high_hz if config.high_hz > 0 else rate_hz / 2 + config.high_hz
        n_fft = _points(framing.frame)
        bank = MelBank(config.bins, n_fft, rate_hz, config.low_hz, high_hz, "kaldi", False)
        return framing, Spectral(framing.frame, n_fft, config.window, False, bank, _KALDI_FLOOR, power=config.power,
                                 preemphasis=config.preemphasis, remove_dc=config.remove_dc)  # fmt: skip
    if isinstance(config, MfccConfig):
        frame, shift = samples_of(config.frame_ms, rate_hz), samples_of(config.shift_ms, rate_hz)
        n_fft = config.n_fft or _points(frame)
        if n_fft < frame:
            raise ConfigError(f"n_fft is {n_fft}; it must hold a frame of {frame} samples.", param="n_fft")
        framing = Framing.centred(frame, shift, config.pad, n_fft) if config.centre else Framing(frame, shift)
        bank = MelBank(config.mels, n_fft, rate_hz, config.low_hz, config.high_hz or rate_hz / 2, config.scale,
                   config.slaney_norm)  # fmt: skip
        # A floor that the clip's maximum sets comes between the logarithm and the cosines.
        cepstra = (config.coefficients, config.lifter) if config.top_db is None else None
        return framing, Spectral(frame, n_fft, config.window, True, bank, config.floor, log="log10", power=config.power,
                                 cepstra=cepstra, gain=10.0**SHIFT)  # fmt: skip
    if isinstance(config, WhisperMelConfig):
        # The reference drops the last frame of a centred transform; less padding on the right does the same.
        bank = MelBank(config.bins, 400, rate_hz, 0.0, rate_hz / 2, "slaney", True)
        return Framing(400, 160, 200, 40, "reflect"), Spectral(400, 400, "hann", True, bank, 1e-10, log="log10")
    if isinstance(config, Mel24kConfig):
        bank = MelBank(config.bins, 1920, rate_hz, 0.0, config.high_hz or rate_hz / 2, "slaney", True)
        return Framing(1920, 480, 720, 720, "reflect"), Spectral(1920, 1920, "hann", True, bank, 1e-5, power=1,
                                                                 root_floor=1e-9)  # fmt: skip
    filter_rate_hz = config.filter_rate_hz or config.rate_hz
    bank = MelBank(config.bins, config.n_fft, filter_rate_hz, config.low_hz, config.high_hz or filter_rate_hz / 2,
               config.scale, config.slaney_norm)  # fmt: skip
    return config.framing(), Spectral(config.window_samples, config.n_fft, "hann", True, bank, config.floor,
                                      config.floor_mode, config.log, config.power)  # fmt: skip


def power_of_two(samples: int) -> int:
    return 1 << max(0, samples - 1).bit_length()


def _points(frame: int) -> int:
    if frame > MAX_POINTS:
        raise ConfigError(f"A frame has {frame} samples; at most {MAX_POINTS} are allowed.", param="frame_ms")
    return power_of_two(frame)
