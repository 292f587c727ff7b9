"""Read the official files in a directory and say of each whether it is the published one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cosyvoice_app.assets.hashes import HashCache
from cosyvoice_app.assets.official import FILES, REVISION, OfficialFile, fault_of
from cosyvoice_app.types import OnProgress, Progress, ignore_progress

Verdict = Literal["official", "not official", "damaged", "missing"]


@dataclass(frozen=True, slots=True)
class Verified:
    """`needed` is False for a file that may be absent. `said` explains a verdict other than "official"."""

    name: str
    verdict: Verdict
    needed: bool
    said: str = ""
    sha256: str = ""

    @property
    def ok(self) -> bool:
        """The engine may use it: a fine-tuned model is not the official one, and welcome."""
        return self.verdict in ("official", "not official") or (self.verdict == "missing" and not self.needed)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def verify_official(folder: Path, *, files: Sequence[OfficialFile] = FILES, cache: Path | None = None,
                    progress: OnProgress = ignore_progress) -> list[Verified]:
    """One verdict per file, in the order of `files`. Reads every byte once; a file that hasn't changed since is not
    read again. Changes nothing in `folder`."""
    hashes, rows, done = HashCache(cache), [], 0
    total = max(1, sum(_size(folder / file.name) for file in files))
    for file in files:
        start = done

        def report(have: int, start: int = start, name: str = file.name) -> None:
            progress(Progress("asset", min(1.0, (start + have) / total), f"{name}: reading"))

        rows.append(_verify(folder / file.name, file, hashes, report))
        done += _size(folder / file.name)
    return rows


def known_verdicts(
    folder: Path, *, files: Sequence[OfficialFile] = FILES, cache: Path | None = None
) -> dict[str, bool]:
    """{name: whether it is the official file}, of those whose hash is known from before. Reads no file."""
    hashes = HashCache(cache)
    found = {file.name: hashes.known(folder / file.name) for file in files}
    return {file.name: found[file.name] == file.sha256 for file in files if found[file.name]}


def _verify(path: Path, file: OfficialFile, hashes: HashCache, report: Callable[[int], None]) -> Verified:
    needed = file.role == "needed"
    if not path.is_file():
        return Verified(file.name, "missing", needed, "it is not there" if needed else "not there, and not needed")
    try:
        if fault := fault_of(path):
            return Verified(file.name, "damaged", needed, fault)
        sha256 = hashes.sha256(path, report)
    except OSError as error:
        return Verified(file.name, "damaged", needed, f"it can't be read: {error.strerror or error}")
    if sha256 == file.sha256:
        return Verified(file.name, "official", needed, sha256=sha256)
    size = path.stat().st_size
    compared = "" if size == file.bytes else f"; {size} bytes, expected {file.bytes}"
    return Verified(file.name, "not official", needed,
                    f"not the official file of revision {REVISION[:12]}{compared}", sha256)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
