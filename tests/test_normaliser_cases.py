"""Every case of tests/data/normaliser_cases.toml is said as a listener would accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosyvoice_app.bench.normalisers import Case, heard, read_cases
from cosyvoice_app.cli.main import main
from cosyvoice_app.errors import BadInput
from cosyvoice_app.text.frontend import prepare

FILE = Path(__file__).parent / "data" / "normaliser_cases.toml"
CASES = read_cases(FILE)


def said(text: str) -> str:
    return "".join(segment.text for segment in prepare(text).segments)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_case_is_said_as_a_listener_accepts(case: Case) -> None:
    assert case.accepts(said(case.text)), f"{case.text!r} -> {said(case.text)!r}, expected {case.spoken}"


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_saying_again_changes_nothing(case: Case) -> None:
    once = "\n".join(segment.text for segment in prepare(case.text).segments)
    assert heard(said(once)) == heard(once)


def test_the_blind_cases_are_ten_of_each_of_twelve_kinds() -> None:
    blind = [case for case in CASES if not case.sibling_of and case.round == 1]
    kinds = {case.kind for case in blind}
    assert len(kinds) == 12
    assert all(sum(case.kind == kind for case in blind) == 10 for kind in kinds)
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.sibling_of for case in CASES} - {""} <= {case.id for case in blind}


@pytest.mark.parametrize(
    ("pattern", "said_", "accepted"),
    [
        ("(二|两)千[零]一", "两千一", True),
        ("(二|两)千[零]一", "二千零一", True),
        ("(二|两)千[零]一", "三千一", False),
        ("one hundred [and] five", "One-Hundred FIVE!", True),
        ("one hundred [and] five", "one hundred and", False),
        ("five", "5", False),
    ],
)
def test_the_pattern_language(pattern: str, said_: str, accepted: bool) -> None:
    assert Case("", "", "", "", (pattern,)).accepts(said_) is accepted


def test_a_file_that_is_no_case_file_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "cases.toml"
    wrong.write_text("[[case]]\nid = 1\n", encoding="utf-8")
    with pytest.raises(BadInput, match="cases"):
        read_cases(wrong)


def test_the_bench_scores_ours_and_says_how_to_install_the_others(capsys: Any) -> None:
    assert main(["bench", "normalisers", "--cases", str(FILE)]) == 0
    out = capsys.readouterr().out
    assert '"of": 120' in out
    assert '"of": 60' in out
    assert "ours" in out
    for name in ("wetext", "nemo"):
        assert f'"{name}":' in out or f"{name}: not scored" in out
