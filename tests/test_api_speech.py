"""Speech over HTTP: the call works as documented, formats are what they say they are, bad calls name the field."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest
from web_server import Server, pcm_hash, running

from cosyvoice_app.audio.io import decode

MAGIC = {"wav": b"RIFF", "aac": b"\xff\xf1", "flac": b"fLaC", "opus": b"OggS", "mp3": b"\xff"}
TYPES = {"wav": "audio/wav", "flac": "audio/flac", "opus": "audio/ogg", "mp3": "audio/mpeg", "aac": "audio/aac",
         "pcm": "audio/pcm"}  # fmt: skip


def clone(api: httpx.Client, clip: Path | bytes, text: str = "海边的风很凉快。", **fields: str) -> httpx.Response:
    data = clip if isinstance(clip, bytes) else clip.read_bytes()
    return api.post("/v1/clone", files={"file": ("clip.wav", data)}, data={"text": text, **fields})


def error(response: httpx.Response) -> dict[str, str | None]:
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"type", "message", "param"}
    return body["error"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def voice(server: Server, p0_wav: Path) -> Iterator[str]:
    with httpx.Client(base_url=server.url) as client:
        made = client.post(
            "/v1/voices", files={"file": ("睡前 故事(1).wav", p0_wav.read_bytes())}, data={"name": "旁白"}
        )
        assert made.status_code == 201, made.text
        yield made.json()["id"]


# clone


def test_clone_answers_with_the_saved_file(api: httpx.Client, server: Server, p0_wav: Path) -> None:
    answer = clone(api, p0_wav, seed="42")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/wav"
    assert answer.headers["x-seed"] == "42"
    name = answer.headers["x-output-path"]
    assert Path(name).name == name
    assert (server.outputs / name).read_bytes() == answer.content
    assert answer.headers["content-disposition"] == f'inline; filename="{name}"'


def test_a_seed_replays_wherever_it_is_sent(api: httpx.Client, p0_wav: Path, voice: str) -> None:
    first = pcm_hash(clone(api, p0_wav, seed="42").content)
    clone(api, p0_wav, "另一句话。", seed="9")
    assert pcm_hash(clone(api, p0_wav, seed="42").content) == first
    assert pcm_hash(clone(api, p0_wav, seed="43").content) != first
    for seed in (42, "42"):
        said = api.post(
            "/v1/audio/speech",
            json={"input": "海边的风很凉快。", "voice": voice, "seed": seed, "response_format": "wav"},
        )
        assert pcm_hash(said.content) == first


def test_a_blank_seed_is_random_reported_and_replays(api: httpx.Client, p0_wav: Path) -> None:
    one, two = clone(api, p0_wav), clone(api, p0_wav, seed="  ")
    assert one.headers["x-seed"] != two.headers["x-seed"]
    again = clone(api, p0_wav, seed=one.headers["x-seed"])
    assert pcm_hash(again.content) == pcm_hash(one.content)


@pytest.mark.parametrize("seed", ["0", "-1", "4294967296", "1.5", "abc", "１２", "1e3"])
def test_an_odd_seed_is_refused_not_replaced(api: httpx.Client, server: Server, p0_wav: Path, seed: str) -> None:
    before = server.saved()
    answer = clone(api, p0_wav, seed=seed)
    assert answer.status_code == 400
    said = error(answer)
    assert said["param"] == "seed" and "1 to 100000000" in str(said["message"])
    assert server.saved() == before


@pytest.mark.parametrize(
    ("seed", "status"), [(1.5, 400), (True, 400), ([1], 400), ({}, 400), (42.0, 200), (None, 200), ("", 200)]
)
def test_seeds_in_json(api: httpx.Client, voice: str, seed: object, status: int) -> None:
    answer = api.post("/v1/audio/speech", json={"input": "好。", "voice": voice, "seed": seed})
    assert answer.status_code == status, answer.text


def test_the_clip_counts_by_content_not_by_name(api: httpx.Client, p0_wav: Path) -> None:
    data, hashes = p0_wav.read_bytes(), set()
    for name in (
        "睡前 故事(1).wav",
        "🎤é.wav",
        "🎤e\u0301.wav",
        "a'b\";$(touch pwned).wav",
        "x" * 236 + ".wav",
        "CON.wav",
        ".wav",
    ):
        answer = api.post("/v1/clone", files={"file": (name, data)}, data={"text": "你好。", "seed": "5"})
        assert answer.status_code == 200, (name, answer.text)
        hashes.add(pcm_hash(answer.content))
        assert len(answer.headers["x-output-path"].encode()) <= 120
    assert len(hashes) == 1


def test_chinese_text_arrives_whole_in_forms_and_json(
    api: httpx.Client, server: Server, p0_wav: Path, voice: str
) -> None:
    text = "今天风很大，记得带伞。"
    for answer in (
        clone(api, p0_wav, text),
        api.post("/v1/audio/speech", json={"input": text, "voice": voice, "response_format": "wav"}),
    ):
        sidecar = (server.outputs / answer.headers["x-output-path"]).with_suffix(".json")
        assert json.loads(sidecar.read_text("utf-8"))["text"] == text


def test_warnings_survive_in_headers(api: httpx.Client, clips: Path) -> None:
    answer = clone(api, clips / "sr_8000.wav", "你好。")
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-warnings"].isascii()
    assert any("8000" in warning for warning in json.loads(answer.headers["x-warnings"]))


# formats


@pytest.mark.parametrize("fmt", sorted(TYPES))
@pytest.mark.parametrize(("seed", "rate_hz"), [(9008, 16000), (9009, 44100)])
def test_type_extension_magic_and_content_agree(
    api: httpx.Client, p0_wav: Path, fmt: str, seed: int, rate_hz: int
) -> None:
    answer = clone(api, p0_wav, seed=str(seed), response_format=fmt)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == TYPES[fmt]
    assert answer.headers["content-disposition"].endswith(f'.{fmt}"')
    assert answer.headers["x-sample-rate"] == str(rate_hz)
    if fmt == "pcm":
        samples, found_hz = np.frombuffer(answer.content, "<i2") / 32767, rate_hz
    else:
        assert answer.content.startswith(MAGIC[fmt]) or (fmt == "mp3" and answer.content.startswith(b"ID3"))
        heard = decode(answer.content)
        samples, found_hz = heard.samples, heard.rate_hz
    if fmt in ("wav", "flac", "pcm"):
        assert found_hz == rate_hz and len(samples) == rate_hz
        assert 20 * np.log10(np.abs(samples).max()) == pytest.approx(-30, abs=0.2)
    peak_hz = np.abs(np.fft.rfft(samples[: found_hz // 2 * 2])).argmax() * found_hz / (found_hz // 2 * 2)
    assert peak_hz == pytest.approx(440, abs=1)


def test_wav_opens_with_the_standard_library(api: httpx.Client, p0_wav: Path) -> None:
    data = clone(api, p0_wav, seed="9008").content
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth(), file.getnframes()) == (
            16000,
            1,
            2,
            16000,
        )
    assert len(data) == 44 + 2 * 16000


def test_an_unknown_format_lists_those_allowed(api: httpx.Client, p0_wav: Path, voice: str) -> None:
    for answer in (
        clone(api, p0_wav, response_format="xyz"),
        api.post("/v1/audio/speech", json={"input": "好。", "voice": voice, "response_format": "xyz"}),
    ):
        assert answer.status_code == 422
        said = error(answer)
        assert said["param"] == "response_format"
        assert all(fmt in str(said["message"]) for fmt in TYPES)


# streaming


LONG = "第一句话到这里结束。" * 9


def test_streamed_audio_is_the_saved_audio(api: httpx.Client, server: Server, voice: str) -> None:
    body = {"input": LONG, "voice": voice, "seed": 7, "response_format": "pcm", "stream_format": "audio"}
    before = server.saved()
    with api.stream("POST", "/v1/audio/speech", json=body) as answer:
        assert answer.status_code == 200 and answer.headers["x-seed"] == "7"
        assert "content-length" not in answer.headers
        streamed = b"".join(answer.iter_bytes())
    (name,) = server.saved() - before
    with wave.open(str(server.outputs / name)) as file:
        assert file.readframes(file.getnframes()) == streamed


@pytest.mark.parametrize("fmt", ["wav", "mp3", "opus", "flac", "aac"])
def test_every_streamed_format_decodes_to_the_whole(api: httpx.Client, voice: str, fmt: str) -> None:
    body = {"input": LONG, "voice": voice, "seed": 7, "response_format": fmt}
    heard = decode(api.post("/v1/audio/speech", json=body).content)
    whole, rate_hz = heard.samples, heard.rate_hz
    answer = api.post("/v1/audio/speech", json={**body, "stream_format": "audio"})
    assert answer.headers["content-type"] == TYPES[fmt]
    with av.open(io.BytesIO(answer.content)) as file:  # reads a stream of unknown length to its end
        seconds = sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))
    assert seconds == pytest.approx(len(whole) / rate_hz, abs=0.1)


def test_server_sent_events_carry_the_audio_and_what_was_done(api: httpx.Client, voice: str) -> None:
    body = {"input": LONG, "voice": voice, "seed": 7, "response_format": "pcm", "stream_format": "sse"}
    answer = api.post("/v1/audio/speech", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events[-1:]] == ["speech.audio.done"]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    whole = api.post("/v1/audio/speech", json={**body, "stream_format": None}).content
    assert audio == whole
    assert events[-1]["output"]["seed"] == 7
    assert "/" not in events[-1]["output"]["file"]


def test_a_failure_before_the_first_audio_has_its_own_status(api: httpx.Client, voice: str) -> None:
    for stream_format in ("audio", "sse"):
        answer = api.post(
            "/v1/audio/speech", json={"input": "好。", "voice": voice, "seed": 9001, "stream_format": stream_format}
        )
        assert answer.status_code == 500 and error(answer)["type"] == "bad_audio"


# the engine's faults


@pytest.mark.parametrize("seed", [9001, 9002, 9003, 9004, 9005])
def test_broken_audio_is_an_error_and_leaves_no_file(
    api: httpx.Client, server: Server, p0_wav: Path, seed: int
) -> None:
    before = server.saved()
    answer = clone(api, p0_wav, seed=str(seed))
    assert answer.status_code == 500
    assert error(answer)["type"] == "bad_audio"
    assert server.saved() == before


def test_out_of_memory_is_said_and_survived(api: httpx.Client, server: Server, p0_wav: Path) -> None:
    right = pcm_hash(clone(api, p0_wav, seed="42").content)
    for _ in range(3):
        before = server.saved()
        answer = clone(api, p0_wav, seed="9006")
        said = error(answer)
        assert answer.status_code == 500 and said["type"] == "out_of_memory"
        assert "memory" in str(said["message"]) and "short" in str(said["message"])
        assert server.saved() == before
        assert pcm_hash(clone(api, p0_wav, seed="42").content) == right


# bad calls


@pytest.mark.parametrize(("text", "param"), [("", "text"), ("   ", "text"), ("。。。", "text"), ("长" * 400, "text")])
def test_text_that_cant_be_spoken(
    api: httpx.Client, server: Server, p0_wav: Path, voice: str, text: str, param: str
) -> None:
    before = server.saved()
    answer = clone(api, p0_wav, text)
    assert answer.status_code in (400, 422) and error(answer)["param"] == param
    answer = api.post("/v1/audio/speech", json={"input": text, "voice": voice})
    assert answer.status_code == 400 and error(answer)["param"] == "input"
    assert server.saved() == before
    assert clone(api, p0_wav, "你好。").status_code == 200


def test_missing_and_misspelt_fields_are_named(api: httpx.Client, p0_wav: Path, voice: str) -> None:
    data = p0_wav.read_bytes()
    cases = [
        (api.post("/v1/clone", files={"file": ("a.wav", data)}), "text"),
        (api.post("/v1/clone", data={"text": "你好。"}), "file"),
        (api.post("/v1/clone", data={"text": "你好。", "file": "/etc/passwd"}), "file"),
        (api.post("/v1/clone", files={"file": ("a.wav", data)}, data={"text": "你好。", "sed": "1"}), "sed"),
        (api.post("/v1/audio/speech", json={"voice": voice}), "input"),
        (api.post("/v1/audio/speech", json={"input": "你好。"}), "voice"),
        (api.post("/v1/audio/speech", json={"input": "你好。", "voice": voice, "sed": 1}), "sed"),
        (api.post("/v1/audio/speech", json={"input": 5, "voice": voice}), "input"),
        (api.post("/v1/voices", files={"file": ("a.wav", data)}), "name"),
    ]
    for answer, param in cases:
        assert answer.status_code == 422, answer.text
        said = error(answer)
        assert said["param"] == param and param in str(said["message"])


def test_fields_out_of_range_are_named(api: httpx.Client, p0_wav: Path, voice: str) -> None:
    cases = [
        (clone(api, p0_wav, speed="9"), "speed"),
        (clone(api, p0_wav, speed="fast"), "speed"),
        (clone(api, p0_wav, speed="nan"), "speed"),
        (clone(api, p0_wav, refine="most"), "refine"),
        (clone(api, p0_wav, instruct="慢" * 2000), "instruct"),
        (clone(api, p0_wav, prompt_text="慢" * 2000), "prompt_text"),
        (
            api.post("/v1/audio/speech", json={"input": "好。", "voice": voice, "instructions": "慢" * 2000}),
            "instructions",
        ),
        (api.post("/v1/audio/speech", json={"input": "好。", "voice": voice, "speed": 4}), "speed"),
    ]
    for answer, param in cases:
        assert answer.status_code == 400, answer.text
        assert error(answer)["param"] == param


@pytest.mark.parametrize(
    "name", ["zero.wav", "header.wav", "stub.webm", "text.wav", "len_2.9.wav", "len_15.1.wav", "cut.wav"]
)
def test_clips_that_cant_be_used(api: httpx.Client, server: Server, clips: Path, name: str) -> None:
    before = server.saved()
    answer = clone(api, clips / name, "你好。")
    assert answer.status_code == 400
    said = error(answer)
    assert said["type"] == "invalid_prompt" and said["param"] == "file"
    assert "Traceback" not in str(said["message"])
    assert server.saved() == before


@pytest.mark.parametrize(
    "name",
    [
        "c.mp3",
        "c.m4a",
        "c.ogg",
        "c.webm",
        "c.flac",
        "noext",
        "mp3_named.wav",
        "wav_named.mp3",
        "sr_96000.wav",
        "st_48000.wav",
        "len_3.0.wav",
        "len_15.0.wav",
    ],
)
def test_clips_that_can(api: httpx.Client, clips: Path, name: str) -> None:
    answer = clone(api, clips / name, "今天风很大。", seed="7")
    assert answer.status_code == 200, answer.text


def test_speed_may_come_as_text(api: httpx.Client, voice: str) -> None:
    assert api.post("/v1/audio/speech", json={"input": "好。", "voice": voice, "speed": "1.25"}).status_code == 200


def test_the_official_client(server: Server, voice: str) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    made = client.audio.speech.create(model="tts-1", voice=voice, input="早上好。", response_format="wav", speed=1.5)
    assert made.content.startswith(b"RIFF") and int(made.response.headers["x-seed"]) >= 1
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.speech.create(model="tts-1", voice=voice, input="。。。")
    assert refused.value.param == "input"
    with pytest.raises(openai.NotFoundError):
        client.audio.speech.create(model="tts-1", voice="alloy", input="早上好。")
    assert [model.id for model in client.models.list()] == ["tone"]
    assert client.models.retrieve("tone").owned_by == "local"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")
    with pytest.raises(openai.UnprocessableEntityError):
        client.audio.speech.create(model="tts-1", voice=voice, input="早上好。", extra_body={"sed": 1})


@pytest.mark.parametrize("fmt", sorted(TYPES))
def test_the_official_client_in_every_format_whole_streamed_and_as_events(
    server: Server, voice: str, tmp_path: Path, fmt: str
) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    asked: dict[str, Any] = {"model": "tts-1", "voice": voice, "input": LONG, "response_format": fmt}
    whole = client.audio.speech.create(**asked, extra_body={"seed": 7}).content
    file = tmp_path / f"streamed.{fmt}"
    with client.audio.speech.with_streaming_response.create(
        **asked, extra_body={"seed": 7, "stream_format": "audio"}
    ) as streaming:
        streaming.stream_to_file(file)
    with client.audio.speech.with_streaming_response.create(
        **asked, stream_format="sse", extra_body={"seed": 7}
    ) as events:
        told = [json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: ")]
    from_events = b"".join(base64.b64decode(event["audio"]) for event in told[:-1])
    assert told[-1]["type"] == "speech.audio.done"
    assert len(from_events) == file.stat().st_size
    if fmt != "opus":  # every Ogg stream has a random serial number
        assert from_events == file.read_bytes(), "two ways to stream the same bytes"
    if fmt == "pcm":
        assert from_events == whole
        return
    lengths = []
    for data in (whole, from_events):
        with av.open(io.BytesIO(data)) as opened:
            lengths.append(sum(frame.samples / frame.sample_rate for frame in opened.decode(audio=0)))
    assert lengths[0] == pytest.approx(lengths[1], abs=0.1)


# a caller's own pronunciations


def test_pronunciations_are_obeyed_on_both_endpoints(api: httpx.Client, p0_wav: Path, voice: str) -> None:
    tagged = clone(api, p0_wav, "[h][áng][j][iā]来了。", seed="42")
    listed = clone(api, p0_wav, "行家来了。", seed="42", pronunciations="行家 = háng jiā")
    plain = clone(api, p0_wav, "行家来了。", seed="42")
    assert pcm_hash(listed.content) == pcm_hash(tagged.content) != pcm_hash(plain.content)
    for given in ({"行家": "háng jiā"}, "行家 = háng jiā"):
        body = {"input": "行家来了。", "voice": voice, "seed": 42, "response_format": "wav", "pronunciations": given}
        answer = api.post("/v1/audio/speech", json=body)
        assert answer.status_code == 200 and pcm_hash(answer.content) == pcm_hash(tagged.content)


@pytest.mark.parametrize("given", ["行家", "行家 = x", "好 = hǎo\n" * 2 + "x" * 70_000])
def test_wrong_pronunciations_are_named(api: httpx.Client, p0_wav: Path, server: Server, given: str) -> None:
    before = server.saved()
    answer = clone(api, p0_wav, pronunciations=given)
    assert answer.status_code == 400 and error(answer)["param"] == "pronunciations"
    assert server.saved() == before


def test_an_edit_of_the_servers_list_is_used_at_once(tmp_path: Path, p0_wav: Path) -> None:
    words = tmp_path / "words.toml"
    words.write_text('[zh]\n"行家" = "háng jiā"\n', encoding="utf-8")
    with running(tmp_path, "--pronunciations", str(words)) as server, httpx.Client(base_url=server.url) as api:
        tagged = pcm_hash(clone(api, p0_wav, "[h][áng][j][iā]来了。", seed="42").content)
        assert pcm_hash(clone(api, p0_wav, "行家来了。", seed="42").content) == tagged
        words.write_text('[zh]\n"行家" = "xíng"\n', encoding="utf-8")
        bad = clone(api, p0_wav, "行家来了。", seed="42")
        assert pcm_hash(bad.content) == tagged, "a bad edit leaves the last good list"
        sidecar = json.loads((server.outputs / bad.headers["x-output-path"]).with_suffix(".json").read_text("utf-8"))
        assert any("行家" in warning for warning in sidecar["warnings"])
        words.write_text("", encoding="utf-8")
        assert pcm_hash(clone(api, p0_wav, "行家来了。", seed="42").content) != tagged
