"""The words of an English clip, by Whisper tiny.en, where the user installed it. No torch: the page may call it.

Optional twice: the package (`pip install 'cosyvoice-app[recognise]'` brings faster-whisper) and the model (asset
"whisper-tiny-en", 78 MB). `why_not` says which is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cosyvoice_app import assets
from cosyvoice_app.audio.encode import resample
from cosyvoice_app.errors import AssetError
from cosyvoice_app.types import FloatArray

PACKAGE, ASSET = "faster_whisper", "whisper-tiny-en"
_RATE_HZ = 16_000
_THREADS = 2
_LEAST_LOGPROB = -0.75
"""Mean log probability of a token. Twelve English clips lay at -0.5 or above; six Mandarin ones, of which the model
makes English sentences, at -1.0 or below.
"""
_MOST_NO_SPEECH = 0.6
_turn = threading.Lock()


def why_not(cache: Path | None = None) -> str:
    """Why words can't be recognised here, with the remedy; "" when they can."""
    if importlib.util.find_spec(PACKAGE) is None:
        return ("Recognising words needs the package faster-whisper, which is not installed. Run "
                "`pip install -r requirements-recognise.txt` and `python -m cosyvoice_app assets fetch "
                f"{ASSET}`, or type the words.")
    try:
        assets.path(ASSET, cache=cache)
    except AssetError as error:
        return f"Recognising words needs the model Whisper tiny.en: {error.message}"
    return ""


def recognise_english(samples: FloatArray, rate_hz: int, *, cache: Path | None = None) -> str | None:
    """What is said in mono [n], or None when no English was heard. About a second for a clip; one call at a time.

    Raises AssetError with the remedy when the package or the model is missing.
    """
    if obstacle := why_not(cache):
        raise AssetError(obstacle)
    audio = samples if rate_hz == _RATE_HZ else resample(samples, rate_hz, _RATE_HZ)
    with _turn:
        model = _model(assets.path(ASSET, cache=cache))
        heard, _ = model.transcribe(
            np.ascontiguousarray(audio, np.float32), language="en", beam_size=5, condition_on_previous_text=False
        )
        parts = list(heard)
    sure = [p.text.strip() for p in parts if p.avg_logprob > _LEAST_LOGPROB and p.no_speech_prob < _MOST_NO_SPEECH]
    return " ".join(part for part in sure if part) or None


@lru_cache(maxsize=1)
def _model(folder: Path) -> Any:
    whisper = importlib.import_module(PACKAGE)
    return whisper.WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=_THREADS)
