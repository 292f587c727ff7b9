"""Frames to features, row by row: window, spectrum, mel, logarithm, cosine transform.

Rows go through in blocks of one size, the last one filled up, so that the working set stays in cache, and so that what
comes out for a frame depends on nothing but that frame: matrix products and transforms of other shapes may take other
paths with other rounding. (`tests/test_features_accuracy.py` checks that a row's place in the block and the number of
threads leave no trace.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cosyvoice_app.audio.framing import WindowName, window
from cosyvoice_app.audio.mel import MelBank, dct_matrix, mel_filters

_BLOCK_ROWS = 512
_BAND = 32
"""Filters computed together: each such band of them meets only the bins that any of them touches."""
_TINY_POWER = 1e-30
"""Under the root of a magnitude, whose slope at 0 would be infinite."""


@dataclass(frozen=True, slots=True)
class Spectral:
    """What happens to a frame. `root_floor` is added to the power before the root when `power` is 1."""

    frame: int
    n_fft: int
    window: WindowName
    periodic: bool
    bank: MelBank
    floor: float
    floor_mode: Literal["add", "clamp"] = "clamp"
    log: Literal["ln", "log10", "db"] = "ln"
    power: Literal[1, 2] = 2
    root_floor: float = 0.0
    preemphasis: float = 0.0
    remove_dc: bool = False


def power_spectrum(frames: Tensor, n_fft: int) -> Tensor:
    """|X|^2 [..., n_fft // 2 + 1] of windowed `frames` [..., n], n <= n_fft."""
    return _squares(frames, n_fft).sum(dim=-1)


def magnitude_spectrum(frames: Tensor, n_fft: int) -> Tensor:
    """|X| [..., n_fft // 2 + 1] of windowed `frames` [..., n], n <= n_fft. Its gradient at 0 is 0."""
    return power_spectrum(frames, n_fft).clamp_min(_TINY_POWER).sqrt()


def in_blocks(work: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """`work(rows)` for rows [N, n] that it treats one by one: on the CPU in blocks of one size, elsewhere at once."""
    if rows.device.type != "cpu":
        return work(rows)
    blocks = []
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        if len(block) == _BLOCK_ROWS:
            blocks.append(work(block))
        else:
            blocks.append(work(F.pad(block, (0, 0, 0, _BLOCK_ROWS - len(block))))[: len(block)])
    return torch.cat(blocks) if len(blocks) != 1 else blocks[0]


def log_mel_rows(frames: Tensor, spec: Spectral) -> Tensor:
    """Frames [N, frame] -> log mel energies [N, bins]."""
    frames = frames * _window(spec, frames) if not (spec.remove_dc or spec.preemphasis) else _prepared(frames, spec)
    squares = _squares(frames, spec.n_fft)
    if spec.power == 1:
        squares = (squares[..., 0] + squares[..., 1]).add_(spec.root_floor).clamp_min_(_TINY_POWER).sqrt_()
    else:
        squares = squares.flatten(1)
    bands = _bands(spec.bank, spec.power == 2, str(frames.device), frames.dtype)
    mel = torch.cat([squares[:, low:high] @ filters for low, high, filters in bands], dim=1)
    mel = mel.add_(spec.floor) if spec.floor_mode == "add" else mel.clamp_min_(spec.floor)
    if spec.log == "ln":
        return mel.log_()
    return mel.log10_() if spec.log == "log10" else mel.log10_().mul_(10.0)


def cepstra_rows(log_mel: Tensor, coefficients: int, lifter: int) -> Tensor:
    """Log mel energies [N, bins] -> [N, coefficients]."""
    return log_mel @ dct_matrix(log_mel.shape[1], coefficients, lifter, str(log_mel.device), log_mel.dtype)


def _window(spec: Spectral, like: Tensor) -> Tensor:
    return window(spec.window, spec.frame, spec.periodic, like.device, like.dtype)


def _prepared(frames: Tensor, spec: Spectral) -> Tensor:
    """Kaldi's order: the mean goes, then the pre-emphasis, then the window."""
    if spec.remove_dc:
        frames = frames - frames.mean(dim=-1, keepdim=True)
    if spec.preemphasis:
        # The sample before the first is taken to be the first.
        before = torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
        frames = frames - spec.preemphasis * before
    return frames * _window(spec, frames)


def _squares(frames: Tensor, n_fft: int) -> Tensor:
    """Squares of the real and the imaginary parts [..., n_fft // 2 + 1, 2]."""
    if frames.shape[-1] < n_fft:
        frames = F.pad(frames, (0, n_fft - frames.shape[-1]))
    return torch.view_as_real(torch.fft.rfft(frames)).square_()


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _bands(bank: MelBank, parts: bool, device: str, dtype: torch.dtype) -> list[tuple[int, int, Tensor]]:
    """The filterbank cut into bands of filters: (first, last + 1 column of the spectrum, weights). With `parts` the
    spectrum's real and imaginary squares lie side by side, and each weight stands twice, so that the product adds them.
    """
    whole = mel_filters(*bank, device, dtype)
    if parts:
        whole = whole.repeat_interleave(2, dim=0)
    bands = []
    for start in range(0, whole.shape[1], _BAND):
        band = whole[:, start : start + _BAND]
        used = band.ne(0).any(dim=1).nonzero().flatten().tolist() or [0]
        bands.append((used[0], used[-1] + 1, band[used[0] : used[-1] + 1].contiguous()))
    return bands
