"""`features`: folders of audio to folders of feature files, at the speed of the disk. Can be stopped and gone on with.

A thread feeds the pipeline; this one writes what comes out. Clips that fail are written down and the rest go on.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cosyvoice_app.cli import feature_lock
from cosyvoice_app.cli.feature_choices import BUILT_IN, NORMALISATIONS, Choices, Chosen
from cosyvoice_app.cli.feature_feed import Done, Pipelines, results
from cosyvoice_app.cli.feature_files import FORMATS, SUFFIXES, FeatureManifest, Item, find_clips, packed, write_whole
from cosyvoice_app.console import ProgressLine, print_json
from cosyvoice_app.engines import device as devices
from cosyvoice_app.errors import AppError

if TYPE_CHECKING:
    from cosyvoice_app.audio.clip_features import ClipFeatures
    from cosyvoice_app.audio.feature_pipeline import FeaturePipeline

NAME = "features"
HELP = "compute features of audio files and folders: MFCC, filterbanks, log-mel spectrograms"

KINDS = ("mfcc", "fbank", "logmel", "whisper-mel", "mel24k")
"""Those of audio.features, written out because that imports torch, which `--help` shouldn't wait for."""

_FAILURES_SHOWN = 20
_DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        type=Path,
        nargs="+",
        metavar="IN",
        help=f"files, and folders that are searched through for {' '.join(SUFFIXES)}; what a file "
        "holds is judged by its content",
    )
    parser.add_argument("--kind", choices=KINDS, required=True, help="what to compute")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="gets a file a clip, in the folders of its input, and manifest.jsonl; clips that are "
        "finished there already are passed over",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="npy",
        help='float32 [frames, bins]; safetensors calls it "features" [default: npy]',
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N [default: auto]")
    parser.add_argument(
        "--rate",
        type=_at_least_one,
        metavar="HZ",
        help="rate that clips are brought to first [default: 16000, or the kind's own]",
    )
    parser.add_argument(
        "--batch", type=_at_least_one, default=32, metavar="N", help="most clips computed at once [default: 32]"
    )
    parser.add_argument(
        "--workers",
        type=_at_least_one,
        default=min(4, os.cpu_count() or 1),
        metavar="N",
        help="threads that decode [default: %(default)s]",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="changes",
        help="change a setting of the kind, such as bins=40; can be repeated; an unknown name lists what there is",
    )
    parser.add_argument(
        "--normalise",
        choices=NORMALISATIONS,
        help="mean and variance of each clip's bins: over the clip, or over what came before a frame, fading or in a "
        "window [default: none, or what the set says]",
    )
    parser.add_argument(
        "--sets",
        metavar=f"{BUILT_IN}|FILE",
        help="choose settings and normalisation for each clip by its sample rate and SNR: from the app's own table, or "
        "from a file that goes before it; --set and --normalise are obeyed all the same",
    )
    parser.add_argument("--language", help='with --sets: the language of all clips, such as "zh"')
    parser.add_argument("--dialect", help='with --sets: the dialect of all clips, such as "yue"')
    parser.add_argument(
        "--max-seconds",
        type=_at_least_one,
        default=3600,
        metavar="S",
        help="longer clips are refused [default: %(default)s]",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """0 when every clip has its file, 1 when any failed."""
    device = devices.choose(options.device)
    choices = Choices(options)
    found = find_clips(options.inputs, options.out)
    with feature_lock.held(options.out):
        manifest = FeatureManifest(options.out, choices.fingerprint(options.format), options.kind, options.format)
        items = manifest.named(found)
        todo = [item for item in items if not manifest.is_finished(item)]
        if len(todo) < len(items) and not options.json:
            print(f"{len(items) - len(todo)} of {len(items)} clips are finished already", file=sys.stderr)
        work = _Work(options, choices, manifest, len(todo))
        try:
            if todo:
                work.run(todo, device.name)
        finally:
            manifest.finish(items)
    return _report(options, work, manifest, len(items), device)


def _report(options: argparse.Namespace, work: _Work, manifest: FeatureManifest, clips: int,
            device: devices.Device) -> int:  # fmt: skip
    if options.json:
        print_json({
            "kind": options.kind, "clips": clips, "done": work.done, "skipped": clips - work.done - work.failed,
            "failed": work.failed, "audio_s": round(work.audio_s, 3), "seconds": round(work.seconds, 3),
            "clips_per_s": round(work.clips_per_s, 1), "device": device.name, "device_reason": device.reason,
            "manifest": str(manifest.path),
        })  # fmt: skip
    else:
        speed = f", {work.clips_per_s:.0f} clips/s on {device.name}" if work.done else ""
        print(f"{clips - work.failed} of {clips} clips done, {work.failed} failed{speed}; see {manifest.path}")
    return 1 if work.failed else 0


class _Work:
    """One run over the clips that are left to do, with its counts."""

    def __init__(self, options: argparse.Namespace, choices: Choices, manifest: FeatureManifest, total: int) -> None:
        self._options, self._choices, self._manifest, self._total = options, choices, manifest, total
        self._line = ProgressLine()
        self._started = time.monotonic()
        self._shown = 0.0
        self.done = self.failed = 0
        self.audio_s = self.seconds = 0.0

    @property
    def clips_per_s(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0

    def run(self, todo: Sequence[Item], device: str) -> None:
        from cosyvoice_app.audio.feature_pipeline import FeaturePipeline

        options = self._options
        self._started = time.monotonic()
        cores = _cores_left_free(options.workers) if device == "cpu" else contextlib.nullcontext()

        def make(chosen: Chosen) -> FeaturePipeline:
            return FeaturePipeline(chosen.computing(), device, decoders=options.workers, max_batch=options.batch,
                                   queue=2 * options.batch, max_seconds=float(options.max_seconds))  # fmt: skip

        pipelines = Pipelines(self._choices, make, float(options.max_seconds))
        # To choose is to decode and measure; else to submit is next to nothing.
        feeders = options.workers if self._choices.needs_clip else 1
        coming = results(pipelines, todo, feeders=feeders, most_ahead=9 * options.batch)
        try:
            with cores, contextlib.closing(coming):
                for done in coming:
                    self._take(done)
        finally:
            self._line.clear()
            self.seconds = time.monotonic() - self._started

    def _take(self, done: Done) -> None:
        item, error = done.item, done.future.exception()
        if error is None:
            assert done.chosen is not None
            result = done.future.result()
            error = self._write(item, done.chosen, result)
        if error is None:
            self.done += 1
            self.audio_s += result.seconds
        else:
            said = error.message if isinstance(error, AppError) else f"{type(error).__name__}: {error}"
            self._manifest.add(item, {"error": said})
            self.failed += 1
            if self.failed <= _FAILURES_SHOWN:
                self._line.clear()
                print(f"{item.source}: {said}", file=sys.stderr)
            if self.failed == _FAILURES_SHOWN:
                print("more failures are in the manifest only", file=sys.stderr)
        self._show()

    def _write(self, item: Item, chosen: Chosen, result: ClipFeatures) -> OSError | None:
        """The file and its line. An error that other files won't have is returned; a full disk ends the run."""
        metadata = {"kind": chosen.extractor.kind, "rate_hz": str(result.rate_hz),
                    "shift_samples": str(chosen.extractor.shift_samples)}  # fmt: skip
        if chosen.norm_kind != "none":
            metadata["normalisation"] = chosen.norm_kind
        data = packed(result.values, self._options.format, metadata)
        path = self._options.out / item.output
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)
        except OSError as error:
            if error.errno in _DISK_TROUBLE:
                raise AppError(f"{path} can't be written: {error.strerror}. The same command goes on from here when "
                               "there is room.") from error  # fmt: skip
            return error
        self._manifest.add(item, {"frames": result.frames, "bins": result.values.shape[1], "rate_hz": result.rate_hz,
                                  "duration_s": round(result.seconds, 6), "bytes": sum(map(len, data)),
                                  **chosen.facts})  # fmt: skip
        return None

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown < 0.1:
            return
        self._shown = now
        count = self.done + self.failed
        per_s = count / max(1e-9, now - self._started)
        left_s = (self._total - count) / per_s
        self._line.show(f"{count}/{self._total} clips, {per_s:.0f}/s, {left_s:.0f} s left, {self.failed} failed")


@contextlib.contextmanager
def _cores_left_free(decoders: int) -> Iterator[None]:
    """Give torch the cores that decoding leaves, at least one: its threads spin while they wait for each other, and on
    a core that is taken they would hold up both.
    """
    import torch

    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, min(before, cores - decoders)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value
