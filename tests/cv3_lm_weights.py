"""Names and shapes of llm.pt, and random weights for them, for tests and for tests/parity/lm.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import LMConfig
from cosyvoice_app.engines.cosyvoice3.layout import lm_shapes


def official_shapes(c: LMConfig) -> dict[str, tuple[int, ...]]:
    """The file's weights (`layout.lm_shapes`), without Qwen2's unused head."""
    return {name: shape for name, shape in lm_shapes(c).items() if name != "llm.model.lm_head.weight"}


def random_state(shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, Tensor]:
    """Weights that depend on names, shapes and seed alone, large enough that greedy ids don't settle into a loop."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    for name in sorted(shapes):
        values = torch.randn(tuple(shapes[name]), generator=generator)
        if "norm" in name:
            values = 1.0 + 0.1 * values
        elif name.endswith("bias"):
            values = 0.1 * values
        elif "embed" in name:
            values = 0.5 * values
        else:
            values = values * (1.5 / shapes[name][1] ** 0.5)
        if name == "llm_decoder.weight":
            values[6561:] *= 0.1  # else one of 200 marks ends a sampled row after a few ids
        state[name] = values
    return state


def checksum(state: Mapping[str, Tensor]) -> float:
    return float(sum(v.double().abs().sum() for v in state.values()))
