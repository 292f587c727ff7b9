"""The part of `assets` that is about the official model: fetch and verify a directory of the user's."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from cosyvoice_app.assets import official
from cosyvoice_app.assets.official_fetch import SOURCES, base_url, fetch_official, wanted
from cosyvoice_app.assets.official_verify import Verified, known_verdicts, verify_official
from cosyvoice_app.types import OnProgress


def add_arguments(sub: argparse.ArgumentParser, *, fetch: bool) -> None:
    box = sub.add_argument_group(f"options of {official.NAME}, the official model (not part of the default)")
    box.add_argument("--dir", type=Path, default=None, metavar="DIR",
                     help=f"its directory [default: {official.DEFAULT_DIR}; environment: {official.DIR_VARIABLE}]")
    if fetch:
        box.add_argument("--source", choices=SOURCES, default=SOURCES[0], help="site to fetch from")
        box.add_argument("--endpoint", default=None, metavar="URL", help="mirror of that site "
                         "[environment, for huggingface: HF_ENDPOINT]")
        box.add_argument("--llm-rl", action="store_true", help="also fetch llm.rl.pt, the further tuned language model")


def run_fetch(options: argparse.Namespace, progress: OnProgress) -> Path:
    """Raises AssetError."""
    folder = options.dir or official.default_dir()
    files = wanted(llm_rl=options.llm_rl)
    print(f"{official.TITLE}\n  licence  {official.LICENCE}\n  origin   {official.ORIGIN}\n"
          f"  from     {base_url(options.source, options.endpoint)}\n"
          f"  into     {folder} ({sum(file.bytes for file in files) / 1e9:.1f} GB)", file=sys.stderr, flush=True)
    return fetch_official(folder, source=options.source, endpoint=options.endpoint, files=files, cache=options.cache,
                          progress=progress)


def run_verify(options: argparse.Namespace, progress: OnProgress) -> dict[str, Any]:
    """A row as `store.verify` gives, with one more line per file."""
    folder = options.dir or official.default_dir()
    rows = verify_official(folder, files=official.FILES, cache=options.cache, progress=progress)
    return {"name": official.NAME, "ok": all(row.ok for row in rows), "state": _state(rows), "path": str(folder),
            "files": [row.to_dict() for row in rows]}


def list_row(folder: Path, cache: Path | None) -> dict[str, Any]:
    """A row as `store.list_assets` gives. Reads no large file."""
    needed = wanted()
    absent = [file.name for file in needed if not (folder / file.name).is_file()]
    known = known_verdicts(folder, files=needed, cache=cache)
    if len(absent) == len(needed):
        state = "missing"
    elif absent:
        state = f"incomplete, {len(absent)} of {len(needed)} files missing"
    elif len(known) < len(needed):
        state = "complete, not verified"
    else:
        state = "whole" if all(known.values()) else "complete, not official"
    return {
        "name": official.NAME, "title": official.TITLE, "licence": official.LICENCE, "origin": official.ORIGIN,
        "packages": [], "source": f"{official.MODEL}@{official.REVISION}",
        "files": [{"name": f.name, "bytes": f.bytes, "sha256": f.sha256} for f in official.FILES],
        "download_bytes": sum(f.bytes for f in needed), "bytes": sum(f.bytes for f in needed),
        "default": False, "state": state, "path": str(folder),
    }


def _state(rows: list[Verified]) -> str:
    verdicts = {row.verdict for row in rows if row.needed}
    if verdicts == {"missing"}:
        return "missing"
    for worst in ("damaged", "missing", "not official"):
        if worst in verdicts:
            return "incomplete" if worst == "missing" else worst
    return "whole"
