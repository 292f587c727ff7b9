"""Maintainers' script: make the committed weights that tell heteronyms apart (`data/heteronyms.npz`).

    python -m cosyvoice_app.engines.lite.train.train_heteronyms DATA [--out FILE] [--folds 5] [--eval] [--table]

DATA is the `data` folder of google-research-datasets/WikipediaHomographData (Gorman, Mazovetskiy and Nikolaev, LREC
2018): `wordids.tsv`, `train/*.tsv`, `eval/*.tsv`. Our own sentences, as people speak to a voice app, are in
`heteronym_sentences.tsv` beside this file. Readings are the strings of misaki's gold lexicon where it has them. The
same data gives the same weights: nothing is drawn at random. `--folds` scores settings on the training part alone,
`--eval` scores the result on the held-out part. Takes about a minute.
"""

from __future__ import annotations

import argparse
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from cosyvoice_app.engines.lite.heteronyms import DATA, SHARED, Heteronyms, Reading, features, own_key, shared_key
from cosyvoice_app.engines.lite.train.heteronym_data import (
    OURS,
    POS,
    STAND_INS,
    TENSE,
    Example,
    adjust,
    read_ours,
    read_rows,
    stand_ins,
    table,
)

_LARGEST = 2.54
"""Weights beyond are cut to this, so that int8 keeps steps of 0.02."""


@dataclass(frozen=True, slots=True)
class Options:
    """`l2` divides by the variance of the shared weights; `own` and `bag` scale a word's own (prior deviation against
    the shared ones). Features seen fewer than `least_*` times are dropped. Our sentences count `ours` times, stand-ins
    `tense` and `pos` times.
    """

    l2: float = 1.0
    own: float = 1.4
    bag: float = 0.5
    shared: float = 1.0
    least_shared: int = 3
    least_own: int = 2
    ours: float = 3.0
    tense: float = 1.0
    pos: float = 0.1


def _share(word: str, options: Options) -> float:
    return {TENSE: options.tense, POS: options.pos}.get(word, 1.0)


class Problem:
    """Examples as one flat table: which parameters score which reading of which example."""

    def __init__(self, examples: list[Example], readings: dict[str, tuple[Reading, ...]], options: Options) -> None:
        seen = [features(e.tokens, e.at) for e in examples]
        often = Counter(f for fs in seen for f in fs)
        often_own: Counter[tuple[str, str]] = Counter()
        for e, fs in zip(examples, seen, strict=True):
            if e.word not in STAND_INS:
                for f in fs:
                    often_own[e.word, f] += 1
        self.index: dict[int, int] = {}
        self.gains: list[float] = []
        pairs, columns = [], []
        row, self.starts, self.right, self.weight = 0, [], [], []
        for e, fs in zip(examples, seen, strict=True):
            self.starts.append(row)
            for k, reading in enumerate(readings[e.word]):
                if reading.name == e.name:
                    self.right.append(row)
                found = []
                if reading.role in SHARED:
                    found += [
                        (shared_key(reading.role, f), options.shared)
                        for f in fs
                        if often[f] >= options.least_shared and not f.startswith("b:")
                    ]
                if k and e.word not in STAND_INS:
                    found += [
                        (own_key(e.word, k, f), options.bag if f.startswith("b:") else options.own)
                        for f in fs
                        if often_own[e.word, f] >= options.least_own
                    ]
                for key, gain in found:
                    if key not in self.index:
                        self.index[key] = len(self.gains)
                        self.gains.append(gain)
                    pairs.append(row)
                    columns.append(self.index[key])
                row += 1
            self.weight.append(_share(e.word, options) * (options.ours if e.ours else 1.0))
        self.rows = row
        self.pairs, self.columns = np.array(pairs), np.array(columns)
        self.gain = np.array(self.gains)
        self.l2 = options.l2

    def loss(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log-likelihood plus L2, and its gradient."""
        scaled = theta * self.gain
        scores = np.bincount(self.pairs, scaled[self.columns], self.rows)
        starts = np.array(self.starts)
        counts = np.diff([*self.starts, self.rows])
        scores -= np.repeat(np.maximum.reduceat(scores, starts), counts)
        exp = np.exp(scores)
        total = np.add.reduceat(exp, starts)
        weight = np.array(self.weight)
        loss = float(np.sum(weight * (np.log(total) - scores[self.right])) + 0.5 * self.l2 * theta @ theta)
        error = exp / np.repeat(total, counts)
        error[self.right] -= 1.0
        error *= np.repeat(weight, counts)
        return loss, np.bincount(self.columns, error[self.pairs], len(theta)) * self.gain + self.l2 * theta

    def solve(self) -> dict[int, float]:
        theta = minimize(self.loss, np.zeros(len(self.gain)))
        values = theta * self.gain
        return {key: float(values[i]) for key, i in self.index.items()}


def minimize(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]], at: np.ndarray, steps: int = 400, memory: int = 10
) -> np.ndarray:
    """L-BFGS with a backtracking line search, for a smooth convex function."""
    value, slope = function(at)
    history: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(steps):
        direction, alphas = -slope, []
        for s, y in reversed(history):
            alphas.append(s @ direction / (s @ y))
            direction = direction - alphas[-1] * y
        if history:
            s, y = history[-1]
            direction = direction * (s @ y / (y @ y))
        for (s, y), alpha in zip(history, reversed(alphas), strict=True):
            direction = direction + (alpha - y @ direction / (s @ y)) * s
        down = float(slope @ direction)
        length = 1.0 if history else 1.0 / float(np.abs(slope).max())
        new_value, new_slope = function(at + length * direction)
        while new_value > value + 1e-4 * length * down and length > 1e-10:
            length *= 0.5
            new_value, new_slope = function(at + length * direction)
        step = length * direction
        if step @ (new_slope - slope) > 1e-12:
            history = [*history[1 - memory :], (step, new_slope - slope)]
        at, improved = at + step, value - new_value
        value, slope = new_value, new_slope
        if improved < 1e-7 * max(1.0, abs(value)):
            break
    return at


def pack(weights: dict[int, float], readings: dict[str, tuple[Reading, ...]]) -> bytes:
    """The npz: weights as int8 with one scale, those that round to nothing left out, sorted by key."""
    scale = np.float32(_LARGEST / 127)
    rounded = {k: round(min(max(v, -_LARGEST), _LARGEST) / float(scale)) for k, v in sorted(weights.items())}
    kept = {k: v for k, v in rounded.items() if v}
    listed = {word: [[r.name, r.role, r.symbols] for r in rs] for word, rs in readings.items()}
    written = json.dumps(listed, ensure_ascii=False)
    out = io.BytesIO()
    np.savez_compressed(
        out,
        table=np.frombuffer(written.encode("utf-8"), np.uint8),
        keys=np.array(list(kept), np.uint32),
        values=np.array(list(kept.values()), np.int8),
        scale=scale,
    )
    return out.getvalue()


def score(model: Heteronyms, examples: list[Example]) -> tuple[float, float, dict[str, float]]:
    """Accuracy over examples, over words (mean of the words' own), and word by word."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for e in examples:
        hits[e.word].append(model.choose(e.word, e.tokens, e.at).name == e.name)
    each = {word: float(np.mean(h)) for word, h in hits.items()}
    return float(np.mean([x for h in hits.values() for x in h])), float(np.mean(list(each.values()))), each


def train(examples: list[Example], readings: dict[str, tuple[Reading, ...]], options: Options) -> bytes:
    weights = Problem(examples + stand_ins(examples), {**readings, **STAND_INS}, options).solve()
    return pack(weights, readings)


def fold_of(e: Example, folds: int) -> int:
    return crc32(" ".join(e.tokens).encode()) % folds


def cross_validate(
    examples: list[Example], readings: dict[str, tuple[Reading, ...]], options: Options, folds: int
) -> tuple[float, float, float]:
    """Mean accuracy on held-out folds: of the data by example and by word, and of our own sentences."""
    results = []
    for fold in range(folds):
        kept = [e for e in examples if fold_of(e, folds) != fold]
        held = [e for e in examples if fold_of(e, folds) == fold]
        held = [e for e in held if e.word not in STAND_INS]
        model = Heteronyms(io.BytesIO(train(kept, readings, options)))
        data = score(model, [e for e in held if not e.ours])
        results.append((*data[:2], score(model, [e for e in held if e.ours])[0]))
    return tuple(np.mean(results, axis=0).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--eval", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()

    ours = list(read_ours(OURS))
    readings = table(args.data, ours)
    if args.table:
        for word, found in readings.items():
            print(word, *(f"{r.name} {r.role or '-'} {r.symbols}" for r in found), sep="\t")
    examples = adjust(read_rows(args.data / "train")) + ours
    if args.folds:
        print(cross_validate(examples, readings, Options(), args.folds))
        return
    packed = train(examples, readings, Options())
    args.out.write_bytes(packed)
    print(f"{args.out}: {len(packed)} bytes")
    if args.eval:
        micro, macro, _ = score(Heteronyms(args.out), list(read_rows(args.data / "eval")))
        print(f"held out: {micro:.4f} by example, {macro:.4f} by word")


if __name__ == "__main__":
    main()
