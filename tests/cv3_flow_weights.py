"""Random weights under the official names, so that the flow can be tested without the published file."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import FlowConfig
from cosyvoice_app.engines.cosyvoice3.dit import rotary_frequencies
from cosyvoice_app.engines.cosyvoice3.flow_load import ROTARY, official_shapes


def random_flow_state(config: FlowConfig, seed: int) -> dict[str, Tensor]:
    """A whole `flow.pt`: every part matters to the mel (upstream starts its scales, shifts and output at zero)."""
    generator = torch.Generator().manual_seed(seed)
    state = {ROTARY: rotary_frequencies(config.head)}
    for name, shape in official_shapes(config).items():
        fan_in = 1 if name == "input_embedding.weight" else math.prod(shape[1:])
        scale = 0.1 if len(shape) == 1 else 1.0 / math.sqrt(fan_in)
        state[name] = torch.randn(shape, generator=generator) * scale
    return state
