"""Mandarin text -> syllables with their tones as spoken -> Kokoro's symbols.

Readings: pypinyin's phrase data, with our own word list for what it lacks (neutral tones, some polyphones). Words:
jieba.
Sandhi: 不, 一, third tones, 儿. Syllables the user spelled keep their tone exactly; the ones beside them follow it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import rjieba
from pypinyin import Style, lazy_pinyin
from pypinyin.constants import PINYIN_DICT

from cosyvoice_app.engines.lite import g2p_pinyin
from cosyvoice_app.engines.lite.g2p_zh_words import FULL_ER, READINGS, VARIANTS
from cosyvoice_app.text.chars import words
from cosyvoice_app.text.pinyin import split_tone
from cosyvoice_app.types import Pinyin


@dataclass(slots=True)
class Syllable:
    """One spoken syllable. `word` numbers the word it is in; `fixed` = spelled by the user, its tone is not touched."""

    surface: str
    initial: str
    final: str
    tone: int
    word: int
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Spoken:
    """A word: what was written, and its symbols."""

    surface: str
    symbols: str


_LONGEST_READING = max(len(word) for word in READINGS)
_NUMERALS = frozenset("零〇一二三四五六七八九十百千万亿点幺")
_FIRST_WORDS = frozenset(
    words("统一 唯一 同一 单一 万一 专一 合一 归一 逐一 周一 星期一 礼拜一 初一 高一 大一 其一 不一 划一")
)
_MEASURES = frozenset("个种些样天年次遍下点条只本张件位家间场段句首")


def phrase(parts: list[str | Pinyin]) -> tuple[list[Spoken], str]:
    """Words of a stretch without marks inside: runs of Han characters, and tags. Also the characters no reading is
    known for.
    """
    syllables: list[Syllable] = []
    unknown = ""
    word = 0
    for part in parts:
        if isinstance(part, Pinyin):
            letters, tone = split_tone(part.final)
            syllables.append(
                Syllable(
                    f"[{part.initial}][{part.final}]" if part.initial else f"[{part.final}]",
                    part.initial,
                    letters,
                    tone,
                    word,
                    fixed=True,
                )
            )
            word += 1
            continue
        read, lost = _read(part, word)
        unknown += lost
        syllables += read
        word = syllables[-1].word + 1 if syllables else word
    _neutral_er(syllables)
    _sandhi_bu(syllables)
    _sandhi_yi(syllables)
    _sandhi_third(syllables)
    return _spoken(syllables), unknown


def _read(run: str, first_word: int) -> tuple[list[Syllable], str]:
    run = "".join(VARIANTS.get(c, c) for c in run)
    known = "".join(c for c in run if ord(c) in PINYIN_DICT)
    unknown = "".join(c for c in run if ord(c) not in PINYIN_DICT)
    if not known:
        return [], unknown
    readings = lazy_pinyin(known, style=Style.TONE3, neutral_tone_with_five=True, v_to_u=True)
    tagged = rjieba.tag(known)
    _apply_tags(tagged, readings)
    _apply_words(known, readings, [word for word, _ in tagged])
    out: list[Syllable] = []
    at = 0
    for number, (word, _) in enumerate(tagged):
        for char in word:
            letters, tone = readings[at][:-1], int(readings[at][-1])
            initial, final = g2p_pinyin.split_syllable(letters)
            out.append(Syllable(char, initial, final, tone, first_word + number))
            at += 1
    return out, unknown


def _apply_tags(tagged: list[tuple[str, str]], readings: list[str]) -> None:
    """Structure words by their part of speech: 地 得 了 着 过 unstressed, doubled kin and verbs too."""
    at, before = 0, ""
    for word, tag in tagged:
        last = at + len(word) - 1
        if word == "得" and before[:1] in ("", "r", "n", "m", "d"):
            tag = "v"  # after a noun it is the verb: 他得了奖
        if tag in ("uv", "ud", "ul", "uz", "ug", "uj") and len(word) == 1:
            readings[at] = {"地": "de5", "得": "de5", "了": "le5", "着": "zhe5", "过": "guo5", "的": "de5"}.get(
                word, readings[at]
            )
        elif len(word) == 2 and word[0] == word[1] and tag[:1] in ("n", "v") and readings[at] == readings[last]:
            readings[last] = readings[last][:-1] + "5"
        elif len(word) >= 2 and word[-1] == "们" and tag[:1] in ("n", "r"):
            readings[last] = "men5"
        at, before = at + len(word), tag


def _apply_words(run: str, readings: list[str], cut: list[str]) -> None:
    """Our own word list, unless it would break a word of the dictionary: 都是 isn't in 首都|是.

    Words the cut only guessed (他数|了) don't count; Traditional text is full of them.
    """
    word_of = [number for number, word in enumerate(cut) for _ in word]
    at = 0
    while at < len(run):
        may_cross = at == 0 or word_of[at - 1] != word_of[at] or not rjieba.has_word(cut[word_of[at]])
        for size in range(min(_LONGEST_READING, len(run) - at), 1, -1):
            reading = READINGS.get(run[at : at + size])
            if reading is not None and (may_cross or word_of[at] == word_of[at + size - 1]):
                readings[at : at + size] = reading
                at += size
                break
        else:
            at += 1


def _neutral_er(syllables: list[Syllable]) -> None:
    """儿 after a noun only colours it (花儿); in 儿子, 女儿 and the like it is a syllable of its own."""
    for before, er in pairwise(syllables):
        if er.surface not in "儿兒" or er.fixed or before.fixed or before.surface + "儿" in FULL_ER:
            continue
        position = syllables.index(er)
        following = syllables[position + 1].surface if position + 1 < len(syllables) else ""
        if following and following in "子童女歌科媳孙":
            continue
        er.tone, er.word = 5, before.word


def _sandhi_bu(syllables: list[Syllable]) -> None:
    for i, syllable in enumerate(syllables):
        if syllable.surface != "不" or syllable.fixed or i + 1 == len(syllables):
            continue
        following = syllables[i + 1]
        inside = i and syllables[i - 1].word == syllable.word == following.word and _length(syllables, i) == 3
        if (i and syllables[i - 1].surface == following.surface) or inside:
            syllable.tone = 5
        elif following.tone == 4:
            syllable.tone = 2


def _length(syllables: list[Syllable], i: int) -> int:
    """Syllables of the word that syllable `i` is in."""
    return sum(s.word == syllables[i].word for s in syllables)


def _sandhi_yi(syllables: list[Syllable]) -> None:
    for i, syllable in enumerate(syllables):
        if syllable.surface != "一" or syllable.fixed:
            continue
        before = syllables[i - 1].surface if i else ""
        following = syllables[i + 1] if i + 1 < len(syllables) else None
        if before and following and before == following.surface and before not in _NUMERALS:
            syllable.tone = 5
        elif following is None or _counts_as_one(syllables, i, before, following):
            syllable.tone = 1
        elif following.tone == 4 or (following.tone == 5 and following.surface in "个個"):
            syllable.tone = 2
        else:
            syllable.tone = 4


def _counts_as_one(syllables: list[Syllable], i: int, before: str, following: Syllable) -> bool:
    """Digits, ordinals, and words that end in 一 keep the first tone."""
    if following.surface in "百千万亿":
        return before in ("十", "点", "第")
    if (
        (before and before in _NUMERALS)
        or before in ("第", "初", "之")
        or following.surface in "零〇一二三四五六七八九十幺月号日"
    ):
        return True
    if following.surface == "点" and i + 2 < len(syllables) and syllables[i + 2].surface in _NUMERALS:
        return True
    word = "".join(s.surface for s in syllables[: i + 1] if s.word == syllables[i].word)
    return following.word != syllables[i].word and word in _FIRST_WORDS and following.surface not in _MEASURES


def _sandhi_third(syllables: list[Syllable]) -> None:
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
        if last.tone == first.tone == 3 and not last.fixed and min(len(group), len(following)) == 1:
            last.tone = 2


def _third_in_word(group: list[Syllable]) -> None:
    if len(group) > 3:
        middle = len(group) // 2
        _third_in_word(group[:middle])
        _third_in_word(group[middle:])
        left, right = group[middle - 1], group[middle]
        if left.tone == right.tone == 3 and not left.fixed and len(group) <= 3:
            left.tone = 2
        return
    if len(group) == 3 and all(s.tone == 3 for s in group):
        if rjieba.has_word("".join(s.surface for s in group[:2])):
            _raise(group[0])
        _raise(group[1])
        return
    for syllable, following in pairwise(group):
        if syllable.tone == following.tone == 3:
            _raise(syllable)


def _raise(syllable: Syllable) -> None:
    if not syllable.fixed:
        syllable.tone = 2


def _spoken(syllables: list[Syllable]) -> list[Spoken]:
    out: list[Spoken] = []
    current = None
    for s in syllables:
        symbols = g2p_pinyin.to_symbols(s.initial, s.final, s.tone)
        if out and s.word == current:
            out[-1] = Spoken(out[-1].surface + s.surface, out[-1].symbols + symbols)
        else:
            out.append(Spoken(s.surface, symbols))
        current = s.word
    return out


HAN_RUN = re.compile(r"[\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]+")
