"""The page's functions as MCP tools, run where they are: in the web server's event loop, as the page itself runs them.

Left to itself Gradio has its tools call the page over HTTP and waits for each in a thread of the pool that the looped
back call needs too: as many calls as the pool has threads, and the whole web process stands still. It also goes on
with a call whose caller has left.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.exceptions import InvalidPathError
from gradio.route_utils import get_root_url
from gradio.state_holder import SessionState
from starlette.requests import Request

from cosyvoice_app.errors import Cancelled, QueueFull

if TYPE_CHECKING:
    from gradio.mcp import GradioMCPServer

log = logging.getLogger(__name__)

MOST_CALLS = 64
"""Tool calls under way at once, for all callers; each may hold a clip of the largest size."""


def run_in_place(tools: GradioMCPServer | None) -> None:
    """Make the tools run here and end with their callers. To be called before the first request."""
    if tools is not None:
        _Tools(tools).install()


class _Tools:
    def __init__(self, tools: GradioMCPServer) -> None:
        self._tools = tools
        self._under_way = 0
        # One for all callers: limits tell them apart by address. Not to be guessed, since a session can be stopped.
        self._session = f"mcp-{secrets.token_hex(16)}"

    def install(self) -> None:
        @self._tools.mcp_server.call_tool()  # type: ignore[untyped-decorator]
        async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
            if self._under_way >= MOST_CALLS:
                raise QueueFull(f"{MOST_CALLS} tool calls are under way, the most at once. Try again when some ended.")
            request = self._tools.mcp_server.request_context.request
            assert isinstance(request, Request)  # the tools are offered over HTTP only
            self._under_way += 1
            try:
                return await _unless_gone(request, self._call(name, arguments, request))
            finally:
                self._under_way -= 1

    async def _call(self, name: str, arguments: dict[str, Any], request: Request) -> Any:
        tools = self._tools
        # Decodes the clip, which may be tens of megabytes, and writes it to the upload folder.
        _, inputs, _, fn = await asyncio.to_thread(tools._prepare_tool_call_args, name, arguments)
        inputs = tools.insert_empty_state(fn.inputs, inputs)
        try:
            outputs = await self._run(fn, inputs, request)
        except gr.Error as error:
            raise RuntimeError(error.message) from error  # MCP shows str(), which Gradio's errors put in quotes
        except InvalidPathError:
            raise RuntimeError("The clip is not an upload: send it as a data: URL.") from None
        except Exception as error:
            # Its message may hold what was to be said, which logs keep only when debugging.
            log.error("tool %s failed: %s", fn.api_name, type(error).__name__)
            log.debug("tool %s failed", fn.api_name, exc_info=error)
            raise RuntimeError("Something went wrong in the server; its log has the details.") from error
        outputs = tools.pop_returned_state(fn.outputs, outputs)
        root = get_root_url(request=request, route_path=tools.get_route_path(request), root_path=tools.root_path)
        return tools.types.CallToolResult(content=list(tools.postprocess_output_data(outputs, root)))

    async def _run(self, fn: Any, inputs: list[Any], request: Request) -> Any:
        """The function's last outputs. Each step before them is reported as progress to callers that asked for it."""
        asked = gr.Request(request=request, session_hash=self._session)
        state = SessionState(self._tools.blocks)
        iterator: Any = None
        outputs: Any = None
        step = 0
        try:
            while True:
                made = await self._tools.blocks.process_api(fn, inputs, state, asked, iterator)
                if not made["is_generating"]:
                    return outputs if iterator is not None else made["data"]
                iterator, outputs = made["iterator"], made["data"]
                step += 1
                await self._tell(step)
        finally:
            if iterator is not None:
                await iterator.aclose()

    async def _tell(self, step: int) -> None:
        context = self._tools.mcp_server.request_context
        if context.meta is not None and context.meta.progressToken is not None:
            await context.session.send_progress_notification(
                context.meta.progressToken, step, message="Processing", related_request_id=str(context.request_id)
            )


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The work's result. The work ends when the caller hangs up, with Cancelled, or when this task is cancelled."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue

    working, watching = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Cancelled("The caller has left.")
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
