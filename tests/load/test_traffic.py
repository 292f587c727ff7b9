"""The load tools' own judgement: a wrong answer must not pass as right, whatever it looks like."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from cosyvoice_app.audio.encode import FORMATS, encode, wav_header
from cosyvoice_app.bench.load import summarise, table
from cosyvoice_app.bench.slope import slope
from cosyvoice_app.bench.traffic import (
    CLIPS,
    KINDS,
    TEXTS,
    Answer,
    Ask,
    Expected,
    Traffic,
    decode,
    judge,
    make_pool,
    percentiles,
    pitch_hz,
    sha256,
    tone_expected,
)
from cosyvoice_app.engines.tone import tone
from cosyvoice_app.types import Audio
from cosyvoice_app.web.stream_encoder import StreamEncoder

MINE, OTHER = 612.34, 1800.02
ASK = Ask("Hello.", 0, 7)
RIGHT = Expected(said="Hello.", samples=24_000, pitch_hz=MINE)


def audio(hz: float = MINE, seconds: float = 1.0) -> Audio:
    return Audio(tone(hz, seconds), 24_000)


def answer(body: bytes, **fields: object) -> Answer:
    return Answer(**{"status": 200, "body": body, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_right_tone_is_right_in_every_format(fmt: str) -> None:
    assert judge(replace(ASK, fmt=fmt), RIGHT, answer(encode(audio(), fmt)), {}) == ("right", "")


@pytest.mark.parametrize("fmt", FORMATS)
def test_another_tone_is_someone_else_s_in_every_format(fmt: str) -> None:
    assert judge(replace(ASK, fmt=fmt), RIGHT, answer(encode(audio(OTHER), fmt)), {})[0] == "someone else's"


@pytest.mark.parametrize("fmt", FORMATS)
def test_short_audio_is_wrong_in_every_format(fmt: str) -> None:
    assert judge(replace(ASK, fmt=fmt), RIGHT, answer(encode(audio(seconds=0.9), fmt)), {})[0] == "wrong"


@pytest.mark.parametrize("fmt", FORMATS)
def test_streamed_bodies_decode_to_the_whole(fmt: str) -> None:
    encoder, sound = StreamEncoder(fmt, 24_000), audio()
    body = encoder.feed(Audio(sound.samples[:9_000], 24_000)) + encoder.feed(Audio(sound.samples[9_000:], 24_000))
    assert judge(replace(ASK, fmt=fmt), RIGHT, answer(body + encoder.finish()), {}) == ("right", "")


def test_without_a_formula_only_the_samples_of_the_serial_run_are_right() -> None:
    mine, other = sha256(decode(encode(audio(), "wav"), "wav")), sha256(decode(encode(audio(OTHER), "wav"), "wav"))
    right, known = Expected(sha256=mine), {mine: 0, other: 1}
    assert judge(ASK, right, answer(encode(audio(), "wav")), known)[0] == "right"
    assert judge(ASK, right, answer(encode(audio(OTHER), "wav")), known)[0] == "someone else's"
    quieter = Audio(audio().samples * np.float32(0.99), 24_000)
    assert judge(ASK, right, answer(encode(quieter, "wav")), known)[0] == "wrong"


def test_a_changed_bit_is_wrong_even_where_the_pitch_is_right() -> None:
    body = bytearray(encode(audio(), "wav"))
    right = replace(RIGHT, sha256=sha256(decode(bytes(body), "wav")))
    body[5_000] ^= 1
    assert judge(ASK, right, answer(bytes(body)), {})[0] == "wrong"


@pytest.mark.parametrize("body", [b"", b"RIFF", b"{}", wav_header(24_000, 4_000) + bytes(100)])
def test_what_is_no_whole_wav_is_wrong(body: bytes) -> None:
    assert judge(ASK, RIGHT, answer(body), {})[0] == "wrong"


def test_what_counts_as_told() -> None:
    for verdict, given in {
        "told": answer(b"", status=500, error_type="engine_failure"),
        "not told": answer(b"", status=500),
        "refused": answer(b"", status=429, error_type="queue_full", retry_after_s=2),
        "broken off": answer(encode(audio(), "wav")[:999], broke_off=True),
    }.items():
        assert judge(ASK, RIGHT, given, {})[0] == verdict
    assert judge(ASK, RIGHT, answer(b"", status=0), {})[0] == "not told"
    assert judge(ASK, RIGHT, answer(b"", status=429, error_type="queue_full"), {})[0] == "not told"  # no Retry-After
    assert judge(ASK, RIGHT, answer(b"", error_type="engine_failure"), {})[0] == "told"  # an SSE error event


@pytest.mark.parametrize("hz", [300.0, 612.34, 1_999.98, 2_300.04])
def test_pitch_is_found_to_a_tenth(hz: float) -> None:
    for seconds in (0.3, 1.0, 2.5):
        assert abs(pitch_hz(decode(encode(audio(hz, seconds), "pcm"), "pcm")) - hz) < 0.1


def test_the_pool_holds_every_kind_text_and_clip_and_no_request_twice() -> None:
    pool = make_pool(60)
    assert len(set(pool)) == 60
    assert {(ask.path, ask.fmt, ask.stream) for ask in pool} == set(KINDS)
    assert {ask.text for ask in pool} == set(TEXTS) and {ask.clip for ask in pool} == set(range(len(CLIPS)))


def test_users_of_the_tone_engine_draw_requests_of_their_own_with_their_own_pitch() -> None:
    pool = make_pool(4)
    expected = tuple(replace(tone_expected(ask, f"clip{ask.clip}"), sha256=f"hash{ask.seed}") for ask in pool)
    traffic = Traffic("http://x", ("a", "b"), ("clip0", "clip1"), ("v0", "v1"), pool, expected, tone=True)
    assert Traffic.from_dict(traffic.to_dict()) == traffic
    drawn = [traffic.draw(random.Random(number)) for number in range(40)]
    fresh = [(ask, right) for ask, right in drawn if ask not in pool]
    assert 5 < len(fresh) < 35
    assert all(right == replace(tone_expected(ask, f"clip{ask.clip}"), sha256=None) for ask, right in fresh)
    assert len({right.pitch_hz for _, right in fresh}) == len(fresh)


def test_percentiles_are_the_nearest_rank() -> None:
    assert percentiles([]) == {"p50": None, "p95": None, "p99": None}
    assert percentiles([3.0]) == {"p50": 3.0, "p95": 3.0, "p99": 3.0}
    assert percentiles([float(value) for value in range(1, 101)]) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}


def test_a_summary_counts_only_what_ended_in_time_and_two_answers_with_one_file_as_a_mix_up() -> None:
    line = {"ask": "speech wav", "status": 200, "streamed": False, "first_s": 1.0, "done_s": 1.0, "why": "",
            "verdict": "right", "began": 100.0, "output": "a.wav"}
    lines = [line, {**line, "output": "b.wav"}, {**line, "began": 109.5, "output": "b.wav"},
             {**line, "verdict": "refused", "output": None}, {**line, "verdict": "wrong", "output": None}]  # fmt: skip
    row = summarise(lines, 3, 10.0)
    assert (row["requests"], row["right"], row["per_s"]) == (5, 3, 0.2)
    assert (row["errors"], row["someone_elses"], row["refused"]) == (1, 1, 1)
    assert table([row]).splitlines()[-1].startswith("| 3 | 5 | 0.20 | - / - / - | 1.00 / 1.00 / 1.00 | 1 | 1 | 1 |")


def test_the_slope_is_that_of_the_least_squares_line() -> None:
    samples = [(done, {"web_rss": 1_000 + 7 * done}) for done in range(10, 200, 10)]
    assert slope(samples, "web_rss") == pytest.approx(7.0)
