"""`bench features`: MFCC of many clips by librosa, torchaudio and this app, side by side in one run.

Settings are equal (80 coefficients, 128 Slaney mels, 25/10 ms in 512 points, 10 log10, top_db 80), and so are the
results, which is checked first. Contenders take turns, so that a busy machine slows all of them alike. On a GPU our
times include the copies there and back, from pinned memory.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from cosyvoice_app.console import print_json
from cosyvoice_app.errors import BadInput

NAME = "features"
HELP = "time MFCC features by librosa, torchaudio and this app, and compare the results"

RATE_HZ, COEFFICIENTS, MELS, N_FFT, WINDOW, HOP, TOP_DB = 16_000, 80, 128, 512, 400, 160, 80.0
BATCHES = (1, 8, 32, 128)
TOLERANCE = 2e-3
"""Largest deviation of a coefficient, which are of the order of 100, between contenders in float32."""

Clips = npt.NDArray[np.float32]
Contender = Callable[[Clips], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a clip [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=15, help="turns each contender takes [default: %(default)s]")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="clips at once [default: %(default)s]")
    parser.add_argument("--device", default="cpu", help="where ours computes: cpu, cuda or cuda:N [default: cpu]")


def run(options: argparse.Namespace) -> int:
    batches = _batches(options.batches)
    if not 0.05 <= options.seconds <= 600 or not 1 <= options.rounds <= 1000:
        raise BadInput("--seconds must be 0.05 to 600 and --rounds 1 to 1000.", param="seconds")
    clips = make_clips(max(batches), options.seconds)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        contenders = _contenders(options.device, stack)
        deviation = _deviations(contenders, clips[:2])
        print(f"{options.seconds:g} s clips at {RATE_HZ} Hz, {os.cpu_count()} CPUs, ours on {options.device}")
        print(f"{'batch':>6} {'contender':<22} {'ms a clip':>10} {'clips/s':>9} {'x librosa':>10} {'x its best':>11}")
        for batch in batches:
            taken = _take_turns(contenders, clips[:batch], options.rounds)
            rows += _rows(batch, taken)
    memory = {name: _peak_mb(name, clips[: max(batches)]) for name in contenders if "processes" not in name}
    print(f"peak memory of {max(batches)} clips, MiB: " + ", ".join(f"{n} {mb:.0f}" for n, mb in memory.items()))
    print_json(
        {"bench": NAME, "seconds": options.seconds, "rounds": options.rounds, "device": options.device,
         "cpus": os.cpu_count(), "versions": {n: _version(n) for n in ("torch", "torchaudio", "librosa", "numpy")},
         "rows": rows, "largest_deviation": deviation, "peak_mb": memory, **_bandwidth(options.device, rows, clips)},
        indent=None,
    )  # fmt: skip
    return 0


def make_clips(count: int, seconds: float) -> Clips:
    """Noise shaped like speech: bursts of falling spectrum, with pauses. Seeded, so every run has the same."""
    rng = np.random.default_rng(4)
    samples = round(seconds * RATE_HZ)
    white = rng.standard_normal((count, samples)).astype(np.float32)
    coloured = np.cumsum(white - white.mean(1, keepdims=True), axis=1)
    coloured -= np.linspace(0, 1, samples, dtype=np.float32) * coloured[:, -1:]
    bursts = np.clip(np.sin(2 * np.pi * 3.1 * np.arange(samples) / RATE_HZ) + 0.4, 0, 1)
    clips: Clips = (0.02 * white + 0.3 * coloured / np.abs(coloured).max(1, keepdims=True)) * bursts
    return clips.astype(np.float32)


def librosa_mfcc(clips: Clips) -> list[npt.NDArray[np.float32]]:
    """One clip after another, as librosa is used; [frames, coefficients] each."""
    librosa = import_module("librosa")
    return [
        librosa.feature.mfcc(y=clip, sr=RATE_HZ, n_mfcc=COEFFICIENTS, n_mels=MELS, n_fft=N_FFT, win_length=WINDOW,
                             hop_length=HOP).T
        for clip in clips
    ]  # fmt: skip


def _contenders(device: str, stack: ExitStack) -> dict[str, Contender]:
    found: dict[str, Contender] = {}
    if find_spec("librosa") is None:
        print("librosa is not installed and is left out: pip install librosa")
    else:
        processes = os.cpu_count() or 1
        found["librosa"] = librosa_mfcc
        found[f"librosa, {processes} processes"] = stack.enter_context(_in_processes(processes))
    found["torchaudio"] = _torchaudio()
    found["ours"] = _ours(device)
    return found


@contextmanager
def _in_processes(count: int) -> Iterator[Contender]:
    """librosa in a pool, one thread each. Only the number of frames comes back, so that it pays for no copy of results;
    clips go as slices of what every process holds already."""
    context = multiprocessing.get_context("spawn")
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    before = {name: os.environ.get(name) for name in one_thread}
    os.environ.update(one_thread)
    with ProcessPoolExecutor(count, context) as pool:
        try:
            list(pool.map(_prepare, [RATE_HZ] * count))  # started and imported under those variables
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

        def map_over(clips: Clips) -> list[int]:
            seconds = clips.shape[1] / RATE_HZ
            parts = [part for part in np.array_split(np.arange(len(clips)), count) if len(part)]
            return list(pool.map(_part, [(int(p[0]), int(p[-1]) + 1, seconds) for p in parts]))

        yield map_over


_HELD: dict[float, Clips] = {}


def _prepare(samples: int) -> int:
    return len(librosa_mfcc(np.zeros((1, samples), np.float32)))


def _part(job: tuple[int, int, float]) -> int:
    start, end, seconds = job
    if seconds not in _HELD:
        _HELD[seconds] = make_clips(max(BATCHES), seconds)
    return sum(len(frames) for frames in librosa_mfcc(_HELD[seconds][start:end]))


def _torchaudio() -> Contender:
    import torch
    import torchaudio

    mel = {"n_fft": N_FFT, "win_length": WINDOW, "hop_length": HOP, "n_mels": MELS, "mel_scale": "slaney",
           "norm": "slaney", "center": True, "pad_mode": "constant", "power": 2.0}  # fmt: skip
    transform = torchaudio.transforms.MFCC(RATE_HZ, COEFFICIENTS, 2, "ortho", False, mel)

    def compute(clips: Clips) -> Any:
        with torch.inference_mode():
            # One channel each: without, torchaudio's top_db is of the loudest clip of the batch.
            return transform(torch.from_numpy(clips)[:, None])[:, 0].transpose(1, 2)

    return compute


def _ours(device: str) -> Contender:
    import torch

    from cosyvoice_app.audio.features import extractor_for
    from cosyvoice_app.engines.device import choose

    where = torch.device(choose(device).name)
    extractor = extractor_for("mfcc", RATE_HZ, coefficients=COEFFICIENTS, mels=MELS, top_db=TOP_DB)

    def compute(clips: Clips) -> Any:
        with torch.inference_mode():
            return extractor(torch.from_numpy(clips)).values

    def on_gpu(clips: Clips) -> Any:
        with torch.inference_mode():
            host = pinned[: len(clips), : clips.shape[1]]
            host.copy_(torch.from_numpy(clips))
            made = extractor(host.to(where, non_blocking=True), check=False).values
            back = results[: len(clips), : made.shape[1]]
            back.copy_(made, non_blocking=True)
            torch.cuda.current_stream(where).synchronize()
            return back

    if where.type != "cuda":
        return compute
    most, samples = max(BATCHES), 600 * RATE_HZ // max(BATCHES)
    pinned = torch.empty(most, samples, pin_memory=True)
    results = torch.empty(most, extractor.frames(samples), COEFFICIENTS, pin_memory=True)
    return on_gpu


def _deviations(contenders: dict[str, Contender], clips: Clips) -> dict[str, float]:
    """Largest difference from the first contender that gives values. Raises BadInput when results aren't the same."""
    values = {n: np.stack([np.asarray(one) for one in c(clips)]) for n, c in contenders.items() if "processes" not in n}
    first, *others = values
    apart = {name: float(np.abs(values[name] - values[first]).max()) for name in others}
    wrong = {name: gap for name, gap in apart.items() if not gap < TOLERANCE}
    if wrong:
        raise BadInput(f"The contenders do not compute the same: {wrong} apart from {first}; nothing was timed.")
    return {name: round(gap, 6) for name, gap in apart.items()}


def _take_turns(contenders: dict[str, Contender], clips: Clips, rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, compute in contenders.items():
            started = time.perf_counter()
            compute(clips)
            if turn:  # the first warms up
                taken[name].append(time.perf_counter() - started)
    return taken


def _rows(batch: int, taken: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Ratios are medians of pairs: each turn's contenders against each other."""
    single = taken.get("librosa")
    best = [min(turn) for turn in zip(*(t for n, t in taken.items() if n.startswith("librosa")), strict=True)] or None
    rows = []
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        row: dict[str, Any] = {"batch": batch, "contender": name, "ms_a_clip": round(1000 * median / batch, 4),
                               "clips_per_s": round(batch / median, 1)}  # fmt: skip
        for key, base in (("x_librosa", single), ("x_best_librosa", best)):
            row[key] = round(statistics.median(b / s for b, s in zip(base, seconds, strict=True)), 2) if base else None
        rows.append(row)
        ratios = f"{row['x_librosa'] or '-':>10} {row['x_best_librosa'] or '-':>11}"
        print(f"{batch:>6} {name:<22} {row['ms_a_clip']:>10.3f} {row['clips_per_s']:>9.0f} {ratios}", flush=True)
    return rows


def _peak_mb(name: str, clips: Clips) -> float:
    """Most memory that one batch takes, in a fresh process, above what libraries, input and tables take."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_peak, name, clips).result()


def _peak(name: str, clips: Clips) -> float:
    compute = librosa_mfcc if name == "librosa" else _torchaudio() if name == "torchaudio" else _ours("cpu")
    compute(clips[:1])
    process, done, seen = psutil.Process(), threading.Event(), [0]

    def watch() -> None:
        while not done.is_set():
            seen[0] = max(seen[0], process.memory_info().rss)
            time.sleep(0.0005)

    before = process.memory_info().rss
    watcher = threading.Thread(target=watch)
    watcher.start()
    kept = compute(clips)  # held until looked at, so that the results count
    done.set()
    watcher.join()
    del kept
    return round((seen[0] - before) / 2**20, 1)


def _bandwidth(device: str, rows: list[dict[str, Any]], clips: Clips) -> dict[str, Any]:
    """On a GPU: bytes that must move between the host and it, over the time taken, against a plain copy's rate."""
    if device == "cpu":
        return {}
    import torch

    host = torch.empty(64 * 2**20, dtype=torch.uint8, pin_memory=True)
    there = host.to(device)
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    for _ in range(10):
        there.copy_(host, non_blocking=True)
    torch.cuda.synchronize(device)
    copy_rate = 10 * host.numel() / (time.perf_counter() - started)
    bytes_a_clip = 4 * clips.shape[1] + 4 * COEFFICIENTS * (1 + clips.shape[1] // HOP)
    best = max(row["clips_per_s"] for row in rows if row["contender"] == "ours")
    return {"copy_gb_per_s": round(copy_rate / 1e9, 2), "share_of_copy_rate": round(best * bytes_a_clip / copy_rate, 3)}


def _batches(listed: str) -> tuple[int, ...]:
    try:
        batches = tuple(int(part) for part in listed.split(","))
    except ValueError:
        raise BadInput(
            f"--batches is {listed!r}; write numbers with commas, such as 1,8,32.", param="batches"
        ) from None
    if not batches or not all(1 <= batch <= max(BATCHES) for batch in batches):
        raise BadInput(f"--batches is {listed!r}; each must be 1 to {max(BATCHES)}.", param="batches")
    return batches


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
