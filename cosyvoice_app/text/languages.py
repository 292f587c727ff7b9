"""Which of an engine's languages each sentence of a text is in. Mandarin and English are one answer, NATIVE: they are
told apart later, number by number (`text/language.py`), since they mix within sentences.

Scripts tell most: hangul is Korean, kana Japanese, Cyrillic is read as Russian. In Latin letters the commonest words
tell; English is the answer unless there is clear evidence of another. A sentence that tells nothing (a name, a number)
follows its neighbours. Words of another script inside a Chinese or English sentence change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cosyvoice_app.text.chars import CYRILLIC, HAN, HANGUL, KANA, LATIN, has_han, has_latin
from cosyvoice_app.text.cuts import CLOSERS
from cosyvoice_app.text.function_words import ENGLISH, LATIN_LANGUAGES, LETTERS, STRONG, WEAK
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.text.tags import Raw
from cosyvoice_app.types import Pause

NATIVE = "zh/en"
"""Chinese, English, or both: for the normaliser that knows both."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring parts of a text in one language: a code, or NATIVE."""

    language: str
    parts: tuple[Raw, ...]


_TAG = "\ufffc"
_END = re.compile(
    rf"(?:[。！？!?；;｡]|…+|\.{{2,}}|\.(?=[\s{CLOSERS}{_TAG}{HAN}{KANA}{HANGUL}]|$))+[{CLOSERS}]*(?!\s*[-–—])\s*|\n\s*"
)
_SCRIPTS = {
    "ko": re.compile(f"[{HANGUL}]+"),
    "ja": re.compile(rf"[{KANA}\u30fc]+"),
    "ru": re.compile(f"[{CYRILLIC}]{{2,}}|(?<![{CYRILLIC}])[{CYRILLIC}](?![{CYRILLIC}])"),
}
_HAN = re.compile(f"[{HAN}]")
_HIRAGANA = re.compile(r"[\u3041-\u3096]")
_WORD = re.compile(rf"(?<!\w)[{LATIN}]+(?![{LATIN}])(?!-\d)(?:['’](?:(?:s|t|re|ve|ll|m|d)\b)?)?")
"""What an apostrophe cuts off is a word: l', c'. English keeps its own: it's, don't."""
_SMALL = re.compile(rf"(?<![{LATIN}])[a-z]{{2,}}(?![{LATIN}])")
_CHINESE_ONLY = frozenset("你她们们這这很吗嗎呢吧啊么麼说說让讓给谁哪怎您它")
"""Common in Chinese and in no modern Japanese sentence."""
_CHINESE_ALONE = frozenset("我是个也吃喝他那把")
"""Tell Chinese where there is no kana: Japanese has them, hardly ever in a sentence of kanji alone."""
_JAPANESE_TOO = frozenset("𠮟塡剝頰")
"""In use in Japan, though beyond the old Japanese character set."""
_MOST_KANJI_ALONE = 12


def stretches(parts: tuple[Raw, ...], languages: Sequence[str]) -> list[Stretch]:
    """`parts` cut between sentences wherever the language changes; nothing is lost. Text in a language that is not
    among `languages` is NATIVE, as for an engine that has none but Chinese and English.
    """
    others = [language for language in languages if language not in NATIVE_LANGUAGES]
    if not others:
        return [Stretch(NATIVE, parts)]
    text = "".join(map(_seen, parts))
    ends = [match.end() for match in _END.finditer(text)]
    sentences = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    found = _settle([(sentence, verdict(sentence)) for sentence in sentences])
    named = [language if language in others else NATIVE for language in found]
    if all(language == NATIVE for language in named):
        return [Stretch(NATIVE, parts)]
    out: list[Stretch] = []
    for language, sentence in zip(named, _cut(parts, ends), strict=True):
        if out and language == NATIVE and out[-1].language == NATIVE:
            out[-1] = Stretch(NATIVE, _join(out[-1].parts, sentence))
        elif sentence:
            out.append(Stretch(language, sentence))
    return out


def verdict(sentence: str) -> str | None:
    """The language that a sentence shows by itself, NATIVE among them; None when it shows none."""
    english = len({word for word in _latin_words(sentence) if word in ENGLISH})
    latin, points = _latin(sentence)
    script, runs = _script(sentence)
    if script is not None:
        if _HAN.search(sentence) or max(2 * english, points) <= 2 * runs:
            return script
        return latin if points > 2 * english else NATIVE
    if _HAN.search(sentence):
        return NATIVE if _is_chinese(sentence) or not _CHINESE_ALONE.isdisjoint(sentence) else None
    if points > 2 * english:
        return latin
    return NATIVE if english else None


def _settle(told: list[tuple[str, str | None]]) -> list[str]:
    """A language for every sentence: its own, else by its neighbours."""
    chinese = any(language == NATIVE and has_han(sentence) for sentence, language in told)
    first = next((language for _, language in told if language is not None), NATIVE)
    out: list[str] = []
    for sentence, language in told:
        if language is None:
            language = _follow(sentence, out[-1] if out else first, chinese)
        out.append(language)
    return out


def _follow(sentence: str, neighbour: str, chinese: bool) -> str:
    if has_han(sentence):
        # Kanji alone: a title or a short answer of a Japanese text, unless the text has Chinese sentences.
        alone = len(sentence.strip()) <= _MOST_KANJI_ALONE and not chinese and not _SMALL.search(sentence)
        return neighbour if alone and neighbour == "ja" else NATIVE
    if neighbour in LATIN_LANGUAGES or not _SMALL.search(sentence):
        return neighbour
    return NATIVE


def _script(sentence: str) -> tuple[str | None, int]:
    """The language of the script that most of a sentence is in, and how many words of it there are; None for Latin
    and Han.
    """
    runs = {language: script.findall(sentence) for language, script in _SCRIPTS.items()}
    chars = {language: sum(map(len, found)) for language, found in runs.items()}
    most = max(chars, key=chars.__getitem__)
    if not chars[most]:
        return None, 0
    han = len(_HAN.findall(sentence))
    if most == "ja":
        lone = chars[most] == 1 and runs["ja"][0] in "のノー"
        names_only = han > chars[most] and not _HIRAGANA.search(sentence)
        if lone or names_only or (han and _is_chinese(sentence)):
            return None, 0
    elif han > chars[most]:
        return None, 0
    return most, len(runs[most])


def _is_chinese(sentence: str) -> bool:
    """Has Han that Japanese has not."""
    return any(_not_japanese(char) for char in _HAN.findall(sentence))


def _not_japanese(char: str) -> bool:
    if char in _CHINESE_ONLY:
        return True
    try:
        char.encode("cp932")
    except UnicodeEncodeError:
        return char not in _JAPANESE_TOO
    return False


def _latin(sentence: str) -> tuple[str, int]:
    """The likeliest of German, Spanish, French and Italian, and its points; no points without clear evidence."""
    if not has_latin(sentence):
        return LATIN_LANGUAGES[0], 0
    words = set(_latin_words(sentence))
    letters = {char for word in _WORD.findall(sentence) if word.islower() for char in word}
    best, most = LATIN_LANGUAGES[0], 0
    for language in LATIN_LANGUAGES:
        strong, weak = len(words & STRONG[language]), len(words & WEAK[language] - STRONG[language])
        hint = bool(letters & LETTERS[language])
        inverted = language == "es" and bool(re.search(r"[¿¡]", sentence))
        points = 2 * strong + weak + hint + 2 * inverted
        if points > most and (strong or inverted or weak + hint > 2 or (weak and hint)):
            best, most = language, points
    return best, most


def _latin_words(sentence: str) -> list[str]:
    """Words in small letters. One in capitals (EST) is initials."""
    found = [word.replace("’", "'") for word in _WORD.findall(sentence)]
    return [word.lower() for word in found if len(word.rstrip("'")) == 1 or not word.isupper()]


def _seen(part: Raw) -> str:
    """A part as it is seen by the rules: text as it is, anything else one character, a pause the end of a line."""
    if isinstance(part, str):
        return part
    return "\n" if isinstance(part, Pause) else _TAG


def _cut(parts: tuple[Raw, ...], ends: list[int]) -> list[tuple[Raw, ...]]:
    """`parts` cut at places of their joined text, ascending. One part more than there are places; some may be empty."""
    out: list[list[Raw]] = [[]]
    places = iter([*ends, -1])
    place, start = next(places), 0
    for part in parts:
        done, length = 0, len(_seen(part))
        while start + done < place <= start + length:
            out[-1].append(part[done : place - start] if isinstance(part, str) else part)
            out.append([])
            done, place = place - start, next(places)
        if done < length:
            out[-1].append(part[done:] if isinstance(part, str) else part)
        start += length
    return [tuple(part) for part in out]


def _join(left: tuple[Raw, ...], right: tuple[Raw, ...]) -> tuple[Raw, ...]:
    """Text that was cut, whole again."""
    if left and right and isinstance(left[-1], str) and isinstance(right[0], str):
        return (*left[:-1], left[-1] + right[0], *right[1:])
    return left + right
