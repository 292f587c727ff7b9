"""Voices already made, newest use last. Lives beside the engine; an engine's own disk cache is its own affair."""

from __future__ import annotations

from collections import OrderedDict

from cosyvoice_app.types import Voice


class VoiceCache:
    """Least recently used out first. Keys come from `SpeakerEncoder.voice_key`: content, never a name."""

    def __init__(self, capacity: int = 4) -> None:
        """A fitted voice may hold a few hundred megabytes, and engines find theirs again on disk: keep few."""
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1")
        self._capacity = capacity
        self._voices: OrderedDict[str, Voice] = OrderedDict()

    def get(self, key: str) -> Voice | None:
        voice = self._voices.get(key)
        if voice is not None:
            self._voices.move_to_end(key)
        return voice

    def put(self, key: str, voice: Voice) -> None:
        self._voices[key] = voice
        self._voices.move_to_end(key)
        while len(self._voices) > self._capacity:
            self._voices.popitem(last=False)

    def clear(self) -> None:
        self._voices.clear()

    def __len__(self) -> int:
        return len(self._voices)
