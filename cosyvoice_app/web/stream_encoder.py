"""Encode audio piece by piece into bytes that can be sent at once and never need to be changed.

One encoder runs through a whole answer, so nothing is heard where pieces meet. wav and pcm are written here; the others
by FFmpeg's libraries into containers that need no way back: lengths are left unknown, which each of them allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

import av
import numpy as np

from cosyvoice_app.audio.encode import encode, to_pcm16, wav_header
from cosyvoice_app.types import Audio

SLICE_S = 0.5
"""Audio is encoded and sent in slices of at most this length: the first bytes of a long segment need not wait for its
last."""


class _Form(NamedTuple):
    container: str
    codec: str
    sample_format: str
    rates_hz: tuple[int, ...] = ()
    """What the codec takes; audio at another rate goes up to the next. Empty: any."""
    bit_rate: int | None = None
    """Bits a second. 96 kbit/s of mp3 or aac and 64 of opus are beyond what speech of one channel needs."""
    options: tuple[tuple[str, str], ...] = ()
    gain: float = 1.0
    """Undoes what the encoder does to the level: LAME turns a constant bit rate down to 0.95."""


_MPEG_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_FORMS = {
    # Without lengths in its header, an mp3 of constant bit rate is the one whose duration players get right.
    "mp3": _Form("mp3", "libmp3lame", "fltp", _MPEG_HZ, 96_000, (("write_xing", "0"), ("id3v2_version", "0")),
                 gain=1 / 0.95),
    # A page leaves when it holds so many microseconds; a whole second by default.
    "opus": _Form("ogg", "libopus", "s16", (8_000, 12_000, 16_000, 24_000, 48_000), 64_000,
                  (("page_duration", "40000"),)),
    "flac": _Form("flac", "flac", "s16"),
    "aac": _Form("adts", "aac", "fltp", _MPEG_HZ, 96_000),
}


def slices(audio: Audio) -> Iterator[Audio]:
    """`audio` in pieces of at most SLICE_S, in order."""
    size = max(1, round(SLICE_S * audio.rate_hz))
    for start in range(0, len(audio.samples), size):
        yield Audio(audio.samples[start : start + size], audio.rate_hz)


class StreamEncoder:
    """`feed` audio [n] at `rate_hz`, get the bytes that are ready; `finish` gives the rest.

    Up to 0.15 s of audio stays in an encoder of mp3, opus, flac or aac until more comes or the end.
    """

    def __init__(self, fmt: str, rate_hz: int) -> None:
        self._fmt = fmt
        self._rate_hz = rate_hz
        self._started = False
        self._writer = _Writer(_FORMS[fmt], rate_hz) if fmt in _FORMS else None

    def feed(self, audio: Audio) -> bytes:
        if self._writer is not None:
            return self._writer.feed(audio) if len(audio.samples) else b""
        header = b"" if self._started or self._fmt == "pcm" else wav_header(self._rate_hz, None)
        self._started = True
        return header + encode(audio, "pcm")

    def finish(self) -> bytes:
        return b"" if self._writer is None else self._writer.finish()


class _Writer:
    def __init__(self, form: _Form, rate_hz: int) -> None:
        self._sink = _Sink()
        self._rate_hz = rate_hz
        self._gain = form.gain
        self._samples = 0
        to_hz = rate_hz
        if form.rates_hz and rate_hz not in form.rates_hz:
            to_hz = min((rate for rate in form.rates_hz if rate > rate_hz), default=form.rates_hz[-1])
        # The container leaves each packet with the sink at once instead of collecting some.
        self._container = av.open(self._sink, "w", format=form.container,
                                  options={"flush_packets": "1", **dict(form.options)})
        self._stream = cast(av.AudioStream, self._container.add_stream(form.codec, rate=to_hz, layout="mono"))
        self._stream.format = form.sample_format
        if form.bit_rate is not None:
            self._stream.bit_rate = form.bit_rate
        self._resampler = av.AudioResampler(format=form.sample_format, layout="mono", rate=to_hz)

    def feed(self, audio: Audio) -> bytes:
        pcm = to_pcm16(audio.samples)[None, :]  # the very integers that wav holds
        frame = av.AudioFrame.from_ndarray(pcm, format="s16", layout="mono") if self._gain == 1.0 else (
            av.AudioFrame.from_ndarray((pcm * (self._gain / 32768.0)).astype(np.float32), format="flt", layout="mono"))
        frame.sample_rate, frame.pts = self._rate_hz, self._samples
        self._samples += len(audio.samples)
        self._encode(frame)
        return self._sink.take()

    def finish(self) -> bytes:
        self._encode(None)
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()

    def _encode(self, frame: av.AudioFrame | None) -> None:
        for ready in self._resampler.resample(frame):
            self._container.mux(self._stream.encode(ready))


class _Sink:
    """A file that can only be written to, and is emptied by `take`."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        new = bytes(self._data)
        self._data.clear()
        return new
