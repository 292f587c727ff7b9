"""From the name of an engine to a loaded one. Imports an engine's code only when it is asked for."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from cosyvoice_app.assets.official import DEFAULT_DIR
from cosyvoice_app.engines.base import Engine
from cosyvoice_app.engines.capabilities import KNOWN
from cosyvoice_app.engines.cosyvoice3 import files
from cosyvoice_app.errors import ConfigError
from cosyvoice_app.settings import Settings
from cosyvoice_app.types import Capabilities, OnProgress, Said, Segment, ignore_progress

log = logging.getLogger(__name__)

NAMES = ("auto", "lite", "cosyvoice3", "tone")
LLM_FILES = {"base": "llm.pt", "rl": "llm.rl.pt"}
"""File of the official directory by the setting `llm_weights`."""


def create(settings: Settings, progress: OnProgress = ignore_progress) -> Engine:
    """Load the engine that `settings.engine` names. Not warmed up yet.

    Raises ConfigError for a name that means nothing, DeviceError and AssetError as the engine does.
    """
    limit_threads(settings.threads)
    name, why = resolve_name(settings)
    log.info("engine %s: %s", name, why)
    if name == "lite":
        from cosyvoice_app.engines.lite.engine import LiteEngine

        return cast(Engine, LiteEngine.load(settings, progress))
    if name == "tone":
        from cosyvoice_app.engines.tone import ToneEngine

        return ToneEngine.load(settings, progress)
    if name == "cosyvoice3":
        return _load_class("cosyvoice_app.engines.cosyvoice3.engine:CosyVoice3Engine", settings, progress)
    return _load_class(name, settings, progress)


def resolve_name(settings: Settings) -> tuple[str, str]:
    """(engine name without "auto", why). Raises ConfigError when the name can't be an engine, and AssetError, naming
    each file and how to get it, when the official model was asked for by name and isn't there."""
    name = settings.engine
    if name == "auto":
        found = files.examine(model_dir(settings), LLM_FILES[settings.llm_weights])
        return ("cosyvoice3" if found.usable else "lite"), found.why()
    if name == "cosyvoice3":
        files.require(model_dir(settings), LLM_FILES[settings.llm_weights])
    if name not in NAMES and ":" not in name:
        raise ConfigError(
            f"--engine is {name!r}; allowed: {', '.join(NAMES)}, or package.module:Class.", param="engine"
        )
    return name, "asked for by --engine"


def model_dir(settings: Settings) -> Path:
    """Where the official model is looked for: --model-dir, else pretrained_models/Fun-CosyVoice3-0.5B."""
    return settings.model_dir or DEFAULT_DIR


def capabilities(settings: Settings) -> Capabilities | None:
    """What the engine that `settings` choose will be able to do, without loading it; None for an engine of the user's
    own. Raises ConfigError as `resolve_name` does."""
    return KNOWN.get(settings.engine) or KNOWN.get(resolve_name(settings)[0])


def reader(settings: Settings) -> Callable[[Segment], tuple[Said, ...]] | None:
    """How the engine that `settings` choose will read a segment, asked without loading it; None when it can't tell.

    Takes milliseconds, the first call some tenths of a second; no torch.
    """
    if settings.engine == "cosyvoice3" or resolve_name(settings)[0] != "lite":
        return None
    from cosyvoice_app import assets
    from cosyvoice_app.engines.lite.g2p import G2PPaths, LiteG2P

    gold, silver, oov, polyphones = (
        assets.path(name, cache=settings.cache) for name in ("misaki-us-gold", "misaki-us-silver", "g2p-en", "g2pm")
    )
    return LiteG2P(G2PPaths(gold, silver, oov, polyphones)).readings


def limit_threads(threads: int) -> None:
    """Hold the CPU maths libraries to `threads` (0 leaves their default, all cores)."""
    if threads <= 0:
        return
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _load_class(path: str, settings: Settings, progress: OnProgress) -> Engine:
    """Build `package.module:Class`: by its `load(settings, progress)` when it has one, else by calling the class,
    with `settings` when the constructor takes something."""
    module_name, _, class_name = path.partition(":")
    try:
        kind: Any = getattr(importlib.import_module(module_name), class_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--engine {path}: there is no module {error.name!r}.", param="engine") from error
    except AttributeError as error:
        raise ConfigError(f"--engine {path}: {module_name} has no {class_name!r}.", param="engine") from error
    if hasattr(kind, "load"):
        engine = kind.load(settings, progress)
    else:
        engine = kind(settings) if inspect.signature(kind).parameters else kind()
    absent = [name for name in _PARTS if not hasattr(engine, name)]
    if absent:
        raise ConfigError(f"--engine {path} is not an engine: it lacks {', '.join(absent)}.", param="engine")
    return cast(Engine, engine)


_PARTS = ("name", "capabilities", "device", "device_reason", "precision", "model_hash", "speaker_encoder",
          "style_encoder", "acoustic_model", "vocoder", "check_text", "components", "memory", "warm_up", "close")
