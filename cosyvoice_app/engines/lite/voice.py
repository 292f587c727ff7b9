"""What the lite engine keeps of a speaker, and its cache on disk.

A voice is a base style, where its pitch lies and how far it moves, how fast it speaks, and, when it was fitted to its
clip, the generator tensors that changed. Fitted tensors are kept as half-precision differences from the released ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from cosyvoice_app.engines.lite.model import Resonance, add_delta, deltas_of, moving_names
from cosyvoice_app.engines.lite.vocoder import Generator
from cosyvoice_app.engines.voice_files import VoiceFiles
from cosyvoice_app.types import CacheCounts

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

    @property
    def size_bytes(self) -> int:
        own = () if self.fitted is None else (self.fitted.style, *self.fitted.weights.values())
        return sum(tensor.nbytes for tensor in (self.style, *own))


class VoiceStore:
    """Fitted voices on disk, one file each, named by the voice's key. A damaged file counts as absent."""

    def __init__(self, folder: Path, generator: Generator, *, most_bytes: int | None = None) -> None:
        self._files = VoiceFiles(folder, keep=KEEP_ON_DISK, what="fitted voice", most_bytes=most_bytes)
        self._generator = generator

    def counts(self) -> CacheCounts:
        return self._files.counts()

    def load(self, key: str) -> LiteVoice | None:
        return self._files.load(key, self._read)

    def save(self, key: str, voice: LiteVoice) -> None:
        """Write atomically. A full or read-only disk costs the cache entry, not the voice: it is logged."""
        released = dict(self._generator.named_parameters())
        tensors = {"style": voice.style.float().cpu().contiguous()}
        if voice.fitted is not None:
            tensors["resonance"] = voice.fitted.style.float().cpu().contiguous()
            for name, delta in deltas_of(voice.fitted, released).items():
                tensors[f"delta.{name}"] = delta.cpu().contiguous()
        self._files.save(key, tensors, {"format": str(FORMAT), "measures": json.dumps(asdict(voice.measures))})

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
