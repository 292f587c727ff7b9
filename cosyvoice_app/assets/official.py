"""The official Fun-CosyVoice3-0.5B: its files as published, and which of them this app needs.

Sizes and SHA-256 are those of revision `REVISION`, agreed on by several independent projects that pin them. These files
are the user's own download into a directory of theirs; they are no part of the cache.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

NAME = "cosyvoice3"
MODEL = "FunAudioLLM/Fun-CosyVoice3-0.5B-2512"
REVISION = "29e01c4e8d000f4bcd70751be16fa94bf3d85a18"
TITLE = "Fun-CosyVoice3-0.5B-2512: the official weights, for the cosyvoice3 engine"
LICENCE = "Apache-2.0 (FunAudioLLM; read the model card for the terms that hold today)"
ORIGIN = f"https://huggingface.co/{MODEL}"
DEFAULT_DIR = Path("pretrained_models/Fun-CosyVoice3-0.5B")
DIR_VARIABLE = "COSYVOICE_MODEL_DIR"
FETCH = f"python -m cosyvoice_app assets fetch {NAME}"

Role = Literal["needed", "optional"]


@dataclass(frozen=True, slots=True)
class OfficialFile:
    """`name` is the path inside the directory, with forward slashes. `bytes` and `sha256` are of the whole file."""

    name: str
    bytes: int
    sha256: str
    holds: str
    role: Role = "needed"


YAML = OfficialFile("cosyvoice3.yaml", 6_934, "f5a6b2c6f05139d0f18861a1fe506f751e787026b77c05f7e8fef9f8a4405965",
                    "sizes and sampling constants")
LLM = OfficialFile("llm.pt", 2_024_669_519, "69f43bd545131c30e98947fb360ea8b4dc9916d8e83dded7757c7ea4f5a24970",
                   "language model")
LLM_RL = OfficialFile("llm.rl.pt", 2_024_682_701, "74d34b01a80c7154670ae75ac372d1b1712c78bceae9f467eb9f1f6f61ec764f",
                      "language model, tuned further by reinforcement", "optional")
FLOW = OfficialFile("flow.pt", 1_329_116_148, "a6fab32a7825e5b0bc855ddd948f8db9370b0a786fbc249caa4595e95b608e4b",
                    "speech tokens to mel")
HIFT = OfficialFile("hift.pt", 83_202_622, "b279d7641eb97ae55b3b540cfba4f953c26492a2df758328a89a4d007ab87a65",
                    "vocoder")
CAMPPLUS = OfficialFile("campplus.onnx", 28_303_423,
                        "a6ac6a63997761ae2997373e2ee1c47040854b4b759ea41ec48e4e42df0f4d73", "speaker encoder")
SPEECH_TOKENIZER = OfficialFile("speech_tokenizer_v3.onnx", 969_451_503,
                                "23236a74175dbdda47afc66dbadd5bcb41303c467a57c261cb8539ad9db9208d",
                                "clip to speech tokens")
TEXT_DIR = "CosyVoice-BlankEN"
TEXT_CONFIG = OfficialFile(f"{TEXT_DIR}/config.json", 659,
                           "168aa1bd401abc3bc262ba15ba4e499627a8b4e006e9d050b47c22de20660185",
                           "sizes of the language model")
TEXT_VOCAB = OfficialFile(f"{TEXT_DIR}/vocab.json", 2_776_833,
                          "ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910", "text tokens")
TEXT_MERGES = OfficialFile(f"{TEXT_DIR}/merges.txt", 1_402_109,
                           "ac8ff86a72bee70828fbc1119bc4398c6f3a9a6e490d7b0dbe917be025478bd0", "how text is cut")

FILES: tuple[OfficialFile, ...] = (YAML, TEXT_CONFIG, TEXT_VOCAB, TEXT_MERGES, CAMPPLUS, HIFT, SPEECH_TOKENIZER, FLOW,
                                   LLM, LLM_RL)
"""What this app reads, smallest first. The hub holds more: `flow.decoder.estimator.fp32.onnx` and
`speech_tokenizer_v3.batch.onnx` (for TensorRT and training) and `CosyVoice-BlankEN/model.safetensors` (wholly replaced
by `llm.pt`), 3.3 GB that nothing here opens."""


def default_dir() -> Path:
    """Where the engine looks and `assets fetch` writes, unless told otherwise."""
    named = os.environ.get(DIR_VARIABLE)
    return Path(named).expanduser() if named else DEFAULT_DIR


def fault_of(file: Path) -> str:
    """What is plainly wrong with a file that is there, told from its first and last bytes; "" for nothing found.

    Cheap, whatever the size: it sees an empty file, a Git LFS pointer, a web page saved in its place, and a `.pt`
    archive that was cut short (its directory stands at the end). It can't see a changed byte: that takes a hash.
    """
    size = file.stat().st_size
    if size == 0:
        return "it is empty"
    with file.open("rb") as stream:
        head = stream.read(512)
        if head.startswith(b"version https://git-lfs"):
            return "it is a Git LFS pointer, not the file itself (cloned without `git lfs pull`)"
        if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
            return "it is a web page, saved in place of the file"
        if head.startswith(b"PK\x03\x04"):
            stream.seek(max(0, size - _ZIP_END_BYTES))
            if b"PK\x05\x06" not in stream.read():
                return "it is cut short (the end of the archive is missing)"
    return ""


_ZIP_END_BYTES = 22 + (1 << 16)  # the end record and the longest comment
