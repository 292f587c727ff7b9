"""`check-prompt`: the prompt doctor's report on a clip."""

from __future__ import annotations

import argparse
from pathlib import Path

from cosyvoice_app.audio.prompt import examine, load_prompt
from cosyvoice_app.audio.recognise import recognise_english
from cosyvoice_app.console import print_json, warn
from cosyvoice_app.errors import BadInput

NAME = "check-prompt"
HELP = "say whether a clip can be used, and what was measured"

_UNFIT = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--words", action="store_true", help="also write down the words of an English clip; needs "
                        "`pip install -r requirements-recognise.txt` and the asset whisper-tiny-en")
    parser.add_argument("--cache", type=Path, default=None, metavar="DIR", help="where model files are kept "
                        "[default: the platform's cache directory]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when the clip can be used, 2 when it can't."""
    if not options.file.is_file():
        raise BadInput(f"There is no clip at {options.file}.", param="prompt")
    report = examine(options.file, name_hint=options.file.name)
    if options.words and report["ok"]:
        clip = load_prompt(options.file, name_hint=options.file.name)
        report["words"] = recognise_english(clip.samples, clip.rate_hz, cache=options.cache)
    if options.json:
        print_json(report)
        return 0 if report["ok"] else _UNFIT
    for message in report["warnings"]:
        warn(message)
    if not report["ok"]:
        raise BadInput(report["error"], param="prompt")
    print(f"{options.file.name}: usable, {report['duration_s']:.2f} s, {report['rate_hz']} Hz, {report['container']}, "
          f"level {report['rms_dbfs']:.0f} dBFS, {report['speech_s']:.1f} s of speech, "
          f"noise {report['snr_db']:.0f} dB below it")
    if options.words:
        print(f"words: {report['words']}" if report["words"] else "words: no English was heard")
    return 0
