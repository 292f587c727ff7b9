"""Every way a GPU, its driver and torch can fail to fit together is named with its remedy, and examining a device
neither hangs nor starts CUDA in the process that asks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch as real_torch

from cosyvoice_app.cli import doctor
from cosyvoice_app.cli.main import main
from cosyvoice_app.engines import device, device_facts
from cosyvoice_app.engines.device import init_device
from cosyvoice_app.engines.device_checks import cudnn_version, examine, first_problem, has_code
from cosyvoice_app.engines.device_facts import DriverFacts, Gpu, System, TorchFacts
from cosyvoice_app.errors import ConfigError, DeviceError
from cosyvoice_app.settings import Settings

GIB = 1 << 30
ARCHS = ("sm_75", "sm_80", "sm_90")
CARD = Gpu(0, "NVIDIA Card", "aaaa-1", (9, 0), 80 * GIB, 70 * GIB, False)
TORCH = TorchFacts("2.11", "13.0", None, "91900", ARCHS, (CARD,), fault="")
DRIVER = DriverFacts(
    "nvidia-smi", "580.65.06", "13.0", (Gpu(0, "NVIDIA Card", "GPU-aaaa-1", (9, 0), 80 * GIB, 70 * GIB, False),)
)
SYSTEM = System(None, True)
OLD_DRIVER = DriverFacts("nvidia-smi", "535.104", "12.2", DRIVER.gpus)
TWO = DriverFacts("nvidia-smi", "580.65.06", "13.0", (*DRIVER.gpus, Gpu(1, "NVIDIA Other", "GPU-bbbb-2")))
SLICED = DriverFacts("nvidia-smi", "580.65.06", "13.0", (Gpu(0, "NVIDIA Card", "GPU-aaaa-1", mig=True),))


def none(error: str) -> TorchFacts:
    return TorchFacts("2.11", "13.0", error=error)


def of(gpu: Gpu, fault: str | None = "", archs: tuple[str, ...] = ARCHS) -> TorchFacts:
    return TorchFacts("2.11", "13.0", None, "91900", archs, (gpu,), fault=fault)


def chip(major: int, minor: int) -> Gpu:
    return Gpu(0, "NVIDIA Chip", "aaaa-1", (major, minor), 8 * GIB, 8 * GIB, False)


@pytest.mark.parametrize(
    ("torch", "driver", "system", "index", "row", "found", "remedy"),
    [
        (TorchFacts("2.11+cpu", None), DRIVER, SYSTEM, 0, "build", "CPU-only build", "install one built for CUDA"),
        (TORCH, DRIVER, System("", True), 0, "visible", "hides every GPU", "unset it"),
        (TORCH, DRIVER, System("-1", True), 0, "visible", "hides every GPU", "unset it"),
        (none("The NVIDIA driver on your system is too old (found version 12020)"), OLD_DRIVER, SYSTEM, 0,
         "driver", "driver 535.104, for CUDA up to 12.2", "to 580 or later, or install a PyTorch built for CUDA 12"),
        (none("The NVIDIA driver on your system is too old (found version 11040)"), DriverFacts(), SYSTEM, 0,
         "driver", "found version 11040", "update it to 580 or later"),
        (none("CUDA unknown error"), OLD_DRIVER, SYSTEM, 0, "driver", "too old", "580"),
        (none("No CUDA GPUs are available"),
         DriverFacts("nvidia-smi", error="Failed to initialize NVML: Driver/library version mismatch"), SYSTEM, 0,
         "driver", "updated while the old one is still loaded", "restart"),
        (none("Found no NVIDIA driver on your system"), DriverFacts(), System(None, False), 0,
         "driver", "no NVIDIA driver is running", "install its driver"),
        (none("Found no NVIDIA driver on your system"), DriverFacts(), System(None, None, wsl=True), 0,
         "driver", "no NVIDIA driver is running", "in Windows"),
        (none("Found no NVIDIA driver on your system"), DriverFacts(), System(None, False, container=True), 0,
         "driver", "no NVIDIA driver is running", "--gpus all"),
        (none("Found no NVIDIA driver on your system"), DRIVER, SYSTEM, 0,
         "driver", "its CUDA library is not", "NVIDIA_DRIVER_CAPABILITIES"),
        (none("No CUDA GPUs are available"), SLICED, SYSTEM, 0, "mig", "CUDA sees no slice", "nvidia-smi mig"),
        (none("No CUDA GPUs are available"), DRIVER, System("7", True), 0,
         "visible", "CUDA_VISIBLE_DEVICES='7'", "name a GPU that is there"),
        (none("CUDA did not start within 90 s"), DRIVER, SYSTEM, 0, "gpu", "within 90 s", "nvidia-smi"),
        (TORCH, DRIVER, SYSTEM, 3, "gpu", "no GPU number 3: 1 is visible", ""),
        (TORCH, TWO, System("0", True), 1, "gpu", "no GPU number 1", "CUDA_VISIBLE_DEVICES hides others"),
        (of(Gpu(0, "NVIDIA Card MIG 1g.5gb", "x", (8, 0), mig=True)), SLICED, SYSTEM, 1,
         "gpu", "no GPU number 1", "one MIG slice"),
        (of(chip(6, 1)), DRIVER, SYSTEM, 0,
         "chip", "capability 6.1, and this PyTorch was built for 7.5, 8.0, 9.0", "earlier CUDA"),
        (of(chip(12, 0)), DRIVER, SYSTEM, 0, "chip", "capability 12.0", "a newer PyTorch"),
        (of(CARD, "CUDA out of memory. Tried to allocate 2 MiB"), DRIVER, SYSTEM, 0,
         "compute", "memory is taken", "nvidia-smi"),
        (of(CARD, "CUDA error: all CUDA-capable devices are busy or unavailable"), DRIVER, SYSTEM, 0,
         "compute", "another process", "nvidia-smi -c 0"),
        (of(CARD, "CUDA error: no kernel image is available for execution on the device"), DRIVER, SYSTEM, 0,
         "compute", "no code for it", "compute capability"),
        (of(CARD, "CUDA error: uncorrectable ECC error encountered"), DRIVER, SYSTEM, 0, "compute", "ECC", "Xid"),
    ],
)  # fmt: skip
def test_each_cause_is_named_with_its_remedy(
    torch: TorchFacts, driver: DriverFacts, system: System, index: int, row: str, found: str, remedy: str
) -> None:
    checks = examine(torch, driver, system, index)
    assert [c.name for c in checks] == ["build", "driver", "visible", "gpu", "chip", "mig", "compute"]
    problems = [c for c in checks if c.state == "problem"]
    assert [p.name for p in problems] == [row]
    assert found in problems[0].found
    assert remedy in problems[0].remedy


def test_what_fits_has_no_problem_and_says_so() -> None:
    checks = {c.name: c for c in examine(TORCH, DRIVER, SYSTEM, 0)}
    assert {c.state for c in checks.values()} == {"ok"}
    assert "cuDNN 9.19.0" in checks["build"].found
    assert "driver 580.65.06, for CUDA up to 13.0" in checks["driver"].found
    assert "80.0 GiB, 70.0 GiB free" in checks["gpu"].found
    assert "capability 9.0" in checks["chip"].found
    hiding = {c.name: c for c in examine(TORCH, TWO, System("0", True), 0)}
    assert hiding["visible"].state == "note"
    assert "hides NVIDIA Other (number 1 of the driver)" in hiding["visible"].found
    slice_ = Gpu(0, "NVIDIA Card MIG 1g.5gb", "x", (9, 0), 5 * GIB, 5 * GIB, True)
    sliced = {c.name: c for c in examine(of(slice_), SLICED, SYSTEM, 0)}
    assert sliced["mig"].state == "note"
    assert first_problem(tuple(sliced.values())) is None
    older = {
        c.name: c for c in examine(TorchFacts("2.11", "13.2", gpus=(CARD,), archs=ARCHS, fault=""), DRIVER, SYSTEM, 0)
    }
    assert "minor version compatibility" in older["driver"].found
    assert first_problem(examine(TORCH, DriverFacts(), SYSTEM, 0)) is None


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((8, 6), ("sm_80",), True),
        ((8, 0), ("sm_86",), False),
        ((9, 0), ("sm_80", "compute_80"), True),
        ((9, 0), ("sm_90a",), True),
        ((12, 0), ("sm_90", "sm_100"), False),
        ((7, 0), ("sm_75",), False),
        ((9, 0), ("gfx90a", "gfx1100"), None),
        ((9, 0), (), None),
    ],
)
def test_code_serves_later_chips_of_its_generation(
    capability: tuple[int, int], archs: tuple[str, ...], runs: bool | None
) -> None:
    assert has_code(capability, archs) is runs


def test_cudnn_numbers_read_as_versions() -> None:
    assert [cudnn_version(n) for n in ("91900", "8902", "90100")] == ["9.19.0", "8.9.2", "9.1.0"]


class FakeNvml(types.ModuleType):
    """As much of nvidia-ml-py as is asked."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, init: str = "", mig: int | None = 0, hang_s: float = 0.0) -> None:
        super().__init__("pynvml")
        self._init, self._mig, self._hang_s, self.open = init, mig, hang_s, 0

    def nvmlInit(self) -> None:
        time.sleep(self._hang_s)
        if self._init:
            raise self.NVMLError(self._init)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13010

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        if i == 1:
            raise self.NVMLError("GPU is lost")
        return i

    def nvmlDeviceGetName(self, _: int) -> str:
        return "NVIDIA Card"

    def nvmlDeviceGetUUID(self, _: int) -> str:
        return "GPU-aaaa-1"

    def nvmlDeviceGetCudaComputeCapability(self, _: int) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMemoryInfo(self, _: int) -> Any:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetMigMode(self, _: int) -> list[int]:
        if self._mig is None:
            raise self.NVMLError("Not Supported")
        return [self._mig, self._mig]


@pytest.fixture
def no_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_facts.shutil, "which", lambda _: None)


@pytest.mark.usefixtures("no_smi")
@pytest.mark.parametrize(("mig", "known"), [(0, False), (1, True), (None, None)])
def test_nvidia_ml_py_is_asked_first(monkeypatch: pytest.MonkeyPatch, mig: int | None, known: bool | None) -> None:
    nvml = FakeNvml(mig=mig)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    facts = device_facts.of_driver()
    assert (facts.source, facts.version, facts.cuda, facts.error) == ("nvidia-ml-py", "580.65.06", "13.1", "")
    assert facts.gpus[0] == Gpu(0, "NVIDIA Card", "GPU-aaaa-1", (9, 0), None, None, known)
    assert "can't reach" in facts.gpus[1].name
    assert nvml.open == 0


@pytest.mark.usefixtures("no_smi")
def test_a_driver_that_fails_or_hangs_is_reported_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(init="Driver/library version mismatch"))
    assert device_facts.of_driver() == DriverFacts("nvidia-ml-py", error="Driver/library version mismatch")
    monkeypatch.setattr(device_facts, "_DRIVER_S", 0.2)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(hang_s=3.0))
    start = time.monotonic()
    assert "does not answer" in device_facts.of_driver().error
    assert time.monotonic() - start < 2.0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device_facts.of_driver() == DriverFacts()


def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program of that name, first on the path."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!{sys.executable}\nimport sys, time\nargs = ' '.join(sys.argv[1:])\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pynvml", None)


ROW = "0, NVIDIA Card, GPU-aaaa-1, 535.104.05, 81920, 70000, [N/A]"
HEAD = "| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2 |"


@pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script")
def test_nvidia_smi_is_asked_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, f"print({ROW + ', 8.6'!r} if 'query' in args else {HEAD!r})")
    facts = device_facts.of_driver()
    assert (facts.source, facts.version, facts.cuda) == ("nvidia-smi", "535.104.05", "12.2")
    assert facts.gpus == (Gpu(0, "NVIDIA Card", "GPU-aaaa-1", (8, 6), 81920 << 20, 70000 << 20, None),)
    old = f"""
if 'compute_cap' in args:
    print('Field "compute_cap" is not a valid field to query.'); sys.exit(2)
print({ROW.replace("[N/A]", "Enabled")!r} if 'query' in args else {HEAD!r})"""
    smi(tmp_path, monkeypatch, old)
    (gpu,) = device_facts.of_driver().gpus
    assert (gpu.capability, gpu.mig) == (None, True)


@pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script")
def test_an_nvidia_smi_that_fails_babbles_or_hangs_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, monkeypatch, "print('NVIDIA-SMI has failed because it could not talk to the driver.'); sys.exit(9)")
    assert device_facts.of_driver().error.startswith("NVIDIA-SMI has failed")
    smi(tmp_path, monkeypatch, "print('No devices were found')")
    assert device_facts.of_driver() == DriverFacts("nvidia-smi")
    monkeypatch.setattr(device_facts, "_DRIVER_S", 0.5)
    smi(tmp_path, monkeypatch, "time.sleep(30)")
    start = time.monotonic()
    assert "does not answer" in device_facts.of_driver().error
    assert time.monotonic() - start < 10.0


FAKE_TORCH = """
import json, os, time
facts = json.loads(os.environ["FAKE_TORCH"])
time.sleep(facts.get("hang_s", 0))
if facts.get("crash"):
    raise SystemExit("torch fell over")
__version__ = "9.9"
class version:
    cuda, hip = "13.0", None
class backends:
    class cudnn:
        version = staticmethod(lambda: 91900)
class _Properties:
    total_memory, uuid = 80 << 30, "aaaa-1"
class cuda:
    is_initialized = staticmethod(lambda: False)
    is_available = staticmethod(lambda: not facts.get("error"))
    device_count = staticmethod(lambda: 0 if facts.get("error") else 1)
    get_arch_list = staticmethod(lambda: ["sm_80", "sm_90"])
    get_device_name = staticmethod(lambda i: facts.get("name", "NVIDIA Card"))
    get_device_capability = staticmethod(lambda i: tuple(facts.get("capability", (9, 0))))
    get_device_properties = staticmethod(lambda i: _Properties)
    mem_get_info = staticmethod(lambda i: (70 << 30, 80 << 30))
    @staticmethod
    def init():
        raise RuntimeError(facts["error"])
def ones(n, device):
    if facts.get("fault"):
        raise RuntimeError(facts["fault"])
    return 1.0
"""


class Untouchable:
    """torch.cuda of a process that must not start CUDA."""

    @staticmethod
    def is_initialized() -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"torch.cuda.{name} was used in this process")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`machine(**facts)`: from now on child processes have such a torch, and this process one without usable CUDA."""
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here = types.ModuleType("torch")
    here.__version__ = "9.9"  # type: ignore[attr-defined]
    here.version = types.SimpleNamespace(cuda="13.0", hip=None)  # type: ignore[attr-defined]
    here.cuda = Untouchable()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", here)
    monkeypatch.setattr(device_facts, "of_driver", lambda: DRIVER)

    def pose(**facts: Any) -> None:
        monkeypatch.setenv("FAKE_TORCH", json.dumps(facts))

    return pose


def test_a_device_is_examined_without_starting_cuda_here(machine: Any) -> None:
    machine()
    for asked in (0, "cuda", "cuda:0", "auto", None):
        report = init_device(asked)
        assert (report.device, report.fits, report.problems) == ("cuda:0", True, ())
        assert (report.name, report.index, report.capability, report.has_code) == ("NVIDIA Card", 0, "9.0", True)
        assert (report.torch_version, report.cuda_build, report.cudnn_version) == ("9.9", "13.0", "9.19.0")
        assert (report.driver_version, report.cuda_driver, report.driver_source) == ("580.65.06", "13.0", "nvidia-smi")
        assert (report.memory_total, report.memory_free, report.mig) == (80 * GIB, 70 * GIB, False)
    json.dumps(report.to_dict())
    with pytest.raises(AttributeError):
        report.name = "other"  # type: ignore[misc]


def test_what_does_not_fit_is_in_the_report(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(error="No CUDA GPUs are available")
    monkeypatch.setattr(device_facts, "of_system", lambda: System("3", True))
    asked, auto = init_device(0), init_device("auto")
    assert (asked.device, asked.fits, auto.device, auto.fits) == ("cpu", False, "cpu", True)
    assert asked.problems == auto.problems
    assert "CUDA_VISIBLE_DEVICES='3'" in asked.problems[0].found
    assert asked.visible == "3"
    machine(capability=(5, 2), fault="no kernel image")
    report = init_device(0)
    assert (report.name, report.device, report.has_code) == ("NVIDIA Card", "cpu", False)
    assert [p.name for p in report.problems] == ["chip", "compute"]
    machine(name="NVIDIA Card MIG 1g.10gb")
    assert init_device(0).mig is True
    assert init_device(5).problems[0].name == "gpu"


def test_a_torch_that_hangs_or_crashes_is_a_problem_and_no_more(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(crash=True)
    assert "status 1 (torch fell over)" in init_device(0).problems[0].found
    monkeypatch.setattr(device_facts, "_PROBE_S", 1.0)
    machine(hang_s=60)
    start = time.monotonic()
    assert "did not start within 1 s" in init_device(0).problems[0].found
    assert time.monotonic() - start < 20.0


def test_a_name_that_means_nothing_is_refused() -> None:
    for wrong in ("gpu", "cuda:x", "", -1, True):
        with pytest.raises(ConfigError, match="allowed: auto, cpu, cuda"):
            init_device(wrong)


def test_the_cpu_has_a_report_too() -> None:
    report = init_device("cpu")
    assert (report.device, report.fits, report.checks, report.index) == ("cpu", True, (), None)
    assert report.name
    assert report.memory_total is not None and report.memory_total > GIB


@pytest.mark.skipif(real_torch.cuda.is_available(), reason="has a GPU")
def test_here_the_real_child_finds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no stand-ins: the child starts, torch says what is wrong, and this process stays free of CUDA."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    report = init_device("cuda")
    assert not report.fits
    assert len(report.problems) == 1
    assert not real_torch.cuda.is_initialized()


@pytest.mark.gpu
@pytest.mark.skipif(not real_torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_gpu_fits() -> None:
    report = init_device(0)
    assert (report.fits, report.problems, report.has_code) == (True, (), True)
    assert report.name == real_torch.cuda.get_device_name(0)


def test_choose_names_the_cause_and_only_a_direct_wish_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_only = types.SimpleNamespace(__version__="9.9", version=types.SimpleNamespace(cuda=None, hip=None))
    monkeypatch.setitem(sys.modules, "torch", cpu_only)
    with pytest.raises(DeviceError, match="CPU-only build; install one built for CUDA. Use --device cpu"):
        device.choose("cuda")
    assert device.choose("auto").reason == "no usable GPU: this PyTorch (9.9) is a CPU-only build"
    assert str(device._cause(0)) == "this PyTorch (9.9) is a CPU-only build; install one built for CUDA"


def test_the_system_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/version").write_text("Linux version 6.8 (gcc)")
    assert device_facts.of_system(tmp_path) == System("1", True)
    (tmp_path / "proc/version").write_text("Linux version 5.15.90.1-microsoft-standard-WSL2")
    (tmp_path / ".dockerenv").touch()
    assert device_facts.of_system(tmp_path) == System("1", None, wsl=True, container=True)


def test_the_doctor_prints_the_matrix(
    machine: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call = ["doctor", "--engine", "tone", "--cache", str(tmp_path), "--device"]
    monkeypatch.setattr("cosyvoice_app.engines.device.choose", lambda *_: device.Device("cuda:0", "NVIDIA Card, found"))
    machine()
    assert main([*call, "cuda"]) == 0
    said = capsys.readouterr().out
    assert "gpu      driver   ok       NVIDIA driver 580.65.06, for CUDA up to 13.0" in said
    assert main([*call, "cuda", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu"]["capability"] == "9.0"
    # What the choice doesn't try, the examination does.
    machine(fault="CUDA error: all CUDA-capable devices are busy or unavailable")
    assert main([*call, "cuda"]) == 1
    said = capsys.readouterr().out
    assert "gpu      compute  problem  another process has it for itself" in said
    assert "remedy: end that" in said
    assert main([*call, "cpu"]) in (0, 1)
    assert "the CPU was asked for" in capsys.readouterr().out


def test_the_doctor_survives_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = doctor.examine(Settings(engine="tone"))
    assert report["gpu"] == {"error": "torch is not installed"}
    assert not report["ok"]


def test_the_doctor_starts_no_cuda_here_that_hung_elsewhere(
    machine: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_facts, "_PROBE_S", 1.0)
    machine(hang_s=60)  # and this process's torch raises at the first touch
    call = ["doctor", "--engine", "tone", "--cache", str(tmp_path), "--device"]
    start = time.monotonic()
    assert main([*call, "auto"]) == 0
    assert "no usable GPU: CUDA did not start within 1 s" in capsys.readouterr().out
    assert main([*call, "cuda"]) == 1
    assert "can't be used: CUDA did not start" in capsys.readouterr().out
    assert time.monotonic() - start < 20.0


def test_a_gpu_that_is_counted_and_does_not_start_is_a_reason_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> str:
        raise RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment\nmore")

    cuda = types.SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 1, get_arch_list=list, get_device_name=fails,
        is_initialized=lambda: False,
    )  # fmt: skip
    posing = types.SimpleNamespace(__version__="9.9", version=types.SimpleNamespace(cuda="13.0", hip=None), cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", posing)
    monkeypatch.setattr(device_facts, "of_system", lambda: System(None, True))
    assert "unknown error" in device_facts.look(posing, None).error
    chosen = device.choose("auto")
    assert chosen.name == "cpu" and "no usable GPU" in chosen.reason
    with pytest.raises(DeviceError):
        device.choose("cuda")


def test_a_probe_that_talks_nonsense_is_a_problem_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_facts, "run_bounded", lambda *_: (0, "warning\nnot json", ""))
    answer, error = device_facts._probe(0)
    assert answer is None and "not json" in error


def test_a_command_is_left_alone_after_its_time() -> None:
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        device_facts.run_bounded([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert time.monotonic() - start < 10
    assert device_facts.run_bounded([sys.executable, "-c", "print('é')"], 20)[:2] == (0, "é\n")
