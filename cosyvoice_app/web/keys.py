"""API keys: a file of names and hashes, made by `python -m cosyvoice_app keys`, and the check of what callers send.

Keys are 256 random bits, so nobody can guess one from its hash, and a salted SHA-256 protects them as well as a slow
hash would, which exists to protect what people choose. It costs about a microsecond a key, so that all of them can be
compared at every request, in the same time whichever fits.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock

from cosyvoice_app.errors import BadInput, ConfigError, NotFound

log = logging.getLogger(__name__)

KEY_START = "cvk_"
"""Lets people and secret scanners see what it is."""
MOST_KEYS = 10_000
_MOST_BYTES = 10_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEX = re.compile(r"[0-9a-f]+")
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """`salt` (16 bytes) and `hash` (SHA-256 of salt and key) in hexadecimal; `created` is ISO 8601 in UTC."""

    name: str
    salt: str
    hash: str
    created: str

    def fits(self, key: bytes) -> bool:
        found = hashlib.sha256(bytes.fromhex(self.salt) + key).digest()
        return hmac.compare_digest(found, bytes.fromhex(self.hash))


def name_of_key(entries: Sequence[KeyEntry], key: bytes) -> str | None:
    """The name of the entry that fits. All are compared, whichever fits."""
    found = None
    for entry in entries:
        if entry.fits(key):
            found = entry.name
    return found


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """Raises ConfigError naming the file, what is wrong with it and what to do."""
    remedy = f"Mend it, or make one with `python -m cosyvoice_app keys add NAME --file {path}`."
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"There is no file of API keys {path}. {remedy}", param="api_keys") from None
    except OSError as error:
        raise ConfigError(
            f"The API keys in {path} can't be read: {error.strerror or error}.", param="api_keys"
        ) from error
    try:
        return _parse(raw)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"The file of API keys {path} is damaged: {error}. {remedy}", param="api_keys") from error


def add_key(path: Path, name: str) -> str:
    """Make a key and keep its hash. Returns the key, which nobody can find out again. Raises BadInput, ConfigError."""
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"The name {name[:80]!r} can't be used: letters, digits and . _ - (first a letter or digit), at most 64.",
            param="name",
        )
    with _locked(path):
        entries = read_keys(path) if path.exists() else ()
        if any(entry.name == name for entry in entries):
            raise BadInput(f"There is a key named {name} already. Remove it first, or choose another name.",
                           param="name")
        if len(entries) >= MOST_KEYS:
            raise BadInput(f"{path} holds {len(entries)} keys already, the most there can be.", param="name")
        key, salt = KEY_START + secrets.token_urlsafe(32), secrets.token_bytes(16)
        digest = hashlib.sha256(salt + key.encode()).hexdigest()
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        _write(path, (*entries, KeyEntry(name, salt.hex(), digest, created)))
    return key


def remove_key(path: Path, name: str) -> None:
    """Raises NotFound, ConfigError."""
    with _locked(path):
        entries = read_keys(path)
        kept = tuple(entry for entry in entries if entry.name != name)
        if len(kept) == len(entries):
            known = ", ".join(entry.name for entry in entries) or "none"
            raise NotFound(f"There is no key named {name[:80]!r} in {path}; there are: {known}.", param="name")
        _write(path, kept)


class KeyRing:
    """The keys that open the API: the one of `--api-key`, and those of the file `--api-keys`, as it is now.

    The file is looked at once a second at most. A file that can't be used is an error at the start; later the last
    good keys stay, and the log says so.
    """

    def __init__(self, plain: str, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError."""
        self._plain = plain.encode()
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = clock()
        self._stamp = _stamp(path) if path else None
        self._entries = read_keys(path) if path else ()
        if path and os.name == "posix" and path.stat().st_mode & 0o077:
            log.warning("others on this machine can read the API keys' hashes: chmod 600 %s", path)

    def __bool__(self) -> bool:
        """Whether a key is asked for. A file without a key in it asks for one and lets nobody in."""
        return bool(self._plain) or self._path is not None

    def named(self, key: bytes) -> str | None:
        """The name of the key of the file that this is."""
        return name_of_key(self._current(), key)

    def is_plain(self, key: bytes) -> bool:
        """Whether this is the key of `--api-key`."""
        return bool(self._plain) & hmac.compare_digest(key, self._plain)

    def _current(self) -> tuple[KeyEntry, ...]:
        if self._path is None:
            return ()
        with self._lock:
            now = self._clock()
            if now - self._looked_at >= _LOOK_EVERY_S:
                self._looked_at = now
                stamp = _stamp(self._path)
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._read_again(self._path)
            return self._entries

    def _read_again(self, path: Path) -> None:
        try:
            self._entries = read_keys(path)
        except ConfigError as error:
            log.error("%s The last good keys stay in use.", error.message)
        else:
            log.info("read %d API keys from %s", len(self._entries), path)


def _parse(raw: bytes) -> tuple[KeyEntry, ...]:
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
    data = json.loads(raw.decode("utf-8"))
    if not isinstance(data, dict) or not isinstance(data.get("keys"), list):
        raise ValueError('it has no list "keys"')
    entries = tuple(KeyEntry(**entry) for entry in data["keys"])
    for entry in entries:
        if not all(isinstance(value, str) for value in asdict(entry).values()) or not _NAME.fullmatch(entry.name):
            raise ValueError("an entry has no usable name, salt, hash or date")
        lengths = (len(entry.salt), len(entry.hash))
        if lengths != (32, 64) or not _HEX.fullmatch(entry.salt + entry.hash):
            raise ValueError(f"salt or hash of {entry.name} is not what it should be")
    if len({entry.name for entry in entries}) != len(entries):
        raise ValueError("a name occurs twice")
    return entries


def _write(path: Path, entries: Sequence[KeyEntry]) -> None:
    """The file appears whole, readable by its owner only."""
    text = json.dumps({"keys": [asdict(entry) for entry in entries]}, indent=2) + "\n"
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")  # mode 600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if part is not None:
            Path(part).unlink(missing_ok=True)
        raise ConfigError(f"The API keys can't be written to {path}: {error.strerror or error}.",
                          param="file") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone with the file. Raises ConfigError where there can be no lock beside it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"), mode=0o600)
        lock.acquire()
    except (OSError, ValueError) as error:  # no directory, none to write to, no name for a file
        raise ConfigError(
            f"The API keys can't be changed in {path}: {getattr(error, 'strerror', None) or error}. Name a file in a "
            "directory that you may write to.",
            param="file",
        ) from error
    try:
        yield
    finally:
        lock.release()


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
