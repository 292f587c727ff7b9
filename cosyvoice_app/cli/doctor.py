"""`doctor`: what this machine offers the engine, on one screen, for people and for bug reports.

Of a GPU it prints a matrix: build, driver, visibility, the GPU, its chip, MIG, a first addition on it; each with what
was found and, where something is wrong, the remedy.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from typing import Any

import psutil

from cosyvoice_app import __version__, assets
from cosyvoice_app.cli.fields import add_engine_arguments, engine_settings
from cosyvoice_app.console import print_json
from cosyvoice_app.engines import registry
from cosyvoice_app.engines.cosyvoice3 import files
from cosyvoice_app.errors import AppError
from cosyvoice_app.settings import Settings

NAME = "doctor"
HELP = "report the machine, the device an engine would take, and the model files"

_PACKAGES = ("torch", "numpy", "soundfile", "av", "gradio", "fastapi")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """0 when an engine could start here, 1 when not."""
    settings = engine_settings(options)
    report = examine(settings)
    if options.json:
        print_json(report)
    else:
        _print(report)
    return 0 if report["ok"] else 1


def examine(settings: Settings) -> dict[str, Any]:
    """JSON-ready. `ok`: the engine's name and device are usable. Missing model files are no fault: they get fetched.
    `gpu` is a DeviceReport; of the CPU where that was asked for or no GPU can be used.
    """
    report: dict[str, Any] = {
        "app_version": __version__, "python": platform.python_version(), "system": platform.platform(),
        "cpus": os.cpu_count(), "memory_bytes": psutil.virtual_memory().total,
        "packages": {name: _version(name) for name in _PACKAGES},
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    # Before the device is chosen, which may start CUDA in this process.
    report["gpu"] = _attempt(lambda: _gpu(settings))
    report["engine"] = _attempt(lambda: dict(zip(("name", "why"), registry.resolve_name(settings), strict=True)))
    report["device"] = _attempt(lambda: _device(settings, report["gpu"]))
    report["model"] = _model(settings)
    report["assets"] = [{"name": row["name"], "state": row["state"], "default": row["default"]}
                        for row in assets.list_assets(cache=settings.cache)]
    report["ok"] = "error" not in report["engine"] and "error" not in report["device"] and _computes(report)
    return report


def _model(settings: Settings) -> dict[str, Any]:
    """The official model's directory, looked at and not read. `verified` says of each file whose hash is known from an
    earlier `assets verify` or `assets fetch` whether it is the published one."""
    folder = registry.model_dir(settings)
    found = files.examine(folder, registry.LLM_FILES[settings.llm_weights])
    return {**found.to_dict(), "verified": files.known(folder, cache=settings.cache), "report": found.report()}


def _device(settings: Settings, gpu: dict[str, Any]) -> dict[str, Any]:
    """What an engine would take. Where CUDA didn't start in a process of its own, it isn't started in this one: it
    could hang, and the answer is known."""
    try:
        from cosyvoice_app.engines.device import choose

        problem = next((check for check in gpu.get("checks", ()) if check["state"] == "problem"), None)
        if problem is None or problem["name"] == "compute":
            chosen = choose(settings.device, settings.precision)
            return {"name": chosen.name, "why": chosen.reason}
        if settings.device == "auto":
            return {"name": choose("cpu", settings.precision).name, "why": f"no usable GPU: {problem['found']}"}
    except ModuleNotFoundError as error:
        return {"error": f"{error.name} is not installed"}
    return {"error": f"--device {settings.device} can't be used: {problem['found']}; {problem['remedy']}"}


def _gpu(settings: Settings) -> dict[str, Any]:
    try:
        from cosyvoice_app.engines.device import init_device

        return init_device(settings.device).to_dict()
    except ModuleNotFoundError as error:
        return {"error": f"{error.name} is not installed"}


def _computes(report: dict[str, Any]) -> bool:
    """A GPU that was chosen must also have passed its examination, which goes further than the choice."""
    on_gpu = report["device"].get("name", "").startswith("cuda")
    return not on_gpu or report["gpu"].get("device") == report["device"]["name"]


def _attempt(look: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = look()
    except AppError as error:
        return {"error": error.message}
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print(report: dict[str, Any]) -> None:
    print(f"app      {report['app_version']}, Python {report['python']}, {report['system']}")
    print(f"machine  {report['cpus']} CPUs, {report['memory_bytes'] / 2**30:.1f} GiB of memory")
    print("packages " + ", ".join(f"{name} {version or 'missing'}" for name, version in report["packages"].items()))
    for part in ("engine", "device"):
        facts = report[part]
        said = f"PROBLEM: {facts['error']}" if "error" in facts else f"{facts['name']} ({facts['why']})"
        print(f"{part:<8} {said}")
    _print_checks(report["gpu"])
    _print_model(report["model"])
    for row in report["assets"]:
        print(f"asset    {row['name']}: {row['state']}")


def _print_model(model: dict[str, Any]) -> None:
    for line in model["report"]:
        print(f"model    {line}")
    if model["verified"]:
        other = [name for name, official in model["verified"].items() if not official]
        print(f"model    verified before: {len(model['verified'])} files, "
              + (f"not the official ones: {', '.join(other)}" if other else "all official"))
    elif model["usable"]:
        print("model    not verified yet: `python -m cosyvoice_app assets verify cosyvoice3 --dir DIR` reads each")


def _print_checks(gpu: dict[str, Any]) -> None:
    """The matrix: check, verdict, what was found, and under it the remedy."""
    if "error" in gpu:
        print(f"gpu      {gpu['error']}")
        return
    for check in gpu["checks"]:
        print(f"gpu      {check['name']:<8} {check['state']:<8} {check['found']}")
        if check["remedy"]:
            print(f"{'':<26} remedy: {check['remedy']}")
    if not gpu["checks"]:
        print("gpu      not examined: the CPU was asked for")
