"""Clips already decoded and judged, so that a voice that speaks often is listened to once.

A clip is known by the bytes of its file and the stretch that is asked for: all that `load_prompt`'s answer depends on.
A name only appears in the messages of errors, and errors are not kept.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from pathlib import Path

from cosyvoice_app.audio import io
from cosyvoice_app.audio.prompt import load_prompt
from cosyvoice_app.types import CacheCounts, PromptClip
from cosyvoice_app.voices.shared_lru import SharedLru

_MOST_BYTES = 128_000_000
"""Some 90 clips of 15 s at 24 kHz."""
_MOST_CLIPS = 256


class ClipCache:
    """Takes the place of `load_prompt`. Safe to use from several threads."""

    def __init__(self, *, most_bytes: int = _MOST_BYTES, most_clips: int = _MOST_CLIPS) -> None:
        self._clips: SharedLru[PromptClip] = SharedLru(
            most_bytes=most_bytes, most_items=most_clips, size_of=lambda clip: clip.samples.nbytes
        )

    def load(self, source: Path | bytes, *, name_hint: str = "", window_s: tuple[float, float] | None = None,
             max_bytes: int = io.MAX_BYTES) -> PromptClip:
        """As `load_prompt`, with the same errors. A file is read anew each time, so that a changed one never gives the
        old clip.

        The samples are shared and can't be written to; the report is the caller's own.
        """
        data = io.read(source, name_hint=name_hint, max_bytes=max_bytes)

        def judge() -> PromptClip:
            clip = load_prompt(data, name_hint=name_hint, window_s=window_s, max_bytes=max_bytes)
            clip.samples.flags.writeable = False
            return clip

        clip, _ = self._clips.obtain(f"{hashlib.sha256(data).hexdigest()} {window_s!r}", judge)
        return replace(clip, report=copy.deepcopy(clip.report))

    def counts(self) -> CacheCounts:
        return self._clips.counts()
