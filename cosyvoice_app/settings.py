"""Every option, once: a field here is a command-line flag, a `COSYVOICE_*` variable and a line of `--help`.

Precedence: flag, then environment variable, then default. Unknown flags and unusable values fail with what is allowed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cosyvoice_app.errors import ConfigError

ENV_PREFIX = "COSYVOICE_"


def _option(default: Any, help: str, *, group: str, choices: tuple[str, ...] = (), low: float | None = None,
            high: float | None = None) -> Any:
    meta = {"help": help, "group": group, "choices": choices, "low": low, "high": high}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True)
class Settings:
    """Engine options are shared by the server and the CLI; server options are the server's only."""

    engine: str = _option("auto", "auto, lite, cosyvoice3, tone, or package.module:Class", group="engine")
    device: str = _option("auto", "auto, cpu, cuda or cuda:N", group="engine")
    model_dir: Path | None = _option(None, "directory of the official Fun-CosyVoice3-0.5B files", group="engine")
    precision: str = _option("auto", "number format of the model", group="engine",
                             choices=("auto", "fp32", "bf16", "fp16", "int8"))
    llm_weights: str = _option("base", "which language model of the official directory: llm.pt or llm.rl.pt "
                               "(cosyvoice3 engine)", group="engine", choices=("base", "rl"))
    flow_steps: int = _option(10, "solver steps from speech tokens to mel: fewer are faster, more finer (cosyvoice3 "
                              "engine)", group="engine", low=1, high=50)
    refine: str = _option("fast", "how far a voice is fitted to its clip (lite engine)", group="engine",
                          choices=("off", "fast", "full"))
    cache: Path | None = _option(None, "where converted models and fitted voices are kept "
                                 "(default: the platform's cache directory)", group="engine")
    outputs: Path = _option(Path("outputs"), "where results are written", group="engine")
    max_chars: int = _option(200, "longest text accepted, in characters", group="engine", low=1, high=100_000)
    pronunciations: Path | None = _option(None, "your own word list (default: pronunciations.toml, if there is one "
                                          "in the working directory)", group="engine")
    threads: int = _option(0, "CPU threads for the model (0 = all cores)", group="engine", low=0, high=1024)

    host: str = _option("127.0.0.1", "address to listen on", group="server")
    port: int = _option(7860, "port to listen on", group="server", low=1, high=65535)
    max_batch: int = _option(8, "most segments the engine speaks together (1 = one after another)",
                             group="server", low=1, high=256)
    batch_wait_ms: int = _option(50, "longest wait for others to join a batch; nobody waits when nobody can come",
                                 group="server", low=0, high=10_000)
    max_queue: int = _option(100, "most requests waiting; further ones get 429", group="server", low=1, high=100_000)
    max_per_client: int = _option(0, "most requests one client may have waiting and running (0 = no limit)",
                                  group="server", low=0, high=100_000)
    rate_per_minute: int = _option(0, "most requests a minute from one client (0 = no limit)",
                                   group="server", low=0, high=1_000_000)
    max_upload_mb: int = _option(25, "largest upload", group="server", low=1, high=1024)
    timeout_s: int = _option(600, "longest a request may take once it runs", group="server", low=1, high=86_400)
    queue_timeout_s: int = _option(600, "longest a request may wait before it runs", group="server", low=1,
                                   high=86_400)
    idle_unload_s: int = _option(0, "unload the engine after so long without a request, and load it again for the next "
                                 "(0 = never)", group="server", low=0, high=604_800)
    voice_memory_mb: int = _option(1024, "most memory for voices already made", group="server", low=0, high=1_000_000)
    voice_disk_mb: int = _option(2048, "most disk space for voices already made", group="engine", low=0,
                                 high=10_000_000)
    api_key: str = _option("", "ask API callers for this key (empty = none)", group="server")
    api_keys: Path | None = _option(None, "file of hashed API keys, made with `python -m cosyvoice_app keys` "
                                    "(default: none)", group="server")
    cors_origins: str = _option("", "web pages of these origins may call the API, separated by commas (empty = none)",
                                group="server")
    trusted_proxy: str = _option("", "addresses of proxies whose X-Forwarded-* headers are believed, separated by "
                                 "commas (empty = none)", group="server")
    log_format: str = _option("text", "how log lines are written", group="server", choices=("text", "json"))
    log_level: str = _option("info", "how much is logged; debug also logs what is asked to be said", group="server",
                             choices=("debug", "info", "warning", "error"))
    login: str = _option("", "ask page visitors for user:password (empty = none)", group="server")
    voices: Path | None = _option(None, "where saved voices are kept (default: beside the cache)", group="engine")


def _convert(name: str, raw: str | Any, meta: Mapping[str, Any], default: Any, source: str) -> Any:
    if name in ("model_dir", "cache", "voices", "pronunciations", "api_keys"):
        return Path(raw).expanduser() if raw else None
    if isinstance(default, Path):
        return Path(raw).expanduser()
    if isinstance(default, int):
        try:
            value = int(raw)
        except ValueError:
            raise ConfigError(f"{source} is {raw!r}; it must be a whole number.", param=name) from None
        low, high = meta["low"], meta["high"]
        if not low <= value <= high:
            raise ConfigError(f"{source} is {value}; allowed: {low} to {high}.", param=name)
        return value
    if meta["choices"] and raw not in meta["choices"]:
        raise ConfigError(f"{source} is {raw!r}; allowed: {', '.join(meta['choices'])}.", param=name)
    return str(raw)


def add_arguments(parser: argparse.ArgumentParser, groups: Sequence[str] = ("engine", "server")) -> None:
    """Add a flag per setting of `groups`. Defaults are left out, so that the environment can speak."""
    for group in groups:
        box = parser.add_argument_group(f"{group} options")
        for f in fields(Settings):
            if f.metadata["group"] != group:
                continue
            flag, env = "--" + f.name.replace("_", "-"), ENV_PREFIX + f.name.upper()
            box.add_argument(flag, default=None, metavar="X",
                             help=f"{f.metadata['help']}"
                                  + (f" ({', '.join(f.metadata['choices'])})" if f.metadata["choices"] else "")
                                  + f" [default: {f.default}; environment: {env}]")


def resolve(arguments: argparse.Namespace | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from parsed flags and the environment. Raises ConfigError with the flag or variable named."""
    values: dict[str, Any] = {}
    for f in fields(Settings):
        flag, env = "--" + f.name.replace("_", "-"), ENV_PREFIX + f.name.upper()
        raw = getattr(arguments, f.name, None)
        source = flag
        if raw is None and environ.get(env):
            raw, source = environ[env], env
        if raw is not None:
            values[f.name] = _convert(f.name, raw, f.metadata, f.default, source)
    return Settings(**values)
