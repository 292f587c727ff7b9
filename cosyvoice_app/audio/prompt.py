"""The prompt doctor: decode a clip, measure it, and accept it, accept it with warnings, or refuse it with numbers.

`load_prompt` is the one door through which every clip passes, whether it comes from the page, the API or the command
line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cosyvoice_app.audio import io
from cosyvoice_app.audio.vad import Activity, best_window, measure
from cosyvoice_app.errors import AppError, PromptError
from cosyvoice_app.types import FloatArray, PromptClip

MIN_S, MAX_S = 3.0, 15.0
MIN_RATE_HZ, GOOD_RATE_HZ = 8_000, 16_000

# Lossy encoders pad or trim a few milliseconds; a clip saved as 3.0 s must still count as 3.0 s.
_SLACK_S = 0.05
_MIN_SPEECH_S, _GOOD_SPEECH_S = 0.5, 2.0
_SILENT_DBFS, _QUIET_DBFS = -60.0, -40.0
_GOOD_SNR_DB = 15.0
_CLIPPED_SHARE = 0.001
_LONG_SILENCE_S = 1.0


class PromptRefused(PromptError):
    """A clip that was decoded and measured, and can't be used. `report` is what was measured."""

    def __init__(self, message: str, report: dict[str, Any]) -> None:
        super().__init__(message, param="prompt")
        self.report = report


@dataclass(frozen=True, slots=True)
class _Finding:
    """`code` is stable, for translation; `message` holds the measured value and what to do."""

    code: str
    message: str


def load_prompt(source: Path | bytes, *, name_hint: str = "", window_s: tuple[float, float] | None = None,
                max_bytes: int = io.MAX_BYTES) -> PromptClip:
    """Decode and judge a clip; with `window_s`, only its stretch (start, end) in seconds.

    Raises PromptError when it isn't audio, PromptRefused (with `.report`) when it is measured and unfit, TooLarge over
    `max_bytes`. A clip that is too long is refused with its best stretch named, never cut on the quiet.
    """
    decoded = io.decode(source, name_hint=name_hint, max_bytes=max_bytes)
    return _judge(decoded, window_s)


def prompt_from_samples(samples: npt.ArrayLike, rate_hz: int, *,
                        window_s: tuple[float, float] | None = None) -> PromptClip:
    """Judge audio that is already in memory: [n] or [n, channels], float in [-1, 1] or any integer type."""
    array = np.asarray(samples)
    if array.ndim not in (1, 2) or array.size == 0:
        raise PromptError(f"There is no audio in the clip: an array of shape {array.shape} was given; "
                          "[samples] or [samples, channels] is needed.", param="prompt")
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
        raise PromptError(f"The clip's samples are of type {array.dtype}; integers or floats are needed.",
                          param="prompt")
    if np.issubdtype(array.dtype, np.integer):
        info = np.iinfo(array.dtype)
        middle = 0 if info.min < 0 else (info.max + 1) // 2
        array = (array.astype(np.float64) - middle) / (info.max - middle + 1)
    mono = array.astype(np.float32) if array.ndim == 1 else array.mean(axis=1, dtype=np.float64).astype(np.float32)
    channels = 1 if array.ndim == 1 else array.shape[1]
    return _judge(io.Decoded(mono, int(rate_hz), "samples", str(array.dtype), channels), window_s)


def examine(source: Path | bytes, *, name_hint: str = "", window_s: tuple[float, float] | None = None,
            max_bytes: int = io.MAX_BYTES, load: Callable[..., PromptClip] = load_prompt) -> dict[str, Any]:
    """The doctor's report as JSON-ready data: {"ok": bool, "error": message or None, ...measures}. Never raises
    AppError. `load` may be a cache's way in the place of `load_prompt`.
    """
    try:
        return load(source, name_hint=name_hint, window_s=window_s, max_bytes=max_bytes).report
    except PromptRefused as refused:
        return refused.report
    except AppError as error:
        return {"ok": False, "error": error.message, "warnings": [], "findings": []}


def _judge(decoded: io.Decoded, window_s: tuple[float, float] | None) -> PromptClip:
    samples, rate_hz = decoded.samples, decoded.rate_hz
    _refuse_unusable_numbers(samples)
    if rate_hz < MIN_RATE_HZ:
        raise PromptError(f"The clip has {rate_hz} samples a second; at least {MIN_RATE_HZ} are needed, and "
                          f"{GOOD_RATE_HZ} or more for a good voice. Record it again at a higher rate.", param="prompt")
    if window_s is not None:
        samples = _take_window(samples, rate_hz, window_s)
    peak = float(np.abs(samples).max())
    if peak > 1.0:
        # Float files and lossy decoders may pass full scale; only the level changes, so nothing is lost.
        samples = samples / np.float32(peak)
    activity = measure(samples, rate_hz)
    rms_dbfs = _dbfs(float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))))
    clipped = _clipped_share(samples)
    report: dict[str, Any] = {
        "ok": True, "error": None,
        "duration_s": round(len(samples) / rate_hz, 3), "rate_hz": rate_hz, "container": decoded.container,
        "codec": decoded.codec, "channels": decoded.channels, "picked_channel": decoded.picked_channel,
        "truncated": decoded.truncated, "peak": round(peak, 4), "rms_dbfs": round(rms_dbfs, 2),
        "clipping_share": round(clipped, 6), "snr_db": round(activity.snr_db, 1),
        "speech_s": round(activity.speech_s, 2),
        "leading_silence_s": round(activity.leading_s, 2), "trailing_silence_s": round(activity.trailing_s, 2),
        "starts_mid_sound": activity.starts_mid_sound, "stops_mid_sound": activity.stops_mid_sound,
        "window_s": list(window_s) if window_s is not None else None, "suggested_window_s": None,
        "sha256": clip_sha256(samples, rate_hz),
    }
    refusal = _refusal(samples, rate_hz, activity, rms_dbfs, report)
    findings = _findings(report)
    report["findings"] = [finding.code for finding in findings]
    report["warnings"] = [finding.message for finding in findings]
    if refusal:
        report.update(ok=False, error=refusal)
        raise PromptRefused(refusal, report)
    return PromptClip(samples, rate_hz, report["sha256"], rms_dbfs, decoded.container, tuple(report["warnings"]),
                      report)


def clip_sha256(samples: FloatArray, rate_hz: int) -> str:
    """SHA-256 over the rate and the float32 little-endian samples: the clip's identity, free of names and
    containers.
    """
    digest = hashlib.sha256(f"{rate_hz}:".encode())
    digest.update(np.ascontiguousarray(samples, dtype="<f4").tobytes())
    return digest.hexdigest()


def _refuse_unusable_numbers(samples: FloatArray) -> None:
    broken = int(np.count_nonzero(~np.isfinite(samples)))
    if broken:
        raise PromptError(f"The clip holds {broken} samples that are not finite numbers, of {len(samples)}. "
                          "The program that saved it made a damaged file; export it again as 16-bit wav.",
                          param="prompt")


def _take_window(samples: FloatArray, rate_hz: int, window_s: tuple[float, float]) -> FloatArray:
    start_s, end_s = window_s
    duration_s = len(samples) / rate_hz
    if not (0 <= start_s < end_s <= duration_s + _SLACK_S):
        raise PromptError(f"The stretch {start_s:g} to {end_s:g} s was asked for, but the clip goes from 0 to "
                          f"{duration_s:.1f} s.", param="window_s")
    return samples[round(start_s * rate_hz):round(end_s * rate_hz)].copy()


def _refusal(samples: FloatArray, rate_hz: int, activity: Activity, rms_dbfs: float, report: dict[str, Any]) -> str:
    """Why the clip can't be used, or "". Fills `suggested_window_s` for clips that are too long."""
    duration_s = len(samples) / rate_hz
    needed = f"{MIN_S:.0f} to {MAX_S:.0f} s of speech are needed"
    if rms_dbfs < _SILENT_DBFS:
        return (f"The clip is silent: its level is {rms_dbfs:.0f} dBFS, and speech lies above {_QUIET_DBFS:.0f} dBFS. "
                "Check the microphone and record it again.")
    if duration_s < MIN_S - _SLACK_S:
        return f"The clip is {duration_s:.1f} s long; {needed}. Record or upload a longer one."
    if duration_s > MAX_S + _SLACK_S:
        window = best_window(activity, samples, rate_hz, MIN_S, MAX_S)
        window = (round(window[0], 1), round(window[1], 1))
        report["suggested_window_s"] = list(window)
        return (f"The clip is {duration_s:.1f} s long; {needed}. Its best stretch is {window[0]:.1f} to "
                f"{window[1]:.1f} s: use that, or trim the clip yourself.")
    if activity.speech_s < _MIN_SPEECH_S:
        return (f"Only {activity.speech_s:.1f} s of the {duration_s:.1f} s clip sound like speech; {needed}. "
                "Record it again, closer to the microphone.")
    return ""


def _findings(report: dict[str, Any]) -> list[_Finding]:
    found = []

    def note(code: str, when: bool, message: str) -> None:
        if when:
            found.append(_Finding(code, message))

    note("low_rate", report["rate_hz"] < GOOD_RATE_HZ,
         f"The clip has only {report['rate_hz']} samples a second ({GOOD_RATE_HZ} or more are best), so the voice will "
         "sound muffled.")
    note("quiet", report["rms_dbfs"] < _QUIET_DBFS,
         f"The clip is very quiet ({report['rms_dbfs']:.0f} dBFS); record it louder or closer.")
    note("clipped", report["clipping_share"] > _CLIPPED_SHARE,
         f"The clip is distorted: {100 * report['clipping_share']:.1f} % of its samples are cut off at the peak. "
         "Record it with less gain.")
    note("noisy", report["snr_db"] < _GOOD_SNR_DB,
         f"There is noise under the voice (about {report['snr_db']:.0f} dB below it; {_GOOD_SNR_DB:.0f} dB or more is "
         "good). The clone will copy some of it.")
    note("little_speech", report["speech_s"] < _GOOD_SPEECH_S,
         f"Only {report['speech_s']:.1f} s of the clip sound like speech; {MIN_S:.0f} s or more give a better "
         "likeness.")
    note("stops_mid_sound", report["stops_mid_sound"],
         "The clip stops in the middle of a sound; leave a short silence at its end.")
    note("starts_mid_sound", report["starts_mid_sound"],
         "The clip starts in the middle of a sound; leave a short silence at its start.")
    silence_s = max(report["leading_silence_s"], report["trailing_silence_s"])
    note("long_silence", silence_s > _LONG_SILENCE_S,
         f"There are {silence_s:.1f} s of silence at one end of the clip; trim it.")
    note("truncated", report["truncated"],
         f"The file is damaged after {report['duration_s']:.1f} s; only the part before was used.")
    note("picked_channel", report["picked_channel"] is not None,
         f"The clip's {report['channels']} channels cancel out or are mostly empty; the loudest one was used.")
    return found


def _clipped_share(samples: FloatArray) -> float:
    """Share of samples in flat tops: runs of three or more within 0.1 % of the peak."""
    peak = float(np.abs(samples).max(initial=0.0))
    if peak == 0.0:
        return 0.0
    share = 0
    for side in (samples >= 0.999 * peak, samples <= -0.999 * peak):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], side.astype(np.int8), [0]))))
        runs = edges[1::2] - edges[::2]
        share += int(runs[runs >= 3].sum())
    return share / len(samples)


def _dbfs(amplitude: float) -> float:
    return 20.0 * float(np.log10(max(amplitude, 1e-10)))
