"""Encode audio piece by piece into bytes that can be sent at once and never need to be changed.

wav and pcm are written here. The others come from libsndfile, through a file that only grows: what libsndfile goes back
to at the end (lengths, a checksum) was sent as "unknown", which each of these formats allows.
"""

from __future__ import annotations

import io

import numpy as np
import soundfile

from cosyvoice_app.audio.encode import encode, wav_header
from cosyvoice_app.types import Audio

_RATES_HZ = {"opus": (8_000, 12_000, 16_000, 24_000, 48_000), "mp3": (16_000, 22_050, 24_000, 32_000, 44_100, 48_000)}
_LIBSNDFILE = {"mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS"), "flac": ("FLAC", "PCM_16")}


class StreamEncoder:
    """`feed` audio [n] at `rate_hz`, get the bytes that are ready; `finish` gives the rest."""

    def __init__(self, fmt: str, rate_hz: int) -> None:
        self.fmt = fmt
        self.rate_hz = rate_hz
        self._started = False
        self._growing = _Growing()
        self._whole: list[Audio] = []
        self._writer: soundfile.SoundFile | None = None
        self._collects = rate_hz not in _RATES_HZ.get(fmt, (rate_hz,))  # to be resampled, so only as a whole
        if fmt in _LIBSNDFILE and not self._collects:
            container, codec = _LIBSNDFILE[fmt]
            # Without lengths in its header, an mp3 of constant bit rate is the one whose duration players get right.
            constant = {"bitrate_mode": "CONSTANT", "compression_level": 0.3} if fmt == "mp3" else {}
            self._writer = soundfile.SoundFile(self._growing, "w", rate_hz, 1, codec, format=container, **constant)

    def feed(self, audio: Audio) -> bytes:
        if self._collects:
            self._whole.append(audio)
            return b""
        pcm = encode(audio, "pcm")
        if self._writer is not None:
            self._writer.buffer_write(pcm, "int16")
            return self._growing.take()
        header = b"" if self._started or self.fmt == "pcm" else wav_header(self.rate_hz, None)
        self._started = True
        return header + pcm

    def finish(self) -> bytes:
        if self._collects:
            return encode(joined(self._whole), self.fmt)
        if self._writer is None:
            return b""
        self._writer.close()
        return self._growing.take()


def joined(pieces: list[Audio]) -> Audio:
    return Audio(np.concatenate([piece.samples for piece in pieces]), pieces[0].rate_hz)


class _Growing(io.RawIOBase):
    """A file for a writer that may go back: what was taken stays as it was, and only new bytes are given out."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0
        self._taken = 0

    def take(self) -> bytes:
        new = bytes(self._data[self._taken :])
        self._taken = len(self._data)
        return new

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._data[self._at : self._at + len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = len(self._data) if size < 0 else self._at + size
        found = bytes(self._data[self._at : stop])
        self._at += len(found)
        return found

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
