"""Reads the released `speech_tokenizer_v3.onnx` into a `SpeechTokenizer`: by structure first, by name where there is
one, and with nothing left over.

The layers of the graph must be those of the module, in the order they run, in kind and shape. Queries and keys look
alike, so these are told apart by which side of the attention's product they feed, and the values by the memory they
feed. Where the exporter left the author's names, they must not say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from cosyvoice_app.engines.cosyvoice3.config import TokenizerConfig
from cosyvoice_app.engines.cosyvoice3.speech_tokenizer import SpeechTokenizer, rotary
from cosyvoice_app.engines.cosyvoice3.weights import REMEDY
from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn.loading import materialise
from cosyvoice_app.nn.onnx_layers import Kind, Layer, Layers, layers_of
from cosyvoice_app.nn.onnx_reader import Array, read_graph

_EPS = (1e-8, 1e-3)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a layer of the graph belongs: `name` is the module's, `known_as` the original author's, or "" where its
    shape is like no other's.
    """

    name: str
    known_as: str
    kind: Kind
    shape: tuple[int, ...]
    bias: bool = True
    settings: tuple[tuple[str, int | tuple[int, ...]], ...] = ()


def load_speech_tokenizer(path: Path, config: TokenizerConfig, *, device: torch.device) -> SpeechTokenizer:
    """The module with the weights of `path`, on `device`, in float32. Raises AssetError naming what doesn't fit."""
    with torch.device("meta"):
        net = SpeechTokenizer(config)
    state, eps = read_state(path, config, own=device.type == "cpu")
    materialise(net, state, str(path), device=device, remedy=REMEDY)
    for name, value in eps.items():
        norm = net.get_submodule(name)
        if isinstance(norm, nn.LayerNorm):
            norm.eps = value
    return net


def read_state(path: Path, config: TokenizerConfig, *, own: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Tensors by the module's names, and the eps of each norm. Raises AssetError.

    `own` copies; else they are views of the file, good for copying to another device only.
    """
    graph = read_graph(path, remedy=REMEDY)
    try:
        layers = layers_of(graph)
    except ValueError as error:
        raise AssetError(f"{path} doesn't fit SpeechTokenizer: {error}. {REMEDY}") from error
    found = _in_order(layers)
    faults = _faults(list(_places(config)), found)
    faults += _table_faults(layers, config)
    if faults:
        shown = "; ".join(faults[:10]) + (f"; and {len(faults) - 10} more" if len(faults) > 10 else "")
        raise AssetError(f"{path} doesn't fit SpeechTokenizer: {shown}. {REMEDY}")
    layers.refuse_leftovers(str(path), REMEDY)
    state: dict[str, Tensor] = {}
    eps: dict[str, float] = {}
    for place, layer in zip(_places(config), found, strict=True):
        state[f"{place.name}.weight"] = _tensor(layer.weight, own)
        if layer.bias is not None:
            state[f"{place.name}.bias"] = _tensor(layer.bias, own)
        if layer.kind == "layer norm":
            eps[place.name] = layer.eps
    return state, eps


def _places(config: TokenizerConfig) -> Iterator[_Place]:
    width, inner = config.width, config.heads * config.head
    strided: tuple[tuple[str, int | tuple[int, ...]], ...] = (("strides", (2,)), ("pads", (1, 1)), ("group", 1))
    yield _Place("conv1", "conv1", "conv", (width, config.mels, 3), settings=strided)
    yield _Place("conv2", "conv2", "conv", (width, width, 3), settings=strided)
    for n in range(config.blocks):
        to, known = f"blocks.{n}", f"blocks.{n}"
        yield _Place(f"{to}.attention_norm", f"{known}.attn_ln", "layer norm", (width,))
        yield _Place(f"{to}.attention.query", f"{known}.attn.query", "linear", (inner, width))
        yield _Place(f"{to}.attention.key", f"{known}.attn.key", "linear", (inner, width), bias=False)
        yield _Place(f"{to}.attention.value", f"{known}.attn.value", "linear", (inner, width))
        yield _Place(f"{to}.attention.memory", f"{known}.attn.fsmn_block", "conv", (width, 1, config.memory_kernel),
                     bias=False, settings=(("strides", (1,)), ("dilations", (1,)), ("group", width)))
        yield _Place(f"{to}.attention.out", f"{known}.attn.out", "linear", (width, inner))
        yield _Place(f"{to}.mlp_norm", f"{known}.mlp_ln", "layer norm", (width,))
        yield _Place(f"{to}.up", f"{known}.mlp.0", "linear", (config.mlp, width))
        yield _Place(f"{to}.down", f"{known}.mlp.2", "linear", (width, config.mlp))
    yield _Place("digits", "", "linear", (config.digits, width))


def _in_order(layers: Layers) -> list[Layer]:
    """The graph's layers in the order of `_places`: three projections that stand together are put as query, key,
    value by what they feed.
    """
    found, wiring = list(layers.found), layers.wiring
    at = {id(layer.node): n for n, layer in enumerate(found)}
    sides: dict[int, int] = {}  # layer -> 0 where it feeds the left of a product of two computed values, 1 the right
    for node in wiring.graph.nodes:
        if node.op == "MatMul" and id(node) not in at:
            feeds = [wiring.weighted_before(name, at) for name in node.inputs]
            if all(len(one) == 1 for one in feeds):  # queries against keys; the next product has weights of both
                for side, (layer,) in enumerate(feeds):
                    sides[layer] = side
    n = 0
    while n + 2 < len(found):
        three = found[n : n + 3]
        if all(layer.kind == "linear" for layer in three) and sum(n + k in sides for k in range(3)) == 2:
            found[n : n + 3] = [found[i] for i in sorted(range(n, n + 3), key=lambda i: sides.get(i, 2))]
            n += 3
        else:
            n += 1
    return found


def _faults(places: list[_Place], found: list[Layer]) -> list[str]:
    if len(places) != len(found):
        return [f"{len(found)} layers with weights, expected {len(places)}"]
    faults = []
    for place, layer in zip(places, found, strict=True):
        if layer.kind != place.kind:
            faults.append(f"a {layer.kind} ({layer.path or 'unnamed'}) stands where {place.name}, a {place.kind}, "
                          "was expected")
            continue
        if layer.path and place.known_as and not f".{layer.path}".endswith(f".{place.known_as}"):
            faults.append(f"{place.name} would be taken from {layer.path}, expected {place.known_as}")
        if tuple(layer.weight.shape) != place.shape:
            faults.append(f"{place.name}.weight is {list(layer.weight.shape)}, expected {list(place.shape)}")
        if (layer.bias is not None) != place.bias:
            faults.append(f"{place.name} has {'a' if layer.bias is not None else 'no'} bias")
        elif layer.bias is not None and layer.bias.shape != place.shape[:1]:
            faults.append(f"{place.name}.bias is {list(layer.bias.shape)}, expected {list(place.shape[:1])}")
        if layer.weight.dtype != np.float32:
            faults.append(f"{place.name}.weight is {layer.weight.dtype}, expected float32")
        faults += [f"{place.name} has {key} {layer.settings.get(key)}, expected {value}"
                   for key, value in place.settings if layer.settings.get(key) != value]
        if layer.kind == "layer norm" and not _EPS[0] <= layer.eps <= _EPS[1]:
            faults.append(f"{place.name} has eps {layer.eps}")
    return faults


def _table_faults(layers: Layers, config: TokenizerConfig) -> list[str]:
    """A table of position angles in the file must be the one computed here."""
    faults = []
    held = [(node.outputs[0], node.attributes["value"]) for node in layers.wiring.graph.nodes
            if node.op == "Constant" and "value" in node.attributes]
    for name, value in held:
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size >= 64 * config.head:
            tables = _angle_tables(value, config)
            wrong = [kind for kind, table, ours in tables if not np.allclose(table, ours, atol=2e-3)]
            faults += [f"the table {name} {list(value.shape)} is not the {kind} of the positions' angles"
                       for kind in wrong]
    return faults


def _angle_tables(value: Array, config: TokenizerConfig) -> Iterator[tuple[str, Array, Array]]:
    """A constant as cosines or sines [positions, head or half of it] beside ours; nothing where it can't be one."""
    table = np.array(value, np.float32).squeeze()
    parts = [table[..., 0], table[..., 1]] if table.ndim == 3 and table.shape[-1] == 2 else [table]
    for part in parts:
        if part.ndim != 2 or part.shape[1] not in (config.head, config.head // 2) or np.abs(part).max() > 1.0:
            continue
        cos, sin = (t[:, : part.shape[1]].numpy() for t in rotary(config, part.shape[0], torch.device("cpu")))
        yield ("cosine", part, cos) if part[0].all() else ("sine", part, sin)


def _tensor(array: Array, own: bool) -> Tensor:
    """A copy keeps the order in memory (a linear layer's is [in, out] in the file): neither is the faster."""
    if not own:
        return torch.from_numpy(array)
    return torch.from_numpy(array.copy(order="K"))
