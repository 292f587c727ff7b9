"""Saved voices on disk: one folder each, `ID/voice.json` and `ID/clip.wav`. Kept is the clip, not a model of it.

An id is made here, from the name's plain letters and a hash of the content; a name never becomes a path. The clip is
kept as 32-bit float, so that a saved voice is the very clip that was judged, with the same hash, and fits made of it
are found again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import unicodedata
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import soundfile

from cosyvoice_app.assets import cache_dir
from cosyvoice_app.audio.prompt import load_prompt
from cosyvoice_app.errors import AppError, BadInput, NotFound, PromptError, TooLarge
from cosyvoice_app.leftovers import remove_leftovers
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import PROMPT_TEXT_MAX_CHARS, PromptClip
from cosyvoice_app.voices.clips import ClipCache

NAME_MAX_CHARS = 100

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_ENTRY = re.compile(rf"(?P<id>{_ID.pattern})/(?P<file>voice\.json|clip\.wav)")
_ZIP_MAX_VOICES = 500
_ZIP_MAX_BYTES = 1_000_000_000
_CLIP_MAX_BYTES = 25_000_000
_NOTE_MAX_BYTES = 100_000
_TEMP_PREFIX = ".unfinished-"


@dataclass(frozen=True, slots=True)
class SavedVoice:
    """`created` is ISO 8601 in UTC. `sha256` is the clip's content hash."""

    id: str
    name: str
    prompt_text: str
    created: str
    duration_s: float
    rate_hz: int
    sha256: str


class VoiceLibrary:
    """Safe to use from several threads and processes: a voice appears and disappears whole.

    `clips` keeps the clips that were judged lately; uploads may go through it too.
    """

    def __init__(self, settings: Settings, clips: ClipCache | None = None) -> None:
        self.clips = clips or ClipCache()
        beside_cache = cache_dir(settings.cache)
        self.folder = (settings.voices or beside_cache.with_name(f"{beside_cache.name}-voices")).expanduser()

    def add(self, name: str, clip: PromptClip, prompt_text: str = "") -> SavedVoice:
        """Keep a voice. The same name, clip and words again are the same voice. Raises BadInput for a bad name."""
        name, prompt_text = _clean_name(name), prompt_text.strip()
        if len(prompt_text) > PROMPT_TEXT_MAX_CHARS:
            raise BadInput(f"The clip's words are {len(prompt_text)} characters long; at most {PROMPT_TEXT_MAX_CHARS} "
                           "are allowed.", param="prompt_text")
        voice = SavedVoice(_make_id(name, clip, prompt_text), name, prompt_text, _now(), round(clip.duration_s, 4),
                           clip.rate_hz, clip.sha256)
        final = self.folder / voice.id
        with self._disk():
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder, f"{_TEMP_PREFIX}*")
            if final.is_dir():
                return self.get(voice.id)
            part = self.folder / f"{_TEMP_PREFIX}{uuid.uuid4().hex}"
            part.mkdir()
            try:
                soundfile.write(part / "clip.wav", clip.samples, clip.rate_hz, format="WAV", subtype="FLOAT")
                (part / "voice.json").write_text(_to_json(voice), encoding="utf-8")
                try:
                    part.rename(final)
                except OSError:
                    if not final.is_dir():
                        raise
                    return self.get(voice.id)  # someone else saved the same voice a moment ago
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return voice

    def get(self, voice_id: str) -> SavedVoice:
        """Raises NotFound, naming what there is."""
        note = self._folder(voice_id) / "voice.json"
        try:
            return SavedVoice(**{**json.loads(note.read_text(encoding="utf-8")), "id": voice_id})
        except FileNotFoundError:
            raise _not_found(voice_id) from None
        except (OSError, ValueError, TypeError) as error:
            raise AppError(f"The saved voice {voice_id} can't be read: {error}. "
                           "Remove it and save it again.") from error

    def load(self, voice_id: str) -> tuple[PromptClip, str]:
        """The clip, judged like any other, and its words. Raises NotFound, and PromptError for a damaged clip."""
        voice = self.get(voice_id)
        folder = self._folder(voice_id)
        try:
            return self.clips.load(folder / "clip.wav", name_hint="clip.wav"), voice.prompt_text
        except PromptError:
            if not folder.is_dir():
                raise _not_found(voice_id) from None  # removed a moment ago
            raise

    def remove(self, voice_id: str) -> None:
        """Raises NotFound."""
        folder = self._folder(voice_id)
        away = self.folder / f"{_TEMP_PREFIX}{uuid.uuid4().hex}"
        with self._disk():
            try:
                os.utime(folder)  # so that nobody takes it for an old leftover while it goes
                folder.rename(away)
            except FileNotFoundError:
                raise _not_found(voice_id) from None
            shutil.rmtree(away)

    def export(self, voice_ids: Sequence[str] = ()) -> bytes:
        """A zip of the named voices, or of all. Raises NotFound."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for voice_id in voice_ids or [voice.id for voice in self.list()]:
                archive.writestr(f"{voice_id}/voice.json", _to_json(self.get(voice_id)))
                archive.write(self._folder(voice_id) / "clip.wav", f"{voice_id}/clip.wav")
        return buffer.getvalue()

    def import_zip(self, data: bytes) -> list[SavedVoice]:
        """Add every voice of an exported zip. All are judged before any is kept.

        Raises BadInput for anything that is not such a zip, TooLarge for one that would unpack beyond the limits.
        """
        judged = []
        with _open_zip(data) as archive:
            for voice_id in sorted(_voices_in(archive)):
                note = json.loads(_read_entry(archive, f"{voice_id}/voice.json", _NOTE_MAX_BYTES))
                name, words = (note.get("name"), note.get("prompt_text", "")) if isinstance(note, dict) else (None, "")
                if not isinstance(name, str) or not isinstance(words, str):
                    raise BadInput(f"{voice_id}/voice.json in the zip has no usable name.", param="file")
                clip = load_prompt(_read_entry(archive, f"{voice_id}/clip.wav", _CLIP_MAX_BYTES), name_hint="clip.wav")
                judged.append((_clean_name(name), clip, words))
        return [self.add(name, clip, words) for name, clip, words in judged]

    def list(self) -> list[SavedVoice]:
        """All voices by name, then age. A folder that holds no readable voice is passed over."""
        found = []
        folders = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        for folder in folders:
            if _ID.fullmatch(folder.name) and (folder / "voice.json").is_file():
                with contextlib.suppress(AppError):
                    found.append(self.get(folder.name))
        return sorted(found, key=lambda voice: (voice.name.casefold(), voice.created))

    def _folder(self, voice_id: str) -> Path:
        if not _ID.fullmatch(voice_id):
            raise _not_found(voice_id)
        return self.folder / voice_id

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AppError(f"Saved voices can't be written in {self.folder}: {error.strerror or error}. "
                           "Free some space or choose another folder with --voices.") from error


def _clean_name(name: str) -> str:
    cleaned = " ".join("".join(c if unicodedata.category(c)[0] != "C" else " " for c in name).split())
    cleaned = unicodedata.normalize("NFC", cleaned)
    if not cleaned:
        raise BadInput("The voice needs a name.", param="name")
    if len(cleaned) > NAME_MAX_CHARS:
        raise BadInput(f"The name is {len(cleaned)} characters long; at most {NAME_MAX_CHARS} are allowed.",
                       param="name")
    return cleaned


def _make_id(name: str, clip: PromptClip, prompt_text: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].strip("-") or "voice"
    content = hashlib.sha256("\0".join((name, clip.sha256, prompt_text)).encode()).hexdigest()
    return f"{slug}-{content[:8]}"


def _to_json(voice: SavedVoice) -> str:
    return json.dumps(asdict(voice), ensure_ascii=False, indent=2) + "\n"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _not_found(voice_id: str) -> NotFound:
    shown = voice_id if len(voice_id) <= 80 else voice_id[:77] + "..."
    return NotFound(f"There is no saved voice {shown!r}. GET /v1/voices and `voices list` show those there are.",
                    param="voice")


@contextmanager
def _open_zip(data: bytes) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, json.JSONDecodeError, UnicodeDecodeError, EOFError, RuntimeError,
            zlib.error) as error:
        raise BadInput(f"The file is not a zip of saved voices, or it is damaged: {error}.", param="file") from error


def _voices_in(archive: zipfile.ZipFile) -> set[str]:
    """Ids in the zip. Every entry must be one that `export` writes; sizes are bounded before anything is unpacked."""
    ids: dict[str, set[str]] = {}
    total = 0
    for entry in archive.infolist():
        match = _ENTRY.fullmatch(entry.filename)
        if match is None:
            raise BadInput(f"The zip holds {entry.filename[:80]!r}; a zip of saved voices holds only ID/voice.json and "
                           "ID/clip.wav.", param="file")
        ids.setdefault(match["id"], set()).add(match["file"])
        total += entry.file_size
    if len(ids) > _ZIP_MAX_VOICES or total > _ZIP_MAX_BYTES:
        raise TooLarge(f"The zip holds {len(ids)} voices of {total / 1e6:.0f} MB in all; at most {_ZIP_MAX_VOICES} "
                       f"voices and {_ZIP_MAX_BYTES / 1e6:.0f} MB are taken.", param="file")
    for voice_id, files in ids.items():
        if len(files) != 2:
            raise BadInput(f"The zip holds only {', '.join(files)} of voice {voice_id}.", param="file")
    if not ids:
        raise BadInput("The zip holds no voices.", param="file")
    return set(ids)


def _read_entry(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """What the entry unpacks to, whatever its header claims, up to `limit` bytes."""
    with archive.open(name) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"{name} in the zip is larger than {limit / 1e6:g} MB.", param="file")
    return data
