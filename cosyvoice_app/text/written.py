"""Written forms that are not words, and how each is spoken: dates, times, phones, money, units, versions, symbols.

The rules run in order, most particular first: a date is taken before a minus sign or a range can claim its hyphens. Each
match is read in the language of its own surroundings; a reader that answers None leaves the match to the later rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from cosyvoice_app.text import language as lang
from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.chars import HAN
from cosyvoice_app.text.units import CURRENCIES, MAGNITUDES, SYMBOLS, UNITS
from cosyvoice_app.types import Language

Match = re.Match[str]
Reader = Callable[[Match], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: re.Pattern[str]
    zh: Reader
    en: Reader
    alone: Language = "zh"
    """Language when nothing in the whole text tells."""


_MONTHS = ("January February March April May June July August September October November December").split()
_MONTH = "(?:" + "|".join(f"{m}|{m[:3]}\\.?" for m in _MONTHS) + "|Sept\\.?)"
_NUM = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_UNIT = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True) if u not in "%‰")
_MAGNITUDE = r"(?:\s?(thousand|million|billion|trillion|万亿|万|亿)|(bn|[kKMB])(?![A-Za-z]))?"
_DASH = r"\s?[-–—~～]\s?"
_MEASURES = "个位只条件次天张块杯斤遍本名家种辆台双对口份倍元米点幅封根间颗首套项场篇瓶碗盒包箱袋片粒"


def _month(number: str) -> str:
    return _MONTHS[int(number) - 1]


def _is_date(month: str, day: str) -> bool:
    return 1 <= int(month) <= 12 and 1 <= int(day) <= 31


def _zh_date(m: Match) -> str | None:
    year, month, day = m[1], m[2], m[3]
    if not _is_date(month, day):
        return None
    return f"{n.zh_digits(year)}年{n.zh_integer(month)}月{n.zh_integer(day)}日"


def _en_date(m: Match) -> str | None:
    if not _is_date(m[2], m[3]):
        return None
    return f"{_month(m[2])} {n.en_ordinal(m[3])}, {n.en_year(m[1])}"


def _en_named_date(m: Match) -> str:
    return f"{m[1]} {n.en_ordinal(m[2])}" + (f", {n.en_year(m[3])}" if m[3] else "")


def _zh_time(m: Match) -> str:
    hour, minute, second, half = m[1], m[2], m[3], (m[4] or "").lower().replace(".", "")
    spoken = {"am": "上午", "pm": "下午"}.get(half, "") + ("两" if int(hour) == 2 else n.zh_integer(hour)) + "点"
    if int(minute) or second:
        spoken += ("零" if 0 < int(minute) < 10 else "") + n.zh_integer(minute) + "分"
    if second:
        spoken += n.zh_integer(second) + "秒"
    return spoken


def _en_time(m: Match) -> str:
    hour, minute, second, half = int(m[1]), int(m[2]), m[3], (m[4] or "").replace(".", "")
    tail = f" {half.upper()}" if half else ""
    if second:
        return f"{n.en_integer(m[1])} {n.en_integer(m[2])} and {n.en_integer(second)} seconds{tail}"
    if minute == 0:
        return n.en_integer(m[1]) + (tail or (" o'clock" if 1 <= hour <= 12 else " hundred hours"))
    return n.en_integer(m[1]) + (" oh " if minute < 10 else " ") + n.en_integer(m[2]) + tail


def _digits_only(written: str) -> str:
    return re.sub(r"\D", "", written)


def _en_phone(written: str) -> str:
    groups = re.findall(r"\d+", written)
    return ("plus " if written.startswith("+") else "") + ", ".join(n.en_digits(g) for g in groups)


def _zh_phone(written: str) -> str:
    return ("加" if written.startswith("+") else "") + n.zh_digits(_digits_only(written), phone=True)


def _zh_magnitude(word: str | None) -> str:
    return MAGNITUDES[word][0] if word else ""


def _zh_money(m: Match) -> str:
    return n.zh_number(m[2]) + _zh_magnitude(m[3] or m[4]) + CURRENCIES[m[1]][0]


def _en_money(m: Match) -> str:
    _, unit, units, hundredth, hundredths = CURRENCIES[m[1]]
    amount, magnitude = m[2].replace(",", ""), m[3] or m[4]
    whole, _, part = amount.partition(".")
    if magnitude:
        return f"{n.en_number(amount)} {MAGNITUDES[magnitude][1]} {units}"
    if len(part) == 2 and int(part):
        cents = f"{n.en_integer(part)} {hundredth if int(part) == 1 else hundredths}"
        return f"{n.en_integer(whole)} {unit if int(whole) == 1 else units} and {cents}" if int(whole) else cents
    if not part.strip("0"):
        return f"{n.en_integer(whole)} {unit if int(whole) == 1 else units}"
    return f"{n.en_number(amount)} {units}"


def _zh_percent(m: Match) -> str:
    name = {"%": "百分之", "％": "百分之", "‰": "千分之"}[m[2]]
    sign = {"-": "负", "−": "负", "+": "正"}.get(m[1][:1], "")
    return sign + name + n.zh_number(m[1].lstrip("+-−"))


def _en_percent(m: Match) -> str:
    sign = "plus " if m[1].startswith("+") else ""
    return f"{sign}{n.en_number(m[1])} {'per mille' if m[2] == '‰' else 'percent'}"


def _zh_quantity(number: str, unit: str) -> str:
    amount = "两" if number == "2" and not unit.startswith("千") else n.zh_number(number)
    return amount + unit


def _zh_unit(m: Match) -> str:
    unit = UNITS[m[3]][0]
    if m[2]:
        return f"{n.zh_number(m[1])}到{n.zh_number(m[2])}{unit}"
    return _zh_quantity(m[1], unit)


def _en_unit(m: Match) -> str:
    _, one, many = UNITS[m[3]]
    if m[2]:
        return f"{n.en_number(m[1])} to {n.en_number(m[2])} {many}"
    return f"{n.en_number(m[1])} {one if m[1] == '1' else many}"


def _zh_below(number: str) -> str:
    return ("零下" if number[:1] in "-−" else "") + n.zh_number(number.lstrip("+-−"))


def _zh_degrees(m: Match) -> str:
    scale = "华氏度" if m[3][-1] in "F℉" else "摄氏度"
    return (f"{_zh_below(m[1])}到{_zh_below(m[2])}" if m[2] else _zh_below(m[1])) + scale


def _en_degrees(m: Match) -> str:
    scale = "Fahrenheit" if m[3][-1] in "F℉" else "Celsius"
    amount = f"{n.en_number(m[1])} to {n.en_number(m[2])}" if m[2] else n.en_number(m[1])
    return f"{amount} degree{'' if amount.endswith('one') else 's'} {scale}"


def _zh_version(m: Match) -> str:
    return m[1] + "点".join(n.zh_digits(p) if p.startswith("0") or len(p) > 2 else n.zh_integer(p) for p in m[2].split("."))


def _en_version(m: Match) -> str:
    spoken = " point ".join(n.en_digits(p) if len(p) > 2 else n.en_integer(p) for p in m[2].split("."))
    return f"{m[1]} {spoken}".strip()


def _zh_fraction(m: Match) -> str:
    return f"{n.zh_integer(m[2])}分之{n.zh_integer(m[1])}"


def _en_fraction(m: Match) -> str:
    top, bottom = int(m[1]), int(m[2])
    if bottom == 0 or top > bottom:
        return f"{n.en_integer(m[1])} over {n.en_integer(m[2])}"
    name = {2: "half", 4: "quarter"}.get(bottom, n.en_ordinal(m[2]))
    if top != 1:
        name = {2: "halves"}.get(bottom, name + "s")
    return f"{n.en_integer(m[1])} {name}"


def _is_phone_like(m: Match) -> bool:
    return len(_digits_only(m[0])) >= 7 or (m[2].startswith("0") and len(m[2]) > 1)


def _zh_range(m: Match) -> str:
    if _is_phone_like(m) and not (len(m[1]) == len(m[2]) == 4):
        return n.zh_digits(_digits_only(m[0]), phone=True)
    return f"{n.zh_number(m[1])}到{n.zh_number(m[2])}"


def _en_range(m: Match) -> str:
    if len(m[1]) == len(m[2]) == 4 and m[1][0] in "12" and m[2][0] in "12":
        return f"{n.en_year(m[1])} to {n.en_year(m[2])}"
    if _is_phone_like(m):
        return _en_phone(m[0])
    return f"{n.en_number(m[1])} to {n.en_number(m[2])}"


def _zh_in_name(m: Match) -> str:
    digits = m[1]
    return n.zh_integer(digits) if len(digits) < 3 and not digits.startswith("0") else n.zh_digits(digits)


def _en_in_name(m: Match) -> str:
    digits = m[1]
    if len(digits) == 4 and digits[0] in "12":
        return n.en_year(digits)
    return n.en_integer(digits) if len(digits) < 3 and not digits.startswith("0") else n.en_digits(digits)


def _zh_plain(m: Match) -> str:
    written = m[1]
    digits = written.lstrip("+-−")
    if "." not in digits and "," not in digits and digits.startswith("0") and len(digits) > 1:
        return n.zh_digits(digits)
    if written == "2" and re.match(rf"\s?(?:[{_MEASURES}]|年(?!级)|小时|分钟|公里|千米)", m.string[m.end() :]) \
            and not m.string[: m.start()].endswith("第"):
        return "两"
    sign = "正" if written.startswith("+") else ""
    return sign + n.zh_number(written)


def _en_plain(m: Match) -> str:
    written = m[1]
    digits = written.lstrip("+-−")
    if digits.isdecimal():
        if digits.startswith("0") and len(digits) > 1:
            return n.en_digits(digits)
        if len(digits) == 4 and digits == written and 1100 <= int(digits) <= 2099:
            return n.en_year(digits)
    return ("plus " if written.startswith("+") else "") + n.en_number(written)


def _zh_symbol(m: Match) -> str:
    return SYMBOLS[m[0]][0]


def _en_symbol(m: Match) -> str:
    return SYMBOLS[m[0]][1]


_ADDRESS_WORDS = {
    ".": ("点", "dot"), "/": ("斜杠", "slash"), "@": ("艾特", "at"), "_": ("下划线", "underscore"), "-": ("杠", "dash"),
    ":": ("冒号", "colon"), "?": ("问号", "question mark"), "=": ("等于", "equals"), "&": ("和", "and"), "#": ("井号", "hash"),
    "%": ("百分号", "percent"), "+": ("加", "plus"), "~": ("波浪号", "tilde"),
}


def _address(written: str, which: int) -> str:
    """An address is read as it stands: no scheme and no closing slash, letters as words, digits one by one, marks by name."""
    written = re.sub(r"^[a-z]+://", "", written, flags=re.IGNORECASE).rstrip("/")
    words = []
    for part in re.findall(r"[A-Za-z]+|\d|.", written):
        if part.isdecimal():
            words.append(n.zh_digits(part) if which == 0 else n.en_digits(part))
        elif part in _ADDRESS_WORDS:
            words.append(_ADDRESS_WORDS[part][which])
        else:
            words.append(part)
    return " ".join(words)


def _rule(pattern: str, zh: Reader, en: Reader, alone: Language = "zh", flags: int = 0) -> Rule:
    # ASCII: a word ends where Han begins, or "Room 302等" would hide its number.
    return Rule(re.compile(pattern, flags | re.ASCII), zh, en, alone)


def _none(_: Match) -> None:
    return None


_ABBREVIATIONS = {
    "mr": "Mister", "mrs": "Missus", "ms": "Miz", "dr": "Doctor", "prof": "Professor", "vs": "versus", "etc": "et cetera",
    "e.g": "for example", "i.e": "that is", "approx": "approximately", "dept": "department", "jr": "Junior", "sr": "Senior",
}

RULES: tuple[Rule, ...] = (
    # Addresses, before any of their marks or digits can be taken for something else.
    _rule(r"(?:https?|ftp)://[^\s\u3000-\u9fff\uff00-\uffef<>\"“”]*[^\s\u3000-\u9fff\uff00-\uffef<>\"“”.,;:!?)'\]]"
          r"|www\.[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?:/[\w./?=&%#~+-]*[\w/])?"
          r"|[A-Za-z0-9][\w.+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"
          r"|(?<![\w@.])[A-Za-z][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*\.(?:com|org|net|edu|gov|io|cn)(?:/[\w./?=&%#~+-]*[\w/])?(?![\w.]*\w)",
          lambda m: _address(m[0], 0), lambda m: _address(m[0], 1), "en"),
    _rule(r"\betc\.(?=\s*$|\s+[A-Z])", _none, lambda m: "et cetera.", "en"),
    _rule(r"\b(mrs?|ms|dr|prof|vs|etc|e\.g|i\.e|approx|dept|jr|sr)\.", _none, lambda m: _ABBREVIATIONS[m[1].lower()],
          "en", re.IGNORECASE),
    _rule(r"(?:(?<=^)|(?<=\n)|(?<=[.。!?！？]\s))(\d{1,3})[.)、．]\s+(?=[^\s\d])",
          lambda m: n.zh_integer(m[1]) + "，", lambda m: n.en_integer(m[1]) + ", "),
    # Dates and times.
    _rule(r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?![\d-])", _zh_date, _en_date),
    _rule(r"(?<![\d.])(\d{4})\s?[-–—~～至到]\s?(\d{4})年", lambda m: f"{n.zh_digits(m[1])}到{n.zh_digits(m[2])}年",
          lambda m: f"{n.zh_digits(m[1])}到{n.zh_digits(m[2])}年"),
    _rule(r"(?<!\d)(\d{4})年", lambda m: n.zh_digits(m[1]) + "年", lambda m: n.zh_digits(m[1]) + "年"),
    _rule(r"(?<!\d)((?:19|20)\d\d)[-/](0[1-9]|1[0-2])(?![\d/-])",
          lambda m: f"{n.zh_digits(m[1])}年{n.zh_integer(m[2])}月", lambda m: f"{_month(m[2])} {n.en_year(m[1])}"),
    _rule(r"\b(\d{3}0)'?s\b", lambda m: n.zh_digits(m[1]) + "年代", lambda m: n.en_plural(n.en_year(m[1])), "en"),
    _rule(rf"\b({_MONTH})\s(\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s(\d{{4}})\b)?", _none, _en_named_date, "en"),
    _rule(r"(?<![\d:.比分例])([01]?\d|2[0-4])[:：]([0-5]\d)(?:[:：]([0-5]\d))?(?![\d:])(?:\s?([ap]\.?m\b\.?))?", _zh_time, _en_time,
          flags=re.IGNORECASE),
    _rule(r"\b(\d{1,2})\s?([ap])\.?m\b\.?", lambda m: {"a": "上午", "p": "下午"}[m[2].lower()] + n.zh_integer(m[1]) + "点",
          lambda m: f"{n.en_integer(m[1])} {m[2].upper()}M", "en", re.IGNORECASE),
    # Numbers that name something and are not quantities.
    _rule(r"(?<=拨)(?:打)?(\s?)(\+?\d[\d\s-]+\d)", lambda m: m[0][: m.start(2) - m.start()] + _zh_phone(m[2]), _none),
    _rule(r"((?:电话|手机|热线|致电|号码|传真|尾号|编号|卡号|账号|验证码|密码|邮编|学号|工号|房号|群号|代码|证号|QQ|微信)"
          r"(?:号码?)?(?:是|为|：|:|\s)*|打)(\+?\d[\d-]{1,}\d)(?![\d.]|[个次年月天元])",
          lambda m: m[1] + (_zh_phone(m[2]) if re.match("电话|手机|热线|致电|打", m[1]) else n.zh_digits(_digits_only(m[2]))),
          _none),
    _rule(r"(?<![\d.])(1[3-9]\d)[\s-]?(\d{4})[\s-]?(\d{4})(?!\d)", lambda m: _zh_phone(m[0]), lambda m: _en_phone(m[0])),
    _rule(r"\b((?:call|dial|phone|text|fax|tel|extension|ext|code|pin|room|flight|area code|zip)\.?:?\s+)(\d{3,})\b(?![,.-]\d)",
          lambda m: m[1] + n.zh_digits(m[2]), lambda m: m[1] + n.en_digits(m[2]), "en", re.IGNORECASE),
    _rule(r"(?<![\d.])\+?\(?\d{1,4}\)?(?:[\s-]\(?\d{2,4}\)?){1,3}[\s-]\d{4}(?!\d)", lambda m: _zh_phone(m[0]), lambda m: _en_phone(m[0])),
    _rule(r"(?<![\d.])(\d{3})-(\d{4})(?![\d-])", lambda m: _zh_phone(m[0]), lambda m: _en_phone(m[0])),
    _rule(r"(?<![A-Za-z])[#№]\s?(\d+)|\b[Nn]o\.\s?(\d+)", lambda m: (m[1] or m[2]) + "号", lambda m: f"number {m[1] or m[2]}"),
    # Amounts.
    _rule(rf"({_NUM})/({_NUM})\s?mmHg", lambda m: f"{n.zh_number(m[1])}比{n.zh_number(m[2])}毫米汞柱",
          lambda m: f"{n.en_number(m[1])} over {n.en_number(m[2])} millimeters of mercury"),
    _rule(rf"((?:(?<![A-Za-z\d])[-−+])?(?:{_NUM}))(?:\s?(?:[~～到至—–-]|to)\s?([-−]?(?:{_NUM})))?\s?(℃|℉|°\s?[CF])", _zh_degrees, _en_degrees),
    _rule(rf"([￥¥])\s?({_NUM}){_MAGNITUDE}元?", _zh_money, _en_money),
    _rule(rf"({'|'.join(re.escape(c) for c in sorted(CURRENCIES, key=len, reverse=True))})\s?({_NUM}){_MAGNITUDE}(?:美?元)?",
          _zh_money, _en_money, "en"),
    _rule(rf"({_NUM})({_DASH})({_NUM})\s?[%％]", lambda m: f"百分之{n.zh_number(m[1])}到百分之{n.zh_number(m[3])}",
          lambda m: f"{n.en_number(m[1])} to {n.en_number(m[3])} percent"),
    _rule(rf"((?:(?<![A-Za-z\d%％])[-−+])?(?:{_NUM}))\s?([%％‰])", _zh_percent, _en_percent),
    _rule(rf"((?:(?<![A-Za-z\d])[-−])?(?:{_NUM}))(?:{_DASH}({_NUM}))?\s?({_UNIT})(?![A-Za-z])", _zh_unit, _en_unit),
    _rule(r"(?<![A-Za-z\d.])([vV]?)(\d+(?:\.\d+){2,})(?![.\d])", _zh_version, _en_version, "en"),
    _rule(r"(?<![A-Za-z\d.])([vV])(\d+(?:\.\d+)?)(?![.\d])", _zh_version, _en_version, "en"),
    _rule(r"(?<![\d:])(\d+)[:：](\d+)(?![\d:])", lambda m: f"{n.zh_integer(m[1])}比{n.zh_integer(m[2])}",
          lambda m: f"{n.en_integer(m[1])} to {n.en_integer(m[2])}"),
    _rule(r"(?<![\d/])(24/7|9/11)(?![\d/])", _none, lambda m: {"24/7": "twenty-four seven", "9/11": "nine eleven"}[m[1]], "en"),
    _rule(r"(?<![\d/])(\d{1,4})/(\d{1,4})(?![\d/])", _zh_fraction, _en_fraction),
    _rule(rf"(?<![\w.-])(\d+(?:\.\d+)?){_DASH}(\d+(?:\.\d+)?)(?![\d-])", _zh_range, _en_range),
    _rule(r"\b(\d+)(?:st|nd|rd|th)\b", lambda m: "第" + n.zh_integer(m[1]), lambda m: n.en_ordinal(m[1]), "en", re.IGNORECASE),
    # Digits inside names: A4, GPT-4, iPhone15, B2C, 5G.
    _rule(r"(?<=[A-Za-z])[-‑]?(\d+)(?![\d.]*\.\d)", _zh_in_name, _en_in_name, "en"),
    _rule(rf"(?<![\d.A-Za-z])((?:(?<![A-Za-z\d{HAN}])[-−+]|(?<=[于是为到至约了])[-−+])?(?:{_NUM}))", _zh_plain, _en_plain),
    _rule(r"(\d+)", lambda m: n.zh_digits(m[1]), lambda m: n.en_digits(m[1])),
    # Symbols with a name. A lone sign between two words is read; the others are.
    _rule(r"(?<=\b[CFcf])[#＃]", lambda m: " sharp", lambda m: " sharp", "en"),
    _rule(r"(?<=[A-Za-z])\+\+", lambda m: "加加", lambda m: " plus plus"),
    _rule("|".join(re.escape(s) for s in sorted(SYMBOLS, key=len, reverse=True) if s not in "<>"), _zh_symbol, _en_symbol),
    _rule(rf"(?<=[A-Za-z{HAN}])\s?[<>]\s?(?=[A-Za-z{HAN}])", lambda m: SYMBOLS[m[0].strip()][0], lambda m: SYMBOLS[m[0].strip()][1]),
)


_NEEDS_READING = re.compile("[0-9@./" + re.escape("".join(sorted(set("".join(SYMBOLS))))) + "]|#")


def speak(text: str, before: str, after: str) -> str:
    """`text` with every written form spoken. `before` and `after` are what stands around it and only tell the language."""
    if not _NEEDS_READING.search(text):
        return text
    for rule in RULES:
        if rule.pattern.search(text):
            text = _apply(rule, text, before, after)
    return text


def _apply(rule: Rule, text: str, before: str, after: str) -> str:
    out, done = [], 0
    for match in rule.pattern.finditer(text):
        around = before + text + after
        where = lang.at(around, len(before) + match.start(), len(before) + match.end(), rule.alone)
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
