"""English words no lexicon has, as ARPAbet: a letter-to-sound GRU of g2p-en 2.1.0 (Apache-2.0), run in numpy.

One encoder and one decoder GRU of 128 units; weights [3 x 128, in] in the order reset, update, new. It knows the
letters a-z
and nothing of its own limits, so its output is bounded and checked by the caller's rules, not here.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cosyvoice_app.text.chars import words

Array = npt.NDArray[np.float32]

_LETTERS = {letter: 3 + i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
_UNKNOWN, _END = 1, 2
_START_SYMBOL, _END_SYMBOL, _FIRST_SYMBOL = 2, 3, 4
_SYMBOLS = words(
    "AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 "
    "EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 "
    "UW UW0 UW1 UW2 V W Y Z ZH"
)


class LetterToSound:
    """`predict(word)` -> ARPAbet symbols, never empty for a word of at least one letter that the network gives a
    sound.
    """

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self._w: dict[str, Array] = {name: np.asarray(file[name], np.float32) for name in file.files}
        rows = self._w["dec_emb"].shape[0]
        if rows != _FIRST_SYMBOL + len(_SYMBOLS):
            raise ValueError(f"{path}: {rows} phoneme rows, expected {_FIRST_SYMBOL + len(_SYMBOLS)}")
        # The input half of every step is the same for a given letter or phoneme, so it is computed once.
        self._enc_in = self._w["enc_emb"] @ self._w["enc_w_ih"].T + self._w["enc_b_ih"]
        self._dec_in = self._w["dec_emb"] @ self._w["dec_w_ih"].T + self._w["dec_b_ih"]
        self.predict = lru_cache(maxsize=4096)(self._predict)

    def _step(self, part: str, x: Array, h: Array) -> Array:
        recurrent = self._w[f"{part}_w_hh"] @ h + self._w[f"{part}_b_hh"]
        size = h.shape[0]
        gates = 0.5 * (1 + np.tanh(0.5 * (x[: 2 * size] + recurrent[: 2 * size])))
        reset, update = gates[:size], gates[size:]
        new = np.tanh(x[2 * size :] + reset * recurrent[2 * size :])
        return np.asarray((1 - update) * new + update * h, np.float32)

    def _predict(self, word: str) -> tuple[str, ...]:
        """ARPAbet of a lower-case word."""
        h = np.zeros(self._w["enc_w_hh"].shape[1], np.float32)
        for letter in [*(_LETTERS.get(c, _UNKNOWN) for c in word), _END]:
            h = self._step("enc", self._enc_in[letter], h)
        out: list[str] = []
        symbol = _START_SYMBOL
        for _ in range(8 + 2 * len(word)):
            h = self._step("dec", self._dec_in[symbol], h)
            symbol = int(np.argmax(self._w["fc_w"] @ h + self._w["fc_b"]))
            if symbol == _END_SYMBOL:
                break
            if symbol >= _FIRST_SYMBOL:
                out.append(_SYMBOLS[symbol - _FIRST_SYMBOL])
        return tuple(out)
