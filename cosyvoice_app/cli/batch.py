"""`batch`: a table of texts and clips, one WAV and one line of `manifest.jsonl` a row. Can be stopped and gone on with.

A row is finished when its manifest line has no error, its WAV is there and its fields have not changed since.
A row that fails is written down and the rest go on.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import re
import sys
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosyvoice_app.audio.encode import encode
from cosyvoice_app.cli.fields import (
    PlanOptions,
    add_engine_arguments,
    engine_settings,
    plan_options,
    read_clip,
    read_seed,
    read_speed,
)
from cosyvoice_app.cli.synth import write_file
from cosyvoice_app.errors import AppError, BadInput
from cosyvoice_app.local import LocalEngine
from cosyvoice_app.pipeline import plan
from cosyvoice_app.types import PromptClip

NAME = "batch"
HELP = "say many texts: a CSV with columns id,prompt,text and optionally prompt_text,instruct,seed,speed"

REQUIRED = ("id", "prompt", "text")
OPTIONAL = ("prompt_text", "instruct", "seed", "speed")
MANIFEST = "manifest.jsonl"

_ID_MAX_BYTES = 100
_ID = re.compile(r"\w[\w.-]*", re.UNICODE)
_WINDOWS_NAMES = {"con", "prn", "aux", "nul", *(f"com{n}" for n in range(1, 10)), *(f"lpt{n}" for n in range(1, 10))}
_CLIPS_KEPT = 16


@dataclass(frozen=True, slots=True)
class Row:
    """Fields as written. `line` is where the row starts in the CSV, for messages."""

    line: int
    id: str
    prompt: str
    text: str
    prompt_text: str = ""
    instruct: str = ""
    seed: str = ""
    speed: str = ""

    @property
    def fingerprint(self) -> str:
        fields = (self.prompt, self.text, self.prompt_text, self.instruct, self.seed, self.speed)
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", type=Path, metavar="JOBS.csv",
                        help="UTF-8; a relative prompt is looked for beside the CSV, then in the current folder")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="gets ID.wav and manifest.jsonl")
    add_engine_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """0 when every row has its WAV, 1 when any failed."""
    settings = engine_settings(options)
    reading = plan_options(settings)
    rows = read_jobs(options.jobs)
    manifest = Manifest(options.out)
    todo = [row for row in rows if not manifest.is_finished(row)]
    if len(todo) < len(rows):
        print(f"{len(rows) - len(todo)} of {len(rows)} rows are finished already", file=sys.stderr)
    failed = 0
    if todo:
        clips = _Clips(options.jobs.resolve().parent)
        with LocalEngine(settings, warm_up=True) as local:
            for number, row in enumerate(todo, 1):
                entry = _speak(row, local, clips, reading, options.out)
                manifest.add(entry)
                failed += entry["error"] is not None
                said = entry["error"] or f"{entry['duration_s']:.2f} s, RTF {entry['rtf']:.2f}"
                print(f"[{number}/{len(todo)}] {row.id}: {said}", file=sys.stderr, flush=True)
    manifest.sort(rows)
    print(f"{len(rows) - failed} of {len(rows)} rows done, {failed} failed; see {manifest.path}")
    return 1 if failed else 0


def read_jobs(path: Path) -> list[Row]:
    """All rows, judged as names. Raises BadInput naming the line and what is allowed; nothing has been made by then."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise BadInput(f"There is no file {path}.", param="jobs") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} can't be read as UTF-8 text: {error}.", param="jobs") from error
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        _check_columns(reader.fieldnames or ())
        rows = [_row(fields, reader.line_num) for fields in reader]
    except csv.Error as error:
        raise BadInput(f"{path}, line {reader.line_num}: not a valid CSV ({error}).", param="jobs") from error
    if not rows:
        raise BadInput(f"{path} has no rows.", param="jobs")
    _check_ids(rows)
    return rows


def _check_columns(names: Iterable[str]) -> None:
    names = list(names)
    missing = [name for name in REQUIRED if name not in names]
    unknown = [name for name in names if name not in REQUIRED + OPTIONAL]
    if missing or unknown or len(set(names)) != len(names):
        wrong = ", ".join(missing or unknown or names)
        problem = f"lacks {wrong}" if missing else f"repeats or invents a column ({wrong})"
        raise BadInput(f"The table {problem}. Columns: {', '.join(REQUIRED)}, and optionally {', '.join(OPTIONAL)}.",
                       param="jobs")


def _row(fields: Mapping[str | None, Any], line: int) -> Row:
    if None in fields or any(value is None for value in fields.values()):
        raise BadInput(f"Line {line} has more or fewer fields than the header. Put fields that hold a comma or a line "
                       "break in double quotes.", param="jobs")
    return Row(line, **{str(name): str(value) for name, value in fields.items()})


def _check_ids(rows: list[Row]) -> None:
    """An id becomes a file name, so it must be one everywhere; compared as systems do that ignore case."""
    seen: dict[str, int] = {}
    for row in rows:
        trouble = _id_trouble(row.id)
        if trouble:
            raise BadInput(f"Line {row.line}: the id {row.id[:60]!r} {trouble}. Ids become file names: letters, digits "
                           f"and _ - . (a dot neither first nor last), at most {_ID_MAX_BYTES} bytes.", param="id")
        key = unicodedata.normalize("NFC", row.id).casefold()
        if key in seen:
            raise BadInput(f"Line {row.line}: the id {row.id!r} is used already in line {seen[key]}.", param="id")
        seen[key] = row.line


def _id_trouble(name: str) -> str:
    if not name:
        return "is empty"
    if not _ID.fullmatch(name) or name.endswith("."):
        return "has characters that are not safe in a file name"
    if len(name.encode()) > _ID_MAX_BYTES:
        return "is too long"
    return "is reserved by Windows" if name.partition(".")[0].casefold() in _WINDOWS_NAMES else ""


def _speak(row: Row, local: LocalEngine, clips: _Clips, reading: PlanOptions, out: Path) -> dict[str, Any]:
    """Make one row's WAV and its manifest line; an error of the product's own becomes part of the line."""
    entry: dict[str, Any] = {
        "id": row.id, "path": None, "seed": None, "engine": local.facts.engine, "device": local.facts.device,
        "duration_s": None, "rtf": None, "first_audio_ms": None, "warnings": [], "error": None,
        "fingerprint": row.fingerprint,
    }
    try:
        entry["seed"] = read_seed(row.seed)
        job = plan(clips.get(row.prompt), row.text, seed=entry["seed"], transcript=row.prompt_text,
                   instruct=row.instruct, speed=read_speed(row.speed), **reading)
        spoken = local.run(job)
        write_file(out / f"{row.id}.wav", encode(spoken.audio, "wav"))
    except AppError as error:
        return {**entry, "error": error.message}
    return {**entry, "path": f"{row.id}.wav", "duration_s": round(spoken.audio.duration_s, 6),
            "rtf": round(spoken.timings["rtf"], 4), "first_audio_ms": round(spoken.timings["first_audio_ms"], 1),
            "warnings": list(spoken.warnings)}


class _Clips:
    """Decoded clips, the last few used: rows of one speaker usually stand together."""

    def __init__(self, beside: Path) -> None:
        self._beside = beside
        self._kept: OrderedDict[Path, PromptClip] = OrderedDict()

    def get(self, written: str) -> PromptClip:
        if not written.strip():
            raise BadInput("The row names no prompt clip.", param="prompt")
        path = self._beside / written
        if not os.path.isfile(path):
            path = Path(written)
        clip = self._kept.pop(path, None) or read_clip(path)
        self._kept[path] = clip
        while len(self._kept) > _CLIPS_KEPT:
            self._kept.popitem(last=False)
        return clip


class Manifest:
    """`manifest.jsonl` of an output folder: one line a row, appended and synced as rows end."""

    def __init__(self, folder: Path) -> None:
        """Reads what is there, without the lines of failed rows, which will be tried again. Raises AppError."""
        self.path = folder / MANIFEST
        self._folder = folder
        self._entries: dict[str, dict[str, Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise AppError(f"{self.path} can't be read: {error}.") from error
        for line in lines:
            entry = _parse(line)
            if entry is not None and entry.get("error") is None:
                self._entries[entry["id"]] = entry
        self._write()

    def is_finished(self, row: Row) -> bool:
        entry = self._entries.get(row.id)
        return (entry is not None and entry.get("fingerprint") == row.fingerprint
                and (self._folder / f"{row.id}.wav").is_file())

    def add(self, entry: dict[str, Any]) -> None:
        replaces = entry["id"] in self._entries
        self._entries[entry["id"]] = entry
        if replaces:
            self._write()
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(entry))

    def sort(self, rows: list[Row]) -> None:
        """Put the lines in the table's order; lines of earlier tables come first."""
        order = {row.id: place for place, row in enumerate(rows)}
        self._entries = dict(sorted(self._entries.items(), key=lambda item: order.get(item[0], -1)))
        self._write()

    def _write(self) -> None:
        write_file(self.path, "".join(_line(entry) for entry in self._entries.values()).encode())


def _parse(line: str) -> dict[str, Any] | None:
    """None for a line cut short by a crash: its row is simply made again."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("id"), str) else None


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"
