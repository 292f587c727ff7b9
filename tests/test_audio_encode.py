"""What is declared is what is there: magic bytes, rate, length, level and pitch, in every format."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest

from cosyvoice_app.audio.encode import CONTENT_TYPES, EXTENSIONS, FORMATS, encode, to_pcm16, wav_header
from cosyvoice_app.audio.io import decode
from cosyvoice_app.errors import BadInput
from cosyvoice_app.types import Audio

MAGIC = {"wav": b"RIFF", "flac": b"fLaC", "mp3": (b"\xff", b"ID3"), "opus": b"OggS", "aac": (b"\xff\xf1", b"\xff\xf9")}


def tone(rate_hz: int, seconds: float = 1.0, peak_dbfs: float = -30.0) -> Audio:
    t = np.arange(round(rate_hz * seconds)) / rate_hz
    return Audio((10 ** (peak_dbfs / 20) * np.sin(2 * np.pi * 440 * t)).astype(np.float32), rate_hz)


@pytest.mark.parametrize("rate_hz", [16000, 22050, 24000, 44100, 48000])
@pytest.mark.parametrize("fmt", ["wav", "flac", "mp3", "opus", "aac"])
def test_rate_length_pitch_and_level_survive(fmt: str, rate_hz: int) -> None:
    data = encode(tone(rate_hz), fmt)
    assert data.startswith(MAGIC[fmt])
    heard = decode(data)
    lossless = fmt in ("wav", "flac")
    if fmt != "opus":  # Opus always decodes at 48 kHz
        assert heard.rate_hz == rate_hz
    assert len(heard.samples) / heard.rate_hz == pytest.approx(1.0, abs=0.001 if lossless else 0.1)
    middle = heard.samples[len(heard.samples) // 4 : 3 * len(heard.samples) // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle)), 1 << 20))
    assert np.argmax(spectrum) * heard.rate_hz / (1 << 20) == pytest.approx(440, abs=1)
    assert 20 * np.log10(np.abs(middle).max()) == pytest.approx(-30, abs=0.2 if lossless else 1.0)


@pytest.mark.parametrize("rate_hz", [16000, 44100])
def test_wav_by_the_standard_library(rate_hz: int) -> None:
    data = encode(tone(rate_hz), "wav")
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()) == (
            1,
            2,
            rate_hz,
            rate_hz,
        )
    assert len(data) == 44 + 2 * rate_hz


def test_wav_flac_and_pcm_hold_the_same_integers() -> None:
    audio = tone(24000)
    pcm = np.frombuffer(encode(audio, "pcm"), "<i2")
    with wave.open(io.BytesIO(encode(audio, "wav"))) as file:
        assert np.array_equal(np.frombuffer(file.readframes(-1), "<i2"), pcm)
    assert np.array_equal(np.rint(decode(encode(audio, "flac")).samples * 32768).astype(int), pcm)


def test_pcm16_is_exact_at_the_ends_and_never_wraps() -> None:
    assert to_pcm16(np.array([-2, -1, 0, 1, 2], np.float32)).tolist() == [-32767, -32767, 0, 32767, 32767]


def test_rates_a_codec_lacks_move_up_and_keep_the_pitch() -> None:
    heard = decode(encode(tone(23000), "mp3"))
    assert heard.rate_hz == 24000
    spectrum = np.abs(np.fft.rfft(heard.samples, 1 << 20))
    assert np.argmax(spectrum) * heard.rate_hz / (1 << 20) == pytest.approx(440, abs=1)


def test_every_format_has_a_type_and_an_extension() -> None:
    assert set(FORMATS) == set(CONTENT_TYPES) == set(EXTENSIONS) == {"wav", "flac", "mp3", "opus", "aac", "pcm"}


@pytest.mark.parametrize("fmt", ["xyz", "", "WAV", "m4a"])
def test_other_formats_are_refused_with_the_list(fmt: str) -> None:
    with pytest.raises(BadInput, match="wav, flac, mp3, opus, aac, pcm") as caught:
        encode(tone(24000), fmt)
    assert caught.value.param == "response_format"


def test_streaming_header_reads_until_the_end() -> None:
    heard = decode(wav_header(24000, None) + encode(tone(24000), "pcm"))
    assert heard.rate_hz == 24000 and len(heard.samples) == 24000


def test_very_short_audio_is_still_a_file() -> None:
    for fmt in ("wav", "flac", "mp3", "opus", "aac"):
        assert encode(Audio(np.full(5, 0.1, np.float32), 24000), fmt).startswith(MAGIC[fmt])
