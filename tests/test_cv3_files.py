"""A model directory: what it is, what it lacks, what its files are; its yaml and its tensors; which engine it gives."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cosyvoice_app.assets import official
from cosyvoice_app.cli.main import main
from cosyvoice_app.engines import registry
from cosyvoice_app.engines.cosyvoice3 import files
from cosyvoice_app.engines.cosyvoice3.config import FlowConfig, LMConfig, ModelConfig, TokenizerConfig, VocoderConfig
from cosyvoice_app.engines.cosyvoice3.official_yaml import load_neutral, read_config
from cosyvoice_app.engines.cosyvoice3.weights import read_state
from cosyvoice_app.errors import AssetError
from cosyvoice_app.settings import Settings

NEEDED = tuple(file.name for file in official.FILES if file.role == "needed")

YAML = """
__set_seed: !apply:os.system ['touch {trap}']
rate: 12000
sample_rate: !ref <rate> * 2
width: 896
chunk: 25
ratio: 2
token_frame_rate: 25
token_mel_ratio: 2
llm: !new:some.where.LM
    llm_input_size: !ref <width>
    llm_output_size: !ref <width>
    speech_token_size: 6561
    sampling: !name:some.where.sampling
        top_p: 0.8
        top_k: 25
        win_size: 10
        tau_r: 0.1
flow: !new:os.system
    spk_embed_dim: 192
    decoder: !new:x.Y
        cfm_params: !new:omegaconf.DictConfig
            content: {{sigma_min: 1e-06, solver: 'euler', t_scheduler: 'cosine', inference_cfg_rate: 0.7}}
        estimator: !new:x.DiT
            dim: 1024
            depth: 22
            static_chunk_size: !ref <chunk> * <ratio>
            num_decoding_left_chunks: -1
hift: !new:x.HiFT
    upsample_rates: [8, 5, 3]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    something_new: 17
spectrum: !name:x.mel {{fmax: 8000}}
feat_extractor: !name:x.mel
    n_fft: 1920
    sampling_rate: !ref <sample_rate>
    fmax: null
    center: False
list_of_things:
    - !ref <feat_extractor>
    - !include:other.yaml
    - !!python/object/apply:os.system ['touch {trap}']
"""
TRUNK: dict[str, Any] = {
    "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864, "vocab_size": 151_936,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0, "use_sliding_window": False, "torch_dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "CosyVoice-BlankEN").mkdir(parents=True)
    for i, name in enumerate(NEEDED):
        (folder / name).write_bytes(os.urandom(1000 + i))
    return folder


def write_yaml(tmp_path: Path, *changes: tuple[str, str], trunk: dict[str, Any] | None = None) -> Path:
    text = YAML.format(trap=tmp_path / "trap")
    for old, new in changes:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    (tmp_path / "CosyVoice-BlankEN").mkdir(exist_ok=True)
    (tmp_path / "CosyVoice-BlankEN/config.json").write_text(json.dumps(trunk or TRUNK))
    file = tmp_path / "cosyvoice3.yaml"
    file.write_text(text, encoding="utf-8")
    return file


# What a directory holds.


def test_a_full_directory_is_usable(model: Path) -> None:
    found = files.require(model)
    assert found.usable and found.kind == "cosyvoice3" and not found.missing and not found.problem()
    assert found.yaml == model / "cosyvoice3.yaml"
    assert {file.state for file in found.files if file.needed} == {"other size"}
    report = "\n".join(found.report())
    assert "usable (cosyvoice3)" in report and "published with 2024669519 bytes" in report
    assert "llm.rl.pt" not in report, "optional"
    json.dumps(found.to_dict())


def test_the_published_size_is_told_without_reading(model: Path) -> None:
    with (model / "flow.pt").open("wb") as stream:
        stream.truncate(official.FLOW.bytes)  # a hole: no room on the disk
        stream.write(b"PK\x03\x04")
        stream.seek(official.FLOW.bytes - 22)
        stream.write(b"PK\x05\x06" + bytes(18))
    started = time.perf_counter()
    state = {file.name: file.state for file in files.examine(model).files}
    assert state["flow.pt"] == "as published"
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("name", NEEDED)
def test_each_missing_file_is_named_with_the_remedy(model: Path, name: str) -> None:
    (model / name).unlink()
    found = files.examine(model)
    assert not found.usable and found.missing == (name,)
    with pytest.raises(AssetError, match=rf"missing: {name}.*assets fetch cosyvoice3 --dir") as caught:
        files.require(model)
    assert caught.value.param == "model_dir" and str(model) in caught.value.message
    assert f"  missing      {name}" in "\n".join(found.report())


def test_what_the_hub_lists_besides_is_not_needed(model: Path) -> None:
    """The TensorRT graph was missing from early uploads, and its compiled plans fit one GPU: neither is looked at."""
    assert not any("estimator" in name or ".plan" in name for name in NEEDED)
    (model / "flow.decoder.estimator.fp32.mygpu.plan").write_bytes(b"of another GPU")
    before = files.model_hash(model, "llm.pt")
    (model / "flow.decoder.estimator.fp32.mygpu.plan").write_bytes(b"of a third one")
    assert files.examine(model).usable and files.model_hash(model, "llm.pt") == before


def test_the_other_language_model_is_needed_when_asked_for(model: Path) -> None:
    found = files.examine(model, "llm.rl.pt")
    assert found.missing == ("llm.rl.pt",) and "--llm-rl" in found.problem()
    (model / "llm.pt").rename(model / "llm.rl.pt")
    assert files.examine(model, "llm.rl.pt").usable
    assert files.examine(model).missing == ("llm.pt",)


@pytest.mark.parametrize(("data", "says"), [
    (b"", "empty"), (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
    (b"\n<!DOCTYPE html>\n<html>", "web page"), (b"PK\x03\x04" + bytes(70_000), "cut short"),
])
def test_a_plainly_broken_file_is_told_apart(model: Path, data: bytes, says: str) -> None:
    (model / "llm.pt").write_bytes(data)
    found = files.examine(model)
    assert not found.usable and not found.missing
    assert says in found.problem() and says in "\n".join(found.report())
    with pytest.raises(AssetError, match=says):
        read_state(model / "llm.pt")


@pytest.mark.parametrize(("name", "says"), [
    ("cosyvoice2.yaml", "CosyVoice2-0.5B"), ("cosyvoice.yaml", "CosyVoice-300M"),
])
def test_older_models_are_recognised_and_refused(model: Path, name: str, says: str) -> None:
    (model / "cosyvoice3.yaml").rename(model / name)
    with pytest.raises(AssetError, match=rf"{says}.*another model.*reads\s+Fun-CosyVoice3.*assets fetch"):
        files.require(model)
    assert says in files.examine(model).why()


def test_no_directory_and_the_directory_above(model: Path, tmp_path: Path) -> None:
    assert "not a directory that exists" in files.examine(tmp_path / "none").problem()
    above = files.examine(model.parent)
    assert above.kind == "none" and f"{model} is. Name that one" in above.problem()
    (tmp_path / "empty").mkdir()
    assert "missing: cosyvoice3.yaml" in files.examine(tmp_path / "empty").problem()


def test_the_hash_changes_with_every_needed_file_and_nothing_else(model: Path, tmp_path: Path) -> None:
    (model / "hift.pt").write_bytes(os.urandom(3 << 20))
    before = files.model_hash(model, "llm.pt")
    assert len(before) == 12 and before == files.model_hash(model, "llm.pt")
    (model / "notes.txt").write_text("mine")
    (model / "llm.rl.pt").write_bytes(b"another")
    assert files.model_hash(model, "llm.pt") == before
    seen = {before, files.model_hash(model, "llm.rl.pt")}
    for name in NEEDED:
        stat = (model / name).stat()
        data = bytearray((model / name).read_bytes())
        data[len(data) // 2] ^= 1
        (model / name).write_bytes(data)
        if len(data) < 1 << 20:  # small files are read whole: the content alone tells
            os.utime(model / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        seen.add(files.model_hash(model, "llm.pt"))
    assert len(seen) == 2 + len(NEEDED)
    moved = model.rename(tmp_path / "elsewhere")
    assert files.model_hash(moved, "llm.pt") in seen, "the path does not count"


def test_a_large_file_is_sampled_at_both_ends_and_between(model: Path) -> None:
    data = bytearray(os.urandom(4 << 20))
    stamps = (10**18, 10**18)

    def put() -> str:
        (model / "flow.pt").write_bytes(data)
        os.utime(model / "flow.pt", ns=stamps)
        return files.model_hash(model, "llm.pt")

    seen = {put()}
    for at in (0, 1000, len(data) - 1, len(data) - 200_000, 256 << 10):
        data[at] ^= 1
        seen.add(put())
    assert len(seen) == 6


# Tensors.


def test_tensors_come_back_as_saved(tmp_path: Path) -> None:
    tied = torch.randn(3, 4)
    saved = {"a.weight": tied, "b.weight": tied, "half": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(3)}
    for old in (False, True):
        torch.save({**saved, "epoch": 7, "step": 1000}, tmp_path / "m.pt", _use_new_zipfile_serialization=not old)
        state = read_state(tmp_path / "m.pt")
        assert list(state) == list(saved), "without what the trainer counts"
        assert all(torch.equal(state[name], value) for name, value in saved.items())
        assert all(state[name].dtype == value.dtype for name, value in saved.items())
        assert state["a.weight"].data_ptr() == state["b.weight"].data_ptr()


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize(("content", "says"), [
    ({"model": {"a": torch.ones(1)}}, "'model', a dict.*keep its model part"),
    ({"a": torch.ones(1), "lr": 0.1}, "'lr', a float"),
    ({"a": torch.ones(1), "epoch": "seven"}, "'epoch', a str"),
    ([torch.ones(1)], "holds a list"),
    ({}, "no tensors"),
    ({"epoch": 3}, "no tensors"),
    ({"a": torch.nn.Linear(1, 1)}, "more than tensors"),
    ({"a": Bomb()}, "more than tensors.*not opened"),
])
def test_anything_but_tensors_is_refused(tmp_path: Path, content: Any, says: str) -> None:
    torch.save(content, tmp_path / "m.pt")
    with pytest.raises(AssetError, match=rf"(?s){says}.*assets fetch cosyvoice3"):
        read_state(tmp_path / "m.pt")
    assert not Path("/tmp/never").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_damaged_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    torch.save({"a": torch.randn(100_000)}, file)
    whole = file.read_bytes()
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "not a model")
    bare = tmp_path / "bare.pkl"
    with bare.open("wb") as stream:
        pickle.dump(Bomb(), stream)
    torch.save({"a": torch.randn(1000)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    old = (tmp_path / "old.pt").read_bytes()
    archive_bytes = (tmp_path / "other.zip").read_bytes()
    for data in (whole[: len(whole) // 2], whole[:100], b"\x00" * 5000, b"RIFF....WAVE", archive_bytes,
                 bare.read_bytes(), old[: len(old) - 500], old[:300], b'{"json": 1}'):
        file.write_bytes(data)
        with pytest.raises(AssetError, match=r"(?s)m\.pt .*assets fetch cosyvoice3"):
            read_state(file)
    assert not Path("/tmp/never").exists()
    with pytest.raises(AssetError, match="is missing"):
        read_state(tmp_path / "none.pt")


# The yaml.


def test_the_yaml_is_read_and_never_run(tmp_path: Path) -> None:
    file = write_yaml(tmp_path)
    config, fmax_hz = read_config(file)
    assert config == ModelConfig() and fmax_hz is None
    assert not (tmp_path / "trap").exists()
    data = load_neutral(file)
    assert data["sample_rate"] == "<rate> * 2" and data["hift"]["something_new"] == 17


def test_the_mel_s_limit_is_that_of_its_own_entry(tmp_path: Path) -> None:
    assert read_config(write_yaml(tmp_path, ("fmax: null", "fmax: 8000")))[1] == 8000.0
    assert read_config(write_yaml(tmp_path, ("    fmax: null\n", "")))[1] is None


def test_sizes_that_can_be_followed_are(tmp_path: Path) -> None:
    trunk = {**TRUNK, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
             "rope_parameters": {"rope_theta": 5000}}
    file = write_yaml(
        tmp_path, ("width: 896", "width: 64"), ("dim: 1024", "dim: 64\n            ff_mult: 4\n            heads: 4"),
        ("depth: 22", "depth: 3"), ("chunk: 25", "chunk: 10"), ("rate: 0.7", "rate: 0"), ("top_k: 25", "top_k: 5"),
        ("upsample_rates:", "base_channels: 32\n    upsample_rates:"),
        ("list_of", "speech_tokenizer: {width: 64, blocks: 2}\nlist_of"), trunk=trunk,
    )
    config, _ = read_config(file)
    assert config.lm == LMConfig(layers=2, width=64, heads=4, kv_heads=2, head=16, mlp=128, rope_theta=5000.0)
    assert config.flow == FlowConfig(width=64, blocks=3, heads=4, mlp=256, chunk_frames=20, guidance=0.0)
    assert config.vocoder == VocoderConfig(width=32)
    assert config.tokenizer == replace(TokenizerConfig(), width=64, blocks=2)
    assert config.sampling.top_k == 5


def test_everything_that_can_not_be_followed_is_listed_at_once(tmp_path: Path) -> None:
    file = write_yaml(tmp_path, ("rate: 12000", "rate: 8000"), ("'euler'", "'heun'"), ("[8, 5, 3]", "[8, 8]"),
                      ("top_p: 0.8", "top_p: 1.5"), ("depth: 22", "depth: many"), ("top_k: 25", "top_k: true"),
                      ("n_fft: 1920", "n_fft: 1024"))
    with pytest.raises(AssetError) as caught:
        read_config(file)
    for part in ("sample_rate is 16000, expected 24000", "solver is 'heun'", "upsample_rates is [8, 8]", "top_p is 1.5",
                 "depth is 'many'", "top_k is True", "feat_extractor.n_fft is 1024", "assets fetch cosyvoice3"):
        assert part in caught.value.message, part
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("text", ["a: [1", "just words", "- a\n- b", "a: !ref <a>\nllm: !ref <llm>", "\x00", "{}"])
def test_a_yaml_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = write_yaml(tmp_path)
    file.write_text(text)
    with pytest.raises(AssetError, match="cosyvoice3.yaml .*assets fetch cosyvoice3"):
        read_config(file)


@pytest.mark.parametrize(("change", "says"), [
    ({"model_type": "llama"}, "model_type is 'llama'"), ({"hidden_size": 1024}, "hidden_size is 1024, but"),
    ({"num_hidden_layers": "24"}, "num_hidden_layers is '24'"), ({"num_attention_heads": 13}, "don't divide"),
    ({"use_sliding_window": True}, "use_sliding_window is True"),
])
def test_a_trunk_that_is_another_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(AssetError, match=says):
        read_config(write_yaml(tmp_path, trunk={**TRUNK, **change}))


def test_a_trunk_without_its_sizes_is_refused(tmp_path: Path) -> None:
    file = write_yaml(tmp_path, trunk={"model_type": "qwen2"})
    with pytest.raises(AssetError, match=r"config.json can't be read as the sizes.*KeyError"):
        read_config(file)
    (tmp_path / "CosyVoice-BlankEN/config.json").unlink()
    with pytest.raises(AssetError, match=r"config.json is missing"):
        read_config(file)


# Which engine it gives.


def test_auto_takes_it_only_when_it_is_usable(model: Path) -> None:
    settings = Settings(engine="auto", model_dir=model)
    assert registry.resolve_name(settings) == ("cosyvoice3", f"{model} holds the official files")
    assert registry.resolve_name(replace(settings, llm_weights="rl"))[0] == "lite"
    (model / "campplus.onnx").unlink()
    name, why = registry.resolve_name(settings)
    assert name == "lite" and "campplus.onnx" in why
    (model / "campplus.onnx").write_text("version https://git-lfs.github.com/spec/v1")
    assert "damaged: campplus.onnx" in registry.resolve_name(settings)[1]
    (model / "cosyvoice3.yaml").rename(model / "cosyvoice2.yaml")
    assert "CosyVoice2-0.5B" in registry.resolve_name(settings)[1]


def test_by_name_it_says_what_is_missing(model: Path) -> None:
    settings = Settings(engine="cosyvoice3", model_dir=model)
    assert registry.resolve_name(settings)[0] == "cosyvoice3"
    for name in ("hift.pt", "CosyVoice-BlankEN/vocab.json"):
        (model / name).unlink()
    with pytest.raises(AssetError, match=r"hift.pt.*assets fetch cosyvoice3"):
        registry.create(settings)
    with pytest.raises(AssetError, match=r"vocab.json"):
        registry.resolve_name(settings)
    assert registry.capabilities(settings) is not None, "the page can be shown meanwhile"
    assert registry.reader(settings) is None


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert registry.model_dir(Settings()) == Path("pretrained_models/Fun-CosyVoice3-0.5B") == official.default_dir()
    monkeypatch.setenv("COSYVOICE_MODEL_DIR", str(tmp_path))
    from cosyvoice_app.settings import resolve

    assert registry.model_dir(resolve()) == tmp_path == official.default_dir()


def test_doctor_reports_the_directory(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "cpu", "--engine", "tone", "--model-dir", str(model), "--cache", str(tmp_path / "cache")]
    (model / "hift.pt").unlink()
    assert main(["doctor", "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)["model"]
    assert report["kind"] == "cosyvoice3" and report["missing"] == ["hift.pt"] and not report["verified"]
    assert {"name", "state", "bytes", "expected_bytes"} <= set(report["files"][0])
    (model / "hift.pt").write_bytes(b"mine")
    files.verify(model, cache=tmp_path / "cache")
    assert main(["doctor", *options]) == 0
    out = capsys.readouterr().out
    assert f"model    {model}: usable (cosyvoice3)" in out
    assert "verified before" in out and "not the official ones" in out and "hift.pt" in out


def test_looking_costs_no_torch() -> None:
    names = ", ".join(f"cosyvoice_app.engines.cosyvoice3.{name}" for name in ("files", "tokenizer", "official_yaml"))
    code = f"import sys, cosyvoice_app.engines.registry, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent).returncode == 0
