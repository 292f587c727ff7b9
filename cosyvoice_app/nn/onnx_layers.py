"""The layers of an ONNX graph in the order they run, with their weights, whatever the exporter named these.

An exporter keeps the names of some weights and calls others `onnx::MatMul_1234`; it writes a linear layer as MatMul and
Add or as Gemm, a layer norm as one node or as nine, and takes a batch norm into the convolution before it. `layers_of`
undoes that: what it gives is what the network's author wrote, and `claimed` names every constant that went into it.

`path` is the layer's place in the author's module ("blocks.0.attn.query"), read from the node's name
("/blocks.0/attn/query/MatMul"), or "" where the exporter left no names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn.onnx_reader import Array, Graph, Node

Kind = Literal["conv", "linear", "layer norm", "batch norm"]
_SAME_VALUE = ("Identity", "Cast")
_SAME_NUMBERS = (*_SAME_VALUE, "Squeeze", "Unsqueeze", "Reshape")


@dataclass(frozen=True, slots=True)
class Layer:
    """`weight` as PyTorch has it: conv [out, in / groups, kernel...], linear [out, in], norm [channels].

    `running` are a batch norm's mean and variance. `settings` are a convolution's strides, dilations, pads and group;
    `eps` is a norm's.
    """

    kind: Kind
    path: str
    weight: Array
    bias: Array | None
    node: Node
    running: tuple[Array, Array] | None = None
    eps: float = 0.0
    settings: dict[str, int | tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layers:
    """`claimed` are the names of the constants that are in `found`."""

    found: tuple[Layer, ...]
    claimed: frozenset[str]
    wiring: Wiring

    def refuse_leftovers(self, source: str, remedy: str) -> None:
        """Raise AssetError for an initialiser of floats that is in no layer. Single numbers are no weights."""
        left = [name for name, value in self.wiring.graph.constants.items()
                if name not in self.claimed and value.dtype.kind == "f" and value.size > 1]
        if left:
            shown = ", ".join(f"{n} {list(self.wiring.graph.constants[n].shape)}" for n in left[:10])
            more = f" and {len(left) - 10} more" if len(left) > 10 else ""
            raise AssetError(f"{source} holds weights that belong to no layer: {shown}{more}. {remedy}")


class Wiring:
    """Who makes and who uses each value of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._maker: dict[str, Node] = {out: node for node in graph.nodes for out in node.outputs}
        self._users: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                self._users.setdefault(name, []).append(node)

    def value(self, name: str) -> tuple[str, Array] | None:
        """The constant behind `name`, and its name: an initialiser, a Constant node, or either through Identity."""
        while name not in self.graph.constants:
            node = self._maker.get(name)
            if node is None:
                return None
            if node.op == "Constant":
                held = node.attributes.get("value", node.attributes.get("value_float"))
                return (name, np.asarray(held)) if isinstance(held, np.ndarray | float) else None
            if node.op not in _SAME_VALUE or not node.inputs:
                return None
            name = node.inputs[0]
        return name, self.graph.constants[name]

    def maker(self, name: str, through: tuple[str, ...] = _SAME_VALUE) -> Node | None:
        """The node that computes `name`, past those that only hand it on."""
        node = self._maker.get(name)
        while node is not None and node.op in through and node.inputs:
            node = self._maker.get(node.inputs[0])
        return node

    def only_user(self, node: Node, through: tuple[str, ...] = _SAME_VALUE) -> Node | None:
        """The one node that uses `node`'s output, past those that only hand it on; None when there are more.

        What merely asks for the output's shape doesn't count.
        """
        while True:
            users = [user for user in self._users.get(node.outputs[0], ()) if user.op != "Shape"]
            if len(users) != 1:
                return None
            node = users[0]
            if node.op not in through:
                return node

    def weighted_before(self, name: str, stops: dict[int, int]) -> set[int]:
        """Which of the layers `stops` (by node id) feed `name` with no other of them between. Shapes feed nothing."""
        found: set[int] = set()
        seen: set[int] = set()
        todo = [name]
        while todo:
            node = self._maker.get(todo.pop())
            if node is None or id(node) in seen or node.op == "Shape":
                continue
            seen.add(id(node))
            if id(node) in stops:
                found.add(stops[id(node)])
            else:
                todo += node.inputs
        return found


def layers_of(graph: Graph) -> Layers:
    """See the module. Raises ValueError for a layer whose constants aren't where its kind has them."""
    wiring = Wiring(graph)
    claimed: set[str] = set()
    found = tuple(_layers(graph, wiring, claimed))
    return Layers(found, frozenset(claimed), wiring)


def after(layer: Layer, wiring: Wiring, kind: str) -> Node | None:
    """The `kind` of node that alone uses the layer's output, if any: reshapes between don't count."""
    node = wiring.only_user(layer.node, _SAME_NUMBERS)
    return node if node is not None and node.op == kind else None


def _layers(graph: Graph, wiring: Wiring, claimed: set[str]) -> Iterator[Layer]:
    def take(name: str, node: Node) -> Array:
        held = wiring.value(name)
        if held is None:
            raise ValueError(f"{node.name or node.op}: {name!r} is computed where a weight was expected")
        claimed.add(held[0])
        return held[1]

    def bias_of(node: Node, size: int) -> Array | None:
        """What an Add right after puts on top, if it is a constant of the layer's width."""
        user = wiring.only_user(node)
        if user is None or user.op != "Add":
            return None
        for name in user.inputs:
            held = wiring.value(name)
            if held is not None and held[1].shape == (size,) and held[1].dtype.kind == "f":
                return take(name, user)
        return None

    for node in graph.nodes:
        path = _path(node)
        if node.op == "Conv":
            settings = {key: v for key, v in node.attributes.items()
                        if key in ("strides", "dilations", "pads", "group") and isinstance(v, int | tuple)}
            bias = take(node.inputs[2], node) if len(node.inputs) > 2 and node.inputs[2] else None
            yield Layer("conv", path, take(node.inputs[1], node), bias, node, settings=settings)
        elif node.op == "MatMul" and _is_matrix(wiring, node.inputs[1]):
            weight = take(node.inputs[1], node).T
            yield Layer("linear", path, weight, bias_of(node, weight.shape[0]), node)
        elif node.op == "Gemm" and _is_matrix(wiring, node.inputs[1]):
            if any(node.attributes.get(key, one) != one for key, one in (("alpha", 1.0), ("beta", 1.0), ("transA", 0))):
                raise ValueError(f"{node.name}: a Gemm that is no linear layer: {node.attributes}")
            weight = take(node.inputs[1], node)
            weight = weight if node.attributes.get("transB", 0) else weight.T
            bias = take(node.inputs[2], node) if len(node.inputs) > 2 else bias_of(node, weight.shape[0])
            yield Layer("linear", path, weight, bias, node)
        elif node.op == "LayerNormalization":
            eps = node.attributes.get("epsilon", 1e-5)
            bias = take(node.inputs[2], node) if len(node.inputs) > 2 else None
            yield Layer("layer norm", path, take(node.inputs[1], node), bias, node, eps=_number(eps))
        elif node.op == "Mul" and (eps_of := _norm_eps(wiring, node)) is not None:
            name = next(n for n in node.inputs if wiring.value(n) is not None)
            weight = take(name, node)
            yield Layer("layer norm", path, weight, bias_of(node, weight.shape[0]), node, eps=eps_of)
        elif node.op == "BatchNormalization":
            scale, shift, mean, variance = (take(name, node) for name in node.inputs[1:5])
            eps = node.attributes.get("epsilon", 1e-5)
            yield Layer("batch norm", path, scale, shift, node, (mean, variance), _number(eps))


def _is_matrix(wiring: Wiring, name: str) -> bool:
    held = wiring.value(name)
    return held is not None and held[1].ndim == 2 and held[1].dtype.kind == "f"


def _norm_eps(wiring: Wiring, node: Node) -> float | None:
    """Of a Mul that scales (x - mean) / sqrt(variance + eps) by a vector, the eps; None of any other Mul."""
    vectors = [held[1] for name in node.inputs if (held := wiring.value(name)) is not None]
    if len(vectors) != 1 or vectors[0].ndim != 1 or vectors[0].size < 2 or vectors[0].dtype.kind != "f":
        return None
    for name in node.inputs:
        divided = wiring.maker(name)
        root = wiring.maker(divided.inputs[1]) if divided is not None and divided.op == "Div" else None
        total = wiring.maker(root.inputs[0]) if root is not None and root.op == "Sqrt" else None
        if total is not None and total.op == "Add":
            numbers = [held[1] for n in total.inputs if (held := wiring.value(n)) is not None and held[1].size == 1]
            if len(numbers) == 1:
                return float(numbers[0].reshape(())[()])
    return None


def _number(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise ValueError(f"an eps of {value!r}")


def _path(node: Node) -> str:
    """ "/mlp/mlp.0/MatMul" -> "mlp.0": a list's own name is written once more before its item's."""
    parts = node.name.strip("/").split("/")[:-1] if node.name.startswith("/") else []
    kept = [part for part, following in zip(parts, [*parts, ""][1:], strict=True)
            if not re.fullmatch(re.escape(part) + r"\.\d+", following)]
    return ".".join(kept)
