"""Mean and variance normalisation of features: of whole clips, and frame by frame as they come.

    normalise(values [B, frames, bins], lengths, UtteranceNorm())   -> [B, frames, bins]
    online = OnlineNorm(WindowNorm(frames=300)); state = None
    out, state = online(values, lengths, state)                     chunk after chunk

Sums are taken in float64 and each along its own clip, so padding and neighbours never count: rows past `lengths` are
not read, and come out as 0. On the CPU a batch equals its clips one by one, and a stream in chunks equals the whole
clip at once, to the bit; elsewhere to the rounding of float64 sums. Values must be finite (an Extractor's are): that is
not checked again, since the check would wait for the device.

Blocks are counted from a clip's first frame, wherever its chunks end. That is what makes chunks and the whole equal:
every frame is reached by the same additions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from cosyvoice_app.audio.config_checks import Within, check_settings, checked
from cosyvoice_app.audio.framing import WHOLE
from cosyvoice_app.errors import BadInput, ConfigError

NormKind = Literal["none", "utterance", "exponential", "window"]
# Frames of a block of the exponential scan: log2 of it are its passes over the data, and one step of a loop joins two
# blocks.
_SCAN = 32
# On the CPU clips are taken so many values at a time: beyond the cache the float64 sums take several times as long.
_CACHED = 50_000
_Window = Annotated[float, Within(0.0, 100_000.0, above=True)]
_Span = Annotated[float, Within(0.0, math.inf, above=True)]
# A deviation's square must be a float64 above 0, and the rounding of a mean, divided by it, a float32.
_Floor = Annotated[float, Within(1e-20, 1e20)]


@dataclass(frozen=True, slots=True)
class NoNorm:
    """Values as they are."""


@dataclass(frozen=True, slots=True)
class UtteranceNorm:
    """Each bin less its mean over the clip and, with `variance`, over its deviation (of the population, divided by n).

    `floor` is the least deviation that is divided by: a bin that never moves becomes 0 and not noise.
    """

    variance: bool = True
    floor: _Floor = 1e-5

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class ExponentialNorm:
    """Each frame by the weighted statistics of all frames up to it, itself included; one k frames back weighs
    exp(-k / time_constant_frames).

    The weights are divided by their own sum, so start-up needs no prior and has no bias: the second frame is judged by
    two frames. The first frame is its own mean and comes out as 0. `math.inf` weighs all frames alike.
    """

    time_constant_frames: _Span = 300.0
    variance: bool = True
    floor: _Floor = 1e-5

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class WindowNorm:
    """Each frame by the `frames` frames that end with it, or by as many as there are; the first frame comes out as 0.

    `centred`: by the `frames` frames around it, pushed inwards at a clip's ends (as Kaldi's `apply-cmvn-sliding
    --center`). That needs frames to come, so `OnlineNorm` refuses it.
    """

    frames: Annotated[int, Within(0, 1_000_000, above=True)] = 300
    variance: bool = True
    floor: _Floor = 1e-5
    centred: bool = False

    def __post_init__(self) -> None:
        check_settings(self)


NormConfig = NoNorm | UtteranceNorm | ExponentialNorm | WindowNorm
NORMS: Mapping[NormKind, type[NormConfig]] = {
    "none": NoNorm,
    "utterance": UtteranceNorm,
    "exponential": ExponentialNorm,
    "window": WindowNorm,
}
# Spans may be given in seconds instead of frames.
_SECONDS = {"time_constant_s": "time_constant_frames", "window_s": "frames"}


def norm_for(kind: str, *, shift_s: float = 0.010, **changes: Any) -> NormConfig:
    """The config of `kind` with `changes`. `time_constant_s` and `window_s` are frames of `shift_s` each.

    Raises ConfigError for a kind, a name or a type that isn't one, with those there are.
    """
    config = next((config for name, config in NORMS.items() if name == kind), None)
    if config is None:
        raise ConfigError(f"The normalisation is {kind!r}; allowed: {', '.join(NORMS)}.", param="normalisation")
    defaults = {field.name: field.default for field in fields(config)}
    names = [*defaults, *(short for short, whole in _SECONDS.items() if whole in defaults)]
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in names:
            known = f"it has {', '.join(names)}" if names else "it has no options"
            raise ConfigError(f"The {kind} normalisation has no {name!r}; {known}.", param=name)
        target = _SECONDS.get(name, name)
        if target in values:
            raise ConfigError(f"{name} and {target} are one thing; give one of them.", param=name)
        if name in _SECONDS:
            value = checked(name, _Window if target == "frames" else _Span, value) / shift_s
            value = max(1, round(value)) if target == "frames" else value
        values[target] = value
    return config(**values)


@dataclass(frozen=True, slots=True)
class NormState:
    """What a stream carries from chunk to chunk; opaque, on the device of the values, and never changed in place.

    `seen` [B]: frames so far. `recent` [B, r, bins]: each clip's frames since the last block boundary (for a window,
    since the one before that), of which `filled` [B] are there. `sums` [B, 2, bins] and `weights` [B, 1, 1]: the
    exponential's, up to that boundary. Numbers are float64.
    """

    config: NormConfig
    seen: Tensor
    recent: Tensor
    filled: Tensor
    sums: Tensor
    weights: Tensor

    def detach(self) -> NormState:
        """The same without the past's gradients, for training over long streams."""
        return replace(self, recent=self.recent.detach(), sums=self.sums.detach())


class OnlineNorm:
    """Causal normalisation of streams: `out, state = online(values [B, frames, bins], lengths, state)`.

    `state` is None for the first chunk. A clip may give fewer frames than its neighbours in any chunk, or none: say so
    in `lengths`, and its stream goes on with the next. Holds nothing itself, so one serves many streams and threads.
    """

    def __init__(self, config: NormConfig) -> None:
        if isinstance(config, UtteranceNorm):
            raise ConfigError(
                "Normalisation over the utterance needs its end; a stream can have exponential or window ones.",
                param="normalisation",
            )
        if isinstance(config, WindowNorm) and config.centred:
            raise ConfigError(
                "A centred window needs frames to come; a stream can have one that is not centred.", param="centred"
            )
        self.config = config
        self._block = config.frames if isinstance(config, WindowNorm) else _SCAN
        # A window that ends in a block begins in the one before it.
        self._kept = self._block if isinstance(config, WindowNorm) else 0

    def __call__(
        self, values: Tensor, lengths: Tensor | None = None, state: NormState | None = None
    ) -> tuple[Tensor, NormState]:
        lengths, valid = _lengths(values, lengths)
        if state is None:
            state = self._start(values)
        elif state.seen.shape[0] != values.shape[0] or state.recent.shape[2] != values.shape[2]:
            raise BadInput(
                f"The stream is of {state.seen.shape[0]} clips with {state.recent.shape[2]} bins; a chunk of "
                f"{values.shape[0]} with {values.shape[2]} can't follow."
            )
        elif state.config != self.config:
            raise BadInput(f"The stream was begun with {state.config}; {self.config} can't go on with it.")
        if isinstance(self.config, NoNorm):
            return _widened(values).masked_fill(~valid[:, :, None], 0.0), replace(state, seen=state.seen + lengths)
        work = self._line_up(state, values, valid)
        at = state.filled[:, None] + torch.arange(values.shape[1], device=values.device)
        sums, weights = state.sums, state.weights
        if isinstance(self.config, WindowNorm):
            window = self.config.frames
            totals = _window_sums(_with_squares(work), at - (window - 1), window)
            seen = state.seen[:, None] + 1 + torch.arange(values.shape[1], device=values.device)
            weight = seen.clamp_max(window).double()[:, :, None, None]
        else:
            span = self.config.time_constant_frames
            # The weights are summed as the values are, so that they are of the same rounding wherever a chunk ends.
            ones = torch.ones_like(work[:, :, None, :1])
            totals, all_sums = _exponential_sums(_with_squares(work), sums, span)
            weight, all_weights = _exponential_sums(ones, weights, span)
            totals, weight = _rows(totals, at), _rows(weight, at)
            done = torch.div(state.filled + lengths, _SCAN, rounding_mode="floor")[:, None]
            sums, weights = _rows(all_sums, done)[:, 0], _rows(all_weights, done)[:, 0]
        mean, square = (totals / weight).unbind(2)
        out = _apply(values, valid, mean, square - mean.square(), self.config.variance, self.config.floor)
        return out, self._end(state, work, lengths, sums, weights)

    def _start(self, values: Tensor) -> NormState:
        clips, _, bins = values.shape
        zeros = values.new_zeros
        return NormState(
            config=self.config,
            seen=zeros(clips, dtype=torch.int64),
            recent=zeros(clips, self._kept, bins, dtype=torch.float64),
            filled=zeros(clips, dtype=torch.int64) + self._kept,
            sums=zeros(clips, 2, bins, dtype=torch.float64),
            weights=zeros(clips, 1, 1, dtype=torch.float64),
        )

    def _line_up(self, state: NormState, values: Tensor, valid: Tensor) -> Tensor:
        """[B, whole blocks, bins] float64: each clip's recent frames and then its new ones, zero after them."""
        rows = state.recent.shape[1] + values.shape[1]
        rows += -rows % self._block
        both = torch.cat([state.recent, values.double().masked_fill(~valid[:, :, None], 0.0)], dim=1)
        both = functional.pad(both, (0, 0, 0, max(1, rows + state.recent.shape[1] - both.shape[1])))
        at = torch.arange(rows, device=values.device).expand(len(values), rows)
        new = at >= state.filled[:, None]
        # New frames stand after all places for recent ones, of which some clips have fewer.
        source = torch.where(new, at - state.filled[:, None] + state.recent.shape[1], at)
        return _rows(both, source.clamp_max(both.shape[1] - 1))

    def _end(self, state: NormState, work: Tensor, lengths: Tensor, sums: Tensor, weights: Tensor) -> NormState:
        reach = state.filled + lengths
        start = (reach // self._block) * self._block - self._kept
        filled = reach - start
        room = self._kept + self._block - 1
        at = torch.arange(room, device=work.device).expand(len(work), room)
        kept = _rows(functional.pad(work, (0, 0, 0, room)), start[:, None] + at)
        recent = kept.masked_fill((at >= filled[:, None])[:, :, None], 0.0)
        return NormState(self.config, state.seen + lengths, recent, filled, sums, weights)


def normalise(values: Tensor, lengths: Tensor | None = None, config: NormConfig = UtteranceNorm()) -> Tensor:
    """Whole clips [B, frames, bins], of which `lengths` [B] frames each count (None: all). Rows past them come out 0.

    Keeps float64, makes float32 of anything else. Differentiable; at the floor the deviation is a constant.
    """
    lengths, valid = _lengths(values, lengths)
    clips = max(1, _CACHED // max(1, values[:1].numel()))
    if values.device.type == "cpu" and len(values) > clips:
        starts = range(0, len(values), clips)
        return torch.cat([normalise(values[i : i + clips], lengths[i : i + clips], config) for i in starts])
    if isinstance(config, UtteranceNorm):
        wide = values.double().masked_fill(~valid[:, :, None], 0.0)
        count = lengths.clamp_min(1).double()[:, None, None]
        mean = _total(wide) / count
        apart = (wide - mean).masked_fill(~valid[:, :, None], 0.0)
        variance = _total(apart.square()) / count if config.variance else mean
        return _apply(values, valid, mean, variance, config.variance, config.floor)
    if isinstance(config, WindowNorm) and config.frames > values.shape[1] + 1:
        # A longer window holds the same frames, and would take room and time for all that aren't there. One more than
        # there are, since a window that is a whole block is added up from its end: that would round otherwise.
        config = replace(config, frames=values.shape[1] + 1)
    if isinstance(config, WindowNorm) and config.centred:
        return _centred(values, lengths, valid, config)
    return OnlineNorm(config)(values, lengths)[0]


def _centred(values: Tensor, lengths: Tensor, valid: Tensor, config: WindowNorm) -> Tensor:
    window, rows = config.frames, values.shape[1]
    wide = functional.pad(values.double().masked_fill(~valid[:, :, None], 0.0), (0, 0, 0, -rows % window))
    at = torch.arange(rows, device=values.device)
    last = (lengths - window).clamp_min(0)[:, None]
    start = torch.minimum((at - window // 2).clamp_min(0)[None], last)
    count = lengths.clamp(1, window).double()[:, None, None, None]
    mean, square = (_window_sums(_with_squares(wide), start, window) / count).unbind(2)
    return _apply(values, valid, mean, square - mean.square(), config.variance, config.floor)


def _lengths(values: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Lengths on the values' device, and which frames count [B, frames]."""
    if values.ndim != 3 or not values.is_floating_point():
        raise BadInput(f"Features must be [clips, frames, bins] of floats, got {list(values.shape)} of {values.dtype}.")
    clips, frames, _ = values.shape
    if lengths is None:
        lengths = torch.full((clips,), frames, device=values.device)
    if not isinstance(lengths, Tensor):
        raise BadInput(f"lengths must be a tensor of {clips} whole numbers, one a clip, not {type(lengths).__name__}.")
    if lengths.shape != (clips,) or lengths.dtype not in WHOLE:
        raise BadInput(
            f"lengths must be {clips} whole numbers, one a clip, got {list(lengths.shape)} of {lengths.dtype}."
        )
    # Numbers on another device are trusted: to look at them would wait for it.
    if lengths.device.type == "cpu" and len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= frames:
        raise BadInput(f"lengths are {lengths.tolist()[:8]}; each must be 0 to {frames}, the frames there are.")
    lengths = lengths.to(values.device, torch.int64)
    return lengths, torch.arange(frames, device=values.device) < lengths[:, None]


def _apply(values: Tensor, valid: Tensor, mean: Tensor, variance: Tensor, divide: bool, floor: float) -> Tensor:
    out = values.double().masked_fill(~valid[:, :, None], 0.0) - mean
    if divide:
        out = out / variance.clamp_min(floor * floor).sqrt()
    out = out.masked_fill(~valid[:, :, None], 0.0)
    return out if values.dtype == torch.float64 else out.float()


def _widened(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _with_squares(work: Tensor) -> Tensor:
    """[B, n, 2, bins]. The squares of float32 values are exact in float64, and so is enough of mean square less squared
    mean: 1e-6 of the variance is lost where values are 1e5 times their deviation.
    """
    return torch.stack([work, work.square()], dim=2)


def _rows(values: Tensor, at: Tensor) -> Tensor:
    """values [B, n, ...] at rows `at` [B, m] of each clip."""
    first = values.shape[1] * torch.arange(len(values), device=values.device)[:, None]
    # One index_select is several times faster than indexing by pairs.
    return values.flatten(0, 1).index_select(0, (first + at).flatten()).reshape(*at.shape, *values.shape[2:])


def _total(values: Tensor) -> Tensor:
    """Sum over frames, [B, 1, bins]. On the CPU in the frames' order, which padding can't change as a tree would."""
    if values.device.type == "cpu" and values.shape[1]:
        return values.cumsum(1)[:, -1:]
    return values.sum(1, keepdim=True)


def _blocks(values: Tensor, length: int) -> Tensor:
    """[B, n, ...] as [B, n / length, length, ...]."""
    return values.reshape(values.shape[0], values.shape[1] // length, length, *values.shape[2:])


def _window_sums(values: Tensor, start: Tensor, window: int) -> Tensor:
    """Sums of the `window` rows of values [B, n, ...] from `start` [B, m] on; n is a multiple of `window`.

    A window is the end of one block of that length and the beginning of the next: two sums that are added. Running
    totals, subtracted, would lose digits as a stream grows.
    """
    blocks = _blocks(values, window)
    to_here = blocks.cumsum(2).flatten(1, 2)
    from_here = blocks.flip(2).cumsum(2).flip(2).flatten(1, 2)
    # A padded chunk has rows whose windows pass its end; they are masked later.
    last = values.shape[1] - 1
    tail = _rows(to_here, (start + window - 1).clamp_max(last))
    return _rows(from_here, start.clamp_max(last)) + tail.masked_fill((start % window == 0)[:, :, None, None], 0.0)


def _exponential_sums(values: Tensor, carried: Tensor, time_constant: float) -> tuple[Tensor, Tensor]:
    """Decayed sums at each row of values [B, n, m, k], and at each block's beginning [B, n / block + 1, m, k].

    Within a block by doubling: after the pass with step d a row holds its last 2d rows. No power of the decay is ever
    above 1, so no length overflows.
    """
    blocks = _blocks(values, _SCAN)
    step = 1
    while step < _SCAN:
        earlier = functional.pad(blocks[:, :, :-step], (0, 0, 0, 0, step, 0))
        blocks = blocks + math.exp(-step / time_constant) * earlier
        step *= 2
    starts = [carried]
    for block in range(blocks.shape[1]):
        starts.append(blocks[:, block, -1] + math.exp(-_SCAN / time_constant) * starts[-1])
    carry = torch.stack(starts, dim=1)
    fade = torch.exp(-torch.arange(1, _SCAN + 1, dtype=torch.float64, device=values.device) / time_constant)
    return (blocks + fade[:, None, None] * carry[:, :-1, None]).flatten(1, 2), carry
