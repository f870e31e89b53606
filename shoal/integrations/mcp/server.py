"""The MCP server: tools, resources and subscriptions of one space.

It is built on the low-level server of the official SDK: tools that are declared as Structs give the schema and the check of
arguments, so that a wrong call is refused in Shoal's words. There are few tools, because each one takes room in every
prompt.

Laws:
- A `ShoalError` is the answer of a tool, in its own words: what happened, whether anything was written, and what to do.
- A write has the key that the caller gives; without one, over standard input, a key that belongs to the request's id, so
  that a request that is sent twice counts once.
- A server that only reads has no tool that writes.

Standard input as lines of text, for the SDK's server over standard input and output.

Laws:
- A wait for a line can be cancelled at once. The SDK's own reader cannot: SIGTERM would wait for the client's next message.
- A line is bounded. A longer one is read to its end, and stands as an empty line, which the SDK reports as no message.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Thread
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    UnsubscribeRequestParams,
)

from shoal import __version__
from shoal.client.store import Store
from shoal.errors import InvalidInput, NotFound, ShoalError
from shoal.integrations.mcp import memory, resources, shared, threads
from shoal.integrations.mcp.views import Arguments, Call, OneView, Tool, View, Views, Writing
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import check_key, check_name

MCP_MESSAGE_BYTES_MAX = 64 * 1024 * 1024  # On standard input; a longer message is none. Over HTTP: `request_bytes_max`.

_LINES_MAX = 16  # Read ahead of the server.


class Lines:
    """The lines of a file descriptor, of which a copy is read. It must be made on a running loop."""

    def __init__(self, fd: int, *, line_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_LINES_MAX)
        self._max = line_bytes_max
        # A daemon: a thread that waits for input must not keep the process alive.
        Thread(target=self._read, args=(os.dup(fd),), daemon=True).start()

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self, fd: int) -> None:
        with open(fd, "rb") as file, suppress(OSError, RuntimeError, CancelledError):  # The loop has ended.
            while line := file.readline(self._max):
                whole = line
                while len(line) == self._max and not line.endswith(b"\n"):
                    whole, line = b"", file.readline(self._max)
                self._put(whole.decode(errors="replace"))
            self._put(None)

    def _put(self, line: str | None) -> None:
        asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()


STATE_TOOLS: tuple[Tool, ...] = (*threads.TOOLS, *shared.TOOLS)

_INSTRUCTIONS = (
    "Shared, durable state of agents. Threads hold one agent's work as checkpoints: load before you save, and pass the id as "
    "expect_head. Documents are edited by several at once. Items are memories. Give each write an idempotency_key, and repeat "
    "it with the same key if you do not know whether it was applied. Errors say whether anything was written."
)
_MEMORY_INSTRUCTIONS = (
    "A knowledge graph that agents share: entities with observations, and relations. Concurrent writes are all kept."
)


class ShoalServer:
    """The handlers of one server."""

    def __init__(
        self, views: Views, space: str, *, author: str = "", memory_only: bool = False, read_only: bool = False
    ) -> None:
        self._views = views
        self._space = check_name("space", space)
        self._author = check_name("author", author) if author else ""
        chosen = memory.TOOLS if memory_only else STATE_TOOLS
        self._tools = {tool.name: tool for tool in chosen if not (read_only and tool.writes)}
        self._refused = {tool.name for tool in chosen} - self._tools.keys()
        self._memory_only = memory_only
        self._legacy: dict[str, Any] = {}  # URI → how to end the subscription of a client of before 2026.

    def server(self) -> Server[Any]:
        """The SDK's server with these handlers."""
        if self._memory_only:
            return Server(
                "shoal-memory",
                version=__version__,
                title="Shoal memory",
                instructions=_MEMORY_INSTRUCTIONS,
                on_list_tools=self.list_tools,
                on_call_tool=self.call_tool,
            )
        return Server(
            "shoal",
            version=__version__,
            title="Shoal",
            instructions=_INSTRUCTIONS,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_subscribe_resource=self.subscribe if self._views.keeps_subscriptions else None,
            on_unsubscribe_resource=self.unsubscribe if self._views.keeps_subscriptions else None,
            on_subscriptions_listen=self.listen,
        )

    async def list_tools(self, _: ServerRequestContext, __: PaginatedRequestParams | None) -> ListToolsResult:
        """The tools, in one page."""
        return ListToolsResult(tools=[tool.description() for tool in self._tools.values()])

    async def call_tool(self, context: ServerRequestContext, params: CallToolRequestParams) -> CallToolResult:
        """Run a tool; an error of Shoal's is its answer.

        Raises:
            MCPError: there is no such tool.
        """
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, self._no_tool(params.name))
        try:
            given = tool.checked(params.arguments or {})
            async with self._views.of(context) as view:
                key = self._key(context, view, tool, given)
                answer = await tool.run(Call(view.connection, view.space, self._author, key), given)
        except ShoalError as error:
            return _refused(error)
        except Exception as error:
            log(events.TOOL_BUG, tool=tool.name, bug=error)
            bug = ShoalError(
                f"{tool.name} failed because of a bug in Shoal; the log of this server has more. Whether anything was "
                "written is unknown. Read what is there before you go on."
            )
            bug.written = "unknown"
            return _refused(bug)
        return CallToolResult(content=[_text(answer)], structured_content=dict(answer))

    async def list_resources(self, context: ServerRequestContext, params: PaginatedRequestParams | None) -> ListResourcesResult:
        """A page of the threads and documents.

        Raises:
            MCPError: the cursor is none, or no node answers.
        """
        try:
            async with self._views.of(context) as view:
                found, cursor = await resources.page(view.connection, self._space, None if params is None else params.cursor)
        except ShoalError as error:
            raise _protocol_error(error) from None
        return ListResourcesResult(resources=found, next_cursor=cursor)

    async def list_templates(self, _: ServerRequestContext, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        """The forms of URIs."""
        return ListResourceTemplatesResult(resource_templates=resources.templates(self._space))

    async def read_resource(self, context: ServerRequestContext, params: ReadResourceRequestParams) -> ReadResourceResult:
        """A thread's newest state, or a document's content.

        Raises:
            MCPError: the URI names nothing, or no node answers.
        """
        try:
            async with self._views.of(context) as view:
                found = await resources.contents(view.connection, view.space, str(params.uri))
        except ShoalError as error:
            raise _protocol_error(error) from None
        return ReadResourceResult(contents=[found])

    async def listen(
        self, context: ServerRequestContext, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Tell a client of changes until it ends the subscription.

        Raises:
            MCPError: a URI names nothing, or no node serves the watch.
        """
        try:
            wanted = params.notifications.resource_subscriptions or ()
            async with self._views.of(context) as view, view.subscriptions.wanting(wanted):
                result: SubscriptionsListenResult = await view.listening(context, params)
                if view.subscriptions.failed is not None:
                    raise view.subscriptions.failed
                return result
        except ShoalError as error:
            raise _protocol_error(error) from None

    async def subscribe(self, context: ServerRequestContext, params: SubscribeRequestParams) -> EmptyResult:
        """The same for clients of protocol versions before 2026.

        Raises:
            MCPError: as `listen`.
        """
        uri = str(params.uri)
        if uri not in self._legacy:
            try:
                async with self._views.of(context) as view:
                    await view.subscriptions.want([uri])
            except ShoalError as error:
                raise _protocol_error(error) from None
            self._legacy[uri] = view.subscriptions.tell(uri, context.session.send_resource_updated)
        return EmptyResult()

    async def unsubscribe(self, context: ServerRequestContext, params: UnsubscribeRequestParams) -> EmptyResult:
        """End a subscription; it is no error if there is none."""
        uri = str(params.uri)
        if (end := self._legacy.pop(uri, None)) is not None:
            end()
            async with self._views.of(context) as view:
                view.subscriptions.unwant([uri])
        return EmptyResult()

    def _no_tool(self, name: str) -> str:
        if name in self._refused:
            return f"{name} writes, and this server only reads (--read-only). Nothing was written."
        return f"there is no tool {name[:80]!r}. Nothing was written. The tools are: {', '.join(self._tools)}."

    def _key(self, context: ServerRequestContext, view: View, tool: Tool, given: Arguments) -> str | None:
        if not tool.writes:
            return None
        if isinstance(given, Writing) and given.idempotency_key:
            return check_key("idempotency key", given.idempotency_key)
        if context.request_id is None:
            raise InvalidInput("a tool was called without a request id. Nothing was written.")
        return self._views.key_of(context.request_id, view, now_ms=time.time_ns() // 1_000_000)


async def serve(store: Store, space: str, *, author: str = "", memory_only: bool = False, read_only: bool = False) -> None:
    """Serve MCP on standard input and output until the client closes them.

    `memory_only`: the tools of the reference memory server, in place of all others. `read_only`: no tool that writes.

    Raises:
        InvalidName: the space or the author is no legal name.
    """
    views = OneView(store, space)
    server = ShoalServer(views, space, author=author, memory_only=memory_only, read_only=read_only).server()
    try:
        # All that the SDK does with it is to iterate.
        lines: Any = Lines(sys.stdin.fileno(), line_bytes_max=MCP_MESSAGE_BYTES_MAX)
        async with stdio_server(stdin=lines) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await views.view.subscriptions.close()


def _text(answer: Mapping[str, Any]) -> TextContent:
    return TextContent(type="text", text=json.dumps(answer, ensure_ascii=False))


def _refused(error: ShoalError) -> CallToolResult:
    told = {"error": type(error).__name__, "written": error.written, "retryable": error.retryable}
    return CallToolResult(
        content=[TextContent(type="text", text=f"{type(error).__name__}: {error.message}")],
        structured_content=told,
        is_error=True,
    )


def _protocol_error(error: ShoalError) -> MCPError:
    wrong = isinstance(error, InvalidInput | NotFound)
    return MCPError(INVALID_PARAMS if wrong else INTERNAL_ERROR, f"{type(error).__name__}: {error.message}")
