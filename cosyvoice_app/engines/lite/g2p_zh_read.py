"""The dictionary reading of every character of a run of Simplified text. In order of authority:

1. our own words (`g2p_zh_words.py`) and the rules of context (`g2p_zh_context.py`), the longer match first;
2. structure words and doubled words by their part of speech;
3. words and phrases of pypinyin's data;
4. for characters these leave open, the network (`polyphones.py`) where it is sure enough;
5. the usual reading of the character.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import rjieba
from pypinyin import Style, lazy_pinyin
from pypinyin.constants import PHRASES_DICT
from pypinyin.seg.mmseg import seg

from cosyvoice_app.engines.lite.g2p_zh_context import ALONE, matches
from cosyvoice_app.engines.lite.g2p_zh_words import READINGS
from cosyvoice_app.engines.lite.polyphones import Polyphones

SURE = 0.7
"""How sure the network must be; chosen on the CPP development set and the sentences for tuning."""
_LONGEST_WORD = max(map(len, READINGS))
_UNSTRESSED = {"了": "le5", "着": "zhe5", "的": "de5", "过": "guo5"}
_KIN = frozenset("爸妈爷奶哥姐弟妹叔伯公婆舅姑姨婶嫂宝娃太姥星猩蛐蝈饽")
"""Doubled, the second is unstressed; unlike 人人, 天天."""
SETTLED_BY_US = 90
"""Strength of a reading from our own words and rules; below it, the length of the phrase it is from."""

Tagged = list[tuple[str, str]]


def readings(
    run: str, polyphones: Polyphones | None = None, before: str = "", after: str = ""
) -> tuple[list[str], list[str]]:
    """A reading for each character of `run` (`hao4`, `lü4`, 5 = neutral), and the words `run` was cut into.

    `before` and `after` are the rest of the sentence; only the network looks at them.
    """
    tagged: Tagged = rjieba.tag(run)
    words = [word for word, _ in tagged]
    word_of = [number for number, word in enumerate(words) for _ in word]
    read, strength = _phrases(run, words)
    _structure_words(tagged, read, strength)
    _company(run, read, strength, words, word_of)
    _particles(run, words, word_of, read, strength)
    alone = [len(words[n]) == 1 or not rjieba.has_word(words[n]) for n in word_of]
    _open_characters(run, read, strength, alone, polyphones, before, after)
    return read, words


def _phrases(run: str, words: list[str]) -> tuple[list[str], list[int]]:
    """Readings by pypinyin's longest phrases, and the length of the phrase each comes from (1: the character's own).

    A pair that cuts a word of the dictionary in two is no word here: 看门 isn't in 看|门口.
    """
    inside = {at for at, word in _placed(words) if rjieba.has_word(word) for at in range(at + 1, at + len(word))}
    cut: list[str] = []
    for at, word in _placed(list(seg.cut(run))):
        crosses = len(word) == 2 and (at in inside) != (at + 2 in inside)
        cut += list(word) if crosses and at + 1 not in inside else [word]
    read = lazy_pinyin(cut, style=Style.TONE3, neutral_tone_with_five=True, v_to_u=True)
    strength = [len(word) if word in PHRASES_DICT else 1 for word in cut for _ in word]
    return read, strength


def _placed(words: list[str]) -> Iterator[tuple[int, str]]:
    """Each word with the place of its first character."""
    at = 0
    for word in words:
        yield at, word
        at += len(word)


def _structure_words(tagged: Tagged, read: list[str], strength: list[int]) -> None:
    """了 着 的 过 by their part of speech, 们 after persons, and the second half of doubled kin and verbs."""
    at = 0
    for word, tag in tagged:
        last = at + len(word) - 1
        if word in _UNSTRESSED and tag[:1] == "u" and at and strength[at] < 3:
            read[at], strength[at] = _UNSTRESSED[word], 2
        elif len(word) == 2 and word[0] == word[1] and word[0] in _KIN and read[at] == read[last]:
            read[last], strength[at], strength[last] = read[last][:-1] + "5", 2, 2
        elif len(word) >= 2 and word[-1] == "们" and tag[:1] in ("n", "r"):
            read[last] = "men5"
        at += len(word)
    words = [word for word, _ in tagged]
    _doubled_verbs("".join(words), {at for at, _ in _placed(words)}, read, strength)


def _doubled_verbs(run: str, starts: set[int], read: list[str], strength: list[int]) -> None:
    """看看, 说说, 试试看: a little of it, the second unstressed. Not in 说说笑笑, nor over words: 联合会会员."""
    for i, (first, second) in enumerate(pairwise(run)):
        if i not in starts or (i + 1 in starts and i + 2 not in starts and i + 2 < len(run)):
            continue
        fourfold = run[i + 2 : i + 3] == run[i + 3 : i + 4] != "" or (i > 1 and run[i - 2] == run[i - 1])
        if first != second or fourfold or read[i] != read[i + 1] or rjieba.tag(first)[0][1][:1] != "v":
            continue
        read[i + 1] = read[i + 1][:-1] + "5"
        strength[i] = strength[i + 1] = max(2, strength[i])


def _company(run: str, read: list[str], strength: list[int], words: list[str], word_of: list[int]) -> None:
    """Our own words and the rules of context, unless they would break a word of the dictionary: 都是 isn't in 首都|是.

    Words the cut only guessed don't count. The longest says; of equals, a word before a rule.
    """
    found: list[tuple[int, int, int, tuple[str, ...]]] = []  # length, start, place, readings
    for start in range(len(run)):
        for size in range(min(_LONGEST_WORD, len(run) - start), 1, -1):
            own = READINGS.get(run[start : start + size])
            if own is not None:
                found.append((size, start, start, own))
    found += [(m.length, m.start, m.place, (m.reading,)) for m in matches(run)]
    found.reverse()
    # The last written stays: the longest, and of equals the one found first, so words before rules.
    for size, start, place, said in sorted(found, key=lambda f: f[0]):
        if _breaks_a_word(place, start, start + size, words, word_of):
            continue
        for i, reading in enumerate(said, place):
            # A longer phrase of the data knows more than a short rule: 长年累月.
            only_unstressed = reading[:-1] == read[i][:-1] and reading[-1] == "5"
            if only_unstressed or strength[i] <= max(size, 2) or strength[i] == SETTLED_BY_US:
                read[i], strength[i] = reading, SETTLED_BY_US


def _breaks_a_word(place: int, start: int, end: int, words: list[str], word_of: list[int]) -> bool:
    """Whether the character at `place` is in a word of the dictionary that begins before `start`.

    A longer match that lies within the word is right: 起来 in 站起来.
    """
    if start == 0 or word_of[start - 1] != word_of[place] or not rjieba.has_word(words[word_of[place]]):
        return False
    return end - start == 1 or word_of[end - 1] != word_of[place]


def _particles(run: str, words: list[str], word_of: list[int], read: list[str], strength: list[int]) -> None:
    """得 and 地 where they aren't part of a word of the dictionary, by the words on both sides."""
    for place, char in enumerate(run):
        word = words[word_of[place]]
        if char not in "得地" or strength[place] >= SETTLED_BY_US:
            continue
        complement = char == "得" and word[1:] == "得" and strength[place] == 1  # the cut has 刮得, 装得 as words
        if len(word) > 1 and rjieba.has_word(word) and not complement:
            continue
        # Cut again on either side: the first cut likes to glue the particle to a neighbour (地笑).
        before = (rjieba.tag(run[max(0, place - _NEAR) : place]) or [("", "")])[-1]
        if len(before[0]) > 1 and not rjieba.has_word(before[0]):
            before = rjieba.tag(before[0][-1])[0]
        after = (rjieba.tag(run[place + 1 : place + 1 + _NEAR]) or [("", "")])[0]
        read[place] = _de(before, after) if char == "得" else _di(before, after)
        strength[place] = SETTLED_BY_US


_NEAR = 12
"""Characters either side that decide about a particle; the whole of a long run would make its cost grow squared."""
_COMPLEMENT_VERBS = frozenset("下说写唱跑走吃长做打玩看听学睡笑哭气忙累热冷高变来去穿过活干讲跳飞开住想用喝读画急冻")
_GOTTEN = frozenset("奖病癌炎症分票名军银金")
_ON_LAND = frozenset("上下里面方铁图球板址区点毯震理狱道势位形带段块皮主")


def _de(before: tuple[str, str], after: tuple[str, str]) -> str:
    """得 between two tagged words: after what is done or is so, the complement; else "must" or "get"."""
    word, tag = before
    if after[0][:1] in ("了", "过") or after[0][:1] in _GOTTEN or (after[1][:1] == "n" and after[0][-1] in _GOTTEN):
        return "de2"
    if word[-1:] in _COMPLEMENT_VERBS or tag[:1] in ("v", "a", "z", "i", "b"):
        return "de5"
    if after[1][:1] == "m":
        return "dei3" if tag[:1] in ("d", "c", "") else "de2"
    return "dei3" if after[0] else "de5"


def _di(before: tuple[str, str], after: tuple[str, str]) -> str:
    """地 between two tagged words: earth after a measure or what is done to it, and at the end; else the adverb's."""
    word, tag = before
    if not word or not after[0] or tag[:1] in ("m", "q", "r", "p") or (tag[:1] == "v" and len(word) == 1):
        return "di4"
    return "di4" if after[0][0] in _ON_LAND else "de5"


def _open_characters(
    run: str,
    read: list[str],
    strength: list[int],
    alone: list[bool],
    polyphones: Polyphones | None,
    before: str,
    after: str,
) -> None:
    """Characters that no word, phrase or rule has read. `alone`: isn't part of a word of the dictionary."""
    places = [i for i in range(len(run)) if strength[i] == 1]
    for i in places:
        # In a word that the phrases lack, the data's own usual reading is right: they list the exceptions.
        if alone[i]:
            read[i] = ALONE.get(run[i], read[i])
    if polyphones is None:
        return
    said = polyphones.read(before + run + after, [len(before) + i for i in places if run[i] not in ALONE])
    for i in places:
        reading, sure = said.get(len(before) + i, ("", 0.0))
        if sure >= SURE:
            read[i] = reading
