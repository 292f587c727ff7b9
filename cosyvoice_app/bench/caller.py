"""One client of the server under test: sends a request, times its answer, keeps what came, and never raises for what
the server did."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from cosyvoice_app.audio.prompt import load_prompt
from cosyvoice_app.bench.traffic import (
    CLIPS,
    Answer,
    Ask,
    Expected,
    Traffic,
    decode,
    judge,
    make_pool,
    sha256,
    tone_expected,
)
from cosyvoice_app.errors import EngineFailure

PATIENCE_S = 1300.0
"""Longer than a server lets anyone wait and run by its own defaults: the end is for it to tell."""
WAV_HEADER_BYTES = 44


class Caller:
    """Not for several threads. `address` is the local address to call from: 127.0.0.x plays a client of its own."""

    def __init__(self, traffic: Traffic, *, address: str | None = None) -> None:
        self._traffic = traffic
        headers = {"Authorization": f"Bearer {traffic.api_key}"} if traffic.api_key else {}
        self._http = httpx.Client(
            base_url=traffic.url, timeout=PATIENCE_S, headers=headers, trust_env=False,
            transport=httpx.HTTPTransport(local_address=address, verify=traffic.url.startswith("https")))
        self._clips = [Path(path).read_bytes() for path in traffic.clips]

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, ask: Ask) -> Answer:
        started = time.perf_counter()
        status, body, first_s = 0, bytearray(), None
        headers: httpx.Headers = httpx.Headers()
        broke_off = False
        try:
            with self._http.stream("POST", **self._request(ask)) as response:
                status, headers = response.status_code, response.headers
                for piece in response.iter_raw():
                    body += piece
                    if first_s is None and _audible(ask, body):
                        first_s = time.perf_counter() - started
        except httpx.TransportError:
            broke_off = status == 200
            status = status if broke_off else 0
        done_s = time.perf_counter() - started
        kind = None
        if status not in (0, 200):
            kind, first_s = _error_type(bytes(body)), None
        elif ask.stream == "sse" and status == 200:
            body, kind, ended = _events(bytes(body))
            broke_off = broke_off or not ended
        retry = headers.get("retry-after", "")
        return Answer(status, bytes(body), first_s, done_s, broke_off, kind, int(retry) if retry.isdigit() else None,
                      headers.get("x-output-path"))

    def _request(self, ask: Ask) -> dict[str, Any]:
        if ask.path == "clone":
            fields = {"text": ask.text, "seed": str(ask.seed), "response_format": ask.fmt}
            return {"url": "/v1/clone", "data": fields, "files": {"file": ("clip.flac", self._clips[ask.clip])}}
        body: dict[str, Any] = {"input": ask.text, "voice": self._traffic.voices[ask.clip], "seed": ask.seed,
                                "response_format": ask.fmt}
        if ask.stream:
            body["stream_format"] = ask.stream
        return {"url": "/v1/audio/speech", "json": body}


def _audible(ask: Ask, body: bytearray) -> bool:
    """Whether what has come holds audio and not only a header, or events that say to wait."""
    if ask.stream == "sse":
        return b"speech.audio.delta" in body
    return len(body) > (WAV_HEADER_BYTES if ask.fmt == "wav" else 0)


def _error_type(body: bytes) -> str | None:
    """The `type` of a documented error body that also has a message, else None."""
    try:
        error = json.loads(body)["error"]
        return str(error["type"]) if error["message"] else None
    except (ValueError, KeyError, TypeError):
        return None


def _events(body: bytes) -> tuple[bytearray, str | None, bool]:
    """(audio, error type, was the end told) of a body of server-sent events."""
    audio, kind, ended = bytearray(), None, False
    for event in _each_event(body):
        if event["type"] == "speech.audio.delta":
            audio += base64.b64decode(event["audio"])
        elif event["type"] == "speech.audio.done":
            ended = True
        elif event["type"] == "error":
            kind, ended = str(event["error"]["type"]), True
    return audio, kind, ended


def _each_event(body: bytes) -> Iterator[dict[str, Any]]:
    for block in body.split(b"\n\n"):
        if block.startswith(b"data: "):
            try:
                yield json.loads(block[6:])
            except ValueError:  # cut off in the middle: the end was not told either
                return


def prepare(url: str, *, pool: int, tone: bool, api_key: str = "", clips: tuple[Path, ...] = CLIPS) -> Traffic:
    """Save the clips as voices and answer every request of the pool once, one after another.

    Raises EngineFailure when the server gives a wrong answer with nothing beside it, or no answer.
    """
    traffic = Traffic(url, tuple(map(str, clips)), tuple(load_prompt(clip).sha256 for clip in clips), (),
                      make_pool(pool, clips=len(clips)), (), tone, api_key)
    with _plain(traffic) as http:
        voices = []
        for clip in clips:
            made = http.post("/v1/voices", files={"file": (clip.name, clip.read_bytes())}, data={"name": "load test"})
            made.raise_for_status()
            voices.append(made.json()["id"])
    traffic = replace(traffic, voices=tuple(voices))
    with Caller(traffic) as caller:
        return replace(traffic, expected=tuple(_alone(caller, traffic, ask) for ask in traffic.pool))


def _alone(caller: Caller, traffic: Traffic, ask: Ask) -> Expected:
    """The right answer to `ask`, asked with nothing beside it."""
    answer = caller.send(ask)
    whole = answer.status == 200 and not answer.broke_off
    found = sha256(decode(answer.body, ask.fmt)) if whole else None
    right = tone_expected(ask, traffic.clip_hashes[ask.clip]) if traffic.tone else Expected()
    verdict, why = judge(ask, replace(right, sha256=found), answer, {})
    if verdict != "right":
        raise EngineFailure(f"{ask} was answered {answer.status}, {verdict}, with nothing beside it: {why}")
    return replace(right, sha256=found)


def forget(traffic: Traffic) -> None:
    """Remove the voices that `prepare` saved."""
    with _plain(traffic) as http:
        for voice in traffic.voices:
            http.delete(f"/v1/voices/{voice}")


def _plain(traffic: Traffic) -> httpx.Client:
    headers = {"Authorization": f"Bearer {traffic.api_key}"} if traffic.api_key else {}
    return httpx.Client(base_url=traffic.url, timeout=PATIENCE_S, headers=headers, trust_env=False)
