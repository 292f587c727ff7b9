"""One clip as samples at a wanted rate, from a file, from bytes, or from samples at another rate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio
from torch import Tensor

from cosyvoice_app.audio import encode
from cosyvoice_app.audio.io import decode
from cosyvoice_app.errors import BadInput, PromptError, TooLarge
from cosyvoice_app.types import Audio, FloatArray

Source = str | Path | bytes | Audio | FloatArray | Tensor
"""A path, the bytes of a file, audio with its rate, or bare samples [n] at the rate that is wanted."""

# torchaudio's resampler tabulates one filter for each phase; two rates with a small common divisor have very many.
_MOST_TAPS = 1 << 21


@dataclass(frozen=True, slots=True)
class Loaded:
    """`samples` mono float32 [n] at the wanted rate; `rate_hz` and `seconds` are those of the clip as it came."""

    samples: FloatArray
    rate_hz: int
    seconds: float
    label: str = ""
    """The file's name in quotes after a space, or nothing: for messages."""


def load_clip(source: Source, rate_hz: int | None, *, max_seconds: float, max_bytes: int) -> Loaded:
    """`rate_hz` None keeps the clip's own rate, which bare samples don't have. Levels are untouched, and samples
    that are not finite are left for the caller to judge.

    Raises BadInput (PromptError where the file isn't audio) or TooLarge, naming the clip.
    """
    if isinstance(source, str | Path | bytes):
        samples, had_hz = _decoded(source, max_seconds, max_bytes)
        label = _label(source)
    else:
        samples, had_hz = _plain(source, rate_hz or 0)
        label = ""
    if len(samples) > max_seconds * had_hz:
        raise _too_long(label, len(samples) / had_hz, max_seconds)
    return Loaded(resampled(samples, had_hz, rate_hz or had_hz), had_hz, len(samples) / had_hz, label)


def not_finite(clip: Loaded) -> BadInput:
    """The error for a clip that holds NaN or an infinity."""
    at = int(np.flatnonzero(~np.isfinite(clip.samples))[0]) / len(clip.samples)
    return BadInput(
        f"The clip{clip.label} holds a sample that is not a number (NaN or infinity) about {at * clip.seconds:.3f} s "
        "from its start. Export it again from where it was made.",
        param="samples",
    )


def resampled(samples: FloatArray, rate_hz: int, to_hz: int) -> FloatArray:
    """Band-limited. Rates that share a large divisor, as all usual ones do, go through torchaudio's resampler; the
    others through the app's own, whose memory doesn't depend on the ratio.
    """
    if rate_hz == to_hz or not len(samples):
        return samples
    divisor = gcd(rate_hz, to_hz)
    if (to_hz // divisor) * (rate_hz // divisor) > _MOST_TAPS:
        return encode.resample(samples, rate_hz, to_hz)
    with torch.inference_mode():
        # A copy where the array is read-only: torch has no such tensors, and warns.
        tensor = torch.from_numpy(samples if samples.flags.writeable else samples.copy())
        moved: FloatArray = _resampler(rate_hz, to_hz)(tensor[None])[0].numpy()
    return moved


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _resampler(rate_hz: int, to_hz: int) -> torchaudio.transforms.Resample:
    """Holds its filters: making them costs more than using them on a short clip."""
    return torchaudio.transforms.Resample(rate_hz, to_hz)


def _decoded(source: str | Path | bytes, max_seconds: float, max_bytes: int) -> tuple[FloatArray, int]:
    label = _label(source)
    source = Path(source) if isinstance(source, str) else source
    name = source.name if isinstance(source, Path) else ""
    size = _file_size(source) if isinstance(source, Path) else 0
    if isinstance(source, Path) and size <= max_bytes and (quick := _mono_pcm(source, max_seconds)) is not None:
        return quick
    # The reader makes room for all that is allowed, which is far more than most files need.
    allowed = min(max_bytes, max(1, size)) if isinstance(source, Path) else max_bytes
    try:
        decoded = decode(source, name_hint=name, max_bytes=allowed, max_seconds=max_seconds)
    except TooLarge as error:
        raise TooLarge(
            f"The clip{label} is larger than {max_bytes / 1e6:.0f} MB, the most that is accepted. Save it "
            "in a compressed format or cut it.",
            param="clip",
        ) from error
    except PromptError as error:
        # The decoder speaks of prompts, which are short; here only the length asked for counts.
        seconds = _claimed_seconds(source)
        if seconds > max_seconds:
            raise _too_long(label, seconds, max_seconds) from error
        raise
    return decoded.samples, decoded.rate_hz


def _mono_pcm(path: Path, max_seconds: float) -> tuple[FloatArray, int] | None:
    """What `decode` gives for a mono wav or flac, in less than half the time and with the interpreter free meanwhile,
    because libsndfile reads the file by itself. None for everything else, and for what is wrong in any way.
    """
    try:
        with soundfile.SoundFile(str(path)) as file:
            rate_hz: int = file.samplerate
            plain = file.format in ("WAV", "WAVEX", "FLAC") and file.channels == 1 and file.subtype.startswith("PCM_")
            if not plain or not 0 < file.frames <= max_seconds * rate_hz:
                return None
            samples: FloatArray = file.read(dtype="float32")
    except (soundfile.LibsndfileError, OSError, UnicodeError):
        return None
    return (samples, rate_hz) if len(samples) else None


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # the reader says what is wrong with it


def _plain(source: Audio | FloatArray | Tensor, rate_hz: int) -> tuple[FloatArray, int]:
    had_hz = source.rate_hz if isinstance(source, Audio) else rate_hz
    raw = source.samples if isinstance(source, Audio) else source
    array = raw.detach().cpu().numpy() if isinstance(raw, Tensor) else np.asarray(raw)
    if array.ndim != 1 or array.dtype.kind != "f":
        raise BadInput(
            f"The samples are {array.dtype} of shape {list(array.shape)}; they must be mono floats, [n].",
            param="samples",
        )
    if had_hz <= 0:
        raise BadInput(f"The rate is {had_hz} Hz; it must be greater than 0.", param="rate_hz")
    return np.ascontiguousarray(array, dtype=np.float32), had_hz


def _label(source: str | Path | bytes) -> str:
    return "" if isinstance(source, bytes) else f" {Path(source).name!r}"


def _claimed_seconds(source: Path | bytes) -> float:
    if isinstance(source, bytes):
        return 0.0
    try:
        return float(soundfile.info(str(source)).duration)
    except (soundfile.LibsndfileError, OSError):
        return 0.0


def _too_long(label: str, seconds: float, max_seconds: float) -> BadInput:
    return BadInput(
        f"The clip{label} is {seconds:.0f} s long; at most {max_seconds:.0f} s are taken. Cut it into "
        "parts, or raise the limit.",
        param="clip",
    )
