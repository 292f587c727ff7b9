"""Clips judged once: the same clip as without the cache, whatever changes on disk, and nothing shared that may change.
"""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cosyvoice_app.audio.prompt import PromptRefused, examine, load_prompt
from cosyvoice_app.errors import NotFound, PromptError, TooLarge
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import CacheCounts, PromptClip
from cosyvoice_app.voices import clips as clips_module
from cosyvoice_app.voices.clips import ClipCache
from cosyvoice_app.voices.library import VoiceLibrary


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A line per clip that was really decoded."""
    calls: list[Any] = []

    def count(*args: Any, **options: Any) -> PromptClip:
        calls.append(options)
        return load_prompt(*args, **options)

    monkeypatch.setattr(clips_module, "load_prompt", count)
    return calls


def same(a: PromptClip, b: PromptClip) -> bool:
    fields = {field.name for field in dataclasses.fields(PromptClip)} - {"samples"}
    return np.array_equal(a.samples, b.samples) and all(getattr(a, name) == getattr(b, name) for name in fields)


@pytest.mark.parametrize("name", ["p.wav", "c.mp3", "sr_8000.wav", "st_48000.wav", "noext", "wav_named.mp3"])
def test_the_cached_clip_is_the_clip(clips: Path, judged: list[Any], name: str) -> None:
    cache, plain = ClipCache(), load_prompt(clips / name)
    first = cache.load(clips / name, name_hint=name)
    again = cache.load((clips / name).read_bytes(), name_hint="another name")
    assert same(first, plain) and same(again, plain)
    assert again.warnings == plain.warnings and again.report == plain.report
    assert len(judged) == 1
    assert cache.counts() == CacheCounts(1, 1, 1, plain.samples.nbytes)


def test_a_stretch_is_a_clip_of_its_own(clips: Path) -> None:
    cache, file = ClipCache(), clips / "len_31.0.wav"
    stretches = ((0.0, 5.0), (5.0, 10.0), (5, 10))
    for _ in range(2):
        for window_s in stretches:
            assert same(cache.load(file, window_s=window_s), load_prompt(file, window_s=window_s))
        with pytest.raises(PromptRefused, match="31.0 s long"):
            cache.load(file)
    assert cache.counts().kept == 3


def test_a_file_that_changes_gives_the_new_clip(p0_wav: Path, p1_wav: Path, tmp_path: Path) -> None:
    cache, file = ClipCache(), tmp_path / "clip.wav"
    hashes = []
    for source in (p0_wav, p1_wav, p0_wav):
        file.write_bytes(source.read_bytes())
        hashes.append(cache.load(file).sha256)
    assert hashes == [load_prompt(source).sha256 for source in (p0_wav, p1_wav, p0_wav)]
    file.unlink()
    with pytest.raises(PromptError, match="can't be opened"):
        cache.load(file)


def test_errors_are_not_kept_and_name_the_file_they_are_about(clips: Path, judged: list[Any]) -> None:
    cache = ClipCache()
    for name in ("mine.wav", "yours.wav"):
        with pytest.raises(PromptError, match=name):
            cache.load(b"not audio", name_hint=name)
        with pytest.raises(PromptRefused) as refused:
            cache.load(clips / "len_2.9.wav")
        assert refused.value.report["duration_s"] == 2.9
    assert len(judged) == 4
    assert cache.counts() == CacheCounts(0, 4, 0, 0)


def test_a_limit_holds_for_a_clip_that_is_known(p0_wav: Path) -> None:
    cache = ClipCache()
    cache.load(p0_wav)
    with pytest.raises(TooLarge):
        cache.load(p0_wav, max_bytes=1000)
    with pytest.raises(TooLarge):
        cache.load(p0_wav.read_bytes(), max_bytes=1000)


def test_what_is_shared_can_t_be_changed_and_what_can_isn_t_shared(p0_wav: Path) -> None:
    cache = ClipCache()
    first, plain = cache.load(p0_wav), load_prompt(p0_wav)
    with pytest.raises(ValueError, match="read-only"):
        first.samples[0] = 1.0
    first.report["ok"] = False
    first.report["warnings"].append("mine")
    assert same(cache.load(p0_wav), plain)


def test_the_doctor_and_the_speaking_share_one_judgement(clips: Path, judged: list[Any]) -> None:
    cache = ClipCache()
    for name in ("p.wav", "len_2.9.wav"):
        assert examine(clips / name, load=cache.load) == examine(clips / name)
    assert cache.load(clips / "p.wav").report["ok"] and len(judged) == 2


def test_it_is_bounded(p0_wav: Path, p1_wav: Path, judged: list[Any]) -> None:
    size = load_prompt(p0_wav).samples.nbytes
    cache = ClipCache(most_bytes=size * 3 // 2)
    for file in (p0_wav, p1_wav, p0_wav):
        cache.load(file)
    assert (len(judged), cache.counts().kept) == (3, 1)
    cache = ClipCache(most_clips=2)
    for window_s in ((0.0, 4.0), (1.0, 5.0), (0.0, 4.0), (2.0, 6.0), (0.0, 4.0)):
        cache.load(p0_wav, window_s=window_s)
    assert cache.counts() == CacheCounts(2, 3, 2, 2 * 4 * 24_000 * 4)


def test_many_at_once_decode_once(p0_wav: Path, judged: list[Any]) -> None:
    cache, together = ClipCache(), threading.Barrier(8)

    def load(_: int) -> str:
        together.wait(30)
        return cache.load(p0_wav).sha256

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(load, range(8), timeout=60)) == {load_prompt(p0_wav).sha256}
    assert len(judged) == 1


def test_a_saved_voice_is_judged_once_and_its_clip_is_always_its_own(
    tmp_path: Path, p0: PromptClip, p1: PromptClip, judged: list[Any]
) -> None:
    library = VoiceLibrary(Settings(voices=tmp_path))
    anna, bea = library.add("Anna", p0), library.add("Bea", p1)
    for _ in range(3):
        assert library.load(anna.id)[0].sha256 == p0.sha256
        assert library.load(bea.id)[0].sha256 == p1.sha256
    assert len(judged) == 2
    assert library.clips.counts().hits == 4
    library.remove(anna.id)
    with pytest.raises(NotFound):
        library.load(anna.id)
    (tmp_path / bea.id / "clip.wav").write_bytes(b"not audio")
    with pytest.raises(PromptError, match="not audio"):
        library.load(bea.id)


def test_a_voice_removed_while_it_is_loaded_is_not_found(
    tmp_path: Path, p0: PromptClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = VoiceLibrary(Settings(voices=tmp_path))
    anna = library.add("Anna", p0)
    known = library.get(anna.id)
    library.remove(anna.id)
    monkeypatch.setattr(library, "get", lambda _: known)
    with pytest.raises(NotFound, match=anna.id):
        library.load(anna.id)
