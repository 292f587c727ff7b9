"""A whole cosyvoice3 engine at toy size: every part is the real one but the prompt encoder, whose files are big."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cv3_flow_weights import random_flow_state
from cv3_lm_weights import official_shapes, random_state
from cv3_vocoder_weights import official_state
from tokenizers import pre_tokenizers

from cosyvoice_app.engines.cosyvoice3.config import FRAMES_PER_TOKEN, MELS, SPEAKER, TINY
from cosyvoice_app.engines.cosyvoice3.engine import CosyVoice3Engine
from cosyvoice_app.engines.cosyvoice3.flow import Flow
from cosyvoice_app.engines.cosyvoice3.lm import LM
from cosyvoice_app.engines.cosyvoice3.model import Model, compute_dtype
from cosyvoice_app.engines.cosyvoice3.prompt import PromptFeatures
from cosyvoice_app.engines.cosyvoice3.tempo import apply
from cosyvoice_app.engines.cosyvoice3.tokenizer import TextTokenizer
from cosyvoice_app.engines.cosyvoice3.vocoder import Vocoder
from cosyvoice_app.engines.cosyvoice3.voice_store import PromptStore
from cosyvoice_app.types import Row

CPU = torch.device("cpu")


def text_tokenizer(folder: Path) -> TextTokenizer:
    """Bytes and one merge: nearly every letter is a token."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    (folder / "vocab.json").write_text(json.dumps({letter: n for n, letter in enumerate(alphabet)}), encoding="utf-8")
    (folder / "merges.txt").write_text("h e\n", encoding="utf-8")
    return TextTokenizer.load(folder, base_tokens=len(alphabet))


class Prompts:
    """Stands in for the prompt encoder: random features that follow from the clip, a prompt token for 2000 samples."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.encoded, self.released = 0, 0

    def encode(self, clips: Sequence[tuple[Any, int]], cancel: Any = None) -> list[PromptFeatures]:
        self.encoded += len(clips)
        return [features(len(samples) // 2000, int(1e6 * abs(float(samples.sum())))).to(self.device)
                for samples, _ in clips]

    def release(self) -> None:
        self.released += 1


def features(tokens: int, seed: int) -> PromptFeatures:
    generator = torch.Generator().manual_seed(seed)
    return PromptFeatures(
        torch.randint(0, 6561, (tokens,), generator=generator),
        torch.randn(tokens * FRAMES_PER_TOKEN, MELS, generator=generator),
        torch.randn(SPEAKER, generator=generator),
    )


def model(folder: Path, *, precision: str = "fp32", prompts: Prompts | None = None,
          device: torch.device = CPU) -> Model:
    dtype = compute_dtype(precision, device)
    lm = LM.load(random_state(official_shapes(TINY.lm), 1), TINY.lm, device=device, dtype=dtype, precision=precision,
                 source="lm")
    flow = Flow.load(random_flow_state(TINY.flow, 2), TINY.flow, device=device, dtype=dtype,
                     precision=precision, source="flow")
    vocoder = Vocoder.load(official_state(TINY.vocoder), TINY.vocoder, device=device, source="hift")
    tokenizer = text_tokenizer(folder / "text")
    stand_in: Any = prompts or Prompts(device)
    return Model(TINY, device, tokenizer, stand_in, lm, flow, vocoder, "tiny")


def engine(folder: Path, made: Model | None = None, *, precision: str = "fp32", steps: int = 10,
           slots: int = 4) -> CosyVoice3Engine:
    return CosyVoice3Engine(made or model(folder, precision=precision), PromptStore(folder / "voices"),
                            device_reason="test", precision=precision, steps=steps, slots=slots)


@torch.inference_mode()
def chunk_masked(made: Model, row: Row, tokens: tuple[int, ...], steps: int = 10) -> np.ndarray:
    """The whole segment in one run under the streaming mask: what a stream of it adds up to."""
    voice = row.voice.payload.features
    ids = torch.cat((voice.tokens, torch.tensor(tokens, device=made.device)))[None]
    mel = made.flow(ids, torch.tensor([ids.shape[1]], device=made.device), voice.mel[None],
                    torch.tensor([len(voice.mel)]), voice.speaker[None], chunked=True,
                    steps=steps)[0, len(voice.mel) :]
    mel = apply(mel, row.style.payload.speed)
    wave: np.ndarray = made.vocoder(mel[None], torch.tensor([len(mel)], device=made.device))[0].cpu().numpy()
    return wave
