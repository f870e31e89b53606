"""Reads of a stream: what is there, by long-poll, and as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from shoal.api.streams import answers
from shoal.api.streams.headers import ReadingQuery
from shoal.api.streams.tails import Tail, Tails
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.protocol.requests import ReachPlace
from shoal.protocol.session import Session
from shoal.workflows.streams import chain
from shoal.workflows.streams.chain import Head, Part
from shoal.workflows.streams.decisions import absence, shown
from shoal.workflows.streams.record import TOUCHED, Offset, State, thread_of

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer

_TOUCH_SHARE = 20  # A read is noted if this share of the TTL has passed since the last one.


class Page:
    """Some of a stream, as one answer shows it."""

    def __init__(self, head: Head, state: State, part: Part) -> None:
        self.state = state
        self.end = part.end
        self.is_empty = not part.entries
        self.body = shown(part.entries, is_json=state.is_json)
        self.is_last = part.end.data >= state.tail.data
        self.is_closed = self.is_last and state.closed


def described(head: Head, now_ms: int) -> web.Response:
    """The answer to HEAD."""
    state = head.state
    assert state is not None
    said = {"Content-Type": state.content_type, "Stream-Next-Offset": str(state.tail), "Cache-Control": "no-store"}
    if state.closed:
        said["Stream-Closed"] = "true"
    if state.ttl_s is not None:
        said["Stream-TTL"] = str(state.ttl_s)
    if state.expires_ms is not None:
        said["Stream-Expires-At"] = datetime.fromtimestamp(state.expires_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    return web.Response(headers=said)


class Reading:
    """One GET. `session` is the node's own."""

    def __init__(
        self,
        request: web.Request,
        session: Session,
        space: str,
        stream: str,
        *,
        config: Config,
        now_s: Callable[[], float],
        tails: Tails,
        bearer: Bearer | None,
    ) -> None:
        self._request = request
        self._session = session
        self._space = space
        self._stream = stream
        self._config = config
        self._now_s = now_s
        self._tails = tails
        self._bearer = bearer

    async def answered(self, head: Head, query: ReadingQuery) -> web.StreamResponse:
        """The answer.

        Raises:
            InvalidInput: the offset is not one of this stream.
        """
        state = head.state
        assert state is not None
        await self._touch(head, state)
        start = state.tail if query.offset is None else query.offset
        chain.check(state, start)
        if query.live == "sse":
            return await self._events(start, query.cursor)
        if query.live:
            return await self._polled(start, query)
        if query.offset is None:
            return self._shown(Page(head, state, Part([], state.tail)), start, {"Cache-Control": "no-store"})
        page = await self._page(head, state, start)
        etag = f'"{state.incarnation}:{start.data}:{page.end.data}{":c" if page.is_closed else ""}"'
        if etag in (part.strip() for part in self._request.headers.get(hdrs.IF_NONE_MATCH, "").split(",")):
            return web.Response(status=304, headers={"ETag": etag})
        # What follows a page that is not the last one is known to follow it for ever.
        kept = "no-cache" if page.is_last else "private, max-age=60, stale-while-revalidate=300"
        return self._shown(page, start, {"ETag": etag, "Cache-Control": kept})

    async def _page(self, head: Head, state: State, start: Offset) -> Page:
        part = await chain.read(
            self._session,
            self._space,
            self._stream,
            state,
            start,
            committed=head.committed,
            bytes_max=self._config.stream_read_bytes_max,
        )
        return Page(head, state, part)

    def _shown(self, page: Page, start: Offset, more: dict[str, str], *, cursor: str = "") -> web.Response:
        said = {"Stream-Next-Offset": str(page.end), **more}
        if page.is_last:
            said["Stream-Up-To-Date"] = "true"
        if page.is_closed:
            said["Stream-Closed"] = "true"
        if cursor:
            said["Stream-Cursor"] = cursor
        return web.Response(body=page.body, headers={**answers.data_headers(page.state), **said})

    # ── live ──────────────────────────────────────────────────────────────────

    async def _polled(self, start: Offset, query: ReadingQuery) -> web.Response:
        ends_s = self._loop_s() + self._config.stream_poll_s
        cursor = answers.cursor_after(query.cursor, self._now_s())
        with self._tails.at(self._space, self._stream) as tail:
            await tail.begun()
            while True:
                version = tail.version
                head, state = await self._looked()
                page = await self._page(head, state, start)
                if not page.is_empty:
                    return self._shown(page, start, {"Cache-Control": "no-store"}, cursor=cursor)
                if page.is_closed or not await tail.moved(version, max(0.0, ends_s - self._loop_s())):
                    break
        said = {"Stream-Next-Offset": str(page.end), "Stream-Up-To-Date": "true", "Stream-Cursor": cursor}
        if page.is_closed:
            said["Stream-Closed"] = "true"
        return web.Response(status=204, headers={**said, "Cache-Control": "no-store"})

    async def _events(self, start: Offset, cursor: str) -> web.StreamResponse:
        with self._tails.at(self._space, self._stream) as tail:
            await tail.begun()
            _, state = await self._looked()
            encoded = {} if answers.is_text(state) else {"Stream-SSE-Data-Encoding": "base64"}
            response = web.StreamResponse(headers={**answers.EVENTS, **encoded})
            await response.prepare(self._request)
            over = asyncio.Event()

            def ends(_: str) -> None:
                over.set()
                tail.nudge()

            with nullcontext() if self._bearer is None else self._bearer.watched(ends):
                try:
                    await self._relay(response, tail, start, cursor, over)
                except ShoalError:
                    pass  # Deleted, expired, or the node stops: the client asks again, and is told.
                except (TimeoutError, ConnectionError):
                    # The client reads nothing, or is gone.
                    if self._request.transport is not None:
                        self._request.transport.abort()
        return response

    async def _relay(self, response: web.StreamResponse, tail: Tail, start: Offset, cursor: str, over: asyncio.Event) -> None:
        ends_s = self._loop_s() + self._config.stream_sse_s
        is_first = True
        while not over.is_set():
            version = tail.version
            head, state = await self._looked()
            page = await self._page(head, state, start)
            if is_first or not page.is_empty or page.is_closed:
                cursor = answers.cursor_after(cursor, self._now_s())
                told = b"" if page.is_empty else answers.data_event(state, page.body)
                told += answers.control_event(page.end, cursor=cursor, up_to_date=page.is_last, closed=page.is_closed)
                await self._write(response, told)
                start, is_first = page.end, False
            left_s = ends_s - self._loop_s()
            if page.is_closed or left_s <= 0:
                return
            if page.is_last and not await tail.moved(version, min(left_s, self._config.heartbeat_s)):
                if tail.is_over:
                    return
                await self._write(response, b": heartbeat\n\n")

    async def _write(self, response: web.StreamResponse, event: bytes) -> None:
        async with asyncio.timeout(self._config.heartbeat_s):
            await response.write(event)

    async def _looked(self) -> tuple[Head, State]:
        """The stream as this node has it.

        Raises:
            NotFound: it was deleted, or has expired.
        """
        head = await chain.head(self._session, self._space, self._stream)
        absent = absence(head.state, int(1000 * self._now_s()), head.touched_ms, self._stream)
        if absent is not None:
            raise absent
        assert head.state is not None
        return head, head.state

    async def _touch(self, head: Head, state: State) -> None:
        """Note that the stream was read, if it lives as long as somebody does."""
        if state.ttl_s is None:
            return
        now_ms = int(1000 * self._now_s())
        if now_ms - max(state.written_ms, head.touched_ms) >= 1000 * state.ttl_s // _TOUCH_SHARE:
            with suppress(ShoalError):  # A node whose disk is full goes on to show what it has.
                await self._session.call(ReachPlace(self._space, thread_of(self._stream), TOUCHED, now_ms))

    def _loop_s(self) -> float:
        return asyncio.get_running_loop().time()
