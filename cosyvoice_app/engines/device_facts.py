"""What torch, the NVIDIA driver and the system say about GPUs: facts only, judged in `device_checks`.

Nothing here starts CUDA in this process, which would break a later fork and hold device memory: torch is asked in a
child process (`cuda_probe`), but where this process uses CUDA already. Whatever is asked answers within a time limit
or counts as silent.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Importing torch from a cold disk takes most of it.
_PROBE_S, _DRIVER_S, _AFTER_KILL_S = 90.0, 10.0, 5.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Of the driver's list `index` is the driver's; of torch's it is torch's. None: not known.

    `mig`: of the driver's list that MIG mode is on, of torch's that this is a MIG slice. Memory in bytes.
    """

    index: int
    name: str
    uuid: str | None = None
    capability: tuple[int, int] | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    mig: bool | None = None


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """`build` is the CUDA version torch was built for, None for a build without. `gpus`: those that it sees.

    `error` is why CUDA doesn't start; `fault` what an addition on the GPU asked for raised, None if none was tried.
    """

    version: str
    build: str | None
    hip: str | None = None
    cudnn: str | None = None
    archs: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    error: str = ""
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """`source` is who was asked: "nvidia-ml-py", "nvidia-smi", or "" when neither is there. `cuda`: the newest CUDA
    that the driver serves. `gpus`: all of the machine, whatever CUDA_VISIBLE_DEVICES is.
    """

    source: str = ""
    version: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class System:
    """`visible` is CUDA_VISIBLE_DEVICES. `driver_loaded` is None where the system doesn't tell."""

    visible: str | None
    driver_loaded: bool | None
    wsl: bool = False
    container: bool = False


def of_system(root: Path = Path("/")) -> System:
    kernel = _text(root / "proc/version").lower()
    wsl = "microsoft" in kernel
    # Under WSL the driver is Windows' own and leaves no trace in /proc.
    loaded = (root / "proc/driver/nvidia").exists() if os.name == "posix" and not wsl else None
    container = (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()
    return System(os.environ.get("CUDA_VISIBLE_DEVICES"), loaded, wsl, container)


def of_torch(index: int) -> TorchFacts:
    """Torch's view, and whether GPU `index` computes."""
    import torch

    version, build, hip = str(torch.__version__), torch.version.cuda, getattr(torch.version, "hip", None)
    if build is None and hip is None:
        return TorchFacts(version, None)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return look(torch, index)
    answer, error = _probe(index)
    if answer is None:
        return TorchFacts(version, build, hip, error=error)
    gpus = tuple(Gpu(**{**gpu, "capability": tuple(gpu["capability"])}) for gpu in answer.pop("gpus"))
    return TorchFacts(**{**answer, "archs": tuple(answer["archs"])}, gpus=gpus)


def look(torch: Any, index: int | None) -> TorchFacts:
    """Torch's view from this process, which starts CUDA in it. `index` None: nothing is put on any GPU."""
    version, build, hip = str(torch.__version__), torch.version.cuda, getattr(torch.version, "hip", None)
    if build is None and hip is None:
        return TorchFacts(version, None)
    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        error = _start_error(torch)
        return TorchFacts(version, build, hip, None if index is None else _cudnn(torch), error=error)
    count = torch.cuda.device_count()
    archs = tuple(torch.cuda.get_arch_list())
    try:
        gpus = tuple(
            Gpu(i, torch.cuda.get_device_name(i), capability=torch.cuda.get_device_capability(i)) for i in range(count)
        )
        if index is None:
            return TorchFacts(version, build, hip, archs=archs, gpus=gpus)
        gpus = tuple(_with_properties(torch, gpu) for gpu in gpus)
    except (RuntimeError, AssertionError) as error:  # counted by the driver, and yet CUDA doesn't start
        return TorchFacts(version, build, hip, archs=archs, error=_first_line(error))
    fault = None
    if index < count:
        try:
            fault = "" if float(torch.ones(1, device=f"cuda:{index}") + 1) == 2.0 else "1 + 1 is not 2 on this GPU"
            free, total = torch.cuda.mem_get_info(index)
            gpus = tuple(_with_memory(gpu, free, total) if gpu.index == index else gpu for gpu in gpus)
        except RuntimeError as error:
            fault = _first_line(error)
    return TorchFacts(version, build, hip, _cudnn(torch), archs, gpus, fault=fault)


def _cudnn(torch: Any) -> str | None:
    number = torch.backends.cudnn.version()
    return None if number is None else str(number)


def _with_properties(torch: Any, gpu: Gpu) -> Gpu:
    known = torch.cuda.get_device_properties(gpu.index)
    uuid = getattr(known, "uuid", None)
    return Gpu(
        gpu.index,
        gpu.name,
        None if uuid is None else str(uuid),
        gpu.capability,
        int(known.total_memory),
        mig=" MIG " in f"{gpu.name} ",
    )


def _with_memory(gpu: Gpu, free: int, total: int) -> Gpu:
    return Gpu(gpu.index, gpu.name, gpu.uuid, gpu.capability, int(total), int(free), gpu.mig)


def _start_error(torch: Any) -> str:
    """Starting CUDA makes the driver say what is wrong; torch passes it on as an error's text."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return _first_line(error)
    return "CUDA reports no device"


def _probe(index: int) -> tuple[dict[str, Any] | None, str]:
    package_root = str(Path(__file__).parents[2])
    path = os.pathsep.join([package_root, *filter(None, [os.environ.get("PYTHONPATH")])])
    call = [sys.executable, "-m", "cosyvoice_app.engines.cuda_probe", str(index)]
    try:
        status, out, err = run_bounded(call, _PROBE_S, {**os.environ, "PYTHONPATH": path})
    except subprocess.TimeoutExpired:
        return None, f"CUDA did not start within {_PROBE_S:.0f} s"
    except OSError as error:
        return None, f"the process that tries CUDA can't be started ({error})"
    if status == 0 and out.strip():
        last = out.strip().splitlines()[-1]
        try:
            return dict(json.loads(last)), ""
        except ValueError:
            return None, f"the process that tried CUDA answered {last[:200]!r}"
    said = err.strip().splitlines()[-1:] or ["nothing said"]
    return None, f"the process that tried CUDA ended with status {status} ({said[0][:200]})"


def run_bounded(call: list[str], limit_s: float, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Status, output and errors of a command. Raises TimeoutExpired after `limit_s`, also when it can't be killed: a
    process that a driver holds in the kernel is left to it.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        call, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_AFTER_KILL_S)
        raise
    return process.returncode, out, err


def of_driver() -> DriverFacts:
    """From nvidia-ml-py where it is installed, else from nvidia-smi, which comes with the driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return _of_smi()
    try:
        return _in_time(lambda: _of_nvml(nvml), DriverFacts("nvidia-ml-py", error="the driver does not answer"))
    except nvml.NVMLError as error:
        # A library that isn't there is no answer yet; nvidia-smi may be somewhere else (WSL).
        found = _of_smi()
        return found if found.source and not found.error else DriverFacts("nvidia-ml-py", error=_first_line(error))


def _of_nvml(nvml: Any) -> DriverFacts:
    def ask(name: str, *args: Any) -> Any:
        """None where this GPU or driver has no such thing."""
        try:
            answer = getattr(nvml, name)(*args)
        except (nvml.NVMLError, AttributeError):
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    nvml.nvmlInit()
    try:
        cuda = ask("nvmlSystemGetCudaDriverVersion_v2")
        gpus = []
        for i in range(ask("nvmlDeviceGetCount") or 0):
            handle = ask("nvmlDeviceGetHandleByIndex", i)
            if handle is None:
                gpus.append(Gpu(i, "a GPU that the driver can't reach"))
                continue
            memory, mig = ask("nvmlDeviceGetMemoryInfo", handle), ask("nvmlDeviceGetMigMode", handle)
            gpus.append(
                Gpu(
                    i,
                    str(ask("nvmlDeviceGetName", handle)),
                    ask("nvmlDeviceGetUUID", handle),
                    ask("nvmlDeviceGetCudaComputeCapability", handle),
                    None if memory is None else int(memory.total),
                    None if memory is None else int(memory.free),
                    None if mig is None else bool(mig[0]),
                )
            )
        version = ask("nvmlSystemGetDriverVersion")
        return DriverFacts(
            "nvidia-ml-py", version, None if not cuda else f"{cuda // 1000}.{cuda % 1000 // 10}", tuple(gpus)
        )
    finally:
        nvml.nvmlShutdown()


_SMI_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "memory.total",
    "memory.free",
    "mig.mode.current",
    "compute_cap",
)


def _of_smi() -> DriverFacts:
    program = shutil.which("nvidia-smi") or shutil.which("/usr/lib/wsl/lib/nvidia-smi")
    if program is None:
        return DriverFacts()
    # Drivers before 2021 don't know the last field.
    for fields in (_SMI_FIELDS, _SMI_FIELDS[:-1]):
        said, error = _run([program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        if not error:
            break
    else:
        return DriverFacts("nvidia-smi", error=error)
    rows = [dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=False)) for line in said.splitlines()]
    gpus = tuple(_of_row(row) for row in rows if row.get("index", "").isdigit() and len(row) == len(fields))
    head, _ = _run([program])
    cuda = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", head)
    version = next((row["driver_version"] for row in rows if "driver_version" in row), None)
    return DriverFacts("nvidia-smi", version, cuda[1] if cuda else None, gpus)


def _of_row(row: dict[str, str]) -> Gpu:
    """Fields that a GPU lacks read [N/A] or [Not Supported]."""
    capability = re.fullmatch(r"(\d+)\.(\d+)", row.get("compute_cap", ""))
    memory = {key: int(row[key]) << 20 if row[key].isdigit() else None for key in ("memory.total", "memory.free")}
    mig = {"enabled": True, "disabled": False}.get(row["mig.mode.current"].lower())
    return Gpu(
        int(row["index"]),
        row["name"],
        row["uuid"],
        (int(capability[1]), int(capability[2])) if capability else None,
        memory["memory.total"],
        memory["memory.free"],
        mig,
    )


def _run(call: list[str]) -> tuple[str, str]:
    """What it printed, and what went wrong or ""."""
    try:
        status, out, err = run_bounded(call, _DRIVER_S)
    except subprocess.TimeoutExpired:
        return "", f"nvidia-smi does not answer within {_DRIVER_S:.0f} s"
    except OSError as error:
        return "", f"nvidia-smi can't be run ({error})"
    said = (out + err).strip()
    return out, "" if status == 0 else (said.splitlines() or ["nvidia-smi failed"])[0]


def _in_time(work: Callable[[], DriverFacts], otherwise: DriverFacts) -> DriverFacts:
    """`otherwise` when the driver takes too long: a wedged one hangs for good, and a thread can be left behind."""
    done: list[DriverFacts] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # noqa: BLE001 - raised again below, in the thread that asked
            failed.append(error)

    thread = threading.Thread(target=run, name="driver-facts", daemon=True)
    thread.start()
    thread.join(_DRIVER_S)
    if failed:
        raise failed[0]
    return done[0] if done else otherwise


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
