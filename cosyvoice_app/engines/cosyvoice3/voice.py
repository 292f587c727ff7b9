"""The speaker encoder's side: a clip becomes speech tokens, a mel and a speaker vector, once."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch

from cosyvoice_app.engines.cosyvoice3.model import Model
from cosyvoice_app.engines.cosyvoice3.prompt import TAIL_SILENCE_S, PromptFeatures
from cosyvoice_app.engines.cosyvoice3.turns import Checked, Turns
from cosyvoice_app.engines.cosyvoice3.voice_store import PromptStore, prompt_key
from cosyvoice_app.engines.memory import give_back_freed
from cosyvoice_app.types import CancelToken, OnProgress, Progress, PromptClip, Refine, Voice

KEEP_IN_MEMORY = 32
"""Prompts kept at hand; some 200 kB each."""


@dataclass(frozen=True, slots=True)
class ClonedVoice:
    """What a request takes of a clip. The features know nothing of the words: one clip may come with different ones,
    and an instruction leaves them out."""

    features: PromptFeatures
    transcript: str


class CosyVoice3SpeakerEncoder:
    """`release_after` frees the speech tokenizer (0.9 GB) after every clip, where memory is dear. For any threads."""

    def __init__(self, model: Model, store: PromptStore, turns: Turns, *, release_after: bool) -> None:
        self._model = model
        self._turns = turns
        self._store = store
        self._release_after = release_after
        self._recent: OrderedDict[str, PromptFeatures] = OrderedDict()
        self._lock = threading.Lock()
        """Guards `_recent`."""

    def voice_key(self, clip: PromptClip, *, transcript: str, refine: Refine) -> str:
        parts = (self._features_key(clip), transcript.strip())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def encode(
        self, clip: PromptClip, *, transcript: str, refine: Refine, progress: OnProgress, cancel: CancelToken
    ) -> Voice:
        """Nothing is fitted, so `refine` changes nothing. Raises Cancelled, PromptError.

        Holds nothing, neither the turn nor a lock, while it asks `cancel`: others may then use all of the engine.
        """
        key = self._features_key(clip)
        with self._lock:
            features = self._recent.get(key)
        features = features or self._store.load(key, self._model.device)
        if features is None:
            progress(Progress("measuring", None))
            try:
                with torch.inference_mode(), self._turns.turn(cancel) as between:
                    (features,) = self._model.prompts.encode([(clip.samples, clip.rate_hz)], Checked(between))
            finally:
                if self._release_after:
                    self._model.prompts.release()
                    give_back_freed()
            self._store.save(key, features)
        with self._lock:
            self._recent[key] = features
            self._recent.move_to_end(key)
            while len(self._recent) > KEEP_IN_MEMORY:
                self._recent.popitem(last=False)
        return Voice(self.voice_key(clip, transcript=transcript, refine=refine),
                     ClonedVoice(features, transcript.strip()),
                     size_bytes=features.tokens.nbytes + features.mel.nbytes + features.speaker.nbytes)

    def _features_key(self, clip: PromptClip) -> str:
        # Tokens are rounded: those that one kind of device gives may differ from another's.
        made_by = f"{self._model.model_hash} {self._model.device.type}"
        return prompt_key(clip.sha256, made_by, tail_silence_s=TAIL_SILENCE_S)
