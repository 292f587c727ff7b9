"""Frames to features, row by row: window, spectrum, mel, logarithm, cosine transform.

On the CPU rows go through in blocks of one size, the last one filled up, so that the working set stays in cache, and
so that what comes out for a frame depends on nothing but that frame: matrix products and transforms of other shapes may
take other paths with other rounding, and large products do so even by a row's place (see `_product`).
`tests/test_features_accuracy.py` checks that a row's place and the number of threads leave no trace.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cosyvoice_app.audio.framing import WindowName, window
from cosyvoice_app.audio.mel import MelBank, dct_matrix, mel_filters

BLOCK_ROWS = 512
"""At most."""
BAND = 32
"""Filters computed together: each such band of them meets only the bins that any of them touches."""
FEW_ROWS = 16
_ROOMS = 4
SHIFT = 5.0
"""Added to the logarithms that cepstra are made of, by way of the filters: float32 sums them more exactly around 0 than
around the -10 of silence."""
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
    log: Literal["ln", "log10"] = "ln"
    power: Literal[1, 2] = 2
    root_floor: float = 0.0
    preemphasis: float = 0.0
    remove_dc: bool = False
    cepstra: tuple[int, int] | None = None
    """How many coefficients of which `lifter` follow the logarithm (log10); None: it is the end."""
    gain: float = 1.0
    """Of the filters and the floor: 10 ** SHIFT where cepstra follow, now or once the clip's maximum is known."""

    @property
    def block_rows(self) -> int:
        """As many as keep a block's samples and spectra, some 2 MB, near the processor; at least a product's."""
        return max(FEW_ROWS, min(BLOCK_ROWS, 1 << max(0, (BLOCK_ROWS * 512 // self.n_fft).bit_length() - 1)))

    @property
    def columns(self) -> int:
        return self.cepstra[0] if self.cepstra else self.bank.bins


def power_spectrum(frames: Tensor, n_fft: int) -> Tensor:
    """|X|^2 [..., n_fft // 2 + 1] of windowed `frames` [..., n], n <= n_fft."""
    return torch.view_as_real(torch.fft.rfft(frames, n=n_fft)).square_().sum(dim=-1)


def magnitude_spectrum(frames: Tensor, n_fft: int) -> Tensor:
    """|X| [..., n_fft // 2 + 1] of windowed `frames` [..., n], n <= n_fft. Its gradient at 0 is 0."""
    return power_spectrum(frames, n_fft).clamp_min(_TINY_POWER).sqrt()


def feature_rows(frames: Tensor, spec: Spectral) -> Tensor:
    """Frames [N, frame] -> [N, columns], for gradients and for devices that want all rows at once."""
    if spec.remove_dc:
        frames = frames - frames.mean(dim=-1, keepdim=True)
    if spec.preemphasis:
        # The sample before the first is taken to be the first.
        frames = frames - torch.cat([frames[:, :1], frames[:, :-1]], dim=-1) * spec.preemphasis
    squares = _squares(F.pad(frames * _window(spec, frames), (0, spec.n_fft - spec.frame)), spec)
    bands = [_product(squares[:, low:high], filters) for low, high, filters in _bands(spec, frames)]
    log_mel = _logarithm(torch.cat(bands, dim=1), spec)
    return log_mel if spec.cepstra is None else cepstra_rows(log_mel, *spec.cepstra)


def cepstra_rows(log_mel: Tensor, coefficients: int, lifter: int, out: Tensor | None = None) -> Tensor:
    """log10 of mel energies [N, bins], plus SHIFT -> cepstra of the energies' decibels [N, coefficients]."""
    bins = log_mel.shape[1]
    cosines = dct_matrix(bins, coefficients, lifter, str(log_mel.device), log_mel.dtype, scale=10.0)
    away = _unshift(bins, coefficients, lifter, str(log_mel.device), log_mel.dtype)
    return _product(log_mel, cosines, out).add_(away)


def all_cepstra(log_mel: Tensor, coefficients: int, lifter: int) -> Tensor:
    """`cepstra_rows` of any number of rows [N, bins]."""
    missing = -len(log_mel) % FEW_ROWS
    if log_mel.device.type != "cpu" or not missing:
        return cepstra_rows(log_mel, coefficients, lifter)
    if log_mel.requires_grad:
        return cepstra_rows(F.pad(log_mel, (0, 0, 0, missing)), coefficients, lifter)[: len(log_mel)]
    whole = len(log_mel) + missing - FEW_ROWS
    out = log_mel.new_empty(len(log_mel), coefficients)
    cepstra_rows(log_mel[:whole], coefficients, lifter, out[:whole])
    rest = F.pad(log_mel[whole:], (0, 0, 0, missing))
    out[whole:] = cepstra_rows(rest, coefficients, lifter)[: len(log_mel) - whole]
    return out


def _product(rows: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
    """rows [N, k] @ matrix [k, m]. On the CPU, where N is a block's, as products of 16 rows each: of larger ones MKL
    gives some rows to other kernels, by their place and the number of threads, which shows in their last bits.
    """
    if rows.device.type != "cpu":
        return rows @ matrix
    few = len(rows) // FEW_ROWS
    in_few = None if out is None else out.view(few, FEW_ROWS, matrix.shape[1])
    found = torch.bmm(rows.view(few, FEW_ROWS, rows.shape[1]), matrix.expand(few, *matrix.shape), out=in_few)
    return found.view(len(rows), matrix.shape[1])


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _unshift(bins: int, coefficients: int, lifter: int, device: str, dtype: torch.dtype) -> Tensor:
    """What takes SHIFT out of cepstra [coefficients]: only the first holds what all bins have in common."""
    away = torch.zeros(coefficients, dtype=torch.float64)
    away[0] = -SHIFT * dct_matrix(bins, 1, lifter, "cpu", torch.float64, scale=10.0).sum()
    return away.to(device, dtype)


class _Rooms(threading.local):
    """A thread's blocks, the last few it used: fresh memory would cost more than the work on a short clip."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[tuple[Spectral, torch.dtype], Block] = OrderedDict()


_rooms = _Rooms()


def _block(spec: Spectral, like: Tensor) -> Block:
    key, kept = (spec, like.dtype), _rooms.blocks
    if key in kept:
        kept.move_to_end(key)
    else:
        kept[key] = Block(spec, like)
        if len(kept) > _ROOMS:
            kept.popitem(last=False)
    return kept[key]


class Block:
    """Room for one block of frames, without gradients: what a batch needs goes through memory that stays in cache.

    Each step rounds once (no multiply-add), so that it rounds alike wherever vector units and threads share the work.
    """

    @torch.inference_mode(False)  # What is kept must also serve outside of it.
    def __init__(self, spec: Spectral, like: Tensor) -> None:
        self._spec = spec
        like = torch.empty(0, dtype=like.dtype)
        self.rows = rows = spec.block_rows
        self._padded = like.new_zeros(rows, spec.n_fft)
        self._windowed = self._padded[:, : spec.frame]
        self._mel = like.new_empty(rows, spec.bank.bins)
        self._filters = _bands(spec, like)
        self._window = _window(spec, like)
        self._cepstra = like.new_empty(rows, spec.columns) if spec.cepstra else None
        self._raw = like.new_zeros(rows, spec.frame) if spec.remove_dc or spec.preemphasis else None
        self._before = torch.empty_like(self._raw) if self._raw is not None else None

    def put(self, frames: Tensor, at: int) -> None:
        """Frames [k, frame] into rows `at` to `at + k`."""
        if self._raw is None:
            torch.mul(frames, self._window, out=self._windowed[at : at + len(frames)])
        else:
            self._raw[at : at + len(frames)] = frames

    def features(self, filled: int) -> Tensor:
        """[rows, columns], valid until the next call, of which the first `filled` rows were put in."""
        raw, before, spec = self._raw, self._before, self._spec
        if raw is not None and before is not None:
            raw[filled:] = 0.0  # Pre-emphasis again and again would swell what was left there.
            if spec.remove_dc:
                raw.sub_(raw.mean(dim=-1, keepdim=True))
            if spec.preemphasis:
                torch.mul(raw[:, :-1], spec.preemphasis, out=before[:, 1:])
                torch.mul(raw[:, :1], spec.preemphasis, out=before[:, :1])
                raw.sub_(before)
            torch.mul(raw, self._window, out=self._windowed)
        squares = _squares(self._padded, spec)
        bands = [_product(squares[:, low:high], filters) for low, high, filters in self._filters]
        torch.cat(bands, dim=1, out=self._mel)
        log_mel = _logarithm(self._mel, spec)
        return log_mel if spec.cepstra is None else cepstra_rows(log_mel, *spec.cepstra, out=self._cepstra)


def through_blocks(runs: Iterable[tuple[Tensor, int]], spec: Spectral, out: Tensor) -> None:
    """Fill `out` [N, columns]: each run is frames [k, frame] and the row of `out` for its first one."""
    block, filled = _block(spec, out), 0
    places: list[list[int]] = []  # first row of the block, first row of `out`, rows

    def flush() -> None:
        done = block.features(filled)
        for at, row, rows in places:
            out[row : row + rows] = done[at : at + rows]

    for frames, row in runs:
        start = 0
        while start < len(frames):
            taken = min(len(frames) - start, block.rows - filled)
            block.put(frames[start : start + taken], filled)
            if places and places[-1][1] + places[-1][2] == row + start:
                places[-1][2] += taken
            else:
                places.append([filled, row + start, taken])
            start, filled = start + taken, filled + taken
            if filled == block.rows:
                flush()
                filled, places = 0, []
    if filled:
        flush()


def in_blocks(work: Callable[[Tensor], Tensor], rows: Tensor, block_rows: int = BLOCK_ROWS) -> Tensor:
    """`work(rows)` for rows [N, n] that it treats one by one: on the CPU in blocks, elsewhere all at once."""
    if rows.device.type != "cpu":
        return work(rows)
    parts = []
    for block in torch.split(rows, block_rows):
        missing = block_rows - len(block)
        parts.append(work(F.pad(block, (0, 0, 0, missing)))[: len(block)] if missing else work(block))
    return torch.cat(parts)


def _window(spec: Spectral, like: Tensor) -> Tensor:
    return window(spec.window, spec.frame, spec.periodic, like.device, like.dtype)


def _squares(windowed: Tensor, spec: Spectral) -> Tensor:
    """What the filters of `_bands` are for: of windowed frames [N, n_fft]."""
    # Squares of the real and the imaginary parts, in the place of the spectrum.
    squares = torch.view_as_real(torch.fft.rfft(windowed)).square_()
    if spec.power == 1:
        return (squares[..., 0] + squares[..., 1]).add_(spec.root_floor).clamp_min_(_TINY_POWER).sqrt_()
    return squares.flatten(1)


def _logarithm(mel: Tensor, spec: Spectral) -> Tensor:
    """In place."""
    floor = spec.floor * spec.gain
    mel = mel.add_(floor) if spec.floor_mode == "add" else mel.clamp_min_(floor)
    return mel.log_() if spec.log == "ln" else mel.log10_()


def _bands(spec: Spectral, like: Tensor) -> list[tuple[int, int, Tensor]]:
    return _cut(spec.bank, spec.gain, spec.power == 2, str(like.device), like.dtype)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _cut(bank: MelBank, gain: float, parts: bool, device: str, dtype: torch.dtype) -> list[tuple[int, int, Tensor]]:
    """The filterbank cut into bands of filters: (first, last + 1 column of the spectrum, weights). With `parts` the
    spectrum's real and imaginary squares lie side by side, and each weight stands twice, so that the product adds them.

    Made on the CPU, and sent when ready: work on one CUDA stream wouldn't wait for what another is still making.
    """
    whole = mel_filters(*bank, "cpu", dtype) * gain
    if parts:
        whole = whole.repeat_interleave(2, dim=0)
    bands = []
    for start in range(0, whole.shape[1], BAND):
        band = whole[:, start : start + BAND]
        used = band.ne(0).any(dim=1).nonzero().flatten().tolist() or [0]
        bands.append((used[0], used[-1] + 1, band[used[0] : used[-1] + 1].contiguous().to(device)))
    return bands
