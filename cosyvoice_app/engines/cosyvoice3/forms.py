"""The forms in which the language model takes a request: the one place where they are built.

    zero-shot      [system sentence, end of prompt, the clip's words] [text]      and the clip's speech tokens
    cross-lingual  [] [system sentence, end of prompt, text]                      no speech tokens
    instruct       [system sentence, instruction, end of prompt] [text]           no speech tokens, none of the words

Source: cosyvoice/cli/frontend.py of the official code, and docs/cosyvoice3.md. The end-of-prompt token is put here as
an id; nothing a person types can become one, because typed text is encoded as plain text. The clip's words never stand
beside an instruction: a model given both reads the instruction out, or the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cosyvoice_app.engines.cosyvoice3.config import SamplingConfig
from cosyvoice_app.engines.cosyvoice3.tokenizer import TextTokenizer
from cosyvoice_app.text.tags import parse
from cosyvoice_app.types import Piece, Text

SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True, slots=True)
class Form:
    """`ids` in the order the model takes them; `target` of them, the last ones, are to be spoken."""

    ids: tuple[int, ...]
    target: int
    uses_speech: bool

    def token_limits(self, sampling: SamplingConfig) -> tuple[int, int]:
        """(fewest, most) speech tokens. Of the spoken text alone: upstream counts the system sentence with it in the
        cross-lingual form, where its lower bound has no effect; ours has, and would stretch short texts."""
        return int(sampling.min_ratio * self.target), max(1, int(sampling.max_ratio * self.target))


def build(tokenizer: TextTokenizer, pieces: Sequence[Piece], *, transcript: str = "", instruction: str = "") -> Form:
    """The form that fits what is given. `transcript` may hold pronunciation tags; `instruction` is plain text."""
    target = tokenizer.encode_pieces(pieces)
    end = (tokenizer.end_of_prompt,)
    if instruction:
        return Form((*_plain(tokenizer, f"{SYSTEM} {instruction}"), *end, *target), len(target), uses_speech=False)
    words = tokenizer.encode_pieces(_pieces(transcript)) if transcript else ()
    return Form((*_plain(tokenizer, SYSTEM), *end, *words, *target), len(target), uses_speech=bool(words))


def _plain(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    return tokenizer.encode_pieces((Text(text, "en"),))


def _pieces(text: str) -> list[Piece]:
    return [Text(part, "en") if isinstance(part, str) else part for part in parse(text).parts]
