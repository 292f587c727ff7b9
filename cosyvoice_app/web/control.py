"""Asking after the engine and changing its state, in threads of their own: neither waits for what requests do.

Restart, unload and load take seconds: a thread each, and none for a second press of the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from cosyvoice_app.serving.request import Service, Status

RestartMode = Literal["cancel", "drain"]
Changed = tuple[Status, Status]
T = TypeVar("T")

_KINDS = 4
"""Restarts of either mode, unload and load: as many can be under way at once, and no more."""
_ASKING = 4
"""The worker may take a second to answer; monitors are to wait for it and not for the requests of a busy hour."""


class EngineControl:
    """For one event loop. A caller that goes away stops nothing: the engine is for everybody."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pool = ThreadPoolExecutor(_KINDS, thread_name_prefix="engine-control")
        self._asking = ThreadPoolExecutor(_ASKING, thread_name_prefix="engine-status")
        self._under_way: dict[str, asyncio.Future[Any]] = {}

    async def status(self) -> Status:
        return await asyncio.get_running_loop().run_in_executor(self._asking, self._service.status)

    async def metrics(self) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._asking, self._service.metrics)

    async def restart(self, mode: RestartMode = "cancel") -> Changed:
        """`cancel` stops what runs; `drain` lets it finish first."""
        return await self._joined(f"restart-{mode}", lambda: self._service.restart(drain=mode == "drain"))

    async def unload(self) -> Changed:
        return await self._joined("unload", self._service.unload)

    async def load(self) -> Status:
        return await self._joined("load", self._service.load)

    def close(self) -> None:
        """After the service was closed, which ends what is under way."""
        self._pool.shutdown(wait=True)
        self._asking.shutdown(wait=True)

    async def _joined(self, name: str, do: Callable[[], T]) -> T:
        work = self._under_way.get(name)
        if work is None:
            work = asyncio.get_running_loop().run_in_executor(self._pool, do)
            self._under_way[name] = work
            work.add_done_callback(lambda _: self._under_way.pop(name, None))
        result: T = await asyncio.shield(work)  # one name, one kind of result
        return result
