"""Build a directory in the official layout from the official modules, with random weights.

    python tests/parity/official.py DIR --vocabulary VOCAB_DIR [--tiny] [--old-weight-norm] [--generator-prefix]
                                        [--trainer-entries] [--seed N] [--check]

The environment variables COSYVOICE_OFFICIAL and MATCHA_OFFICIAL name clones of the official code; SPEAKER_OFFICIAL,
when set, one of 3D-Speaker, whose class then gives campplus.onnx; speech_tokenizer_v3.onnx is made where `s3tokenizer`
can be imported. VOCAB_DIR holds vocab.json and merges.txt (tests/parity/tokenizer.py rebuilds them). `--check` compares
the element counts of a full-size model with those of the published files. Weights are scaled so that everything stays
finite: speech ends by chance, some frames are voiced and some not, samples stay below full scale.

The shipped yaml is not the one in the clone's examples, which is used here; nor are the names inside the two graphs
those of the published ones.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent)]
for variable, wanted in (("COSYVOICE_OFFICIAL", True), ("MATCHA_OFFICIAL", True), ("SPEAKER_OFFICIAL", False)):
    if variable in os.environ:
        sys.path.append(os.environ[variable])
    elif wanted:
        raise SystemExit(f"Set {variable} to a clone of the official repository.")

from cosyvoice_app.engines.cosyvoice3.config import (  # noqa: E402
    FlowConfig,
    LMConfig,
    ModelConfig,
    TokenizerConfig,
    VocoderConfig,
)

TINY = ModelConfig(
    lm=LMConfig(layers=2, width=64, heads=4, kv_heads=2, head=16, mlp=128),
    flow=FlowConfig(lookahead_width=32, width=64, blocks=2, heads=4, head=16, mlp=128),
    vocoder=VocoderConfig(width=32, f0_width=32),
    tokenizer=TokenizerConfig(width=64, heads=4, head=16, blocks=2, mlp=256),
)
"""What the official classes can be at toy size: some widths are fixed inside them."""

COUNTS = {"llm.pt": 506_148_480, "flow.pt": 332_257_120, "hift.pt": 20_779_887}
"""Elements, tied ones once, that fit the published sizes."""


def build_llm(config: LMConfig) -> nn.Module:
    from cosyvoice.llm.llm import CosyVoice3LM
    from cosyvoice.utils.common import ras_sampling
    from transformers import Qwen2ForCausalLM

    trunk = nn.Module()
    trunk.model = Qwen2ForCausalLM(trunk_config(config))
    return CosyVoice3LM(config.width, config.width, config.speech_vocab, trunk, ras_sampling).eval()


def trunk_config(config: LMConfig) -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=config.text_vocab, hidden_size=config.width, intermediate_size=config.mlp,
        num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        rms_norm_eps=config.norm_eps, rope_theta=config.rope_theta, tie_word_embeddings=True,
        max_position_embeddings=32_768, max_window_layers=config.layers, use_sliding_window=False,
        torch_dtype="bfloat16", architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip


def build_flow(config: FlowConfig) -> nn.Module:
    from cosyvoice.flow.DiT.dit import DiT
    from cosyvoice.flow.flow import CausalMaskedDiffWithDiT
    from cosyvoice.flow.flow_matching import CausalConditionalCFM
    from cosyvoice.transformer.upsample_encoder import PreLookaheadLayer
    from omegaconf import DictConfig

    mels = config.mels
    estimator = DiT(dim=config.width, depth=config.blocks, heads=config.heads, dim_head=config.head,
                    ff_mult=config.mlp // config.width, mel_dim=mels, mu_dim=mels, spk_dim=mels, out_channels=mels,
                    static_chunk_size=config.chunk_frames, num_decoding_left_chunks=-1)
    solver = DictConfig({"sigma_min": 1e-6, "solver": "euler", "t_scheduler": "cosine", "training_cfg_rate": 0.2,
                         "inference_cfg_rate": config.guidance, "reg_loss_type": "l1"})
    decoder = CausalConditionalCFM(in_channels=3 * mels, cfm_params=solver, n_spks=1, spk_emb_dim=mels,
                                   estimator=estimator)
    lookahead = PreLookaheadLayer(mels, config.lookahead_width, config.lookahead_tokens)
    return CausalMaskedDiffWithDiT(
        input_size=mels, output_size=mels, spk_embed_dim=config.speaker, output_type="mel", vocab_size=config.vocab,
        input_frame_rate=25, only_mask_loss=True, token_mel_ratio=2, pre_lookahead_len=config.lookahead_tokens,
        pre_lookahead_layer=lookahead, decoder=decoder,
    ).eval()  # fmt: skip


def build_hift(config: VocoderConfig) -> nn.Module:
    from cosyvoice.hifigan.f0_predictor import CausalConvRNNF0Predictor
    from cosyvoice.hifigan.generator import CausalHiFTGenerator

    dilations = [list(config.dilations)] * 3
    return CausalHiFTGenerator(
        in_channels=config.mels, base_channels=config.width, nb_harmonics=config.harmonics - 1, sampling_rate=24_000,
        nsf_alpha=0.1, nsf_sigma=0.003, nsf_voiced_threshold=10, upsample_rates=list(config.rates),
        upsample_kernel_sizes=list(config.rate_kernels), istft_params={"n_fft": config.fft, "hop_len": config.hop},
        resblock_kernel_sizes=list(config.resblock_kernels), resblock_dilation_sizes=dilations,
        source_resblock_kernel_sizes=list(config.source_kernels), source_resblock_dilation_sizes=dilations,
        lrelu_slope=0.1, audio_limit=0.99, conv_pre_look_right=config.pre_lookahead,
        f0_predictor=CausalConvRNNF0Predictor(1, config.mels, config.f0_width),
    ).eval()  # fmt: skip


@torch.no_grad()
def randomise(net: nn.Module, seed: int) -> None:
    """Every layer keeps the variance of what it is given, roughly; biases are small, norms near one."""
    generator = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator)

    for name, value in net.named_parameters():
        if name.endswith("original0"):  # of a weight norm: the length of each filter
            value.copy_(0.7 * (1 + 0.1 * noise(value)).abs())
        elif value.dim() >= 2 and "embed" in name.rsplit(".", 2)[-2]:
            value.copy_(0.3 * noise(value))
        elif value.dim() >= 2:
            value.copy_(noise(value) / (value.numel() / value.shape[0]) ** 0.5)
        elif name.endswith("bias"):
            value.copy_(0.05 * noise(value))
        else:
            value.copy_(1 + 0.1 * noise(value))
    for name, value in net.named_buffers():
        if name.endswith("running_mean"):
            value.copy_(0.1 * noise(value))
        elif name.endswith("running_var"):
            value.copy_((1 + 0.1 * noise(value)).abs())


@torch.no_grad()
def settle_llm(net: Any) -> None:
    """Logits with a spread of 2.5, so that some ids are likelier and a stop comes by chance."""
    net.llm_decoder.weight.mul_(2.5)


@torch.no_grad()
def settle_hift(net: Any, seed: int) -> None:
    """Frames at 0 to 400 Hz, some below 10 Hz (unvoiced); samples of a few tenths."""
    mel = 2 * torch.randn(1, 80, 200, generator=torch.Generator().manual_seed(seed)) - 2
    net.f0_predictor.double()
    hidden = net.f0_predictor.condnet[0](mel.double(), torch.zeros(1, 0, 0).double())
    for layer in net.f0_predictor.condnet[1:]:
        hidden = layer(hidden)
    raw = torch.nn.functional.linear(hidden.transpose(1, 2), net.f0_predictor.classifier.weight)
    scale = 90 / raw.std()
    net.f0_predictor.classifier.weight.mul_(scale)
    net.f0_predictor.classifier.bias.fill_(float(60 - scale * raw.mean()))
    net.f0_predictor.float()
    seen: list[Tensor] = []
    hook = net.conv_post.register_forward_hook(lambda _, __, out: seen.append(out))
    net.inference(speech_feat=mel)
    hook.remove()
    gain = net.conv_post.parametrizations.weight.original0
    gain.mul_(0.5 / seen[-1].std())
    wave, _ = net.inference(speech_feat=mel)
    net.conv_post.bias[: net.istft_params["n_fft"] // 2 + 1] += float(torch.log(0.15 / wave.std()))
    net.f0_predictor.float()  # a call leaves it in double precision


def state_of(net: nn.Module, *, old_weight_norm: bool = False, prefix: str = "") -> dict[str, Tensor]:
    """Its tensors as the official trainer saves them; `old_weight_norm`: by the names of torch's older weight norm."""
    state = dict(net.state_dict())
    if old_weight_norm:
        state = {re.sub(r"parametrizations\.weight\.original([01])", lambda m: f"weight_{'gv'[int(m[1])]}", name): value
                 for name, value in state.items()}
    return {prefix + name: value for name, value in state.items()}


def elements(state: dict[str, Tensor]) -> int:
    """Tied tensors count once."""
    return sum({value.data_ptr(): value.numel() for value in state.values()}.values())


def write_yaml(folder: Path, config: ModelConfig) -> None:
    """The clone's example, with the sizes of `config` put in where they differ. What no official class takes from it,
    the speech tokenizer's sizes, goes under a name of our own."""
    example = Path(os.environ["COSYVOICE_OFFICIAL"]) / "examples/libritts/cosyvoice3/conf/cosyvoice3.yaml"
    text = example.read_text("utf-8")
    for key, official, own in (
        ("llm_input_size", 896, config.lm.width), ("llm_output_size", 896, config.lm.width),
        ("channels", 1024, config.flow.lookahead_width), ("dim", 1024, config.flow.width),
        ("depth", 22, config.flow.blocks), ("heads", 16, config.flow.heads), ("dim_head", 64, config.flow.head),
        ("base_channels", 512, config.vocoder.width), ("cond_channels", 512, config.vocoder.f0_width),
    ):  # fmt: skip
        text, count = re.subn(rf"^(\s*{key}:) {official}$", rf"\1 {own}", text, flags=re.M)
        if count != 1:
            raise SystemExit(f"{key}: {official} stands {count} times in the official example, expected once.")
    if config.tokenizer != TokenizerConfig():
        sizes = {name: getattr(config.tokenizer, name) for name in ("width", "heads", "head", "blocks", "mlp")}
        text += f"\nspeech_tokenizer: {json.dumps(sizes)}\n"
    (folder / "cosyvoice3.yaml").write_text(text, encoding="utf-8")


def write_text_side(folder: Path, config: LMConfig, vocabulary: Path) -> None:
    """CosyVoice-BlankEN. Its weights file holds one tensor: the official code wants the file to exist and then writes
    `llm.pt` over all of it."""
    from safetensors.torch import save_file

    blank = folder / "CosyVoice-BlankEN"
    blank.mkdir(exist_ok=True)
    (blank / "config.json").write_text(json.dumps(trunk_config(config).to_dict(), indent=2), encoding="utf-8")
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(vocabulary / name, blank / name)
    marks = {str(151_643 + i): {"content": token, "lstrip": False, "normalized": False, "rstrip": False,
                                "single_word": False, "special": True}
             for i, token in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))}
    (blank / "tokenizer_config.json").write_text(json.dumps({
        "add_prefix_space": False, "added_tokens_decoder": marks, "tokenizer_class": "Qwen2Tokenizer",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": None, "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "errors": "replace", "model_max_length": 32_768,
        "split_special_tokens": False, "clean_up_tokenization_spaces": False,
    }, indent=2), encoding="utf-8")  # fmt: skip
    save_file({"model.norm.weight": torch.ones(config.width)}, blank / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def export_campplus(file: Path, seed: int) -> None:
    from speakerlab.models.campplus.DTDNN import CAMPPlus

    net = CAMPPlus(feat_dim=80, embedding_size=192).eval()
    randomise(net, seed)
    torch.onnx.export(net, (torch.randn(1, 200, 80),), str(file), input_names=["input"], output_names=["output"],
                      dynamic_axes={"input": {0: "batch", 1: "frames"}}, opset_version=14, dynamo=False)


@torch.no_grad()
def export_speech_tokenizer(file: Path, config: TokenizerConfig, seed: int) -> None:
    from s3tokenizer import model_v3

    net = model_v3.S3TokenizerV3("v3", model_v3.ModelConfigV3(
        n_mels=config.mels, n_audio_state=config.width, n_audio_head=config.heads, n_audio_layer=config.blocks,
        n_codebook_size=3**config.digits))
    randomise(net, seed)
    angles = torch.arange(4096)[:, None] * config.rope_theta ** (-torch.arange(0, config.head, 2) / config.head)
    # A graph has no complex numbers: the angles' cosine and sine side by side, in the shape the model slices.
    net.encoder.freqs_cis = torch.stack([angles.cos(), angles.sin()], -1).repeat(1, 2, 1)
    kept = torch.view_as_real
    torch.view_as_real = lambda table: table
    try:
        inputs = (torch.randn(1, config.mels, 400), torch.tensor([400], dtype=torch.int32))
        torch.onnx.export(_Tokens(net).eval(), inputs, str(file), input_names=["feats", "feats_length"],
                          output_names=["indices"],
                          dynamic_axes={"feats": {2: "frames"}, "indices": {1: "tokens"}}, opset_version=17,
                          dynamo=False)
    finally:
        torch.view_as_real = kept


class _Tokens(nn.Module):
    """Clip to ids, without the windows for clips over 30 s."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, mel: Tensor, length: Tensor) -> Tensor:
        hidden, _ = self.net.encoder(mel, length)
        book = self.net.quantizer._codebook
        digits = (book.project_down(hidden).tanh() * 0.9990000128746033).round() + 1
        return (digits * 3.0 ** torch.arange(8)).sum(-1).int()


def build(folder: Path, vocabulary: Path, config: ModelConfig, *, seed: int = 0, old_weight_norm: bool = False,
          generator_prefix: bool = False, trainer_entries: bool = False) -> dict[str, int]:
    """Fill `folder`; return the element counts of the three `.pt` files."""
    folder.mkdir(parents=True, exist_ok=True)
    write_yaml(folder, config)
    write_text_side(folder, config.lm, vocabulary)
    counts = {}
    for name, make in (("llm.pt", lambda: build_llm(config.lm)), ("flow.pt", lambda: build_flow(config.flow)),
                       ("hift.pt", lambda: build_hift(config.vocoder))):
        net = make()
        randomise(net, seed)
        if name == "llm.pt":
            settle_llm(net)
        if name == "hift.pt":
            settle_hift(net, seed)
        vocoder = name == "hift.pt"
        state = state_of(net, old_weight_norm=vocoder and old_weight_norm,
                         prefix="generator." if vocoder and generator_prefix else "")
        counts[name] = elements(state)
        torch.save({**state, **({"epoch": 3, "step": 1000} if trainer_entries else {})}, folder / name)
        print(f"{name}: {len(state)} tensors, {counts[name]:,} elements, {(folder / name).stat().st_size:,} bytes")
        del net, state
    graphs = {"campplus.onnx": lambda file: export_campplus(file, seed),
              "speech_tokenizer_v3.onnx": lambda file: export_speech_tokenizer(file, config.tokenizer, seed)}
    for name, export in graphs.items():
        try:
            export(folder / name)
        except ModuleNotFoundError as error:
            print(f"{name}: not made, {error.name} can't be imported")
        else:
            print(f"{name}: {(folder / name).stat().st_size:,} bytes")
    return counts


def load_official(folder: Path) -> Any:
    """The official `CosyVoice3` on the CPU. Sound files are read by soundfile, which newer torchaudio no longer does by
    itself."""
    import soundfile
    import torchaudio
    from cosyvoice.cli.cosyvoice import CosyVoice3

    def load(file: Any, **_: Any) -> tuple[Tensor, int]:
        samples, rate_hz = soundfile.read(file, dtype="float32", always_2d=True)
        return torch.from_numpy(samples.T.copy()), rate_hz

    torchaudio.load = load
    return CosyVoice3(str(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--old-weight-norm", action="store_true")
    parser.add_argument("--generator-prefix", action="store_true")
    parser.add_argument("--trainer-entries", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    counts = build(options.folder, options.vocabulary, TINY if options.tiny else ModelConfig(), seed=options.seed,
                   old_weight_norm=options.old_weight_norm, generator_prefix=options.generator_prefix,
                   trainer_entries=options.trainer_entries)
    wrong = [name for name in counts if options.folder.joinpath(name).stat().st_size > 5 * counts[name] + 300_000]
    if wrong:
        raise SystemExit(f"{', '.join(wrong)}: more than four bytes an element")
    missed = [f"{name}: {counts[name]:,} elements, expected {COUNTS[name]:,}" for name in COUNTS
              if options.check and counts[name] != COUNTS[name]]
    print("\n".join(missed) if missed else "element counts as published" if options.check else "done")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
