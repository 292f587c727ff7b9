"""Prompt features kept on disk, so that a known clip costs nothing.

A clip's features depend on the clip, the model and how prompts are prepared, and on nothing else; that is the key. The
transcript is no part of them: it goes with each request, so that one clip serves with and without one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import safe_open

from cosyvoice_app.engines.cosyvoice3.config import MELS, SPEAKER, SPEECH_VOCAB
from cosyvoice_app.engines.cosyvoice3.prompt import PromptFeatures
from cosyvoice_app.engines.voice_files import VoiceFiles
from cosyvoice_app.types import CacheCounts

RECIPE = 1
"""Raised whenever the same clip and model would give other features, so that kept ones are made again."""
KEEP_ON_DISK = 500
"""Some 200 kB each for a 10 s clip; the least recently used go first."""


def prompt_key(clip_sha256: str, model_hash: str, *, tail_silence_s: float) -> str:
    """`clip_sha256` is of the decoded samples and their rate (`PromptClip.sha256`), `model_hash` of the model's
    files and whatever else decides the features.
    """
    parts = f"cosyvoice3\0{RECIPE}\0{clip_sha256}\0{model_hash}\0{tail_silence_s!r}"
    return hashlib.sha256(parts.encode()).hexdigest()


class PromptStore:
    """Named by `prompt_key`. A damaged or foreign file counts as absent, and says so in the log."""

    def __init__(self, folder: Path, *, keep: int = KEEP_ON_DISK, most_bytes: int | None = None) -> None:
        self._files = VoiceFiles(folder, keep=keep, what="prompt", most_bytes=most_bytes)

    def counts(self) -> CacheCounts:
        return self._files.counts()

    def load(self, key: str, device: torch.device) -> PromptFeatures | None:
        features = self._files.load(key, _read)
        return None if features is None else features.to(device)

    def save(self, key: str, features: PromptFeatures) -> None:
        """Write atomically. A full or read-only disk costs the file, not the request: it is logged."""
        tensors = {
            "tokens": features.tokens.to("cpu", torch.int64).contiguous(),
            "mel": features.mel.float().cpu().contiguous(),
            "speaker": features.speaker.float().cpu().contiguous(),
        }
        self._files.save(key, tensors, {"recipe": str(RECIPE)})


def _read(path: Path) -> PromptFeatures:
    with safe_open(str(path), framework="pt") as file:
        recipe = (file.metadata() or {}).get("recipe")
        if recipe != str(RECIPE):
            raise ValueError(f"recipe {recipe}, not {RECIPE}")
        features = PromptFeatures(*(file.get_tensor(name) for name in ("tokens", "mel", "speaker")))
    tokens, mel, speaker = features.tokens, features.mel, features.speaker
    if tokens.ndim != 1 or mel.shape != (2 * len(tokens), MELS) or speaker.shape != (SPEAKER,):
        raise ValueError(f"shapes {[list(t.shape) for t in (tokens, mel, speaker)]} are no prompt's")
    if tokens.dtype != torch.int64 or not bool(((tokens >= 0) & (tokens < SPEECH_VOCAB)).all()):
        raise ValueError("it holds tokens that there are not")
    if not bool(mel.isfinite().all() and speaker.isfinite().all()):
        raise ValueError("it holds numbers that are not finite")
    return features
