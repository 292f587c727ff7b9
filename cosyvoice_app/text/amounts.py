"""Numbers that count or measure: units, temperatures, percentages, fractions, ratios, ranges, versions, plain ones."""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.chars import HAN
from cosyvoice_app.text.codes import digits_only, en_phone
from cosyvoice_app.text.fractions import (
    en_decimals,
    en_fraction,
    en_part_of_unit,
    zh_decimals,
    zh_fraction,
    zh_part_of_unit,
)
from cosyvoice_app.text.money import en_scaled, zh_scaled
from cosyvoice_app.text.rule import DASH, DIGITS, NUM, Match, Rule, after, before, left_alone, rule, says
from cosyvoice_app.text.units import POINTED, UNITS

_MEASURES = (
    "个位只条件次天张块杯斤遍本名家种辆台双对口份倍元米点幅封根间颗首套项场篇瓶碗盒包箱袋片粒万亿千匹头朵支枝座棵株部段句排"
    "组把桶罐串滴勺圈顿趟声拳脚夜晚岁秒周吨"
)
_COUNTED = "元块位人部毫厘公层楼号度兆多余路瓦升平字集页章级岁分秒吨里"
_UNIT = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True) if u not in "%‰")
_UNIT_WORD = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True) if len(u) > 1 and u[0].isalpha())
_POINT = rf"(?:(?<=[a-z]{{2}})\.(?=,?\s+[a-z]|,|\s?[{HAN}]))?"
"""The point of a shortened unit, where the sentence goes on: 2 tsp. salt."""
_STEP = (
    r"(?:-(alpha|beta|rc|dev|pre|preview|snapshot|nightly|stable|release|final|hotfix|b|a)(?:[.-]?(\d{1,9}))?(?!\w))?"
)
"""Behind a version: -beta.2"""
_SCORE_BEFORE = re.compile(
    r"(?:比分|半场|点球|战成|打成|踢成|扳成|改写[为成]|定格[在为]?)\W{0,2}(?:是|为|了|到|至|在)?\W{0,2}$"
)
_SCORE_AFTER = re.compile(
    r"\s?(?:再次|暂时?|强势|轻松|客场|主场|逆转)*(?:[战取获]胜|[击打]败|[险大完小惜惨]胜|[惜惨完大]败|[战打逼]平|平局|领先|落后|逆转|"
    r"负于|不敌|力克|轻取|横扫|击溃|告负|告捷|输给|败给|败北|淘汰|绝杀|反超|拿下|胜出|[的之]?比分)"
)
_HAN_SUFFIX = "[元万亿岁天周点时分秒年月日号楼层级度人个名次章页集期米斤块倍折]|公里|小时|分钟|公斤"


def zh_quantity(number: str, unit: str) -> str:
    amount = "两" if number == "2" and not unit.startswith("千") else n.zh_number(number)
    return amount + unit


def _sign(number: str) -> str:
    return {"-": "负", "−": "负", "+": "正"}.get(number[:1], "")


def _zh_unit(m: Match) -> str:
    unit = UNITS[m["unit"]][0] + (f"每{UNITS[m['per']][0]}" if m["per"] else "")
    if m["to"]:
        low, high = _zh_counted(m["number"], True), _zh_counted(m["to"], not m["step"])
        return f"{low}到{high}{m['step'] or ''}{unit}"
    if m["step"]:
        return zh_scaled(m["number"], m["step"]) + unit
    sign = "正" if m["number"][0] == "+" else ""
    return sign + zh_quantity(m["number"].lstrip("+"), unit)


def _en_unit(m: Match) -> str | None:
    if m["step"]:
        return None
    _, one, many = UNITS[m["unit"]]
    per = f" per {UNITS[m['per']][1]}" if m["per"] else ""
    if m["to"]:
        return f"{n.en_number(m['number'])} to {n.en_number(m['to'])} {many}{per}"
    sign = "plus " if m["number"][0] == "+" else ""
    return f"{sign}{n.en_number(m['number'])} {one if m['number'] == '1' else many}{per}"


def zh_below(number: str) -> str:
    return ("零下" if number[:1] in "-−" else "") + n.zh_number(number.lstrip("+-−"))


def _zh_degrees(m: Match) -> str:
    scale = "华氏度" if m[3][-1] in "F℉" else "摄氏度"
    return (f"{zh_below(m[1])}到{zh_below(m[2])}" if m[2] else zh_below(m[1])) + scale


def _en_degrees(m: Match) -> str:
    scale = "Fahrenheit" if m[3][-1] in "F℉" else "Celsius"
    amount = f"{n.en_number(m[1])} to {n.en_number(m[2])}" if m[2] else n.en_number(m[1])
    return f"{amount} degree{'' if amount.endswith('one') else 's'} {scale}"


def _zh_percent(m: Match) -> str:
    name = {"%": "百分之", "％": "百分之", "‰": "千分之"}[m[2]]
    if m[1] == "100" and name == "百分之":
        return "百分之百"
    return _sign(m[1]) + name + n.zh_number(m[1].lstrip("+-−"))


def _en_percent(m: Match) -> str:
    sign = "plus " if m[1].startswith("+") else ""
    return f"{sign}{n.en_number(m[1])} {'per mille' if m[2] == '‰' else 'percent'}"


def _zh_version(m: Match) -> str:
    said = m[1] + "点".join(
        n.zh_digits(p) if p.startswith("0") or len(p) > 2 else n.zh_integer(p) for p in m[2].split(".")
    )
    return said + (f" {m[3]}" if m[3] else "") + (n.zh_integer(m[4]) if m[4] else "")


def _en_version(m: Match) -> str:
    spoken = " point ".join(n.en_digits(p) if len(p) > 2 else n.en_integer(p) for p in m[2].split("."))
    step = (f" {m[3]}" if m[3] else "") + (f" {n.en_integer(m[4])}" if m[4] else "")
    return f"{m[1]} {spoken}".strip() + step


def _is_phone_like(m: Match) -> bool:
    return len(digits_only(m[0])) >= 7 or (m[2].startswith("0") and len(m[2]) > 1)


def _are_years(m: Match) -> bool:
    return all(re.fullmatch(r"(?:1\d|20)\d\d", x) for x in (m[1], m[2])) and m[1] < m[2]


def _zh_range(m: Match) -> str:
    if _are_years(m):
        return f"{n.zh_digits(m[1])}到{n.zh_digits(m[2])}"
    if _is_phone_like(m) and not (len(m[1]) == len(m[2]) == 4):
        return n.zh_digits(digits_only(m[0]), phone=True)
    if _is_score(m):
        return f"{n.zh_integer(m[1])}比{n.zh_integer(m[2])}"
    counted = _is_counted(after(m)) and not before(m, 1).endswith("第")
    return f"{_zh_counted(m[1], counted)}到{_zh_counted(m[2], counted)}"


def _is_score(m: Match) -> bool:
    """我队2-1领先: the hyphen between the goals of two sides."""
    short = len(m[1]) < 4 and len(m[2]) < 4 and not {"~", "～", "."} & set(m[0])
    return short and bool(_SCORE_BEFORE.search(before(m)) or _SCORE_AFTER.match(after(m)))


def _zh_counted(number: str, counted: bool) -> str:
    return "两" if counted and number == "2" else n.zh_number(number)


def _is_counted(rest: str) -> bool:
    """Behind 2, these make it 两."""
    return bool(
        re.match(
            rf"\s?(?:[{_MEASURES}]|年(?!级)|小时|分钟|公里|千米|公斤|厘米|平米|平方|星期|礼拜|室\s?[\d一二三]厅)", rest
        )
    )


def _is_a_year(m: Match) -> bool:
    """A number like 2024 that nothing counts, behind a name or where a year is told: VidCon 2024, 截至2023."""
    if not re.fullmatch(r"(?:19|20)\d\d", m[1]) or re.match(rf"[.,]\d|[A-Za-z%]|\s?[{_MEASURES}{_COUNTED}]", after(m)):
        return False
    told = r"(?:[A-Za-z]\s?|[于在自从至到]|截至|[奥运会节杯博览]|你好|再见|告别|迎接|走进|东京|巴黎|北京|伦敦)$"
    return bool(re.search(told, before(m)))


def _en_range(m: Match) -> str:
    if _are_years(m):
        return f"{n.en_year(m[1])} to {n.en_year(m[2])}"
    if _is_phone_like(m):
        return en_phone(m[0])
    return f"{n.en_number(m[1])} to {n.en_number(m[2])}"


def _zh_plain(m: Match) -> str:
    written = m[1]
    digits = written.lstrip("+-−")
    if "." not in digits and "," not in digits and digits.startswith("0") and len(digits) > 1:
        return n.zh_digits(digits)
    if written == "2" and _is_counted(after(m)) and not before(m, 1).endswith("第"):
        return "两"
    if _is_a_year(m):
        return n.zh_digits(written)
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


def _zh_times(m: Match) -> str:
    return n.zh_number(m[1]) + ("" if after(m).startswith("倍") else "倍")


def _zh_thousands(m: Match) -> str | None:
    """月薪15k: as it is said, 一万五千. 4K and a 5k run are names."""
    if not re.search(
        r"(?:薪|工资|收入|粉丝|播放|浏览|点赞|年包|底薪|价格?)[是为约到至:：]?(?:\d+[kK]?[-~到至])?\s?$", before(m)
    ):
        return None
    return zh_scaled(m[1], m[2])


def _inches(m: Match) -> bool:
    """A lone double quote behind a number is an inch mark when no quotation is open."""
    return m.string.count('"', 0, m.start()) % 2 == 0 and m.string.count('"', m.end()) % 2 == 0


AMOUNTS: tuple[Rule, ...] = (
    rule(
        r"(?<![\d/.,])(?:\d+\.\d+/\d+(?:\.\d+)?|\d+/\d+\.\d+)(?![\d/]|[.,]\d)",
        zh_decimals,
        en_decimals,
        "/",
        ".",
        DIGITS,
    ),
    # A dash between two amounts that each have their unit: 30%~50%, 5kg-10kg, 3月5日-7日, ¥5-¥10.
    rule(
        rf"((?:{NUM})(?:\s?(?:{_UNIT_WORD})|[%％‰℃℉°kKwW]|°C|°F)){DASH}(?=[$€£¥￥]?[-−]?\d)",
        lambda m: m[1] + "到",
        lambda m: m[1] + " to ",
        "-–—~～−",
        DIGITS,
    ),
    rule(
        rf"((?:{NUM})({_HAN_SUFFIX})){DASH}(?=(?:\d+年)?(?:\d+月)?\d[\d.]*\2)",
        lambda m: m[1] + "到",
        lambda m: m[1] + "到",
        "-–—~～−",
        DIGITS,
    ),
    rule(
        rf"(?<![A-Za-z])(([A-Za-z])\d{{1,3}}){DASH}(?=\2\d)",
        lambda m: m[1] + "到",
        lambda m: m[1] + " to ",
        "-–—~～−",
        DIGITS,
        alone="en",
    ),
    rule(r"(\d+(?:\.\d+)?)w(?![A-Za-z])", lambda m: zh_scaled(m[1], "万"), left_alone, "w", DIGITS),
    rule(r"(\d+(?:\.\d+)?)([kKmMwW])(?![A-Za-z\d])", _zh_thousands, left_alone, "kKmMwW", DIGITS),
    rule(
        rf"({NUM})/({NUM})\s?mmHg",
        lambda m: f"{n.zh_number(m[1])}比{n.zh_number(m[2])}毫米汞柱",
        lambda m: f"{n.en_number(m[1])} over {n.en_number(m[2])} millimeters of mercury",
        "/",
        DIGITS,
    ),
    rule(
        rf"((?:(?<![A-Za-z\d])[-−+])?(?:{NUM}))(?:\s?(?:[~～到至—–-]|to)\s?([-−]?(?:{NUM})))?\s?(℃|℉|°\s?[CF](?![A-Za-z]))",
        _zh_degrees,
        _en_degrees,
        "℃℉°",
        DIGITS,
    ),
    rule(
        rf"({NUM})({DASH})({NUM})\s?[%％]",
        lambda m: f"百分之{n.zh_number(m[1])}到百分之{n.zh_number(m[3])}",
        lambda m: f"{n.en_number(m[1])} to {n.en_number(m[3])} percent",
        "%％",
        DIGITS,
    ),
    rule(rf"((?:(?<![A-Za-z\d%％])[-−+])?(?:{NUM}))\s?([%％‰])", _zh_percent, _en_percent, "%％‰", DIGITS),
    rule(
        rf"(?<![\d/.-])(?:(\d{{1,3}})\s)?(\d{{1,2}})/(\d{{1,2}})(?![\d/]|\.\d)\s?(?:({_UNIT_WORD})(?![A-Za-z\d])){_POINT}",
        zh_part_of_unit,
        en_part_of_unit,
        "/",
        DIGITS,
    ),
    rule(
        r"(?<![\d/.-])(\d{1,3})\s(\d{1,2})/(\d{1,2})(?![\d/]|\.\d)()",
        zh_part_of_unit,
        en_part_of_unit,
        "/",
        DIGITS,
    ),
    rule(
        r"(?<![A-Za-z\d.])(\d{1,2})\s?ft\s?(\d{1,2})\s?in(?![A-Za-z])",
        lambda m: f"{n.zh_integer(m[1])}英尺{n.zh_integer(m[2])}英寸",
        lambda m: f"{n.en_integer(m[1])} feet {n.en_integer(m[2])} inches",
        "f",
        DIGITS,
    ),
    # 5m users, 1.6bn: short for a million or a billion, not metres.
    rule(
        r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)(bn|mn|m(?=\s(?:people|users|views|viewers|subscribers|followers|downloads|copies|"
        r"customers|members|jobs|homes|years|records|plays|streams|fans)\b))(?![A-Za-z\d])",
        lambda m: zh_scaled(m[1], m[2]),
        lambda m: en_scaled(m[1], m[2]),
        "m" + "b",
        DIGITS,
    ),
    rule(
        rf"(?<![A-Za-z\d.])({NUM})\s?({'|'.join(POINTED)})\.(?=,?\s+[a-z]|,|\s?[{HAN}])",
        lambda m: zh_quantity(m[1], POINTED[m[2]][0]),
        lambda m: f"{n.en_number(m[1])} {POINTED[m[2]][1 if m[1] == '1' else 2]}",
        ".",
        DIGITS,
    ),
    rule(
        rf"(?P<number>(?:(?<![A-Za-z\d])[-−+])?(?:{NUM}))(?:{DASH}(?P<to>{NUM}))?\s?(?P<step>万亿|千万|百万|万|亿)?\s?"
        rf"(?P<unit>{_UNIT})(?:/(?P<per>{_UNIT})(?![A-Za-z\d]))?(?![A-Za-z²³])(?!\d+(?![\dA-Za-z])){_POINT}",
        _zh_unit,
        _en_unit,
    ),
    rule(
        rf"(?<=llion |usand )(?P<unit>{_UNIT_WORD})(?![A-Za-z\d])",
        left_alone,
        lambda m: UNITS[m["unit"]][2],
        "kmclgt",
    ),
    rule(
        r'(?<![A-Za-z\d.])(\d{1,3}(?:\.\d+)?)"(?![\d"])',
        lambda m: n.zh_number(m[1]) + "英寸" if _inches(m) else None,
        lambda m: n.en_number(m[1]) + " inch" if _inches(m) else None,
        '"',
        DIGITS,
    ),
    rule(
        rf"(?<![A-Za-z\d.])([vV]?)(\d+(?:\.\d+){{2,}}){_STEP}(?!\.?\d)",
        _zh_version,
        _en_version,
        ".",
        DIGITS,
        alone="en",
    ),
    rule(rf"(?<![A-Za-z\d.])([vV])(\d+(?:\.\d+)?){_STEP}(?!\.?\d)", _zh_version, _en_version, "vV", DIGITS, alone="en"),
    rule(
        r"(?<![\d:])(\d+(?:\.\d+)?)[:：](\d+(?:\.\d+)?)(?![\d:])",
        lambda m: f"{n.zh_number(m[1])}比{n.zh_number(m[2])}",
        lambda m: f"{n.en_number(m[1])} to {n.en_number(m[2])}",
        ":：",
        DIGITS,
    ),
    rule(r"(?<![\d/])24/7(?![\d/])", *says("七乘二十四", "twenty-four seven"), "/", DIGITS, alone="en"),
    rule(r"(?<![\d/])9/11(?![\d/])", *says("九一一", "nine eleven"), "/", DIGITS, alone="en"),
    rule(r"(?<![\d/.])(\d{1,4})/(\d{1,4})(?![\d/]|\.\d)", zh_fraction, en_fraction, "/", DIGITS),
    # Twice as much: 2x faster, 0.5x, but not the 2x of an equation.
    rule(
        r"(?<![\w.+*/=×^-])(?<![+*/=×^-]\s)(\d+(?:\.\d+)?)[xX×](?![\w²³⁴])(?!\s?[-+*/=^<>])",
        _zh_times,
        lambda m: n.en_number(m[1]) + " times",
        "xX×",
        DIGITS,
    ),
    rule(rf"(?<![\w.-])(\d+(?:\.\d+)?){DASH}(\d+(?:\.\d+)?)(?![\d-])", _zh_range, _en_range, "-–—~～−", DIGITS),
    rule(
        rf"(?<![\w.{HAN}])([-−]?\d+(?:\.\d+)?)\s?[~～]\s?([-−]?\d+(?:\.\d+)?)(?![\d-])",
        lambda m: f"{n.zh_number(m[1])}到{n.zh_number(m[2])}",
        lambda m: f"{n.en_number(m[1])} to {n.en_number(m[2])}",
        "~～",
        DIGITS,
    ),
    rule(
        r"\b(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b",
        lambda m: "第" + n.zh_integer(m[1].replace(",", "")),
        lambda m: n.en_ordinal(m[1].replace(",", "")),
        alone="en",
        flags=re.IGNORECASE,
    ),
)

PLAIN: tuple[Rule, ...] = (
    rule(
        rf"(?<![\d.A-Za-z])((?:(?<![A-Za-z\d{HAN}])[-−+]"
        rf"|(?<=[于是为到至约了得成示额率差值温由从负利损益量度分低高数亏跌降涨])[-−+]|(?<=[环同]比)[-−+]|(?<=[{HAN}])[-−](?=\d+\.\d))?(?:{NUM}))",
        _zh_plain,
        _en_plain,
    ),
    rule(
        r"(?<![\w.])\.(\d+)(?!\w)",
        lambda m: "零点" + n.zh_digits(m[1]),
        lambda m: "point " + n.en_digits(m[1]),
        ".",
        DIGITS,
    ),
    rule(r"(\d+)", lambda m: n.zh_digits(m[1]), lambda m: n.en_digits(m[1])),
)
