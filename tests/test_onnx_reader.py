"""The ONNX reader's mapping and attributes, and the layers found in a graph, on files written by hand and by torch."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn.onnx_layers import Layers, layers_of
from cosyvoice_app.nn.onnx_reader import Graph, Node, read_graph


def saved(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> Path:
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(value, name) for name, value in constants.items()])
    onnx.save(helper.make_model(graph), str(path))
    return path


def exported(net: nn.Module, path: Path, opset: int) -> Layers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net.eval(), torch.randn(1, 5, 8), str(path), opset_version=opset, dynamo=False)
    return layers_of(read_graph(path))


def test_attributes_and_outputs_are_those_that_were_written(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "/a/Conv", strides=[2], pads=[1, 1], group=3),
        helper.make_node("Gemm", ["h", "w"], ["g"], "/b/Gemm", alpha=0.5, transB=0, text="not read"),
        helper.make_node("Constant", [], ["c"], "/c", value=numpy_helper.from_array(np.array([1.5, -2], np.float32))),
    ]
    graph = read_graph(saved(tmp_path / "m.onnx", nodes, {"w": np.zeros((2, 2), np.float32)}))
    conv, gemm, constant = graph.nodes
    assert conv.outputs == ("h",) and conv.attributes == {"strides": (2,), "pads": (1, 1), "group": 3}
    assert gemm.attributes == {"alpha": 0.5, "transB": 0}
    assert np.array_equal(np.asarray(constant.attributes["value"]), np.float32([1.5, -2]))


def test_the_file_is_mapped_and_never_written(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", [], {"w": np.arange(6, dtype=np.float32)})
    before = path.read_bytes()
    graph = read_graph(path)
    weight = graph.constants["w"]
    assert weight.base is not None, "a view, not a copy"
    weight[0] = 99
    assert path.read_bytes() == before
    del graph
    assert weight[1] == 1.0, "a view keeps the mapping alive"


def test_weights_kept_in_another_file_are_refused(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    graph = helper.make_graph([], "g", [], [], [tensor])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(AssetError, match="stored in a way not read here.* Try it"):
        read_graph(path, remedy="Try it.")


class Mixed(nn.Module):
    """One of each kind of layer that is found."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 6, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm1d(6)
        self.norm = nn.LayerNorm(8, eps=1e-4)
        self.stack = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8, bias=False))
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.stack(self.norm(x))
        y = self.bn(self.conv(x.transpose(1, 2)).relu())
        return self.last(y.mean(-1))


@pytest.mark.parametrize("opset", [11, 13, 16, 17])
def test_layers_come_as_the_author_wrote_them(tmp_path: Path, opset: int) -> None:
    torch.manual_seed(0)
    net = Mixed()
    for p in net.parameters():
        p.data.normal_()
    net.bn.running_mean.normal_()
    layers = exported(net, tmp_path / "m.onnx", opset)
    expected = [("layer norm", "norm"), ("linear", "stack.0"), ("linear", "stack.2"), ("conv", "conv"),
                ("batch norm", "bn"), ("linear", "last")]
    assert [(layer.kind, layer.path) for layer in layers.found] == expected
    for layer in layers.found:
        module = net.get_submodule(layer.path)
        assert np.array_equal(layer.weight, module.weight.detach().numpy()), layer.path
        assert (layer.bias is None) == (module.bias is None), layer.path
        if layer.bias is not None:
            assert np.array_equal(layer.bias, module.bias.detach().numpy()), layer.path
    assert layers.found[0].eps == pytest.approx(1e-4)
    mean, variance = layers.found[4].running or (None, None)
    assert np.array_equal(mean, net.bn.running_mean.numpy()) and np.array_equal(variance, net.bn.running_var.numpy())
    assert layers.found[3].settings["pads"] == (1, 1)
    layers.refuse_leftovers("m.onnx", "Again.")


def test_a_weight_in_no_layer_is_refused_by_name() -> None:
    constants = {"stray": np.ones(3, np.float32), "axes": np.array([1, 2]), "eps": np.float32(1e-5).reshape(())}
    with pytest.raises(AssetError, match=r"belong to no layer: stray \[3\]. Again"):
        layers_of(Graph((), constants)).refuse_leftovers("m.onnx", "Again.")
    del constants["stray"]
    layers_of(Graph((), constants)).refuse_leftovers("m.onnx", "Again.")


def test_a_weight_is_found_through_identity_nodes() -> None:
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    nodes = (Node("", "Identity", ("w",), ("alias",)), Node("", "MatMul", ("x", "alias"), ("y",)))
    (layer,) = layers_of(Graph(nodes, {"w": weight})).found
    assert np.array_equal(layer.weight, weight.T) and layer.bias is None and layer.path == ""


def test_a_scaled_product_is_no_linear_layer() -> None:
    node = Node("g", "Gemm", ("x", "w"), ("y",), {"alpha": 0.5})
    with pytest.raises(ValueError, match="no linear layer"):
        layers_of(Graph((node,), {"w": np.zeros((2, 2), np.float32)}))
