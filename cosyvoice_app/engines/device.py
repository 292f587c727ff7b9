"""Which device an engine may use here, and why: one decision, said aloud, never a silent fall to the CPU."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

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


def choose(device: str, precision: str = "auto") -> Device:
    """The device for `--device` auto, cpu, cuda or cuda:N. Imports torch.

    Raises ConfigError for a name that means nothing or a precision the device does not have, DeviceError naming the
    cause when a GPU was asked for and can't be used. With "auto" the same cause becomes the reason for the CPU.
    """
    match = _NAME.fullmatch(device)
    if match is None:
        raise ConfigError(f"--device is {device!r}; allowed: auto, cpu, cuda, or cuda:N.", param="device")
    chosen = _choose(device, int(match[1] or 0))
    _check_precision(chosen, precision)
    return chosen


def _choose(device: str, index: int) -> Device:
    if device == "cpu":
        return Device("cpu", "asked for by --device cpu")
    trouble = cuda_trouble(index)
    if trouble is None:
        import torch

        how = "found" if device == "auto" else f"asked for by --device {device}"
        return Device(f"cuda:{index}", f"{torch.cuda.get_device_name(index)}, {how}")
    if device == "auto":
        return Device("cpu", f"no usable GPU: {trouble}")
    raise DeviceError(f"--device {device} can't be used: {trouble}. Use --device cpu, or --device auto to take "
                      "a GPU only when there is one.", param="device")


def cuda_trouble(index: int = 0) -> str | None:
    """Why GPU `index` can't be used, or None when it can. Looks from the outside in: build, driver, devices, wheel."""
    import torch

    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"this PyTorch ({torch.__version__}) is a CPU-only build; install one built for CUDA"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {hidden!r}, which hides every GPU"
    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        return _unavailable(torch, hidden)
    count = torch.cuda.device_count()
    if index >= count:
        return f"there is no GPU number {index}: {count} {'is' if count == 1 else 'are'} visible (counted from 0)"
    return _unsupported(torch, index)


def _unavailable(torch: Any, visible: str | None) -> str:
    """Starting CUDA makes the driver say what is wrong; torch passes it on as an error's text."""
    try:
        torch.cuda.init()
        detail = "CUDA reports no device"
    except (RuntimeError, AssertionError) as error:
        detail = str(error).split("\n")[0].strip().rstrip(".")
    low = detail.lower()
    if "driver" in low and "old" in low:
        return (f"the NVIDIA driver is too old for this PyTorch, built for CUDA {torch.version.cuda}; update it "
                f"({detail})")
    if "found no nvidia driver" in low or (not os.path.exists("/proc/driver/nvidia") and os.name == "posix"):
        return "no NVIDIA driver is running on this machine"
    if visible is not None:
        return f"no GPU is visible with CUDA_VISIBLE_DEVICES={visible!r} ({detail})"
    return detail


def _unsupported(torch: Any, index: int) -> str | None:
    """The wheel holds code for some chip generations only; an older or newer chip fails at its first kernel."""
    major, minor = torch.cuda.get_device_capability(index)
    own = 10 * major + minor
    built = {kind: [int(name[len(kind):].rstrip("af")) for name in torch.cuda.get_arch_list() if name.startswith(kind)]
             for kind in ("sm_", "compute_")}
    ready_made = any(code // 10 == major and code <= own for code in built["sm_"])
    by_driver = any(code <= own for code in built["compute_"])  # PTX, which the driver compiles for newer chips
    if ready_made or by_driver or not built["sm_"]:
        return None
    codes = ", ".join(f"{code // 10}.{code % 10}" for code in built["sm_"])
    return (f"{torch.cuda.get_device_name(index)} has compute capability {major}.{minor}, and this PyTorch was built "
            f"for {codes} only")


def _check_precision(device: Device, precision: str) -> None:
    if precision == "fp16" and not device.is_cuda:
        raise ConfigError("--precision fp16 needs a GPU; on the CPU use fp32 or bf16.", param="precision")
    if precision == "bf16" and device.is_cuda:
        import torch

        if torch.cuda.get_device_capability(device.name)[0] < 8:
            raise ConfigError(f"--precision bf16 needs a GPU of compute capability 8.0 or later; {device.reason} is "
                              "older. Use fp16 or fp32.", param="precision")
