"""What is measured of 24 kHz audio for aligning and decoding it, at 80 frames a second: energy, F0, cepstra, silence.

Frame i is centred on sample 300 i, as the decoder's frames are: there, energy and F0 measured on its own speech fit
best.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cosyvoice_app.audio.features import LogMelConfig, log_mel
from cosyvoice_app.audio.pitch import track_f0
from cosyvoice_app.engines.lite.warp import Bools, Floats
from cosyvoice_app.types import FloatArray

RATE_HZ, HOP_SAMPLES = 24_000, 300
# StyleTTS 2's energy comes from a mel spectrogram whose filters were made as if the rate were 16 kHz.
_ENERGY_MEL = LogMelConfig(rate_hz=RATE_HZ, n_fft=2048, window_samples=1200, hop_samples=HOP_SAMPLES, bins=80,
                           filter_rate_hz=16_000, floor_mode="add")
# Up to 7.6 kHz, so that a clip sampled at 16 kHz and speech at 24 kHz look alike.
_CEPSTRUM_MEL = LogMelConfig(rate_hz=RATE_HZ, n_fft=1024, window_samples=720, hop_samples=HOP_SAMPLES, bins=40,
                             low_hz=60.0, high_hz=7600.0, floor=1e-10)
_CEPSTRA = 19
_DELTA_REACH = 2
_LIFTER, _SLOPE_WEIGHT = 0.8, 1.5
_NEPERS_PER_DB = math.log(10.0) / 10.0
_FLOOR_DB = (15.0, 45.0)
_SILENT_BELOW_LOUD_DB, _SILENT_ABOVE_FLOOR_DB, _SPEECH_BELOW_LOUD_DB = 32.0, 9.0, 14.0
_SILENCE_SMOOTHING = 5


def log_energy(wave: Tensor) -> Floats:
    """[n] -> [n // 300]: log of the L2 norm over the mel bands' powers, the energy curve of the prosody predictor.

    On the model's own speech it follows the predicted curve with correlation 0.995 and slope 0.98, less a constant of
    about 0.35 that depends a little on the voice.
    """
    mel = log_mel(wave[None], _ENERGY_MEL)[0, : len(wave) // HOP_SAMPLES]
    return (0.5 * torch.logsumexp(2.0 * mel, -1)).double().numpy()


def loud(energy: Floats) -> Bools:
    """Frames within 17 dB of the loud level (95th percentile): speech beyond doubt."""
    return energy > np.percentile(energy, 95) - 17.0 * _NEPERS_PER_DB


def silent(energy: Floats) -> Bools:
    """Frames without speech: 32 dB under the loud level, or little above the noise where that is higher."""
    reach = _SILENCE_SMOOTHING // 2
    window = np.full(_SILENCE_SMOOTHING, 1.0 / _SILENCE_SMOOTHING)
    smooth = np.convolve(np.pad(energy, reach, mode="edge"), window, "valid")
    top, noise = np.percentile(smooth, 95), np.percentile(smooth, 10)
    least = max(top - _SILENT_BELOW_LOUD_DB * _NEPERS_PER_DB, noise + _SILENT_ABOVE_FLOOR_DB * _NEPERS_PER_DB)
    # A clip without a pause has speech at its 10th percentile.
    return smooth < min(least, top - _SPEECH_BELOW_LOUD_DB * _NEPERS_PER_DB)


def noise_floor_db(energy: Floats) -> float:
    """How far under the loud level a clip's own noise lies, 15 to 45 dB: below, `cepstra` should see nothing."""
    return float(np.clip((np.percentile(energy, 95) - np.percentile(energy, 10)) / _NEPERS_PER_DB, *_FLOOR_DB))


def f0_curve(wave: Tensor, tracked_hz: FloatArray | None = None) -> FloatArray:
    """F0 in Hz [n // 300] of [n], 0 unvoiced. `tracked_hz` is `track_f0`'s, whose frames lie half a frame later."""
    frames = len(wave) // HOP_SAMPLES
    if tracked_hz is None:
        shifted = torch.nn.functional.pad(wave, (HOP_SAMPLES // 2, 0))
        return _fitted(track_f0(shifted.numpy(), RATE_HZ), frames)
    late = _fitted(np.asarray(tracked_hz, np.float32), frames)
    early = np.concatenate([late[:1], late[:-1]])
    both = (early > 0) & (late > 0)
    return np.where(both, np.sqrt(early * late), late).astype(np.float32)


def cepstra(wave: Tensor, speech: Bools, floor_db: float) -> Floats:
    """[n] -> [n // 300, 38]: 19 MFCCs and their slopes; over the frames marked `speech`, mean 0, deviation (k +
    1)^-0.8.

    Mean and variance are what differs between voices and rooms. The higher a cepstrum, the more it tells of the voice
    and the less of the sound: with equal weights, boundaries between two of the model's own voices are 30 ms off, with
    these 10 to 15. A floor `floor_db` under the loud level makes all silences alike.
    """
    power = log_mel(wave[None], _CEPSTRUM_MEL)[0, : len(wave) // HOP_SAMPLES].double().exp().numpy()
    level = power.mean(axis=1)
    power = power + np.percentile(level, 95) * 10.0 ** (-floor_db / 10.0)
    static = np.log(power) @ _cosines(power.shape[1])
    padded = np.pad(static, ((_DELTA_REACH, _DELTA_REACH), (0, 0)), mode="edge")
    weights = np.arange(-_DELTA_REACH, _DELTA_REACH + 1)
    moved = [w * padded[_DELTA_REACH + w : len(static) + _DELTA_REACH + w] for w in weights]
    slopes = np.sum(moved, axis=0) / float((weights**2).sum())
    weight = np.arange(1, _CEPSTRA + 1) ** -_LIFTER
    parts = []
    for part, scale in ((static, weight), (slopes, _SLOPE_WEIGHT * weight)):
        kept = part[speech] if speech.sum() > 1 else part
        parts.append((part - kept.mean(axis=0)) * (scale / np.maximum(kept.std(axis=0), 1e-6)))
    return np.concatenate(parts, axis=1)


@lru_cache(maxsize=4)
def _cosines(bands: int) -> Floats:
    """[bands, 19]: an orthonormal DCT-II."""
    k = np.arange(_CEPSTRA)[None]
    matrix = np.sqrt(2.0 / bands) * np.cos(np.pi / bands * (np.arange(bands)[:, None] + 0.5) * k)
    matrix[:, 0] *= np.sqrt(0.5)
    return matrix


def _fitted(curve: FloatArray, frames: int) -> FloatArray:
    return np.pad(curve[:frames], (0, max(0, frames - len(curve)))).astype(np.float32)
