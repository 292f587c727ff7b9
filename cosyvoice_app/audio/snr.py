"""How far speech stands above the noise of its clip, for batches: the prompt doctor's own measure, clip by clip.

The method is that of `cosyvoice_app.audio.vad`, and there is no second one: frames of 20 ms are speech or pause by
energy; the noise is the 33rd percentile of the pauses' power, the signal the mean power of speech less that noise. It
runs in numpy on the CPU (some 5 ms for 6 s), so clips on another device are copied.

Limits, measured in `tests/test_snr.py` and told in docs/features.md: it is too high in heavy noise, where only the
loudest sounds are found (by 3 to 6 dB at 0 dB); music and other voices count as speech, and room echo as signal; it
needs pauses that hold the room's noise, which a gate or an editor may have made digital zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cosyvoice_app.audio.framing import WHOLE
from cosyvoice_app.audio.vad import HOP_S, measure
from cosyvoice_app.errors import BadInput
from cosyvoice_app.types import FloatArray

# As in `vad`: under this a frame is digital silence, and a shorter pause says little about the noise.
_DIGITAL_SILENCE_DBFS, _ENOUGH_PAUSE_S = -90.0, 0.2


@dataclass(frozen=True, slots=True)
class Snr:
    """`db` is NaN where no speech was found. `pause_s` is what the noise was measured on. `weak`: why not to trust the
    number, or "".
    """

    db: float
    speech_s: float
    pause_s: float
    weak: str = ""


def estimate_snr(samples: Tensor, rate_hz: int, lengths: Tensor | None = None) -> tuple[Snr, ...]:
    """One estimate for each clip of samples [B, n], of which `lengths` [B] samples count. BadInput names a clip with
    NaN or infinite samples.
    """
    if samples.ndim != 2 or not samples.is_floating_point():
        raise BadInput(f"samples must be [clips, samples] of floats, got {list(samples.shape)} of {samples.dtype}.")
    if lengths is not None and (not isinstance(lengths, Tensor) or lengths.ndim != 1 or lengths.dtype not in WHOLE):
        raise BadInput(f"lengths must be a tensor of {len(samples)} whole numbers, one a clip.")
    clips = samples.detach().float().cpu().numpy()
    ends = [clips.shape[1]] * len(clips) if lengths is None else [int(n) for n in lengths.tolist()]
    if len(ends) != len(clips) or any(not 0 <= end <= clips.shape[1] for end in ends):
        raise BadInput(f"lengths must be {len(clips)} numbers of 0 to {clips.shape[1]}, got {ends[:8]}.")
    return tuple(_of_clip(clip[:end], rate_hz, i) for i, (clip, end) in enumerate(zip(clips, ends, strict=True)))


def snr_db(samples: Tensor, rate_hz: int, lengths: Tensor | None = None) -> Tensor:
    """The same as numbers [B], float32 on the samples' device; NaN where no speech was found."""
    return torch.tensor([clip.db for clip in estimate_snr(samples, rate_hz, lengths)], device=samples.device)


def _of_clip(samples: FloatArray, rate_hz: int, index: int) -> Snr:
    if not np.isfinite(samples).all():
        raise BadInput(f"Clip {index} (counted from 0) holds samples that are not finite numbers.")
    activity = measure(samples, rate_hz)
    pause = ~activity.active & (activity.level_dbfs > _DIGITAL_SILENCE_DBFS)
    pause_s = float(pause.sum()) * HOP_S
    if not activity.speech_s:
        return Snr(math.nan, 0.0, pause_s, "no speech was found")
    weak = ""
    if pause_s < _ENOUGH_PAUSE_S:
        weak = (
            f"only {pause_s:.2f} s of pause hold any noise; measured on the quietest sounds instead, the SNR may be "
            "far higher"
        )
    return Snr(activity.snr_db, activity.speech_s, pause_s, weak)
