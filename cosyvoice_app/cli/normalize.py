"""`normalize`: what the front end makes of a text, exactly as it goes to the tokenizer."""

from __future__ import annotations

import argparse

from cosyvoice_app.cli.fields import add_engine_arguments, engine_settings, plan_options, read_text
from cosyvoice_app.console import print_json, warn
from cosyvoice_app.text.frontend import DEFAULT_LIMITS, prepare
from cosyvoice_app.text.language import NATIVE_LANGUAGES
from cosyvoice_app.text.notices import unspoken

NAME = "normalize"
HELP = "show what will be spoken: the segments that go to the tokenizer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT",
                        help='"-" reads standard input; put -- before a text that begins with a hyphen. Any length '
                             "will do, unless --max-chars is given")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_arguments(parser)


def run(options: argparse.Namespace) -> int:
    settings = engine_settings(options)
    known = plan_options(settings)
    engine = known["engine"]
    front = prepare(read_text(options.text), max_chars=settings.max_chars if options.max_chars is not None else None,
                    limits=engine.split if engine else DEFAULT_LIMITS, pronunciations=known["pronunciations"],
                    languages=engine.languages if engine else NATIVE_LANGUAGES)
    warnings = (*front.warnings, *(unspoken(front.segments, engine) if engine else ()))
    if options.json:
        print_json({"segments": [segment.text for segment in front.segments], "warnings": list(warnings)})
        return 0
    for message in warnings:
        warn(message)
    for segment in front.segments:
        print(segment.text)
    return 0
