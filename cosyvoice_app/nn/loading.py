"""Strict loading: a module takes exactly the tensors it has, by name and shape, or says what differs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cosyvoice_app.errors import AssetError

REMEDY = "Run `python -m cosyvoice_app assets fetch` to fetch and convert it again."


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU. Raises AssetError."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as e:
        raise AssetError(f"Model file {path} can't be read: {e}. {REMEDY}") from e


def load_strict(module: nn.Module, path: Path) -> None:
    """Fill `module` from `path`. Names and shapes must be exactly the module's; else AssetError lists what differs."""
    assign_strict(module, load_tensors(path), str(path))


def assign_strict(module: nn.Module, state: Mapping[str, Tensor], source: str, *, remedy: str = REMEDY) -> None:
    """Copy `state` into `module`; the two must have the same names and shapes. `source` and `remedy` are named in the
    AssetError."""
    own = module.state_dict()
    _compare(type(module).__name__, own, state, source, remedy)
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(state[name])


def materialise(module: nn.Module, state: dict[str, Tensor], source: str, *, device: torch.device,
                dtype: torch.dtype | None = None, remedy: str = REMEDY) -> None:
    """Give a module built on the meta device its tensors: those of `state`, as strictly as `assign_strict`.

    Each goes straight to `device` and, if it holds floats, to `dtype` (None keeps its own), and leaves `state` as it
    is taken, so that no second copy of the whole is ever held. `state` is empty afterwards.
    """
    _compare(type(module).__name__, module.state_dict(), state, source, remedy)
    for prefix, part in module.named_modules():
        for table in (part._parameters, part._buffers):
            for name, value in list(table.items()):
                full = f"{prefix}.{name}" if prefix else name
                if value is None or full not in state:
                    continue
                tensor = state.pop(full)
                placed = tensor.to(device, dtype if tensor.is_floating_point() else None)
                is_parameter = isinstance(value, nn.Parameter)
                table[name] = nn.Parameter(placed, requires_grad=False) if is_parameter else placed


def _compare(name: str, own: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str, remedy: str) -> None:
    faults = [f"missing: {k}" for k in own if k not in state]
    faults += [f"not expected: {k}" for k in state if k not in own]
    faults += [f"{k} is {list(state[k].shape)}, expected {list(v.shape)}"
               for k, v in own.items() if k in state and state[k].shape != v.shape]
    if faults:
        shown = "; ".join(faults[:20]) + (f"; and {len(faults) - 20} more" if len(faults) > 20 else "")
        raise AssetError(f"{source} doesn't fit {name}: {shown}. {remedy}")
