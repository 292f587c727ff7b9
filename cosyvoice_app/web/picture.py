"""A small picture of a result: waveform above, spectrogram below. Takes a few milliseconds."""

from __future__ import annotations

import base64
import io
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from PIL import Image

from cosyvoice_app.types import Audio

WIDTH, WAVE_HEIGHT, SPECTRUM_HEIGHT, GAP = 720, 52, 100, 6
TOP_HZ = 10_000.0
FLOOR_DB = -80.0
WINDOW = 1024
WAVE_RGB = (79, 70, 229)
# Dark indigo to warm white, at 0, 1/3, 2/3 and 1: readable on light and dark pages.
STOPS = np.array([[24, 22, 48], [79, 70, 229], [244, 114, 120], [255, 244, 214]], dtype=np.float32)


def picture_png(audio: Audio) -> bytes:
    """PNG bytes, `WIDTH` pixels wide, transparent behind the waveform."""
    canvas = np.zeros((WAVE_HEIGHT + GAP + SPECTRUM_HEIGHT, WIDTH, 4), dtype=np.uint8)
    canvas[:WAVE_HEIGHT] = _waveform(audio.samples)
    canvas[WAVE_HEIGHT + GAP :] = _spectrogram(audio)
    out = io.BytesIO()
    Image.fromarray(canvas, "RGBA").save(out, "PNG", optimize=False)
    return out.getvalue()


def picture_data_uri(audio: Audio) -> str:
    return "data:image/png;base64," + base64.b64encode(picture_png(audio)).decode()


def _waveform(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Peaks per column, drawn mirrored, at least one pixel high."""
    edges = np.linspace(0, len(samples), WIDTH + 1).astype(int)
    peaks = np.array([np.abs(samples[a : max(b, a + 1)]).max(initial=0.0) for a, b in pairwise(edges)])
    half = WAVE_HEIGHT / 2
    reach = np.maximum(peaks / max(float(peaks.max(initial=0.0)), 0.1) * (half - 1), 0.5)
    distance = np.abs(np.arange(WAVE_HEIGHT)[:, None] + 0.5 - half)
    image = np.zeros((WAVE_HEIGHT, WIDTH, 4), dtype=np.uint8)
    image[..., :3] = WAVE_RGB
    image[..., 3] = np.where(distance <= reach[None, :], 255, 0)
    return image


def _spectrogram(audio: Audio) -> npt.NDArray[np.uint8]:
    """Power in dB below the loudest bin, 0 to `TOP_HZ` upwards, one FFT a column."""
    samples = np.pad(audio.samples, WINDOW // 2)
    starts = np.linspace(0, max(len(samples) - WINDOW, 0), WIDTH).astype(int)
    frames = samples[starts[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW).astype(np.float32)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    top_bin = max(2, int(min(TOP_HZ, audio.rate_hz / 2) / audio.rate_hz * WINDOW))
    rows = np.linspace(top_bin, 0, SPECTRUM_HEIGHT).astype(int)
    level_db = 10 * np.log10(power[:, rows].T / max(float(power.max()), 1e-12) + 1e-12)
    shade = np.clip(1 - level_db / FLOOR_DB, 0, 1) * (len(STOPS) - 1)
    low = np.minimum(shade.astype(int), len(STOPS) - 2)
    mix = (shade - low)[..., None]
    image = np.full((SPECTRUM_HEIGHT, WIDTH, 4), 255, dtype=np.uint8)
    image[..., :3] = (STOPS[low] * (1 - mix) + STOPS[low + 1] * mix).astype(np.uint8)
    return image
