"""`bench slope`: does anything grow from request to request? Memory, open files, threads and temporary files of both
processes, sampled over many requests; a line laid through the memory by least squares after a warm-up.

The bar: less than 1 MiB a request and 100 MB in all, open files and threads back where they were within two, nothing
left in the temporary folder.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from typing import Any

import numpy as np
import psutil

from cosyvoice_app.bench.caller import Caller, prepare
from cosyvoice_app.bench.load import machine
from cosyvoice_app.bench.own_server import OwnServer, own_server
from cosyvoice_app.bench.own_server import add_arguments as add_server_arguments
from cosyvoice_app.bench.traffic import Traffic, Verdict, judge
from cosyvoice_app.console import print_json
from cosyvoice_app.errors import BadInput, EngineFailure

NAME = "slope"
HELP = "many requests, and whether memory, files or threads grow with them"

SLOPE_MOST_BYTES, RISE_MOST_BYTES, COUNT_SLACK = 1 << 20, 100_000_000, 2
CALM_S = 20.0
"""How long idle threads and closed connections may take to go."""

Footprint = dict[str, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--requests", type=int, default=1000, help="how many [default: %(default)s]")
    parser.add_argument("--clients", type=int, default=4, help="asking at once [default: %(default)s]")
    parser.add_argument("--warm-up", type=int, default=0, help="requests before the first sample counts "
                        "[default: a tenth]")
    parser.add_argument("--pool", type=int, default=24, help="different requests [default: %(default)s]")


def run(options: argparse.Namespace) -> int:
    if options.requests < 20 or options.clients < 1 or not 1 <= options.pool <= 1000:
        raise BadInput("--requests takes 20 or more, --clients 1 or more, --pool 1 to 1000.", param="requests")
    with own_server(options.engine, *options.serve.split()) as server:
        traffic = prepare(server.url, pool=options.pool, tone=server.health()["engine"] == "tone")
        found = measure(server, traffic, requests=options.requests, clients=options.clients,
                        warm_up=options.warm_up or options.requests // 10)
    for name in ("start", "end"):
        print(f"{name:>6}  " + "  ".join(f"{key} {shown(key, value)}" for key, value in found[name].items()))
    for key, value in found["slope_bytes"].items():
        print(f"{key}: {value / 1024:+.1f} KiB a request, {found['rise_bytes'][key] / 1e6:+.1f} MB in all")
    for fault in found["faults"]:
        print(f"FAULT: {fault}")
    print_json({"bench": NAME, "engine": options.engine, "machine": machine(), **found}, indent=None)
    return int(bool(found["faults"]))


def shown(key: str, value: int) -> str:
    return f"{value / 1e6:.0f} MB" if key.endswith("rss") else str(value)


def footprint(server: OwnServer) -> Footprint:
    """Resident memory in bytes, open files and threads of the web process and its worker, temporary files."""
    found: Footprint = {}
    for name, process in (("web", server.web), ("worker", _worker(server))):
        with process.oneshot():
            found |= {f"{name}_rss": process.memory_info().rss, f"{name}_files": process.num_fds(),
                      f"{name}_threads": process.num_threads()}
    return found | {"temporary_files": sum(path.is_file() for path in server.temporary.rglob("*"))}


def _worker(server: OwnServer) -> psutil.Process:
    pids = server.workers()
    if len(pids) != 1:
        raise EngineFailure(f"The server has {len(pids)} engine processes instead of one: {pids}.")
    return psutil.Process(pids[0])


def counts_back(start: Footprint, server: OwnServer, *, calm_s: float = CALM_S) -> tuple[Footprint, list[str]]:
    """The footprint once files and threads are back at `start`'s, or after `calm_s`; and what is not back."""
    end = time.monotonic() + calm_s
    while True:
        now = footprint(server)
        off = [f"{key}: {now[key]} instead of {start[key]}" for key in start
               if not key.endswith("rss") and now[key] > start[key] + (COUNT_SLACK if key != "temporary_files" else 0)]
        if not off or time.monotonic() > end:
            return now, off
        server.let_idle_threads_go()
        time.sleep(0.5)


def measure(server: OwnServer, traffic: Traffic, *, requests: int, clients: int, warm_up: int) -> dict[str, Any]:
    """`requests` requests by `clients` clients, a sample after every hundredth part of them."""
    every = max(1, requests // 100)
    verdicts: Counter[Verdict] = Counter()
    samples: list[tuple[int, Footprint]] = []
    lock, numbers, known = threading.Lock(), count(1), traffic.known()
    ask_all(traffic, range(warm_up), clients)
    start = footprint(server)

    def work(number: int) -> None:
        dice = random.Random(number)
        with closing(Caller(traffic)) as caller:
            while (done := next(numbers)) <= requests:
                ask, right = traffic.draw(dice)
                verdict, _ = judge(ask, right, caller.send(ask), known)
                with lock:
                    verdicts[verdict] += 1
                    if done % every == 0:
                        samples.append((done, footprint(server)))

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))
    end, off = counts_back(start, server)
    slopes = {key: slope(samples, key) for key in ("web_rss", "worker_rss")}
    rises = {key: end[key] - start[key] for key in ("web_rss", "worker_rss")}
    faults = [f"{key} rises by {per / 1024:.0f} KiB a request" for key, per in slopes.items() if per > SLOPE_MOST_BYTES]
    faults += [f"{key} rose by {rise / 1e6:.0f} MB" for key, rise in rises.items() if rise > RISE_MOST_BYTES]
    faults += off
    if verdicts["right"] != requests:
        faults.append(f"not every answer was right: {dict(verdicts)}")
    return {"requests": requests, "clients": clients, "warm_up": warm_up, "verdicts": dict(verdicts), "start": start,
            "end": end, "slope_bytes": {key: round(per, 1) for key, per in slopes.items()}, "rise_bytes": rises,
            "faults": faults}


def ask_all(traffic: Traffic, seeds: Sequence[int], clients: int) -> None:
    """One request a seed, whatever comes back."""

    def work(seed: int) -> None:
        with closing(Caller(traffic)) as caller:
            caller.send(traffic.draw(random.Random(-seed - 1))[0])

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, seeds))


def slope(samples: Sequence[tuple[int, Footprint]], key: str) -> float:
    """Of the least-squares line through (requests done, `key`): bytes a request."""
    if len(samples) < 2:
        return 0.0
    done, values = zip(*((done, taken[key]) for done, taken in samples), strict=True)
    return float(np.polyfit(done, values, 1)[0])
