"""Dates, years and decades."""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.abbreviations import DAYS, MONTHS
from cosyvoice_app.text.clock import en_clock, zone
from cosyvoice_app.text.rule import (
    CAPITALS,
    DASH,
    DIGITS,
    Match,
    Reader,
    Rule,
    after,
    before,
    each,
    left_alone,
    rule,
    says,
)

_DAYS = DAYS | {day: day for day in DAYS.values()}
_EXPIRY = re.compile(
    r"(?:有效期限?|\bexp(?:iry|iration)?\.?(?:\sdate)?|\b(?:valid|good)\sthru)[:：]?\s?$", re.IGNORECASE
)
_MONTH = "(?:" + "|".join(f"{m}|{m[:3]}\\.?" for m in MONTHS) + "|Sept\\.?)"


def _month(number: str) -> str:
    return MONTHS[int(number) - 1]


def _month_named(typed: str) -> str:
    return next(month for month in MONTHS if month.startswith(typed[:3]))


def is_date(month: str, day: str) -> bool:
    return 1 <= int(month) <= 12 and 1 <= int(day) <= 31


def _zh_day(year: str, month: str, day: str) -> str:
    return f"{n.zh_digits(year)}年{n.zh_integer(month)}月{n.zh_integer(day)}日"


def _en_day(year: str, month: str, day: str) -> str:
    return f"{_month(month)} {n.en_ordinal(day)}, {n.en_year(year)}"


def _zh_date(m: Match) -> str | None:
    return _zh_day(m[1], m[2], m[3]) if is_date(m[2], m[3]) else None


def _en_date(m: Match) -> str | None:
    return _en_day(m[1], m[2], m[3]) if is_date(m[2], m[3]) else None


def _us_order(m: Match) -> tuple[str, str, str]:
    return (m[3], m[1], m[2]) if int(m[1]) <= 12 else (m[3], m[2], m[1])


def _zh_us_date(m: Match) -> str | None:
    year, month, day = _us_order(m)
    return _zh_day(year, month, day) if is_date(month, day) else None


def _en_us_date(m: Match) -> str | None:
    year, month, day = _us_order(m)
    return _en_day(year, month, day) if is_date(month, day) else None


def _en_named_date(m: Match) -> str:
    until = f" to {n.en_ordinal(m[3])}" if m[3] else ""
    return f"{_month_named(m[1])} {n.en_ordinal(m[2])}{until}" + (f", {n.en_year(m[4])}" if m[4] else "")


def _en_day_first(m: Match) -> str | None:
    if not 1 <= int(m[1]) <= 31:
        return None
    article = "" if re.search(r"\bthe\s$", before(m), re.IGNORECASE) else "the "
    year = f", {n.en_year(m[3])}" if m[3] else ""
    return f"{article}{n.en_ordinal(m[1])} of {_month_named(m[2])}{year}"


def _is_counting(m: Match) -> bool:
    """May 2个: Han counts what the number is."""
    return bool(re.match(r"\s?[个人位岁次月年日号点块元只张条件本]", after(m)))


def _month_and_day(m: Match) -> bool:
    named = (
        r"(?:\b(?:on|by|until|till|since|before|after|due|dated?|from|starts?|ends?|closed|open|opens|closes)|日期|时间|截止|截至|[今明昨后前]天|周[一二三四五六日]|[于自从])"
        r"[:：]?\s?(?:\d{1,2}/\d{1,2}(?:\s?[&,、和与]\s?|\s(?:and|or|to)\s))*$"
    )
    feast = "(?:妇女|劳动|儿童|建军|教师|国庆|情人|圣诞|光棍|植树|青年|愚人|元旦)"
    return is_date(m[1], m[2]) and bool(re.search(named, before(m), re.IGNORECASE) or re.match(feast, after(m)))


def _zh_month_day(m: Match) -> str | None:
    return f"{n.zh_integer(m[1])}月{n.zh_integer(m[2])}日" if _month_and_day(m) else None


def _en_month_day(m: Match) -> str | None:
    return f"{_month(m[1])} {n.en_ordinal(m[2])}" if _month_and_day(m) else None


def _zh_run_together(m: Match) -> str | None:
    named = re.search(r"(?:日期|生日|出生|时间|日)[是为于：:]*\s?$", before(m))
    return _zh_date(m) if named else None


def _en_run_together(m: Match) -> str | None:
    return _en_date(m) if re.search(r"\b(?:date|on|born|dated)[:\s]+(?:is\s)?$", before(m), re.IGNORECASE) else None


def _zh_year(m: Match) -> str | None:
    """2024年 is a year, digit by digit; 5000年 is how long."""
    year = int(m[1])
    lasting = re.match(r"年的?(?:历史|文明|时间|光阴|寿命|岁月)", after(m)) or re.search(
        r"(?:过去|长达|历时|超过|已有|有着|近)\s?$", before(m)
    )
    if lasting or year > 2999 or (m[1].endswith("000") and year != 2000):
        return None
    return n.zh_digits(m[1])


def _en_plural_tens(m: Match) -> str:
    return m[1] + n.en_plural(n.en_integer(m[2]))


def _zh_moment(m: Match) -> str | None:
    if not is_date(m[2], m[3]):
        return None
    second = n.zh_number(m[6]) + "秒" if m[6] else ""
    minute = n.zh_integer(m[5]) + "分"
    clock = f"{n.zh_integer(m[4])}点" + (("零" if 0 < int(m[5]) < 10 else "") + minute if int(m[5]) or second else "")
    return _zh_day(m[1], m[2], m[3]) + clock + second + zone(m[7], 0)


def _en_moment(m: Match) -> str | None:
    if not is_date(m[2], m[3]):
        return None
    second = f" and {n.en_number(m[6])} seconds" if m[6] else ""
    return f"{_en_day(m[1], m[2], m[3])}, {en_clock(m[4], m[5], '')}{second}{zone(m[7], 1)}"


def _is_season(m: Match) -> bool:
    named = re.match(r"\s?(?:赛季|学年|财年|年度|season\b|school year|academic)", after(m))
    return bool(named) or (int(m[1]) + 1) % 100 == int(m[2]) > 12 or _is_span(m)


def _is_span(m: Match) -> bool:
    """1990-95: no month, and later in the century."""
    return m[0][4] in "-–" and int(m[2]) > max(12, int(m[1]) % 100)


def _zh_season(m: Match) -> str:
    return f"{n.zh_digits(m[1])}到{n.zh_digits(m[2])}"


def _same_year_span() -> tuple[Reader, Reader]:
    return each(lambda m: f"{n.zh_digits(m[1])}到{n.zh_digits(m[2])}年")


DATES: tuple[Rule, ...] = (
    rule(
        r"(?<!\d)(\d{4})-(\d\d)-(\d\d)T([012]\d):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?\s?(Z|UTC|GMT|[+-]\d\d:?\d\d)?(?![\d:])",
        _zh_moment,
        _en_moment,
        "T",
        DIGITS,
    ),
    rule(r"(?<![\d/])(\d{1,2})/(\d{1,2})/(\d{4})(?![\d/])", _zh_us_date, _en_us_date, DIGITS, "/"),
    rule(r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?![\d-])", _zh_date, _en_date, DIGITS, "-/."),
    rule(r"(?<![\w/.-])(\d{1,2})-(\d{1,2})-((?:19|20)\d\d)(?![\d-])", _zh_us_date, _en_us_date, DIGITS, "-"),
    rule(
        r"(?<![\d/.])(0[1-9]|1[0-2])/([2-9]\d)(?![\d/]|\.\d)",
        lambda m: f"{n.zh_digits('20' + m[2])}年{n.zh_integer(m[1])}月" if _EXPIRY.search(before(m)) else None,
        lambda m: f"{_month(m[1])} {n.en_year('20' + m[2])}" if _EXPIRY.search(before(m)) else None,
        DIGITS,
        "/",
    ),
    rule(
        rf"\b([QH][1-4]|FY|CY|{_MONTH})\s?'(\d\d)(?![\d'\"s])",
        lambda m: f"{m[1]}，{n.zh_digits(m[2])}年",
        lambda m: f"{m[1]}, {n.en_year('20' + m[2])}",
        DIGITS,
        "'",
        CAPITALS,
    ),
    rule(r"(?<!\d)((?:19|20)\d\d)(\d\d)(\d\d)(?!\d)", _zh_run_together, _en_run_together),
    rule(r"(?<![\d/.])(\d{1,2})/(\d{1,2})(?![\d/]|\.\d)", _zh_month_day, _en_month_day, DIGITS, "/"),
    rule(rf"(?<![\d.])(\d{{4}})(?:{DASH}|\s?[至到]\s?)(\d{{4}})年", *_same_year_span(), DIGITS, "年"),
    rule(
        r"(?<!\d)((?:19|20)\d\d)[-/–~～](\d\d)(?![\d/-])",
        lambda m: _zh_season(m) if _is_season(m) else None,
        lambda m: f"{n.en_year(m[1])} to {n.en_integer(m[2])}" if _is_season(m) else None,
    ),
    rule(r"(?<!\d)(\d{4})(?=年)", *each(_zh_year), DIGITS, "年"),
    rule(
        r"(?<!\d)((?:19|20)\d\d)(?=[QqH][1-4](?!\w))",
        lambda m: n.zh_digits(m[1]),
        lambda m: n.en_year(m[1]) + " ",
        "QqH",
    ),
    rule(
        r"(?<=[（(])((?:1\d|20)\d\d)(?=\s?[-–—~～]\s?[?？今]?[)）])",
        lambda m: n.zh_digits(m[1]),
        lambda m: n.en_year(m[1]),
        "(（",
    ),
    rule(
        r"(?<![\d.])(\d{1,2})\.(\d{1,2})(?=假期|黄金周|小长假|长假)",
        *each(lambda m: n.zh_integer(m[1]) + n.zh_integer(m[2])),
        ".",
    ),
    rule(
        r"((?:周|星期)[一二三四五六日天])\s?[-~～–—]\s?(?=(?:周|星期)?[一二三四五六日天])",
        *each(lambda m: m[1] + "到"),
        "周期",
    ),
    rule(
        rf"\b({'|'.join(_DAYS)})\s?[-–—~]\s?({'|'.join(_DAYS)})\b",
        *each(lambda m: f"{_DAYS[m[1]]} to {_DAYS[m[2]]}"),
        "MTWFS",
    ),
    rule(r"(?<!\w)'(\d\d)(?=[年届级])", *each(lambda m: n.zh_digits(m[1])), "'", DIGITS),
    rule(r"(?<![\d.])(\d\d)(?=年\s?\d{1,2}月)", *each(lambda m: n.zh_digits(m[1])), DIGITS, "年"),
    rule(
        r"(?<![\d.])(00|05|10|[5-9][05])(?=后(?![天年月日分秒小周个]|\d(?!\d后)))",
        *each(lambda m: n.zh_digits(m[1])),
        "后",
    ),
    rule(
        r"(?<!\d)((?:19|20)\d\d)(?=\s?(?:赛季|款|届|版|财年|学年|级|春|夏|秋|冬|奥运|世界杯|高考|全年|新年|跨年))",
        *each(lambda m: n.zh_digits(m[1])),
    ),
    rule(
        r"(?<!\d)((?:19|20)\d\d)[-/](0[1-9]|1[0-2])(?![\d/-])",
        lambda m: f"{n.zh_digits(m[1])}年{n.zh_integer(m[2])}月",
        lambda m: f"{_month(m[2])} {n.en_year(m[1])}",
        DIGITS,
        "-/",
    ),
    rule(
        rf"\b(\d{{3}}0)'?s{DASH}'?(\d0)'?s\b",
        lambda m: f"{n.zh_digits(m[1])}年代到{n.zh_integer(m[2])}年代",
        lambda m: f"{n.en_plural(n.en_year(m[1]))} to {n.en_plural(n.en_integer(m[2]))}",
        "s",
        alone="en",
    ),
    rule(
        r"(?<![\w'.-])([2-9]0)'s\b",
        lambda m: n.zh_integer(m[1]) + "年代",
        lambda m: n.en_plural(n.en_integer(m[1])),
        "'",
        DIGITS,
        alone="en",
    ),
    rule(rf"(?<=\d0s){DASH}(?=(?:the\s)?'?\d+s\b)", *says("到", " to "), "s"),
    rule(r"\b(\d{3}0)'?s\b", lambda m: n.zh_digits(m[1]) + "年代", lambda m: n.en_plural(n.en_year(m[1])), alone="en"),
    rule(
        r"(?<!\w)'(\d0)s\b",
        lambda m: n.zh_integer(m[1]) + "年代",
        lambda m: n.en_plural(n.en_integer(m[1])),
        DIGITS,
        "'",
        alone="en",
    ),
    rule(
        r"\b((?:his|her|their|my|our|your|the|early|mid|late)[\s-](?:early|mid|late)?[\s-]?)(\d0)s\b",
        left_alone,
        _en_plural_tens,
        alone="en",
        flags=re.IGNORECASE,
    ),
    rule(
        rf"\b({_MONTH})\s(\d{{1,2}})(?:st|nd|rd|th)?(?:{DASH}(\d{{1,2}})(?:st|nd|rd|th)?)?(?![\d:.]*\d)\b(?:,?\s(\d{{4}})\b)?",
        lambda m: None if _is_counting(m) else _en_named_date(m),
        _en_named_date,
        DIGITS,
        CAPITALS,
        alone="en",
    ),
    rule(
        rf"(?<![\d.,/:-])(\d{{1,2}})(?:st|nd|rd|th)?\s(?:of\s)?({_MONTH})(?![A-Za-z])(?:,?\s(\d{{4}})\b)?",
        lambda m: None if _is_counting(m) else _en_day_first(m),
        _en_day_first,
        DIGITS,
        CAPITALS,
        alone="en",
    ),
)
