"""What a model directory holds, told without reading it: which model it is, what is missing, how to get it.

No torch here: doctor, the registry and the web process ask.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cosyvoice_app.assets import official
from cosyvoice_app.assets.official import FETCH, OfficialFile
from cosyvoice_app.assets.official_verify import Verified, known_verdicts, verify_official
from cosyvoice_app.errors import AssetError
from cosyvoice_app.types import OnProgress, ignore_progress

Kind = Literal["cosyvoice3", "cosyvoice2", "cosyvoice1", "none"]
State = Literal["as published", "other size", "damaged", "missing"]

_KIND_BY_YAML: tuple[tuple[str, Kind], ...] = (
    ("cosyvoice3.yaml", "cosyvoice3"), ("cosyvoice2.yaml", "cosyvoice2"), ("cosyvoice.yaml", "cosyvoice1"),
)
_TITLES = {"cosyvoice2": "CosyVoice2-0.5B", "cosyvoice1": "CosyVoice-300M (the first CosyVoice)"}

_EDGE_BYTES = 256 << 10
_SAMPLE_BYTES = 4 << 10
_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class FileState:
    """One file of the official list. "other size" is no fault: a model trained further has another size. `fault` says
    what is wrong with a damaged one."""

    name: str
    holds: str
    needed: bool
    state: State
    bytes: int
    expected_bytes: int
    fault: str = ""

    @property
    def usable(self) -> bool:
        return self.state in ("as published", "other size")


@dataclass(frozen=True, slots=True)
class ModelDir:
    folder: Path
    kind: Kind
    files: tuple[FileState, ...]
    nested: Path | None = None
    """A directory right inside that is the model, when `folder` itself is none."""

    @property
    def yaml(self) -> Path:
        return self.folder / official.YAML.name

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of needed files that aren't there."""
        return tuple(file.name for file in self.files if file.needed and file.state == "missing")

    @property
    def damaged(self) -> tuple[FileState, ...]:
        return tuple(file for file in self.files if file.needed and file.state == "damaged")

    @property
    def usable(self) -> bool:
        """Whether it makes sense to load it. Contents are only looked at when they are loaded."""
        return self.kind == "cosyvoice3" and not self.missing and not self.damaged

    def problem(self) -> str:
        """Why the cosyvoice3 engine can't use the directory and what to do, in one text; "" when it can."""
        if self.usable:
            return ""
        if self.kind in _TITLES:
            return (f"{self.folder} holds {_TITLES[self.kind]}, another model. The cosyvoice3 engine reads "
                    f"Fun-CosyVoice3-0.5B-2512, which has a cosyvoice3.yaml. {self._get()}")
        if self.nested is not None:
            return f"{self.folder} is not the model's directory; {self.nested} is. Name that one with --model-dir."
        if not self.folder.is_dir():
            return f"{self.folder} is not a directory that exists, so the cosyvoice3 engine has no files. {self._get()}"
        faults = [f"missing: {', '.join(self.missing)}"] if self.missing else []
        faults += [f"{file.name} can't be used: {file.fault}" for file in self.damaged]
        return f"{self.folder} does not hold all that the cosyvoice3 engine needs ({'; '.join(faults)}). {self._get()}"

    def _get(self) -> str:
        command = FETCH
        if self.kind in ("cosyvoice3", "none") and self.folder != official.DEFAULT_DIR:
            command += f" --dir {self.folder}"
        if official.LLM_RL.name in self.missing:
            command += " --llm-rl"
        return (f"Fetch the official files with `{command}` (4.4 GB; add `--source modelscope` where Hugging Face is "
                "out of reach), or use --engine lite, which needs none of them.")

    def why(self) -> str:
        """The same in half a sentence, for the reason of a choice."""
        if self.usable:
            return f"{self.folder} holds the official files"
        if self.kind in _TITLES:
            return f"{self.folder} holds {_TITLES[self.kind]}, not Fun-CosyVoice3-0.5B"
        bad = [*self.missing, *(file.name for file in self.damaged)]
        word = "missing" if not self.damaged else "missing or damaged"
        return f"{self.folder} does not hold the official files ({word}: {', '.join(bad)})"

    def report(self) -> list[str]:
        """Lines for people: the verdict, then every file."""
        lines = [f"{self.folder}: {'usable' if self.usable else 'not usable'} ({self.kind})"]
        for file in self.files:
            if file.state == "missing" and not file.needed:
                continue
            size = f"{file.bytes / 1e6:.1f} MB" if file.bytes else ""
            said = {"as published": "", "missing": f"needed: {file.holds}", "damaged": file.fault,
                    "other size": f"published with {file.expected_bytes} bytes, this has {file.bytes}: a model of "
                                  "another make, or a damaged download"}[file.state]
            lines.append(f"  {file.state:<12} {file.name:<32} {size:>10}  {said}".rstrip())
        if not self.usable:
            lines.append(self.problem())
        return lines

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"folder": str(self.folder), "kind": self.kind, "usable": self.usable, "missing": list(self.missing),
                "problem": self.problem(), "files": [asdict(file) for file in self.files]}


def examine(folder: Path, llm_file: str = official.LLM.name) -> ModelDir:
    """Look at `folder`, which needn't exist. Takes milliseconds. `llm_file` is the language model that will be used;
    the other one is optional."""
    kind: Kind = next((kind for name, kind in _KIND_BY_YAML if (folder / name).is_file()), "none")
    files = tuple(_look(folder, file, needed=_needed(file, llm_file)) for file in official.FILES)
    return ModelDir(folder, kind, files, _nested(folder) if kind == "none" else None)


def require(folder: Path, llm_file: str = official.LLM.name) -> ModelDir:
    """`examine`, and AssetError unless the directory is usable."""
    found = examine(folder, llm_file)
    if not found.usable:
        raise AssetError(found.problem(), param="model_dir")
    return found


def verify(folder: Path, progress: OnProgress = ignore_progress, *, cache: Path | None = None) -> list[Verified]:
    """Read every file and compare its SHA-256 with the published one. What was read once is not read again while it is
    unchanged. A file that is not the official one is still usable; its row says what it is not."""
    return verify_official(folder, cache=cache, progress=progress)


def known(folder: Path, *, cache: Path | None = None) -> dict[str, bool]:
    """{name: whether it is the official file}, as far as it was verified before. Reads nothing large."""
    return known_verdicts(folder, cache=cache)


def model_hash(folder: Path, llm_file: str) -> str:
    """12 hex digits that key whatever is kept of this model; other files, or changed ones, give others.

    It rests on each file's name, size, time of change, first and last 256 KiB and 64 blocks of 4 KiB between them (the
    end of a `.pt` archive holds checksums of every tensor): milliseconds, where reading 4 GB would take long.
    The path doesn't count. A copy that kept no times counts as another model, which costs a cache, never a mix-up.
    """
    digest = hashlib.sha256()
    for file in official.FILES:
        if not _needed(file, llm_file):
            continue
        path = folder / file.name
        stat = path.stat()
        digest.update(f"{file.name}|{stat.st_size}|{stat.st_mtime_ns}|".encode())
        with path.open("rb") as stream:
            for start, size in _sampled(stat.st_size):
                stream.seek(start)
                digest.update(stream.read(size))
    return digest.hexdigest()[:12]


def _sampled(size: int) -> list[tuple[int, int]]:
    if size <= 4 * _EDGE_BYTES:
        return [(0, size)]
    inner = size - 2 * _EDGE_BYTES
    blocks = [(_EDGE_BYTES + inner * i // _SAMPLES, _SAMPLE_BYTES) for i in range(_SAMPLES)]
    return [(0, _EDGE_BYTES), *blocks, (size - _EDGE_BYTES, _EDGE_BYTES)]


def _needed(file: OfficialFile, llm_file: str) -> bool:
    if file in (official.LLM, official.LLM_RL):
        return file.name == llm_file
    return file.role == "needed"


def _look(folder: Path, file: OfficialFile, *, needed: bool) -> FileState:
    def state(kind: State, size: int = 0, fault: str = "") -> FileState:
        return FileState(file.name, file.holds, needed, kind, size, file.bytes, fault)

    path = folder / file.name
    try:
        if not path.is_file():
            return state("missing")
        size = path.stat().st_size
        if fault := official.fault_of(path):
            return state("damaged", size, fault)
    except OSError as error:
        return state("damaged", 0, f"it can't be read: {error.strerror or error}")
    return state("as published" if size == file.bytes else "other size", size)


def _nested(folder: Path) -> Path | None:
    try:
        inside = sorted(path for path in folder.iterdir() if (path / official.YAML.name).is_file())
    except OSError:
        return None
    return inside[0] if inside else None
