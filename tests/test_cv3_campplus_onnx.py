"""CAM++ read from a graph. The graphs are written here from a random checkpoint, node by node in the order the network
runs, with the names and the folding that PyTorch's exporter gives; what they must amount to is what the checkpoint
itself gives through `campplus.fold`. Not covered here: that the released network runs in this order, and that the whole
network is the official one; tests/parity/prompt.py shows both on graphs exported from 3D-Speaker's own class.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from test_lite_campplus import checkpoint
from torch import Tensor

from cosyvoice_app.engines.campplus import BLOCKS, BN_EPS, fold
from cosyvoice_app.engines.cosyvoice3.campplus_weights import load_campplus_onnx, read_state
from cosyvoice_app.errors import AssetError


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return checkpoint(torch.Generator().manual_seed(4))


class Writer:
    """Chains nodes; nobody runs the graph, so what is between the layers is left out."""

    def __init__(self, state: dict[str, Tensor], *, folded: bool, named: bool) -> None:
        self.state, self.folded, self.named = state, folded, named
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.at = "x"

    def weight(self, value: Tensor, name: str = "") -> str:
        name = name if name and self.named else f"onnx::{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value.numpy(), name))
        return name

    def node(self, op: str, path: str, inputs: list[str], **attributes: object) -> None:
        to = f"v{len(self.nodes)}"
        name = f"/{path.replace('.', '/')}/{op}" if self.named else ""
        self.nodes.append(helper.make_node(op, [self.at, *inputs], [to], name, **attributes))
        self.at = to

    def norm(self, path: str) -> None:
        held = [self.state.get(f"{path}.{kind}") for kind in ("weight", "bias", "running_mean", "running_var")]
        size = len(held[2])
        held[0] = torch.ones(size) if held[0] is None else held[0]
        held[1] = torch.zeros(size) if held[1] is None else held[1]
        self.node("BatchNormalization", path, [self.weight(part) for part in held], epsilon=BN_EPS)

    def conv(self, path: str, norm: str = "", *, strides: tuple[int, ...] = (1,), dilation: int = 1) -> None:
        weight, bias = self.state[f"{path}.weight"], self.state.get(f"{path}.bias")
        how = {"strides": strides, "dilations": (dilation,) * len(strides), "group": 1}
        if norm and self.folded:
            get = lambda kind: self.state[f"{norm}.{kind}"]  # noqa: E731
            scale = get("weight") / (get("running_var") + BN_EPS).sqrt()
            weight = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
            bias = get("bias") - get("running_mean") * scale
        inputs = [self.weight(weight)] + ([self.weight(bias)] if bias is not None else [])
        self.node("Conv", path, inputs, **how)
        if norm and not self.folded:
            self.norm(norm)
        self.node("Relu", path, [])


def written(path: Path, state: dict[str, Tensor], *, folded: bool, named: bool = True) -> Path:
    w = Writer(state, folded=folded, named=named)
    w.conv("head.conv1", "head.bn1", strides=(1, 1))
    for layer in ("head.layer1", "head.layer2"):
        for item, stride in (("0", (2, 1)), ("1", (1, 1))):
            to = f"{layer}.{item}"
            w.conv(f"{to}.conv1", f"{to}.bn1", strides=stride)
            w.conv(f"{to}.conv2", f"{to}.bn2", strides=(1, 1))
            if item == "0":
                w.conv(f"{to}.shortcut.0", f"{to}.shortcut.1", strides=stride)
    w.conv("head.conv2", "head.bn2", strides=(2, 1))
    w.conv("xvector.tdnn.linear", "xvector.tdnn.nonlinear.batchnorm", strides=(2,))
    for b, (layers, dilation) in enumerate(BLOCKS):
        for n in range(layers):
            to = f"xvector.block{b + 1}.tdnnd{n + 1}"
            w.norm(f"{to}.nonlinear1.batchnorm")
            w.conv(f"{to}.linear1", f"{to}.nonlinear2.batchnorm")
            w.conv(f"{to}.cam_layer.linear_local", dilation=dilation)
            w.conv(f"{to}.cam_layer.linear1")
            w.conv(f"{to}.cam_layer.linear2")
        w.norm(f"xvector.transit{b + 1}.nonlinear.batchnorm")
        w.conv(f"xvector.transit{b + 1}.linear", "xvector.out_nonlinear.batchnorm" if b == 2 else "")
    w.nodes.pop()  # the last layer's norm follows at once, after a squeeze, which keeps the exporter from folding it
    w.at = w.nodes[-1].output[0]
    w.node("ReduceMean", "xvector.stats", [])
    w.conv("xvector.dense.linear")
    w.nodes.pop()
    w.at = w.nodes[-1].output[0]
    w.node("Squeeze", "xvector.dense", [])
    w.norm("xvector.dense.nonlinear.batchnorm")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", w.at)]
    onnx.save(helper.make_model(helper.make_graph(w.nodes, "g", values[:1], values[1:], w.constants)), str(path))
    return path


@pytest.mark.parametrize(("folded", "named"), [(True, True), (False, True), (True, False)],
                         ids=["folded", "norms apart", "no names"])
def test_a_graph_is_read_as_its_checkpoint_is(tmp_path: Path, state: dict[str, Tensor], folded: bool,
                                              named: bool) -> None:
    mine = read_state(written(tmp_path / "c.onnx", state, folded=folded, named=named))
    expected = fold(state)
    assert mine.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(mine[name], value, atol=2e-5, rtol=1e-4, msg=name)


def test_the_encoder_computes_with_what_was_read(tmp_path: Path, state: dict[str, Tensor]) -> None:
    net = load_campplus_onnx(written(tmp_path / "c.onnx", state, folded=True))
    out = net(torch.randn(1, 50, 80, generator=torch.Generator().manual_seed(0)))
    assert out.shape == (1, 192) and bool(out.isfinite().all())


def test_what_does_not_fit_is_named(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = written(tmp_path / "c.onnx", state, folded=True)
    model = onnx.load(str(path))
    first = next(node for node in model.graph.node if node.name == "/head/layer1/0/conv1/Conv")
    next(a for a in first.attribute if a.name == "strides").ints[:] = [1, 1]
    onnx.save(model, str(path))
    with pytest.raises(AssetError, match=r"head\.layer1\.0\.conv1 has strides \(1, 1\), expected \(2, 1\)"):
        read_state(path)
    model.graph.node.remove(first)
    onnx.save(model, str(path))
    with pytest.raises(AssetError, match="layers with weights, expected"):
        read_state(path)
    path = written(tmp_path / "d.onnx", state, folded=True)
    model = onnx.load(str(path))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(7, np.float32), "stray"))
    onnx.save(model, str(path))
    with pytest.raises(AssetError, match=r"stray \[7\]"):
        read_state(path)
