"""Draw docs/features.png, every stage from samples to features for one clip: `python docs/make_features.py`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import torch
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from cosyvoice_app.audio.features import (  # noqa: E402
    Features,
    deltas,
    extractor_for,
    frame_audio,
    mel_filters,
    power_spectrum,
    window,
)
from cosyvoice_app.audio.normalise import UtteranceNorm, normalise  # noqa: E402

WIDTH, HEIGHT, LEFT, TOP, GAP = 900, 120, 14, 26, 14
INK, PALE = (30, 32, 48), (236, 237, 246)
STOPS = np.array([[24, 22, 48], [79, 70, 229], [244, 114, 120], [255, 244, 214]], np.float64)
RATE_HZ, N_FFT, FRAME = 16_000, 512, 400
HANN = window("hann", FRAME, True, torch.device("cpu"), torch.float32)

Pixels = npt.NDArray[np.uint8]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clip", type=Path, default=ROOT / "tests" / "data" / "p0_en.flac")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "features.png")
    asked = parser.parse_args()
    stages = draw_stages(load(asked.clip))
    page = Image.new("RGB", (WIDTH + 2 * LEFT, len(stages) * (HEIGHT + TOP + GAP) + GAP), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(15)
    for number, (title, pixels) in enumerate(stages):
        y = GAP + number * (HEIGHT + TOP + GAP)
        pen.text((LEFT, y), title, fill=INK, font=font)
        page.paste(Image.fromarray(pixels), (LEFT, y + TOP))
    page.save(asked.out, optimize=True)
    print(asked.out)


def load(path: Path) -> torch.Tensor:
    """[1, n] at 16 kHz, at most 3 s."""
    import torchaudio.functional

    samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    wave = torch.from_numpy(samples.mean(1))[None]
    return torchaudio.functional.resample(wave, rate_hz, RATE_HZ)[:, : 3 * RATE_HZ]


def draw_stages(samples: torch.Tensor) -> list[tuple[str, Pixels]]:
    frames, _ = frame_audio(samples, RATE_HZ)
    loud = int(frames[0].square().sum(1).argmax())
    one = frames[0, loud]
    shaped = one * HANN
    power = power_spectrum(frames * HANN, N_FFT)
    filters = mel_filters(40, N_FFT, RATE_HZ, 0.0, RATE_HZ / 2, "slaney", False, "cpu", torch.float32)
    log_mel = extractor_for("logmel", RATE_HZ)(samples).values
    mfcc = extractor_for("mfcc", RATE_HZ)(samples)
    normal = normalise(mfcc.values, mfcc.lengths, UtteranceNorm())
    slopes = deltas(Features(normal, mfcc.lengths)).values
    seconds = samples.shape[1] / RATE_HZ
    return [
        (f"samples: {seconds:.1f} s at 16 kHz", curves([samples[0].numpy()])),
        (f"frame {loud}: 25 ms of samples, and times the window", curves([one.numpy(), shaped.numpy()])),
        (f"power spectrum: {power.shape[1]} frames x {power.shape[2]} bins, dB", heat(db(power[0]))),
        ("mel filters: 40 of them, 0 to 8 kHz", curves([f.numpy() for f in filters.T], whole=False)),
        (f"log mel: {log_mel.shape[1]} frames x {log_mel.shape[2]} bins", heat(log_mel[0].numpy())),
        (f"MFCC: {mfcc.values.shape[1]} frames x {mfcc.values.shape[2]} coefficients (first left out)",
         heat(mfcc.values[0, :, 1:].numpy())),
        ("the same after per-utterance mean and variance normalisation", heat(normal[0, :, 1:].numpy())),
        ("their deltas", heat(slopes[0, :, 1:].numpy())),
    ]  # fmt: skip


def db(power: torch.Tensor) -> npt.NDArray[np.float32]:
    level: npt.NDArray[np.float32] = (10 * power.clamp_min(power.max() * 1e-8).log10()).numpy()
    return level


def heat(values: npt.NDArray[np.float32]) -> Pixels:
    """[frames, bins] with time to the right and bins upwards; the middle 98 % of the values span the colours."""
    low, high = np.percentile(values, [1, 99])
    rows = np.linspace(values.shape[1] - 1, 0, HEIGHT).round().astype(int)
    columns = np.linspace(0, values.shape[0] - 1, WIDTH).round().astype(int)
    shade = np.clip((values.T[rows][:, columns] - low) / max(high - low, 1e-9), 0, 1) * (len(STOPS) - 1)
    under = np.minimum(shade.astype(int), len(STOPS) - 2)
    mix = (shade - under)[..., None]
    pixels: Pixels = (STOPS[under] * (1 - mix) + STOPS[under + 1] * mix).astype(np.uint8)
    return pixels


def curves(lines: list[npt.NDArray[np.float32]], whole: bool = True) -> Pixels:
    """Lines over one another, the first pale; `whole` draws around zero in the middle, else from the bottom."""
    image = Image.new("RGB", (WIDTH, HEIGHT), PALE)
    pen = ImageDraw.Draw(image)
    most = max(float(np.abs(line).max()) for line in lines) or 1.0
    for number, line in enumerate(lines):
        x = np.linspace(0, WIDTH - 1, len(line))
        y = HEIGHT / 2 - line / most * (HEIGHT / 2 - 4) if whole else HEIGHT - 3 - line / most * (HEIGHT - 8)
        colour = (170, 172, 200) if whole and number == 0 and len(lines) > 1 else (79, 70, 229)
        pen.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=colour)
    return np.asarray(image)


if __name__ == "__main__":
    main()
