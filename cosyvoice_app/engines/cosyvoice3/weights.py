"""Reading the official `.pt` files: flat dicts from names to tensors, never run as a program."""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from cosyvoice_app.assets.official import FETCH, fault_of
from cosyvoice_app.errors import AssetError

REMEDY = f"Fetch the file again with `{FETCH}` (delete or move the wrong one first)."
_TRAINER_ENTRIES = frozenset({"epoch", "step"})
_UNREADABLE = (OSError, RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError,
               struct.error, zipfile.BadZipFile)
"""What torch's reader was seen to raise, or can, for files that are damaged in one place or another."""


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.pt` file by name, as saved (dtype, shape), on the CPU.

    The file is mapped, not read: a tensor costs memory only once it is touched. Checkpoints of the official trainer
    also hold the numbers `epoch` and `step`, which are left out. Raises AssetError that says what the file is instead.
    """
    if not path.is_file():
        raise AssetError(f"{path} is missing. {REMEDY}")
    try:
        if fault := fault_of(path):
            raise AssetError(f"{path} is no model file: {fault}. {REMEDY}")
        # Only archives can be mapped; torch before 1.6 wrote a bare pickle.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise AssetError(f"{path} holds more than tensors, or isn't a PyTorch file at all, and was not opened: "
                         f"{_first_line(error)}. {REMEDY} A model of your own must be saved as a plain dict of "
                         "tensors: torch.save(model.state_dict(), file).") from error
    except _UNREADABLE as error:
        raise AssetError(f"{path} can't be read as a PyTorch file; it is damaged or cut short: {_first_line(error)}. "
                         f"{REMEDY}") from error
    return _tensors_only(loaded, path)


def _tensors_only(loaded: object, path: Path) -> dict[str, Tensor]:
    if not isinstance(loaded, dict):
        raise AssetError(f"{path} holds a {type(loaded).__name__}, expected a dict of tensors. {REMEDY}")
    state: dict[str, Tensor] = {}
    for name, value in loaded.items():
        if isinstance(value, Tensor):
            state[str(name)] = value
        elif name not in _TRAINER_ENTRIES or not isinstance(value, int | float):
            raise AssetError(f"{path} holds {name!r}, a {type(value).__name__}, expected tensors only (a checkpoint "
                             f"with an optimiser, perhaps: keep its model part). {REMEDY}")
    if not state:
        raise AssetError(f"{path} holds no tensors. {REMEDY}")
    return state


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")
