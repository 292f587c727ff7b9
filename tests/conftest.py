"""Fixtures that every test may use. Clips are made once a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clips as clip_maker
import pytest
from services import IMPATIENT, QUICK, Start, settle
from web_server import api, server  # noqa: F401 - fixtures

from cosyvoice_app import assets
from cosyvoice_app.errors import AssetError
from cosyvoice_app.outputs import OutputStore
from cosyvoice_app.serving.service import EngineService
from cosyvoice_app.serving.supervisor import Limits
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import PromptClip
from cosyvoice_app.voices.clips import ClipCache


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of clips made from P0: p.wav, c.mp3, c.m4a, sr_8000.wav, len_2.9.wav, cut.wav and so on."""
    return clip_maker.make_clips("p0_en.flac", tmp_path_factory.mktemp("clips"))


@pytest.fixture(scope="session")
def p0_wav(clips: Path) -> Path:
    """P0: English, a man, 6.0 s, 24 kHz mono 16-bit, 0.3 s of silence at both ends; says `clips.P0_TEXT`."""
    return clips / "p.wav"


@pytest.fixture(scope="session")
def p1_wav(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """P1: Mandarin, a woman, the same form as P0; says `clips.P1_TEXT`."""
    samples, rate_hz = clip_maker.read("p1_zh.flac")
    file = tmp_path_factory.mktemp("p1") / "p1.wav"
    file.write_bytes(clip_maker.wav_bytes(samples, rate_hz))
    return file


@pytest.fixture(scope="session")
def p0(p0_wav: Path) -> PromptClip:
    return ClipCache().load(p0_wav)  # shared by all tests, so nothing may write to it


@pytest.fixture(scope="session")
def p1(p1_wav: Path) -> PromptClip:
    return ClipCache().load(p1_wav)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a service on `tmp_path/outputs`; all are closed at the end."""
    running: list[EngineService] = []

    def start_one(engine: str = QUICK, *, limits: Limits = IMPATIENT, outputs: OutputStore | None = None,
                  wait: bool = True, **options: Any) -> EngineService:
        service = EngineService(Settings(engine=engine, outputs=tmp_path / "outputs", cache=tmp_path, **options),
                                limits=limits, outputs=outputs)
        running.append(service)
        service.start()
        if wait:
            settle(service)
        return service

    yield start_one
    for service in running:
        service.close()


@pytest.fixture(autouse=True)
def _weights_at_hand(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `weights` need the lite engine's files; where they were never fetched the test is skipped, with
    the remedy.
    """
    if request.node.get_closest_marker("weights"):
        for name in assets.DEFAULT_ASSETS:
            try:
                assets.path(name)
            except AssetError as error:
                pytest.skip(error.message)
    yield


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert not left, f"threads left behind: {left}"
