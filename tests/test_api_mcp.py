"""The page's functions as MCP tools, called by the reference client over streamable HTTP as an assistant does."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from web_server import Server, running

from cosyvoice_app.settings import Settings
from cosyvoice_app.web.mcp import own_url


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


def test_tools_call_this_server_and_no_other() -> None:
    """Not the host that the first caller names."""
    found = [own_url(Settings(host=host, port=8000)) for host in ("127.0.0.1", "0.0.0.0", "::", "::1", "192.0.2.1")]
    assert found == ["http://127.0.0.1:8000", "http://127.0.0.1:8000", "http://[::1]:8000", "http://[::1]:8000",
                     "http://192.0.2.1:8000"]  # fmt: skip
