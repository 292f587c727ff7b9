"""What an engine will not speak as written: sentences in a language it doesn't have, events it can't act out.

A script decides: hangul is Korean, more than one kana is Japanese. Kanji among kana are never read as Chinese.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cosyvoice_app.text.chars import HANGUL, KANA
from cosyvoice_app.text.split import sentences
from cosyvoice_app.text.tags import write
from cosyvoice_app.types import Capabilities, Event, Piece, Segment

_KANA, _HANGUL = re.compile(f"[{KANA}]"), re.compile(f"[{HANGUL}]")
_NAMES = {"ja": "Japanese", "ko": "Korean"}


def unspoken(segments: Iterable[Segment], engine: Capabilities) -> tuple[str, ...]:
    """A warning for each sentence and each kind of event that the engine leaves out, quoting it."""
    out: list[str] = []
    for segment in segments:
        for sentence in sentences(list(segment.pieces)):
            out.append(missing_language(sentence, engine.languages))
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


def _language(text: str) -> str:
    """One の in a Chinese sentence doesn't make it Japanese."""
    if _HANGUL.search(text):
        return "ko"
    kana = _KANA.findall(text)
    return "ja" if len(kana) > 1 or (kana and kana[0] not in "のノ") else ""
