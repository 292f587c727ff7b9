"""Voices already made, newest use last. Lives beside the engine; an engine's own disk cache is its own affair."""

from __future__ import annotations

from cosyvoice_app.types import CacheCounts as CacheCounts
from cosyvoice_app.types import Voice
from cosyvoice_app.voices.shared_lru import SharedLru

MB = 1_000_000
_DEFAULT_BYTES = 1024 * MB
_MOST_VOICES = 256
"""Also for engines that don't say how large their voices are."""


class VoiceCache(SharedLru[Voice]):
    """Keys come from `SpeakerEncoder.voice_key`: content, never a name."""

    def __init__(self, most_bytes: int = _DEFAULT_BYTES) -> None:
        super().__init__(most_bytes=most_bytes, most_items=_MOST_VOICES, size_of=lambda voice: voice.size_bytes)
