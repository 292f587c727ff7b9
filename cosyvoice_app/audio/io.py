"""Decode a clip by what it holds, never by its name, with bounds on everything a file can claim.

The first bytes choose the reader: libsndfile for what it reads, FFmpeg's libraries (PyAV) for the rest. FFmpeg is
always told the container, because left to guess it also opens playlists, which name further files on this machine.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from cosyvoice_app.errors import PromptError, TooLarge
from cosyvoice_app.types import FloatArray

MAX_BYTES = 25_000_000
MAX_SECONDS = 300.0
ALLOWED = "wav, flac, mp3, ogg, opus, m4a, aac, webm, aiff"

_BLOCK_FRAMES = 1 << 15
_MAX_RATE_HZ = 768_000
_NO_AUDIO = "There is no audio in the clip{name}{why}. Record it again or upload another file ({allowed})."

# FFmpeg's name of each container, and whether libsndfile is tried first.
_FFMPEG = {"wav": "wav", "flac": "flac", "ogg": "ogg", "mp3": "mp3", "aiff": "aiff", "m4a": "mov", "webm": "matroska",
           "aac": "aac"}
_LIBSNDFILE = ("wav", "flac", "ogg", "mp3", "aiff")


@dataclass(frozen=True, slots=True)
class Decoded:
    """`samples` float32 mono [n] as stored: levels are untouched and float files may pass 1.0.

    `codec` is the reader's name for the encoding. `truncated` tells that the file ended in damage after these samples.
    `picked_channel` is set when channels cancelled or were mostly empty, so that one was taken instead of their mean.
    """

    samples: FloatArray
    rate_hz: int
    container: str
    codec: str
    channels: int
    truncated: bool = False
    picked_channel: int | None = None


@dataclass(frozen=True, slots=True)
class _Stream:
    rate_hz: int
    channels: int
    codec: str
    blocks: Iterator[FloatArray]
    """Float32 blocks [frames, channels], ending early (with `damage` filled) where the file is broken."""
    damage: list[str]


def decode(source: Path | bytes, *, name_hint: str = "", max_bytes: int = MAX_BYTES,
           max_seconds: float = MAX_SECONDS) -> Decoded:
    """Decode a whole clip. Memory is bounded by `max_bytes` and `max_seconds`, whatever the header claims.

    Raises PromptError (not audio, empty, longer than `max_seconds`) or TooLarge; messages show `name_hint`, never a
    path.
    """
    data = read(source, name_hint=name_hint, max_bytes=max_bytes)
    container = sniff(data)
    label = f" {name_hint!r}" if name_hint else ""
    if not data:
        raise _no_audio(label, ": the file is empty")
    if container is None:
        raise PromptError(f"The file{label} is not audio that can be read: its content is none of {ALLOWED}. "
                          "Save or convert it as one of these.", param="prompt")
    stream = _open(data, container)
    if stream is None:
        raise _no_audio(label, f": it starts like {container} but can't be decoded")
    mixed, energy = _mix(stream, None, max_seconds, label)
    if not len(mixed):
        raise _no_audio(label, f": the {container} file holds no samples")
    picked = _channel_to_pick(mixed, energy)
    if picked is not None:
        again = _open(data, container)
        assert again is not None
        mixed, _ = _mix(again, picked, max_seconds, label)
    return Decoded(mixed, stream.rate_hz, container, stream.codec, stream.channels, bool(stream.damage), picked)


def sniff(data: bytes) -> str | None:
    """Container by its first bytes, or None when it is none that the app reads."""
    head = data[:16]
    if head[:4] in (b"RIFF", b"RF64", b"RIFX") and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"fLaC":
        return "flac"
    if head[:4] == b"OggS":
        return "ogg"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    if head[:4] == b"\x1aE\xdf\xa3":
        return "webm"
    if head[4:8] == b"ftyp":
        return "m4a"
    if head[:3] == b"ID3":
        # A tag: what follows it decides. Its size is four bytes of seven bits.
        size = sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=False))
        after = data[10 + size:14 + size]
        return "flac" if after == b"fLaC" else "aac" if _is_adts(after) else "mp3"
    if _is_adts(head):
        return "aac"
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06 and head[2] & 0xF0 != 0xF0:
        return "mp3"
    return None


def _is_adts(head: bytes) -> bool:
    return len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0


def _no_audio(label: str, why: str) -> PromptError:
    return PromptError(_NO_AUDIO.format(name=label, why=why, allowed=ALLOWED), param="prompt")


def read(source: Path | bytes, *, name_hint: str = "", max_bytes: int = MAX_BYTES) -> bytes:
    """The file's bytes. Raises PromptError when it can't be opened, TooLarge over `max_bytes`, having read no more."""
    if isinstance(source, bytes):
        data = source
    else:
        try:
            with source.open("rb") as stream:
                data = stream.read(max_bytes + 1)
        except OSError as error:
            raise PromptError(f"The clip {name_hint or source.name!r} can't be opened: {error.strerror}. "
                              "Upload it again.", param="prompt") from error
    if len(data) > max_bytes:
        raise TooLarge(f"The clip is larger than {max_bytes / 1e6:.0f} MB, the most that is accepted. "
                       "Trim it to 3 to 15 s or save it in a compressed format.", param="prompt")
    return data


def _open(data: bytes, container: str) -> _Stream | None:
    stream = _open_libsndfile(data) if container in _LIBSNDFILE else None
    return stream or _open_ffmpeg(data, container)


def _open_libsndfile(data: bytes) -> _Stream | None:
    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except soundfile.LibsndfileError:
        return None
    damage: list[str] = []

    def blocks() -> Iterator[FloatArray]:
        # Read until nothing comes: the header's frame count may be a lie.
        with file:
            while True:
                try:
                    block = file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)
                except soundfile.LibsndfileError as error:
                    damage.append(str(error))
                    return
                if not len(block):
                    return
                yield block

    return _Stream(file.samplerate, file.channels, file.subtype.lower(), blocks(), damage)


def _open_ffmpeg(data: bytes, container: str) -> _Stream | None:
    # Imported when needed: libsndfile's formats work without FFmpeg's libraries.
    import av
    import av.error

    try:
        media = av.open(io.BytesIO(data), mode="r", format=_FFMPEG[container], metadata_errors="replace")
    except (av.error.FFmpegError, ValueError):
        return None
    if not media.streams.audio:
        media.close()
        return None
    track = media.streams.audio[0]
    codec = track.codec_context
    damage: list[str] = []

    def blocks() -> Iterator[FloatArray]:
        to_float = av.AudioResampler(format="fltp")
        with media:
            try:
                for frame in media.decode(track):
                    for block in to_float.resample(frame):
                        yield np.ascontiguousarray(block.to_ndarray().T, dtype=np.float32)
            except (av.error.FFmpegError, ValueError) as error:
                damage.append(str(error))

    if not codec.sample_rate or not codec.channels:
        media.close()
        return None
    return _Stream(codec.sample_rate, codec.channels, codec.name, blocks(), damage)


def _mix(stream: _Stream, channel: int | None, max_seconds: float,
         label: str) -> tuple[FloatArray, npt.NDArray[np.float64]]:
    """Mean of the channels (or the one `channel`) as [n], and each channel's energy. Stops at `max_seconds`."""
    if not 0 < stream.rate_hz <= _MAX_RATE_HZ:
        raise PromptError(f"The clip{label} claims {stream.rate_hz} samples a second; allowed: up to {_MAX_RATE_HZ}.",
                          param="prompt")
    kept: list[FloatArray] = []
    energy = np.zeros(stream.channels)
    limit, frames = int(max_seconds * stream.rate_hz), 0
    for block in stream.blocks:
        if block.shape[1] != stream.channels:
            raise PromptError(f"The clip{label} changes its number of channels on the way. "
                              "Save it as a plain wav file.", param="prompt")
        frames += len(block)
        if frames > limit:
            raise PromptError(f"The clip{label} is longer than {max_seconds:.0f} s; 3 to 15 s are needed. "
                              "Cut out a stretch of clear speech and upload that.", param="prompt")
        # A non-finite sample is for the caller to judge; it must not raise a warning here.
        with np.errstate(invalid="ignore", over="ignore"):
            energy += np.square(block, dtype=np.float64).sum(axis=0)
            kept.append(block.mean(axis=1) if channel is None else block[:, channel].copy())
    return (np.concatenate(kept) if kept else np.zeros(0, np.float32)), energy


def _channel_to_pick(mixed: FloatArray, energy: npt.NDArray[np.float64]) -> int | None:
    """The loudest channel, when the mean of all is over 6 dB quieter: opposite phase, or speech on one of many."""
    if len(energy) < 2 or not np.isfinite(energy).all():
        return None
    mean_energy = float(np.square(mixed, dtype=np.float64).sum())
    loudest = int(energy.argmax())
    # Stereo with speech on one side loses just 6.02 dB; the margin keeps that case on the mean.
    return loudest if mean_energy * 10 ** 0.61 < energy[loudest] else None
