"""`keys`: add, list and remove the API keys of a server. Only hashes are kept; a key is printed once."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from cosyvoice_app.console import print_json
from cosyvoice_app.errors import BadInput
from cosyvoice_app.settings import ENV_PREFIX
from cosyvoice_app.web.keys import add_key, read_keys, remove_key

NAME = "keys"
HELP = "API keys of a server (--api-keys): add, list, remove"

_ENV = ENV_PREFIX + "API_KEYS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    adding = actions.add_parser("add", help="make a key and print it, once")
    adding.add_argument("name", metavar="NAME", help="who or what it is for; the server's log and limits use the name")
    listing = actions.add_parser("list", help="names and dates")
    removing = actions.add_parser("remove", help="take a key back; a running server notices in a second")
    removing.add_argument("name", metavar="NAME")
    for action in (adding, listing, removing):
        action.add_argument("--file", type=Path, default=None, metavar="FILE",
                            help=f"what the server's --api-keys names [default: what {_ENV} names]")
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    path = options.file or (Path(os.environ[_ENV]) if os.environ.get(_ENV) else None)
    if path is None:
        raise BadInput(f"Which file? Name it with --file or in the environment variable {_ENV}.", param="file")
    path = path.expanduser()
    if options.action == "add":
        key = add_key(path, options.name)
        _say({"name": options.name, "key": key, "file": str(path)}, key, options.json)
    elif options.action == "remove":
        remove_key(path, options.name)
        _say({"removed": options.name}, f"removed {options.name}", options.json)
    else:
        entries = read_keys(path)
        lines = "\n".join(f"{entry.created}  {entry.name}" for entry in entries) or "no keys"
        _say({"keys": [{"name": entry.name, "created": entry.created} for entry in entries]}, lines, options.json)
    return 0


def _say(data: dict[str, object], text: str, as_json: bool) -> None:
    if as_json:
        print_json(data)
    else:
        print(text)
