"""The gate between an engine and everyone else: audio that is broken never becomes a result.

The level is the engine's business. Nothing here makes audio louder, or quieter unless it would clip.
"""

from __future__ import annotations

import numpy as np

from cosyvoice_app.errors import BadAudio
from cosyvoice_app.types import Audio, FloatArray, Pause, Segment, Text

SILENCE_DBFS = -60.0
"""A result whose loudest 20 ms stay below this holds no speech: quiet whispering peaks some 20 dB above it."""

TRIM_DBFS = -40.0
LEAD_MAX_S, TRAIL_MAX_S = 0.5, 0.8
"""Most silence kept before and after speech, measured in 20 ms frames against TRIM_DBFS."""

FADE_S = 0.005

_FRAME_S = 0.02
_SHORTEST_S = 0.05
_FASTEST_S_PER_UNIT = 0.01
"""100 characters a second, three times what the fastest speaker does."""
_SLOWEST_S_PER_UNIT = 1.5
_SLACK_S = 4.0


def frame_rms(samples: FloatArray, rate_hz: int) -> FloatArray:
    """Root mean square of each 20 ms frame [frames]; the last, shorter frame counts by its own length."""
    size = max(1, round(_FRAME_S * rate_hz))
    starts = np.arange(0, len(samples), size)
    energy = np.add.reduceat(np.square(samples, dtype=np.float64), starts)
    counts = np.minimum(size, len(samples) - starts)
    rms: FloatArray = np.sqrt(energy / counts).astype(np.float32)
    return rms


def dbfs(amplitude: float) -> float:
    return float(20.0 * np.log10(max(amplitude, 1e-9)))


def spoken_units(segment: Segment) -> int:
    """Characters to be spoken; a pronunciation tag counts as one however many letters spell it."""
    said = [piece for piece in segment.pieces if not isinstance(piece, Pause)]
    return sum(len(piece.text) if isinstance(piece, Text) else 1 for piece in said) or len(segment.text)


def judge(audio: Audio, segment: Segment, *, speed: float = 1.0) -> Audio:
    """Return `audio` fit to be given out: finite, audible, of a plausible length, peak <= 1.0.

    `speed` is the whole speed factor asked for (request times instruct). Raises BadAudio with the measured cause.
    """
    samples = _sound(audio)
    _judge_length(len(samples) / audio.rate_hz, segment, speed)
    loudest = dbfs(float(frame_rms(samples, audio.rate_hz).max()))
    if loudest < SILENCE_DBFS:
        level = "only zeros" if not samples.any() else f"silence: its loudest 20 ms are at {loudest:.0f} dBFS"
        raise _bad(level)
    peak = float(np.abs(samples).max())
    return Audio(samples / np.float32(peak) if peak > 1.0 else samples, audio.rate_hz)


def check_part(audio: Audio) -> None:
    """Refuse a part of a segment that must not be given out, before the whole can be judged. Raises BadAudio."""
    peak = float(np.abs(_sound(audio)).max())
    if peak > 1.0:
        raise _bad(f"a peak of {peak:.3g}, where 1 is full scale")


def trim_silence(audio: Audio) -> Audio:
    """Cut silence beyond LEAD_MAX_S and TRAIL_MAX_S. Audio without a frame above TRIM_DBFS is left alone.

    What is called silence may hum: an end that was cut fades over FADE_S, so that the pause beside it doesn't click.
    """
    loud = np.flatnonzero(frame_rms(audio.samples, audio.rate_hz) > 10.0 ** (TRIM_DBFS / 20.0))
    if not len(loud):
        return audio
    frame = max(1, round(_FRAME_S * audio.rate_hz))
    start = max(0, int(loud[0]) * frame - round(LEAD_MAX_S * audio.rate_hz))
    stop = min(len(audio.samples), (int(loud[-1]) + 1) * frame + round(TRAIL_MAX_S * audio.rate_hz))
    samples = audio.samples[start:stop].copy()
    length = round(FADE_S * audio.rate_hz)
    fade = (0.5 - 0.5 * np.cos(np.pi * np.arange(length) / length)).astype(np.float32)
    if start > 0:
        samples[:length] *= fade
    if stop < len(audio.samples):
        samples[-length:] *= fade[::-1]
    return Audio(samples, audio.rate_hz)


def _sound(audio: Audio) -> FloatArray:
    """The samples [n > 0], when they are one channel of finite numbers at a rate. Raises BadAudio."""
    samples = np.asarray(audio.samples, dtype=np.float32)
    if samples.ndim != 1:
        raise _bad(f"samples of shape {list(samples.shape)} instead of one channel")
    if audio.rate_hz <= 0:
        raise _bad(f"a sample rate of {audio.rate_hz} Hz")
    if not len(samples):
        raise _bad("no samples")
    broken = int(np.count_nonzero(~np.isfinite(samples)))
    if broken:
        raise _bad(f"{broken} of {len(samples)} samples that are not finite numbers (NaN or infinity)")
    return samples


def _judge_length(duration_s: float, segment: Segment, speed: float) -> None:
    units = spoken_units(segment)
    least = max(_SHORTEST_S, _FASTEST_S_PER_UNIT * units / max(1.0, speed))
    pauses_s = sum(piece.ms for piece in segment.pieces if isinstance(piece, Pause)) / 1000.0
    most = _SLACK_S + pauses_s + _SLOWEST_S_PER_UNIT * units / min(1.0, speed)
    if not least <= duration_s <= most:
        raise _bad(f"{duration_s:.4g} s for {units} characters, where {least:.2f} to {most:.0f} s is plausible")


def _bad(cause: str) -> BadAudio:
    return BadAudio(
        f"The engine gave no usable audio: {cause}. Nothing was saved. Try another seed or shorter sentences."
    )
