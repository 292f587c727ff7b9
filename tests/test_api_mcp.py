"""The page's functions as MCP tools, called by the reference client over streamable HTTP as an assistant does."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from web_server import Server, running

from cosyvoice_app.web.mcp import MOST_CALLS


@asynccontextmanager
async def session(server: Server, headers: dict[str, str] | None = None) -> AsyncIterator[ClientSession]:
    url = f"{server.url}/gradio_api/mcp/"
    async with (
        httpx.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(url, http_client=http) as (read, write, _),
        ClientSession(read, write) as opened,
    ):
        await opened.initialize()
        yield opened


def talk(server: Server, do: Callable[[ClientSession], Awaitable[Any]], headers: dict[str, str] | None = None) -> Any:
    async def run() -> Any:
        async with session(server, headers) as opened:
            return await do(opened)

    return asyncio.run(asyncio.wait_for(run(), 120))


def data_url(clip: Path) -> str:
    return "data:audio/wav;base64," + base64.b64encode(clip.read_bytes()).decode()


def said(result: Any) -> list[str]:
    assert not result.isError, result.content
    return [part.text for part in result.content if part.type == "text"]


def name_of(tools: dict[str, Any], ending: str) -> str:
    (found,) = [name for name in tools if name.endswith(ending)]
    return found


def test_tools_are_listed_with_what_they_take(server: Server) -> None:
    tools = {tool.name: tool for tool in talk(server, lambda s: s.list_tools()).tools}
    fields = tools[name_of(tools, "synthesize")].inputSchema["properties"]
    assert {"clip", "text", "prompt_text", "instruct", "seed", "speed", "refine", "pronunciations"} <= set(fields)
    assert "seed" in fields["seed"]["description"].lower() or "100000000" in fields["seed"]["description"]
    for ending in ("check_prompt", "random_seed", "read", "restart", "unload", "load"):
        assert any(name.endswith(ending) for name in tools)


def test_a_clip_is_checked_and_a_text_said(server: Server, p0_wav: Path) -> None:
    async def do(opened: ClientSession) -> tuple[list[str], list[str]]:
        names = [tool.name for tool in (await opened.list_tools()).tools]
        check = name_of(dict.fromkeys(names), "check_prompt")
        speak = name_of(dict.fromkeys(names), "synthesize")
        clip = data_url(p0_wav)
        return (
            said(await opened.call_tool(check, {"clip": clip})),
            said(await opened.call_tool(speak, {"clip": clip, "text": "海边的风很凉快。", "seed": "42"})),
        )

    before = server.saved()
    checked, spoken = talk(server, do)
    assert any('"ok": true' in text.lower() or "'ok': true" in text.lower() for text in checked), checked
    (name,) = server.saved() - before
    assert json.loads((server.outputs / name).with_suffix(".json").read_text("utf-8"))["seed"] == 42
    links = re.findall(r"http://[^\s'\"]+\.wav", " ".join(spoken))
    assert links, spoken
    assert httpx.get(links[0]).content == (server.outputs / name).read_bytes()


@pytest.mark.parametrize("clip", ["/etc/passwd", "http://127.0.0.1:1/x.wav", "data:audio/wav;base64,AAAA"])
def test_a_clip_is_never_a_path_or_fetched(server: Server, clip: str) -> None:
    async def do(opened: ClientSession) -> Any:
        names = [tool.name for tool in (await opened.list_tools()).tools]
        return await opened.call_tool(name_of(dict.fromkeys(names), "synthesize"), {"clip": clip, "text": "好。"})

    before = server.saved()
    result = talk(server, do)
    assert result.isError and "Traceback" not in str(result.content)
    assert server.saved() == before


def test_a_login_is_asked_for_and_then_opens_the_tools(tmp_path: Path, p0_wav: Path) -> None:
    with running(tmp_path, "--login", "ann:pass") as server:
        url = f"{server.url}/gradio_api/mcp/"
        hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accept = {"Accept": "application/json, text/event-stream"}
        assert httpx.post(url, json=hello, headers=accept).status_code == 401
        assert httpx.get(f"{url}schema").status_code == 401
        right = {"Authorization": "Basic " + base64.b64encode(b"ann:pass").decode()}


        async def do(opened: ClientSession) -> list[str]:
            names = [tool.name for tool in (await opened.list_tools()).tools]
            check = name_of(dict.fromkeys(names), "check_prompt")
            return said(await opened.call_tool(check, {"clip": data_url(p0_wav)}))

        assert '"ok": true' in " ".join(talk(server, do, right)).lower().replace("'", '"')


def call(server: Server, number: int, clip: Path, seed: str) -> dict[str, Any]:
    return {
        "url": f"{server.url}/gradio_api/mcp/",
        "headers": {"Accept": "application/json, text/event-stream"},
        "json": {
            "jsonrpc": "2.0", "id": number, "method": "tools/call",
            "params": {"name": "synthesize", "arguments": {"clip": data_url(clip), "text": "你好。", "seed": seed}},
        },
    }  # fmt: skip


def running_now(server: Server) -> int:
    return int(httpx.get(f"{server.url}/health", timeout=30).json()["running"])


def test_a_caller_who_hangs_up_frees_the_engine(tmp_path: Path, p0_wav: Path) -> None:
    with running(tmp_path, engine="engines_for_tests:SlowSentence") as server:

        async def leave() -> None:
            async with httpx.AsyncClient(timeout=60) as http:
                asked = asyncio.create_task(http.post(**call(server, 1, p0_wav, "9010")))
                while await asyncio.to_thread(running_now, server) == 0:
                    assert not asked.done(), asked.result().text
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)

        asyncio.run(leave())
        end = time.monotonic() + 30  # the sentence itself takes far longer
        while running_now(server):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert not server.saved()


def test_many_calls_at_once_leave_the_server_able_to_answer(tmp_path: Path, p0_wav: Path) -> None:
    """More than there are threads to wait in."""
    with running(tmp_path, engine="engines_for_tests:SlowSentence") as server:

        async def crowd() -> None:
            limits = httpx.Limits(max_connections=100)
            async with httpx.AsyncClient(timeout=120, limits=limits) as http:
                asked = [asyncio.create_task(http.post(**call(server, n, p0_wav, "9010"))) for n in range(80)]
                for done in list(asyncio.as_completed(asked))[: 80 - MOST_CALLS]:
                    answer = await done
                    assert "tool calls are under way" in answer.text, answer.text
                end = time.monotonic() + 60
                while await asyncio.to_thread(running_now, server) == 0:
                    assert time.monotonic() < end
                for one in asked:
                    one.cancel()
                await asyncio.gather(*asked, return_exceptions=True)

        asyncio.run(crowd())
        end = time.monotonic() + 60
        while running_now(server):
            assert time.monotonic() < end
            time.sleep(0.1)
