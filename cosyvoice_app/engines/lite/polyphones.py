"""The reading of a character in its sentence: the network of g2pM 0.1.2.5 (Apache-2.0), run in numpy.

    characters ──► embedding [64] ──► LSTM both ways [2 x 32] ──► 32, ReLU ──► a score for each of 876 readings

It was trained on sentences of the Simplified Chinese Wikipedia (the CPP data set), so it knows rare characters well
and everyday talk badly: the caller decides where to ask it and how sure it must be.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cosyvoice_app.errors import AssetError

Array = npt.NDArray[np.float32]

WINDOW = 24
"""Characters of context either side; more changes no reading that the app asks for and costs time."""
_UNKNOWN = 1
_START, _END = "시", "끝"
_REMEDY = "Run `python -m cosyvoice_app assets fetch g2pm`."


class Polyphones:
    """Thread-safe; 1.6 MB of weights. Raises AssetError for a file that isn't the converter's."""

    def __init__(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                weights = {name: file[name] for name in file.files}
            chars, classes, choices = (weights.pop(name) for name in ("chars", "classes", "choices"))
            self._w: dict[str, Array] = {name: np.asarray(w, np.float32) for name, w in weights.items()}
            self._embedding, self._recurrent = self._w["embedding"], self._w["recurrent"]
            self._input, self._bias = self._w["input"], self._w["bias"]
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as e:
            raise AssetError(f"{path} can't be read: {e}. {_REMEDY}") from e
        self._ids = {str(char): i for i, char in enumerate(chars)}
        self._choices = {str(c)[0]: np.array([int(i) for i in str(c)[1:].split()]) for c in choices}
        self._classes = [str(c) for c in classes]
        if len(self._ids) != len(self._embedding) or len(self._classes) != len(self._w["out_bias"]):
            raise AssetError(f"{path} has a table of another length than its weights. {_REMEDY}")

    def __contains__(self, char: str) -> bool:
        """Whether the network was trained on `char`."""
        return char in self._choices

    def read(self, text: str, at: Iterable[int]) -> dict[int, tuple[str, float]]:
        """Place in `text` -> its likeliest reading (as `ping2`, `lü4`, `de5`) and how sure that is, 0-1.

        `text` is Simplified and may hold marks. Only the readings a dictionary gives the character are weighed.
        Places whose character the network doesn't know are left out.
        """
        places = [i for i in at if text[i] in self._choices]
        if not places:
            return {}
        first = max(0, places[0] - WINDOW)
        part = text[first : places[-1] + WINDOW + 1]
        scores = self.scores(part, [i - first for i in places])
        out = {}
        for place, score in zip(places, scores, strict=True):
            choices = self._choices[text[place]]
            odds = np.exp(score[choices] - score[choices].max())
            best = int(np.argmax(odds))
            out[place] = self._classes[choices[best]], float(odds[best] / odds.sum())
        return out

    def scores(self, text: str, at: list[int]) -> Array:
        """[len(at), 876]: the score of every reading at each place of `text`."""
        ids = [self._ids[_START], *(self._ids.get(c, _UNKNOWN) for c in text), self._ids[_END]]
        hidden = self._lstm(self._embedding[ids])[[i + 1 for i in at]]
        inner = np.maximum(hidden @ self._w["inner_weight"].T + self._w["inner_bias"], 0)
        return np.asarray(inner @ self._w["out_weight"].T + self._w["out_bias"], np.float32)

    def _lstm(self, x: Array) -> Array:
        """[t, 64] -> [t, 64], the second half read backwards. Both ways step together."""
        steps, size = len(x), self._recurrent.shape[1]
        both = np.stack([x, x[::-1]])
        inputs = (both @ self._input + self._bias[:, None]).transpose(1, 0, 2)[:, :, None]  # [t, 2, 1, 4 x 32]
        out = np.empty((steps, 2, size), np.float32)
        h = np.zeros((2, 1, size), np.float32)
        c = np.zeros_like(h)
        for t in range(steps):
            gates = inputs[t] + h @ self._recurrent
            squashed = np.tanh(gates * 0.5)  # logistic(x) = (1 + tanh(x / 2)) / 2
            let_in = 0.5 + 0.5 * squashed[..., :size]
            keep = 0.5 + 0.5 * squashed[..., size : 2 * size]
            show = 0.5 + 0.5 * squashed[..., 3 * size :]
            c = keep * c + let_in * np.tanh(gates[..., 2 * size : 3 * size])
            h = show * np.tanh(c)
            out[t] = h[:, 0]
        return np.concatenate([out[:, 0], out[::-1, 1]], axis=1)


# --- from the package's files -------------------------------------------------------------------------------------


class _PlainUnpickler(pickle.Unpickler):
    """Rebuilds numpy arrays and plain Python containers; everything else in a pickle is refused, not run."""

    _ALLOWED: ClassVar[Mapping[tuple[str, str], Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
        return self._ALLOWED[module, name]


def convert_g2pm(sources: Mapping[str, Path], out_path: Path) -> None:
    """Write the four pickles of g2pM (`np_ckpt.pkl`, `char2idx.pkl`, `class2idx.pkl`, `digest_cedict.pkl`) as one npz.

    Raises AssetError for pickles that hold anything but arrays and tables, or other ones.
    """
    state, chars, classes, readings = (
        _unpickle(sources[name]) for name in ("np_ckpt.pkl", "char2idx.pkl", "class2idx.pkl", "digest_cedict.pkl")
    )
    try:
        arrays: dict[str, Any] = _arrays(state) | _tables(chars, classes, readings)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise AssetError(f"The files of g2pM aren't laid out as expected: {e!r}.") from e
    with out_path.open("wb") as out:
        np.savez(out, **arrays)


def _unpickle(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file).load()
    except (OSError, EOFError, ValueError, TypeError, AttributeError, LookupError, pickle.UnpicklingError) as e:
        raise AssetError(f"{path.name} is not a pickle of arrays and tables: {e}.") from e


def _arrays(state: Mapping[str, Array]) -> dict[str, npt.NDArray[Any]]:
    """The network's weights, the two directions stacked, both biases of an LSTM added up."""

    def both(name: str) -> Array:
        return np.stack([state[f"lstm.{name}_l0"], state[f"lstm.{name}_l0_reverse"]])

    arrays = {
        "embedding": state["embedding.weight"],
        "input": both("weight_ih").transpose(0, 2, 1).copy(),  # [2, 64, 4 x 32]: gates in, forget, new, out
        "recurrent": both("weight_hh").transpose(0, 2, 1).copy(),
        "bias": both("bias_ih") + both("bias_hh"),
        "inner_weight": state["logit_layer.0.weight"],
        "inner_bias": state["logit_layer.0.bias"],
        "out_weight": state["logit_layer.2.weight"],
        "out_bias": state["logit_layer.2.bias"],
    }
    return {name: np.asarray(array, np.float32) for name, array in arrays.items()}  # an array of objects can't be one


def _tables(
    chars: Mapping[str, int], classes: Mapping[str, int], readings: Mapping[str, list[str]]
) -> dict[str, npt.NDArray[Any]]:
    """`chars` and `classes` by number; `choices`: a character, then the numbers of the readings it can have."""
    for table in (chars, classes):
        if sorted(table.values()) != list(range(len(table))):
            raise ValueError("the numbers of a table have gaps")
    choices = []
    for char, said in sorted(readings.items()):
        numbers = [classes[reading] for reading in said if reading in classes]
        if len(char) == 1 and len(numbers) > 1:
            choices.append(" ".join([char + str(numbers[0]), *map(str, numbers[1:])]))
    return {
        "chars": np.array(sorted(chars, key=chars.__getitem__)),
        "classes": np.array([c.replace("u:", "ü") for c in sorted(classes, key=classes.__getitem__)]),
        "choices": np.array(choices),
    }
