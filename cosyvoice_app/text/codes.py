"""Digits that name something and are no quantity: phone numbers, codes, rooms, plates, account numbers, and the digits
inside names (A4, GPT-4, B2B, PM2.5).
"""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.rule import CAPITALS, DASH, DIGITS, Match, Rule, before, each, left_alone, rule
from cosyvoice_app.text.simplified import both

_PHONE = (
    r"\(\d{3}\)\s?\d{3}-\d{4}|(?:1-)?\d{3}-\d{3}-\d{4}|[（(]0\d{2,3}[)）]\s?\d{3,4}[- ]?\d{4}"
    r"|0\d{2,3}[- ]\d{7,8}|0\d{2,3}-\d{3,4}-\d{4}|[48]00-\d{3,4}-\d{3,4}|[48]00\d{7}"
)
_ABROAD = r"\+\d{1,3}[\s-]?\(?\d{1,4}\)?(?:[\s-]\d{2,4}){1,4}|\+\d{1,3}[\s-]1[3-9]\d{9}|\+\d{8,15}"
_ZH_KEY = (
    "电话|手机|热线|致电|号码|传真|尾号|编号|卡号|账号|帐号|验证码|密码|口令|邮编|学号|工号|房号|群号|代码|证号|单号|订单|运单|"
    "车牌|QQ|微信|客服|序列号|取件码|邀请码|兑换码|优惠码|流水号|身份证|会员号|工单|会议号|ID|群"
)
_ZH_PHONE_KEY = re.compile(both("电话|手机|热线|致电|客服|打|拨|报警|急救"))
_MEASURED = "个次年月天元块位人份台部万亿千百款行条多余楼层路号秒分小米公克斤"
_EN_KEY = (
    "call|dial|phone|fax|tel|telephone|extension|ext|code|pin|passcode|password|room|flight|gate|apartment|apt|suite|"
    "area code|zip|zip code|postcode|highway|route|interstate"
)
_EN_LINKED_KEY = "order|account|ticket|case|id|serial|confirmation|tracking|booking|reference|text|unit|bus|number|card"
_COUNTED = r"(?!\s?(?:people|times|of|customers|users|friends|words|characters|items|dollars|percent|%|or|more)\b)"
_PROVINCES = "京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼"


def digits_only(written: str) -> str:
    return re.sub(r"\D", "", written)


def en_phone(written: str) -> str:
    groups = re.findall(r"\d+", written)
    return ("plus " if written.startswith("+") else "") + ", ".join(n.en_digits(g) for g in groups)


def zh_phone(written: str) -> str:
    return ("加" if written.startswith("+") else "") + n.zh_digits(digits_only(written), phone=True)


def _zh_call(m: Match) -> str:
    return zh_phone(m[0])


def _en_call(m: Match) -> str:
    return en_phone(m[0])


def _spelled(written: str, which: int) -> str:
    """Letters as they are, digits one by one; other marks are pauses between groups, not words."""
    said = [
        (n.zh_digits(part) if which == 0 else n.en_digits(part)) if part.isdecimal() else part
        for part in re.findall(r"\d+|[A-Za-z]+", written)
    ]
    return " ".join(said) if which else "".join(said)


def _zh_spelled(m: Match) -> str:
    return _spelled(m[0], 0)


def _en_spelled(m: Match) -> str:
    return _spelled(m[0], 1)


def _zh_keyed(m: Match) -> str:
    said = zh_phone(m[2]) if _ZH_PHONE_KEY.match(m[1]) else n.zh_digits(digits_only(m[2]))
    return m[1] + said


def _zh_mixed(m: Match) -> str | None:
    """密码：12ab34, letters as they are and digits one by one."""
    return m[1] + _spelled(m[2], 0) if re.search(r"\d", m[2]) else None


def _account(m: Match, which: int) -> str | None:
    return _spelled(m[0], which) if len(digits_only(m[0])) >= 10 else None


def _long_number(m: Match, which: int) -> str | None:
    """Twelve digits and no comma are an account or an order, unless they end in round zeros."""
    return None if m[0].endswith("000000") else _spelled(m[0], which)


def _colour(m: Match, which: int) -> str | None:
    """#FF5733: no letter groups, or FF would be a word. Digits alone are a colour where the words say so."""
    if m[1].isdecimal() and not re.search(r"色|colou?r|hex", before(m), re.IGNORECASE):
        return None
    said = [(n.zh_digits(c) if which == 0 else n.en_digits(c)) if c.isdecimal() else c.upper() for c in m[1]]
    return " ".join(said)


def _zh_hash(m: Match) -> str:
    """#7 is 七号; behind an English word it is read in English: "order #7754" in a Chinese sentence."""
    digits = m[1] or m[2]
    if re.search(r"[A-Za-z]\s?$", before(m)):
        return _en_hash(m)
    return (n.zh_digits(digits) if len(digits) > 3 else digits) + "号"


def _en_hash(m: Match) -> str:
    digits = m[1] or m[2]
    return "number " + (n.en_digits(digits) if len(digits) > 3 else digits)


def _in_pairs(digits: str) -> str:
    """747 is "seven forty-seven", 1080 "ten eighty"."""
    head, tail = digits[:-2], digits[-2:]
    return n.en_digits(digits) if tail[0] == "0" else f"{n.en_integer(head)} {n.en_integer(tail)}"


def _lines(m: Match) -> str:
    return _in_pairs(m[1])


def zh_in_name(m: Match) -> str:
    return _zh_name_digits(m[1])


def _zh_name_digits(digits: str) -> str:
    return n.zh_integer(digits) if len(digits) < 3 and not digits.startswith("0") else n.zh_digits(digits)


def en_in_name(m: Match) -> str:
    return _en_name_digits(m[1])


def _en_name_digits(digits: str) -> str:
    if len(digits) == 4 and digits[0] in "12":
        return n.en_year(digits)
    return n.en_integer(digits) if len(digits) < 3 and not digits.startswith("0") else n.en_digits(digits)


def _en_many(m: Match) -> str:
    """100s of people: hundreds."""
    zeros = m[1].count("0")
    step = {0: "", 1: " of thousands", 2: " of millions", 3: " of billions"}.get(zeros // 3)
    if step is None:
        return n.en_plural(n.en_integer(m[1].replace(",", "")))
    head = ("", "tens", "hundreds")[zeros % 3]
    return head + step if head else step.removeprefix(" of ")


_FIGURES_JOINED = re.compile(r"(?<=\d)-(?=\d)")

CODES: tuple[Rule, ...] = (
    rule(
        r"\b(IS[BS]N(?:-1[03])?[:：]?\s?)(\d[\d -]{6,16}[\dXx])(?![\d-])",
        lambda m: m[1] + _spelled(m[2], 0),
        lambda m: m[1] + _spelled(m[2], 1),
        DIGITS,
        "S",
    ),
    rule(
        r"\b[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?\b",
        lambda m: _account(m, 0),
        lambda m: _account(m, 1),
        DIGITS,
        CAPITALS,
    ),
    rule(r"(?<![\d+-])\d{4}(?:[ -]\d{4}){2,4}(?:[ -]\d{1,3})?(?![\d-])", _zh_spelled, _en_spelled, DIGITS, " -"),
    rule(r"(?<![\d.])\d{17}[Xx](?!\w)", _zh_spelled, _en_spelled, DIGITS, "xX"),
    rule(r"\b0[xX][0-9a-fA-F]+\b", _zh_spelled, _en_spelled, DIGITS, "xX"),
    rule(rf"(?<![\d.-])(?:{_ABROAD})(?![\d-])", _zh_call, _en_call, "+"),
    rule(
        r"(?<=拨)(打|通)?(\s?)(\+?\d[\d\s-]+\d(?:\s?[或、和及/]\s?\d[\d-]+\d)*)",
        lambda m: (m[1] or "") + m[2] + re.sub(r"\+?\d[\d\s-]*", lambda one: zh_phone(one[0]), m[3]),
        left_alone,
    ),
    rule(
        rf"((?:(?:{_ZH_KEY})(?:号码?|群)?(?:是|为|：|:|\s)*)|打|报警|急救)(\+?\d[\d-]{{1,}}\d)(?![\d.,%A-Za-z]|\s?[{_MEASURED}])",
        _zh_keyed,
        left_alone,
    ),
    rule(
        rf"((?:{_ZH_KEY})(?:号码?|群)?(?:是|为|：|:)\s?)([A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9]))(?![\w.%])(?!\s?[{_MEASURED}])",
        _zh_mixed,
        left_alone,
    ),
    rule(r"(?<=[备字第证])\d{5,}(?=号)", *each(lambda m: n.zh_digits(m[0])), "号"),
    rule(
        r"(?<!\w)\*(\d+(?:\*\d+)*)#",
        lambda m: "星" + "星".join(n.zh_digits(part) for part in m[1].split("*")) + "井",
        lambda m: "star " + " star ".join(n.en_digits(part) for part in m[1].split("*")) + " hash",
        "*",
        "#",
    ),
    rule(r"(?<![\d.])(1[3-9]\d)[\s-]?(\d{4})[\s-]?(\d{4})(?!\d)", _zh_call, _en_call),
    rule(
        rf"\b((?:{_EN_KEY})\.?(?:\s(?:number|no\.?|is|was)\b)*[:：]?\s+)(\d{{3,}})(?=\b|[A-Z]\b)(?![,.-]\d){_COUNTED}",
        lambda m: m[1] + n.zh_digits(m[2]),
        lambda m: m[1] + n.en_digits(m[2]),
        alone="en",
        flags=re.IGNORECASE,
    ),
    rule(
        rf"\b((?:{_EN_LINKED_KEY})\s?(?:(?:number|no\.?|id|code|is|was|ending in)\s|[:：#]\s?)+)"
        rf"(\d{{3,}})\b(?![,.-]\d){_COUNTED}",
        lambda m: m[1] + n.zh_digits(m[2]),
        lambda m: m[1] + n.en_digits(m[2]),
        alone="en",
        flags=re.IGNORECASE,
    ),
    rule(rf"(?<![\d.-])(?:{_PHONE})(?![\d-])", _zh_call, _en_call),
    rule(r"(?<![\d.])(\d{3})-(\d{4})(?![\d-])", _zh_call, _en_call, DIGITS, "-"),
    rule(r"(?<=[零幺二三四五六七八九]转)(\d{2,5})(?!\d)", *each(lambda m: zh_phone(m[1])), "转"),
    rule(
        r"((?:RTX|GTX|RX|Ryzen|Core i\d|骁龙|天玑|麒麟|RFC)[\s-]?|(?<![A-Za-z])i[3579]-)(\d{3,5})(?!\d)",
        lambda m: m[1] + n.zh_digits(m[2]),
        lambda m: m[1] + (_in_pairs(m[2]) if len(m[2]) == 4 else n.en_digits(m[2])),
        DIGITS,
        "XRi天麟骁",
        alone="en",
    ),
    rule(r"(?<![\d.,])\d{12,}(?![\d,.]*\d)", lambda m: _long_number(m, 0), lambda m: _long_number(m, 1)),
    rule(
        rf"([{_PROVINCES}][A-Z][·•.\s-]?)(?=[A-Z]*\d)([A-Z0-9]{{5,6}})(?![A-Za-z0-9])",
        *each(lambda m: m[1] + _spelled(m[2], 0)),
        DIGITS,
        _PROVINCES,
        CAPITALS,
    ),
    rule(
        r"(?<![\w&])#((?=[0-9a-fA-F]*\d)(?:[0-9a-fA-F]{8}|[0-9a-fA-F]{6}|[0-9a-fA-F]{3})|([a-fA-F])\2{2}(?:\2{3})?)\b",
        lambda m: _colour(m, 0),
        lambda m: _colour(m, 1),
        "#",
        alone="en",
    ),
    rule(r"(?<![A-Za-z])[#№]\s?(\d+)|\b(?:N[oO]|(?<![.!?,]\s)no)\.\s?(\d+)", _zh_hash, _en_hash, DIGITS, "#№Nn"),
    rule(r"(?<!\d)(\d{3,4})(?=室|号房|房间)", *each(lambda m: n.zh_digits(m[1])), DIGITS, "室房"),
    rule(
        rf"((?:单元|栋|座|幢|号楼)\s?)(\d{{3,4}})(?![\d.,A-Za-z]|\s?[{_MEASURED}平])",
        *each(lambda m: m[1] + n.zh_digits(m[2])),
        DIGITS,
        "元栋座幢楼",
    ),
    # Numbers that are always said digit by digit.
    rule(
        r"(?<![\d.])(985|211)(?=[、/和与及]?(?:985|211|大学|高校|院校|工程|学校|毕业))"
        r"|(?<![\d.])(996|007|965)(?=工作|制|加班)|(?<![\d.])(618|315|520|1024)(?=大促|购物|活动|期间|年中|狂欢|晚会|当天|节|快乐|礼物|表白)"
        r"|(?<=波音)(7\d7)|(?<=空客)(3\d0)",
        *each(lambda m: n.zh_digits(m[0])),
    ),
    rule(
        rf"(?<![\d.])(10086|10010|12306|12315)(?![\d.,A-Za-z]|\s?[{_MEASURED}])",
        _zh_call,
        left_alone,
    ),
    rule(r"(?<![\d.])(2160|1440|1080|720|480|360)(?=[pP](?![A-Za-z]))", lambda m: n.zh_digits(m[1]), _lines, "pP"),
    rule(r"\b((?:Boeing|Airbus)\s)(7\d7|3\d0)\b", left_alone, lambda m: m[1] + _in_pairs(m[2]), "BA"),
    rule(r"(?<![\d·])(\d{1,2})·(\d{1,2})(?![\d·])", *each(lambda m: n.zh_digits(m[1] + m[2])), "·"),
)

IN_NAMES: tuple[Rule, ...] = (
    # Plurals of names and numerals, which are no seconds: B-52s, 747s, two 2s, 3s and 4s.
    rule(
        r"(?<=[A-Z])(-?)(\d{1,4})s\b",
        lambda m: _zh_name_digits(m[2]) + "s",
        lambda m: f" {n.en_plural(_en_name_digits(m[2]))}",
        "s",
        CAPITALS,
        DIGITS,
        alone="en",
    ),
    rule(r"(?<![\w.])(7\d7)s\b", left_alone, lambda m: n.en_plural(_in_pairs(m[1])), "s", "7", alone="en"),
    rule(r"(?<![\w.,])(10+|1(?:0{0,2})(?:,000)+)s(?=\sof\b)", left_alone, _en_many, "s", DIGITS, alone="en"),
    rule(
        r"(?i:\b(?:two|three|four|five|six|many|several|some|few|double|triple|pocket|by|(?:pair|set|bunch|lot|lots)\sof)\s)"
        r"(\d{1,3}s(?:(?:,\s(?:and\s)?|\s(?:and|or)\s)\d{1,3}s){0,9})\b"
        r"(?!\s(?:clips?|ads?|spots?|videos?|intervals?|sprints?|breaks?|rounds?|holds?|shots?|delays?|later|ago)\b)",
        left_alone,
        lambda m: m[0][: -len(m[1])] + re.sub(r"(\d+)s", lambda one: n.en_plural(n.en_integer(one[1])), m[1]),
        "s",
        DIGITS,
        alone="en",
    ),
    rule(
        rf"(?<![A-Za-z])([Pp]{{1,2}})\s?(\d{{1,4}}){DASH}(\d{{1,4}})(?![\d-])",
        lambda m: f"{m[1]}{n.zh_integer(m[2])}到{n.zh_integer(m[3])}",
        lambda m: f"{m[1]} {n.en_integer(m[2])} to {n.en_integer(m[3])}",
        "Pp",
        DIGITS,
        alone="en",
    ),
    rule(r"(?<![A-Za-z0-9])([ABCDEFGMOPV])2([ABCDEFGMOPV])(?![A-Za-z0-9])", *each(lambda m: f"{m[1]} to {m[2]}"), "2"),
    rule(
        r"\b((?:iPhone|iPad|Galaxy|Pixel|Note|Mate|Model|Redmi)\s?)(\d{1,2})([a-zA-Z])\b(?![./])",
        lambda m: f"{m[1]}{n.zh_integer(m[2])}{m[3]}",
        lambda m: f"{m[1]}{n.en_integer(m[2])} {m[3]}",
        alone="en",
    ),
)
"""Names whose letters could be taken for units, so they come before the amounts."""

LETTERED: tuple[Rule, ...] = (
    # The hyphen inside a name would part its figures, and without it they would run together: Qwen2.5-72B.
    rule(
        r"(?<![A-Za-z\d])[A-Za-z][A-Za-z\d.]{0,30}(?:-[A-Za-z\d.]{1,20}){1,6}(?![\w-])",
        lambda m: _FIGURES_JOINED.sub("杠", m[0]) if _FIGURES_JOINED.search(m[0]) else None,
        lambda m: _FIGURES_JOINED.sub(", ", m[0]) if _FIGURES_JOINED.search(m[0]) else None,
        "-",
        DIGITS,
        alone="en",
    ),
    rule(
        r"(?<=[A-Za-z])(\d{1,3}(?:,\d{3})+)(?!\d)",
        lambda m: n.zh_number(m[1]),
        lambda m: n.en_number(m[1]),
        ",",
        DIGITS,
    ),
    rule(
        r"(?<=[A-Za-z])[-‑]?(\d+\.\d+)(?![\d.]*\.\d)",
        lambda m: n.zh_number(m[1]),
        lambda m: n.en_number(m[1]),
        ".",
        alone="en",
    ),
    rule(r"(?<=[A-Za-z])[-‑]?(\d+)(?![\d.]*\.\d)", zh_in_name, en_in_name, alone="en"),
)
"""Digits right behind letters, when nothing else has claimed them: A4, GPT-4, B12, PM2.5."""
