"""Where a clip holds speech, by energy alone: enough to judge a recording, and explainable with its numbers.

Levels are of 20 ms frames every 10 ms. The loud level is their 95th percentile, the floor their 10th. A frame is
active above floor + 8 dB, kept between 35 and 12 dB under the loud level: the first bound keeps breath and room out
of clean clips, the second finds speech in clips without a pause, whose 10th percentile is itself speech. Never under
floor + 3 dB, where in very noisy clips everything would be active.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cosyvoice_app.types import FloatArray

HOP_S, FRAME_S = 0.010, 0.020
_ABSOLUTE_FLOOR_DBFS = -60.0
_MAX_GAP_S, _MIN_BURST_S = 0.20, 0.05
_MAX_SNR_DB = 80.0
_DIGITAL_SILENCE_DBFS = -90.0
# Speech at full level within this much of an end means that the end was cut there.
_EDGE_S, _EDGE_BELOW_LOUD_DB = 0.03, 20.0


@dataclass(frozen=True, slots=True)
class Activity:
    """`active` [frames] every HOP_S, gaps under 0.2 s closed and bursts under 0.05 s dropped; `level_dbfs` [frames]."""

    active: npt.NDArray[np.bool_]
    level_dbfs: npt.NDArray[np.float64]
    speech_s: float
    snr_db: float
    leading_s: float
    trailing_s: float
    starts_mid_sound: bool
    stops_mid_sound: bool


def measure(samples: FloatArray, rate_hz: int) -> Activity:
    """Speech, pauses and noise of float32 mono [n]. `snr_db` is explained at `_snr_db`."""
    level = frame_levels_dbfs(samples, rate_hz)
    duration_s = len(samples) / rate_hz
    loud, floor = float(np.percentile(level, 95)), float(np.percentile(level, 10))
    threshold = max(min(max(floor + 8.0, loud - 35.0), loud - 12.0), floor + 3.0, _ABSOLUTE_FLOOR_DBFS)
    raw = level > threshold
    active = _drop_runs(_fill_gaps(raw, round(_MAX_GAP_S / HOP_S)), round(_MIN_BURST_S / HOP_S))
    if not active.any():
        return Activity(active, level, 0.0, 0.0, duration_s, duration_s, False, False)
    where = np.flatnonzero(active)
    edge = max(1, round(_EDGE_S / HOP_S) - 1)
    high = loud - _EDGE_BELOW_LOUD_DB
    return Activity(
        active=active,
        level_dbfs=level,
        speech_s=float(active.sum()) * HOP_S,
        snr_db=_snr_db(level, raw),
        leading_s=float(where[0]) * HOP_S,
        trailing_s=max(0.0, duration_s - float(where[-1]) * HOP_S - FRAME_S),
        starts_mid_sound=bool(level[:edge].min() > high),
        stops_mid_sound=bool(level[-edge:].min() > high),
    )


def frame_levels_dbfs(samples: FloatArray, rate_hz: int) -> npt.NDArray[np.float64]:
    """RMS of each frame in dBFS, [frames]; a clip shorter than a frame gives one."""
    hop, frame = max(1, round(HOP_S * rate_hz)), max(1, round(FRAME_S * rate_hz))
    total = np.concatenate(([0.0], np.cumsum(np.square(samples, dtype=np.float64))))
    starts = np.arange(0, max(1, len(samples) - frame + 1), hop)
    ends = np.minimum(starts + frame, len(samples))
    power = np.maximum(total[ends] - total[starts], 0.0) / np.maximum(ends - starts, 1)
    return 10.0 * np.log10(power + 1e-12)


def best_window(activity: Activity, samples: FloatArray, rate_hz: int, min_s: float,
                max_s: float) -> tuple[float, float]:
    """(start, end) in seconds of the stretch of `min_s` to `max_s` with most speech that begins and ends in a pause.

    Of nearly equal ones (within 5 %) the one with the best active level above its own pauses. When speech has no
    pauses, the loudest `max_s`.
    """
    duration_s = len(samples) / rate_hz
    edges = np.flatnonzero(np.diff(np.concatenate(([False], activity.active, [False])).astype(np.int8)))
    starts_s = np.maximum(0.0, edges[::2] * HOP_S - 0.15)
    ends_s = np.minimum(duration_s, edges[1::2] * HOP_S + FRAME_S + 0.15)
    spoken = np.concatenate(([0], np.cumsum(activity.active))) * HOP_S
    candidates: list[tuple[float, float, float, float]] = []
    for i, start_s in enumerate(starts_s):
        for end_s in ends_s[i:]:
            if end_s - start_s > max_s:
                break
            if end_s - start_s >= min_s:
                a, b = int(start_s / HOP_S), min(int(end_s / HOP_S), len(activity.active))
                candidates.append((float(spoken[b] - spoken[a]), _contrast_db(activity, a, b), float(start_s),
                                   float(end_s)))
    if candidates:
        most = max(c[0] for c in candidates)
        _, _, start, end = max((c for c in candidates if c[0] >= 0.95 * most), key=lambda c: c[1])
        return start, end
    power = np.concatenate(([0.0], np.cumsum(10.0 ** (activity.level_dbfs / 10.0))))
    width = min(round(max_s / HOP_S), len(power) - 1)
    start = float(np.argmax(power[width:] - power[:-width])) * HOP_S
    return start, min(duration_s, start + max_s)


def _contrast_db(activity: Activity, a: int, b: int) -> float:
    levels, active = activity.level_dbfs[a:b], activity.active[a:b]
    return float(levels[active].mean() - (levels[~active].mean() if (~active).any() else levels.min()))


def _snr_db(level: npt.NDArray[np.float64], active: npt.NDArray[np.bool_]) -> float:
    """Mean active power over noise power: the lower third of the other frames, free of fading sounds and of digital
    silence.
    """
    power = 10.0 ** (level / 10.0)
    rest = power[~active & (level > _DIGITAL_SILENCE_DBFS)]
    # Less than 0.2 s outside speech says little about the noise; the quietest frames are an upper bound for it then.
    noise = float(np.percentile(rest, 33) if len(rest) * HOP_S >= 0.2 else np.percentile(power, 5))
    signal = float(power[active].mean()) - noise if active.any() else 0.0
    return float(np.clip(10.0 * np.log10(max(signal, 1e-12) / max(noise, 1e-12)), -20.0, _MAX_SNR_DB))


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _fill_gaps(mask: npt.NDArray[np.bool_], longest: int) -> npt.NDArray[np.bool_]:
    filled = mask.copy()
    for a, b in _runs(~mask):
        if a > 0 and b < len(mask) and b - a <= longest:
            filled[a:b] = True
    return filled


def _drop_runs(mask: npt.NDArray[np.bool_], shortest: int) -> npt.NDArray[np.bool_]:
    kept = mask.copy()
    for a, b in _runs(mask):
        if b - a < shortest:
            kept[a:b] = False
    return kept
