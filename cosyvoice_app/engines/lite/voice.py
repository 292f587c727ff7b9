"""What the lite engine keeps of a speaker, and its cache on disk.

A voice is a base style, where its pitch lies and how far it moves, how fast it speaks, and, when it was fitted to its
clip, the generator tensors that changed. Fitted tensors are kept as half-precision differences from the released ones.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cosyvoice_app.engines.lite.model import Resonance, add_delta, deltas_of, moving_names
from cosyvoice_app.engines.lite.vocoder import Generator

log = logging.getLogger(__name__)

FORMAT = 1
KEEP_ON_DISK = 40
"""Fitted voices kept in the cache; some 26 MB each; the least recently used go first."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What is known of a voice beyond its tensors; all JSON."""

    base: str
    f0_median_hz: float
    f0_range: float
    speed: float
    refined: str
    """"off", "fast" or "full": what was really done, which is "off" when a fit was tried and thrown away."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiteVoice:
    """`style` [256] fp32: the base voice's acoustic and prosodic halves. `fitted` is None when nothing was fitted."""

    style: Tensor
    measures: Measures
    fitted: Resonance | None = None


class VoiceStore:
    """Fitted voices on disk, one file each, named by the voice's key. A damaged file counts as absent."""

    def __init__(self, folder: Path, generator: Generator) -> None:
        self._folder = folder
        self._generator = generator

    def load(self, key: str) -> LiteVoice | None:
        path = self._path(key)
        if not path.is_file():
            return None
        try:
            voice = self._read(path)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            log.warning("the fitted voice %s can't be read and is made again: %s", path, error)
            return None
        with contextlib.suppress(OSError):  # a read-only cache still serves; only its order of use is not kept
            os.utime(path)
        return voice

    def save(self, key: str, voice: LiteVoice) -> None:
        """Write atomically. A full or read-only disk costs the cache entry, not the voice: it is logged."""
        released = dict(self._generator.named_parameters())
        tensors = {"style": voice.style.float().cpu().contiguous()}
        if voice.fitted is not None:
            tensors["resonance"] = voice.fitted.style.float().cpu().contiguous()
            for name, delta in deltas_of(voice.fitted, released).items():
                tensors[f"delta.{name}"] = delta.cpu().contiguous()
        meta = {"format": str(FORMAT), "measures": json.dumps(asdict(voice.measures))}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as place:
                save_file(tensors, Path(place) / "voice", metadata=meta)
                os.replace(Path(place) / "voice", self._path(key))
            self._prune()
        except (OSError, SafetensorError) as error:  # the library reports a full disk as its own error
            log.warning("the fitted voice could not be kept in %s: %s", self._folder, error)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.safetensors"

    def _read(self, path: Path) -> LiteVoice:
        released = dict(self._generator.named_parameters())
        with safe_open(str(path), framework="pt") as file:
            meta = file.metadata() or {}
            if meta.get("format") != str(FORMAT):
                raise ValueError(f"format {meta.get('format')}, not {FORMAT}")
            fields = json.loads(meta["measures"])
            fields["notes"], fields["warnings"] = tuple(fields["notes"]), tuple(fields["warnings"])
            device = next(iter(released.values())).device
            names = {name[6:] for name in file.keys() if name.startswith("delta.")}  # noqa: SIM118 - not a dict
            if names and names != set(moving_names(released)):
                raise ValueError("some of the fitted tensors are missing")
            weights = {name: add_delta(released[name], file.get_tensor(f"delta.{name}")) for name in sorted(names)}
            fitted = Resonance(file.get_tensor("resonance").to(device), weights) if weights else None
            return LiteVoice(file.get_tensor("style").to(device), Measures(**fields), fitted)

    def _prune(self) -> None:
        files = sorted(self._folder.glob("*.safetensors"), key=lambda f: f.stat().st_mtime, reverse=True)
        for old in files[KEEP_ON_DISK:]:
            old.unlink(missing_ok=True)
