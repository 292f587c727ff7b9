"""Voices on disk: bounded, the least recently used out first, whole or absent, and shared by several processes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cosyvoice_app.engines import voice_files
from cosyvoice_app.engines.cosyvoice3.config import MELS, SPEAKER
from cosyvoice_app.engines.cosyvoice3.prompt import PromptFeatures
from cosyvoice_app.engines.cosyvoice3.voice_store import PromptStore
from cosyvoice_app.engines.lite.model import Resonance
from cosyvoice_app.engines.lite.voice import LiteVoice, Measures, VoiceStore
from cosyvoice_app.engines.voice_files import VoiceFiles
from cosyvoice_app.types import CacheCounts

KB = 1024


def of(kilobytes: int, value: int = 1) -> dict[str, Tensor]:
    return {"x": torch.full((kilobytes * KB,), value, dtype=torch.uint8)}


def value(path: Path) -> int:
    """What every byte of the file's tensor is."""
    (found,) = load_file(path)["x"].unique().tolist()
    return int(found)


def keys(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.safetensors")}


def age(folder: Path, key: str, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(folder / f"{key}.safetensors", (when, when))


def test_the_bytes_on_disk_are_bounded_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    files = VoiceFiles(tmp_path, keep=100, what="voice", most_bytes=100 * KB)
    for number, key in enumerate("abc"):
        files.save(key, of(30, number), {})
        age(tmp_path, key, 100 - number)
    assert files.load("a", value) == 0  # now b is the oldest
    files.save("d", of(30, 3), {})
    assert keys(tmp_path) == {"a", "c", "d"}
    files.save("e", of(60, 4), {})
    assert keys(tmp_path) == {"d", "e"}
    assert files.counts().size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100 * KB


def test_the_number_is_bounded_too_and_nothing_else_without_a_limit_of_bytes(tmp_path: Path) -> None:
    files = VoiceFiles(tmp_path, keep=2, what="voice")
    for number, key in enumerate("abcd"):
        files.save(key, of(500), {})
        age(tmp_path, key, 100 - number)
    assert keys(tmp_path) == {"c", "d"}


def test_what_is_larger_than_all_the_room_costs_nobody_his_place(tmp_path: Path) -> None:
    files = VoiceFiles(tmp_path, keep=10, what="voice", most_bytes=50 * KB)
    files.save("a", of(30), {})
    files.save("huge", of(60), {})
    assert keys(tmp_path) == {"a"}


def test_no_room_means_no_file(tmp_path: Path) -> None:
    VoiceFiles(tmp_path, keep=10, what="voice").save("a", of(1), {})
    none = VoiceFiles(tmp_path, keep=10, what="voice", most_bytes=0)
    assert none.load("a", value) is None
    none.save("b", of(1), {})
    assert keys(tmp_path) == set()
    elsewhere = VoiceFiles(tmp_path / "none", keep=10, what="voice", most_bytes=0)
    elsewhere.save("b", of(1), {})
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="negative"):
        VoiceFiles(tmp_path, keep=10, what="voice", most_bytes=-1)


def test_hits_and_misses_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = VoiceFiles(tmp_path, keep=10, what="fitted voice")
    assert files.counts() == CacheCounts(0, 0, 0, 0)
    assert files.load("a", value) is None
    files.save("a", of(3, 7), {})
    assert files.load("a", value) == 7
    assert not caplog.records
    size = (tmp_path / "a.safetensors").stat().st_size
    assert files.counts() == CacheCounts(1, 1, 1, size)
    (tmp_path / "a.safetensors").write_bytes(b"damaged")
    assert files.load("a", value) is None
    assert "fitted voice" in caplog.text
    assert files.counts() == CacheCounts(1, 2, 1, 7)


def test_leftovers_of_a_killed_process_go_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    old, young = tmp_path / ".unfinished-a", tmp_path / ".unfinished-b"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    VoiceFiles(tmp_path, keep=10, what="voice").save("a", of(1), {})
    assert (old.exists(), young.exists()) == (False, True)


def test_a_write_that_fails_leaves_nothing_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = VoiceFiles(tmp_path, keep=10, what="fitted voice")
    files.save("a", of(1, 1), {})

    def half(_: object, path: Path, **__: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(voice_files, "save_file", half)
    files.save("a", of(1, 2), {})
    assert "No space left" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    assert files.load("a", value) == 1


def test_a_file_that_another_process_prunes_under_our_hands_is_absent_and_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = VoiceFiles(tmp_path, keep=10, what="voice")
    files.save("a", of(1), {})

    def too_late(path: Path) -> int:
        path.unlink()
        return value(path)

    with caplog.at_level(logging.WARNING):
        assert files.load("a", too_late) is None
    assert not caplog.records


def test_threads_and_processes_share_a_folder(tmp_path: Path) -> None:
    """Whoever reads gets the whole of what that key holds, and the bounds hold at the end."""
    script = (
        "import sys, torch; from pathlib import Path; from cosyvoice_app.engines.voice_files import VoiceFiles\n"
        "files = VoiceFiles(Path(sys.argv[1]), keep=6, what='voice', most_bytes=200 * 1024)\n"
        "for n in range(60): files.save(f'k{n % 9}', {'x': torch.full((30 * 1024,), n % 9, dtype=torch.uint8)}, {})\n"
    )
    other = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE, text=True,
                             cwd=Path(__file__).parents[1])
    files = VoiceFiles(tmp_path, keep=6, what="voice", most_bytes=200 * KB)

    def read(seed: int) -> int:
        found, last = 0, False
        while not last:
            time.sleep(0.01)
            last = other.poll() is not None
            files.save(f"k{seed}", of(30, seed), {})
            for key in range(9):
                got = files.load(f"k{key}", value)
                assert got in (None, key)
                found += got is not None
        return found

    with ThreadPoolExecutor(3) as pool:
        found = sum(pool.map(read, range(3), timeout=120))
    assert other.communicate(timeout=60)[1] == ""
    assert found > 0
    assert 1 <= len(keys(tmp_path)) <= 6
    assert files.counts().size_bytes <= 200 * KB
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".safetensors"]


def test_the_engines_stores_pass_the_limit_on(tmp_path: Path) -> None:
    features = PromptFeatures(torch.zeros(10, dtype=torch.int64), torch.zeros(20, MELS), torch.zeros(SPEAKER))
    prompts = PromptStore(tmp_path / "prompts", most_bytes=0)
    voice = LiteVoice(torch.zeros(256), Measures("a", 100.0, 1.0, 1.0, "off"))
    voices = VoiceStore(tmp_path / "voices", torch.nn.Module(), most_bytes=0)  # type: ignore[arg-type]
    prompts.save("a", features)
    voices.save("a", voice)
    assert prompts.load("a", torch.device("cpu")) is None and voices.load("a") is None
    assert list(tmp_path.iterdir()) == []
    assert prompts.counts() == voices.counts() == CacheCounts(0, 1, 0, 0)
    kept = PromptStore(tmp_path / "prompts", most_bytes=10_000)
    kept.save("a", features)
    assert kept.load("a", torch.device("cpu")) is not None
    kept.save("b", features)
    assert kept.counts().kept == 1


def test_a_lite_voice_says_what_it_takes() -> None:
    measures = Measures("a", 100.0, 1.0, 1.0, "fast")
    fitted = Resonance(torch.zeros(64), {"x": torch.zeros(1000), "y": torch.zeros(500, dtype=torch.float16)})
    assert LiteVoice(torch.zeros(256), measures).size_bytes == 1024
    assert LiteVoice(torch.zeros(256), measures, fitted).size_bytes == 1024 + 256 + 4000 + 1000
