"""Names of output files: one for each clip, none of which is a folder of another, and none too long."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

_MOST_BYTES = 255
"""Of a name in nearly every file system."""


def same_name(path: str) -> str:
    """Equal for paths that some file systems take for one: those that differ only in case or in composing accents."""
    return unicodedata.normalize("NFC", path).casefold()


def shared(outputs: Mapping[str, str]) -> set[str]:
    """The keys of those whose output another key has too."""
    by_name: dict[str, list[str]] = {}
    for key, output in outputs.items():
        by_name.setdefault(same_name(output), []).append(key)
    return {key for keys in by_name.values() if len(keys) > 1 for key in keys}


def chosen_names(wishes: Sequence[PurePosixPath], kept: Sequence[str | None], ending: str,
                 taken: Iterable[str]) -> list[str]:  # fmt: skip
    """An output for each wish (a path without its ending), or what is kept for it. `taken` are outputs of others.

    A name that is taken by a file or a folder gets _2, _3 and so on: a folder where a file has its name already, else
    the file, since a folder's other clips must stay together. A stem too long for a file system is cut, and a hash of
    the whole put after it.
    """
    files = {same_name(output) for output in (*taken, *(output for output in kept if output is not None))}
    parents = [_free_folder(wish.parent, files) for wish in wishes]
    folders = {same_name(str(folder)) for parent in parents for folder in (parent, *parent.parents)}
    folders |= {same_name(str(folder)) for output in files for folder in PurePosixPath(output).parents}
    outputs = []
    for wish, parent, output in zip(wishes, parents, kept, strict=True):
        for tail in _tails():
            if output is not None:
                break
            name = str(parent / _fitting(wish.name, f"{tail}{ending}"))
            if same_name(name) not in files and same_name(name) not in folders:
                output = name
        assert output is not None
        files.add(same_name(output))
        outputs.append(output)
    return outputs


def _free_folder(folder: PurePosixPath, files: set[str]) -> PurePosixPath:
    made = PurePosixPath()
    for part in folder.parts:
        made /= next(part + tail for tail in _tails() if same_name(str(made / (part + tail))) not in files)
    return made


def _tails() -> Iterator[str]:
    yield ""
    number = 2
    while True:
        yield f"_{number}"
        number += 1


def _fitting(stem: str, ending: str) -> str:
    raw = os.fsencode(stem)
    if len(raw) + len(ending) <= _MOST_BYTES:
        return stem + ending
    mark = f"-{hashlib.sha256(raw).hexdigest()[:8]}"
    # Cut between characters.
    return raw[: _MOST_BYTES - len(ending) - len(mark)].decode("utf-8", "ignore") + mark + ending
