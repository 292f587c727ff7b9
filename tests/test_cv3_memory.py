"""What stays in memory after loading: no mapped file, no second copy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from cv3_flow_weights import random_flow_state
from cv3_lm_weights import official_shapes, random_state
from cv3_vocoder_weights import official_state

from cosyvoice_app.engines.cosyvoice3.config import TINY
from cosyvoice_app.engines.cosyvoice3.flow import Flow
from cosyvoice_app.engines.cosyvoice3.lm import LM
from cosyvoice_app.engines.cosyvoice3.model import compute_dtype, settle
from cosyvoice_app.engines.cosyvoice3.vocoder import Vocoder
from cosyvoice_app.engines.cosyvoice3.weights import read_state

CPU = torch.device("cpu")


def mapped(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_the_files_are_let_go_after_loading(tmp_path: Path, precision: str) -> None:
    states = (random_state(official_shapes(TINY.lm), 1), random_flow_state(TINY.flow, 2), official_state(TINY.vocoder))
    for name, state in zip(("llm.pt", "flow.pt", "hift.pt"), states, strict=True):
        torch.save(state, tmp_path / name)
    dtype = compute_dtype(precision, CPU)
    raw = read_state(tmp_path / "flow.pt")
    assert mapped(tmp_path), "files are mapped, not read"
    del raw
    lm = LM.load(read_state(tmp_path / "llm.pt"), TINY.lm, device=CPU, dtype=dtype, precision=precision, source="lm")
    flow = Flow.load(read_state(tmp_path / "flow.pt"), TINY.flow, device=CPU, dtype=dtype, precision=precision,
                     source="flow")
    vocoder = Vocoder.load(read_state(tmp_path / "hift.pt"), TINY.vocoder, device=CPU, source="hift")
    settle(lm, flow, vocoder, steps=4)
    assert not mapped(tmp_path)
