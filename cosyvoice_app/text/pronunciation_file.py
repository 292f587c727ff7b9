"""The pronunciation file of a server or a command line: read when it changes, so that an edit needs no restart."""

from __future__ import annotations

import threading
from pathlib import Path

from cosyvoice_app.errors import BadInput, ConfigError
from cosyvoice_app.text.pronunciations import NONE, Pronunciations, from_toml

DEFAULT_NAME = "pronunciations.toml"
MAX_BYTES = 1_000_000


class PronunciationFile:
    """Thread-safe. Without a named file, `pronunciations.toml` of the working directory is used if it is there.

    Raises ConfigError when the file that is there at first can't be used. Later a bad edit is no error: what was read
    last goes on being used, and `current` says so until the file is mended.
    """

    def __init__(self, named: Path | None) -> None:
        self._path = named if named is not None else Path.cwd() / DEFAULT_NAME
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._entries, self._trouble = NONE, ""
        if named is not None and not named.is_file():
            raise ConfigError(f"There is no pronunciation file at {named}.", param="pronunciations")
        _, trouble = self.current()
        if trouble:
            raise ConfigError(trouble[0], param="pronunciations")

    def current(self) -> tuple[Pronunciations, tuple[str, ...]]:
        """The entries to use now, and a warning while the file can't be read."""
        with self._lock:
            seen = self._stamp()
            if seen != self._seen:
                self._seen = seen
                self._read(seen)
            return self._entries, (self._trouble,) if self._trouble else ()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def _read(self, seen: tuple[int, int] | None) -> None:
        if seen is None:
            if self._entries:
                self._trouble = f"{self._path.name} is gone; the words last read from it are still in use."
            return
        try:
            if seen[1] > MAX_BYTES:
                raise BadInput(f"{self._path.name} has {seen[1]} bytes; at most {MAX_BYTES} are allowed.")
            self._entries = from_toml(self._path.read_text(encoding="utf-8-sig"), self._path.name)
            self._trouble = ""
        except BadInput as error:
            self._trouble = error.message
        except (OSError, UnicodeDecodeError) as error:
            self._trouble = f"{self._path.name} can't be read: {error}."
