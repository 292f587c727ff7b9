"""Clients that behave badly beside the others: they read a byte a second, hang up in the middle, break off uploads."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx

from cosyvoice_app.bench.caller import PATIENCE_S
from cosyvoice_app.bench.traffic import Traffic

LONG_TEXT = "The slow reader takes one byte a second and never comes to the end of it, however long it is. " * 2
SLOW_READERS, HANG_UPS = 2, 2
_UPLOAD_BYTES = 1_000_000
_PAUSE_S = 0.05


class Rude:
    def __init__(self, traffic: Traffic, uploads: int) -> None:
        self._traffic = traffic
        self._uploads = uploads
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._uploader = threading.Thread(target=self._break_off_uploads, name="rude-uploads")
        self._threads = [self._uploader]
        self._threads += [threading.Thread(target=self._read_slowly, name=f"rude-slow-{number}")
                          for number in range(SLOW_READERS)]
        self._threads += [threading.Thread(target=self._hang_up, args=(number,), name=f"rude-hang-up-{number}")
                          for number in range(HANG_UPS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def finish_uploads(self) -> None:
        """Wait until all uploads have been begun and broken off."""
        self._uploader.join()

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _read_slowly(self) -> None:
        """Over and over: a long streamed answer, of which one byte a second is taken."""
        while not self._stop.is_set():
            try:
                with self._connect(receive_bytes=2048) as line:
                    body = (f'{{"input": "{LONG_TEXT.strip()}", "voice": "{self._traffic.voices[0]}", "seed": 77, '
                            '"response_format": "pcm", "stream_format": "audio"}').encode()
                    line.sendall(self._head("/v1/audio/speech", "application/json", len(body)) + body)
                    line.settimeout(1.0)
                    self._sip(line)
            except OSError:
                self._stop.wait(_PAUSE_S)  # the server ended it, as it may

    def _sip(self, line: socket.socket) -> None:
        self._count("slow readers")
        while not self._stop.wait(1.0):
            try:
                if not line.recv(1):
                    return
            except TimeoutError:
                continue
            self._count("bytes read slowly")

    def _hang_up(self, number: int) -> None:
        """Over and over: leave before the first byte, or after some of the audio."""
        dice = random.Random(number)
        while not self._stop.wait(_PAUSE_S):
            try:
                with httpx.Client(base_url=self._traffic.url, timeout=PATIENCE_S, trust_env=False) as http:
                    self._ask_and_leave(http, dice)
            except httpx.TransportError:
                self._count("left early")

    def _ask_and_leave(self, http: httpx.Client, dice: random.Random) -> None:
        body = {"input": LONG_TEXT.strip(), "voice": self._traffic.voices[0],
                "seed": dice.randrange(10_000, 10_000_000),
                "response_format": dice.choice(["pcm", "mp3", "flac"]), "stream_format": dice.choice(["audio", "sse"])}
        early = dice.random() < 0.5
        with http.stream("POST", "/v1/audio/speech", json=body, timeout=0.2 if early else PATIENCE_S) as answer:
            for _ in answer.iter_raw():
                self._count("left in the middle")
                return

    def _break_off_uploads(self) -> None:
        for number in range(self._uploads):
            if self._stop.is_set():
                return
            path = "/v1/clone" if number % 2 else "/v1/voices"
            try:
                with self._connect() as line:
                    line.sendall(self._head(path, "multipart/form-data; boundary=x", _UPLOAD_BYTES))
                    line.sendall(b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
                                 + bytes(_UPLOAD_BYTES // 2))
                    if number % 4 < 2:  # a reset instead of an orderly end
                        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                self._count("uploads refused")
            self._count("uploads broken off")
            time.sleep(_PAUSE_S)

    def _connect(self, *, receive_bytes: int | None = None) -> socket.socket:
        line = socket.socket()
        line.settimeout(PATIENCE_S)
        if receive_bytes:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        at = urlsplit(self._traffic.url)
        try:
            line.connect((at.hostname, at.port))
        except OSError:
            line.close()
            raise
        return line

    def _head(self, path: str, content_type: str, length: int) -> bytes:
        host = urlsplit(self._traffic.url).netloc
        return (f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\n"
                f"Content-Length: {length}\r\nConnection: close\r\n\r\n").encode()


@contextmanager
def beside(traffic: Traffic, *, uploads: int) -> Iterator[Rude]:
    """Rude clients as long as the context lasts."""
    rude = Rude(traffic, uploads)
    rude.start()
    try:
        yield rude
    finally:
        rude.stop()
