"""The loaded networks of Fun-CosyVoice3-0.5B and what they rest on. Constants only: nothing of a request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from cosyvoice_app.engines.cosyvoice3 import files
from cosyvoice_app.engines.cosyvoice3.config import RATE_HZ, ModelConfig
from cosyvoice_app.engines.cosyvoice3.flow import Flow
from cosyvoice_app.engines.cosyvoice3.lm import LM
from cosyvoice_app.engines.cosyvoice3.official_yaml import read_config
from cosyvoice_app.engines.cosyvoice3.prompt import PromptEncoder
from cosyvoice_app.engines.cosyvoice3.tokenizer import TextTokenizer
from cosyvoice_app.engines.cosyvoice3.vocoder import Vocoder
from cosyvoice_app.engines.cosyvoice3.weights import REMEDY, read_state
from cosyvoice_app.engines.memory import give_back_freed
from cosyvoice_app.types import OnProgress, Progress

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """What products are computed in. Weights of 8 bits meet bf16 on a GPU, fp32 on a CPU, which has no fast bf16."""
    if precision == "int8":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[precision]


@dataclass(frozen=True, slots=True)
class Model:
    config: ModelConfig
    device: torch.device
    tokenizer: TextTokenizer
    prompts: PromptEncoder
    lm: LM
    flow: Flow
    vocoder: Vocoder
    model_hash: str

    @classmethod
    def load(
        cls, folder: Path, *, device: torch.device, precision: str, lm_file: str, steps: int, progress: OnProgress
    ) -> Model:
        """Read the official directory, for a solver of `steps` steps. `precision` is fp32, bf16, fp16 or int8, of the
        language model and the flow; the vocoder and the prompt side stay in fp32. Raises AssetError naming what is
        missing, damaged or different."""
        dtype = compute_dtype(precision, device)
        found = files.require(folder, lm_file)
        config, fmax_hz = read_config(found.yaml)
        progress(Progress("loading", 0.0, "text tokenizer"))
        tokenizer = TextTokenizer.load(folder / "CosyVoice-BlankEN")
        prompts = PromptEncoder.load(folder, config, device=device, fmax_hz=fmax_hz or RATE_HZ / 2)
        progress(Progress("loading", 0.1, lm_file))
        lm = LM.load(read_state(folder / lm_file), config.lm, device=device, dtype=dtype, precision=precision,
                     source=str(folder / lm_file), remedy=REMEDY)
        progress(Progress("loading", 0.6, "flow.pt"))
        flow = Flow.load(read_state(folder / "flow.pt"), config.flow, device=device, dtype=dtype, precision=precision,
                         source=str(folder / "flow.pt"))
        progress(Progress("loading", 0.9, "hift.pt"))
        vocoder = Vocoder.load(read_state(folder / "hift.pt"), config.vocoder, device=device,
                               source=str(folder / "hift.pt"))
        settle(lm, flow, vocoder, steps=steps)
        return cls(config, device, tokenizer, prompts, lm, flow, vocoder, files.model_hash(folder, lm_file))


def settle(lm: LM, flow: Flow, vocoder: Vocoder, *, steps: int) -> None:
    """After loading: hold on to nothing that speaking with a solver of `steps` steps doesn't need."""
    with torch.inference_mode():
        flow.dit.settle(steps)
    for net in (lm, flow, vocoder):
        let_go_of_file(net)
    give_back_freed()


def let_go_of_file(net: nn.Module) -> None:
    """Copy the tensors that are still views of a mapped file: one of them keeps the whole of it in memory."""
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()
