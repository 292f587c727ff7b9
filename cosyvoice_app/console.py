"""Printing that can't fail: a console that lacks a character must not cost the work."""

from __future__ import annotations

import io
import json
import sys
from typing import Any


def make_safe() -> None:
    """Let stdout and stderr escape what their encoding lacks (a Chinese Windows console has no emoji)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(data: dict[str, Any], *, indent: int | None = 2) -> None:
    """JSON that any reader gets back whole: plain ASCII where the console is not UTF-8."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    print(json.dumps(data, ensure_ascii=encoding != "utf8", indent=indent), flush=True)


def warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)


class ProgressLine:
    """One line on a terminal, rewritten; nothing at all where stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            text = text[:100]
            print(f"\r{text:<{self._shown}}", end="", file=sys.stderr, flush=True)
            self._shown = len(text)

    def clear(self) -> None:
        if self._shown:
            print(f"\r{' ' * self._shown}\r", end="", file=sys.stderr, flush=True)
            self._shown = 0
