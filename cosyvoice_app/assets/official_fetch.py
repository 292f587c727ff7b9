"""Bring the official files into a directory: resumable, checked, and nothing half made under a final name.

A file grows as `<name>.part` beside its place and is renamed once its size and SHA-256 are right. A run that was
stopped goes on where it was. Files that are there already are never written over, unless they are plainly broken.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import httpx

from cosyvoice_app.assets.hashes import HashCache
from cosyvoice_app.assets.locking import locked
from cosyvoice_app.assets.official import FETCH, FILES, LLM_RL, MODEL, REVISION, OfficialFile, fault_of
from cosyvoice_app.errors import AssetError
from cosyvoice_app.types import OnProgress, Progress, ignore_progress

Source = Literal["huggingface", "modelscope"]
SOURCES: tuple[Source, ...] = ("huggingface", "modelscope")

_BLOCK_BYTES = 1 << 20
_TRIES = 5
_TIMEOUT = httpx.Timeout(30.0, connect=15.0)
_TOOK_LATER = (408, 425, 429, 500, 502, 503, 504)


def base_url(source: Source, endpoint: str | None = None) -> str:
    """Where the files of `source` lie. `endpoint` replaces the site (a mirror); so does HF_ENDPOINT, Hugging Face's."""
    if source == "huggingface":
        site = endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        return f"{site.rstrip('/')}/{MODEL}/resolve/{REVISION}"
    return f"{(endpoint or 'https://modelscope.cn').rstrip('/')}/models/{MODEL}/resolve/master"


def wanted(*, llm_rl: bool = False) -> tuple[OfficialFile, ...]:
    return tuple(file for file in FILES if file.role == "needed" or (llm_rl and file is LLM_RL))


def fetch_official(folder: Path, *, source: Source = "huggingface", endpoint: str | None = None,
                   files: Sequence[OfficialFile] | None = None, cache: Path | None = None,
                   progress: OnProgress = ignore_progress, pause_s: float = 1.0) -> Path:
    """Fetch what `folder` lacks of `files` (default: all that the engine needs); return `folder`.

    Raises AssetError with the cause and the remedy. What was fetched until then is kept, and used by the next call.
    `pause_s` is the wait before a second try; it doubles with each.
    """
    files = wanted() if files is None else files
    base = base_url(source, endpoint)
    with _readable_os_errors(folder, files), locked(folder / ".fetch.lock", str(folder), progress):
        hashes = HashCache(cache)
        meter = _Meter(files, progress)
        open_ones = [file for file in files if not _is_there(folder, file, hashes, meter)]
        _check_space(folder, open_ones)
        with httpx.Client(follow_redirects=True, timeout=_TIMEOUT) as client:
            for file in open_ones:
                _fetch_one(client, f"{base}/{file.name}", folder, file, hashes, meter, source, pause_s)
    progress(Progress("asset", 1.0, f"{folder}: all {len(files)} files are there, and are the official ones"))
    return folder


def _is_there(folder: Path, file: OfficialFile, hashes: HashCache, meter: _Meter) -> bool:
    """Whether the official file is in place. Raises AssetError when another file has its name."""
    path = folder / file.name
    if not path.is_file():
        return False
    if fault_of(path):
        return False  # no one's work is lost by fetching over a pointer or a web page
    size = path.stat().st_size
    if size == file.bytes and hashes.sha256(path, meter.checking(file)) == file.sha256:
        meter.finish(file)
        return True
    found = f"{size} bytes, expected {file.bytes}" if size != file.bytes else "right size, another SHA-256"
    raise AssetError(f"{path} is there, but is not the official file ({found}). It was left alone. If it is a damaged "
                     "download, delete it and run this again; if it is a model of your own, fetch the official one "
                     "into another directory with --dir.")


def _fetch_one(client: httpx.Client, url: str, folder: Path, file: OfficialFile, hashes: HashCache, meter: _Meter,
               source: Source, pause_s: float) -> None:
    path = folder / file.name
    part = path.with_name(path.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    failures = most = 0
    digest = _digest_of(part, file)
    while True:
        most = max(most, _size(part))
        try:
            digest = _append(client, url, part, file, digest, meter)
            break
        except (httpx.TransportError, _TryLater) as error:
            # A connection that gets further each time is tried on; one that brings nothing new is given up.
            failures = 1 if _size(part) > most else failures + 1
            if failures >= _TRIES:
                raise _unreachable(url, error, source) from error
            meter.say(f"{file.name}: {error or type(error).__name__}; trying again")
            time.sleep(pause_s * 2 ** (failures - 1))
            digest = _digest_of(part, file)
    if digest.hexdigest() != file.sha256:
        part.unlink()
        raise AssetError(f"{url} is not the file of revision {REVISION[:12]}: its SHA-256 is {digest.hexdigest()}, "
                         f"expected {file.sha256}. It was deleted. Run the command again; if it stays so, try the "
                         f"other source ({_other(source)}), or fetch that revision by other means.")
    with part.open("rb+") as stream:
        os.fsync(stream.fileno())
    os.replace(part, path)
    hashes.remember(path, file.sha256)
    meter.finish(file)


def _append(client: httpx.Client, url: str, part: Path, file: OfficialFile, digest: hashlib._Hash,
            meter: _Meter) -> hashlib._Hash:
    """Bring `part` to its full size; `digest` covers what it holds already. Returns the digest of the whole."""
    have = _size(part)
    if have == file.bytes:
        return digest
    headers = {"Range": f"bytes={have}-"} if have else {}
    # Asked for as it is: a compressed answer couldn't be resumed by position.
    with client.stream("GET", url, headers={**headers, "Accept-Encoding": "identity"}) as answer:
        _check_status(answer, url)
        resumed = answer.status_code == 206
        if have and not (resumed and answer.headers.get("content-range", "").startswith(f"bytes {have}-")):
            if resumed or answer.status_code == 416:
                part.unlink(missing_ok=True)
                raise _TryLater("the server can't go on from where we stopped; starting this file again")
            have, digest = 0, hashlib.sha256()  # 200: the server sends the whole
        announced = answer.headers.get("content-length")
        if announced and announced.isdigit() and have + int(announced) != file.bytes:
            part.unlink(missing_ok=True)
            raise AssetError(f"{url} has {have + int(announced)} bytes, expected {file.bytes}: it is not the file of "
                             f"revision {REVISION[:12]}, or something in between (a proxy's sign-in page) answered.")
        with part.open("ab" if have else "wb") as out:
            for block in answer.iter_raw(_BLOCK_BYTES):
                have += len(block)
                if have > file.bytes:
                    break
                out.write(block)
                digest.update(block)
                meter.at(file, have)
    if have > file.bytes:
        part.unlink(missing_ok=True)
        raise AssetError(f"{url} is longer than {file.bytes} bytes: it is not the file of revision {REVISION[:12]}.")
    if have < file.bytes:
        raise _TryLater("the connection ended early")
    return digest


class _TryLater(Exception):
    """An answer that a second try may better."""


def _check_status(answer: httpx.Response, url: str) -> None:
    status = answer.status_code
    if status in (200, 206, 416):
        return
    if status in _TOOK_LATER:
        raise _TryLater(f"the server answered {status} {answer.reason_phrase}")
    if status in (401, 403):
        raise AssetError(f"{url}: the server refuses it ({status}). The model may have become one that wants a login; "
                         f"open {url} in a browser, or download by that site's own tool.")
    if status == 404:
        raise AssetError(f"{url} does not exist (404). A mirror may lack this model or revision; try another --source "
                         "or --endpoint.")
    raise AssetError(f"{url}: the server answered {status} {answer.reason_phrase}.")


def _unreachable(url: str, error: Exception, source: Source) -> AssetError:
    return AssetError(f"{url} can't be fetched: {error or type(error).__name__}. What came so far is kept: run the "
                      f"same command again to go on. Behind a proxy set HTTPS_PROXY; try --source {_other(source)}, or "
                      "--endpoint with a mirror. For a machine that stays offline, fetch on another one and copy the "
                      "directory.")


def _other(source: Source) -> Source:
    return "modelscope" if source == "huggingface" else "huggingface"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _digest_of(part: Path, file: OfficialFile) -> hashlib._Hash:
    """Of what an earlier run left; a part that is too long is of another file and goes."""
    if _size(part) > file.bytes:
        part.unlink()
    digest = hashlib.sha256()
    if part.is_file():
        with part.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
    return digest


def _check_space(folder: Path, files: Sequence[OfficialFile]) -> None:
    need = sum(file.bytes - min(file.bytes, _size(folder / f"{file.name}.part")) for file in files)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise AssetError(f"{folder} needs {need / 1e9:.1f} GB more and its disk has {free / 1e9:.1f} GB free. Free "
                         "space, or choose another place with --dir.")


@contextmanager
def _readable_os_errors(folder: Path, files: Sequence[OfficialFile]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            total = sum(file.bytes for file in files) / 1e9
            raise AssetError(f"The disk of {folder} is full; the model takes {total:.1f} GB. Free space, or choose "
                             "another place with --dir. What came so far is kept.") from error
        raise AssetError(f"{folder} can't be written to: {error.strerror or error}. Make it writable, or choose "
                         f"another place: {FETCH} --dir DIR.") from error


class _Meter:
    """Bytes of all files together, as one fraction that never goes back by more than a file started again."""

    def __init__(self, files: Sequence[OfficialFile], progress: OnProgress) -> None:
        self._done = dict.fromkeys((file.name for file in files), 0)
        self._total = max(1, sum(file.bytes for file in files))
        self._progress = progress

    def at(self, file: OfficialFile, have: int) -> None:
        self._done[file.name] = have
        self.say(f"{file.name}: {have / 1e6:.0f} of {file.bytes / 1e6:.0f} MB")

    def checking(self, file: OfficialFile) -> Callable[[int], None]:
        return lambda have: self.say(f"{file.name}: checking, {have / 1e6:.0f} of {file.bytes / 1e6:.0f} MB")

    def finish(self, file: OfficialFile) -> None:
        self._done[file.name] = file.bytes
        self.say(f"{file.name}: ready")

    def say(self, message: str) -> None:
        self._progress(Progress("asset", sum(self._done.values()) / self._total, message))
