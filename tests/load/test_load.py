"""Many clients at once against a real server: each gets its own audio, and nothing grows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from cosyvoice_app.bench.caller import Caller, forget, prepare
from cosyvoice_app.bench.own_server import OwnServer, own_server
from cosyvoice_app.bench.slope import measure
from cosyvoice_app.bench.traffic import Traffic, judge

pytestmark = pytest.mark.slow

CLIENTS, EACH = 32, 8
QUICK = "load_engine:LoadTone"


@pytest.fixture(scope="module")
def quick() -> Iterator[OwnServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with own_server(QUICK) as server:
            yield server


@pytest.fixture(scope="module")
def traffic(quick: OwnServer) -> Iterator[Traffic]:
    made = prepare(quick.url, pool=24, tone=True)
    yield made
    forget(made)


def test_32_clients_at_once_each_get_their_own_audio(quick: OwnServer, traffic: Traffic) -> None:
    known = traffic.known()

    def one(number: int) -> list[tuple[str, str, str | None]]:
        dice, seen = random.Random(number), []
        with Caller(traffic) as caller:
            for _ in range(EACH):
                ask, right = traffic.draw(dice)
                answer = caller.send(ask)
                seen.append((*judge(ask, right, answer, known), answer.output))
        return seen

    with ThreadPoolExecutor(CLIENTS) as pool:
        seen = [each for client in pool.map(one, range(CLIENTS)) for each in client]
    assert Counter(verdict for verdict, _, _ in seen) == {"right": CLIENTS * EACH}, [why for _, why, _ in seen if why]
    files = [output for _, _, output in seen if output]
    assert len(files) == len(set(files)) > CLIENTS
    health = quick.health()
    assert (health["running"], health["queue"]) == (0, 0)


def test_nothing_grows_over_200_requests(quick: OwnServer, traffic: Traffic) -> None:
    assert measure(quick, traffic, requests=200, clients=4, warm_up=40)["faults"] == []


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    """And what was not refused is right: 12 clients and room for 2 waiting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with own_server(QUICK, "--max-queue", "2", "--max-batch", "1") as server:
            traffic = prepare(server.url, pool=12, tone=True)

            def one(number: int) -> str:
                with Caller(traffic) as caller:
                    ask, right = traffic.pool[number % 12], traffic.expected[number % 12]
                    return judge(ask, right, caller.send(ask), traffic.known())[0]

            with ThreadPoolExecutor(40) as pool:
                seen = Counter(pool.map(one, range(40)))
            assert set(seen) == {"right", "refused"}, seen
            assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
