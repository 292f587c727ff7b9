"""Every real clip is decoded by its content; nothing else is, and no header is believed."""

from __future__ import annotations

import io
import resource
import struct
import subprocess
import sys
from pathlib import Path

import clips as clip_maker
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_app.audio.io import decode, sniff
from cosyvoice_app.errors import AppError, PromptError, TooLarge

SPEECH = (
    "p.wav",
    "c.flac",
    "c.mp3",
    "c.m4a",
    "c.ogg",
    "c.webm",
    "noext",
    "mp3_named.wav",
    "wav_named.mp3",
    "endless.wav",
    "st_48000.wav",
    *(f"sr_{rate}.wav" for rate in clip_maker.RATES_HZ),
)
CONTAINERS = {
    "p.wav": "wav",
    "c.flac": "flac",
    "c.mp3": "mp3",
    "c.m4a": "m4a",
    "c.ogg": "ogg",
    "c.webm": "webm",
    "noext": "wav",
    "mp3_named.wav": "mp3",
    "wav_named.mp3": "wav",
}


@pytest.mark.parametrize("name", SPEECH)
def test_decoded_duration_is_the_true_one(clips: Path, name: str) -> None:
    decoded = decode(clips / name)
    assert len(decoded.samples) / decoded.rate_hz == pytest.approx(6.0, abs=0.1)
    assert decoded.samples.dtype == np.float32 and decoded.samples.ndim == 1


@pytest.mark.parametrize("name", CONTAINERS)
def test_content_decides_the_container(clips: Path, name: str) -> None:
    assert decode(clips / name).container == CONTAINERS[name]


@pytest.mark.parametrize("name", ["c.flac", "c.mp3", "c.m4a", "c.ogg", "c.webm"])
def test_decoded_sound_is_the_original(clips: Path, name: str) -> None:
    decoded = decode(clips / name)
    original, rate_hz = clip_maker.read("p0_en.flac")
    heard = clip_maker.change_rate(decoded.samples, decoded.rate_hz, rate_hz)
    n = 1 << 18
    # Peak of the normalised cross-correlation: codecs may shift by some milliseconds.
    correlation = np.fft.irfft(np.fft.rfft(heard, n) * np.conj(np.fft.rfft(original, n)))
    assert correlation.max() / (np.linalg.norm(heard) * np.linalg.norm(original)) > 0.95


def test_path_and_bytes_give_the_same(clips: Path) -> None:
    for name in ("c.mp3", "c.m4a"):
        assert np.array_equal(decode(clips / name).samples, decode((clips / name).read_bytes()).samples)


@pytest.mark.parametrize("name", ["zero.wav", "header.wav", "stub.webm"])
def test_nothing_inside_is_said_plainly(clips: Path, name: str) -> None:
    with pytest.raises(PromptError, match="no audio in the clip"):
        decode(clips / name, name_hint=name)


@pytest.mark.parametrize(
    "data",
    [
        b"this is not audio",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"%PDF-1.7",
        b"\x89PNG\r\n\x1a\n" + bytes(64),
    ],
)
def test_other_content_is_refused_with_what_is_allowed(data: bytes) -> None:
    with pytest.raises(PromptError, match="not audio that can be read") as caught:
        decode(data, name_hint="clip.wav")
    assert "wav, flac, mp3" in caught.value.message


@given(
    st.binary(max_size=400),
    st.sampled_from(
        [
            b"",
            b"RIFF\xff\xff\xff\xffWAVE",
            b"fLaC",
            b"OggS",
            b"ID3\x04",
            b"\xff\xfb",
            b"\x1aE\xdf\xa3",
            b"\x00\x00\x00\x18ftypM4A ",
            b"\xff\xf1",
            b"FORM....AIFF",
        ]
    ),
)
@settings(max_examples=150, deadline=None)
def test_noise_never_crashes_the_decoder(noise: bytes, magic: bytes) -> None:
    """Whatever the bytes, the outcome is samples or an error meant for people."""
    try:
        decoded = decode(magic + noise)
    except AppError as error:
        assert error.message
    else:
        assert len(decoded.samples) and decoded.rate_hz > 0


@pytest.mark.parametrize("name", ["c.mp3", "c.m4a", "c.ogg", "c.webm", "c.flac"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_truncated_files_give_their_real_part_or_an_error(clips: Path, name: str, share: float) -> None:
    data = (clips / name).read_bytes()
    try:
        decoded = decode(data[: int(len(data) * share)])
    except PromptError as error:
        assert "no audio" in error.message
    else:
        assert len(decoded.samples) / decoded.rate_hz < 6.0 * share + 1.0


def test_size_limit_is_413(clips: Path) -> None:
    with pytest.raises(TooLarge, match="1 MB"):
        decode(clips / "len_31.0.wav", max_bytes=1_000_000)


def test_duration_limit_stops_decoding(clips: Path) -> None:
    with pytest.raises(PromptError, match="longer than 60 s"):
        decode(clips / "len_120.0.wav", max_seconds=60)


def test_missing_file_shows_no_path(tmp_path: Path) -> None:
    with pytest.raises(PromptError) as caught:
        decode(tmp_path / "gone.wav")
    assert str(tmp_path) not in caught.value.message


def test_lying_header_allocates_little(clips: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from cosyvoice_app.audio.io import decode\n"
        "decode(Path(sys.argv[1]))\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "decode(Path(sys.argv[2]))\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, clips / "p.wav", clips / "endless.wav"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert int(done.stdout) < 100_000  # kB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0


@pytest.mark.parametrize(
    ("subtype", "tolerance"),
    [
        ("PCM_U8", 2e-2),
        ("PCM_16", 1e-4),
        ("PCM_24", 1e-6),
        ("PCM_32", 1e-6),
        ("FLOAT", 0),
        ("DOUBLE", 1e-7),
        ("ULAW", 5e-2),
        ("IMA_ADPCM", 2e-1),
    ],
)
def test_sample_formats(subtype: str, tolerance: float) -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    decoded = decode(clip_maker.wav_bytes(x, rate_hz, subtype))
    assert np.abs(decoded.samples[: len(x)] - x).max() <= tolerance


def test_wav_sizes_are_counted_from_the_data_not_the_header() -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    data = bytearray(clip_maker.wav_bytes(x, rate_hz))
    data[40:44] = struct.pack("<I", 24_000 * 2)  # claims 1 s of 6
    assert len(decode(bytes(data)).samples) in (24_000, len(x))


def test_six_channels_with_speech_on_one() -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    six = np.zeros((len(x), 6), np.float32)
    six[:, 2] = x
    decoded = decode(clip_maker.wav_bytes(six, rate_hz))
    assert decoded.picked_channel == 2
    assert np.allclose(decoded.samples, x, atol=1e-4)


def test_opposite_phase_stereo_does_not_cancel() -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    decoded = decode(clip_maker.wav_bytes(np.stack([x, -x], axis=1), rate_hz))
    assert decoded.picked_channel is not None
    assert np.abs(decoded.samples).max() == pytest.approx(np.abs(x).max(), abs=1e-3)


def test_one_sided_stereo_keeps_the_mean() -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    decoded = decode(clip_maker.wav_bytes(np.stack([x, 0 * x], axis=1), rate_hz))
    assert decoded.picked_channel is None and np.allclose(decoded.samples, x / 2, atol=1e-4)


def test_flac_behind_an_id3_tag() -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    tagged = b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10) + clip_maker.wav_bytes(x, rate_hz, container="FLAC")
    assert sniff(tagged) == "flac"
    assert len(decode(tagged).samples) == len(x)


@pytest.mark.parametrize("codec", ["aac", "alac"])
def test_m4a_codecs(codec: str) -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    assert len(decode(clip_maker.encode_av(x, rate_hz, "ipod", codec)).samples) / rate_hz == pytest.approx(6.0, abs=0.1)


def test_bare_aac_stream() -> None:
    x, rate_hz = clip_maker.read("p0_en.flac")
    decoded = decode(clip_maker.encode_av(x, rate_hz, "adts", "aac"))
    assert decoded.container == "aac" and len(decoded.samples) / rate_hz == pytest.approx(6.0, abs=0.2)


def test_without_torchaudio_and_torchcodec(clips: Path) -> None:
    """Reading and writing audio must not hang on torchaudio's loaders, which need codecs that may be missing."""
    code = (
        "import sys\nfor name in ('torch', 'torchaudio', 'torchcodec'): sys.modules[name] = None\n"
        "from pathlib import Path; from cosyvoice_app.audio.io import decode\n"
        "from cosyvoice_app.audio.encode import encode\n"
        "from cosyvoice_app.types import Audio\n"
        "for name in sys.argv[1:]:\n d = decode(Path(name)); assert encode(Audio(d.samples, d.rate_hz), 'wav')"
    )
    subprocess.run(
        [sys.executable, "-c", code, *(str(clips / n) for n in ("p.wav", "c.flac", "c.m4a"))],
        check=True,
        cwd=Path(__file__).parent.parent,
    )


def test_no_torchaudio_io_in_our_code() -> None:
    root = Path(__file__).parent.parent
    for file in [*root.glob("cosyvoice_app/**/*.py"), root / "app.py"]:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for call in ("torchaudio.load", "torchaudio.save", "torchaudio.info", "import torchcodec"):
            assert call not in text, f"{file.name} uses {call}"


def test_soundfile_reads_what_we_wrote() -> None:
    """The test clips themselves are sound: libsndfile agrees on their length."""
    x, rate_hz = clip_maker.read("p0_en.flac")
    assert soundfile.info(io.BytesIO(clip_maker.wav_bytes(x, rate_hz))).duration == 6.0
