"""The numbers of the official `cosyvoice3.yaml`, read as data.

The file is a program in YAML clothes: its tags name classes to construct and functions to call. Nothing of that is done
here. Tags are dropped, references to numbers (`!ref <a> * <b>`) are worked out, and what this engine builds is compared
with what the file asks for. How it is written matters little; a number that this engine can't follow is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from cosyvoice_app.assets.official import FETCH, TEXT_CONFIG
from cosyvoice_app.engines.cosyvoice3.config import (
    FRAMES_PER_TOKEN,
    HOP_SAMPLES,
    MELS,
    RATE_HZ,
    TOKENS_PER_S,
    FlowConfig,
    LMConfig,
    ModelConfig,
    SamplingConfig,
    TokenizerConfig,
    VocoderConfig,
)
from cosyvoice_app.errors import AssetError

_REF = re.compile(r"<([\w.\[\]-]+)>")
_MISSING: Any = object()


def read_config(file: Path) -> tuple[ModelConfig, float | None]:
    """(sizes, highest frequency of the prompt mel in Hz, None for half the rate) of a model directory's yaml.

    The language model's sizes are in `CosyVoice-BlankEN/config.json` beside it, which is read too. The speech
    tokenizer's stand nowhere but in its graph; an entry `speech_tokenizer` of our own tells those of toy models. Raises
    AssetError for a file that can't be read, and one that lists everything in it that this engine can't follow.
    """
    numbers = _Numbers(load_neutral(file))
    numbers.faults += [f"it has no {part!r} part" for part in ("llm", "flow", "hift", "feat_extractor")
                       if not isinstance(numbers.get(part), Mapping)]
    lm, sampling = _lm(numbers), _sampling(numbers)
    flow, vocoder, fmax_hz = _flow(numbers), _vocoder(numbers), _mel(numbers)
    tokenizer = _tokenizer(numbers)
    if numbers.faults:
        raise AssetError(f"{file} describes a model that this engine can't run: {'; '.join(numbers.faults)}. It runs "
                         "Fun-CosyVoice3-0.5B-2512 and models trained further from it. Get the official one with "
                         f"`{FETCH}`.")
    lm = _trunk(file.parent / TEXT_CONFIG.name, lm)
    return ModelConfig(lm=lm, sampling=sampling, flow=flow, vocoder=vocoder, tokenizer=tokenizer), fmax_hz


def load_neutral(file: Path) -> dict[str, Any]:
    """The yaml as plain dicts, lists and scalars; nothing is imported, constructed or called. Raises AssetError."""
    try:
        data = yaml.load(file.read_text(encoding="utf-8-sig"), Loader=_Neutral)
    except FileNotFoundError:
        raise AssetError(f"{file} is missing. Fetch it with `{FETCH}`.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise AssetError(f"{file} can't be read as YAML: {str(error).splitlines()[0]}. Fetch it again with `{FETCH}`."
                         ) from error
    if not isinstance(data, dict):
        raise AssetError(f"{file} holds no table of settings. Fetch it again with `{FETCH}`.")
    return data


class _Neutral(yaml.SafeLoader):  # type: ignore[misc]
    """Drops every application tag (`!new:x`, `!name:x`, `!ref`, `!apply:x`, `!include`, `!!python/...`)."""


def _plain(loader: _Neutral, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    return loader.construct_scalar(node)


_Neutral.add_multi_constructor("!", _plain)
_Neutral.add_multi_constructor("tag:yaml.org,2002:python/", _plain)


@dataclass
class _Numbers:
    """Looks values up by path, and notes what is there but can't be followed. What is absent takes the default."""

    data: Mapping[str, Any]
    faults: list[str] = field(default_factory=list)

    def get(self, path: str, default: Any = _MISSING) -> Any:
        """The value at `a.b.c`, references resolved; `default` when nothing is there."""
        value: Any = self.data
        for key in path.split("."):
            value = self._resolve(value)
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return self._resolve(value)

    def want(self, path: str, expected: Any) -> None:
        """Absent or equal, else a fault. For what this engine has built in."""
        found = self.get(path)
        if found is not _MISSING and found != expected:
            self.faults.append(f"{path} is {_show(found)}, expected {_show(expected)}")

    def take(self, path: str, default: Any, check: Callable[[Any], bool] = lambda _: True) -> Any:
        """The value when it has the form of `default` and passes `check`; the default when absent; else a fault."""
        found = self.get(path)
        if found is _MISSING:
            return default
        if isinstance(default, tuple):
            if isinstance(found, list) and len(found) == len(default) and all(type(i) is int and i > 0 for i in found):
                return tuple(found)
        elif isinstance(default, float):
            if isinstance(found, int | float) and not isinstance(found, bool) and check(found):
                return float(found)
        elif type(found) is int and found > 0 and check(found):
            return found
        self.faults.append(f"{path} is {_show(found)}, which this engine can't take (official: {_show(default)})")
        return default

    def _resolve(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, list):
            return [self._resolve(item, depth) for item in value]
        if not isinstance(value, str) or depth > 20:
            return value
        if whole := _REF.fullmatch(value.strip()):
            target = self._lookup(whole[1])
            return self._resolve(target, depth + 1) if target is not _MISSING else value
        if _REF.search(value):
            value = _REF.sub(lambda match: str(self._resolve(match[0], depth + 1)), value)
        return _number(value)

    def _lookup(self, name: str) -> Any:
        value: Any = self.data
        for key in re.findall(r"[^.\[\]]+", name):
            if isinstance(value, Mapping) and key in value:
                value = value[key]
            else:
                return _MISSING
        return value


def _number(text: str) -> Any:
    """A number, or a product of numbers such as `25 * 2`; any other text as it is."""
    factors = text.split("*")
    result: float = 1
    for factor in factors:
        factor = factor.strip()
        try:
            result *= int(factor)
        except ValueError:
            try:
                result *= float(factor)
            except ValueError:
                return text
    return result


def _lm(numbers: _Numbers) -> LMConfig:
    default = LMConfig()
    numbers.want("sample_rate", RATE_HZ)
    numbers.want("token_frame_rate", TOKENS_PER_S)
    numbers.want("token_mel_ratio", FRAMES_PER_TOKEN)
    width = numbers.take("llm.llm_input_size", default.width)
    numbers.want("llm.llm_output_size", width)
    numbers.want("llm.speech_token_size", default.speech_vocab)
    return LMConfig(width=width)


def _sampling(numbers: _Numbers) -> SamplingConfig:
    d = SamplingConfig()
    return SamplingConfig(
        top_p=numbers.take("llm.sampling.top_p", d.top_p, lambda p: 0 < p <= 1),
        top_k=numbers.take("llm.sampling.top_k", d.top_k),
        window=numbers.take("llm.sampling.win_size", d.window),
        repeats=numbers.take("llm.sampling.tau_r", d.repeats, lambda r: 0 < r <= 1),
    )


def _flow(numbers: _Numbers) -> FlowConfig:
    d = FlowConfig()
    for key in ("flow.input_size", "flow.output_size", "flow.decoder.spk_emb_dim", "flow.decoder.estimator.mel_dim",
                "flow.decoder.estimator.mu_dim", "flow.decoder.estimator.spk_dim",
                "flow.decoder.estimator.out_channels", "flow.pre_lookahead_layer.in_channels"):
        numbers.want(key, d.mels)
    numbers.want("flow.spk_embed_dim", d.speaker)
    numbers.want("flow.vocab_size", d.vocab)
    numbers.want("flow.input_frame_rate", TOKENS_PER_S)
    numbers.want("flow.token_mel_ratio", FRAMES_PER_TOKEN)
    numbers.want("flow.pre_lookahead_len", d.lookahead_tokens)
    numbers.want("flow.pre_lookahead_layer.pre_lookahead_len", d.lookahead_tokens)
    solver = "flow.decoder.cfm_params.content" if numbers.get("flow.decoder.cfm_params.content") is not _MISSING \
        else "flow.decoder.cfm_params"
    numbers.want(f"{solver}.solver", "euler")
    numbers.want(f"{solver}.t_scheduler", "cosine")
    numbers.want("flow.decoder.estimator.num_decoding_left_chunks", -1)
    width = numbers.take("flow.decoder.estimator.dim", d.width)
    return FlowConfig(
        lookahead_width=numbers.take("flow.pre_lookahead_layer.channels", d.lookahead_width),
        width=width,
        blocks=numbers.take("flow.decoder.estimator.depth", d.blocks),
        heads=numbers.take("flow.decoder.estimator.heads", d.heads),
        head=numbers.take("flow.decoder.estimator.dim_head", d.head),
        mlp=width * numbers.take("flow.decoder.estimator.ff_mult", d.mlp // d.width),
        chunk_frames=numbers.take("flow.decoder.estimator.static_chunk_size", d.chunk_frames),
        guidance=numbers.take(f"{solver}.inference_cfg_rate", d.guidance, lambda g: g >= 0),
    )


def _vocoder(numbers: _Numbers) -> VocoderConfig:
    d = VocoderConfig()
    numbers.want("hift.in_channels", d.mels)
    numbers.want("hift.sampling_rate", RATE_HZ)
    numbers.want("hift.nb_harmonics", d.harmonics - 1)
    numbers.want("hift.nsf_alpha", 0.1)
    numbers.want("hift.nsf_sigma", 0.003)
    numbers.want("hift.nsf_voiced_threshold", 10)
    numbers.want("hift.lrelu_slope", 0.1)
    numbers.want("hift.audio_limit", 0.99)
    numbers.want("hift.istft_params.n_fft", d.fft)
    numbers.want("hift.istft_params.hop_len", d.hop)
    numbers.want("hift.upsample_rates", list(d.rates))
    numbers.want("hift.conv_pre_look_right", d.pre_lookahead)
    for key in ("hift.resblock_dilation_sizes", "hift.source_resblock_dilation_sizes"):
        numbers.want(key, [list(d.dilations)] * 3)
    numbers.want("hift.f0_predictor.in_channels", d.mels)
    numbers.want("hift.f0_predictor.num_class", 1)
    return VocoderConfig(
        width=numbers.take("hift.base_channels", d.width),
        rate_kernels=numbers.take("hift.upsample_kernel_sizes", d.rate_kernels),
        resblock_kernels=numbers.take("hift.resblock_kernel_sizes", d.resblock_kernels),
        source_kernels=numbers.take("hift.source_resblock_kernel_sizes", d.source_kernels),
        f0_width=numbers.take("hift.f0_predictor.cond_channels", d.f0_width),
    )


def _tokenizer(numbers: _Numbers) -> TokenizerConfig:
    d = TokenizerConfig()
    return replace(d, **{name: numbers.take(f"speech_tokenizer.{name}", getattr(d, name))
                         for name in ("width", "heads", "head", "blocks", "mlp")})


def _mel(numbers: _Numbers) -> float | None:
    """The prompt's mel. Its own entry decides: the one of the GAN training beside it may differ."""
    for key, expected in (("n_fft", 4 * HOP_SAMPLES), ("num_mels", MELS), ("sampling_rate", RATE_HZ),
                          ("hop_size", HOP_SAMPLES), ("win_size", 4 * HOP_SAMPLES), ("fmin", 0), ("center", False)):
        numbers.want(f"feat_extractor.{key}", expected)
    found = numbers.get("feat_extractor.fmax", None)
    if found is None or found == "None":
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= RATE_HZ / 2:
        numbers.faults.append(f"feat_extractor.fmax is {_show(found)}, expected null or a frequency up to "
                              f"{RATE_HZ // 2} Hz")
        return None
    return float(found)


def _trunk(file: Path, lm: LMConfig) -> LMConfig:
    """The sizes of the language model's trunk, from its config.json in the form of the transformers library."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        sizes = {name: found[key] for name, key in _TRUNK_KEYS.items()}
    except FileNotFoundError:
        raise AssetError(f"{file} is missing. Fetch it with `{FETCH}`.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AssetError(f"{file} can't be read as the sizes of a Qwen2 model ({type(error).__name__}: {error}). Fetch "
                         f"it again with `{FETCH}`.") from error
    faults = [f"{_TRUNK_KEYS[name]} is {_show(value)}, expected a positive whole number"
              for name, value in sizes.items() if type(value) is not int or value < 1]
    for key, expected in (("model_type", "qwen2"), ("hidden_act", "silu"), ("use_sliding_window", False)):
        if found.get(key, expected) != expected:
            faults.append(f"{key} is {_show(found[key])}, expected {_show(expected)}")
    if not faults and sizes["width"] != lm.width:
        faults.append(f"hidden_size is {sizes['width']}, but cosyvoice3.yaml says {lm.width}")
    if not faults and (sizes["width"] % sizes["heads"] or sizes["heads"] % sizes["kv_heads"]):
        faults.append(f"{sizes['heads']} heads and {sizes['kv_heads']} key heads don't divide a width of "
                      f"{sizes['width']}")
    if faults:
        raise AssetError(f"{file} describes a model that this engine can't run: {'; '.join(faults)}. Fetch the "
                         f"official files with `{FETCH}`.")
    return LMConfig(**sizes, head=found.get("head_dim") or sizes["width"] // sizes["heads"],
                    rope_theta=float(_rope_theta(found, lm.rope_theta)),
                    norm_eps=float(found.get("rms_norm_eps", lm.norm_eps)))


_TRUNK_KEYS = {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads",
               "kv_heads": "num_key_value_heads", "mlp": "intermediate_size", "text_vocab": "vocab_size"}


def _rope_theta(found: Mapping[str, Any], default: float) -> Any:
    """At the top level, or as newer transformers write it, inside `rope_parameters`."""
    inner = found.get("rope_parameters")
    if isinstance(inner, Mapping) and "rope_theta" in inner:
        return inner["rope_theta"]
    return found.get("rope_theta", default)


def _show(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
