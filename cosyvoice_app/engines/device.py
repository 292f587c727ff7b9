"""Which device an engine may use here, and why: one decision, said aloud, never a silent fall to the CPU."""

from __future__ import annotations

import dataclasses
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cosyvoice_app.engines import device_facts
from cosyvoice_app.engines.device_checks import (
    Check,
    before_start,
    cudnn_version,
    examine,
    first_problem,
    has_code,
    hidden_gpus,
)
from cosyvoice_app.engines.device_facts import DriverFacts, Gpu, TorchFacts
from cosyvoice_app.errors import ConfigError, DeviceError

_NAME = re.compile(r"auto|cpu|cuda(?::(\d{1,3}))?")


@dataclass(frozen=True, slots=True)
class Device:
    """`name` is torch's ("cpu", "cuda:0"); `reason` is for people."""

    name: str
    reason: str

    @property
    def is_cuda(self) -> bool:
        return self.name.startswith("cuda")


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What there is on a device, and whether its parts fit together. None: not known.

    `device` is what can be used (torch's name: "cuda:1", "cpu"), `fits` whether that is what was asked for ("auto" is
    content with either). `checks` are rows of a matrix, from the build to a first addition on the GPU. `cuda_build` is
    the CUDA runtime that torch brings, `cuda_driver` the newest that the driver serves. Memory in bytes; of a MIG
    slice, the slice's.
    """

    asked: str
    device: str
    fits: bool
    name: str
    index: int | None
    torch_version: str
    cuda_build: str | None
    cuda_driver: str | None
    driver_version: str | None
    driver_source: str
    cudnn_version: str | None
    capability: str | None
    has_code: bool | None
    archs: tuple[str, ...]
    memory_total: int | None
    memory_free: int | None
    mig: bool | None
    visible: str | None
    hidden: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.state == "problem")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)


def init_device(device_id: int | str | None = None) -> DeviceReport:
    """Examine a device: a GPU's number, or auto (the same as None), cpu, cuda, cuda:N.

    Raises ConfigError for a name that means nothing; everything else is in the report. CUDA is tried in a process of
    its own, so that this one can still fork and holds no device memory; with a driver that hangs it takes up to about
    two minutes, else some seconds.
    """
    asked = f"cuda:{device_id}" if isinstance(device_id, int) else "auto" if device_id is None else device_id
    match = _NAME.fullmatch(asked)
    if match is None or isinstance(device_id, bool):
        raise ConfigError(
            f"The device is {device_id!r}; allowed: auto, cpu, cuda, cuda:N, or a GPU's number from 0.", param="device"
        )
    if asked == "cpu":
        return _cpu_report()
    return _gpu_report(asked, int(match[1] or 0))


def _gpu_report(asked: str, index: int) -> DeviceReport:
    system, torch, driver = device_facts.of_system(), device_facts.of_torch(index), device_facts.of_driver()
    checks = examine(torch, driver, system, index)
    usable = first_problem(checks) is None
    gpu = next((gpu for gpu in torch.gpus if gpu.index == index), None)
    return _report(asked, torch, driver, checks, gpu if usable or asked != "auto" else None, usable=usable)


def _cpu_report() -> DeviceReport:
    import torch

    facts = TorchFacts(str(torch.__version__), torch.version.cuda, getattr(torch.version, "hip", None))
    return _report("cpu", facts, DriverFacts(), (), None, usable=True)


def _report(
    asked: str, torch: TorchFacts, driver: DriverFacts, checks: tuple[Check, ...], gpu: Gpu | None, *, usable: bool
) -> DeviceReport:
    """Of `gpu`, or of the CPU when that is None."""
    memory = psutil.virtual_memory()
    capability = None if gpu is None else gpu.capability
    return DeviceReport(
        asked=asked,
        device=f"cuda:{gpu.index}" if gpu is not None and usable else "cpu",
        fits=usable or asked == "auto",
        name=_cpu_name() if gpu is None else gpu.name,
        index=None if gpu is None else gpu.index,
        torch_version=torch.version,
        cuda_build=torch.build,
        cuda_driver=driver.cuda,
        driver_version=driver.version,
        driver_source=driver.source,
        cudnn_version=None if torch.cudnn is None else cudnn_version(torch.cudnn),
        capability=None if capability is None else "{}.{}".format(*capability),
        has_code=None if capability is None else has_code(capability, torch.archs),
        archs=torch.archs,
        memory_total=int(memory.total) if gpu is None else gpu.memory_total,
        memory_free=int(memory.available) if gpu is None else gpu.memory_free,
        mig=None if gpu is None else gpu.mig,
        visible=device_facts.of_system().visible,
        hidden=tuple(hidden.name for hidden in hidden_gpus(torch, driver)),
        checks=checks,
    )


def _cpu_name() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def choose(device: str, precision: str = "auto") -> Device:
    """The device for `--device` auto, cpu, cuda or cuda:N. Imports torch, and starts CUDA in this process.

    Raises ConfigError for a name that means nothing or a precision the device does not have, DeviceError naming the
    cause when a GPU was asked for and can't be used. With "auto" the same cause becomes the reason for the CPU.
    """
    match = _NAME.fullmatch(device)
    if match is None:
        raise ConfigError(f"--device is {device!r}; allowed: auto, cpu, cuda, or cuda:N.", param="device")
    chosen = _choose(device, int(match[1] or 0))
    _check_precision(chosen, precision)
    return chosen


def make_exact(device: Device) -> None:
    """On a GPU: the same seed must give the same audio, and fp32 must be fp32."""
    if device.is_cuda:
        import torch

        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False


def _choose(device: str, index: int) -> Device:
    if device == "cpu":
        return Device("cpu", "asked for by --device cpu")
    cause = _cause(index)
    if cause is None:
        import torch

        how = "found" if device == "auto" else f"asked for by --device {device}"
        return Device(f"cuda:{index}", f"{torch.cuda.get_device_name(index)}, {how}")
    if device == "auto":
        return Device("cpu", f"no usable GPU: {cause.found}")
    raise DeviceError(
        f"--device {device} can't be used: {cause}. Use --device cpu, or --device auto to take "
        "a GPU only when there is one.",
        param="device",
    )


def _cause(index: int) -> Check | None:
    """From what torch says in this process alone, which is quick; `init_device` knows more."""
    import torch

    system = device_facts.of_system()
    idle = TorchFacts(str(torch.__version__), torch.version.cuda, getattr(torch.version, "hip", None))
    before = before_start(idle, system)
    return before or first_problem(examine(device_facts.look(torch, None), DriverFacts(), system, index))


def _check_precision(device: Device, precision: str) -> None:
    if precision == "fp16" and not device.is_cuda:
        raise ConfigError("--precision fp16 needs a GPU; on the CPU use fp32 or bf16.", param="precision")
    if precision == "bf16" and device.is_cuda:
        import torch

        if torch.cuda.get_device_capability(device.name)[0] < 8:
            raise ConfigError(
                f"--precision bf16 needs a GPU of compute capability 8.0 or later; {device.reason} is "
                "older. Use fp16 or fp32.",
                param="precision",
            )
