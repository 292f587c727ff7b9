"""Times of day and durations; 5'7" is feet and inches, or minutes and seconds."""

from __future__ import annotations

import re

from cosyvoice_app.text import numbers as n
from cosyvoice_app.text.rule import DASH, DIGITS, Match, Rule, after, before, each, left_alone, rule, says

_DAY_PART = re.compile(r"(?:上午|下午|晚上|早上|中午|凌晨|傍晚|清晨|今晚|今早|明早|明晚|夜里|早晨|晚)\s?$")
_RATIO_BEFORE = re.compile(
    r"(?:(?:比例|比率|比分|画幅|总分|ratio|score|aspect)\W*\w{0,4}\W*|(?:\bwon|\bbeat \w+|\blost|\blead|\bled|"
    r"胜|赢|输|领先|以)(?:\sby)?\s?)$",
    re.IGNORECASE,
)
_RATIO_AFTER = re.compile(
    r"\s?(?:战胜|击败|险胜|大胜|完胜|小胜|战平|领先|落后|获胜|取胜|逆转|负于|不敌|[的之]?比[分例]|"
    r"(?:aspect |screen )?ratio|屏|画幅|显示器|win\b|victory|lead\b|loss\b|defeat)",
    re.IGNORECASE,
)
_DURATION_BEFORE = re.compile(
    r"(?:成绩|用时|耗时|时长|历时|片长|全长|计时|用了|跑出|游出|record|time of|duration|lasted|lasts|length|took|"
    r"clocked|runtime)\W{0,2}(?:is|was|of|至|到|是|为|了)?\W{0,2}$",
    re.IGNORECASE,
)
_LONG_DURATION_BEFORE = re.compile(
    r"(?:以|纪录|记录|共计?|\bin|finished|(?:完赛|比赛|总|净|所用|花费|跑完|运行|播放|通话|飞行|录音)时间)[是为：:了]?\s?$",
    re.IGNORECASE,
)


def _is_ratio(m: Match) -> bool:
    return not m[3] and bool(_RATIO_BEFORE.search(before(m)) or _RATIO_AFTER.match(after(m)))


def _is_duration(m: Match) -> bool:
    left = before(m)
    return not m[4] and bool(_DURATION_BEFORE.search(left) or (m[3] and _LONG_DURATION_BEFORE.search(left)))


def _zh_count(number: str, unit: str) -> str:
    return ("两" if int(number) == 2 else n.zh_integer(number)) + unit


def zh_clock(hour: str, minute: str | None, half: str, left: str) -> str:
    part = ""
    if half and not _DAY_PART.search(left):
        part = _zh_part_of_day(int(hour), half)
    spoken = part + _zh_count(hour, "点")
    if minute and int(minute):
        spoken += ("零" if int(minute) < 10 else "") + n.zh_integer(minute) + "分"
    return spoken


def _zh_part_of_day(hour: int, half: str) -> str:
    if half == "a":
        return "凌晨" if hour == 12 or hour < 5 else "上午"
    return "中午" if hour == 12 else "下午" if hour < 6 else "晚上"


def _zh_time(m: Match) -> str | None:
    if _is_ratio(m):
        return None
    hour, minute, second, half = m[1], m[2], m[3], (m[4] or "")[:1].lower()
    if _is_duration(m):
        parts = [_zh_count(hour, "小时"), n.zh_integer(minute) + "分", n.zh_integer(second) + "秒"] if second else [
            n.zh_integer(hour) + "分", n.zh_integer(minute) + "秒"
        ]  # fmt: skip
        return "".join(parts)
    spoken = zh_clock(hour, minute, half, before(m))
    if second:
        spoken += ("零分" if int(minute) == 0 else "") + n.zh_integer(second) + "秒"
    return spoken


def en_clock(hour: str, minute: str | None, half: str) -> str:
    tail = f" {half.upper()}M" if half else ""
    if not minute or int(minute) == 0:
        return n.en_integer(hour) + (tail or (" o'clock" if 1 <= int(hour) <= 12 else " hundred hours"))
    return n.en_integer(hour) + (" oh " if int(minute) < 10 else " ") + n.en_integer(minute) + tail


def _en_count(number: str, unit: str) -> str:
    return f"{n.en_integer(number)} {unit}{'' if int(number) == 1 else 's'}"


def _en_time(m: Match) -> str | None:
    if _is_ratio(m):
        return None
    hour, minute, second, half = m[1], m[2], m[3], (m[4] or "")[:1]
    if _is_duration(m):
        if second:
            return f"{_en_count(hour, 'hour')}, {_en_count(minute, 'minute')} and {_en_count(second, 'second')}"
        return f"{_en_count(hour, 'minute')} and {_en_count(minute, 'second')}"
    if second:
        tail = f" {half.upper()}M" if half else ""
        past = " o'clock" if int(minute) == 0 else (" oh " if int(minute) < 10 else " ") + n.en_integer(minute)
        return f"{n.en_integer(hour)}{past} and {_en_count(second, 'second')}{tail}"
    return en_clock(hour, minute, half)


def _zh_until(m: Match) -> str:
    """3-5pm: one half of the day for both."""
    left = before(m)
    first = zh_clock(m[1], m[2], m[5].lower(), left)
    return first + "到" + zh_clock(m[3], m[4], "", left)


def _en_until(m: Match) -> str:
    first = en_clock(m[1], m[2], "") if m[2] else n.en_integer(m[1])
    return f"{first} to {en_clock(m[3], m[4], m[5])}"


def _zh_hour(m: Match) -> str:
    return zh_clock(m[1], None, m[2].lower(), before(m))


def zone(typed: str | None, which: int) -> str:
    if not typed:
        return ""
    if typed[0] not in "+-":
        return ("协调世界时", " UTC")[which]
    sign = {"+": ("加", "plus "), "-": ("减", "minus ")}[typed[0]][which]
    hours, minutes = typed[1:3], typed[-2:]
    number = n.zh_integer if which == 0 else n.en_integer
    rest = "" if int(minutes) == 0 else ("点" if which == 0 else " ") + number(minutes)
    return ("UTC" if which == 0 else " UTC ") + sign + number(hours) + rest


def _zh_offset(m: Match) -> str:
    minutes = f"点{n.zh_integer(m[4])}" if m[4] and int(m[4]) else ""
    return m[1] + {"+": "加", "±": "正负"}.get(m[2], "减") + n.zh_integer(m[3]) + minutes


def _en_offset(m: Match) -> str:
    minutes = f" {n.en_integer(m[4])}" if m[4] and int(m[4]) else ""
    return f"{m[1]} {({'+': 'plus', '±': 'plus or minus'}).get(m[2], 'minus')} {n.en_integer(m[3])}{minutes}"


# 5'7": feet and inches, or minutes and seconds

_VIDEO = re.compile(r"\b(?:at|video|mark|timestamp|clip|from)\s?(?:the\s)?$", re.IGNORECASE)


def _is_height(m: Match) -> bool:
    return float(m[2]) < 12 and 1 <= int(m[1]) <= 9


def _zh_feet(m: Match) -> str:
    if _is_height(m) and re.search("高|英尺|英寸|米|长", before(m, 12) + after(m, 2)):
        return f"{n.zh_integer(m[1])}英尺{n.zh_number(m[2])}英寸"
    return f"{n.zh_integer(m[1])}分{n.zh_number(m[2])}秒"


def _en_feet(m: Match) -> str:
    if _is_height(m) and not _VIDEO.search(before(m)):
        return f"{n.en_integer(m[1])} foot {n.en_number(m[2])}"
    return f"{_en_count(m[1], 'minute')} {n.en_number(m[2])} seconds"


_TIME = r"([01]?\d|2[0-4])[:：]([0-5]\d)(?:[:：]([0-5]\d))?(?![\d:])"

_BOOKS = (
    "Genesis|Exodus|Leviticus|Numbers|Deuteronomy|Joshua|Judges|Samuel|Kings|Job|Psalms?|Proverbs|Isaiah|Jeremiah|Ezekiel|"
    "Daniel|Matthew|Mark|Luke|John|Acts|Romans|Corinthians|Galatians|Ephesians|Philippians|Timothy|Hebrews|Peter|Revelation"
)


def _verse(m: Match) -> str:
    until = f" to {n.en_integer(m[4])}" if m[4] else ""
    return f"{m[1]} {n.en_integer(m[2])} {n.en_integer(m[3])}{until}"


TIMES: tuple[Rule, ...] = (
    rule(rf"\b({_BOOKS})\s(\d{{1,3}}):(\d{{1,3}})(?:[-–](\d{{1,3}}))?(?![:\d])", *each(_verse), DIGITS, ":"),
    rule(r"\b(UTC|GMT)\s?([+\-−±])\s?(\d{1,2})(?::?(\d\d))?(?!\d)", _zh_offset, _en_offset, DIGITS, "TC"),
    rule(
        r"(?<![\w'.])(\d{1,2})['’]\s?(\d{1,2}(?:\.\d+)?)(?:\"|''|[”“]|’’)",
        _zh_feet,
        _en_feet,
        DIGITS,
        "'’",
        alone="en",
    ),
    rule(
        r"(?<![\w'.])([4-7])'(\d|1[01])(?![\d'\"”])",
        left_alone,
        lambda m: f"{n.en_integer(m[1])} foot {n.en_integer(m[2])}",
        DIGITS,
        "'",
        alone="en",
    ),
    rule(
        rf"(?<![\d:])(\d{{1,2}})(?::(\d\d))?{DASH}(\d{{1,2}})(?::(\d\d))?\s?([ap])\.?m\b\.?",
        _zh_until,
        _en_until,
        alone="en",
        flags=re.IGNORECASE,
    ),
    rule(
        r"\b([ap])\.?m\.?\s?(\d{1,2}:\d\d(?::\d\d)?)(?![\d:])(?!\s?[ap]\.?m)",
        lambda m: f"{m[2]} {m[1]}m",
        lambda m: f"{m[2]} {m[1]}m",
        ":",
        flags=re.IGNORECASE,
    ),
    rule(rf"(?<=:\d\d){DASH}(?=\d{{1,2}}:\d\d)", *says("到", " to "), ":"),
    rule(rf"(?i:(?<=[ap]m)|(?<=[ap]\.m\.)){DASH}(?=\d)", *says("到", " to ")),
    rule(
        rf"(?<![\d:.比分例]){_TIME}(?:\s?([ap]\.?m\b\.?))?",
        _zh_time,
        _en_time,
        DIGITS,
        ":：",
        flags=re.IGNORECASE,
    ),
    rule(
        r"\b(\d{1,2})\s?([ap])\.?m\b\.?",
        _zh_hour,
        lambda m: en_clock(m[1], None, m[2]),
        alone="en",
        flags=re.IGNORECASE,
    ),
)
