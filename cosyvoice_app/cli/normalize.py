"""`normalize`: what the front end makes of a text, exactly as it goes to the tokenizer."""

from __future__ import annotations

import argparse

from cosyvoice_app.cli.fields import read_text
from cosyvoice_app.console import print_json, warn
from cosyvoice_app.text.frontend import prepare

NAME = "normalize"
HELP = "show what will be spoken: the segments that go to the tokenizer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help='"-" reads standard input')
    parser.add_argument("--max-chars", type=int, default=None,
                        help="refuse longer texts, as the server does [default: no limit]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    front = prepare(read_text(options.text), max_chars=options.max_chars)
    if options.json:
        print_json({"segments": [segment.text for segment in front.segments], "warnings": list(front.warnings)})
        return 0
    for message in front.warnings:
        warn(message)
    for segment in front.segments:
        print(segment.text)
    return 0
