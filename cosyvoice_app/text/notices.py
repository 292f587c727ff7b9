"""What an engine will not speak as written: sentences in a language it doesn't have, events it can't act out.

A script decides: hangul is Korean, more than one kana is Japanese. Kanji among kana are never read as Chinese.
An engine of more than Chinese and English takes any letters, so words in a script of none of its languages are told of
here; one of these two alone tells itself what it left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cosyvoice_app.text.chars import CYRILLIC, HAN, HANGUL, KANA, LATIN
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.text.split import sentences
from cosyvoice_app.text.tags import write
from cosyvoice_app.types import Capabilities, Event, Piece, Segment, Text

_KANA, _HANGUL = re.compile(f"[{KANA}]"), re.compile(f"[{HANGUL}]")
_NAMES = {"ja": "Japanese", "ko": "Korean"}
_SCRIPTS = {"zh": HAN, "ja": HAN + KANA, "ko": HAN + HANGUL, "ru": CYRILLIC}
"""Of each language that isn't written in Latin letters."""
_SIGNS = r"\W\d_\u3005\u3006\u30fc\uff70"
"""No letters, though some count as such: signs that repeat or lengthen what stands before."""


def unspoken(segments: Iterable[Segment], engine: Capabilities) -> tuple[str, ...]:
    """A warning for each sentence and each kind of event that the engine leaves out, quoting it."""
    out: list[str] = []
    for segment in segments:
        for sentence in sentences(list(segment.pieces)):
            out.append(missing_language(sentence, engine.languages) or strange_script(sentence, engine.languages))
        out.extend(
            missing_event(piece)
            for piece in segment.pieces
            if isinstance(piece, Event) and piece.name not in engine.events
        )
    return tuple(dict.fromkeys(warning for warning in out if warning))


def missing_event(event: Event) -> str:
    return f'This engine has no "{write(event)}"; it was left out.'


def missing_language(sentence: Sequence[Piece], languages: Sequence[str]) -> str:
    """Why an engine of `languages` doesn't read a sentence, or nothing."""
    text = "".join(write(piece) for piece in sentence).strip()
    language = _language(text)
    if not language or language in languages:
        return ""
    return f'{_NAMES[language]} is not supported by this engine: "{text}" was not spoken.'


def strange_script(sentence: Sequence[Piece], languages: Sequence[str]) -> str:
    """A warning for words in letters that an engine of `languages` may not know, or nothing. A lone letter is a sign
    (ℵ); a word has more.
    """
    if set(languages) <= set(NATIVE_LANGUAGES):
        return ""
    known = LATIN + "".join(_SCRIPTS.get(language, "") for language in languages)
    strange = re.compile(f"[^{_SIGNS}{known}]+")
    runs = [run for piece in sentence if isinstance(piece, Text) for run in strange.findall(piece.text)]
    if not any(sum(map(str.isalpha, run)) > 1 for run in runs):
        return ""
    text = "".join(write(piece) for piece in sentence).strip()
    return f'"{text}" has letters that none of this engine\'s languages is written in; it may be misread.'


def _language(text: str) -> str:
    """One の in a Chinese sentence doesn't make it Japanese."""
    if _HANGUL.search(text):
        return "ko"
    kana = _KANA.findall(text)
    return "ja" if len(kana) > 1 or (kana and kana[0] not in "のノ") else ""
