"""Results on disk: whole, never overwritten, named apart in the same instant."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
import wave
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from cosyvoice_app import outputs
from cosyvoice_app.engines.tone import tone
from cosyvoice_app.errors import AppError
from cosyvoice_app.outputs import OutputStore
from cosyvoice_app.types import Audio

NOON = datetime(2026, 3, 4, 12, 0, 0)


def frozen() -> datetime:
    return NOON


def audio(frequency: float = 440.0, rate_hz: int = 24_000) -> Audio:
    return Audio(tone(frequency, 0.1, rate_hz=rate_hz), rate_hz)


def pcm(path: Path) -> bytes:
    with wave.open(str(path), "rb") as file:
        return file.readframes(file.getnframes())


def test_twenty_in_one_instant_then_a_restart_then_a_hand_made_file(tmp_path: Path) -> None:
    store = OutputStore(tmp_path, clock=frozen)
    saved: dict[Path, int] = {}
    lock = threading.Lock()

    def save(number: int) -> None:
        path = store.save(audio(300.0 + number), {"number": number})
        with lock:
            saved[path] = number

    threads = [threading.Thread(target=save, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = OutputStore(tmp_path, clock=frozen)
    saved[again.save(audio(900.0), {"number": 600})] = 600
    hand_made = tmp_path / "output_20260304_120000_22.wav"
    hand_made.write_bytes(b"mine")
    saved[again.save(audio(901.0), {"number": 601})] = 601

    assert len(saved) == 22
    assert hand_made.read_bytes() == b"mine"
    assert not hand_made.with_suffix(".json").exists()
    for path, number in saved.items():
        fresh = OutputStore(tmp_path / "check", clock=frozen).save(audio(300.0 + number), {})
        assert pcm(path) == pcm(fresh)
        sidecar = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        assert (sidecar["number"], sidecar["file"]) == (number, path.name)
    assert len(list(tmp_path.glob("*.wav"))) == 23
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_names_sort_by_time_and_are_safe_everywhere(tmp_path: Path) -> None:
    moments = iter([datetime(2026, 3, 4, 9, 59, 59), NOON, NOON, datetime(2026, 3, 4, 12, 0, 1),
                    datetime(2026, 12, 31, 23, 59, 59)])
    store = OutputStore(tmp_path, clock=lambda: next(moments))
    names = [store.save(audio(), {}).name for _ in range(5)]
    assert names == sorted(names)
    assert names[1:3] == ["output_20260304_120000.wav", "output_20260304_120000_2.wav"]


def test_more_than_nine_in_one_second_are_counted_on(tmp_path: Path) -> None:
    store = OutputStore(tmp_path, clock=frozen)
    names = [store.save(audio(), {}).stem for _ in range(12)]
    assert names == ["output_20260304_120000", *(f"output_20260304_120000_{n}" for n in range(2, 13))]


def test_a_name_tried_once_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred results in one second must not try each other's names: that would be 5000 looks at the disk."""
    store = OutputStore(tmp_path, clock=frozen)
    asked = 0
    exists = Path.exists

    def counted(path: Path) -> bool:
        nonlocal asked
        asked += 1
        return exists(path)

    monkeypatch.setattr(Path, "exists", counted)
    for _ in range(100):
        store.save(audio(), {})
    assert asked == 200, "a look for each of two files"


def test_the_next_second_begins_again(tmp_path: Path) -> None:
    moments = iter([NOON, NOON, datetime(2026, 3, 4, 12, 0, 1), NOON])
    store = OutputStore(tmp_path, clock=lambda: next(moments))
    assert [store.save(audio(), {}).stem[-8:] for _ in range(4)] == ["4_120000", "120000_2", "4_120001", "120000_3"]


def test_a_name_taken_by_a_lone_sidecar_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "output_20260304_120000.json").write_text("{}")
    assert OutputStore(tmp_path, clock=frozen).save(audio(), {}).name == "output_20260304_120000_2.wav"
    assert (tmp_path / "output_20260304_120000.json").read_text() == "{}"


def test_two_processes_in_one_instant_share_no_name(tmp_path: Path) -> None:
    script = (
        "import sys; from datetime import datetime; from pathlib import Path\n"
        "import numpy as np\n"
        "from cosyvoice_app.outputs import OutputStore; from cosyvoice_app.types import Audio\n"
        "store = OutputStore(Path(sys.argv[1]), clock=lambda: datetime(2026, 3, 4, 12, 0, 0))\n"
        "for n in range(10): print(store.save(Audio(np.full(100, 0.5, np.float32), 24000), {}).name)\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                                cwd=Path(__file__).parents[1]) for _ in range(2)]
    names = [name for worker in workers for name in worker.communicate(timeout=60)[0].split()]
    assert len(names) == len(set(names)) == 20
    assert len(list(tmp_path.glob("*.wav"))) == len(list(tmp_path.glob("*.json"))) == 20


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 44_100])
def test_the_header_is_the_audio_s_own_and_the_level_is_kept(tmp_path: Path, rate_hz: int) -> None:
    quiet = Audio(tone(440.0, 1.0, rate_hz=rate_hz, amplitude=10 ** (-30 / 20), fade_s=0.0), rate_hz)
    path = OutputStore(tmp_path).save(quiet, {})
    with wave.open(str(path), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, rate_hz)
        assert file.getnframes() == rate_hz
        samples = np.frombuffer(file.readframes(rate_hz), "<i2") / 32767.0
    assert path.stat().st_size == 44 + 2 * rate_hz
    assert 20 * np.log10(np.abs(samples).max()) == pytest.approx(-30.0, abs=0.2)
    assert np.abs(np.fft.rfft(samples)).argmax() == 440


def test_without_hard_links_names_are_still_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(outputs.os, "link", no_links)
    store = OutputStore(tmp_path, clock=frozen)
    names = [store.save(audio(), {}).name for _ in range(3)]
    assert names == ["output_20260304_120000.wav", "output_20260304_120000_2.wav", "output_20260304_120000_3.wav"]
    assert all(len(pcm(tmp_path / name)) == 4800 for name in names)


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = OutputStore(tmp_path, clock=frozen)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outputs.os, "fsync", full)
    with pytest.raises(AppError, match="No space left"):
        store.save(audio(), {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_wav_that_can_t_be_published_leaves_no_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    store = OutputStore(tmp_path, clock=frozen)
    link, replace = os.link, os.replace

    def broken(source: Path, final: Path) -> None:
        if final.suffix == ".wav":
            raise OSError(5, "Input/output error")
        (link if links else replace)(source, final)

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(outputs.os, "link", broken if links else no_links)
    monkeypatch.setattr(outputs.os, "replace", broken)
    with pytest.raises(AppError, match="Input/output error"):
        store.save(audio(), {})
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert store.save(audio(), {}).exists()


@pytest.mark.skipif(os.name == "nt", reason="folders are not synced there")
def test_a_folder_that_can_t_be_synced_costs_no_result_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = OutputStore(tmp_path, clock=frozen)
    sync = os.fsync

    def files_only(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(22, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(outputs.os, "fsync", files_only)
    paths = [store.save(audio(), {}) for _ in range(3)]
    assert all(path.exists() and path.with_suffix(".json").exists() for path in paths)
    assert caplog.text.count("can't be synced") == 1


def test_leftovers_of_a_killed_process_go_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    old, young = tmp_path / ".unfinished-1-a.tmp", tmp_path / ".unfinished-2-b.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    OutputStore(tmp_path)
    assert not old.exists()
    assert young.exists()
