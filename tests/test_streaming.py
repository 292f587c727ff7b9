"""What is streamed is what is saved, in every format: nothing lost, added or clicking where segments meet."""

from __future__ import annotations

import base64
import io
import json
import socket
import wave
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import av
import cv3_tiny as tiny
import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest
from engines_streaming import RATE_HZ, SEED_FAILS, SEGMENT_SAMPLES, SteadySine, hertz, open_gate
from web_server import Server, running

from cosyvoice_app.audio.encode import to_pcm16
from cosyvoice_app.pipeline import Job, Pipeline
from cosyvoice_app.types import Audio, Intent, PromptClip, Segment, Text
from cosyvoice_app.voices.cache import VoiceCache
from cosyvoice_app.web.stream_encoder import SLICE_S, StreamEncoder, slices

LOSSLESS = ("wav", "pcm", "flac")
LOSSY = ("mp3", "opus", "aac")
SEGMENTS = 4
HELD_BACK_S = 0.15
"""Most that an encoder keeps until more comes."""
LONGER_S = {"wav": 0.0, "pcm": 0.0, "flac": 0.0, "opus": 0.0, "mp3": 0.1, "aac": 0.1}
"""What decoding may give beyond the audio: the silence a codec starts with and its last frame's rest."""
BROKEN_OFF = "incomplete chunked read"
TEXT = "今天风很大。明天会下雨。后天天晴。"

Samples = npt.NDArray[np.float64]


def decoded(data: bytes, fmt: str) -> tuple[Samples, int]:
    """All that can be decoded of `data`, as an open end leaves it, in full-scale units."""
    if fmt == "pcm":
        return np.frombuffer(data[: len(data) & ~1], "<i2") / 32768, RATE_HZ
    with av.open(io.BytesIO(data)) as file:
        rate_hz = file.streams.audio[0].rate
        frames = [frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]
    if not frames:
        return np.zeros(0), rate_hz
    samples = np.concatenate(frames)
    return samples / (32768 if samples.dtype == np.int16 else 1.0), rate_hz


def spoken(clip: PromptClip, pause_ms: int, seed: int = 3) -> tuple[list[Audio], Audio]:
    """The chunks that a request gives out on its way, and the whole."""
    segments = tuple(Segment(text, (Text(text, "zh"),), pause_ms) for text in ("今天风很大。",) * SEGMENTS)
    chunks: list[Audio] = []
    made = Pipeline(SteadySine(), VoiceCache()).run(
        Job(clip, segments, Intent(), seed), on_chunk=lambda audio, _: chunks.append(audio)
    )
    return chunks, made.audio


def streamed(chunks: list[Audio], fmt: str) -> bytes:
    encoder = StreamEncoder(fmt, chunks[0].rate_hz)
    fed = [encoder.feed(piece) for chunk in chunks for piece in slices(chunk)]
    return b"".join(fed) + encoder.finish()


def off_the_sine(sound: Samples, rate_hz: int, seed: int) -> Samples:
    """|sound - the sine that fits it best|: its clicks, gaps and codec noise."""
    angle = 2 * np.pi * hertz(seed) / rate_hz * np.arange(len(sound))
    base = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    return np.abs(sound - base @ np.linalg.lstsq(base, sound, rcond=None)[0])


@pytest.mark.parametrize("fmt", LOSSLESS)
@pytest.mark.parametrize("pause_ms", [0, 80])
def test_lossless_streams_hold_the_files_samples(p0: PromptClip, fmt: str, pause_ms: int) -> None:
    chunks, whole = spoken(p0, pause_ms)
    sound, rate_hz = decoded(streamed(chunks, fmt), fmt)
    assert rate_hz == RATE_HZ and len(chunks) == SEGMENTS
    assert len(whole.samples) == SEGMENTS * SEGMENT_SAMPLES + (SEGMENTS - 1) * pause_ms * RATE_HZ // 1000
    assert np.array_equal(sound * 32768, to_pcm16(whole.samples))


@pytest.mark.parametrize("fmt", ["wav", *LOSSY])
def test_a_sine_through_all_segments_stays_one_sine(p0: PromptClip, fmt: str) -> None:
    """At the joins it departs from the best-fitting sine no more than elsewhere, and hardly anywhere."""
    chunks, whole = spoken(p0, 0)
    sound, rate_hz = decoded(streamed(chunks, fmt), fmt)
    assert 0 <= len(sound) / rate_hz - whole.duration_s <= LONGER_S[fmt] + 1e-9
    ends = round(0.15 * rate_hz)  # where a codec fades in and out
    middle = sound[ends : len(sound) - ends]
    off = off_the_sine(middle, rate_hz, 3)
    near = np.zeros(len(middle), bool)
    for join in accumulate(len(chunk.samples) for chunk in chunks[:-1]):
        at = round(join * rate_hz / RATE_HZ) - ends
        near[at - round(0.03 * rate_hz) : at + round(0.1 * rate_hz)] = True  # the codec's delay moves a join later
    assert off[near].max() <= 1.5 * off[~near].max() + 1e-4
    assert off.max() < 0.5 * 10 ** (-30 / 20), "30 dB below the sine"
    loudest = np.abs(middle).max()
    assert 20 * np.log10(loudest / 0.5) == pytest.approx(0, abs=0.3)


def test_that_very_check_finds_a_lost_sample_and_a_gap(p0: PromptClip) -> None:
    chunks, _ = spoken(p0, 0)
    for spoiled in (chunks[0].samples[:-1], np.append(chunks[0].samples, np.float32(0))):
        sound, rate_hz = decoded(streamed([Audio(spoiled, RATE_HZ), *chunks[1:]], "wav"), "wav")
        assert off_the_sine(sound, rate_hz, 3).max() > 0.5 * 10 ** (-30 / 20)


@pytest.mark.parametrize("fmt", LOSSY)
def test_lossy_streams_keep_pauses_and_segments_in_place(p0: PromptClip, fmt: str) -> None:
    chunks, _ = spoken(p0, 200)
    sound, rate_hz = decoded(streamed(chunks, fmt), fmt)
    size = rate_hz // 100
    level = np.sqrt((sound[: len(sound) // size * size].reshape(-1, size) ** 2).mean(axis=1))
    quiet = np.flatnonzero(level[15:-15] < 0.01) + 15
    middles = [run.mean() / 100 for run in np.split(quiet, np.flatnonzero(np.diff(quiet) > 1) + 1)]
    step_s = SEGMENT_SAMPLES / RATE_HZ + 0.2
    expected = [number * step_s - 0.1 for number in range(1, SEGMENTS)]
    assert middles == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("fmt", [*LOSSLESS, *LOSSY])
@pytest.mark.parametrize("rate_hz", [16_000, 22_050, 24_000, 44_100, 23_000])
def test_bytes_come_with_the_audio_not_with_what_follows(fmt: str, rate_hz: int) -> None:
    tone = Audio((0.3 * np.sin(np.arange(2 * rate_hz) * 0.1)).astype(np.float32), rate_hz)
    encoder, sent = StreamEncoder(fmt, rate_hz), b""
    for number, piece in enumerate(slices(tone), 1):
        sent += encoder.feed(piece)
        sound, at_hz = decoded(sent, fmt)
        heard_s = len(sound) / (rate_hz if fmt == "pcm" else at_hz)
        assert heard_s >= number * SLICE_S - HELD_BACK_S


@pytest.mark.parametrize("fmt", LOSSLESS)
def test_a_stream_of_parts_of_segments_is_the_saved_audio_too(p0: PromptClip, tmp_path: Path, fmt: str) -> None:
    """The official engine's own streaming, at toy size: the file of a streamed request is what was streamed."""
    engine = tiny.engine(tmp_path, steps=2, made=tiny.model(tmp_path, prompts=tiny.Prompts()))
    segments = tuple(Segment(text, (Text(text, "en"),), 80) for text in ("One two.", "Hello."))
    chunks: list[Audio] = []
    made = Pipeline(engine, VoiceCache()).run(
        Job(p0, segments, Intent(), 7, stream=True), on_chunk=lambda audio, _: chunks.append(audio)
    )
    engine.close()
    sound, _ = decoded(streamed(chunks, fmt), fmt)
    assert len(chunks) > len(segments) + 1, "segments come in parts"
    assert np.array_equal(sound * 32768, to_pcm16(made.audio.samples))


def test_nothing_is_still_a_file() -> None:
    for fmt in (*LOSSLESS, *LOSSY):
        encoder = StreamEncoder(fmt, RATE_HZ)
        assert encoder.feed(Audio(np.zeros(0, np.float32), RATE_HZ)) in (b"", encoder_header(fmt))
        encoder.finish()


def encoder_header(fmt: str) -> bytes:
    return StreamEncoder("wav", RATE_HZ).feed(Audio(np.zeros(0, np.float32), RATE_HZ)) if fmt == "wav" else b""


# Through a server.


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("gated"), engine="engines_streaming:GatedSine") as live:
        yield live


@pytest.fixture(scope="module")
def voice(gated: Server, p0_wav: Path) -> str:
    answer = httpx.post(f"{gated.url}/v1/voices", files={"file": p0_wav.read_bytes()}, data={"name": "Sine"})
    return str(answer.json()["id"])


@pytest.fixture
def client(gated: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gated.url}/v1", api_key="none", max_retries=0)


def ask(voice: str, seed: int, fmt: str, how: str) -> dict[str, Any]:
    return {"model": "tts-1", "voice": voice, "input": TEXT, "response_format": fmt, "stream_format": how,
            "extra_body": {"seed": seed}}


def cache(server: Server) -> Path:
    return server.outputs.parent / "cache"


def saved_pcm(server: Server, names: set[str]) -> npt.NDArray[np.int16]:
    (name,) = names
    with wave.open(str(server.outputs / name)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


@pytest.mark.parametrize(("fmt", "seed"), [("wav", 21), ("pcm", 22), ("flac", 23), ("mp3", 24), ("opus", 25)])
def test_the_first_segment_is_heard_while_the_second_is_not_yet_made(
    client: openai.OpenAI, gated: Server, voice: str, fmt: str, seed: int
) -> None:
    before = gated.saved()
    with client.audio.speech.with_streaming_response.create(**ask(voice, seed, fmt, "audio")) as answer:
        arriving, data, heard_s = answer.iter_bytes(), b"", 0.0
        while heard_s < SEGMENT_SAMPLES / RATE_HZ - HELD_BACK_S:  # the gate is closed: no second segment can help
            data += next(arriving)
            if len(data) > 200:
                sound, rate_hz = decoded(data, fmt)
                heard_s = len(sound) / rate_hz
        assert gated.saved() == before
        open_gate(cache(gated), seed)
        data += b"".join(arriving)
    file = saved_pcm(gated, gated.saved() - before)
    sound, rate_hz = decoded(data, fmt)
    if fmt in LOSSLESS:
        assert np.array_equal(sound * 32768, file)
    assert 0 <= len(sound) / rate_hz - len(file) / RATE_HZ <= LONGER_S[fmt] + 1e-9


def test_events_as_openais_clients_expect(client: openai.OpenAI, gated: Server, voice: str) -> None:
    open_gate(cache(gated), 26)
    before = gated.saved()
    with client.audio.speech.with_streaming_response.create(**ask(voice, 26, "pcm", "sse")) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert max(map(len, lines)) < 64 * 1024, "longer lines are refused by some clients"
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * (len(events) - 1) + ["speech.audio.done"]
    data = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert np.array_equal(np.frombuffer(data, "<i2"), saved_pcm(gated, gated.saved() - before))
    assert set(events[-1]["usage"]) == {"input_tokens", "output_tokens", "total_tokens"}
    assert events[-1]["output"]["seed"] == 26


@pytest.mark.parametrize("fmt", ["wav", "mp3", "opus"])
def test_a_failure_half_way_breaks_the_body_off_and_saves_nothing(
    client: openai.OpenAI, gated: Server, voice: str, fmt: str
) -> None:
    open_gate(cache(gated), SEED_FAILS)
    before = gated.saved()
    got = b""
    with pytest.raises(Exception, match=BROKEN_OFF):  # noqa: SIM117 - the inner one must not swallow it
        with client.audio.speech.with_streaming_response.create(**ask(voice, SEED_FAILS, fmt, "audio")) as answer:
            for data in answer.iter_bytes():
                got += data
    assert got and gated.saved() == before


def test_a_failure_half_way_is_an_event_of_the_stream(client: openai.OpenAI, gated: Server, voice: str) -> None:
    open_gate(cache(gated), SEED_FAILS)
    with client.audio.speech.with_streaming_response.create(**ask(voice, SEED_FAILS, "pcm", "sse")) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[0]["type"] == "speech.audio.delta"
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "bad_audio"
    assert "speech.audio.done" not in {event["type"] for event in events}


def test_a_restart_half_way_breaks_the_body_off(client: openai.OpenAI, gated: Server, voice: str) -> None:
    before = gated.saved()
    with client.audio.speech.with_streaming_response.create(**ask(voice, 27, "wav", "audio")) as answer:
        arriving = answer.iter_bytes()
        next(arriving)
        assert httpx.post(f"{gated.url}/v1/engine/restart", timeout=60).status_code == 200
        with pytest.raises(Exception, match=BROKEN_OFF):
            list(arriving)
    assert gated.saved() == before


def answer_to_1_0(server: Server, body: dict[str, Any]) -> tuple[bytes, dict[str, str], bytes]:
    """(status line, headers, body) as HTTP/1.0 sees them: until the connection ends."""
    sent = json.dumps(body).encode()
    head = (
        "POST /v1/audio/speech HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(sent)}\r\n\r\n"
    )
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as line:
        line.sendall(head.encode() + sent)
        while block := line.recv(65536):
            got += block
    head_got, _, rest = got.partition(b"\r\n\r\n")
    first, *lines = head_got.decode().split("\r\n")
    return first.encode(), {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}, rest


@pytest.mark.parametrize("fmt", ["wav", "mp3", "pcm"])
def test_http_1_0_gets_a_whole_or_an_error_since_it_cant_tell_a_part(gated: Server, voice: str, fmt: str) -> None:
    before = gated.saved()
    for seed, status in ((SEED_FAILS, b" 500 "), (29, b" 200 ")):
        open_gate(cache(gated), seed)
        body = {"voice": voice, "input": TEXT, "response_format": fmt, "stream_format": "audio", "seed": seed}
        first, headers, got = answer_to_1_0(gated, body)
        assert status in first and int(headers["content-length"]) == len(got)
    assert headers["x-seed"] == "29" and len(gated.saved() - before) == 1
