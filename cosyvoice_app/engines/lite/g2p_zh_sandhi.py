"""Tones as they are spoken together: 不, 一, third tones, 儿 (Chao 1968, sections 1.3 and 1.4; Lin 2007, chapter 9)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import rjieba

from cosyvoice_app.text.chars import words


@dataclass(slots=True)
class Syllable:
    """One spoken syllable. `char` is its Simplified character, empty if spelled by the user; `word` numbers its word.

    A `fixed` one was spelled by the user and its tone is not touched.
    """

    surface: str
    char: str
    initial: str
    final: str
    tone: int
    word: int
    fixed: bool = False


_NUMERALS = frozenset("零一二三四五六七八九十百千万亿点幺")
_FIRST_WORDS = frozenset(
    words("统一 唯一 同一 单一 万一 专一 合一 归一 逐一 周一 星期一 礼拜一 初一 高一 大一 其一 不一 划一")
)
_MEASURES = frozenset("个种些样天年次遍下点条只本张件位家间场段句首")
_AS_A_NUMBER = words("年级 等奖 等功 等舱 楼 号 月 日")
"""What follows an 一 that counts: 一年级, 一楼."""
FULL_ER = frozenset(words(
    "女儿 婴儿 幼儿 孤儿 少儿 胎儿 健儿 宠儿 混血儿 新生儿 产儿 早产儿 男儿 托儿 育儿 患儿 宁馨儿 生儿 小儿 妻儿"
))  # fmt: skip
"""Words whose 儿 is a syllable, keyed by the last character before it as well as whole."""
_VERBS_THAT_CAN = frozenset("受办吃做忘等拿打看听说想睡找买用走跑搬记认对管赶写读学吃喝修治离少免放站坐起合过")
_CAN_RESULTS = frozenset("了起着见懂完动住到下上")


def as_spoken(syllables: list[Syllable]) -> None:
    """Change the tones in place, from those a dictionary prints to those that are said."""
    _doubled_verbs(syllables)
    _neutral_er(syllables)
    _bu(syllables)
    _yi(syllables)
    _third(syllables)


def _doubled_verbs(syllables: list[Syllable]) -> None:
    """想想 is xiang2 xiang5: the third tone under the neutral one still raises the first. Not so 姐姐, 奶奶."""
    for first, second in pairwise(syllables):
        same = first.char == second.char and first.word == second.word
        if same and first.tone == 3 and second.tone == 5 and first.char not in "姐奶嫂姥宝婶":
            _raise(first)


def _neutral_er(syllables: list[Syllable]) -> None:
    """儿 after a noun only colours it (花儿); in 儿子, 女儿 and the like it is a syllable of its own."""
    for i, er in enumerate(syllables):
        if er.char != "儿" or er.fixed or i == 0:
            continue
        before = syllables[i - 1]
        following = syllables[i + 1].char if i + 1 < len(syllables) else ""
        opens_a_word = following and following in "子童女歌科媳孙时戏" and before.word != er.word
        if not (before.char + "儿" in FULL_ER or opens_a_word):
            er.tone, er.word = 5, before.word


def _bu(syllables: list[Syllable]) -> None:
    for i, syllable in enumerate(syllables):
        if syllable.char != "不" or syllable.fixed or i + 1 == len(syllables):
            continue
        following = syllables[i + 1]
        before = syllables[i - 1] if i else None
        inside = before and before.word == syllable.word == following.word and _length(syllables, i) == 3
        if before and ((before.char and before.char == following.char) or inside or _can(before, following)):
            syllable.tone = 5
        elif following.tone == 4:
            syllable.tone = 2


def _can(before: Syllable, following: Syllable) -> bool:
    """Whether 不 between the two says that it can't be done: 办不了, 买不起."""
    return before.char in _VERBS_THAT_CAN and following.char in _CAN_RESULTS and following.tone != 5


def _length(syllables: list[Syllable], i: int) -> int:
    """Syllables of the word that syllable `i` is in."""
    return sum(s.word == syllables[i].word for s in syllables)


def _yi(syllables: list[Syllable]) -> None:
    for i, syllable in enumerate(syllables):
        if syllable.char != "一" or syllable.fixed:
            continue
        before = syllables[i - 1].char if i else ""
        following = syllables[i + 1] if i + 1 < len(syllables) else None
        if before and following and before == following.char and before not in _NUMERALS:
            syllable.tone = 5
        elif following is None or _counts_as_one(syllables, i, before, following):
            syllable.tone = 1
        elif following.tone == 4 or (following.tone == 5 and following.char == "个"):
            syllable.tone = 2
        else:
            syllable.tone = 4


def _word(syllables: list[Syllable], i: int) -> str:
    return "".join(s.char for s in syllables if s.word == syllables[i].word)


def _counts_as_one(syllables: list[Syllable], i: int, before: str, following: Syllable) -> bool:
    """Digits, ordinals, and words that end in 一 keep the first tone."""
    if _word(syllables, i) == "一五一十":  # the only word of the dictionary that counts and is no number
        return False
    if following.char and following.char in "百千万亿":
        return before in ("十", "点", "第")
    if (before and before in _NUMERALS) or before in ("第", "初", "之"):
        return True
    if following.char and following.char in "零一二三四五六七八九十幺":
        return True
    if following.char == "点" and i + 2 < len(syllables) and syllables[i + 2].char in _NUMERALS:
        return True
    rest = "".join(s.char for s in syllables[i + 1 : i + 3])
    if rest.startswith(_AS_A_NUMBER):
        return True
    word = "".join(s.char for s in syllables[: i + 1] if s.word == syllables[i].word)
    return following.word != syllables[i].word and word in _FIRST_WORDS and following.char not in _MEASURES


def _third(syllables: list[Syllable]) -> None:
    """3-3 becomes 2-3: inside words first, then across words when one of the two is a single syllable."""
    groups: list[list[Syllable]] = []
    for syllable in syllables:
        if groups and groups[-1][-1].word == syllable.word:
            groups[-1].append(syllable)
        else:
            groups.append([syllable])
    for group in groups:
        _third_in_word(group)
    for group, following in pairwise(groups):
        last, first = group[-1], following[0]
        if last.tone == first.tone == 3 and min(len(group), len(following)) == 1:
            _raise(last)


def _third_in_word(group: list[Syllable]) -> None:
    if len(group) > 3:
        middle = len(group) // 2
        _third_in_word(group[:middle])
        _third_in_word(group[middle:])
        return
    if len(group) == 3 and all(s.tone == 3 for s in group):
        if rjieba.has_word("".join(s.char for s in group[:2])):
            _raise(group[0])
        _raise(group[1])
        return
    for syllable, following in pairwise(group):
        if syllable.tone == following.tone == 3:
            _raise(syllable)


def _raise(syllable: Syllable) -> None:
    if not syllable.fixed:
        syllable.tone = 2
