"""From pieces to the stretches that an engine speaks in one go: whole sentences where they fit, then clauses, then
words. Line breaks and asked-for pauses end a stretch, and every stretch has the pause that its last mark calls for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cosyvoice_app.text import cuts
from cosyvoice_app.text.chars import has_speech
from cosyvoice_app.text.cuts import has_content, merge, sentences
from cosyvoice_app.text.sizes import HAN_SOUNDS, Size, size_in
from cosyvoice_app.text.tags import MAX_PAUSE_MS
from cosyvoice_app.types import Pause, Piece, SplitLimits, Text

__all__ = ["Stretch", "sentences", "split"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Pieces spoken in one go, and the pause after them."""

    pieces: tuple[Piece, ...]
    pause_after_ms: int


PAUSE_CLAUSE_MS, PAUSE_SENTENCE_MS, PAUSE_LINE_MS, PAUSE_PARAGRAPH_MS = 80, 200, 350, 600


def split(pieces: tuple[Piece, ...], limits: SplitLimits) -> list[Stretch]:
    """Cut `pieces` into stretches within `limits`. Joined they are the whole, line breaks and pauses apart."""
    size = size_in(limits)
    out: list[Stretch] = []
    for block, pause_ms in _blocks(pieces):
        fitting = [part for sentence in sentences(block) for part in _fit(sentence, limits, size)]
        packed = _pack(fitting, limits, size)
        for i, stretch in enumerate(packed):
            last = i == len(packed) - 1
            out.append(Stretch(_trim(stretch), pause_ms if last else _pause_after(stretch)))
    return out


def _trim(pieces: list[Piece]) -> tuple[Piece, ...]:
    """No space at either end."""
    texts = [p.text if isinstance(p, Text) else None for p in pieces]
    for order, strip in ((range(len(pieces)), str.lstrip), (range(len(pieces) - 1, -1, -1), str.rstrip)):
        for i in order:
            text = texts[i]
            if text is None:
                break
            texts[i] = strip(text)
            if texts[i]:
                break
    return tuple(
        Text(t, p.language) if isinstance(p, Text) and t is not None else p
        for p, t in zip(pieces, texts, strict=True)
        if t != ""
    )


def _blocks(pieces: tuple[Piece, ...]) -> list[tuple[list[Piece], int]]:
    """Pieces between line breaks and asked-for pauses, each with the pause after it."""
    blocks: list[tuple[list[Piece], int]] = []
    current: list[Piece] = []
    spoken = False  # whether `current` holds anything to say

    def close(ms: int) -> None:
        nonlocal current, spoken
        if spoken:
            blocks.append((current, ms))
            current, spoken = [], False
        elif blocks:
            blocks[-1] = (blocks[-1][0], max(blocks[-1][1], ms))

    asked_ms = 0
    for piece in pieces:
        if isinstance(piece, Pause):
            if spoken or not blocks:
                close(piece.ms)
                asked_ms = piece.ms
            else:
                asked_ms = min(asked_ms + piece.ms, MAX_PAUSE_MS)
                blocks[-1] = (blocks[-1][0], asked_ms)
            continue
        if not isinstance(piece, Text):
            current.append(piece)
            spoken = spoken or has_content([piece])
            asked_ms = 0
            continue
        for text in re.split(r"(\n+)", piece.text):
            if text.startswith("\n"):
                close(PAUSE_LINE_MS if len(text) == 1 else PAUSE_PARAGRAPH_MS)
            elif text:
                current.append(Text(text, piece.language))
                spoken = spoken or has_speech(text)
                asked_ms = asked_ms if text.isspace() else 0
    if spoken:
        blocks.append((current, 0))
    elif current and blocks:
        blocks[-1] = (blocks[-1][0] + current, blocks[-1][1])
    return blocks


def _fit(sentence: list[Piece], limits: SplitLimits, size: Size) -> list[list[Piece]]:
    """One sentence as parts of at most `most`: cut at clause marks, else between words, joined to even lengths."""
    if size(sentence) <= limits.most:
        return [sentence]
    parts = [part for clause in cuts.clauses(sentence) for part in _words_fit(clause, limits, size)]
    return _even(parts, limits, size)


def _words_fit(clause: list[Piece], limits: SplitLimits, size: Size) -> list[list[Piece]]:
    if size(clause) <= limits.most:
        return [clause]
    atoms: list[list[Piece]] = []
    for word in cuts.words(clause):
        if size(word) <= limits.most:
            atoms.append(word)
            continue
        for part in cuts.words(word, keep_quotes=False):
            fits = size(part) <= limits.most
            atoms.extend([part] if fits else cuts.letters(part, max(1, limits.most // HAN_SOUNDS - 1)))
    return _even(atoms, limits, size)


def _even(parts: list[list[Piece]], limits: SplitLimits, size: Size) -> list[list[Piece]]:
    """Join neighbours into stretches of about equal size, none above `most` unless a part alone is."""
    total = sum(map(size, parts))
    target = total / max(1, -(-total // limits.most))
    out: list[list[Piece]] = [[]]
    filled = 0
    for part in parts:
        more = size(part)
        if out[-1] and (filled + more > limits.most or filled >= target):
            out.append([])
            filled = 0
        out[-1] = out[-1] + part
        filled += more
    return [merge(part) for part in out]


def _pack(parts: list[list[Piece]], limits: SplitLimits, size: Size) -> list[list[Piece]]:
    """Join what is too short to be spoken well alone with what follows, or at the end with what precedes."""
    out: list[list[Piece]] = []
    filled = 0
    for part in parts:
        more = size(part)
        short = min(filled, more) < limits.least or filled < limits.fill
        if out and short and filled + more <= limits.most:
            out[-1] = out[-1] + part
            filled += more
        else:
            out.append(part)
            filled = more
    return [merge(part) for part in out]


def _pause_after(pieces: list[Piece]) -> int:
    text = next((p.text for p in reversed(pieces) if isinstance(p, Text)), "").rstrip().rstrip(cuts.CLOSERS)
    return PAUSE_SENTENCE_MS if text[-1:] in tuple("。！？!?.…；;") else PAUSE_CLAUSE_MS
