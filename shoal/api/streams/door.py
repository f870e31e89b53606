"""The door for the Durable Streams protocol: HTTP at `/v1/streams/{space}/{stream}`.

Laws:
- An answer to a read shows what every acknowledged append before it has left, on whatever node: the node catches up with a
  quorum first. A live reader is shown what is committed as soon as its node knows of it.
- A failure of one request is answered to it alone.
- A stop accepts nothing new, lets live readers go, decides what waits, and gives the leases up.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec.structs import replace

from shoal.api.http.bodies import Bodies, Receiving
from shoal.api.http.exchange import decoded
from shoal.api.http.origins import OpenGuarded
from shoal.api.http.problems import MethodNotAllowed
from shoal.api.streams import headers
from shoal.api.streams.headers import METHODS
from shoal.api.streams.reading import Reading, Tails, described
from shoal.config import Config
from shoal.errors import Overloaded, ShoalError, ShuttingDown, TooLarge
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.session import Session
from shoal.workflows.streams.decisions import Append, Command, Create, Delete, Hold, LetGo, Settle, absence
from shoal.workflows.streams.record import COMMITTED, Fork, Head, Offset, State, candidate, caught_up, thread_of
from shoal.workflows.streams.writer import STREAM_IDLE_S, Answer, Writer, forked

STREAM_PRODUCERS_MAX = 256  # Idempotent producers of one stream; beyond this, one that was silent for an hour is forgotten.
STREAM_FORKS_MAX = 1024  # Forks of one stream.
STREAM_FORK_DEPTH_MAX = 32  # Forks of forks of a stream: how deep.
STREAM_WRITERS_MAX = 256  # Streams that one node writes at a time; see lease_shards.

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer

_PREFIX_PARTS = 3  # Of the path, before the space.


class StreamDoor:
    """All streams at this node. `serve` is the handler of `STREAMS_PATH`; `now_s` is the node's clock."""

    def __init__(self, open_session: OpenGuarded, *, bodies: Bodies, config: Config, now_s: Callable[[], float]) -> None:
        self._open_session = open_session
        self._bodies = bodies
        self._config = config
        self._now_s = now_s
        self._writers: dict[tuple[str, str], Writer] = {}
        self._tails = Tails(self._opened, config)
        self._after: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def serve(self, request: web.Request, bearer: Bearer | None = None) -> web.StreamResponse:
        """Answer one request. `bearer` has the token of its client."""
        try:
            if self._stopping:
                raise ShuttingDown("the node is stopping. Nothing was written. Send it again later, or to another node.")
            space, stream, prefix = _place(request)
            await self._check(request, bearer, space, stream)
            match request.method:
                case "PUT" | "POST":
                    with self._bodies.under_way(bearer.token.author if bearer else None) as receiving:  # Until it is written.
                        body = await self._body(request, receiving)
                        if request.method == "POST":
                            return await self._append(request, space, stream, body)
                        return await self._create(request, bearer, space, stream, prefix, body)
                case "DELETE":
                    return self._answered(await self._decided(space, Delete(stream)), {})
                case "GET" | "HEAD":
                    return await self._read(request, bearer, space, stream)
                case other:
                    raise MethodNotAllowed(f"{other} is not allowed here. Nothing was written.", allowed=list(METHODS))
        except ShoalError as error:
            return headers.problem(error, {})

    async def stop(self) -> None:
        """Accept nothing new, and end what is under way."""
        self._stopping = True
        self._tails.wake()
        while self._after or self._writers:  # What is decided may end a fork, and then its source learns of that.
            for place, writer in list(self._writers.items()):
                self._drop(*place, writer)
            await asyncio.gather(*self._after, return_exceptions=True)

    # ── requests ──────────────────────────────────────────────────────────────

    async def _check(self, request: web.Request, bearer: Bearer | None, space: str, stream: str) -> None:
        """Check that a token grants the request: streams are threads.

        Raises:
            Forbidden, Unauthenticated: it does not.
        """
        if bearer is None:
            return
        thread = thread_of(stream)
        if request.method in ("GET", "HEAD"):
            await self._reads(bearer, space, thread)
        elif request.method == "DELETE":
            bearer.check(requests.DeleteThread(space, thread))
        else:
            bearer.check(requests.Append(space, thread, b"\xc0"))

    async def _reads(self, bearer: Bearer, space: str, thread: str) -> None:
        """Read something of the thread as its client: so that is checked, and logged where reads are.

        Raises:
            Forbidden, Unauthenticated: the token does not grant it.
        """
        session = self._open_session(Bookmark(), bearer=bearer)
        try:
            await session.call(requests.ReadPlace(space, thread, COMMITTED))
        finally:
            await session.close()

    async def _create(
        self, request: web.Request, bearer: Bearer | None, space: str, stream: str, prefix: str, body: bytes
    ) -> web.StreamResponse:
        content_type, lifetime = headers.content_type_of(request), headers.lifetime_of(request)
        source = headers.source_of(request, prefix)
        command = Create(stream, content_type, lifetime.ttl_s, lifetime.expires_ms, headers.closes(request), body)
        if source is None:
            answer = await self._decided(space, command)
        else:
            if bearer is not None:
                await self._reads(bearer, space, thread_of(check_name("stream", source.stream)))
            answer = await self._forked(space, command, source)
        location = {"Location": f"{request.url.origin()}{request.rel_url.raw_path}"} if answer.outcome.created else {}
        return self._answered(answer, location)

    async def _append(self, request: web.Request, space: str, stream: str, body: bytes) -> web.StreamResponse:
        command = Append(
            stream,
            headers.content_type_of(request),
            body,
            closes=headers.closes(request),
            sequence=headers.sequence_of(request),
            producer=headers.producer_of(request),
            producers_max=STREAM_PRODUCERS_MAX,
        )
        return self._answered(await self._decided(space, command), {})

    async def _read(self, request: web.Request, bearer: Bearer | None, space: str, stream: str) -> web.StreamResponse:
        query = headers.reading(request) if request.method == "GET" else None
        session = self._opened()
        try:
            head = await self._settled(session, space, stream, None if query is None else query.offset)
            absent = absence(head.state, self._now_ms(), head.touched_ms, stream)
            if absent is not None:
                self._note_expiry(space, stream, head.state)
                raise absent
            if query is None:
                return described(head, self._now_ms())
            reading = Reading(request, session, space, stream, now_s=self._now_s, tails=self._tails, bearer=bearer)
            return await reading.answered(head, query)
        finally:
            await session.close()

    async def _settled(self, session: Session, space: str, stream: str, offset: Offset | None) -> Head:
        """The newest record of a stream, and at least that before an offset, if there is one.

        A live reader at another node may have been shown a record that only that node had noted. It is committed, so it is
        here, and whoever holds the stream next notes it.
        """
        head = await caught_up(session, space, stream)
        if offset is None or head.state is None or offset.data <= head.state.tail.data:
            return head
        left = await candidate(session, space, stream, head)
        if left is None or left.end.data < offset.data:
            return head
        await self._decided(space, Settle(stream))
        return await caught_up(session, space, stream)

    # ── forks ─────────────────────────────────────────────────────────────────

    async def _forked(self, space: str, command: Create, source: headers.Source) -> Answer:
        """Create a fork. Its source notes it first, so that its data stays."""
        session = self._opened()
        try:
            await self._settled(session, space, source.stream, source.at)
            command = await forked(
                session,
                space,
                command,
                source.stream,
                source.at,
                source.sub,
                now_ms=self._now_ms(),
                depth_max=STREAM_FORK_DEPTH_MAX,
            )
            own = await caught_up(session, space, command.stream)
        finally:
            await session.close()
        if absence(own.state, self._now_ms(), own.touched_ms) is None:
            return await self._decided(space, command)  # It exists already, as it should or not.
        fork = command.fork
        assert fork is not None
        held = await self._decided(space, Hold(fork.source, fork.incarnation, STREAM_FORKS_MAX))
        if held.outcome.error is not None:
            return held
        fork = replace(fork, mark=held.outcome.mark)
        answer = await self._decided(space, dataclasses.replace(command, fork=fork))
        if not answer.outcome.created:  # Somebody else was faster, or it was refused.
            self._later(self._release(space, fork))
        return answer

    # ── writing ───────────────────────────────────────────────────────────────

    async def _body(self, request: web.Request, receiving: Receiving) -> bytes:
        body = await receiving.read(request)
        if len(body) > self._config.stream_append_bytes_max:
            raise TooLarge(
                f"a body may have at most {self._config.stream_append_bytes_max} bytes (stream_append_bytes_max); this one has "
                f"{len(body)}. Nothing was written."
            )
        return body

    async def _decided(self, space: str, command: Command) -> Answer:
        writer = self._writer(space, command.stream)
        try:
            answer = await writer.submit(command)
        finally:
            if writer.is_idle:
                self._drop(space, command.stream, writer)
        released = answer.outcome.released
        if released is not None:
            self._later(self._release(space, released))
        return answer

    def _writer(self, space: str, stream: str) -> Writer:
        writer = self._writers.get((space, stream))
        if writer is not None:
            return writer
        for place, idle in list(self._writers.items()):
            if idle.is_idle:
                self._drop(*place, idle)
        if len(self._writers) >= STREAM_WRITERS_MAX:
            quiet = next((each for each in self._writers.values() if not each.is_busy), None)
            if quiet is not None:
                quiet.yield_soon()
            raise Overloaded(
                f"this node writes {STREAM_WRITERS_MAX} streams. Nothing was written. Try again later, or at another node.",
                retry_after_s=STREAM_IDLE_S,
            )
        writer = Writer(self._opened(), space, stream, config=self._config, now_ms=self._now_ms)
        self._writers[space, stream] = writer
        return writer

    def _drop(self, space: str, stream: str, writer: Writer) -> None:
        if self._writers.get((space, stream)) is writer:
            del self._writers[space, stream]
            self._later(writer.close())

    async def _release(self, space: str, fork: Fork) -> None:
        """Let a source know that a fork reads it no more."""
        with suppress(ShoalError):
            await self._decided(space, LetGo(fork.source, fork.mark))

    def _note_expiry(self, space: str, stream: str, state: State | None) -> None:
        """Write down that a fork has expired: its source may be kept for it alone."""
        if state is not None and not (state.deleted or state.gone) and state.fork is not None:
            self._later(self._expire(space, stream))

    async def _expire(self, space: str, stream: str) -> None:
        with suppress(ShoalError):
            await self._decided(space, Delete(stream, expired_only=True))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._after.add(task)
        task.add_done_callback(self._after.discard)

    def _answered(self, answer: Answer, more: dict[str, str]) -> web.Response:
        outcome = answer.outcome
        said = {**outcome.headers, **more}
        if answer.offset is not None:
            said["Stream-Next-Offset"] = str(answer.offset)
        if outcome.error is not None:
            return headers.problem(outcome.error, said)
        return web.Response(status=outcome.status, headers={**said, "Cache-Control": "no-store"})

    def _opened(self) -> Session:
        return self._open_session(Bookmark())

    def _now_ms(self) -> int:
        return int(1000 * self._now_s())


def _place(request: web.Request) -> tuple[str, str, str]:
    """The space and the stream that the path names, and the path of the space's streams.

    Raises:
        InvalidName: one of them is no name.
    """
    parts = request.rel_url.raw_path.split("/", _PREFIX_PARTS + 1)
    space = check_name("space", decoded(parts[_PREFIX_PARTS], "space name"))
    stream = check_name("stream", decoded(parts[_PREFIX_PARTS + 1], "stream name"))
    check_name("stream", thread_of(stream))
    return space, stream, "/".join(parts[: _PREFIX_PARTS + 1]) + "/"
