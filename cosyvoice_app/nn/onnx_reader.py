"""Read nodes and constants out of an ONNX file: just enough of the format to take weights from one.

Source: onnx.proto of the ONNX project (field numbers) and the Protocol Buffers encoding guide (wire types). A small
reader stands in for the `onnx` package so that users need neither it nor protobuf for weights that are only read. Not
read: subgraphs, external data, sparse and string tensors; meeting one of these in a constant is an error.

The file is mapped, not read: constants are views of it, whose pages come from the disk when they are looked at. They
lie at any byte, so copy one before computing with it. The mapping lives as long as a view of it does, and writing to a
view never reaches the file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cosyvoice_app.errors import AssetError

Array = npt.NDArray[np.generic]
Attribute = int | float | tuple[int, ...] | Array

# TensorProto.DataType -> dtype, for the types that quantised speech models hold.
_DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16,
           11: np.float64}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT, _INT, _TENSOR, _INTS = 1, 2, 4, 7  # AttributeProto.AttributeType, those read here


@dataclass(frozen=True, slots=True)
class Node:
    """`attributes` are the numbers, and the value of a "Constant"; texts, subgraphs and lists of floats are left out.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = field(default=(), compare=False)
    attributes: dict[str, Attribute] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Graph:
    """`constants` are the initialisers by name, in the file's own dtypes and shapes."""

    nodes: tuple[Node, ...]
    constants: dict[str, Array] = field(default_factory=dict)


_FETCH = "Run `python -m cosyvoice_app assets fetch`."


def read_graph(path: Path, *, remedy: str = _FETCH) -> Graph:
    """Parse `path`. Raises AssetError, with `remedy`, when it isn't an ONNX model or holds constants of a kind not
    read here.
    """
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        graphs = [value for number, value in _fields(data) if number == 7]
        if len(graphs) != 1 or not isinstance(graphs[0], memoryview):
            raise ValueError("no graph in it")
        return _graph(graphs[0])
    except OSError as e:
        raise AssetError(f"{path} can't be read: {e.strerror}. {remedy}") from e
    except (ValueError, IndexError, KeyError, struct.error) as e:
        raise AssetError(f"{path} is not a usable ONNX file ({e}). Delete it. {remedy}") from e


class _NotRead(ValueError):
    """A well-formed tensor of a kind or storage not read here."""


def _graph(data: memoryview) -> Graph:
    nodes, constants = [], {}
    for number, value in _fields(data):
        if number == 1:
            nodes.append(_node(_message(value)))
        elif number == 5:
            name, array = _tensor(_message(value))
            constants[name] = array
    return Graph(tuple(nodes), constants)


def _node(data: memoryview) -> Node:
    inputs, outputs, name, op, raw = [], [], "", "", []
    for number, value in _fields(data):
        if number == 1:
            inputs.append(str(_message(value), "utf-8"))
        elif number == 2:
            outputs.append(str(_message(value), "utf-8"))
        elif number == 3:
            name = str(_message(value), "utf-8")
        elif number == 4:
            op = str(_message(value), "utf-8")
        elif number == 5:
            raw.append(_message(value))
    found = (_attribute(message, with_tensor=op == "Constant") for message in raw)
    attributes = {key: value for key, value in found if value is not None}
    return Node(name, op, tuple(inputs), tuple(outputs), attributes)


def _attribute(data: memoryview, *, with_tensor: bool) -> tuple[str, Attribute | None]:
    """Its name and value; None of a kind not read here. A number that is 0 may be left out of the file."""
    name, kind = "", 0
    real, whole, wholes, tensor = 0.0, 0, [], None
    for number, value in _fields(data):
        if number == 1:
            name = str(_message(value), "utf-8")
        elif number == 2:
            real = float(struct.unpack("<f", _message(value))[0])
        elif number == 3 and isinstance(value, int):
            whole = value
        elif number == 5:
            tensor = _message(value)
        elif number == 8:
            wholes += _packed(value)
        elif number == 20 and isinstance(value, int):
            kind = value
    if kind == _TENSOR and with_tensor and tensor is not None:
        try:
            return name, _tensor(tensor)[1]
        except _NotRead:  # no weight, or whoever needs it finds it missing
            return name, None
    numbers: dict[int, Attribute] = {_FLOAT: real, _INT: whole, _INTS: tuple(wholes)}
    return name, numbers.get(kind)


def _tensor(data: memoryview) -> tuple[str, Array]:
    dims: list[int] = []
    kind, name, raw = 0, "", None
    typed: list[int] = []
    floats = b""
    for number, value in _fields(data):
        if number == 1:
            dims += _packed(value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 4:
            floats += bytes(_message(value))
        elif number in (5, 7):
            typed += _packed(value)
        elif number == 8:
            name = str(_message(value), "utf-8")
        elif number == 9:
            raw = _message(value)
        elif number in (3, 6, 10, 11, 13):
            raise _NotRead(f"constant {name!r} is stored in a way not read here (field {number})")
    if kind not in _DTYPES:
        raise _NotRead(f"constant {name!r} has data type {kind}")
    dtype = np.dtype(_DTYPES[kind])
    flat: Array
    if raw is not None:
        flat = np.frombuffer(raw, dtype)
    elif floats:
        flat = np.frombuffer(floats, np.float32)
    else:
        flat = np.asarray(typed, np.int64).astype(dtype)
    return name, flat.reshape(dims)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of one message: an int for varints, the bytes for the rest."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            whole, at = _varint(data, at)
            yield number, whole
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > end:
            raise ValueError("the file ends early")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            # Negative numbers are written as 64-bit two's complement.
            return (value - (1 << 64) if value >= 1 << 63 else value), at
        shift += 7


def _packed(value: int | memoryview) -> list[int]:
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        item, at = _varint(value, at)
        found.append(item)
    return found


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number stands where a message was expected")
    return value
