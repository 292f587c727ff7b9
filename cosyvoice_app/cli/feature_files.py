"""Which clips `features` reads and what it writes for them: names, whole files, and the manifest it resumes from."""

from __future__ import annotations

import io
import json
import os
import stat
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Literal

import numpy as np

from cosyvoice_app.cli.feature_names import chosen_names, shared
from cosyvoice_app.console import warn
from cosyvoice_app.errors import AppError, BadInput
from cosyvoice_app.types import FloatArray

Format = Literal["npy", "safetensors"]
FORMATS: tuple[Format, ...] = ("npy", "safetensors")
MANIFEST = "manifest.jsonl"
SUFFIXES = (".wav", ".wave", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".mp4", ".aac", ".webm", ".aif", ".aiff")
"""What is taken from folders. What such a file really holds is judged when it is decoded."""


@dataclass(frozen=True, slots=True)
class Item:
    """A clip to read. `size` and `mtime_ns` are of the moment it was found; `output` is relative to the out folder."""

    source: Path
    size: int
    mtime_ns: int
    output: str = ""


@dataclass(slots=True)
class Found:
    """`items` without outputs, in order; `names` are the outputs they would like, without an ending."""

    items: list[Item] = field(default_factory=list)
    names: list[PurePath] = field(default_factory=list)


def find_clips(inputs: Sequence[Path], out: Path) -> Found:
    """Files as given, and the audio files of folders and their subfolders, sorted. A file is taken once.

    Hidden files and folders (names that begin with a dot) are passed over, and with a warning what is no regular file:
    a pipe would be waited for. BadInput where an input doesn't exist,
    nothing is found, or `out` lies in an input folder, whose next reading would meet its own results.
    """
    found, seen = Found(), set()
    for given in inputs:
        if os.path.isdir(given):
            _refuse_inside(out, given)
            pairs: list[tuple[Path, PurePath]] = [(path, path.relative_to(given)) for path in _walk(given)]
        elif os.path.isfile(given):  # unlike Path.is_file, quiet about names no file system would take
            pairs = [(given, PurePath(given.name))]
        else:
            raise BadInput(f"There is no file or folder {given}.", param="in")
        for path, name in pairs:
            source = Path(os.path.abspath(path))
            if source in seen:
                continue
            seen.add(source)
            try:
                facts = source.stat()
            except OSError as error:
                warn(f"{path} is left out: {error.strerror}")
                continue
            if not stat.S_ISREG(facts.st_mode):
                warn(f"{path} is left out: it is not a regular file")
                continue
            found.items.append(Item(source, facts.st_size, facts.st_mtime_ns))
            found.names.append(name.with_suffix(""))
    if not found.items:
        raise BadInput(f"There is no audio in {', '.join(map(str, inputs))}. Files are found by their endings: "
                       f"{' '.join(SUFFIXES)}.", param="in")  # fmt: skip
    return found


def _refuse_inside(out: Path, folder: Path) -> None:
    try:
        inside, around = out.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:  # links that lead in a circle
        raise BadInput(f"--out {out} can't be a folder: {error}.", param="out") from error
    if inside == around or around in inside.parents:
        raise BadInput(f"--out {out} lies in the input folder {folder}. Choose a folder outside of it.", param="out")


def _walk(folder: Path) -> Iterable[Path]:
    def unreadable(error: OSError) -> None:
        warn(f"{error.filename} is left out: {error.strerror}")

    for where, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                yield Path(where, name)


class FeatureManifest:
    """`manifest.jsonl` of an output folder: one line a clip, appended as clips end, put in order by `finish`.

    A clip is finished when its line has no error and the same config, its source has the same size and time of
    change, and its output is there in full. Output files are not synced to the disk one by one, which would cost more
    than making them; so their sizes are written down, and one that a power cut emptied is made again.
    """

    def __init__(self, folder: Path, config: str, kind: str, file_format: Format) -> None:
        """Raises AppError when the manifest can't be read, BadInput when it is of another kind or format: the folder
        would hold both, and nothing would say which file is of which.
        """
        self.path = folder / MANIFEST
        self._folder, self._config, self._kind, self._format = folder, config, kind, file_format
        self._entries: dict[str, dict[str, Any]] = {}
        try:
            lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise AppError(f"{self.path} can't be read: {error}.") from error
        for entry in map(_parse, lines):
            if entry is not None:
                self._entries[entry["source"]] = entry
        self._refuse_others()
        self._forget_shared()
        # Also ends a line that a crash cut short, so that the next one doesn't continue it.
        self._write()

    def _refuse_others(self) -> None:
        for entry in self._entries.values():
            had_kind = entry.get("kind", self._kind)
            had_format = str(entry.get("output")).rpartition(".")[2]
            if (had_kind, had_format) != (self._kind, self._format):
                raise BadInput(f"{self._folder} holds {had_kind} as {had_format}; {self._kind} as {self._format} needs "
                               "another folder.", param="out")  # fmt: skip

    def _forget_shared(self) -> None:
        """Of two sources with one output nobody knows whose it holds: both are made again."""
        lost = shared({source: str(entry["output"]) for source, entry in self._entries.items()})
        if lost:
            warn(f"{self.path} gives {len(lost)} clips an output that another has too; they are made again")
        for source in lost:
            del self._entries[source]

    def named(self, found: Found) -> list[Item]:
        """The items with their outputs. A source that has an output keeps it; others get the name they would like, or
        one like it where that is taken.
        """
        outputs = {source: str(entry["output"]) for source, entry in self._entries.items()}
        kept = [outputs.get(str(item.source)) for item in found.items]
        wishes = [PurePosixPath(name.as_posix()) for name in found.names]
        names = chosen_names(wishes, kept, f".{self._format}", outputs.values())
        return [Item(item.source, item.size, item.mtime_ns, name)
                for item, name in zip(found.items, names, strict=True)]  # fmt: skip

    def is_finished(self, item: Item) -> bool:
        entry = self._entries.get(str(item.source), {})
        if entry.get("error") is not None or (entry.get("config"), entry.get("size"), entry.get("mtime_ns"),
                                              entry.get("output")) != (self._config, item.size, item.mtime_ns,
                                                                       item.output):  # fmt: skip
            return False
        try:
            return (self._folder / item.output).stat().st_size == entry.get("bytes")
        except OSError:
            return False

    def add(self, item: Item, facts: Mapping[str, Any]) -> None:
        """Raises AppError when the line can't be written."""
        entry = {"source": str(item.source), "output": item.output, "kind": self._kind, "frames": None,
                 "bins": None, "rate_hz": None, "duration_s": None, "config": self._config, "error": None,
                 "size": item.size, "mtime_ns": item.mtime_ns, "bytes": None, **facts}  # fmt: skip
        self._entries[entry["source"]] = entry
        # A source may have an older line: the last one counts.
        try:
            with self.path.open("ab") as file:
                file.write(_line(entry))
        except OSError as error:
            raise self._unwritten(error) from error

    def finish(self, items: Sequence[Item]) -> None:
        """One line a clip, in the order of this call's items; those of earlier calls come first."""
        order = {str(item.source): place for place, item in enumerate(items)}
        self._entries = dict(sorted(self._entries.items(), key=lambda pair: order.get(pair[0], -1)))
        self._write()

    def _write(self) -> None:
        try:
            write_whole(self.path, [b"".join(map(_line, self._entries.values()))])
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> AppError:
        return AppError(f"{self.path} can't be written: {error.strerror or error}. What is done stays; run the same "
                        "command again when it can be.")  # fmt: skip


def write_whole(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Whole or not at all under its name, replacing what was there. Raises OSError."""
    unfinished = path.with_name(f".unfinished-{uuid.uuid4().hex}.tmp")
    try:
        with unfinished.open("wb", buffering=0) as file:
            for part in parts:
                left = memoryview(part)
                while len(left):
                    left = left[file.write(left) :]
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def packed(values: FloatArray, file_format: Format, metadata: dict[str, str]) -> list[bytes | memoryview]:
    """A file's bytes. safetensors holds the tensor "features" and the metadata; .npy the array alone, which is not
    copied on its way.
    """
    if file_format == "npy":
        header = io.BytesIO()
        values = np.ascontiguousarray(values)
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
        return [header.getvalue(), values.reshape(-1).view(np.uint8).data]
    from safetensors.numpy import save

    return [save({"features": values}, metadata)]


def _parse(line: str) -> dict[str, Any] | None:
    """None for a line cut short by a crash: its clip is simply made again."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("source", "output"))
    return entry if whole else None


def _line(entry: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(entry, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # a file name that is not text
        return (json.dumps(entry) + "\n").encode()
