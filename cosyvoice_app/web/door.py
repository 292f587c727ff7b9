"""Raw fields in, a judged `SynthesisRequest` out. The page and the HTTP API come through here, so they agree."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from typing import Any, Literal

from cosyvoice_app.errors import BadInput
from cosyvoice_app.pipeline import INSTRUCT_MAX_CHARS, SPEED_MAX, SPEED_MIN, bounded
from cosyvoice_app.serving.request import Priority, SynthesisRequest
from cosyvoice_app.text.pronunciations import Pronunciations, from_request
from cosyvoice_app.types import PROMPT_TEXT_MAX_CHARS, SEED_MAX, SEED_MIN, PromptClip, Refine

PRONUNCIATIONS_MAX_CHARS = 60_000
_HALF = re.compile("[\ud800-\udfff]")
REFINES: tuple[Refine, ...] = ("off", "fast", "full")


def random_seed() -> int:
    return SEED_MIN + secrets.randbelow(SEED_MAX - SEED_MIN + 1)


def settle_seed(raw: Any) -> tuple[int, bool]:
    """(seed, was it random). None and blank text mean random; whole numbers may come as text ("42") or as 42.0.

    Anything else is refused, never replaced: a seed that isn't the one asked for would be a lie.
    """
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return random_seed(), True
    seed = _whole(raw)
    if seed is None or not SEED_MIN <= seed <= SEED_MAX:
        raise BadInput(
            f"The seed is {_shown(raw)}; it must be a whole number from {SEED_MIN} to {SEED_MAX}, or blank for a "
            "random one.",
            param="seed",
        )
    return seed, False


def settle_speed(raw: Any) -> float:
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return 1.0
    speed = _real(raw)
    if speed is None or not SPEED_MIN <= speed <= SPEED_MAX:
        raise BadInput(
            f"The speed is {_shown(raw)}; it must be a number from {SPEED_MIN:g} to {SPEED_MAX:g} (1 = as the voice "
            "speaks).",
            param="speed",
        )
    return speed


def settle_refine(raw: Any, default: Refine) -> Refine:
    if raw is None or raw == "":
        return default
    for choice in REFINES:
        if raw == choice:
            return choice
    raise BadInput(f"refine is {_shown(raw)}; allowed: {', '.join(REFINES)}.", param="refine")


def settle_pronunciations(raw: Any) -> Pronunciations:
    if isinstance(raw, str) and len(raw) > PRONUNCIATIONS_MAX_CHARS:
        raise BadInput(
            f"pronunciations has {len(raw)} characters; at most {PRONUNCIATIONS_MAX_CHARS} are allowed.",
            param="pronunciations",
        )
    return from_request(raw)


def half_of(text: str) -> str | None:
    """The first surrogate that stands alone."""
    found = _HALF.search(text)
    return found[0] if found else None


def refuse_halves(raw: Any, param: str) -> None:
    """JSON can hold half of a character above U+FFFF (`"\\ud83d"`), which can't be written to any file or page.

    Looks at text, and at words and readings of an object. Raises BadInput.
    """
    if isinstance(raw, Mapping):
        raw = "".join(part for pair in raw.items() for part in pair if isinstance(part, str))
    half = half_of(raw) if isinstance(raw, str) else None
    if half is not None:
        raise BadInput(
            f"Here stands half of a character, U+{ord(half):04X}. Send whole ones, as UTF-8 or with both halves.",
            param=param,
        )


def make_request(
    clip: PromptClip,
    text: str,
    *,
    prompt_text: str | None = None,
    instruct: str | None = None,
    seed: Any = None,
    speed: Any = None,
    refine: Any = None,
    pronunciations: Any = None,
    default_refine: str = "fast",
    stream: bool = False,
    source: Literal["page", "api"] = "api",
    client: str = "",
    priority: Priority = "interactive",
    deadline_s: float | None = None,
    request_id: str = "",
) -> SynthesisRequest:
    """Raises BadInput naming the field. The text itself is judged by `Service.submit`, which owns the front end."""
    given = {"text": text, "prompt_text": prompt_text, "instruct": instruct, "pronunciations": pronunciations}
    for param, value in given.items():
        refuse_halves(value, param)
    settled_seed, was_random = settle_seed(seed)
    return SynthesisRequest(
        clip=clip,
        text=text,
        prompt_text=bounded(prompt_text, "prompt_text", PROMPT_TEXT_MAX_CHARS),
        instruct=bounded(instruct, "instruct", INSTRUCT_MAX_CHARS),
        seed=settled_seed,
        seed_was_random=was_random,
        speed=settle_speed(speed),
        refine=settle_refine(refine, settle_refine(default_refine, "fast")),
        pronunciations=settle_pronunciations(pronunciations),
        stream=stream,
        source=source,
        client=client,
        priority=priority,
        deadline_s=deadline_s,
        request_id=request_id,
    )


def _real(raw: Any) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        return None
    try:
        number = float(raw)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(raw: Any) -> int | None:
    if isinstance(raw, str):
        digits = raw.strip()
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
    number = _real(raw)
    return int(number) if number is not None and number == int(number) else None


def _shown(raw: Any) -> str:
    text = repr(raw)
    return text if len(text) <= 40 else text[:37] + "..."
