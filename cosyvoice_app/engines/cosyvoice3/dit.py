"""The DiT estimator: how the noisy mel should move at time t, given the tokens' features, the prompt and the speaker.

Architecture: a diffusion transformer (Peebles & Xie 2022, arXiv:2212.09748) in the shape of F5-TTS (arXiv:2410.06885).
Sizes and quirks are those of upstream's cosyvoice/flow/DiT (dit.py, modules.py); two of them matter here:

- Rotary positions turn only the first head: upstream rotates before the heads are split. The weights were trained so.
- Time enters only through scales and shifts (adaLN), the same for every row and frame. They are worked out once for a
  schedule of steps (`DiT.schedule`), and each norm takes its scale and shift as if they were its own weights.

In half precision the big products run in it; norms, softmax, scales and shifts, the residual and both ends are fp32.
All tensors are time-major.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_app.engines.cosyvoice3.config import FlowConfig
from cosyvoice_app.errors import ConfigError
from cosyvoice_app.nn.packed import PackedLinear

NORM_EPS = 1e-6
ROTARY_THETA = 10_000.0
TIME_SCALE = 1000.0
KEPT_SCHEDULES = 4

Attend = Callable[[int, Tensor], Tensor]
"""(number of the block, queries, keys and values [R, T, 3, heads, head]) -> values attended to [R, T, heads * head]."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The solver's times, and what the DiT makes of them. Row k is of the step from `times[k]`, `spans[k]` wide."""

    times: tuple[float, ...]
    spans: tuple[float, ...]
    blocks: Tensor
    """[steps, blocks, 6, width] fp32: shift, 1 + scale, gate of the attention; the same of the feed-forward."""
    final: Tensor
    """[steps, 2, width] fp32: 1 + scale, shift of the last norm."""

    @property
    def steps(self) -> int:
        return len(self.times)


def solver_times(steps: int) -> Tensor:
    """The ends of the solver's steps, [steps + 1] fp32 from 0 to 1: 1 - cos(pi/2 * s), finer at the start."""
    return 1.0 - torch.cos(torch.linspace(0.0, 1.0, steps + 1) * 0.5 * torch.pi)


def rotary_frequencies(head: int) -> Tensor:
    """Radians a frame for each pair of channels, [head / 2] fp32."""
    return 1.0 / ROTARY_THETA ** (torch.arange(0, head, 2).float() / head)


def rotary_table(frames: int, head: int, device: torch.device) -> Tensor:
    """[frames, head / 2] complex: by what each pair of channels, taken as a complex number, is multiplied."""
    angle = torch.arange(frames, dtype=torch.float32)[:, None] * rotary_frequencies(head)
    return torch.complex(angle.cos(), angle.sin()).to(device)


def rotate_first_head_(qkv: Tensor, table: Tensor) -> None:
    """Turn the first head's queries and keys in place; neighbouring channels (2i, 2i + 1) are a pair.

    `qkv` [R, T, 3, heads, head]; `table` is `rotary_table` at the frames' positions.
    """
    head = qkv[:, :, :2, 0]
    pairs = torch.view_as_complex(head.float().view(*head.shape[:-1], -1, 2))  # of qkv itself if that is fp32
    pairs *= table[:, None]
    if head.dtype != torch.float32:
        head.copy_(torch.view_as_real(pairs).flatten(-2))


class PositionConvs(nn.Module):
    """Two causal grouped convolutions over the projected input; their sum with it tells a frame where it stands."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.reach = config.position_kernel - 1
        self.conv1, self.conv2 = (
            nn.Conv1d(config.width, config.width, config.position_kernel, groups=config.position_groups)
            for _ in range(2)
        )

    def forward(self, h: Tensor, before: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """h [R, T, C] -> (what to add to it [R, T, C], both convolutions' inputs [R, C, reach + T]).

        `before`: the last `reach` frames of both inputs ahead of h's; None at the start, where they are zeros.
        """
        first = self._lead(h.transpose(1, 2).to(self.conv1.weight.dtype), before and before[0])
        second = self._lead(F.mish(self.conv1(first), inplace=True), before and before[1])
        return F.mish(self.conv2(second), inplace=True).transpose(1, 2), first, second

    def _lead(self, x: Tensor, before: Tensor | None) -> Tensor:
        return F.pad(x, (self.reach, 0)) if before is None else torch.cat((before, x), 2)


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm with a scale and shift of the time, and a gate."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.heads, inner = config.heads, config.heads * config.head
        self.qkv = nn.Linear(config.width, 3 * inner)
        self.out = nn.Linear(inner, config.width)
        self.up = nn.Linear(config.width, config.mlp)
        self.down = nn.Linear(config.mlp, config.width)
        self.modulation = nn.Linear(config.width, 6 * config.width)

    def forward(self, h: Tensor, modulation: Tensor, rotary: Tensor, attend: Callable[[Tensor], Tensor],
                dtype: torch.dtype) -> None:
        """Adds to h [R, T, C] fp32 in place. `modulation` [6, C] is a row of `Schedule.blocks`."""
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = modulation.unbind()
        qkv = self.qkv(_norm(h, scale_a, shift_a).to(dtype))
        qkv = qkv.view(*h.shape[:2], 3, self.heads, -1)
        rotate_first_head_(qkv, rotary)
        h.addcmul_(self.out(attend(qkv)).float(), gate_a)
        f = _norm(h, scale_f, shift_f).to(dtype)
        h.addcmul_(self.down(_up_gelu(self.up, f)).float(), gate_f)


def _up_gelu(up: nn.Module, x: Tensor) -> Tensor:
    """GELU (tanh form) of the product; a packed one at fp32 applies it to each piece of the result while in cache."""
    out: Tensor
    if isinstance(up, PackedLinear) and not up.half_weights:
        out = torch.ops.mkldnn._linear_pointwise(x, up.packed, up.bias, "gelu", [], "tanh")
    else:
        out = F.gelu(up(x), approximate="tanh")
    return out


def _norm(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(h, h.shape[-1:], scale, shift, NORM_EPS)


class DiT(nn.Module):
    """The estimator. It holds no state of a request: what streaming keeps is passed in."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = torch.float32
        self.time1 = nn.Linear(config.time, config.width)
        self.time2 = nn.Linear(config.width, config.width)
        self.from_x = nn.Linear(config.mels, config.width, bias=False)
        self.from_given = nn.Linear(2 * config.mels, config.width)
        self.from_speaker = nn.Linear(config.mels, config.width, bias=False)
        self.positions = PositionConvs(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.modulation = nn.Linear(config.width, 2 * config.width)
        self.to_mel = nn.Linear(config.width, config.mels)
        self._schedules: dict[tuple[int, torch.device], Schedule] = {}
        self._settled: int | None = None

    def schedule(self, steps: int) -> Schedule:
        """The schedule of `steps` steps. The last few are kept, since they depend on the model alone."""
        key = (steps, self.to_mel.weight.device)
        if key not in self._schedules:
            if self._settled is not None:
                raise ConfigError(f"The flow was loaded for {self._settled} solver steps, not {steps}. Start again "
                                  f"with --flow-steps {steps}.", param="steps")
            while len(self._schedules) >= KEPT_SCHEDULES:
                self._schedules.pop(next(iter(self._schedules)), None)
            self._schedules[key] = self._make_schedule(steps)
        return self._schedules[key]

    def settle(self, steps: int) -> None:
        """Keep the schedule of `steps` alone, and free the matrices that only making one needs: 277 MB in 16 bits."""
        kept = self.schedule(steps)
        self._schedules = {(steps, self.to_mel.weight.device): kept}
        self._settled = steps
        for block in self.blocks:
            del block.modulation

    def _make_schedule(self, steps: int) -> Schedule:
        ends = solver_times(steps)
        times, spans = [torch.tensor(0.0)], []
        for k in range(steps):  # summed as upstream sums it: the sines of 1000 t see a last bit of t
            spans.append(ends[k + 1] - times[k])
            times.append(times[k] + spans[k])
        mood = F.silu(self._time_features(torch.stack(times[:-1]).to(self.to_mel.weight.device)))
        blocks = torch.stack([_apply(block.modulation, mood) for block in self.blocks], 1)  # type: ignore[arg-type]
        blocks = blocks.view(steps, len(self.blocks), 6, -1)
        blocks[:, :, (1, 4)] += 1.0
        final = _apply(self.modulation, mood).view(steps, 2, -1)
        final[:, 0] += 1.0
        return Schedule(tuple(float(t) for t in times[:-1]), tuple(float(s) for s in spans), blocks, final)

    def _time_features(self, times: Tensor) -> Tensor:
        """[steps] -> [steps, width]."""
        half = self.config.time // 2
        rate = torch.exp(torch.arange(half, device=times.device).float() * -(math.log(10_000.0) / (half - 1)))
        angle = TIME_SCALE * times[:, None] * rate
        return _apply(self.time2, F.silu(_apply(self.time1, torch.cat((angle.sin(), angle.cos()), -1))))

    def given(self, cond: Tensor, mu: Tensor, speaker: Tensor, *, guided: bool) -> Tensor:
        """What doesn't change over the steps: prompt mel and token features [B, T, 80], speaker [B, 80] -> [R, T, C].

        R is B, or 2B when `guided`: then the second half is as if all three were zero.
        """
        told = self.from_given(torch.cat((cond, mu), -1)) + self.from_speaker(speaker)[:, None]
        if not guided:
            return told
        return torch.cat((told, self.from_given.bias.expand_as(told)))

    def forward(self, x: Tensor, given: Tensor, schedule: Schedule, step: int, rotary: Tensor, attend: Attend,
                before: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, 80] fp32, given [R, T, C] fp32 -> (velocity [R, T, 80] fp32, the position convolutions' two inputs).

        `rotary`: `rotary_table` at these frames; `attend`: who sees whom, see `Attend`; `before`: see `PositionConvs`.
        """
        h = (given.view(-1, *x.shape[:2], given.shape[2]) + self.from_x(x)).flatten(0, 1)
        place, first, second = self.positions(h, before)
        h += place
        for n, block in enumerate(self.blocks):
            block(h, schedule.blocks[step, n], rotary, lambda qkv, n=n: attend(n, qkv), self.compute_dtype)
        scale, shift = schedule.final[step].unbind()
        return self.to_mel(_norm(h, scale, shift)), first, second


def _apply(linear: nn.Linear, x: Tensor) -> Tensor:
    """The layer in fp32, whatever its weights are kept in."""
    return F.linear(x, linear.weight.float(), linear.bias.float())
