"""The one writer of a stream, for as long as this node holds its lease; and streams that fork from another one.

Laws (docs/decisions/0091-durable-streams.md):
- A record is written under a lease, to a quorum. That it is committed is noted after that, and only if the lease has not ended
  by then; it is answered once a quorum holds the note. So no reader is shown what a later holder does not find.
- A holder begins with what a quorum holds. A record that may be committed without a note is written again, unchanged, under its
  own number, before anything else.
- After an error the holder knows nothing any more: it begins a new term.
- A request that writes nothing is answered only if the lease has not ended by then: a holder that stood still may know old
  things.
- A holder frees only what is before its own record, so it may do that late.
- If others wait for the lease, it is given up after the present group of requests.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from shoal.config import Config
from shoal.errors import (
    Conflict,
    InvalidInput,
    LeaseHeld,
    LeaseLost,
    NoQuorum,
    OutcomeUnknown,
    ShoalError,
    ShuttingDown,
    Unavailable,
)
from shoal.protocol.requests import (
    AcquireLease,
    Append,
    Appended,
    Batch,
    BatchReply,
    CatchUp,
    Fenced,
    ObjectWrite,
    ReachPlace,
    ReadLease,
    ReadPlace,
    ReleaseLease,
    RenewLeases,
    Term,
    Trim,
)
from shoal.protocol.session import Session
from shoal.records import NamedTuple
from shoal.workflows.streams import record as chain
from shoal.workflows.streams.decisions import Command, Create, Moment, Outcome, StreamGone, absence, messages
from shoal.workflows.streams.record import (
    COMMITTED,
    FROM,
    TOUCHED,
    Fork,
    Head,
    Offset,
    Record,
    State,
    media_type,
    packed,
    thread_of,
)


async def forked(
    session: Session,
    space: str,
    command: Create,
    source: str,
    at: Offset | None,
    sub: int,
    *,
    now_ms: int,
    depth_max: int,
) -> Create:
    """The command to create a fork of `source`, at its end unless an offset is given.

    With `sub`, so many bytes or messages of the append after the offset are copied. What the command does not say is taken
    from the source: its content type, and its lifetime.

    Raises:
        NotFound: there is no such source.
        Conflict: it was deleted, or has another content type.
        InvalidInput: it has no such position, or is the end of too many forks of forks.
        NoQuorum: too few nodes can be reached.
    """
    head = await chain.caught_up(session, space, source)
    state, absent = head.state, absence(head.state, now_ms, head.touched_ms, source)
    if isinstance(absent, StreamGone):
        raise Conflict(absent.message)
    if absent is not None:
        raise absent
    assert state is not None
    if command.content_type is not None and media_type(command.content_type) != media_type(state.content_type):
        raise Conflict(
            f"stream {source!r} is {state.content_type!r}, so a fork of it cannot be {command.content_type[:80]!r}. "
            "Nothing was written."
        )
    place = state.tail if at is None else at
    chain.check(state, place)
    depth = 1 if state.fork is None else state.fork.depth + 1
    if depth > depth_max:
        raise InvalidInput(
            f"stream {source!r} is a fork of forks, {depth_max} deep. Nothing was written. Fork one of its sources.",
            field="Stream-Forked-From",
        )
    prefix = None
    if sub:
        part = await chain.read(session, space, source, state, place, committed=head.committed, bytes_max=1)
        prefix = _first(part.entries, sub, state)
    lasts = command.ttl_s is not None or command.expires_ms is not None
    return dataclasses.replace(
        command,
        content_type=command.content_type or state.content_type,
        ttl_s=command.ttl_s if lasts else state.ttl_s,
        expires_ms=command.expires_ms if lasts else state.expires_ms,
        fork=Fork(source, state.incarnation, place, sub, depth),
        fork_is_named=at is not None,
        prefix=prefix,
    )


def _first(entries: list[bytes], count: int, state: State) -> bytes:
    """The first bytes, or messages, of the first of these appends."""
    entry = entries[0] if entries else b""
    parts = messages(b"[" + entry + b"]") if state.is_json else None
    if count > len(entry if parts is None else parts):
        raise InvalidInput(
            "Stream-Fork-Sub-Offset is beyond the append after Stream-Fork-Offset. Nothing was written.",
            field="Stream-Fork-Sub-Offset",
        )
    return entry[:count] if parts is None else b",".join(parts[:count])


STREAM_GROUP_APPENDS_MAX = 256  # Appends to one stream that are written as one record.
STREAM_GROUP_BYTES_MAX = 1 * 1024 * 1024  # The same in bytes; the first append may exceed it.
STREAM_IDLE_S = 0.5  # A writer that has nothing to do for this long gives its lease up.
STREAM_WAIT_S = 15.0  # How long a request waits for a stream that another node writes.

_RENEWALS = 3  # In each ttl.


class Answer(NamedTuple):
    """The outcome of a command, once it is committed, and the position that it names."""

    outcome: Outcome
    offset: Offset | None


class _Waiting(NamedTuple):
    command: Command
    answer: asyncio.Future[Answer]


class _Tenure(NamedTuple):
    """A term of the lease; `is_alone`: this node is the only owner of the data."""

    term: Term
    is_alone: bool


class Writer:
    """Decides commands on one stream, in their order. `now_ms` is the node's clock."""

    def __init__(self, session: Session, space: str, stream: str, *, config: Config, now_ms: Callable[[], int]) -> None:
        self._session = session
        self._space = space
        self._thread = thread_of(stream)
        self._stream = stream
        self._lease = f"stream/{sha256(stream.encode()).hexdigest()[:24]}"
        self._config = config
        self._now_ms = now_ms
        self._queue: deque[_Waiting] = deque()
        self._work = asyncio.Event()
        self._others_wait = False
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it holds no lease, and nobody waits for it."""
        return self._task is None

    @property
    def is_busy(self) -> bool:
        """Whether commands wait."""
        return bool(self._queue)

    async def submit(self, command: Command) -> Answer:
        """The answer to a command.

        Raises:
            Unavailable, NoQuorum, Overloaded: nothing was written.
            OutcomeUnknown: it may be written, now or later.
        """
        if self._closing:
            raise ShuttingDown("the node is stopping. Nothing was written. Send it again later, or to another node.")
        waiting = _Waiting(command, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._work.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            return await waiting.answer
        finally:
            if not waiting.answer.done() and waiting in self._queue:  # The client left before its turn.
                self._queue.remove(waiting)

    def yield_soon(self) -> None:
        """Give the lease up as soon as nothing waits."""
        self._others_wait = True
        self._work.set()

    async def close(self) -> None:
        """Decide what waits, and give the lease up."""
        self._closing = True
        self._work.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._session.close()

    # ── terms ─────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._hold()
        finally:
            self._task = None
            for waiting in self._queue:  # Cancelled.
                _fail(waiting, ShuttingDown("the node is stopping. Nothing was written. Send it again to another node."))
            self._queue.clear()

    async def _hold(self) -> None:
        """Hold the lease once, and work under it."""
        self._others_wait = False
        try:
            holding = await self._acquired()
        except Exception as error:
            self._fail_all(error)
            return
        keeping = asyncio.create_task(self._keep(holding.term))
        try:
            try:
                head = await self._begun(holding)
            except Exception as error:
                self._fail_all(error)
                return
            while await self._wait():
                known = await self._group(holding, head)
                if known is None or (self._others_wait and not self._closing):
                    return
                head = known
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            with suppress(ShoalError):  # It ends by itself.
                await self._session.call(ReleaseLease(self._space, self._lease, holding.term.fence, holding.term.token))

    async def _wait(self) -> bool:
        """Wait for a command; returns whether one has come before the lease is idle."""
        while not self._queue:
            if self._closing or self._others_wait:
                return False
            self._work.clear()
            try:
                async with asyncio.timeout(STREAM_IDLE_S):
                    await self._work.wait()
            except TimeoutError:
                return bool(self._queue)
        return True

    async def _acquired(self) -> _Tenure:
        config = self._config
        ends_s = asyncio.get_running_loop().time() + STREAM_WAIT_S
        token = ""
        while True:
            left_s = ends_s - asyncio.get_running_loop().time()
            wait_ms = int(1000 * max(0.0, min(left_s, config.lease_poll_s)))
            request = AcquireLease(self._space, self._lease, int(1000 * config.stream_ttl_s), "", token, wait_ms)
            try:
                granted = await self._session.call(request)
            except LeaseHeld:
                left_s = 0
            else:
                if granted.granted:
                    break
                token = granted.token
            if left_s <= 0:
                if token:
                    with suppress(ShoalError):
                        await self._session.call(ReleaseLease(self._space, self._lease, 0, token))
                raise Unavailable(
                    f"another node wrote stream {self._stream!r} for {STREAM_WAIT_S:g} s. Nothing was written. Try again."
                )
        term = Term(self._space, self._lease, False, granted.fence, granted.token)
        caught = await self._session.call(CatchUp(self._space, self._thread))
        if not caught.quorum:
            with suppress(ShoalError):
                await self._session.call(ReleaseLease(self._space, self._lease, term.fence, term.token))
            raise NoQuorum(f"{caught.reason.rstrip('.')}. Nothing was written. Try again, or at another node.")
        return _Tenure(term, caught.size == 1)

    async def _keep(self, term: Term) -> None:
        """Renew the lease, and see whether others wait for it."""
        every_ms = int(1000 * self._config.stream_ttl_s / _RENEWALS)
        mark = ""
        while True:
            with suppress(ShoalError):
                state = await self._session.call(ReadLease(self._space, self._lease, False, every_ms if mark else 0, mark))
                if state.waiting:
                    self.yield_soon()
                if mark and (await self._session.call(RenewLeases([term]))).lost:
                    self.yield_soon()
                    return
                mark = state.mark
                continue
            await asyncio.sleep(every_ms / 1000)

    async def _begun(self, holding: _Tenure) -> Head:
        """The state of the stream when a term begins."""
        head = await chain.head(self._session, self._space, self._stream)
        left = await chain.candidate(self._session, self._space, self._stream, head)
        if left is None:
            return head
        return await self._committed(holding, replace(left, fence=holding.term.fence), head)

    # ── groups of commands ────────────────────────────────────────────────────

    async def _group(self, holding: _Tenure, head: Head) -> Head | None:
        """Decide the commands that wait, as one record. Returns the head after it; None if the term has to end."""
        group = self._taken()
        try:
            if head.state is not None and head.state.ttl_s is not None:
                touched = await self._session.call(ReadPlace(self._space, self._thread, TOUCHED))
                head = head._replace(touched_ms=touched.place)
            outcomes, record = self._decided(group, holding, head)
            after = await (self._held(holding, head) if record is None else self._committed(holding, record, head))
        except Exception as error:
            told = self._told(error)
            for waiting in group:
                _fail(waiting, told)
            return None
        for waiting, outcome in zip(group, outcomes, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(Answer(outcome, _position(outcome.data, head, after, record)))
        if record is not None and record.index and (record.state.deleted or record.state.incarnation == record.index):
            await self._trim(after.event)
        return after

    def _taken(self) -> list[_Waiting]:
        """The first of the commands that wait, as many as may share a record."""
        group = [self._queue.popleft()]
        size = _size(group[0].command)
        while self._queue and not (group[0].command.alone or self._queue[0].command.alone):
            size += _size(self._queue[0].command)
            if len(group) == STREAM_GROUP_APPENDS_MAX or size > STREAM_GROUP_BYTES_MAX:
                break
            group.append(self._queue.popleft())
        return group

    def _decided(self, group: list[_Waiting], holding: _Tenure, head: Head) -> tuple[list[Outcome], Record | None]:
        moment = Moment(self._now_ms(), head.touched_ms, head.committed, head.last_ms)
        state, entries, first = head.state, list[bytes](), 0
        outcomes = []
        for waiting in group:
            outcome = waiting.command.decide(state, moment)
            outcomes.append(outcome)
            if outcome.state is None:
                continue
            state = outcome.state
            if outcome.entry is not None and outcome.data is not None:
                first = first if entries else outcome.data - 1
                entries.append(outcome.entry)
                state = replace(state, tail=Offset(outcome.data, moment.from_ms, moment.record + 1))
        if state is head.state or state is None:
            return outcomes, None
        return outcomes, Record(holding.term.fence, moment.record, first, moment.from_ms, state, entries)

    async def _held(self, holding: _Tenure, head: Head) -> Head:
        """The head, if the lease has not ended: then it is still what is committed.

        Raises:
            LeaseLost: it has ended.
        """
        nothing_new = ReachPlace(self._space, self._thread, COMMITTED, head.committed)
        await self._session.call(Fenced([holding.term], nothing_new))
        return head

    async def _committed(self, holding: _Tenure, record: Record, head: Head) -> Head:
        """Write a record, and note that it is committed."""
        append = Append(self._space, self._thread, packed(record))
        notes: list[ObjectWrite[Any]] = [
            ReachPlace(self._space, self._thread, COMMITTED, record.index + 1),
            ReachPlace(self._space, self._thread, FROM, record.from_ms),
        ]
        terms = [holding.term]
        # A single node needs no second write: nobody else can have begun meanwhile. It may have got peers since the term began.
        is_alone = holding.is_alone and (await self._session.call(CatchUp(self._space, self._thread))).size == 1
        writes = Batch([append, *notes]) if is_alone else append
        answered = (await self._session.call(Fenced(terms, writes), durability="quorum")).reply
        if isinstance(answered, BatchReply):
            [answered, *_] = answered.replies
        else:
            await self._noted(Fenced(terms, Batch(notes)))
        assert isinstance(answered, Appended)
        return Head(record.index + 1, record.state, record.from_ms, head.touched_ms, answered.id)

    async def _noted(self, notes: Fenced) -> None:
        try:
            await self._session.call(notes, durability="quorum")
        except ShoalError as error:
            raise _unknown(error) from error

    async def _trim(self, event: str) -> None:
        """Free what a stream held before this event, which ended it or began another. If it fails, the next one does it."""
        with suppress(ShoalError):
            await self._session.call(Trim(self._space, self._thread, before=event))

    def _fail_all(self, error: Exception) -> None:
        # An unknown outcome is that of the lease, or of a record that another request left.
        told = self._not_kept() if isinstance(error, LeaseLost | OutcomeUnknown) else error
        waiting, self._queue = list(self._queue), deque()
        for each in waiting:
            _fail(each, told)

    def _told(self, error: Exception) -> Exception:
        """The error of a group whose first write failed."""
        if not isinstance(error, ShoalError):
            return error
        if error.written != "no":
            return _unknown(error)
        return self._not_kept() if isinstance(error, LeaseLost) else error

    def _not_kept(self) -> Unavailable:
        return Unavailable(f"the lease of stream {self._stream!r} could not be kept. Nothing was written. Try again.")


def _position(data: int | None, before: Head, after: Head, record: Record | None) -> Offset | None:
    if data is None or after.state is None:
        return None
    if data == after.state.tail.data or record is None:
        return after.state.tail
    if before.state is not None and data == before.state.tail.data:
        return before.state.tail
    return Offset(data, record.from_ms, record.index)


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)


def _unknown(error: ShoalError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"it is not known whether this was written: {error.message.partition('. ')[0]}. A producer may send it again with the "
        "same Producer-Seq, which appends it once; others read the stream first."
    )


def _size(command: Command) -> int:
    return len(getattr(command, "body", b""))
