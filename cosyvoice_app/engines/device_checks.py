"""Whether a GPU, its driver and torch fit together: facts to verdicts, each with its remedy. Pure, so that tests can
pose any machine.

From the outside in: build, driver, visibility, the GPU asked for, code for its chip, a first addition on it. The first
that fails is the cause; what lies behind it can't be told and is "unknown".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cosyvoice_app.engines.device_facts import DriverFacts, Gpu, System, TorchFacts

State = Literal["ok", "note", "problem", "unknown"]
# NVIDIA's table of minor version compatibility: the oldest driver branch that runs any CUDA of a major release.
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the matrix. `remedy` is for problems and, where there is anything to do, for notes."""

    name: str
    state: State
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.found}; {self.remedy}" if self.remedy else self.found


def examine(torch: TorchFacts, driver: DriverFacts, system: System, index: int) -> tuple[Check, ...]:
    """build, driver, visible, gpu, chip, mig, compute: always these seven, in this order."""
    cause = before_start(torch, system) or (_not_started(torch, driver, system) if not torch.gpus else None)
    if cause is not None:
        behind = (_unknown(name) for name in ("gpu", "chip", "mig", "compute"))
        rows = (_build(torch), _driver(driver, torch), _visible(torch, driver, system), *behind)
        return tuple(cause if row.name == cause.name else row for row in rows)
    gpu = next((gpu for gpu in torch.gpus if gpu.index == index), None)
    return (
        _build(torch),
        _driver(driver, torch),
        _visible(torch, driver, system),
        _gpu(gpu, torch, driver, index),
        _chip(gpu, torch),
        _mig(gpu, driver),
        _compute(gpu, torch),
    )


def before_start(torch: TorchFacts, system: System) -> Check | None:
    """What keeps CUDA from starting and needs no start to be seen."""
    build = _build(torch)
    return build if build.state == "problem" else _hidden_all(system)


def first_problem(checks: tuple[Check, ...]) -> Check | None:
    return next((check for check in checks if check.state == "problem"), None)


def has_code(capability: tuple[int, int], archs: tuple[str, ...]) -> bool | None:
    """Whether a wheel built for `archs` (sm_80, compute_90...) runs on a chip; None where it does not say."""
    major, minor = capability
    own = 10 * major + minor
    ready_made = _codes("sm_", archs)
    if not ready_made:
        return None
    # Compiled code serves later chips of its generation; PTX the driver compiles for any later chip.
    return any(code // 10 == major and code <= own for code in ready_made) or any(
        code <= own for code in _codes("compute_", archs)
    )


def _codes(kind: str, archs: tuple[str, ...]) -> list[int]:
    found = (re.fullmatch(rf"{kind}(\d+)[af]?", name) for name in archs)
    return [int(match[1]) for match in found if match]


def _unknown(name: str) -> Check:
    return Check(name, "unknown", "can't be told before the problem above is solved")


def _build(torch: TorchFacts) -> Check:
    if torch.hip is not None:
        return Check("build", "ok", f"PyTorch {torch.version} for ROCm {torch.hip}")
    if torch.build is None:
        return Check(
            "build", "problem", f"this PyTorch ({torch.version}) is a CPU-only build", "install one built for CUDA"
        )
    cudnn = f", cuDNN {cudnn_version(torch.cudnn)}" if torch.cudnn else ""
    return Check("build", "ok", f"PyTorch {torch.version} for CUDA {torch.build}{cudnn}")


def cudnn_version(number: str) -> str:
    """91900 is 9.19.0, and up to version 8 it was 8902 for 8.9.2."""
    n = int(number)
    return f"{n // 10000}.{n // 100 % 100}.{n % 100}" if n >= 90000 else f"{n // 1000}.{n // 100 % 10}.{n % 100}"


def _driver(driver: DriverFacts, torch: TorchFacts) -> Check:
    if driver.error:
        return Check("driver", "unknown", f"{driver.source} says: {driver.error}")
    if driver.version is None:
        return Check("driver", "unknown", "not known: neither nvidia-ml-py nor nvidia-smi can be asked")
    newest = f", for CUDA up to {driver.cuda}" if driver.cuda else ""
    said = f"NVIDIA driver {driver.version}{newest} (by {driver.source})"
    if torch.build and driver.cuda and _number(driver.cuda) < _number(torch.build):
        said += (
            f"; runs CUDA {torch.build} by minor version compatibility"
            if _major(driver.cuda) == _major(torch.build)
            else "; older than this PyTorch's CUDA"
        )
    return Check("driver", "ok", said)


def _hidden_all(system: System) -> Check | None:
    if system.visible is not None and system.visible.strip() in ("", "-1"):
        return Check(
            "visible",
            "problem",
            f"CUDA_VISIBLE_DEVICES is {system.visible!r}, which hides every GPU",
            "unset it, or name a GPU in it, such as 0",
        )
    return None


def _not_started(torch: TorchFacts, driver: DriverFacts, system: System) -> Check:
    """Why CUDA shows no GPU at all."""
    detail, low = torch.error, f"{torch.error} {driver.error}".lower()
    if "version mismatch" in low or "unsupported display driver" in low:
        return Check(
            "driver",
            "problem",
            "the NVIDIA driver was updated while the old one is still loaded",
            "restart the machine",
        )
    if ("driver" in low and "too old" in low) or _too_old(torch, driver):
        have = f"driver {driver.version}, for CUDA up to {driver.cuda}" if driver.version and driver.cuda else detail
        return Check(
            "driver",
            "problem",
            f"the NVIDIA driver is too old for this PyTorch, built for CUDA {torch.build} ({have})",
            _newer_driver(torch, driver),
        )
    if driver.gpus and all(gpu.mig for gpu in driver.gpus):
        return Check(
            "mig",
            "problem",
            f"MIG mode is on and CUDA sees no slice ({detail})",
            "create one (nvidia-smi mig -cgi ... -C), name its UUID from nvidia-smi -L in "
            "CUDA_VISIBLE_DEVICES, or turn MIG off (nvidia-smi -mig 0)",
        )
    no_driver = "found no nvidia driver" in low
    if driver.version and no_driver:
        return Check(
            "driver",
            "problem",
            f"the driver {driver.version} is there, and its CUDA library is not",
            "in a container, start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility; else install the "
            "driver's CUDA package (libcuda)",
        )
    if no_driver or (system.driver_loaded is False and not driver.version):
        return Check("driver", "problem", "no NVIDIA driver is running on this machine", _install(system))
    if system.visible is not None:
        there = f"; the machine has {_listed(driver.gpus)}" if driver.gpus else ""
        return Check(
            "visible",
            "problem",
            f"no GPU is visible with CUDA_VISIBLE_DEVICES={system.visible!r} ({detail}){there}",
            "unset it, or name a GPU that is there",
        )
    return Check(
        "gpu",
        "problem",
        detail or "CUDA reports no device",
        "see whether nvidia-smi lists the GPU; if it does, restart the machine",
    )


def _too_old(torch: TorchFacts, driver: DriverFacts) -> bool:
    return bool(torch.build and driver.cuda and _major(driver.cuda) < _major(torch.build))


def _newer_driver(torch: TorchFacts, driver: DriverFacts) -> str:
    oldest = _OLDEST_DRIVER.get(_major(torch.build)) if torch.build else None
    update = f"update it to {oldest} or later" if oldest else "update it"
    return f"{update}, or install a PyTorch built for CUDA {_major(driver.cuda)}" if driver.cuda else update


def _install(system: System) -> str:
    if system.wsl:
        return "under WSL 2 the driver is installed in Windows, not here; WSL 1 has no GPUs (wsl --set-version)"
    if system.container:
        return "if the host has an NVIDIA GPU, start the container with --gpus all (by the NVIDIA Container Toolkit)"
    return "if there is an NVIDIA GPU, install its driver"


def _visible(torch: TorchFacts, driver: DriverFacts, system: System) -> Check:
    if system.visible is None:
        return Check("visible", "ok", "CUDA_VISIBLE_DEVICES is not set")
    said = f"CUDA_VISIBLE_DEVICES is {system.visible!r}"
    hidden = hidden_gpus(torch, driver)
    if hidden:
        return Check("visible", "note", f"{said}, which hides {_listed(hidden)}", "unset it to use them")
    return Check("visible", "ok", f"{said}, which hides nothing" if torch.gpus and driver.gpus else said)


def hidden_gpus(torch: TorchFacts, driver: DriverFacts) -> tuple[Gpu, ...]:
    """The machine's GPUs that torch does not see; none where UUIDs don't tell (a MIG slice has another)."""
    if not torch.gpus or any(gpu.uuid is None or gpu.mig for gpu in torch.gpus):
        return ()
    seen = {_bare(gpu.uuid) for gpu in torch.gpus}
    return tuple(gpu for gpu in driver.gpus if gpu.uuid is not None and _bare(gpu.uuid) not in seen)


def _bare(uuid: str | None) -> str:
    return (uuid or "").lower().removeprefix("gpu-")


def _listed(gpus: tuple[Gpu, ...]) -> str:
    names = ", ".join(f"{gpu.name} (number {gpu.index} of the driver)" for gpu in gpus[:4])
    return names + (f" and {len(gpus) - 4} more" if len(gpus) > 4 else "")


def _gpu(gpu: Gpu | None, torch: TorchFacts, driver: DriverFacts, index: int) -> Check:
    if gpu is not None:
        free = f", {gpu.memory_free / 2**30:.1f} GiB free" if gpu.memory_free is not None else ""
        memory = f", {gpu.memory_total / 2**30:.1f} GiB{free}" if gpu.memory_total is not None else ""
        return Check("gpu", "ok", f"cuda:{index} is {gpu.name}{memory}")
    count = len(torch.gpus)
    found = f"there is no GPU number {index}: {count} {'is' if count == 1 else 'are'} visible (counted from 0)"
    if hidden_gpus(torch, driver):
        return Check("gpu", "problem", found, "CUDA_VISIBLE_DEVICES hides others; name more of them in it, or unset it")
    if any(seen.mig for seen in torch.gpus):
        return Check(
            "gpu",
            "problem",
            found,
            "a process sees one MIG slice only, as number 0; name it by its UUID in CUDA_VISIBLE_DEVICES",
        )
    return Check("gpu", "problem", found)


def _chip(gpu: Gpu | None, torch: TorchFacts) -> Check:
    if gpu is None or gpu.capability is None:
        return _unknown("chip")
    own, built = "{}.{}".format(*gpu.capability), sorted(_codes("sm_", torch.archs))
    for_chips = ", ".join(f"{code // 10}.{code % 10}" for code in built)
    fits = has_code(gpu.capability, torch.archs)
    if fits is None:
        return Check("chip", "unknown", f"compute capability {own}; this PyTorch doesn't say which it has code for")
    if fits:
        return Check("chip", "ok", f"compute capability {own}; this PyTorch has code for {for_chips}")
    newer = gpu.capability > divmod(built[-1], 10)
    return Check(
        "chip",
        "problem",
        f"{gpu.name} has compute capability {own}, and this PyTorch was built for {for_chips} only",
        "install a newer PyTorch"
        if newer
        else "install a PyTorch built for an earlier CUDA (those serve older chips), or use the CPU",
    )


def _mig(gpu: Gpu | None, driver: DriverFacts) -> Check:
    if gpu is None or gpu.mig is None:
        return Check("mig", "unknown", "not known")
    if gpu.mig:
        return Check(
            "mig",
            "note",
            "this is a MIG slice: its memory and cores are part of a GPU, and a process sees one slice only",
        )
    cut = tuple(other for other in driver.gpus if other.mig)
    return Check("mig", "ok", f"a whole GPU{'; MIG is on for ' + _listed(cut) if cut else ''}")


def _compute(gpu: Gpu | None, torch: TorchFacts) -> Check:
    if gpu is None or torch.fault is None:
        return Check("compute", "unknown", "not tried")
    if not torch.fault:
        return Check("compute", "ok", "a first addition on it came out right")
    low = torch.fault.lower()
    if "out of memory" in low:
        return Check(
            "compute",
            "problem",
            f"its memory is taken ({torch.fault})",
            "end what else uses it (nvidia-smi shows what)",
        )
    if "busy or unavailable" in low:
        return Check(
            "compute",
            "problem",
            f"another process has it for itself ({torch.fault})",
            "end that, or set its compute mode to default (nvidia-smi -c 0)",
        )
    if "no kernel image" in low:
        return Check(
            "compute",
            "problem",
            f"this PyTorch has no code for it ({torch.fault})",
            "install a PyTorch built for its compute capability",
        )
    return Check(
        "compute",
        "problem",
        f"a first addition on it failed ({torch.fault})",
        "see the driver's log (dmesg shows its Xid errors), and restart the machine",
    )


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
