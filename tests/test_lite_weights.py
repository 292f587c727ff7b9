"""Weight files: the ONNX reader, the conversion's accounting, strict loading."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cosyvoice_app.engines.lite import weights
from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn import loading
from cosyvoice_app.nn.onnx_reader import Graph, Node, read_graph


def varint(n: int) -> bytes:
    n &= (1 << 64) - 1
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def chunk(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def tensor(name: str, kind: int, dims: list[int], body: bytes) -> bytes:
    return chunk(5, b"".join(number(1, d) for d in dims) + number(2, kind) + chunk(8, name.encode()) + body)


def model(*parts: bytes) -> bytes:
    return number(1, 9) + chunk(7, b"".join(parts))


def test_reader_reads_every_way_a_constant_is_stored(tmp_path: Path) -> None:
    raw = np.array([[1, -2], [3, 4]], np.int8)
    node = chunk(1, chunk(1, b"x") + chunk(1, b"w") + chunk(2, b"y") + chunk(3, b"/a/b/Conv") + chunk(4, b"Conv"))
    path = tmp_path / "m.onnx"
    path.write_bytes(model(
        node,
        tensor("raw", 3, [2, 2], chunk(9, raw.tobytes())),
        tensor("floats", 1, [2], chunk(4, struct.pack("<2f", 0.5, -1.5))),
        tensor("packed", 7, [3], chunk(7, varint(-1) + varint(300) + varint(0))),
        tensor("single", 3, [], number(5, -5)),
        tensor("empty", 1, [0], b""),
    ))
    graph = read_graph(path)
    assert graph.nodes == (Node("/a/b/Conv", "Conv", ("x", "w")),)
    assert np.array_equal(graph.constants["raw"], raw) and graph.constants["raw"].dtype == np.int8
    assert graph.constants["floats"].tolist() == [0.5, -1.5]
    assert graph.constants["packed"].tolist() == [-1, 300, 0]
    assert graph.constants["single"].shape == () and graph.constants["single"] == -5
    assert graph.constants["empty"].size == 0


@pytest.mark.parametrize("data", [b"", b"not a model at all", model(tensor("w", 1, [9], chunk(9, b"\0" * 8))),
                                  model(tensor("w", 8, [1], b"")), model(tensor("w", 1, [1], b""))[:-3]],
                         ids=["empty", "text", "short-data", "string-type", "cut"])
def test_a_damaged_file_is_an_asset_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(AssetError, match="assets fetch"):
        read_graph(path)


def quantised_linear(**more: np.ndarray) -> Graph:
    """A graph with one int8 product: [in=3, out=2], one scale and zero point a column."""
    constants = {
        "onnx::MatMul_1_quantized": np.array([[1, 2], [3, 4], [5, 6]], np.int8),
        "onnx::MatMul_1_scale": np.array([0.5, 2.0], np.float32),
        "merged_zero_point": np.array([1, 0], np.int8),
        "encoder.proj.bias": np.zeros(2, np.float32),
        "/encoder/Constant_output_0": np.float32(2.0).reshape(()),
        "axes": np.array([1], np.int64),
        **more,
    }
    inputs = ("x", "onnx::MatMul_1_quantized", "z", "merged_zero_point")
    node = Node("/encoder/proj/MatMul_quant", "MatMulInteger", inputs)
    return Graph((node,), constants)


def test_dequantised_by_column_and_transposed() -> None:
    state = weights.kokoro_state(quantised_linear())
    assert sorted(state) == ["proj.bias", "proj.weight"]
    assert state["proj.weight"].tolist() == [[0.0, 1.0, 2.0], [4.0, 8.0, 12.0]]


def test_a_constant_without_a_place_is_refused_by_name() -> None:
    with pytest.raises(AssetError, match="surprise"):
        weights.kokoro_state(quantised_linear(surprise=np.ones(4, np.float32)))
    with pytest.raises(AssetError, match="onnx::W_quantized"):
        weights.kokoro_state(quantised_linear(**{"onnx::W_quantized": np.ones(4, np.int8)}))


def test_one_weight_for_two_modules_is_refused_unless_a_numbered_repeat() -> None:
    graph = quantised_linear()
    repeat = Node("/encoder/proj_1/MatMul_quant", *(graph.nodes[0].op, graph.nodes[0].inputs))
    assert len(weights.kokoro_state(Graph((*graph.nodes, repeat), graph.constants))) == 2
    other = Node("/encoder/other/MatMul_quant", graph.nodes[0].op, graph.nodes[0].inputs)
    with pytest.raises(AssetError, match="other"):
        weights.kokoro_state(Graph((*graph.nodes, other), graph.constants))


def test_lstm_gates_and_directions_follow_pytorch() -> None:
    """ONNX's own definition (gates i, o, f, c; weights [2, in, 4h] here) against torch.nn.LSTM with the converted
    weights.
    """
    rng = np.random.default_rng(0)
    size, hidden, steps = 3, 2, 4
    q = {"W": rng.integers(-9, 9, (2, size, 4 * hidden)), "R": rng.integers(-9, 9, (2, hidden, 4 * hidden))}
    scale, zero = np.array([0.1, 0.07], np.float32), np.array([1, -2], np.int8)
    bias = rng.normal(size=(2, 8 * hidden)).astype(np.float32)
    constants = {"W_quantized": q["W"].astype(np.int8), "R_quantized": q["R"].astype(np.int8), "B": bias,
                 "W_scale": scale, "W_zero": zero, "R_scale": scale}
    node = Node("/encoder/lstm/LSTM_quant", "DynamicQuantizeLSTM",
                ("x", "W_quantized", "R_quantized", "B", "", "h0", "c0", "", "W_scale", "W_zero", "R_scale", "W_zero"))
    state = weights.kokoro_state(Graph((node,), constants))
    lstm = nn.LSTM(size, hidden, bidirectional=True)
    lstm.load_state_dict({k.removeprefix("lstm."): v for k, v in state.items()})
    x = rng.normal(size=(steps, size)).astype(np.float32)

    def sigmoid(v: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-v))

    for d, order in ((0, range(steps)), (1, reversed(range(steps)))):
        w, r = ((q[k][d] - float(zero[d])) * scale[d] for k in ("W", "R"))
        h = c = np.zeros(hidden)
        out = np.zeros((steps, hidden))
        for t in order:
            i, o, f, g = np.split(x[t] @ w + h @ r + bias[d, : 4 * hidden] + bias[d, 4 * hidden :], 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            out[t] = h
        ours = lstm(torch.from_numpy(x))[0].detach().numpy()[:, d * hidden : (d + 1) * hidden]
        np.testing.assert_allclose(ours, out, atol=1e-5)


def test_strict_loading_lists_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"weight": torch.ones(2, 3), "extra": torch.ones(1)}, path)
    with pytest.raises(AssetError) as caught:
        loading.load_strict(nn.Linear(2, 2), path)
    for part in ("missing: bias", "not expected: extra", "weight is [2, 3], expected [2, 2]"):
        assert part in caught.value.message
    path.write_bytes(b"junk")
    with pytest.raises(AssetError, match="can't be read"):
        loading.load_strict(nn.Linear(2, 2), path)


def test_strict_loading_keeps_the_memory_layout_of_the_module(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}, path)
    module = nn.Linear(3, 2)
    module.weight = nn.Parameter(module.weight.detach().T.contiguous().T)
    stride = module.weight.stride()
    loading.load_strict(module, path)
    assert module.weight.stride() == stride and module.weight[1, 0] == 3.0


def test_a_pickle_with_code_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save({"weight": torch.nn.Linear(1, 1)}, path)
    with pytest.raises(AssetError):
        weights.convert_campplus(path, tmp_path / "out.safetensors")
    assert not list(tmp_path.glob("*.safetensors*"))


def test_campplus_conversion_keeps_all_but_the_counters(tmp_path: Path) -> None:
    source, out = tmp_path / "w.pt", tmp_path / "deep" / "out.safetensors"
    norm = nn.BatchNorm1d(3)
    torch.save(norm.state_dict(), source)
    weights.convert_campplus(source, out)
    assert sorted(loading.load_tensors(out)) == ["bias", "running_mean", "running_var", "weight"]
    assert [p.name for p in out.parent.iterdir()] == ["out.safetensors"]
