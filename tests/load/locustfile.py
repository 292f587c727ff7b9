"""Users for locust (https://locust.io): each asks one thing after another and checks every answer by its content.

Run by itself, with locust's own report:

    locust -f tests/load/locustfile.py --headless -u 32 -r 32 -t 30s --stop-timeout 600 --host http://127.0.0.1:7860

`python -m cosyvoice_app bench load` runs it for 1, 8, 32 and 100 users and makes one table. It hands over the requests
with their right answers in the file LOAD_TRAFFIC, and reads every answer's line from the file LOAD_LINES.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import gevent
import httpx
from locust import User, constant, events, task

sys.path.insert(0, str(Path(__file__).parents[2]))  # locust puts only this file's own folder there

from cosyvoice_app.bench.caller import Caller, forget, prepare
from cosyvoice_app.bench.traffic import Answer, Ask, Traffic, judge

LONGEST_PAUSE_S = 5.0
POOL = 24


class Run:
    """What all users share."""

    traffic: Traffic
    known: dict[str, int]
    lines: TextIO | None = None
    mine = False
    numbers = itertools.count()


@events.init.add_listener  # and not at the start of the test, whose time runs already
def begin(environment: Any, **_: Any) -> None:
    given = os.environ.get("LOAD_TRAFFIC")
    if given:
        Run.traffic = Traffic.from_dict(json.loads(Path(given).read_text(encoding="utf-8")))
    else:
        url = environment.host or "http://127.0.0.1:7860"
        engine = httpx.get(f"{url}/health", trust_env=False).json()["engine"]
        Run.traffic, Run.mine = prepare(url, pool=POOL, tone=engine == "tone"), True
    Run.known = dict(Run.traffic.known())
    if os.environ.get("LOAD_LINES"):
        Run.lines = Path(os.environ["LOAD_LINES"]).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed in `end`


@events.quitting.add_listener
def end(environment: Any, **_: Any) -> None:
    if Run.lines:
        Run.lines.close()
    if Run.mine:
        forget(Run.traffic)


class Listener(User):
    """Presses Generate again as soon as the answer is there; waits when it is told to come back later."""

    wait_time = constant(0)

    def on_start(self) -> None:
        self.number = next(Run.numbers)
        self.dice = random.Random(self.number)
        self.caller = Caller(Run.traffic)

    def on_stop(self) -> None:
        self.caller.close()

    @task
    def speak(self) -> None:
        ask, right = Run.traffic.draw(self.dice)
        began = time.time()
        answer = self.caller.send(ask)
        verdict, why = judge(ask, right, answer, Run.known)
        self.report(ask, answer, verdict, why, began)
        if verdict == "refused":
            gevent.sleep(min(LONGEST_PAUSE_S, answer.retry_after_s or 1))

    def report(self, ask: Ask, answer: Answer, verdict: str, why: str, began: float) -> None:
        fault = None if verdict == "right" else AssertionError(f"{verdict}: {why}")
        fire = self.environment.events.request.fire
        fire(request_type="done", name=ask.name, response_time=1000 * answer.done_s, response_length=len(answer.body),
             exception=fault, context={}, start_time=began, url=ask.path)
        if ask.stream and answer.first_s is not None:
            fire(request_type="first audio", name=ask.name, response_time=1000 * answer.first_s, response_length=0,
                 exception=None, context={}, start_time=began, url=ask.path)
        if Run.lines:
            line = {"user": self.number, "ask": ask.name, "streamed": ask.stream is not None, "began": began,
                    "first_s": answer.first_s, "done_s": answer.done_s, "verdict": verdict, "why": why,
                    "status": answer.status, "bytes": len(answer.body), "output": answer.output}
            Run.lines.write(json.dumps(line) + "\n")
