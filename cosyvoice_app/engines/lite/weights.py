"""Model files: what is fetched (int8 ONNX, a PyTorch state dict) into what is used (fp32 safetensors), and strict
loading.

Kokoro-82M comes as an int8 ONNX graph. It is never run: dynamic int8 is slower than fp32 on most CPUs, can't be fitted
to a voice and has no CUDA kernels. `convert_kokoro` reads its weights back under PyTorch-style names. What that rests
on:

- node names carry the module path: `/decoder/decoder/decode.0/conv1/Conv_quant` is `decoder.decode.0.conv1`;
- weight norm was folded at export, so a convolution is one plain weight;
- a zero point must be read from the node's own inputs: equal ones were merged and no longer bear the weight's name;
- ONNX LSTM gates are ordered i, o, f, c; PyTorch's are i, f, c, o;
- the 12 ALBERT layers share one set of weights: nodes named `..._1`, `..._2` use the same constants again.

Every constant of the graph is accounted for: as a weight, as part of one, or as a constant of a known kind. Anything
else means the file has another layout, and is an AssetError, because a weight left out would only be heard, not seen.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from cosyvoice_app.errors import AssetError
from cosyvoice_app.nn.loading import REMEDY
from cosyvoice_app.nn.onnx_reader import Array, Graph, Node, read_graph

Floats = npt.NDArray[np.float32]

# Constants that carry no trained value: graph shapes, scalars, and what the module computes itself.
_COMPUTED = re.compile(r"/Reciprocal(_\d+)?_output_0$|/Constant(_\d+)?_output_0$|/ConstantOfShape_output_0$"
                       r"|\.stft\.(inverse_basis|window_sum)$")


def convert_kokoro(onnx_path: Path, out_path: Path) -> None:
    """Write the fp32 weights of Kokoro's int8 ONNX file to `out_path` (safetensors, 328 MB). Raises AssetError."""
    state = kokoro_state(read_graph(onnx_path), str(onnx_path))
    _save(state, out_path, {"source": "Kokoro-82M v1.0 (hexgrad), Apache-2.0, from its int8 ONNX export"})


def convert_campplus(pt_path: Path, out_path: Path) -> None:
    """Write CAM++'s state dict, batch norms as they are, to `out_path` (safetensors, 28 MB). Raises AssetError."""
    try:
        state = torch.load(pt_path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as e:
        raise AssetError(f"{pt_path} is not a readable PyTorch state dict ({e}). {REMEDY}") from e
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise AssetError(f"{pt_path} holds something other than tensors by name. {REMEDY}")
    kept = {k: v.float() for k, v in state.items() if not k.endswith("num_batches_tracked")}
    _save(kept, out_path, {"source": "CAM++ zh-en advanced (3D-Speaker), Apache-2.0"})


def kokoro_state(graph: Graph, source: str = "graph") -> dict[str, Tensor]:
    """The fp32 state dict in a quantised Kokoro graph. `source` is named in errors."""
    return _Converter(graph, source).run()


class _Converter:
    """One pass over the graph. `used` maps each constant to what it became, so that none is lost or taken twice."""

    def __init__(self, graph: Graph, source: str) -> None:
        self.graph, self.source = graph, source
        self.constants = graph.constants
        self.state: dict[str, Tensor] = {}
        self.used: dict[str, str] = {}
        # An embedding is looked up as int8 and dequantised by the next node, which holds scale and zero point.
        self.dequantise = {n.name: n for n in graph.nodes if n.op == "DequantizeLinear"}

    def run(self) -> dict[str, Tensor]:
        for name, array in self.constants.items():
            if re.match(r"(encoder|decoder)\.", name) and array.dtype == np.float32 and not _COMPUTED.search(name) \
                    and not name.endswith("_scale"):
                self._put(_torch_name(name), array, name)
        for node in self.graph.nodes:
            self._node(node)
        self._account()
        return self.state

    def _node(self, node: Node) -> None:
        key = _torch_name(".".join(_module_path(node.name)))
        weight = node.inputs[1] if len(node.inputs) > 1 else ""
        if node.op == "ConvInteger":
            self._dequantised(key, node.inputs[1], node.inputs[3], axis=0)
        elif node.op == "MatMulInteger" and weight in self.constants:
            self._dequantised(key, weight, node.inputs[3], axis=1)
        elif node.op == "Gather" and node.inputs[0].endswith("_quantized"):
            scale_zero = self.dequantise.get(node.name + "_DequantizeLinear")
            if scale_zero is None:
                raise self._fault(f"{node.name} is not followed by a DequantizeLinear")
            self._dequantised(key, node.inputs[0], scale_zero.inputs[2], axis=0)
        elif node.op == "DynamicQuantizeLSTM":
            self._lstm(key, node)
        elif node.op in ("Conv", "ConvTranspose") and weight in self.constants and not _COMPUTED.search(weight):
            self._put(f"{key}.weight", self.constants[weight], weight)
        elif node.op == "MatMul" and weight in self.constants:
            self._put(f"{key}.weight", self.constants[weight].T, weight)

    def _dequantised(self, key: str, name: str, zero_name: str, axis: int) -> None:
        """`(q - zero) * scale`, by tensor or by channel along `axis`; MatMul weights are [in, out], ours [out, in]."""
        if name in self.used:  # a shared ALBERT layer, met again
            if re.sub(r"_\d+$", "", key) + ".weight" != self.used[name]:
                raise self._fault(f"{name} is used by both {self.used[name]} and {key}")
            return
        scale_name = name.removesuffix("_quantized") + "_scale"
        quantised = self._constant(name).astype(np.float32)
        zero, scale = (_channels(self._constant(n), quantised.ndim, axis) for n in (zero_name, scale_name))
        value = (quantised - zero) * scale
        self._put(f"{key}.weight", value.T if axis == 1 else value, name)
        self.used[scale_name] = self.used[zero_name] = key

    def _lstm(self, key: str, node: Node) -> None:
        """Both directions of a bidirectional LSTM: W [2, in, 4h], R [2, h, 4h], B [2, 8h] (input then recurrent)."""
        names = {"W": node.inputs[1], "R": node.inputs[2], "B": node.inputs[3]}
        scales = dict(zip(("Ws", "Wz", "Rs", "Rz"), node.inputs[8:12], strict=True))
        for name in (*names.values(), *scales.values()):
            self._constant(name)
            self.used[name] = key
        if any(np.any(self.constants[n]) for n in node.inputs[5:7] if n in self.constants):
            raise self._fault(f"{key} starts from a state that isn't zero")
        value = {k: self.constants[n].astype(np.float32) for k, n in (names | scales).items()}
        per_direction = {k: v.reshape(2, 1, 1) for k, v in value.items() if k in scales}
        w = ((value["W"] - per_direction["Wz"]) * per_direction["Ws"]).transpose(0, 2, 1)
        r = ((value["R"] - per_direction["Rz"]) * per_direction["Rs"]).transpose(0, 2, 1)
        half = value["B"].shape[1] // 2
        for direction, suffix in enumerate(("", "_reverse")):
            bias = value["B"][direction]
            for kind, array in (("weight_ih", w[direction]), ("weight_hh", r[direction]),
                                ("bias_ih", bias[:half]), ("bias_hh", bias[half:])):
                self._put(f"{key}.{kind}_l0{suffix}", _reorder_gates(array), "")

    def _put(self, key: str, value: Array, constant: str) -> None:
        if key in self.state:
            raise self._fault(f"{key} is there twice")
        self.state[key] = torch.from_numpy(np.ascontiguousarray(value, np.float32).copy())
        if constant:
            self.used[constant] = key

    def _constant(self, name: str) -> Array:
        if name not in self.constants:
            raise self._fault(f"{name!r} is not a constant")
        return self.constants[name]

    def _account(self) -> None:
        left = [name for name, a in self.constants.items()
                if name not in self.used and not _COMPUTED.search(name)
                and not (a.dtype in (np.int64, np.int32) and not name.endswith("_quantized"))]
        if left:
            raise self._fault(f"{len(left)} constants have no known place: {', '.join(sorted(left)[:8])}")
        if not self.state:
            raise self._fault("it holds no weights")

    def _fault(self, what: str) -> AssetError:
        return AssetError(f"{self.source} is not the Kokoro-82M int8 graph this program reads: {what}. {REMEDY}")


def _module_path(node_name: str) -> list[str]:
    """`/decoder/decoder/decode.0/conv1/Conv` -> decoder, decoder, decode.0, conv1. `cnn.0/cnn.0.0` names one module
    twice.
    """
    path: list[str] = []
    for part in node_name.strip("/").split("/")[:-1]:
        if path and part.startswith(path[-1] + "."):
            path[-1] = part
        else:
            path.append(part)
    return path


def _torch_name(name: str) -> str:
    """Module path without the two wrappers of the export; F0, N and the LSTM they share belong to the predictor."""
    if name.startswith("decoder.decoder."):
        return name.removeprefix("decoder.")
    if name.startswith("encoder."):
        name = name.removeprefix("encoder.")
        return "predictor." + name if re.match(r"(F0|N|F0_proj|N_proj|shared)(\.|$)", name) else name
    return name


def _channels(a: Array, ndim: int, axis: int) -> Floats:
    """A scale or zero point, shaped to broadcast along `axis`."""
    if a.size == 1:
        return a.astype(np.float32).reshape(())
    return a.astype(np.float32).reshape([-1 if d == axis else 1 for d in range(ndim)])


def _reorder_gates(a: Floats) -> Floats:
    i, o, f, c = np.split(a, 4, axis=0)
    return np.concatenate([i, f, c, o], axis=0)


def _save(state: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write beside, then rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file({k: v.contiguous() for k, v in state.items()}, part, metadata=metadata)
        os.replace(part, path)
    except (OSError, SafetensorError) as e:
        raise AssetError(f"{path} can't be written: {e}. {_size_mb(state)} MB must be free there.") from e
    finally:
        part.unlink(missing_ok=True)


def _size_mb(state: Mapping[str, Tensor]) -> int:
    return sum(v.numel() * v.element_size() for v in state.values()) // 1_000_000 + 1
