"""A clip -> what the models want of it: speech tokens, mel and a speaker vector.

    clip ──► + tail of silence ──┬─► 16 kHz ─┬─► Whisper log-mel ──► speech tokens   25 a second
                                 │           └─► fbank, less its mean ──► CAM++ ──► speaker [192]
                                 └─► 24 kHz ───► log-mel                             50 frames a second

The clip is resampled to each rate from the original. Tokens and mel are cut to the length that both have. The speaker
vector is of the clip without the tail: silence would shift the mean that is taken off.

On a CPU each clip goes alone, so that its features are the same to the bit in any company. On a GPU clips go together,
as long as their lengths are kept apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cosyvoice_app.audio import vad
from cosyvoice_app.audio.clip_loading import resampled
from cosyvoice_app.audio.features import Extractor, Features, extractor_for
from cosyvoice_app.engines.campplus import CamPlusPlus
from cosyvoice_app.engines.cosyvoice3.campplus_weights import load_campplus_onnx
from cosyvoice_app.engines.cosyvoice3.config import (
    FRAMES_PER_TOKEN,
    PROMPT_RATE_HZ,
    RATE_HZ,
    ModelConfig,
    TokenizerConfig,
)
from cosyvoice_app.engines.cosyvoice3.speech_tokenizer import SpeechTokenizer
from cosyvoice_app.engines.cosyvoice3.speech_tokenizer_weights import load_speech_tokenizer
from cosyvoice_app.engines.cosyvoice3.weights import REMEDY
from cosyvoice_app.errors import AssetError, PromptError
from cosyvoice_app.types import CancelToken, FloatArray, NeverCancelled

SPEAKER_FILE, TOKENIZER_FILE = "campplus.onnx", "speech_tokenizer_v3.onnx"
TAIL_SILENCE_S = 0.2
"""A prompt that stops in speech makes the model finish it first; a pause at its end tells it that the prompt is over.
0.2 s is five tokens: as many silent ones in a row as the model is ever shown."""
MIN_S = 0.1
_CLIPS_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """`tokens` [n] int64, `mel` [2n, 80] fp32 (ln of magnitudes at 24 kHz), `speaker` [192] fp32 as CAM++ gives it,
    not normalised. All on one device. No transcript: that comes with the request.
    """

    tokens: Tensor
    mel: Tensor
    speaker: Tensor

    def to(self, device: torch.device) -> PromptFeatures:
        return PromptFeatures(self.tokens.to(device), self.mel.to(device), self.speaker.to(device))


class PromptEncoder:
    """Holds CAM++ (27 MB) always, the speech tokenizer (968 MB) from the first clip until `release`. Others may encode
    or release wherever `encode` checks its cancel token.
    """

    def __init__(self, speaker: CamPlusPlus, tokenizer_path: Path, config: TokenizerConfig, *, device: torch.device,
                 fmax_hz: float = 12_000.0) -> None:
        """`fmax_hz` is the upper edge of the mel, from the model's own feature extractor."""
        self.device = device
        self._config, self._tokenizer_path = config, tokenizer_path
        self._speaker = speaker.to(device)
        self._tokenizer: SpeechTokenizer | None = None
        self._loading = threading.Lock()
        self._whisper = extractor_for("whisper-mel", bins=config.mels)
        self._fbank = extractor_for("fbank", PROMPT_RATE_HZ)
        self._mel = extractor_for("mel24k", high_hz=fmax_hz)

    @staticmethod
    def load(folder: Path, config: ModelConfig, *, device: torch.device, fmax_hz: float = 12_000.0) -> PromptEncoder:
        """From the official model folder. The tokenizer's file is only looked for. Raises AssetError."""
        missing = [name for name in (SPEAKER_FILE, TOKENIZER_FILE) if not (folder / name).is_file()]
        if missing:
            raise AssetError(f"The model folder {folder} has no {' and no '.join(missing)}. {REMEDY}")
        speaker = load_campplus_onnx(folder / SPEAKER_FILE)
        return PromptEncoder(speaker, folder / TOKENIZER_FILE, config.tokenizer, device=device, fmax_hz=fmax_hz)

    @property
    def loaded(self) -> bool:
        """Whether the speech tokenizer is in memory."""
        return self._tokenizer is not None

    def release(self) -> None:
        """Let go of the speech tokenizer; the next clip loads it again."""
        self._tokenizer = None

    def encode(self, clips: Sequence[tuple[FloatArray, int]], cancel: CancelToken | None = None, *,
               tail_silence_s: float = TAIL_SILENCE_S) -> list[PromptFeatures]:
        """Features of each clip (samples [n] float in [-1, 1], rate in Hz), in order, on the encoder's device.

        Raises PromptError for a clip that is too long or short, or isn't one of finite numbers, before any work;
        AssetError when the tokenizer's file doesn't fit; Cancelled between steps.
        """
        cancel = cancel or NeverCancelled()
        for samples, rate_hz in clips:
            check_clip(samples, rate_hz, self._config.max_s)
        together = 1 if self.device.type == "cpu" else _CLIPS_TOGETHER
        features: list[PromptFeatures] = []
        for first in range(0, len(clips), together):
            features += self._group(clips[first : first + together], cancel, tail_silence_s)
        return features

    def _group(self, clips: Sequence[tuple[FloatArray, int]], cancel: CancelToken,
               tail_silence_s: float) -> list[PromptFeatures]:
        at_16k, at_24k, spoken = [], [], []
        for samples, rate_hz in clips:
            cancel.check()
            longer = with_tail(samples, rate_hz, tail_silence_s, max_s=self._config.max_s)
            at_16k.append(self._resampled(longer, rate_hz, PROMPT_RATE_HZ))
            at_24k.append(self._resampled(longer, rate_hz, RATE_HZ))
            spoken.append(-(-len(samples) * PROMPT_RATE_HZ // rate_hz))  # samples at 16 kHz before the tail
        with _exact(self.device):
            speakers = [self._speaker_of(clip[:count]) for clip, count in zip(at_16k, spoken, strict=True)]
            cancel.check()
            mels = _extracted(self._mel, at_24k)
            whisper = _extracted(self._whisper, at_16k)
            tokenizer = self._loaded()  # held from here on, whoever releases it
            cancel.check()
            alone = len(clips) == 1
            ids, counts = tokenizer(whisper.values, None if alone else whisper.lengths)
        rows = zip(ids, counts.tolist(), mels.values, mels.lengths.tolist(), speakers, strict=True)
        return [_aligned(row, tokens, mel, frames, speaker) for row, tokens, mel, frames, speaker in rows]

    def _loaded(self) -> SpeechTokenizer:
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = load_speech_tokenizer(self._tokenizer_path, self._config, device=self.device)
            return self._tokenizer

    def _resampled(self, samples: FloatArray, rate_hz: int, to_hz: int) -> Tensor:
        return torch.from_numpy(np.array(resampled(samples, rate_hz, to_hz))).to(self.device)

    def _speaker_of(self, samples: Tensor) -> Tensor:
        bands = self._fbank(samples[None], check=False).values
        speaker: Tensor = self._speaker(bands - bands.mean(1, keepdim=True))
        return speaker[0]


def check_clip(samples: FloatArray, rate_hz: int, max_s: float) -> None:
    """Raise PromptError, with what was measured, for a clip that can't be encoded."""
    if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
        raise PromptError(f"The clip is an array of shape {samples.shape} and type {samples.dtype}; one channel of "
                          "floats in [-1, 1] is needed.", param="prompt")
    if rate_hz <= 0:
        raise PromptError(f"The clip has a rate of {rate_hz} Hz, which is none.", param="prompt")
    seconds = len(samples) / rate_hz
    if not MIN_S <= seconds <= max_s:
        raise PromptError(f"The clip is {seconds:.2f} s long; {MIN_S:g} to {max_s:g} s can be used, and 3 to 10 s are "
                          "best. Cut it to one or two whole sentences.", param="prompt")
    broken = int(np.count_nonzero(~np.isfinite(samples)))
    if broken:
        raise PromptError(f"The clip holds {broken} samples that are not finite numbers, of {len(samples)}. Export it "
                          "again as 16-bit wav.", param="prompt")


def with_tail(samples: FloatArray, rate_hz: int, tail_silence_s: float, *, max_s: float) -> FloatArray:
    """The clip [n] float32 with silence at its end, so that it ends in a pause of `tail_silence_s` at least.

    A pause that the clip has counts; nothing is ever cut, and no clip gets longer than `max_s`.
    """
    samples = samples.astype(np.float32, copy=False)
    missing_s = tail_silence_s - vad.measure(samples, rate_hz).trailing_s
    room = int(max_s * rate_hz) - len(samples)
    tail = min(round(missing_s * rate_hz), room)
    return np.pad(samples, (0, tail)) if tail > 0 else samples


def _extracted(extractor: Extractor, clips: Sequence[Tensor]) -> Features:
    if len(clips) == 1:
        return extractor(clips[0][None], check=False)
    lengths = torch.tensor([len(clip) for clip in clips], device=clips[0].device)
    return extractor(pad_sequence(list(clips), batch_first=True), lengths, check=False)


def _aligned(ids: Tensor, tokens: int, mel: Tensor, frames: int, speaker: Tensor) -> PromptFeatures:
    """Both cut to whole tokens that both have. Copies, so that no batch is kept alive by one of its rows."""
    count = min(frames // FRAMES_PER_TOKEN, tokens)
    return PromptFeatures(ids[:count].clone(), mel[: count * FRAMES_PER_TOKEN].clone(), speaker.clone())


@contextmanager
def _exact(device: torch.device) -> Iterator[None]:
    """True float32 on a GPU: with 10-bit mantissas, which are the default for convolutions, tokens would flip."""
    if device.type != "cuda":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast("cuda", enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions
