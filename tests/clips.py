"""Test clips: two real voices of exactly 6.0 s (P0, P1), and from each the containers, rates, lengths and damages
users send.

FFmpeg's libraries (PyAV) write what libsndfile doesn't, so no ffmpeg program is needed.
"""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import soundfile

DATA = Path(__file__).parent / "data"
P0_TEXT = "And always that same pretext is offered, it looks like the thing."
P1_TEXT = "所有因外部冲击导致房价泡沫破灭的经济体"
RATES_HZ = (8000, 11025, 16000, 22050, 44100, 48000, 96000)
LENGTHS_S = (2.9, 3.0, 15.0, 15.1, 31.0, 120.0)


def read(name: str) -> tuple[np.ndarray, int]:
    samples, rate_hz = soundfile.read(DATA / name, dtype="float32")
    return samples, rate_hz


def wav_bytes(samples: np.ndarray, rate_hz: int, subtype: str = "PCM_16", container: str = "WAV") -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate_hz, subtype=subtype, format=container)
    return stream.getvalue()


def change_rate(samples: np.ndarray, rate_hz: int, to_hz: int) -> np.ndarray:
    """Band-limited by way of the spectrum: exact enough for test clips."""
    if rate_hz == to_hz:
        return samples
    n = round(len(samples) * to_hz / rate_hz)
    spectrum = np.fft.rfft(samples)
    kept = np.zeros(n // 2 + 1, complex)
    m = min(len(spectrum), len(kept))
    kept[:m] = spectrum[:m]
    return (np.fft.irfft(kept, n) * (n / len(samples))).astype(np.float32)


def encode_av(samples: np.ndarray, rate_hz: int, container: str, codec: str) -> bytes:
    """Mono [n] to bytes of `container` with FFmpeg's `codec`."""
    stream = io.BytesIO()
    with av.open(stream, "w", format=container) as out:
        track = out.add_stream(codec, rate=rate_hz, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None], np.float32), format="flt", layout="mono")
        frame.rate = rate_hz
        fifo_rate = av.AudioResampler(
            format=track.codec_context.format,
            layout="mono",
            rate=rate_hz,
            frame_size=track.codec_context.frame_size or 1024,
        )
        for piece in [*fifo_rate.resample(frame), *fifo_rate.resample(None)]:
            out.mux(track.encode(piece))
        out.mux(track.encode(None))
    return stream.getvalue()


def make_clips(base: str, out: Path) -> Path:
    """Write every clip of the bug log made from `base` (a file of tests/data) into the directory `out`."""
    out.mkdir(parents=True, exist_ok=True)
    x, sr = read(base)

    def write(name: str, data: bytes) -> None:
        (out / name).write_bytes(data)

    plain = wav_bytes(x, sr)
    write("p.wav", plain)
    write("c.flac", wav_bytes(x, sr, container="FLAC"))
    for rate_hz in RATES_HZ:
        write(f"sr_{rate_hz}.wav", wav_bytes(change_rate(x, sr, rate_hz), rate_hz))
    high = change_rate(x, sr, 48000)
    write("st_48000.wav", wav_bytes(np.stack([high, high], axis=1), 48000))
    mp3 = wav_bytes(x, sr, "MPEG_LAYER_III", "MP3")
    write("c.mp3", mp3)
    write("c.m4a", encode_av(x, sr, "ipod", "aac"))
    write("c.ogg", wav_bytes(high, 48000, "OPUS", "OGG"))
    webm = encode_av(high, 48000, "webm", "libopus")
    write("c.webm", webm)
    write("mp3_named.wav", mp3)
    for name in ("wav_named.mp3", "noext"):
        write(name, plain)
    write("text.wav", b"this is not audio")
    for seconds in LENGTHS_S:
        write(f"len_{seconds}.wav", wav_bytes(np.resize(x, round(seconds * sr)), sr))
    write("zero.wav", b"")
    write("header.wav", plain[:44])
    write("cut.wav", plain[: 44 + sr * 2 * 2])
    write("endless.wav", plain[:4] + b"\xff" * 4 + plain[8:40] + b"\xff" * 4 + plain[44:])
    write("stub.webm", webm[:110])
    return out
