"""Options and fields that `synth`, `batch` and `bench` share, read one way."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path
from typing import TypedDict

from cosyvoice_app import settings as settings_module
from cosyvoice_app.audio.prompt import load_prompt
from cosyvoice_app.engines import registry
from cosyvoice_app.errors import BadInput
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.pronunciation_file import PronunciationFile
from cosyvoice_app.text.pronunciations import Pronunciations
from cosyvoice_app.types import SEED_MAX, SEED_MIN, Capabilities, PromptClip, Refine


class PlanOptions(TypedDict):
    max_chars: int
    engine: Capabilities | None
    pronunciations: Pronunciations
    refine: Refine


REFINES: tuple[Refine, ...] = ("off", "fast", "full")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    settings_module.add_arguments(parser, ("engine",))


def engine_settings(options: argparse.Namespace) -> Settings:
    return settings_module.resolve(options)


def plan_options(settings: Settings) -> PlanOptions:
    """What `plan` needs to know of the engine and of the user's own word list. Raises ConfigError."""
    entries, _ = PronunciationFile(settings.pronunciations).current()
    return {"max_chars": settings.max_chars, "engine": registry.capabilities(settings), "pronunciations": entries,
            "refine": refine_of(settings)}


def refine_of(settings: Settings) -> Refine:
    return next(choice for choice in REFINES if choice == settings.refine)


def read_seed(raw: str | None) -> int:
    """A seed; blank means a random one. Raises BadInput."""
    text = (raw or "").strip()
    if not text:
        return SEED_MIN + secrets.randbelow(SEED_MAX - SEED_MIN + 1)
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or not SEED_MIN <= int(text) <= SEED_MAX:
        raise BadInput(f"The seed is {text[:40]!r}; it must be a whole number from {SEED_MIN} to {SEED_MAX}, or blank "
                       "for a random one.", param="seed")
    return int(text)


def read_speed(raw: str | None) -> float:
    """A speed factor; blank means 1. Raises BadInput for what is no number; `plan` judges the range."""
    text = (raw or "").strip()
    try:
        return float(text) if text else 1.0
    except ValueError:
        raise BadInput(f"The speed is {text[:40]!r}; it must be a number such as 0.8 or 1.2.", param="speed") from None


def read_text(raw: str) -> str:
    """The text itself; "-" reads standard input as UTF-8."""
    return sys.stdin.buffer.read().decode("utf-8-sig", errors="replace") if raw == "-" else raw


def read_clip(path: Path) -> PromptClip:
    """Raises BadInput when there is no such file, PromptError when it can't be used."""
    if not os.path.isfile(path):  # unlike Path.is_file, quiet about names no file system would take
        raise BadInput(f"There is no clip at {path}.", param="prompt")
    return load_prompt(path, name_hint=path.name)
