"""`bench load`: many clients at once against a running server, every answer checked by its content.

The clients are locust's (`tests/load/locustfile.py`): each sends its next request as soon as it has its answer. What is
counted as done per second ended inside the measured time; requests still under way at its end are waited for and
checked too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil

from cosyvoice_app.bench.caller import forget, prepare
from cosyvoice_app.bench.own_server import ROOT, own_server
from cosyvoice_app.bench.traffic import Traffic, percentiles
from cosyvoice_app.console import print_json
from cosyvoice_app.errors import BadInput, ConfigError, EngineFailure

NAME = "load"
HELP = "many clients at once: throughput, latencies, errors and mix-ups"

CLIENTS = (1, 8, 32, 100)
LOCUSTFILE = ROOT / "tests" / "load" / "locustfile.py"
_FAULTS = ("told", "broken off", "wrong", "not told")
_GRACE_S = 900
"""How long the requests under way at the end may take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", default="tone", help="start a server with this engine [default: %(default)s]")
    parser.add_argument("--url", help="load this running server instead")
    parser.add_argument("--api-key", default="", help="its API key")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)),
                        help="how many at once [default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured time of each [default: %(default)s]")
    parser.add_argument("--pool", type=int, default=24, help="different requests [default: %(default)s]")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="options for the started server, in one string")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table here, as Markdown")


def run(options: argparse.Namespace) -> int:
    levels = [int(part) for part in options.clients.split(",") if part.strip().isdigit()]
    if not levels or not 1 <= options.pool <= 1000 or not 1.0 <= options.seconds <= 86_400:
        raise BadInput("--clients takes numbers such as 1,8,32; --pool 1 to 1000; --seconds 1 to 86400.",
                       param="clients")
    check_locust()
    with ExitStack() as stack:
        url = options.url or stack.enter_context(own_server(options.engine, *options.serve.split())).url
        health = httpx.get(f"{url}/health", timeout=60.0, trust_env=False).json()
        engine = str(health["engine"])
        print(f"{engine} on {health['device']}: {options.pool} requests one after another first", flush=True)
        traffic = prepare(url, pool=options.pool, tone=engine == "tone", api_key=options.api_key)
        stack.callback(forget, traffic)
        rows = []
        for clients in levels:
            rows.append(measure(traffic, clients, options.seconds))
            print(table(rows).splitlines()[-1], flush=True)
    text = table(rows)
    print(f"\n{text}")
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print_json({"bench": NAME, "engine": engine, "device": health["device"], "version": health["version"],
                "machine": machine(), "seconds": options.seconds, "rows": rows}, indent=None)
    return int(any(row["errors"] or row["someone_elses"] for row in rows))


def check_locust() -> None:
    """Raises ConfigError where locust or its file is missing."""
    if find_spec("locust") is None:
        raise ConfigError("locust is not installed. Run: pip install -r requirements-dev.txt")
    if not LOCUSTFILE.exists():
        raise ConfigError(f"There is no {LOCUSTFILE}; run this from a checkout of the project.")


def machine() -> dict[str, Any]:
    """What the figures were made on, and how busy it was besides (load of the last minute, when the bench ended)."""
    return {"cpus": psutil.cpu_count(), "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(), "load_1min": round(psutil.getloadavg()[0], 2)}


def measure(traffic: Traffic, clients: int, seconds: float) -> dict[str, Any]:
    """One row: `clients` users for `seconds`."""
    with tempfile.TemporaryDirectory(prefix="cosyvoice-load-") as folder:
        given, lines = Path(folder, "traffic.json"), Path(folder, "lines.jsonl")
        given.write_text(json.dumps(traffic.to_dict()), encoding="utf-8")
        environ = {**os.environ, "LOAD_TRAFFIC": str(given), "LOAD_LINES": str(lines),
                   "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--users", str(clients),
                   "--spawn-rate", str(clients), "--run-time", f"{seconds:.0f}s", "--stop-timeout", str(_GRACE_S),
                   "--host", traffic.url, "--only-summary", "--exit-code-on-error", "0", "--loglevel", "WARNING"]
        done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True,
                              timeout=seconds + _GRACE_S + 60.0)
        told = lines.read_text(encoding="utf-8") if lines.exists() else ""
    answers = [json.loads(line) for line in told.splitlines()]
    if done.returncode or not answers:
        raise EngineFailure(f"locust ended with {done.returncode} and {len(answers)} answers:\n{done.stderr[-3000:]}")
    return summarise(answers, clients, seconds)


def summarise(answers: Sequence[dict[str, Any]], clients: int, seconds: float) -> dict[str, Any]:
    """Counts and latencies of the answers' lines, as the locustfile writes them."""
    began = min(answer["began"] for answer in answers)
    right = [answer for answer in answers if answer["verdict"] == "right"]
    inside = [answer for answer in right if answer["began"] + answer["done_s"] <= began + seconds]
    verdicts = Counter(answer["verdict"] for answer in answers)
    files = Counter(answer["output"] for answer in right if answer["output"])
    shared = sum(count - 1 for count in files.values())
    faults = [answer for answer in answers if answer["verdict"] not in ("right", "refused")]
    return {
        "clients": clients, "requests": len(answers), "right": len(right), "per_s": round(len(inside) / seconds, 2),
        "first_audio_s": percentiles([answer["first_s"] for answer in right if answer["streamed"]]),
        "done_s": percentiles([answer["done_s"] for answer in right]),
        "errors": sum(verdicts[fault] for fault in _FAULTS), "someone_elses": verdicts["someone else's"] + shared,
        "refused": verdicts["refused"],
        "examples": [{key: answer[key] for key in ("ask", "status", "verdict", "why")} for answer in faults[:5]],
        "ended_at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown. First audio is of the streamed requests (half of them), done of all."""
    lines = ["| clients | requests | done per s | first audio p50 / p95 / p99, s | done p50 / p95 / p99, s | errors "
             "| someone else's | refused (429) |", "|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        first, done = (" / ".join("-" if value is None else f"{value:.2f}" for value in row[name].values())
                       for name in ("first_audio_s", "done_s"))
        cells = (row["clients"], row["requests"], f"{row['per_s']:.2f}", first, done, row["errors"],
                 row["someone_elses"], row["refused"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
