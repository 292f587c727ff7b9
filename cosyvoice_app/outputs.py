"""Results on disk: `output_YYYYMMDD_HHMMSS.wav` and the `.json` beside it that can make the same audio again.

A name is never taken from a user and never overwrites: whoever publishes first owns it, the next one gets `_2`, `_3`,
across threads and processes. A file with a final name is always whole. Names sort by time; from the tenth of one second
on as people and file managers sort numbers (`_9`, `_10`), for leading zeros would be another name.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from cosyvoice_app import __version__
from cosyvoice_app.audio.encode import encode
from cosyvoice_app.errors import AppError
from cosyvoice_app.leftovers import remove_leftovers
from cosyvoice_app.pipeline import EngineFacts, Job, Spoken
from cosyvoice_app.types import Audio, PromptClip

log = logging.getLogger(__name__)

_TEMP_PREFIX, _TEMP_SUFFIX = ".unfinished-", ".tmp"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EACCES)


def describe(text: str, job: Job, spoken: Spoken, facts: EngineFacts, timings: dict[str, float]) -> dict[str, Any]:
    """The sidecar: with the clip at hand, enough to make the same audio again."""
    return {
        "app_version": __version__,
        "text": text,
        "segments": [segment.text for segment in job.segments],
        "instruct": job.intent.text,
        "seed": job.seed,
        "speed": job.speed,
        "refine": job.refine,
        "prompt_text": job.transcript,
        "prompt": describe_prompt(job.clip),
        "engine": facts.engine,
        "model_hash": facts.model_hash,
        "precision": facts.precision,
        "device": facts.device,
        "voice_cached": spoken.voice_cached,
        "timings": {name: round(value, 4) for name, value in timings.items()},
        "notes": list(spoken.notes),
        "warnings": list(spoken.warnings),
    }


def describe_prompt(clip: PromptClip) -> dict[str, Any]:
    """The clip as it was used, measured after decoding."""
    return {"sha256": clip.sha256, "duration_s": round(clip.duration_s, 4), "rate_hz": clip.rate_hz,
            "rms_dbfs": round(clip.rms_dbfs, 2), "container": clip.container}


class OutputStore:
    """A folder of results. Safe to use from several threads and processes at once."""

    def __init__(self, folder: Path, *, clock: Callable[[], datetime] = datetime.now) -> None:
        """`clock` gives local time. Raises AppError when the folder can't be made or written to."""
        self.folder = folder.expanduser().resolve()
        self._clock = clock
        self._naming = threading.Lock()
        self._stem, self._last_number = "", 0
        self._told_of_sync = False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder, f"{_TEMP_PREFIX}*{_TEMP_SUFFIX}")
        except OSError as error:
            raise _cannot_write(self.folder, error) from error

    def save(self, audio: Audio, sidecar: dict[str, Any]) -> Path:
        """Write `audio` as 16-bit PCM mono at its own rate, and `sidecar` as JSON. Returns the WAV's path.

        The sidecar gets `file`, `created`, `duration_s` and `rate_hz` added. Raises AppError when the disk refuses.
        """
        now = self._clock()
        facts = {"file": "", "created": now.astimezone().isoformat(timespec="seconds"),
                 "duration_s": round(audio.duration_s, 6), "rate_hz": audio.rate_hz, **sidecar}
        try:
            wav = self._write_temp(lambda path: write_synced(path, encode(audio, "wav")))
            try:
                path = self._publish_pair(wav, f"output_{now:%Y%m%d_%H%M%S}", facts)
            finally:
                wav.unlink(missing_ok=True)
        except OSError as error:
            raise _cannot_write(self.folder, error) from error
        self._sync_folder()
        return path

    def remove(self, path: Path) -> None:
        """Take back a saved result and its sidecar. Raises AppError when the disk refuses."""
        try:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)
        except OSError as error:
            raise AppError(f"{path} could not be removed: {error.strerror or error}.") from error

    def _publish_pair(self, wav: Path, stem: str, facts: dict[str, Any]) -> Path:
        """The sidecar goes first and holds the name, so that no WAV is ever seen without one."""
        while True:
            name = self._next_name(stem)
            final, beside = self.folder / f"{name}.wav", self.folder / f"{name}.json"
            if final.exists() or beside.exists():
                continue
            text = json.dumps({**facts, "file": final.name}, ensure_ascii=False, indent=2) + "\n"
            note = self._write_temp(lambda path, text=text: write_synced(path, text.encode()))  # type: ignore[misc]
            try:
                if not publish(note, beside):
                    continue
                published = False
                try:
                    published = publish(wav, final)
                finally:
                    if not published:
                        beside.unlink(missing_ok=True)
                if published:
                    return final
            finally:
                note.unlink(missing_ok=True)

    def _next_name(self, stem: str) -> str:
        """One that this store has not tried yet, so that many results in one second don't try each other's names."""
        with self._naming:
            self._last_number = self._last_number + 1 if stem == self._stem else 1
            self._stem = stem
            return stem if self._last_number == 1 else f"{stem}_{self._last_number}"

    def _write_temp(self, write: Callable[[Path], None]) -> Path:
        path = self.folder / f"{_TEMP_PREFIX}{os.getpid()}-{uuid.uuid4().hex}{_TEMP_SUFFIX}"
        try:
            write(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def _sync_folder(self) -> None:
        """Make the new names themselves durable. Windows has no such call and some file systems refuse it; the files
        are whole all the same."""
        if os.name == "nt":
            return
        try:
            handle = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            if not self._told_of_sync:
                log.warning("%s can't be synced, so a power cut may cost its newest files: %s", self.folder, error)
            self._told_of_sync = True


def publish(temporary: Path, final: Path) -> bool:
    """Give a finished file its final name, atomically; False when the name is taken. `temporary` may remain."""
    try:
        if os.name == "nt":
            os.rename(temporary, final)
        else:
            os.link(temporary, final)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _publish_without_links(temporary, final)
    return True


def _publish_without_links(temporary: Path, final: Path) -> bool:
    """For file systems without hard links: an exclusive empty file holds the name until the real one replaces it."""
    try:
        os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    try:
        os.replace(temporary, final)
    except BaseException:
        final.unlink(missing_ok=True)
        raise
    return True


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _cannot_write(folder: Path, error: OSError) -> AppError:
    return AppError(f"The result can't be written to {folder}: {error.strerror or error}. "
                    "Free some space or choose another folder with --outputs.")
