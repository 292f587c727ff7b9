"""The tables of the official files, against the published sizes."""

from __future__ import annotations

import pytest
import torch

from cosyvoice_app.engines.cosyvoice3.config import TINY, FlowConfig, LMConfig, VocoderConfig
from cosyvoice_app.engines.cosyvoice3.layout import (
    Shapes,
    count,
    flow_shapes,
    lm_shapes,
    random_state,
    vocoder_shapes,
)

HEAD = "llm.model.lm_head.weight"


@pytest.mark.parametrize(("shapes", "elements", "file_bytes"), [
    ({k: v for k, v in lm_shapes(LMConfig()).items() if k != HEAD}, 506_148_480, 2_024_669_519),
    (flow_shapes(FlowConfig()), 332_257_120, 1_329_116_148),
    (vocoder_shapes(VocoderConfig()), 20_779_887, 83_202_622),
])
def test_the_tables_fill_the_published_files(shapes: Shapes, elements: int, file_bytes: int) -> None:
    assert count(shapes) == elements
    assert 0 < file_bytes - 4 * elements < 100_000  # fp32; the rest is the archive's own


@pytest.mark.parametrize("shapes", [lm_shapes(TINY.lm), flow_shapes(TINY.flow), vocoder_shapes(TINY.vocoder)])
def test_a_random_state_has_the_form_of_the_tables_and_follows_its_seed(shapes: Shapes) -> None:
    state, again, other = random_state(shapes, 1), random_state(shapes, 1), random_state(shapes, 2)
    assert {name: tuple(value.shape) for name, value in state.items()} == shapes
    assert all(torch.equal(state[name], again[name]) for name in shapes)
    assert any(not torch.equal(state[name], other[name]) for name in shapes)


def test_the_unused_head_shares_its_memory_as_in_the_file() -> None:
    state = random_state(lm_shapes(TINY.lm), 1)
    assert state[HEAD].data_ptr() == state["llm.model.model.embed_tokens.weight"].data_ptr()
