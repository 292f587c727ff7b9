"""`bench normalisers`: how many typed texts each text normaliser says as a listener would accept, by kind.

Only letters and digits are compared: case, spaces and marks are not, so nobody loses a point for commas. Ours is always
scored; the others when they are installed. They are no requirement of the app.
"""

from __future__ import annotations

import argparse
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cosyvoice_app.console import print_json
from cosyvoice_app.errors import AppError, BadInput
from cosyvoice_app.text.chars import has_han
from cosyvoice_app.text.frontend import prepare

NAME = "normalisers"
HELP = "score text normalisers on the cases in tests/data, ours and others"

DEFAULT_CASES = Path("tests/data/normaliser_cases.toml")

Normaliser = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Case:
    """`spoken` are whole sentences in a pattern language: `(a|b)` is either, `[a]` may be left out. A case with a
    `sibling_of` was made after that one had failed, so it is a test and not part of the score. Round 1 was written
    before ours had been read, round 2 after it had been mended: what it scores there it wasn't made for.
    """

    id: str
    kind: str
    lang: str
    text: str
    spoken: tuple[str, ...]
    sibling_of: str = ""
    round: int = 1

    def accepts(self, said: str) -> bool:
        return any(re.fullmatch(_regex(pattern), heard(said)) for pattern in self.spoken)


def heard(text: str) -> str:
    """The letters and digits of `text`, without case.

    >>> heard("Twenty-one, 二〇 x²!")
    'twentyone二〇x2'
    """
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def _regex(pattern: str) -> str:
    marks = {"(": "(?:", "|": "|", ")": ")", "[": "(?:", "]": ")?"}
    return "".join(marks.get(c) or heard(c) for c in pattern)


def read_cases(path: Path) -> tuple[Case, ...]:
    """The cases of a TOML file. Raises BadInput if it can't be read."""
    try:
        toml = import_module("tomllib")
    except ModuleNotFoundError:
        toml = import_module("tomli")  # Python 3.10
    try:
        found = toml.loads(path.read_text(encoding="utf-8"))["case"]
        return tuple(Case(**{**case, "spoken": tuple(case["spoken"])}) for case in found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} can't be read as cases: {error}", param="cases") from error


def _ours() -> Normaliser:
    return lambda text: "".join(segment.text for segment in prepare(text).segments)


def _wetext() -> Normaliser:
    normalizer = import_module("wetext").Normalizer
    zh, en = normalizer(lang="zh", operator="tn", remove_erhua=False), normalizer(lang="en", operator="tn")
    return lambda text: str((zh if has_han(text) else en).normalize(text))


def _nemo() -> Normaliser:
    normalizer = import_module("nemo_text_processing.text_normalization.normalize").Normalizer
    zh, en = (normalizer(input_case="cased", lang=language) for language in ("zh", "en"))
    return lambda text: str((zh if has_han(text) else en).normalize(text, verbose=False))


NORMALISERS: dict[str, tuple[Callable[[], Normaliser], str]] = {
    "ours": (_ours, ""),
    "wetext": (_wetext, "pip install wetext"),
    "nemo": (_nemo, "pip install nemo_text_processing"),
}
"""Name -> (how to make it, how to install it). The others take Mandarin or English by whether Han is in the text, as
CosyVoice chooses for wetext."""


_ERRORS = (AppError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES, metavar="FILE", help="[default: %(default)s]")
    parser.add_argument("--failures", action="store_true", help="show what was said where it isn't accepted")


def run(options: argparse.Namespace) -> int:
    cases = [case for case in read_cases(options.cases) if not case.sibling_of]
    said: dict[str, dict[str, str]] = {}
    for name, (make, install) in NORMALISERS.items():
        try:
            normalise = make()
        except ModuleNotFoundError as error:
            print(f"{name}: not scored, {error.name} is not installed ({install})")
            continue
        said[name] = {case.id: _say(normalise, case.text) for case in cases}
    right = {name: {case.id for case in cases if case.accepts(texts[case.id])} for name, texts in said.items()}
    if options.failures:
        for case in cases:
            for name in (n for n in said if case.id not in right[n]):
                print(f"{case.id} {name}: {case.text!r} -> {said[name][case.id]!r}")
    rounds = [[case for case in cases if case.round == number] for number in sorted({case.round for case in cases})]
    for some in rounds:
        print(f"round {some[0].round}")
        _print_table(some, right)
    print_json({"bench": NAME, "rounds": [_summary(some, right) for some in rounds]}, indent=None)
    return 0


def _summary(cases: list[Case], right: dict[str, set[str]]) -> dict[str, Any]:
    by_kind = {kind: _counts(cases, right, kind) for kind in _kinds(cases)}
    all_right = {name: sum(counts[name] for counts in by_kind.values()) for name in right}
    return {"of": len(cases), "right": all_right, "by_kind": by_kind}


def _say(normalise: Normaliser, text: str) -> str:
    """What is said, or the error in its place: a normaliser that stops has said nothing."""
    try:
        return normalise(text)
    except _ERRORS as error:
        return f"<{type(error).__name__}: {error}>"


def _kinds(cases: Iterable[Case]) -> list[str]:
    return list(dict.fromkeys(case.kind for case in cases))


def _counts(cases: Iterable[Case], right: dict[str, set[str]], kind: str) -> dict[str, Any]:
    ids = {case.id for case in cases if case.kind == kind}
    return {"of": len(ids)} | {name: len(ids & accepted) for name, accepted in right.items()}


def _print_table(cases: list[Case], right: dict[str, set[str]]) -> None:
    print(f"{'kind':<10}{'of':>5}" + "".join(f"{name:>9}" for name in right))
    for kind in _kinds(cases):
        counts = _counts(cases, right, kind)
        print(f"{kind:<10}" + f"{counts.pop('of'):>5}" + "".join(f"{count:>9}" for count in counts.values()))
    all_right = _summary(cases, right)["right"].values()
    print(f"{'all':<10}{len(cases):>5}" + "".join(f"{count:>9}" for count in all_right))
