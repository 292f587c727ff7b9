"""Saved voices: the very clip comes back, names never become paths, a zip can't reach outside."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cosyvoice_app.errors import AppError, BadInput, NotFound, PromptError, TooLarge
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import PromptClip
from cosyvoice_app.voices import library as library_module
from cosyvoice_app.voices.library import VoiceLibrary


@pytest.fixture
def library(tmp_path: Path) -> VoiceLibrary:
    return VoiceLibrary(Settings(voices=tmp_path / "voices"))


def zip_of(**entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def test_the_clip_comes_back_to_the_last_bit(library: VoiceLibrary, p0: PromptClip) -> None:
    saved = library.add("Anna", p0, "What she says.")
    clip, words = library.load(saved.id)
    assert np.array_equal(clip.samples, p0.samples)
    assert (clip.sha256, words) == (p0.sha256, "What she says.")
    assert library.list() == [saved] == [library.get(saved.id)]


@pytest.mark.parametrize("name", [
    "睡前 故事(1)", "🎤é", "🎤e\u0301", "a'b\";$(touch pwned)", "../../etc/passwd", "CON", ".", "x" * 100,
    "a\\b:c*?<>|", "a\0b\nc",
])
def test_any_name_is_kept_and_none_becomes_a_path(library: VoiceLibrary, p0: PromptClip, name: str) -> None:
    saved = library.add(name, p0)
    assert library.get(saved.id).name == saved.name
    assert saved.id.isascii() and len(saved.id) <= 60
    assert [path.name for path in library.folder.iterdir()] == [saved.id]
    assert {path.name for path in (library.folder / saved.id).iterdir()} == {"voice.json", "clip.wav"}


@pytest.mark.parametrize("name", ["", "   ", "\n", "x" * 101])
def test_a_name_must_be_one(library: VoiceLibrary, p0: PromptClip, name: str) -> None:
    with pytest.raises(BadInput, match="name"):
        library.add(name, p0)


def test_saving_twice_is_saving_once(library: VoiceLibrary, p0: PromptClip, p1: PromptClip) -> None:
    first = library.add("Anna", p0)
    assert library.add("Anna", p0) == first
    assert library.add("Anna", p1).id != first.id
    assert library.add("Anna", p0, "words").id != first.id
    assert len(library.list()) == 3


def test_many_at_once(library: VoiceLibrary, p0: PromptClip) -> None:
    threads = [threading.Thread(target=library.add, args=(f"voice {n % 4}", p0)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(library.list()) == 4
    assert not list(library.folder.glob(".*"))


@pytest.mark.parametrize("voice_id", [
    "nobody-12345678", "", "..", "../voices", "/etc", "a/b", "A", "x" * 500, ".unfinished-1",
])
def test_an_unknown_id_is_not_found_whatever_it_is(library: VoiceLibrary, p0: PromptClip, voice_id: str) -> None:
    library.add("Anna", p0)
    for use in (library.get, library.load, library.remove, lambda one: library.export([one])):
        with pytest.raises(NotFound, match="no saved voice"):
            use(voice_id)
    assert len(library.list()) == 1


def test_removing_removes_all_of_it(library: VoiceLibrary, p0: PromptClip) -> None:
    saved = library.add("Anna", p0)
    library.remove(saved.id)
    assert library.list() == []
    assert list(library.folder.iterdir()) == []
    with pytest.raises(NotFound):
        library.remove(saved.id)


def test_a_damaged_voice_is_an_error_that_names_it(library: VoiceLibrary, p0: PromptClip) -> None:
    saved = library.add("Anna", p0)
    (library.folder / saved.id / "voice.json").write_text("{")
    with pytest.raises(AppError, match=saved.id):
        library.get(saved.id)


def test_export_and_import_bring_the_same_voices(
    library: VoiceLibrary, tmp_path: Path, p0: PromptClip, p1: PromptClip
) -> None:
    saved = [library.add("Anna", p0, "words"), library.add("贝贝", p1)]
    other = VoiceLibrary(Settings(voices=tmp_path / "other"))
    other.import_zip(library.export())
    assert [(v.id, v.name, v.prompt_text, v.sha256) for v in other.list()] == \
        sorted(((v.id, v.name, v.prompt_text, v.sha256) for v in saved), key=lambda v: v[1])
    one = VoiceLibrary(Settings(voices=tmp_path / "one"))
    assert [v.id for v in one.import_zip(library.export([saved[1].id]))] == [saved[1].id]


NOTE = json.dumps({"name": "x", "prompt_text": ""}).encode()


@pytest.mark.parametrize(("data", "error", "says"), [
    (b"not a zip", BadInput, "not a zip"),
    (zip_of(), BadInput, "no voices"),
    (zip_of(**{"../evil-1/voice.json": NOTE}), BadInput, "evil"),
    (zip_of(**{"/etc/passwd": b"x"}), BadInput, "passwd"),
    (zip_of(**{"ok-1/voice.json": NOTE, "ok-1/clip.wav": b"x", "ok-1/run.sh": b"x"}), BadInput, "run.sh"),
    (zip_of(**{"ok-1/voice.json": NOTE}), BadInput, "only voice.json"),
    (zip_of(**{"ok-1/voice.json": b"{", "ok-1/clip.wav": b"x"}), BadInput, "damaged"),
    (zip_of(**{"ok-1/voice.json": b"[]", "ok-1/clip.wav": b"x"}), BadInput, "no usable name"),
    (zip_of(**{"ok-1/voice.json": NOTE, "ok-1/clip.wav": b"not audio"}), PromptError, "not audio"),
    (zip_of(**{"ok-1/voice.json": b" " * 200_000, "ok-1/clip.wav": b"x"}), TooLarge, "larger than 0.1 MB"),
])
def test_a_bad_zip_adds_nothing(library: VoiceLibrary, data: bytes, error: type[AppError], says: str) -> None:
    with pytest.raises(error, match=says):
        library.import_zip(data)
    assert library.list() == []


def test_one_bad_voice_in_a_zip_keeps_the_good_ones_out(
    library: VoiceLibrary, tmp_path: Path, p0: PromptClip
) -> None:
    saved = library.add("Anna", p0)
    with zipfile.ZipFile(io.BytesIO(library.export())) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries |= {"zz-1/voice.json": NOTE, "zz-1/clip.wav": b"not audio"}
    other = VoiceLibrary(Settings(voices=tmp_path / "other"))
    with pytest.raises(PromptError):
        other.import_zip(zip_of(**entries))
    assert other.list() == []
    assert library.list() == [saved]


def test_a_zip_that_would_unpack_too_large_is_refused_unread(
    library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "_ZIP_MAX_BYTES", 1_000)
    with pytest.raises(TooLarge, match="at most"):
        library.import_zip(zip_of(**{"ok-1/voice.json": NOTE, "ok-1/clip.wav": b"\0" * 5_000}))


def test_voices_live_beside_the_cache_by_default(tmp_path: Path, p0: PromptClip) -> None:
    library = VoiceLibrary(Settings(cache=tmp_path / "cache"))
    assert library.folder.parent == (tmp_path / "cache").parent
    assert library.folder != tmp_path / "cache"
    assert library.list() == []
    assert dataclasses.asdict(library.add("Anna", p0))["name"] == "Anna"


def test_leftovers_of_a_killed_process_go_and_those_of_a_living_one_stay(library: VoiceLibrary, p0: PromptClip) -> None:
    library.folder.mkdir()
    old, young = library.folder / ".unfinished-a", library.folder / ".unfinished-b"
    for folder in (old, young):
        folder.mkdir()
        (folder / "clip.wav").write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    library.add("Anna", p0)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_voice_that_is_being_removed_is_no_leftover_however_old_it_is(
    library: VoiceLibrary, p0: PromptClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = library.add("Anna", p0)
    folder = library.folder / saved.id
    os.utime(folder, (time.time() - 7200, time.time() - 7200))
    remove = shutil.rmtree

    def remove_while_another_saves(path: Path) -> None:
        monkeypatch.undo()
        library.add("Bea", p0)
        assert path.is_dir()
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", remove_while_another_saves)
    library.remove(saved.id)
    assert [voice.name for voice in library.list()] == ["Bea"]
