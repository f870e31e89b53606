"""Read a stream's records: the newest one, and those from an offset on.

Law: a reader sees committed records only, each once, in the order of their indexes. What it was shown stays as it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from shoal.errors import InvalidInput, NoQuorum, NotFound
from shoal.protocol.requests import CatchUp, Event, MultiRead, Place, ReadJournal, ReadPlace
from shoal.protocol.session import Session
from shoal.records import NamedTuple
from shoal.workflows.streams.record import (
    COMMITTED,
    FROM,
    TOUCHED,
    Chosen,
    Offset,
    Record,
    State,
    thread_of,
    time_ms,
)

_PAGE = 64  # Events.


class Head(NamedTuple):
    """A stream as far as it is committed."""

    committed: int = 0
    state: State | None = None  # None: it never existed.
    from_ms: int = 0  # No record from here on is older.
    touched_ms: int = 0
    event: str = ""  # The journal's event that holds its last record.

    @property
    def last_ms(self) -> int:
        """A time that is not after its last record."""
        return time_ms(self.event) if self.event else 0


class Part(NamedTuple):
    """Some of a stream's appends, and where they end."""

    entries: list[bytes]
    end: Offset


async def head(session: Session, space: str, stream: str) -> Head:
    """The newest committed record of a stream, as this node has it."""
    thread = thread_of(stream)
    reads = MultiRead([ReadPlace(space, thread, name) for name in (COMMITTED, FROM, TOUCHED)])
    committed, from_ms, touched_ms = (
        answer.place if isinstance(answer, Place) else 0 for answer in (await session.call(reads)).replies
    )
    if not committed:
        return Head()
    chosen = Chosen(first=committed - 1, committed=committed)
    async with aclosing(events(session, space, stream, from_ms)) as found:
        async for event in found:
            chosen.take(event.id, event.event)
    last = chosen.last()
    return Head(committed, None if last is None else last.state, from_ms, touched_ms, chosen.event)


async def caught_up(session: Session, space: str, stream: str) -> Head:
    """The newest committed record, of all that a quorum holds.

    Raises:
        NoQuorum: too few nodes can be reached.
    """
    caught = await session.call(CatchUp(space, thread_of(stream)))
    if not caught.quorum:
        raise NoQuorum(f"{caught.reason.rstrip('.')}. Nothing was written. Try again, or at another node.")
    return await head(session, space, stream)


async def candidate(session: Session, space: str, stream: str, head: Head) -> Record | None:
    """The record after the committed ones, if there is any: it may be committed, although nobody has noted that.

    Of several, the one with the greatest fencing number: if one is committed, all with greater ones have the same content.
    """
    chosen = Chosen(first=head.committed, committed=head.committed + 1)
    async with aclosing(events(session, space, stream, head.from_ms)) as found:
        async for event in found:
            chosen.take(event.id, event.event)
    return chosen.last()


async def events(session: Session, space: str, stream: str, from_ms: int) -> AsyncGenerator[Event, None]:
    """The events of the journal from a time on, in their order."""
    cursor = b""
    while True:
        page = await session.call(ReadJournal(space, thread_of(stream), cursor, _PAGE, from_ms, True))
        for event in page.events:
            yield event
        cursor = page.cursor
        if not page.more:
            return


async def records(session: Session, space: str, stream: str, start: Offset, committed: int) -> AsyncGenerator[Record, None]:
    """The records that count from an offset on."""
    chosen = Chosen(first=start.record, committed=committed)
    async with aclosing(events(session, space, stream, start.from_ms)) as found:
        async for event in found:
            decided = chosen.take(event.id, event.event)
            if decided is not None:
                yield decided
    last = chosen.last()
    if last is not None:
        yield last


def check(state: State, offset: Offset) -> None:
    """Check that the stream can have, or inherit, an offset.

    Raises:
        InvalidInput: it is beyond its end, or of a stream of this name that was there before.
    """
    if offset.data > state.tail.data:
        raise InvalidInput("the offset is beyond the end of the stream. Nothing was written. Read from -1.", field="offset")
    if offset.data > state.begin.data and 0 < offset.record <= state.begin.record:
        raise InvalidInput(
            "the offset is of a stream of this name that was there before this one. Nothing was written. Read from -1.",
            field="offset",
        )


async def read(
    session: Session, space: str, stream: str, state: State, start: Offset, *, committed: int, bytes_max: int
) -> Part:
    """The appends from an offset on, up to the first that reaches `bytes_max`.

    Raises:
        InvalidInput: it is no offset of this stream.
    """
    check(state, start)
    fork = state.fork
    if fork is not None and start.data < fork.at.data:
        part = await _inherited(session, space, state, start, bytes_max=bytes_max)
        size = sum(map(len, part.entries))
        if part.end.data < fork.at.data or size >= bytes_max or state.tail.data == fork.at.data:
            return part
        own = await _own(session, space, stream, state, state.begin, committed=committed, bytes_max=bytes_max - size)
        return Part(part.entries + own.entries, own.end)
    if start.data >= state.tail.data:
        return Part([], state.tail)
    is_own = start.data > state.begin.data and start.record > state.begin.record
    return await _own(
        session,
        space,
        stream,
        state,
        start if is_own else state.begin,
        committed=committed,
        bytes_max=bytes_max,
        data=start.data,
    )


async def _own(
    session: Session,
    space: str,
    stream: str,
    state: State,
    start: Offset,
    *,
    committed: int,
    bytes_max: int,
    data: int | None = None,
) -> Part:
    wanted = start.data if data is None else data
    entries: list[bytes] = []
    end, size = start._replace(data=wanted), 0
    async with aclosing(records(session, space, stream, start, committed)) as found:
        async for record in found:
            if record.state.incarnation != state.incarnation or not record.entries:
                continue
            if record.first > wanted + len(entries):
                raise InvalidInput("the offset is not one of this stream. Nothing was written. Read from -1.", field="offset")
            skipped = max(0, wanted - record.first) if not entries else 0
            new = record.entries[skipped:]
            if not new:
                continue
            entries += new
            end = record.end
            size += sum(map(len, new))
            if size >= bytes_max:
                break
    if not entries and wanted < state.tail.data:
        raise InvalidInput("the offset is not one of this stream. Nothing was written. Read from -1.", field="offset")
    return Part(entries, end if entries else state.tail)


async def _inherited(session: Session, space: str, state: State, start: Offset, *, bytes_max: int) -> Part:
    """The records of its source that a fork shows."""
    fork = state.fork
    assert fork is not None
    source = await caught_up(session, space, fork.source)  # It may be in another partition, where this node is behind.
    if source.state is None or source.state.deleted or source.state.incarnation != fork.incarnation:
        raise NotFound(f"{fork.source!r}, the source of this fork, does not exist any more. Nothing was written.")
    part = await read(session, space, fork.source, source.state, start, committed=source.committed, bytes_max=bytes_max)
    wanted = fork.at.data - start.data
    return part if len(part.entries) < wanted else Part(part.entries[:wanted], fork.at)
