"""`voices`: list, add, remove, export and import saved voices."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from cosyvoice_app.cli.fields import add_engine_arguments, engine_settings, read_clip
from cosyvoice_app.cli.synth import write_file
from cosyvoice_app.console import print_json, warn
from cosyvoice_app.errors import BadInput
from cosyvoice_app.voices.library import SavedVoice, VoiceLibrary

NAME = "voices"
HELP = "saved voices: list, add, remove, export, import"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="what is saved")
    adding = actions.add_parser("add", help="save a voice")
    adding.add_argument("clip", type=Path, metavar="CLIP", help="3-15 s of speech")
    adding.add_argument("--name", required=True)
    adding.add_argument("--prompt-text", default="", help="what is said in the clip")
    removing = actions.add_parser("remove", help="delete a saved voice")
    removing.add_argument("id", metavar="ID")
    exporting = actions.add_parser("export", help="write voices to a zip")
    exporting.add_argument("zip", type=Path, metavar="FILE.zip")
    exporting.add_argument("ids", nargs="*", metavar="ID", help="which [default: all]")
    importing = actions.add_parser("import", help="add the voices of a zip")
    importing.add_argument("zip", type=Path, metavar="FILE.zip")
    for action in (listing, adding, removing, exporting, importing):
        action.add_argument("--json", action="store_true", help="print one JSON object")
        add_engine_arguments(action)


def run(options: argparse.Namespace) -> int:
    library = VoiceLibrary(engine_settings(options))
    if options.action == "list":
        _show(library.list(), options.json)
    elif options.action == "add":
        clip = read_clip(options.clip)
        for message in clip.warnings:
            warn(message)
        _show([library.add(options.name, clip, options.prompt_text)], options.json)
    elif options.action == "remove":
        library.remove(options.id)
        _say({"removed": options.id}, f"removed {options.id}", options.json)
    elif options.action == "export":
        path = write_file(options.zip, library.export(options.ids))
        _say({"path": str(path)}, str(path), options.json)
    else:
        if not options.zip.is_file():
            raise BadInput(f"There is no file {options.zip}.", param="file")
        _show(library.import_zip(options.zip.read_bytes()), options.json)
    return 0


def _show(saved: list[SavedVoice], as_json: bool) -> None:
    if as_json:
        print_json({"voices": [asdict(voice) for voice in saved]})
        return
    for voice in saved:
        print(f"{voice.id:<50} {voice.duration_s:5.1f} s  {voice.name}")


def _say(data: dict[str, str], text: str, as_json: bool) -> None:
    if as_json:
        print_json(dict(data))
    else:
        print(text)
