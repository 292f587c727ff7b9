"""`bench chaos`: what a server gives its clients while its worker is killed and other clients behave badly.

The laws: no answer holds wrong or short audio and passes for whole; a request that was lost is told so, or its stream
breaks off; only what ran when the worker died is lost; the server recovers by itself and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from cosyvoice_app.bench import rudeness
from cosyvoice_app.bench.caller import Caller, prepare
from cosyvoice_app.bench.load import machine
from cosyvoice_app.bench.own_server import OwnServer, own_server
from cosyvoice_app.bench.own_server import add_arguments as add_server_arguments
from cosyvoice_app.bench.slope import ask_all, counts_back, footprint
from cosyvoice_app.bench.traffic import (
    PITCH_SLACK_HZ,
    Answer,
    Ask,
    Traffic,
    Verdict,
    decode,
    judge,
    percentiles,
    pitch_hz,
    tone_expected,
    tone_pitch_hz,
)
from cosyvoice_app.console import print_json
from cosyvoice_app.engines.tone import SECONDS_PER_CHARACTER, SEED_SLOW
from cosyvoice_app.errors import BadInput, EngineFailure

NAME = "chaos"
HELP = "kill the worker again and again under load, with slow and rude clients beside it"

RESTART_MODES = ("cancel", "drain")
WAITING = 6
_BETWEEN_S = 0.3
"""From a recovery to the next kill: enough for requests to be under way again."""
_RECOVERY_MOST_S = 60.0
_ASKING_AT_ONCE = 8
"""More than the threads that answer /health."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--kills", type=int, default=50, help="how often [default: %(default)s]")
    parser.add_argument("--clients", type=int, default=24, help="asking all the time [default: %(default)s]")
    parser.add_argument("--restarts", type=int, default=5, help="restarts under load after the kills, of each kind "
                        "[default: %(default)s]")
    parser.add_argument("--uploads", type=int, default=200, help="uploads broken off [default: %(default)s]")


@dataclass
class Record:
    """What the steady clients met, in the order it came. Shared by their threads."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    """Of answers that passed for whole and weren't, or that told nothing."""
    right_at: list[float] = field(default_factory=list)
    """When each right answer was there, by `time.monotonic`."""

    def add(self, ask: Ask, answer: Answer, verdict: Verdict, why: str) -> None:
        with self.lock:
            self.verdicts[verdict] += 1
            if verdict == "right":
                self.right_at.append(time.monotonic())
            elif verdict == "told":
                self.told[f"{answer.status} {answer.error_type}"] += 1
            elif verdict not in ("refused", "broken off") and len(self.examples) < 10:
                self.examples.append(f"{ask.name}, {answer.status}: {verdict}; {why}")


def run(options: argparse.Namespace) -> int:
    if options.kills < 0 or options.clients < 1 or options.restarts < 0 or options.uploads < 0:
        raise BadInput("--kills, --restarts and --uploads take 0 or more, --clients 1 or more.", param="kills")
    with own_server(options.engine, *options.serve.split()) as server:
        found = wreck(server, kills=options.kills, clients=options.clients, restarts=options.restarts,
                      uploads=options.uploads, say=lambda text: print(text, flush=True))
    for name, value in found.items():
        print(f"{name:>24}  {value}")
    print_json({"bench": NAME, "engine": options.engine, "machine": machine(), **found}, indent=None)
    return int(bool(found["faults"]))


def wreck(server: OwnServer, *, kills: int, clients: int, restarts: int, uploads: int,
          say: Callable[[str], None]) -> dict[str, Any]:
    """All of it on `server`, whose engine is the tone engine or a quick form of it. `faults` lists the broken laws."""
    traffic = prepare(server.url, pool=24, tone=True)
    kept = waiting_ones_succeed(server, traffic, WAITING)
    say(f"a full queue, and the worker killed: {kept}")
    ask_all(traffic, range(2 * clients), clients)
    fill_pools(server)
    before = footprint(server)
    record = Record()
    with steady(traffic, clients, record), rudeness.beside(traffic, uploads=uploads) as rude:
        recoveries, memory = kill_again_and_again(server, record, kills, say)
        pressed = [press_restart(server, record, mode, restarts) for mode in RESTART_MODES]
        rude.finish_uploads()
    server.wait_ready()
    after, left = counts_back(before, server)
    faults = [*record.examples, *left, *wrong_files(server)]
    for part in (kept, *pressed):
        faults += part.pop("faults")
    return {
        "kills": kills, "clients": clients, "answers": dict(record.verdicts), "told": dict(record.told),
        "recovery_s": {**percentiles(recoveries), "most": round(max(recoveries, default=0.0), 3)},
        "web_rss_mb": [round(rss / 1e6) for rss in memory[:: max(1, kills // 10)]], "queue_kept": kept,
        "restarts": pressed, "rude": rude.counts(), "before": before, "after": after, "faults": faults,
    }


def fill_pools(server: OwnServer) -> None:
    """The pools that change the engine's state and tell of it get a thread when one is first wanted, up to a fixed
    number, and keep it: no growth to be found later."""
    for mode in RESTART_MODES:
        httpx.post(f"{server.url}/v1/engine/restart", json={"mode": mode}, timeout=600.0, trust_env=False)
    with ThreadPoolExecutor(_ASKING_AT_ONCE) as pool:
        for future in [pool.submit(server.health) for _ in range(4 * _ASKING_AT_ONCE)]:
            future.result()


# The steady clients.


@contextmanager
def steady(traffic: Traffic, clients: int, record: Record) -> Iterator[None]:
    """`clients` threads that ask one thing after another until the end, whose answers are waited for."""
    stop = threading.Event()

    def ask_on(number: int) -> None:
        dice, known = random.Random(number), traffic.known()
        with Caller(traffic) as caller:
            while not stop.is_set():
                ask, right = traffic.draw(dice)
                answer = caller.send(ask)
                verdict, why = judge(ask, right, answer, known)
                record.add(ask, answer, verdict, why)
                if verdict == "refused":
                    stop.wait(min(1.0, answer.retry_after_s or 1))

    threads = [threading.Thread(target=ask_on, args=(number,), name=f"client-{number}") for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def kill_again_and_again(
    server: OwnServer, record: Record, kills: int, say: Callable[[str], None]
) -> tuple[list[float], list[int]]:
    """Seconds from each kill to the first right answer that the next worker made, and the web process's resident
    memory in bytes then."""
    recoveries, memory = [], []
    for number in range(kills):
        pid = server.wait_ready()["worker_pid"]
        time.sleep(_BETWEEN_S)
        killed_at = time.monotonic()
        kill(pid)
        server.wait_ready(other_than=pid, timeout_s=_RECOVERY_MOST_S)
        ready_at = time.monotonic()
        recoveries.append(_first_right(record, ready_at) - killed_at)
        memory.append(server.web.memory_info().rss)
        if number % 10 == 9:
            say(f"killed {number + 1} times; {dict(record.verdicts)}")
    return recoveries, memory


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _first_right(record: Record, after: float) -> float:
    end = time.monotonic() + _RECOVERY_MOST_S
    while time.monotonic() < end:
        with record.lock:
            found = next((at for at in record.right_at if at > after), None)
        if found is not None:
            return found
        time.sleep(0.01)
    raise EngineFailure(f"No right answer within {_RECOVERY_MOST_S:g} s of a kill; so far: {dict(record.verdicts)}, "
                        f"{record.examples}")


# The laws besides.


def waiting_ones_succeed(server: OwnServer, traffic: Traffic, waiting: int) -> dict[str, Any]:
    """Fill every running slot with slow requests and let `waiting` quick ones wait; kill the worker. Exactly those that
    ran are told so, and all the others are answered right.

    Raises EngineFailure when the slow seed ends before the slots are full.
    """
    slow = next(ask for ask in traffic.pool if ask.path == "speech" and not ask.stream)
    known, faults, answers = traffic.known(), [], Counter[str]()
    with ThreadPoolExecutor(200) as pool:
        sent = []
        while (queue := server.health())["queue"] < 1:
            sent.append(pool.submit(_ask_seed, traffic, replace(slow, seed=SEED_SLOW), known))
            _until_counted(server, len(sent))
        quick = [replace(slow, seed=20_000 + number) for number in range(waiting)]
        sent += [pool.submit(_ask_seed, traffic, ask, known) for ask in quick]
        _until_counted(server, len(sent))
        queue = server.health()
        kill(queue["worker_pid"])
        answers.update(future.result() for future in sent)
    # One may have been answered between the last look and the kill, and another have taken its slot.
    if answers["told"] != queue["running"] or answers["right"] != len(sent) - queue["running"]:
        faults.append(f"{queue['running']} ran and {queue['queue']} waited when the worker died: {dict(answers)}")
    return {"running": queue["running"], "waiting": queue["queue"], "told": answers["told"], "right": answers["right"],
            "faults": faults}


def _ask_seed(traffic: Traffic, ask: Ask, known: Mapping[str, int]) -> Verdict:
    with Caller(traffic) as caller:
        return judge(ask, tone_expected(ask, traffic.clip_hashes[ask.clip]), caller.send(ask), known)[0]


def _until_counted(server: OwnServer, requests: int) -> None:
    """Until the server says that it has `requests` running and waiting."""
    end = time.monotonic() + _RECOVERY_MOST_S
    while True:
        report = server.health()
        if report["running"] + report["queue"] >= requests:
            return
        if time.monotonic() > end:
            raise EngineFailure(f"{requests} requests are sent and /health tells of {report['running']} running and "
                                f"{report['queue']} waiting.")
        time.sleep(0.02)


def press_restart(server: OwnServer, record: Record, mode: str, times: int) -> dict[str, Any]:
    """POST /v1/engine/restart under load. `cancel`: what ran is told so; `drain`: nobody is told anything."""
    took, before, faults = [], record.verdicts["told"] + record.verdicts["broken off"], []
    for _ in range(times):
        time.sleep(_BETWEEN_S)
        pid, began = server.worker_pid(), time.monotonic()
        answer = httpx.post(f"{server.url}/v1/engine/restart", json={"mode": mode}, timeout=600.0, trust_env=False)
        after = answer.json().get("after", {}) if answer.status_code == 200 else {}
        if after.get("state") != "ready" or after.get("worker_pid") == pid:
            faults.append(f"restart ({mode}) answered {answer.status_code}: {answer.text[:300]}")
        took.append(time.monotonic() - began)
    if times:
        _first_right(record, time.monotonic())
    lost = record.verdicts["told"] + record.verdicts["broken off"] - before
    if mode == "drain" and lost:
        faults.append(f"{lost} requests were lost by restarts that drain")
    return {"mode": mode, "times": times, "lost": lost, "took_s": percentiles(took), "faults": faults}


def wrong_files(server: OwnServer) -> list[str]:
    """Results on disk that are unfinished, or don't hold what their sidecar says."""
    faults = [f"left in the outputs: {path.name}" for path in server.outputs.iterdir()
              if path.suffix not in (".wav", ".json")]
    for wav in server.outputs.glob("*.wav"):
        told = json.loads(wav.with_suffix(".json").read_text(encoding="utf-8"))
        right = tone_pitch_hz("".join(told["segments"]), told["prompt"]["sha256"], told["seed"])
        samples = decode(wav.read_bytes(), "wav")
        spoken = SECONDS_PER_CHARACTER * sum(map(len, told["segments"]))
        if abs(pitch_hz(samples) - right) > PITCH_SLACK_HZ or len(samples) / told["rate_hz"] < spoken - 0.001:
            faults.append(f"{wav.name}: {pitch_hz(samples):.1f} Hz and {len(samples)} samples, not {right:.1f} Hz and "
                          f"at least {spoken:.2f} s")
    return faults
