"""Written forms that are not words, and in which order to look for them: dates, times, money, units, symbols.

The rules run in order, most particular first: a date is taken before a minus sign or a range can claim its hyphens.
Each match is read in the language of its own surroundings; a reader that answers None leaves it to the later rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from cosyvoice_app.text import language as lang
from cosyvoice_app.text import numbers as n
from cosyvoice_app.text import readers as r
from cosyvoice_app.text.chars import HAN
from cosyvoice_app.text.units import CURRENCIES, SYMBOLS, UNITS
from cosyvoice_app.types import Language

Reader = Callable[[re.Match[str]], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: re.Pattern[str]
    zh: Reader
    en: Reader
    alone: Language = "zh"
    """Language when nothing in the whole text tells."""


_MONTH = "(?:" + "|".join(f"{m}|{m[:3]}\\.?" for m in r.MONTHS) + "|Sept\\.?)"
_NUM = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_UNIT = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True) if u not in "%‰")
_CURRENCY = "|".join(re.escape(c) for c in sorted(CURRENCIES, key=len, reverse=True))
_MAGNITUDE = r"(?:\s?(thousand|million|billion|trillion|万亿|万|亿)|(bn|[kKMB])(?![A-Za-z]))?"
_PHONE = (
    r"\+\d{1,3}[\s-]?\(?\d{1,4}\)?(?:[\s-]\d{2,4}){1,4}|\(\d{3}\)\s?\d{3}-\d{4}|(?:1-)?\d{3}-\d{3}-\d{4}"
    r"|0\d{2,3}[- ]\d{7,8}|[48]00-\d{3,4}-\d{3,4}"
)
_DASH = r"\s?[-–—~～]\s?"


def _rule(pattern: str, zh: Reader, en: Reader, alone: Language = "zh", flags: int = 0) -> Rule:
    # ASCII: a word ends where Han begins, or "Room 302等" would hide its number.
    return Rule(re.compile(pattern, flags | re.ASCII), zh, en, alone)


def _none(_: re.Match[str]) -> None:
    return None


_ABBREVIATIONS = {
    "mr": "Mister",
    "mrs": "Missus",
    "ms": "Miz",
    "dr": "Doctor",
    "prof": "Professor",
    "vs": "versus",
    "etc": "et cetera",
    "e.g": "for example",
    "i.e": "that is",
    "approx": "approximately",
    "dept": "department",
    "jr": "Junior",
    "sr": "Senior",
}

RULES: tuple[Rule, ...] = (
    # Longer than any number that means something, and slow for the rules below.
    _rule(r"(?<!\d)\d{31,}", lambda m: n.zh_digits(m[0]), lambda m: n.en_digits(m[0])),
    # Addresses, before any of their marks or digits can be taken for something else.
    _rule(
        r"(?:https?|ftp)://[^\s\u3000-\u9fff\uff00-\uffef<>\"“”]*[^\s\u3000-\u9fff\uff00-\uffef<>\"“”.,;:!?)'\]]"
        r"|www\.[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?:/[\w./?=&%#~+-]*[\w/])?"
        r"|[A-Za-z0-9][\w.+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"
        r"|(?<![\w@.])[A-Za-z][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*\.(?:com|org|net|edu|gov|io|"
        r"cn)(?:/[\w./?=&%#~+-]*[\w/])?(?![\w.]*\w)",
        lambda m: r.address(m[0], 0),
        lambda m: r.address(m[0], 1),
        "en",
    ),
    _rule(r"\betc\.(?=\s*$|\s+[A-Z])", _none, lambda m: "et cetera.", "en"),
    _rule(
        r"\b(mrs?|ms|dr|prof|vs|etc|e\.g|i\.e|approx|dept|jr|sr)\.",
        _none,
        lambda m: _ABBREVIATIONS[m[1].lower()],
        "en",
        re.IGNORECASE,
    ),
    _rule(
        r"(?:(?<=^)|(?<=\n)|(?<=[.。!?！？]\s))(\d{1,3})[.)、．]\s+(?=[^\s\d])",
        lambda m: n.zh_integer(m[1]) + "，",
        lambda m: n.en_integer(m[1]) + ", ",
    ),
    # Dates and times.
    _rule(r"(?<![\d/])(\d{1,2})/(\d{1,2})/(\d{4})(?![\d/])", r.zh_us_date, r.en_us_date),
    _rule(r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?![\d-])", r.zh_date, r.en_date),
    _rule(
        r"(?<![\d.])(\d{4})\s?[-–—~～至到]\s?(\d{4})年",
        lambda m: f"{n.zh_digits(m[1])}到{n.zh_digits(m[2])}年",
        lambda m: f"{n.zh_digits(m[1])}到{n.zh_digits(m[2])}年",
    ),
    _rule(r"(?<!\d)(\d{4})年", lambda m: n.zh_digits(m[1]) + "年", lambda m: n.zh_digits(m[1]) + "年"),
    _rule(
        r"(?<!\d)((?:19|20)\d\d)[-/](0[1-9]|1[0-2])(?![\d/-])",
        lambda m: f"{n.zh_digits(m[1])}年{n.zh_integer(m[2])}月",
        lambda m: f"{r.month(m[2])} {n.en_year(m[1])}",
    ),
    _rule(r"\b(\d{3}0)'?s\b", lambda m: n.zh_digits(m[1]) + "年代", lambda m: n.en_plural(n.en_year(m[1])), "en"),
    _rule(r"(?<!\w)'(\d0)s\b", lambda m: n.zh_integer(m[1]) + "年代", lambda m: n.en_plural(n.en_integer(m[1])), "en"),
    _rule(
        r"\b(\d)'(\d{1,2})(?:\"|''|”)",
        lambda m: f"{n.zh_integer(m[1])}英尺{n.zh_integer(m[2])}英寸",
        lambda m: f"{n.en_integer(m[1])} foot {n.en_integer(m[2])}",
        "en",
    ),
    _rule(rf"\b({_MONTH})\s(\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s(\d{{4}})\b)?", _none, r.en_named_date, "en"),
    _rule(r"(?<=:\d\d)\s?[-–—~～]\s?(?=\d{1,2}:\d\d)", lambda m: "到", lambda m: " to "),
    _rule(
        r"(?<![\d:.比分例])([01]?\d|2[0-4])[:：]([0-5]\d)(?:[:：]([0-5]\d))?(?![\d:])(?:\s?([ap]\.?m\b\.?))?",
        r.zh_time,
        r.en_time,
        flags=re.IGNORECASE,
    ),
    _rule(
        r"\b(\d{1,2})\s?([ap])\.?m\b\.?",
        lambda m: {"a": "上午", "p": "下午"}[m[2].lower()] + n.zh_integer(m[1]) + "点",
        lambda m: f"{n.en_integer(m[1])} {m[2].upper()}M",
        "en",
        re.IGNORECASE,
    ),
    # Numbers that name something and are not quantities.
    _rule(r"(?<=拨)(?:打)?(\s?)(\+?\d[\d\s-]+\d)", lambda m: m[0][: m.start(2) - m.start()] + r.zh_phone(m[2]), _none),
    _rule(
        r"((?:电话|手机|热线|致电|号码|传真|尾号|编号|卡号|账号|验证码|密码|邮编|学号|工号|房号|群号|代码|证号|QQ|微信)"
        r"(?:号码?)?(?:是|为|：|:|\s)*|打)(\+?\d[\d-]{1,}\d)(?![\d.]|[个次年月天元])",
        lambda m: (
            m[1] + (r.zh_phone(m[2]) if re.match("电话|手机|热线|致电|打", m[1]) else n.zh_digits(r.digits_only(m[2])))
        ),
        _none,
    ),
    _rule(
        r"(?<![\d.])(1[3-9]\d)[\s-]?(\d{4})[\s-]?(\d{4})(?!\d)", lambda m: r.zh_phone(m[0]), lambda m: r.en_phone(m[0])
    ),
    _rule(
        r"\b((?:call|dial|phone|text|fax|tel|extension|ext|code|pin|room|flight|area code|"
        r"zip)\.?:?\s+)(\d{3,})\b(?![,.-]\d)",
        lambda m: m[1] + n.zh_digits(m[2]),
        lambda m: m[1] + n.en_digits(m[2]),
        "en",
        re.IGNORECASE,
    ),
    _rule(
        rf"(?<![\d.-])(?:{_PHONE})(?![\d-])",
        lambda m: r.zh_phone(m[0]),
        lambda m: r.en_phone(m[0]),
    ),
    _rule(r"(?<![\d.])(\d{3})-(\d{4})(?![\d-])", lambda m: r.zh_phone(m[0]), lambda m: r.en_phone(m[0])),
    _rule(
        r"(?<![A-Za-z])[#№]\s?(\d+)|\bNo\.\s?(\d+)",
        lambda m: (m[1] or m[2]) + "号",
        lambda m: f"number {m[1] or m[2]}",
    ),
    _rule(r"(?<!\d)(\d{3,4})(?=室|号房|房间)", lambda m: n.zh_digits(m[1]), lambda m: n.en_digits(m[1])),
    # Amounts.
    _rule(
        r"(\d+|(?<![A-Za-z])[A-Za-z])\^(\d+)",
        lambda m: f"{m[1]}的{n.zh_integer(m[2])}次方",
        lambda m: f"{m[1]} to the power of {m[2]}",
    ),
    _rule(r"(\d+(?:\.\d+)?)w(?![A-Za-z])", lambda m: n.zh_number(m[1]) + "万", _none),
    _rule(rf"(?<=[元块次人个里米克斤升页字步$])/(?=[{HAN}])", lambda m: "每", lambda m: "每"),
    _rule(
        r"(?<=[a-z])/(?=(?:day|week|month|year|hour|minute|second|night|person|mile)\b)",
        lambda m: " per ",
        lambda m: " per ",
    ),
    _rule(
        rf"({_NUM})/({_NUM})\s?mmHg",
        lambda m: f"{n.zh_number(m[1])}比{n.zh_number(m[2])}毫米汞柱",
        lambda m: f"{n.en_number(m[1])} over {n.en_number(m[2])} millimeters of mercury",
    ),
    _rule(
        rf"((?:(?<![A-Za-z\d])[-−+])?(?:{_NUM}))(?:\s?(?:[~～到至—–-]|to)\s?([-−]?(?:{_NUM})))?\s?(℃|℉|°\s?[CF])",
        r.zh_degrees,
        r.en_degrees,
    ),
    _rule(rf"([￥¥])\s?({_NUM}){_MAGNITUDE}元?", r.zh_money, r.en_money),
    _rule(
        rf"({_CURRENCY})\s?({_NUM}){_MAGNITUDE}(?:美?元)?",
        r.zh_money,
        r.en_money,
        "en",
    ),
    _rule(
        rf"({_NUM})({_DASH})({_NUM})\s?[%％]",
        lambda m: f"百分之{n.zh_number(m[1])}到百分之{n.zh_number(m[3])}",
        lambda m: f"{n.en_number(m[1])} to {n.en_number(m[3])} percent",
    ),
    _rule(rf"((?:(?<![A-Za-z\d%％])[-−+])?(?:{_NUM}))\s?([%％‰])", r.zh_percent, r.en_percent),
    _rule(rf"((?:(?<![A-Za-z\d])[-−])?(?:{_NUM}))(?:{_DASH}({_NUM}))?\s?({_UNIT})(?![A-Za-z])", r.zh_unit, r.en_unit),
    _rule(r"(?<![A-Za-z\d.])([vV]?)(\d+(?:\.\d+){2,})(?![.\d])", r.zh_version, r.en_version, "en"),
    _rule(r"(?<![A-Za-z\d.])([vV])(\d+(?:\.\d+)?)(?![.\d])", r.zh_version, r.en_version, "en"),
    _rule(
        r"(?<![\d:])(\d+(?:\.\d+)?)[:：](\d+(?:\.\d+)?)(?![\d:])",
        lambda m: f"{n.zh_number(m[1])}比{n.zh_number(m[2])}",
        lambda m: f"{n.en_number(m[1])} to {n.en_number(m[2])}",
    ),
    _rule(
        r"(?<![\d/])(24/7|9/11)(?![\d/])",
        _none,
        lambda m: {"24/7": "twenty-four seven", "9/11": "nine eleven"}[m[1]],
        "en",
    ),
    _rule(r"(?<![\d/])(\d{1,4})/(\d{1,4})(?![\d/])", r.zh_fraction, r.en_fraction),
    _rule(rf"(?<![\w.-])(\d+(?:\.\d+)?){_DASH}(\d+(?:\.\d+)?)(?![\d-])", r.zh_range, r.en_range),
    _rule(
        r"\b(\d+)(?:st|nd|rd|th)\b",
        lambda m: "第" + n.zh_integer(m[1]),
        lambda m: n.en_ordinal(m[1]),
        "en",
        re.IGNORECASE,
    ),
    # Digits inside names: A4, GPT-4, iPhone15, B2C, 5G.
    _rule(r"(?<=[A-Za-z])[-‑]?(\d+)(?![\d.]*\.\d)", r.zh_in_name, r.en_in_name, "en"),
    _rule(
        rf"(?<![\d.A-Za-z])((?:(?<![A-Za-z\d{HAN}])[-−+]|(?<=[于是为到至约了])[-−+])?(?:{_NUM}))",
        r.zh_plain,
        r.en_plain,
    ),
    _rule(r"(\d+)", lambda m: n.zh_digits(m[1]), lambda m: n.en_digits(m[1])),
    # Symbols with a name. A lone sign between two words is read; the others are.
    _rule(r"(?<=\b[CFcf])[#＃]", lambda m: " sharp", lambda m: " sharp", "en"),
    _rule(r"(?<=[A-Za-z])\+\+", lambda m: "加加", lambda m: " plus plus"),
    _rule(
        "|".join(re.escape(s) for s in sorted(SYMBOLS, key=len, reverse=True) if s not in "<>"),
        r.zh_symbol,
        r.en_symbol,
    ),
    _rule(
        rf"(?<=[A-Za-z{HAN}])\s?[<>]\s?(?=[A-Za-z{HAN}])",
        lambda m: SYMBOLS[m[0].strip()][0],
        lambda m: SYMBOLS[m[0].strip()][1],
    ),
)


_NEEDS_READING = re.compile("[0-9@./" + re.escape("".join(sorted(set("".join(SYMBOLS))))) + "]|#")


def speak(text: str, before: str, after: str) -> str:
    """`text` with every written form spoken. `before` and `after`, what stands around it, only tell the language."""
    if not _NEEDS_READING.search(text):
        return text
    for rule in RULES:
        if rule.pattern.search(text):
            text = _apply(rule, text, before, after)
    return text


_CONTEXT_CHARS = 120
"""How far around a written form its language is looked for."""


def _apply(rule: Rule, text: str, before: str, after: str) -> str:
    out, done = [], 0
    for match in rule.pattern.finditer(text):
        left = (before + text[: match.start()])[-_CONTEXT_CHARS:]
        around = left + match[0] + (text[match.end() :] + after)[:_CONTEXT_CHARS]
        where = lang.at(around, len(left), len(left) + len(match[0]), rule.alone)
        spoken = (rule.zh if where == "zh" else rule.en)(match)
        if spoken is None:
            continue
        out.append(text[done : match.start()])
        if out[-1][-1:].isascii() and out[-1][-1:].isalnum() and spoken[:1].isascii() and spoken[:1].isalnum():
            out.append(" ")
        out.append(spoken)
        following = text[match.end() : match.end() + 1]
        if following.isascii() and following.isalnum() and spoken[-1:].isascii() and spoken[-1:].isalnum():
            out.append(" ")
        done = match.end()
    return "".join(out) + text[done:]
