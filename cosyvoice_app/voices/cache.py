"""Voices already made, newest use last. Lives beside the engine; an engine's own disk cache is its own affair."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from cosyvoice_app.types import CancelToken, Voice

MB = 1_000_000
_DEFAULT_BYTES = 1024 * MB
_MOST_VOICES = 256
"""Also for engines that don't say how large their voices are."""
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class CacheCounts:
    hits: int
    misses: int
    voices: int
    size_bytes: int


class VoiceCache:
    """Least recently used out first. Keys come from `SpeakerEncoder.voice_key`: content, never a name.

    Safe to use from several threads. A voice that is being made is waited for, not made twice.
    """

    def __init__(self, most_bytes: int = _DEFAULT_BYTES) -> None:
        """The voice used last stays, whatever it takes."""
        if most_bytes < 0:
            raise ValueError(f"most_bytes is {most_bytes}; it must not be negative")
        self._most_bytes = most_bytes
        self._voices: OrderedDict[str, Voice] = OrderedDict()
        self._making: set[str] = set()
        self._changed = threading.Condition()
        self._hits = self._misses = 0

    def obtain(self, key: str, make: Callable[[], Voice], *, cancel: CancelToken) -> tuple[Voice, bool]:
        """(the voice, was it there). Whoever waits for another's making and sees it fail makes it himself: the failure
        may have been the other's own, a cancel above all."""
        with self._changed:
            while (known := self._voices.get(key)) is None and key in self._making:
                cancel.check()
                self._changed.wait(_LOOK_S)
            if known is not None:
                self._voices.move_to_end(key)
                self._hits += 1
                return known, True
            self._making.add(key)
            self._misses += 1
        try:
            voice = make()
            with self._changed:
                self._voices[key] = voice
                self._prune()
        finally:
            with self._changed:
                self._making.discard(key)
                self._changed.notify_all()
        return voice, False

    def clear(self) -> None:
        with self._changed:
            self._voices.clear()

    def counts(self) -> CacheCounts:
        with self._changed:
            return CacheCounts(self._hits, self._misses, len(self._voices), self._size())

    def __len__(self) -> int:
        return len(self._voices)

    def _size(self) -> int:
        return sum(voice.size_bytes for voice in self._voices.values())

    def _prune(self) -> None:
        while len(self._voices) > 1 and (len(self._voices) > _MOST_VOICES or self._size() > self._most_bytes):
            self._voices.popitem(last=False)
