"""Changes of a space as server-sent events, and reads that wait for a change.

Laws:

- Each change is one `change` event with a JSON object as its data and a position as its `id`. A browser that
  reconnects, to any node, sends the last `id` (`Last-Event-ID`) and receives the changes that it missed. The
  first event, `began`, has an `id` too. An `id` that is too long for a header is left out; after a reconnect
  the changes since the last `id` are then sent again.
- If there is no event for `heartbeat_s`, a comment is sent, so that a dead peer is noticed.
- A consumer that falls behind gets no silent gap: a `reset` event takes the place of the changes that
  were left out. A consumer that reads nothing is cut off after a write has waited for `heartbeat_s`.
- When the node stops, or the token counts no more, the stream ends with an error.
- A stream of several spaces resumes nothing: its changes are hints to read again, and a consumer that falls behind gets
  an error. It takes the right to watch each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TypeVar, cast
from urllib.parse import unquote

import msgspec
from aiohttp import web
from msgspec import Struct

from shoal.api.http.exchange import Exchange
from shoal.api.http.problems import internal
from shoal.errors import InvalidInput, ShoalError, ShuttingDown, SlowConsumer
from shoal.protocol.position import Position
from shoal.protocol.requests import Change, ObjectKind, Push, Reset, Watch, Watching
from shoal.workflows.spaces import check_kinds

WATCH_ID_BYTES_MAX = 6 * 1024  # A position as the id of a server-sent event, which comes back in a header.

WATCH_SPACES_MAX = 64  # Spaces of one stream: each is a watch of its own.

RETRY_MS = 1000
"""The time after which a browser reconnects."""
_Found = TypeVar("_Found")
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class WatchQuery(Struct, forbid_unknown_fields=True):
    """The changes that are wanted, and where to begin."""

    kind: ObjectKind | None = None
    kinds: str = ""  # Several kinds, with commas between them; empty: all.
    prefix: str = ""
    after: str | None = None  # The id of an event, to continue after it. The header Last-Event-ID takes precedence.


class SpacesQuery(Struct, forbid_unknown_fields=True):
    """The spaces whose changes are wanted."""

    spaces: str = ""  # Their names, percent-encoded, with commas between them; at most 64.
    kinds: str = ""  # Kinds of objects, with commas between them; empty: all.


class ChangeView(Struct):
    """One change of one object."""

    space: str
    kind: ObjectKind
    name: str
    what: str  # "save", "append", "update", "add", "assign".
    id: str
    hlc: int
    wall_ms: int


class ResetView(Struct):
    """Changes were left out."""

    reason: str  # Read the state again.


async def watch(exchange: Exchange) -> web.StreamResponse:
    """Stream a space's changes until the client leaves or the node stops.

    Raises:
        InvalidInput: a kind is unknown.
        InvalidValue: `after` or `Last-Event-ID` is not the id of an event.
    """
    query = exchange.query(WatchQuery)
    kinds = [kind for kind in query.kinds.split(",") if kind]
    check_kinds(kinds)
    after = exchange.request.headers.get("Last-Event-ID") or query.after
    position = Position.parse(after) if after else Position()
    request = Watch(
        exchange.name("space"), query.kind, query.prefix, cast("list[ObjectKind]", kinds), position.pack() if after else b""
    )
    async with exchange.session.subscribe(request) as changes:
        response = web.StreamResponse(headers={**HEADERS, **exchange.bookmark_headers()})
        await response.prepare(exchange.request)
        if exchange.request.method == "HEAD":
            return response
        stream = _Stream(exchange, response, position)
        try:
            await stream.write(b": watching\nretry: %d\n\n" % RETRY_MS)
            await stream.relay(changes)
        except (TimeoutError, ConnectionError):
            # The client reads nothing, or is gone.
            if exchange.request.transport is not None:
                exchange.request.transport.abort()
    return response


async def watch_spaces(exchange: Exchange) -> web.StreamResponse:
    """Stream the changes of several spaces until the client leaves or the node stops. A reconnect begins anew.

    Raises:
        InvalidInput: no space is named, or too many, or a kind is unknown.
    """
    query = exchange.query(SpacesQuery)
    kinds = [kind for kind in query.kinds.split(",") if kind]
    check_kinds(kinds)
    spaces = list(dict.fromkeys(unquote(name) for name in query.spaces.split(",") if name))
    if not 1 <= len(spaces) <= WATCH_SPACES_MAX:
        raise InvalidInput(f"`spaces` names 1 to {WATCH_SPACES_MAX} spaces; got {len(spaces)}.", field="spaces")
    async with AsyncExitStack() as stack:
        watches = [Watch(space, None, "", cast("list[ObjectKind]", kinds)) for space in spaces]
        sources = [await stack.enter_async_context(exchange.session.subscribe(watch)) for watch in watches]
        response = web.StreamResponse(headers={**HEADERS, **exchange.bookmark_headers()})
        await response.prepare(exchange.request)
        if exchange.request.method == "HEAD":
            return response
        stream = _Stream(exchange, response, None)
        try:
            await stream.write(b": watching\nretry: %d\n\n" % RETRY_MS)
            await stream.write(_event("began", {}))
            async with aclosing(_merged(sources)) as changes:
                await stream.relay(changes)
        except (TimeoutError, ConnectionError):
            if exchange.request.transport is not None:
                exchange.request.transport.abort()
    return response


async def _merged(sources: Sequence[AsyncIterator[Push]]) -> AsyncGenerator[Push, None]:
    """The pushes of several sources, as they come; it ends with the error, or the end, of any. Of each, one is read ahead."""
    waiting = {asyncio.ensure_future(_next(source)): source for source in sources}
    try:
        while True:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = waiting.pop(task)
                push = task.result()
                if push is None:
                    return
                waiting[asyncio.ensure_future(_next(source))] = source
                yield push
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


class _Stream:
    def __init__(self, exchange: Exchange, response: web.StreamResponse, position: Position | None) -> None:
        """`position`: where the watch is, which its events name as their ids; None: they have none."""
        self._position = position
        self._id_bytes_max = WATCH_ID_BYTES_MAX
        self._stopping = exchange.stopping
        self._heartbeat_s = exchange.config.heartbeat_s
        self._bearer = exchange.bearer
        self._response = response

    async def write(self, event: bytes) -> None:
        async with asyncio.timeout(self._heartbeat_s):
            await self._response.write(event)

    async def relay(self, changes: AsyncIterator[Push]) -> None:
        """Until the iterator ends, the node stops, or the peer is gone (ConnectionError, TimeoutError)."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        # One task takes the next change and is kept over heartbeats: to cancel it could lose a change.
        change = asyncio.ensure_future(_next(changes))
        try:
            while not self._stopping.is_set():
                await asyncio.wait((change, stopping), timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if not change.done():
                    if self._bearer is not None:
                        self._bearer.check_valid()
                    await self.write(b": heartbeat\n\n")
                    continue
                taken = change.result()
                if taken is None:
                    return
                await self.write(self._told(taken))
                change = asyncio.ensure_future(_next(changes))
            raise ShuttingDown("the node is stopping. Nothing was written. Watch again, here later or elsewhere.")
        except ShoalError as error:
            await self._tell(error)
        except (TimeoutError, ConnectionError):
            raise
        except Exception as bug:
            await self._tell(internal(bug, where="watch"))
        finally:
            change.cancel()
            stopping.cancel()
            await asyncio.gather(change, stopping, return_exceptions=True)

    def _told(self, push: Push) -> bytes:
        match push:
            case Change():
                if self._position is not None:
                    self._position.note(push)
                return _event("change", _view(push), id=self._id())
            case Reset():
                self._position = Position.unpack(push.position)
                return _event("reset", ResetView(push.reason), id=self._id())
            case _:
                assert isinstance(push, Watching)
                self._position = Position.unpack(push.position)
                return _event("began", {}, id=self._id())

    def _id(self) -> str:
        if self._position is None:
            return ""
        text = self._position.text(bytes_max=self._id_bytes_max)
        return text if len(text) <= self._id_bytes_max else ""

    async def _tell(self, error: ShoalError) -> None:
        told = {"code": error.code, "detail": error.message, "written": error.written, "retryable": error.retryable}
        await self.write(_event("error", told))


async def _next(changes: AsyncIterator[Push]) -> Push | None:
    return await anext(changes, None)


def _view(push: Change) -> ChangeView:
    return ChangeView(push.space, push.kind, push.name, push.what, push.id, push.hlc, push.wall_ms)


def _event(name: str, view: object, *, id: str = "") -> bytes:
    line = b"id: %s\n" % id.encode() if id else b""
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), line, msgspec.json.encode(view))


async def waited(
    exchange: Exchange, what: str, seconds: float, read: Callable[[], Awaitable[_Found]], holds: Callable[[_Found], bool]
) -> _Found:
    """The result of `read` once `holds`, or after the next change `what` of the thread, `seconds`, or a stop of the node."""
    space, thread = exchange.name("space"), exchange.name("thread")
    async with exchange.session.subscribe(Watch(space, "thread", thread)) as changes:
        # Read what came before the subscription; the subscription delivers what comes after it.
        if holds(found := await read()):
            return found

        async def told() -> None:
            async for change in changes:
                if isinstance(change, Change) and (change.name, change.what) == (thread, what):
                    return

        waits = asyncio.ensure_future(told()), asyncio.ensure_future(exchange.stopping.wait())
        try:
            seconds = min(seconds, exchange.config.journal_wait_s_max)
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            outcomes = await asyncio.gather(*waits, return_exceptions=True)
        # A slow consumer reads again, as it would after a change.
        if isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], SlowConsumer):
            raise outcomes[0]
    return await read()
