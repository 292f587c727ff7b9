"""`flow.pt` as published -> the tensors of `flow.Flow`: names and shapes checked, q, k and v made one matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from cosyvoice_app.engines.cosyvoice3.config import FlowConfig
from cosyvoice_app.engines.cosyvoice3.dit import rotary_frequencies
from cosyvoice_app.errors import AssetError

REMEDY = "Fetch the model's flow.pt again, and use the engine that belongs to it."
ROTARY = "decoder.estimator.rotary_embed.inv_freq"
"""Saved upstream though it is no weight. Compared with what we use, then left out; it may be missing."""

_DIT = "decoder.estimator."


def official_shapes(config: FlowConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of the file (`ROTARY`, of shape (head / 2,), apart)."""
    width, mels, inner = config.width, config.mels, config.heads * config.head
    ahead, ahead_width = config.lookahead_tokens, config.lookahead_width
    layers: dict[str, tuple[int, ...]] = {
        "spk_embed_affine_layer": (mels, config.speaker),
        "pre_lookahead_layer.conv1": (ahead_width, mels, ahead + 1),
        "pre_lookahead_layer.conv2": (mels, ahead_width, 3),
        f"{_DIT}time_embed.time_mlp.0": (width, config.time),
        f"{_DIT}time_embed.time_mlp.2": (width, width),
        f"{_DIT}input_embed.proj": (width, 4 * mels),
        f"{_DIT}norm_out.linear": (2 * width, width),
        f"{_DIT}proj_out": (mels, width),
    }
    for n in (1, 2):
        name = f"{_DIT}input_embed.conv_pos_embed.conv{n}.0"
        layers[name] = (width, width // config.position_groups, config.position_kernel)
    for n in range(config.blocks):
        block = f"{_DIT}transformer_blocks.{n}."
        layers[f"{block}attn_norm.linear"] = (6 * width, width)
        for part in ("to_q", "to_k", "to_v"):
            layers[f"{block}attn.{part}"] = (inner, width)
        layers[f"{block}attn.to_out.0"] = (width, inner)
        layers[f"{block}ff.ff.0.0"] = (config.mlp, width)
        layers[f"{block}ff.ff.2"] = (width, config.mlp)
    shapes: dict[str, tuple[int, ...]] = {"input_embedding.weight": (config.vocab, mels)}
    for name, shape in layers.items():
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = shape, shape[:1]
    return shapes


def _check(state: Mapping[str, Tensor], config: FlowConfig, source: str) -> None:
    shapes = official_shapes(config)
    faults = [f"missing: {name}" for name in shapes if name not in state]
    faults += [f"not expected: {name}" for name in state if name not in shapes and name != ROTARY]
    faults += [f"{name} is {list(state[name].shape)}, expected {list(shape)}"
               for name, shape in shapes.items() if name in state and tuple(state[name].shape) != shape]
    faults += [f"{name} holds {tensor.dtype}, not floats"
               for name, tensor in state.items() if name in shapes and not tensor.is_floating_point()]
    if ROTARY in state:
        saved, own = state[ROTARY], rotary_frequencies(config.head)
        if saved.shape != own.shape or not torch.allclose(saved.float(), own, rtol=1e-5):
            faults.append(f"{ROTARY} holds other rotary frequencies than this engine's")
    if faults:
        shown = "; ".join(faults[:20]) + (f"; and {len(faults) - 20} more" if len(faults) > 20 else "")
        raise AssetError(f"{source} doesn't fit the flow of this engine: {shown}. {REMEDY}")


def from_official(state: Mapping[str, Tensor], config: FlowConfig, source: str, *, dtype: torch.dtype,
                  table: torch.dtype, matrices: torch.dtype | None = None) -> dict[str, Tensor]:
    """The tensors of `Flow` under its names. The big products' are in `dtype`, or the blocks' matrices in `matrices`
    where these are to be made smaller afterwards; the matrices that make scales and shifts of the time (40 % of all,
    used once a schedule, and then in fp32) are kept in `table`; the rest is fp32.

    `state` is left as it is. Raises AssetError that lists names and shapes at fault, as the file names them.
    """
    _check(state, config, source)
    return dict(_map(state, config, dtype, table, matrices or dtype))


def _map(state: Mapping[str, Tensor], config: FlowConfig, dtype: torch.dtype, table: torch.dtype,
         matrices: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    mels = config.mels

    def layer(to: str, name: str, kind: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
        for part in ("weight", "bias"):
            yield f"{to}.{part}", state[f"{name}.{part}"].to(kind)

    yield "embedding.weight", state["input_embedding.weight"].float()
    yield from layer("speaker", "spk_embed_affine_layer")
    yield from layer("ahead", "pre_lookahead_layer.conv1")
    yield from layer("behind", "pre_lookahead_layer.conv2")
    yield from layer("dit.time1", f"{_DIT}time_embed.time_mlp.0")
    yield from layer("dit.time2", f"{_DIT}time_embed.time_mlp.2")
    weight = state[f"{_DIT}input_embed.proj.weight"].float()  # columns: x, prompt mel, mu, speaker
    yield "dit.from_x.weight", weight[:, :mels].contiguous()
    yield "dit.from_given.weight", weight[:, mels:3 * mels].contiguous()
    yield "dit.from_given.bias", state[f"{_DIT}input_embed.proj.bias"].float()
    yield "dit.from_speaker.weight", weight[:, 3 * mels:].contiguous()
    for n in (1, 2):
        yield from layer(f"dit.positions.conv{n}", f"{_DIT}input_embed.conv_pos_embed.conv{n}.0", dtype)
    for n in range(config.blocks):
        theirs, ours = f"{_DIT}transformer_blocks.{n}.", f"dit.blocks.{n}."
        for part in ("weight", "bias"):
            qkv = torch.cat([state[f"{theirs}attn.to_{p}.{part}"] for p in "qkv"])
            yield f"{ours}qkv.{part}", qkv.to(matrices)
        yield from layer(f"{ours}out", f"{theirs}attn.to_out.0", matrices)
        yield from layer(f"{ours}up", f"{theirs}ff.ff.0.0", matrices)
        yield from layer(f"{ours}down", f"{theirs}ff.ff.2", matrices)
        yield from layer(f"{ours}modulation", f"{theirs}attn_norm.linear", table)
    yield from layer("dit.modulation", f"{_DIT}norm_out.linear")
    yield from layer("dit.to_mel", f"{_DIT}proj_out")
