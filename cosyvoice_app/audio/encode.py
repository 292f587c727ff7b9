"""Audio to bytes of a format, with a header that tells the truth. libsndfile writes all but aac, which is FFmpeg's."""

from __future__ import annotations

import io
import struct
from typing import cast

import av
import numpy as np
import soundfile

from cosyvoice_app.errors import BadInput
from cosyvoice_app.types import Audio, FloatArray

CONTENT_TYPES: dict[str, str] = {
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "pcm": "audio/pcm",
}
EXTENSIONS: dict[str, str] = {name: f".{name}" for name in CONTENT_TYPES}
FORMATS: tuple[str, ...] = tuple(CONTENT_TYPES)

_MPEG_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_AAC_BITS_PER_S = 96_000
# (libsndfile container, encoding, rates it takes)
_LIBSNDFILE = {
    "flac": ("FLAC", "PCM_16", ()),
    "mp3": ("MP3", "MPEG_LAYER_III", _MPEG_HZ),
    "opus": ("OGG", "OPUS", (8_000, 12_000, 16_000, 24_000, 48_000)),
}


def encode(audio: Audio, fmt: str) -> bytes:
    """Bytes of `audio` as wav, flac, mp3, opus (in Ogg), aac (in ADTS) or pcm (bare 16-bit little-endian mono at the
    audio's rate).

    wav, flac and pcm are 16-bit and hold every sample at its own rate. mp3, opus and aac know only some rates: audio at
    another is resampled to the next higher one. Raises BadInput for other names, listing these.
    """
    if fmt not in CONTENT_TYPES:
        raise BadInput(f"response_format {fmt!r} is not offered; allowed: {', '.join(FORMATS)}.",
                       param="response_format")
    samples, rate_hz = audio.samples, audio.rate_hz
    if fmt == "pcm":
        return to_pcm16(samples).tobytes()
    if fmt == "wav":
        data = to_pcm16(samples).tobytes()
        return wav_header(rate_hz, len(data)) + data
    container, encoding, rates_hz = _LIBSNDFILE.get(fmt, ("", "", _MPEG_HZ))
    if rates_hz and rate_hz not in rates_hz:
        target_hz = min((r for r in rates_hz if r > rate_hz), default=rates_hz[-1])
        samples, rate_hz = resample(samples, rate_hz, target_hz), target_hz
    if fmt == "aac":
        return _aac(samples, rate_hz)
    stream = io.BytesIO()
    # Lossless formats get the very integers that wav holds; lossy ones start from the floats.
    exact = to_pcm16(samples) if encoding == "PCM_16" else np.clip(samples, -1.0, 1.0)
    soundfile.write(stream, exact, rate_hz, format=container, subtype=encoding)
    return stream.getvalue()


def _aac(samples: FloatArray, rate_hz: int) -> bytes:
    """AAC-LC in ADTS frames, which need no length in a header."""
    stream = io.BytesIO()
    with av.open(stream, "w", format="adts") as container:
        track = cast(av.AudioStream, container.add_stream("aac", rate=rate_hz, layout="mono"))
        track.bit_rate = _AAC_BITS_PER_S
        clipped = np.clip(samples, -1.0, 1.0).astype(np.float32)[None, :]
        frame = av.AudioFrame.from_ndarray(clipped, format="fltp", layout="mono")
        frame.sample_rate = rate_hz
        container.mux(track.encode(frame))
        container.mux(track.encode(None))
    return stream.getvalue()


def to_pcm16(samples: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """Float32 [n] in [-1, 1] to little-endian 16-bit; 1.0 becomes 32767. Nearest value, no dither: same audio, same
    bytes.
    """
    scaled = np.rint(np.clip(samples, -1.0, 1.0).astype(np.float64) * 32767.0)
    return scaled.astype("<i2").reshape(-1)


def wav_header(rate_hz: int, data_bytes: int | None) -> bytes:
    """The 44-byte header of 16-bit mono WAV. `data_bytes` None means a stream of unknown length, written as the
    format's largest sizes, which players take as "until the end"."""
    size = 0xFFFFFFFF - 36 if data_bytes is None else data_bytes
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, rate_hz, rate_hz * 2, 2,
                       16, b"data", size)


def resample(samples: FloatArray, rate_hz: int, to_hz: int) -> FloatArray:
    """Windowed-sinc interpolation of [n] from `rate_hz` to `to_hz`: 64 taps, Kaiser window, -80 dB images."""
    taps, beta = 64, 8.0
    cutoff = 0.95 * min(1.0, to_hz / rate_hz)
    length = round(len(samples) * to_hz / rate_hz)
    half = int(np.ceil(taps / 2 / cutoff))
    padded = np.concatenate([np.zeros(half), samples.astype(np.float64), np.zeros(half + 1)])
    out = np.empty(length, np.float32)
    offsets = np.arange(-half + 1, half + 1)
    for first in range(0, length, 1 << 14):
        position = np.arange(first, min(first + (1 << 14), length)) * (rate_hz / to_hz)
        whole = position.astype(np.int64)
        distance = offsets[None, :] - (position - whole)[:, None]
        window = np.i0(beta * np.sqrt(np.clip(1.0 - (distance / half) ** 2, 0.0, 1.0))) / np.i0(beta)
        kernel = cutoff * np.sinc(cutoff * distance) * window
        out[first:first + len(position)] = (padded[whole[:, None] + offsets[None, :] + half] * kernel).sum(axis=1)
    return out
