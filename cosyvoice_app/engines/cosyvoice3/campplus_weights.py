"""Reads the released `campplus.onnx` into a `CamPlusPlus`, by the order in which its layers run.

The exporter took a batch norm into the convolution before it wherever it stood right behind one; where it didn't, that
is done here. The others become one multiply-add. Every layer must have the kind, shape and stride expected at its
place, and the original author's name where the file has names; no weight may be left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosyvoice_app.engines.campplus import BLOCKS, CamPlusPlus
from cosyvoice_app.engines.cosyvoice3.weights import REMEDY
from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn.loading import assign_strict
from cosyvoice_app.nn.onnx_layers import Layer, Layers, after, layers_of
from cosyvoice_app.nn.onnx_reader import Array, read_graph

Double = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Place:
    """`name` is our module's, `known_as` 3D-Speaker's. `norm`: a batch norm alone, not a convolution."""

    name: str
    known_as: str
    norm: bool = False
    strides: tuple[int, ...] = ()
    dilation: int = 1


def load_campplus_onnx(path: Path) -> CamPlusPlus:
    """The encoder with the weights of `path`, on the CPU. Raises AssetError naming what doesn't fit."""
    net = CamPlusPlus()
    assign_strict(net, read_state(path), str(path), remedy=REMEDY)
    return net


def read_state(path: Path) -> dict[str, Tensor]:
    """Tensors by the names of `CamPlusPlus`. Raises AssetError."""
    graph = read_graph(path, remedy=REMEDY)
    try:
        layers = layers_of(graph)
    except ValueError as error:
        raise AssetError(f"{path} doesn't fit CamPlusPlus: {error}. {REMEDY}") from error
    found = list(_with_their_norms(layers))
    places = list(_places())
    if len(found) == len(places):
        faults = [fault for place, (layer, _) in zip(places, found, strict=True) for fault in _faults(place, layer)]
    else:
        faults = [f"{len(found)} layers with weights, expected {len(places)}"]
    if faults:
        shown = "; ".join(faults[:10]) + (f"; and {len(faults) - 10} more" if len(faults) > 10 else "")
        raise AssetError(f"{path} doesn't fit CamPlusPlus: {shown}. {REMEDY}")
    layers.refuse_leftovers(str(path), REMEDY)
    state: dict[str, Tensor] = {}
    for place, (layer, norm) in zip(places, found, strict=True):
        if place.norm:
            scale, shift = _affine(layer)
            state[f"{place.name}.scale"], state[f"{place.name}.shift"] = _tensor(scale), _tensor(shift)
            continue
        weight, bias = _folded(layer, norm)
        # A convolution over one frame is a matrix in our module.
        matrix = weight.ndim == 3 and weight.shape[2] == 1
        state[f"{place.name}.weight"] = _tensor(weight[..., 0] if matrix else weight)
        if bias is not None:
            state[f"{place.name}.bias"] = _tensor(bias)
    return state


def _places() -> Iterator[_Place]:
    def conv(name: str, known_as: str = "", *strides: int, dilation: int = 1) -> _Place:
        return _Place(name, known_as or name, False, strides, dilation)

    yield conv("head.conv1", "", 1, 1)
    for layer in ("head.layer1", "head.layer2"):
        yield conv(f"{layer}.0.conv1", "", 2, 1)
        yield conv(f"{layer}.0.conv2", "", 1, 1)
        yield conv(f"{layer}.0.shortcut", f"{layer}.0.shortcut.0", 2, 1)
        yield conv(f"{layer}.1.conv1", "", 1, 1)
        yield conv(f"{layer}.1.conv2", "", 1, 1)
    yield conv("head.conv2", "", 2, 1)
    yield conv("tdnn", "xvector.tdnn.linear", 2)
    for b, (layers, dilation) in enumerate(BLOCKS):
        for n in range(layers):
            to, known = f"blocks.{b}.{n}", f"xvector.block{b + 1}.tdnnd{n + 1}"
            yield _Place(f"{to}.norm", f"{known}.nonlinear1.batchnorm", norm=True)
            yield conv(f"{to}.bottleneck", f"{known}.linear1", 1)
            yield conv(f"{to}.local", f"{known}.cam_layer.linear_local", 1, dilation=dilation)
            yield conv(f"{to}.mask1", f"{known}.cam_layer.linear1", 1)
            yield conv(f"{to}.mask2", f"{known}.cam_layer.linear2", 1)
        yield _Place(f"transits.{b}.norm", f"xvector.transit{b + 1}.nonlinear.batchnorm", norm=True)
        yield conv(f"transits.{b}.linear", f"xvector.transit{b + 1}.linear", 1)
    yield conv("dense", "xvector.dense.linear", 1)


def _with_their_norms(layers: Layers) -> Iterator[tuple[Layer, Layer | None]]:
    """Each layer, and the batch norm right behind it if it is a convolution that has one."""
    by_node = {id(layer.node): layer for layer in layers.found}
    behind: set[int] = set()
    for layer in layers.found:
        if id(layer.node) in behind:
            continue
        node = after(layer, layers.wiring, "BatchNormalization") if layer.kind == "conv" else None
        if node is not None:
            behind.add(id(node))
        yield layer, by_node[id(node)] if node is not None else None


def _faults(place: _Place, layer: Layer) -> list[str]:
    kind = "batch norm" if place.norm else "conv"
    if layer.kind != kind:
        return [f"a {layer.kind} ({layer.path or 'unnamed'}) stands where {place.name}, a {kind}, was expected"]
    faults = []
    if layer.path and layer.path != place.known_as:
        faults.append(f"{place.name} would be taken from {layer.path}, expected {place.known_as}")
    if not place.norm:
        expected = {"strides": place.strides, "dilations": (place.dilation,) * len(place.strides), "group": 1}
        faults += [f"{place.name} has {key} {layer.settings.get(key)}, expected {value}"
                   for key, value in expected.items() if layer.settings.get(key) != value]
    return faults


def _affine(norm: Layer) -> tuple[Double, Double]:
    """Scale and shift that a batch norm amounts to once trained, in float64."""
    if norm.running is None or norm.bias is None:
        raise AssetError(f"{norm.path or 'a batch norm'} has no statistics. {REMEDY}")
    mean, variance = (part.astype(np.float64) for part in norm.running)
    scale: Double = norm.weight.astype(np.float64) / np.sqrt(variance + norm.eps)
    return scale, norm.bias.astype(np.float64) - mean * scale


def _folded(conv: Layer, norm: Layer | None) -> tuple[Array, Array | None]:
    if norm is None:
        return conv.weight, conv.bias
    scale, shift = _affine(norm)
    weight = conv.weight.astype(np.float64) * scale.reshape(-1, *[1] * (conv.weight.ndim - 1))
    return weight, shift if conv.bias is None else conv.bias.astype(np.float64) * scale + shift


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, np.float32))
