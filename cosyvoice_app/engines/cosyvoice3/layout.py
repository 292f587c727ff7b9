"""Names and shapes in the official files, as tables: what a checkpoint must hold, and random ones of the same form.

Read in the official code and checked against the files' published sizes. Tests and benchmarks, which run where the
official weights are not, make random states from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import FlowConfig, LMConfig, VocoderConfig
from cosyvoice_app.engines.cosyvoice3.flow_load import ROTARY, official_shapes

Shapes = dict[str, tuple[int, ...]]


def lm_shapes(config: LMConfig) -> Shapes:
    """llm.pt. The head of the text model shares its memory with the embedding there and is not used."""
    width, mlp, kv = config.width, config.mlp, config.kv_heads * config.head
    shapes: Shapes = {
        "llm.model.model.embed_tokens.weight": (config.text_vocab, width),
        "llm.model.model.norm.weight": (width,),
        "llm.model.lm_head.weight": (config.text_vocab, width),
        "speech_embedding.weight": (config.rows, width),
        "llm_decoder.weight": (config.rows, width),
    }
    for n in range(config.layers):
        at = f"llm.model.model.layers.{n}."
        shapes |= {
            f"{at}input_layernorm.weight": (width,),
            f"{at}post_attention_layernorm.weight": (width,),
            f"{at}self_attn.o_proj.weight": (width, config.heads * config.head),
            f"{at}mlp.gate_proj.weight": (mlp, width),
            f"{at}mlp.up_proj.weight": (mlp, width),
            f"{at}mlp.down_proj.weight": (width, mlp),
        }
        for name, size in (("q", config.heads * config.head), ("k", kv), ("v", kv)):
            shapes |= _dense(f"{at}self_attn.{name}_proj", size, width)
    return shapes


def flow_shapes(config: FlowConfig) -> Shapes:
    """flow.pt."""
    return {**official_shapes(config), ROTARY: (config.head // 2,)}


def vocoder_shapes(config: VocoderConfig) -> Shapes:
    """hift.pt, weight norm in its present spelling."""
    stages = [config.width // 2 ** (n + 1) for n in range(len(config.rates))]
    bins = config.fft + 2
    shapes: Shapes = {
        **_dense("m_source.l_linear", 1, config.harmonics),
        **_normed("conv_pre", config.width, config.mels, config.pre_lookahead + 1),
        **_normed("conv_post", bins, stages[-1], 7),
        **_dense("f0_predictor.classifier", 1, config.f0_width),
    }
    strides = [math.prod(config.rates[n + 1 :]) for n in range(len(config.rates))]
    for n, (channels, stride) in enumerate(zip(stages, strides, strict=True)):
        shapes |= _normed(f"ups.{n}", channels, 2 * channels, config.rate_kernels[n])
        shapes |= _conv(f"source_downs.{n}", channels, bins, 2 * stride if stride > 1 else 1)
        shapes |= _resblock(f"source_resblocks.{n}", channels, config.source_kernels[n], config)
        for k, kernel in enumerate(config.resblock_kernels):
            shapes |= _resblock(f"resblocks.{n * len(config.resblock_kernels) + k}", channels, kernel, config)
    shapes |= _normed("f0_predictor.condnet.0", config.f0_width, config.mels, config.f0_lookahead + 1)
    for n in (2, 4, 6, 8):
        shapes |= _normed(f"f0_predictor.condnet.{n}", config.f0_width, config.f0_width, 3)
    return shapes


def count(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def random_state(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """fp32 tensors of these names and shapes, scaled so that activations keep their size through the depth."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator)
        if "embed" in name and len(shape) == 2 and "proj" not in name and "mlp" not in name:
            state[name] = value
        elif "norm.weight" in name or name.endswith(("layernorm.weight", "alpha", "original0")):
            state[name] = 1.0 + 0.1 * value
        elif name.endswith("inv_freq"):
            state[name] = 10_000.0 ** (-torch.arange(shape[0]) / shape[0])
        else:
            fan_in = math.prod(shape[1:]) if len(shape) > 1 else 100
            state[name] = value / math.sqrt(fan_in)
    if "llm.model.lm_head.weight" in state:
        state["llm.model.lm_head.weight"] = state["llm.model.model.embed_tokens.weight"]
    return state


def _dense(name: str, out: int, into: int) -> Shapes:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _conv(name: str, out: int, into: int, kernel: int) -> Shapes:
    return {f"{name}.weight": (out, into, kernel), f"{name}.bias": (out,)}


def _normed(name: str, out: int, into: int, kernel: int) -> Shapes:
    at = f"{name}.parametrizations.weight.original"
    return {f"{name}.bias": (out,), f"{at}0": (out, 1, 1), f"{at}1": (out, into, kernel)}


def _resblock(name: str, channels: int, kernel: int, config: VocoderConfig) -> Shapes:
    shapes: Shapes = {}
    for n in range(len(config.dilations)):
        for side in (1, 2):
            shapes |= _normed(f"{name}.convs{side}.{n}", channels, channels, kernel)
            shapes[f"{name}.activations{side}.{n}.alpha"] = (channels,)
    return shapes
