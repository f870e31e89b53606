"""Reads of a stream: what is there, by long-poll, and as server-sent events.

Readers that wait at the end of a stream: one watch of the thread for all of them at this node.

Law: a reader that looks at the tail's version first, and then at the stream, misses nothing by waiting for another version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from shoal.api.http.problems import internal
from shoal.api.streams import headers as answers
from shoal.api.streams.headers import ReadingQuery
from shoal.config import Config
from shoal.errors import Overloaded, ShoalError, SlowConsumer
from shoal.protocol.requests import ReachPlace, Watch
from shoal.protocol.session import Session
from shoal.workflows.streams import record as chain
from shoal.workflows.streams.decisions import absence, shown
from shoal.workflows.streams.record import TOUCHED, Head, Offset, Part, State, thread_of

STREAM_READ_BYTES_MAX = 1 * 1024 * 1024  # Data in one answer; the append that reaches it is sent whole.
STREAM_SSE_S = 60.0  # After this, server-sent events end and the client connects again, so that caches can share them.
STREAM_READERS_MAX = 1024  # Live readers of streams at one node; beyond this: Overloaded.

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer


class Tail:
    """The end of one stream, as it moves."""

    def __init__(self, session: Session, space: str, stream: str) -> None:
        self._session = session
        self._watch = Watch(space, "thread", thread_of(stream))
        self._moved = asyncio.Event()
        self.version = 0
        self.users = 0
        self.is_over = False
        self._begun = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    async def begun(self) -> None:
        """Return once the watch has begun."""
        await self._begun.wait()

    async def moved(self, version: int, timeout_s: float) -> bool:
        """Wait until the stream may have changed since this version. Returns False if the time is over, or the node stops."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.version == version and not self.is_over:
                    await self._moved.wait()
        except TimeoutError:
            return False
        return not self.is_over

    async def _follow(self) -> None:
        try:
            while True:
                try:
                    async with self._session.subscribe(self._watch) as changes:
                        self._move()
                        self._begun.set()
                        async for _ in changes:
                            self._move()
                        return
                except SlowConsumer:
                    continue  # Whoever waits looks again.
        except ShoalError:
            pass  # The node stops.
        except Exception as bug:
            internal(bug, where="stream")
        finally:
            self.is_over = True
            self._begun.set()
            self._move()

    def _move(self) -> None:
        self.version += 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def nudge(self) -> None:
        """Let everybody who waits look again."""
        self._move()

    def wake(self) -> None:
        """Let everybody who waits go: the node stops."""
        self.is_over = True
        self._move()

    async def close(self) -> None:
        """End the watch."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._session.close()


class Tails:
    """The tails at which somebody waits. `open_session` opens a session of the node's own."""

    def __init__(self, open_session: Callable[[], Session], config: Config) -> None:
        self._open_session = open_session
        self.config = config
        self._tails: dict[tuple[str, str], Tail] = {}
        self._readers = 0
        self._is_over = False
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def at(self, space: str, stream: str) -> Iterator[Tail]:
        """A context with the tail of a stream.

        Raises:
            Overloaded: too many readers wait.
        """
        if self._readers >= STREAM_READERS_MAX:
            raise Overloaded(
                f"{STREAM_READERS_MAX} live readers of streams are connected to this node. "
                "Nothing was written. Try again later, or at another node.",
                retry_after_s=1.0,
            )
        tail = self._tails.get((space, stream))
        if tail is None or tail.is_over:  # Its watch may have failed. Its readers have gone, or go now.
            tail = self._tails[space, stream] = Tail(self._open_session(), space, stream)
            if self._is_over:
                tail.wake()
        tail.users += 1
        self._readers += 1
        try:
            yield tail
        finally:
            tail.users -= 1
            self._readers -= 1
            if not tail.users:
                if self._tails.get((space, stream)) is tail:
                    del self._tails[space, stream]
                closing = asyncio.create_task(tail.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def wake(self) -> None:
        """Let everybody who waits go, and all that come: the node stops."""
        self._is_over = True
        for tail in self._tails.values():
            tail.wake()


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
        now_s: Callable[[], float],
        tails: Tails,
        bearer: Bearer | None,
    ) -> None:
        self._request = request
        self._session = session
        self._space = space
        self._stream = stream
        self._config = tails.config
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
            bytes_max=STREAM_READ_BYTES_MAX,
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
        ends_s = self._loop_s() + STREAM_SSE_S
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
