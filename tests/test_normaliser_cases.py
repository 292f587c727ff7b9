"""Every case of tests/data/normaliser_cases.toml is said as a listener would accept."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cosyvoice_app.bench.normalisers import Case, heard, read_cases
from cosyvoice_app.cli.main import main
from cosyvoice_app.errors import BadInput
from cosyvoice_app.text.frontend import prepare
from cosyvoice_app.text.normalize import clean_typed, to_words

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


@pytest.mark.parametrize(
    ("typed", "heard_as"),
    [
        # Alone, a number is Mandarin; a sum in dollars and a name are English.
        ("42", "四十二"),
        ("3.14", "三点一四"),
        ("2024-02-29", "二零二四年二月二十九日"),
        ("$5", "five dollars"),
        ("GPT-4", "GPT four"),
        ("5'3\"", "five foot three"),
        # Moments, zones, halves of the day.
        ("2024-03-15T14:30:00Z", "二零二四年三月十五日十四点三十分零秒协调世界时"),
        ("更新于2024-03-15T14:30+08:00", "更新于二零二四年三月十五日十四点三十分UTC加八"),
        ("24:00关门", "二十四点关门"),
        ("上午9:30 AM开会", "上午九点三十分开会"),
        ("GMT-5 and UTC+5:30", "GMT minus five and UTC plus five thirty"),
        ("Mon-Fri 9am-5pm", "Monday to Friday nine AM to five PM"),
        # Powers, products, arithmetic.
        ("1.5e-3 mol", "one point five times ten to the power of minus three mol"),
        ("光速是3×10⁸m/s", "光速是三乘十的八次方米每秒"),
        ("5-3=2", "五减三等于二"),
        ("10-5*2=0", "十减五乘二等于零"),
        ("误差±0.5mm", "误差正负零点五毫米"),
        ("-5~-1", "负五到负一"),
        ("2x faster", "two times faster"),
        ("以0.5x速度", "以零点五倍速度"),
        ("鸡蛋x2", "鸡蛋乘二"),
        ("a 4x4 truck", "a four by four truck"),
        ("体温>37.5", "体温大于三十七点五"),
        # Characters that hold more than one.
        ("50㎏、160㎝、250㏄", "五十千克一百六十厘米二百五十毫升"),
        ("H₂O和CO₂都是", "H二O和CO二都是"),
        ("⅔ of it", "two thirds of it"),
        ("二〇二四年", "二〇二四年"),
        ("二○二四年", "二〇二四年"),
        ("①②③", "一二三"),
        ("𝐇𝐞𝐥𝐥𝐨 ﬁne", "Hello fine"),
        ("№5", "五号"),
        # Addresses and codes.
        ("ping 10.0.0.1:8080 now", "ping ten dot zero dot zero dot one colon eight zero eight zero now"),
        ("打开D:\\文件\\a_1.txt", "打开D冒号反斜杠文件反斜杠a下划线一点txt"),
        ("report_v2.pdf", "report underscore v two dot pdf"),
        ("#FF5733", "F F five seven three three"),
        ("ISBN 978-7-02-000220-7在售", "ISBN九七八七零二零零零二二零七在售"),
        ("账户DE89 3704 0044 0532 0130 00", "账户DE八九三七零四零零四四零五三二零一三零零零"),
        ("+86 138 1234 5678", "加八六幺三八幺二三四五六七八"),
        # Languages of neighbours.
        ("内存：32GB DDR5", "内存三十二GB DDR五"),
        ("圆的面积S=πr²", "圆的面积S等于派r平方"),
        ("$5万", "五万美元"),
        # Letters that are no numerals.
        ("Mary I. Smith and Robert C. Martin", "Mary I Smith and Robert C Martin"),
        ("Malcolm X spoke of Plan B", "Malcolm X spoke of Plan B"),
        ("第X章、X光、V领、L码、C级", "第X章X光V领L码C级"),
        ("I. Intro\nII. Methods", "one Intro two Methods"),
    ],
)
def test_forms_that_were_asked_for(typed: str, heard_as: str) -> None:
    assert heard(said(typed)) == heard(heard_as)


def test_the_caller_chooses_for_a_number_alone() -> None:
    assert to_words("42", alone="en")[0] == "forty-two"
    assert to_words("有42", alone="en")[0] == "有四十二"


def test_what_html_leaves_and_takes() -> None:
    assert heard(said("if a<b and c>d")) == heard("if a is less than b and c is greater than d")
    assert said('<p class="x">你好</p><!-- note --><br/>世界') == "你好世界"
    assert heard(said("AT&T; 5 &lt; 6")) == heard("AT and T five is less than six")
    assert said("<strong>你好</strong>") == "<strong>你好</strong>"


@pytest.mark.parametrize(
    "unit", ["<p a=", "<b>", "&amp;", "1/", "1-", "a.", "5'7\"", "Henry ", "VIII ", "3~", "@a", "C:\\a", "1,"]
)
def test_time_stays_linear(unit: str) -> None:
    """Eight times the text in at most 24 times the time; quadratic would take 64. The best of three, for a machine
    that does other things too.
    """
    short, long = (min(_timed(clean_typed(unit * count + "好")) for _ in range(3)) for count in (500, 4_000))
    assert long < 24 * short + 0.02


def test_two_hundred_characters_of_dates_and_sums_take_under_five_milliseconds() -> None:
    text = ("上海昨天14:30起飞的CA1501晚点2小时，票价¥1,299，电话400-820-8820，气温38℃，涨12.5%。" * 4)[:200]
    to_words(text)
    best = min(_timed(text) for _ in range(10))
    assert best < 0.005, f"{best * 1e3:.2f} ms"


def _timed(text: str) -> float:
    start = time.perf_counter()
    to_words(text)
    return time.perf_counter() - start
