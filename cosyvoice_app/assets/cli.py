"""`assets list | fetch [NAME ...] | verify [NAME ...]`, each with --json. `cosyvoice3` names the official model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cosyvoice_app.assets import official, official_cli, store
from cosyvoice_app.assets.registry import ASSETS, DEFAULT_ASSETS
from cosyvoice_app.errors import AppError
from cosyvoice_app.types import Progress


def cli(argv: Sequence[str]) -> int:
    """Run one `assets` command. Exit status: 0 all well, 1 something missing, damaged or not to be had."""
    parser = argparse.ArgumentParser(prog="python -m cosyvoice_app assets",
                                     description="Model files of other projects.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, help_text in (("list", "what there is, where it comes from, its licence, and whether it is here"),
                               ("fetch", "bring what is missing (default: all that the lite engine needs)"),
                               ("verify", "read every file and compare its SHA-256")):
        sub = commands.add_parser(command, help=help_text)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument("--cache", type=Path, default=None, help="cache directory [environment: COSYVOICE_CACHE]")
        if command != "list":
            sub.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*ASSETS, official.NAME)))
            official_cli.add_arguments(sub, fetch=command == "fetch")
    options = parser.parse_args(argv)
    try:
        return {"list": _list, "fetch": _fetch, "verify": _verify}[options.command](options)
    except AppError as error:
        print(json.dumps({"error": error.to_dict()}) if options.json else f"error: {error.message}",
              file=sys.stdout if options.json else sys.stderr)
        return 1


def _list(options: argparse.Namespace) -> int:
    rows = [*store.list_assets(cache=options.cache), official_cli.list_row(official.default_dir(), options.cache)]
    if options.json:
        _print_json({"cache": str(store.cache_dir(options.cache)), "assets": rows})
        return 0
    print(f"cache: {store.cache_dir(options.cache)}")
    for row in rows:
        optional = "" if row["default"] else ", optional"
        origin = ", ".join(row["packages"]) or f"{row['source']}, into {row['path']}"
        print(f"\n{row['name']}  [{row['state']}{optional}]\n  {row['title']}\n  licence  {row['licence']}\n"
              f"  origin   {row['origin']}\n  from     {origin} "
              f"({row['download_bytes'] / 1e6:.0f} MB to download, {row['bytes'] / 1e6:.1f} MB kept)")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    names, model = _split(options)
    paths: dict[str, Path] = {}
    with ProgressBar(enabled=not options.json) as bar:
        if names:
            paths.update(store.fetch(names, cache=options.cache, progress=bar))
        if model:
            paths[official.NAME] = official_cli.run_fetch(options, bar)
    if options.json:
        _print_json({"cache": str(store.cache_dir(options.cache)), "paths": {k: str(v) for k, v in paths.items()}})
        return 0
    if names:
        print(f"{len(names)} of {len(names)} assets ready in {store.cache_dir(options.cache)}")
    if model:
        print(f"the official model is ready in {paths[official.NAME]}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    names, model = _split(options)
    rows = store.verify(names, cache=options.cache) if names else []
    if model:
        with ProgressBar(enabled=not options.json) as bar:
            rows.append(official_cli.run_verify(options, bar))
    if options.json:
        _print_json({"assets": rows})
    else:
        for row in rows:
            print(f"{row['state']:<9} {row['name']}")
            for file in row.get("files", ()):
                print(f"  {file['verdict']:<12} {file['name']}" + (f": {file['said']}" if file["said"] else ""))
        if not all(row["ok"] for row in rows):
            again = " ".join(row["name"] for row in rows if not row["ok"])
            print(f"Run `python -m cosyvoice_app assets fetch {again}` to make the rest again.")
    return 0 if all(row["ok"] for row in rows) else 1


def _split(options: argparse.Namespace) -> tuple[list[str], bool]:
    """(assets of the cache, whether the official model is named too). Without names: what the lite engine needs."""
    names = options.names or list(DEFAULT_ASSETS)
    return [name for name in names if name != official.NAME], official.NAME in names


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False))


class ProgressBar:
    """An `OnProgress` that draws a bar on stderr."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._bar = tqdm(total=100, unit="%", disable=None if enabled else True, leave=False,
                         bar_format="{l_bar}{bar}| {elapsed}")

    def __call__(self, progress: Progress) -> None:
        self._bar.set_description(progress.message, refresh=False)
        if progress.fraction is not None:
            self._bar.n = round(100 * progress.fraction)
        self._bar.refresh()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
