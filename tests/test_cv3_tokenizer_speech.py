"""The speech tokenizer: the official one's ids and states (made once, see tests/parity/prompt.py), rows that don't see
each other, and a reader that refuses whatever isn't the official graph.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from cosyvoice_app.engines.cosyvoice3.config import TINY, TokenizerConfig
from cosyvoice_app.engines.cosyvoice3.speech_tokenizer import SpeechTokenizer, rotary, rotated, tokens_of
from cosyvoice_app.engines.cosyvoice3.speech_tokenizer_weights import load_speech_tokenizer, read_state
from cosyvoice_app.errors import AssetError

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parent / "data" / "cv3_prompt_tokenizer.npz"
CONFIG = TokenizerConfig(width=24, heads=2, head=12, blocks=2, mlp=96)
FRAMES = (1, 6, 37, 101)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as held:
        return dict(held)


@pytest.fixture(scope="module")
def graph(golden: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "tokenizer.onnx"
    path.write_bytes(golden["graph"].tobytes())
    return path


@pytest.fixture(scope="module")
def net(graph: Path) -> SpeechTokenizer:
    return load_speech_tokenizer(graph, CONFIG, device=CPU)


@pytest.fixture(scope="module")
def tiny() -> SpeechTokenizer:
    """With weights large enough that all digits come up."""
    net = SpeechTokenizer(TINY.tokenizer)
    generator = torch.Generator().manual_seed(1)
    for name, p in net.named_parameters():
        spread = 0.1 if p.ndim == 1 else 1.5 / p[0].numel() ** 0.5
        p.copy_(torch.randn(p.shape, generator=generator) * spread + float("norm.weight" in name))
    net.digits.weight.mul_(3.0)
    return net


def mel(frames: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, frames, 128, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("frames", FRAMES)
def test_ids_and_states_are_the_official_ones(net: SpeechTokenizer, golden: dict[str, np.ndarray], frames: int) -> None:
    x = torch.from_numpy(golden[f"mel_{frames}"]).float()[None]
    states, _ = net.encode(x)
    np.testing.assert_allclose(states[0], golden[f"states_{frames}"], atol=2e-5)
    ids, counts = net(x)
    assert ids[0].tolist() == golden[f"ids_{frames}"].tolist() and counts.tolist() == [tokens_of(frames)]


def test_a_token_for_every_four_frames_and_one_for_a_rest(tiny: SpeechTokenizer) -> None:
    for frames in range(1, 14):
        ids, counts = tiny(mel(frames))
        assert ids.shape == (1, -(-frames // 4)) and counts.item() == tokens_of(frames) == -(-frames // 4)
        assert ids.dtype == torch.int64 and 0 <= int(ids.min()) and int(ids.max()) < 6561


def test_rows_are_the_same_alone_and_together_whatever_lies_past_their_ends(tiny: SpeechTokenizer) -> None:
    lengths = [90, 41, 3, 64]
    x = mel(90, 4)
    for row, length in enumerate(lengths):
        x[row, length:] = torch.nan
    states, counts = tiny.encode(x, torch.tensor(lengths))
    ids, _ = tiny(x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone, _ = tiny.encode(x[row : row + 1, :length])
        count = int(counts[row])
        assert count == tokens_of(length)
        torch.testing.assert_close(states[row, :count], alone[0], atol=2e-5, rtol=1e-4)
        assert torch.equal(ids[row, :count], tiny(x[row : row + 1, :length])[0][0])
        assert not ids[row, count:].any()


def test_the_ids_tell_mels_apart(tiny: SpeechTokenizer) -> None:
    ids = tiny(mel(400))[0]
    assert len(set(ids[0].tolist())) > 20


def test_rotation_depends_on_the_distance_alone() -> None:
    config = TINY.tokenizer
    q, k = torch.randn(2, 1, 1, 1, config.head, generator=torch.Generator().manual_seed(0)).expand(2, 1, 1, 12, -1)
    turn = rotary(config, 12, CPU)
    products = (rotated(q, turn) @ rotated(k, turn).transpose(-1, -2))[0, 0]
    for distance in (-3, 0, 5):
        alike = products.diagonal(distance)
        torch.testing.assert_close(alike, alike[:1].expand(len(alike)))
    assert abs(float(products[0, 0] - products[0, 5])) > 1e-3


def test_the_full_size_has_the_released_files_weights() -> None:
    with torch.device("meta"):
        full = SpeechTokenizer(TokenizerConfig())
    assert sum(p.numel() for p in full.parameters()) == 242_009_608 and len(full.state_dict()) == 198


def edited(graph: Path, to: Path, change: object) -> Path:
    model = onnx.load(str(graph))
    change(model.graph)  # type: ignore[operator]
    onnx.save(model, str(to))
    return to


def test_structure_is_enough_where_all_names_are_gone(graph: Path, tmp_path: Path) -> None:
    def strip(g: onnx.GraphProto) -> None:
        new = {tensor.name: f"onnx::{n}" for n, tensor in enumerate(g.initializer)}
        for tensor in g.initializer:
            tensor.name = new[tensor.name]
        for node in g.node:
            node.name = ""
            node.input[:] = [new.get(name, name) for name in node.input]

    mine, _ = read_state(edited(graph, tmp_path / "m.onnx", strip), CONFIG, own=True)
    whole, _ = read_state(graph, CONFIG, own=True)
    assert mine.keys() == whole.keys() and all(torch.equal(mine[k], whole[k]) for k in mine)


def projections(g: onnx.GraphProto, block: int = 0) -> dict[str, onnx.NodeProto]:
    return {kind: node for node in g.node for kind in ("query", "key", "value")
            if node.name == f"/encoder/blocks.{block}/attn/{kind}/MatMul"}


def test_queries_keys_and_values_are_told_apart_by_what_they_feed(graph: Path, tmp_path: Path) -> None:
    """The same computation written down in another order, without names, is read the same."""

    def reorder(g: onnx.GraphProto) -> None:
        nodes = list(g.node)
        found = projections(g)
        where = sorted(nodes.index(node) for node in found.values())
        group = [found["value"], found["key"], found["query"]]
        # The bias of the first in the file comes between; all three only need the norm before them.
        rest = [node for node in nodes if not any(node is one for one in found.values())]
        nodes = rest[: where[0]] + group + rest[where[0] :]
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del g.node[:]
        g.node.extend(kept)
        for node in g.node:
            node.name = ""

    mine, _ = read_state(edited(graph, tmp_path / "m.onnx", reorder), CONFIG, own=True)
    whole, _ = read_state(graph, CONFIG, own=True)
    assert all(torch.equal(mine[k], whole[k]) for k in whole)


def test_names_that_say_otherwise_are_refused(graph: Path, tmp_path: Path) -> None:
    def swap(g: onnx.GraphProto) -> None:
        found = projections(g)
        found["query"].name, found["key"].name = found["key"].name, found["query"].name

    with pytest.raises(AssetError, match=r"blocks\.0\.attention\.query would be taken from .*key"):
        read_state(edited(graph, tmp_path / "m.onnx", swap), CONFIG, own=True)


def test_a_weight_left_over_or_of_another_shape_is_refused(graph: Path, tmp_path: Path) -> None:
    def stray(g: onnx.GraphProto) -> None:
        g.initializer.append(numpy_helper.from_array(np.ones(5, np.float32), "stray"))

    with pytest.raises(AssetError, match=r"no layer: stray \[5\]"):
        read_state(edited(graph, tmp_path / "a.onnx", stray), CONFIG, own=True)
    wider = TokenizerConfig(width=24, heads=2, head=12, blocks=2, mlp=100)
    with pytest.raises(AssetError, match=r"blocks\.0\.up\.weight is \[96, 24\], expected \[100, 24\]"):
        read_state(graph, wider, own=True)
    with pytest.raises(AssetError, match=r"21 layers with weights, expected 30"):
        read_state(graph, TokenizerConfig(width=24, heads=2, head=12, blocks=3, mlp=96), own=True)


def test_another_rotation_in_the_file_is_refused(graph: Path) -> None:
    other = TokenizerConfig(width=24, heads=2, head=12, blocks=2, mlp=96, rope_theta=500.0)
    with pytest.raises(AssetError, match="sine of the positions' angles"):
        read_state(graph, other, own=True)


def test_the_norms_eps_is_the_files(graph: Path, tmp_path: Path) -> None:
    def looser(g: onnx.GraphProto) -> None:
        total = next(n for n in g.node if n.name == "/encoder/blocks.1/mlp_ln/Add")
        constant = next(n for n in g.node if n.output[0] in total.input and n.op_type == "Constant")
        constant.attribute[0].t.CopyFrom(numpy_helper.from_array(np.float32(3e-4).reshape(())))

    net = load_speech_tokenizer(edited(graph, tmp_path / "m.onnx", looser), CONFIG, device=CPU)
    assert net.get_submodule("blocks.1.mlp_norm").eps == pytest.approx(3e-4)
    assert net.get_submodule("blocks.1.attention_norm").eps == pytest.approx(1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_ids(graph: Path, golden: dict[str, np.ndarray]) -> None:
    net = load_speech_tokenizer(graph, CONFIG, device=torch.device("cuda"))
    x = torch.from_numpy(golden["mel_101"]).float()[None].cuda()
    states, _ = net.encode(x)
    np.testing.assert_allclose(states[0].cpu(), golden["states_101"], atol=5e-3)
    assert float((net(x)[0][0].cpu().numpy() == golden["ids_101"]).mean()) > 0.9
