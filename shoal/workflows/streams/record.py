"""The records of a stream in the journal of a thread, and how far they are committed.

Laws:
- A record has an index. If several have the same one, that with the greatest fencing number counts; the others were never
  acknowledged. What counts at an index that is committed never changes.
- A record holds the stream's state after it, so state and appended data are one write.
- An offset names a position between two appends. It says how many appends are before it, and from where a reader looks for
  the next one: no record from the index `record` on is older than `from_ms`.

Nothing here does I/O or reads a clock.

Read a stream's records: the newest one, and those from an offset on.

Law: a reader sees committed records only, each once, in the order of their indexes. What it was shown stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import Struct

from shoal.crdt.dot import COUNTER_BITS
from shoal.errors import InvalidInput, NoQuorum, NotFound
from shoal.names import STREAMS
from shoal.protocol.requests import CatchUp, Event, MultiRead, Place, ReadJournal, ReadPlace
from shoal.protocol.session import Session
from shoal.records import NamedTuple

COMMITTED, FROM, TOUCHED = "stream/committed", "stream/from", "stream/touched"
"""Places of the thread: the index after the last committed record; a time not after it; and when somebody read last."""

_HLC_HEX = 16
_TIME_MAX = 10**13 - 1  # What an offset has room for: the year 2286.
_OFFSET = re.compile(r"([0-9]{16})_(?:([0-9]{13})([0-9]{12})|[0-9]{16})")


def thread_of(stream: str) -> str:
    """The name of the thread that holds a stream."""
    return STREAMS + stream


class Offset(NamedTuple):
    """A position in a stream."""

    data: int  # Appends before it.
    from_ms: int
    record: int

    def __str__(self) -> str:
        """The token that clients hold. Tokens of one stream sort as their positions do."""
        return _ZERO if self == BEGINNING else f"{self.data:016d}_{self.from_ms:013d}{self.record:012d}"

    @classmethod
    def parse(cls, token: str) -> Offset:
        """The position of a token.

        Raises:
            InvalidInput: it is none.
        """
        match = _OFFSET.fullmatch(token)
        if match is None:
            raise InvalidInput(
                f"{token[:80]!r} is no offset of a stream. Nothing was written. Use `Stream-Next-Offset` as it was answered, "
                "`-1` or `now`.",
                field="offset",
            )
        return cls(int(match[1]), int(match[2] or 0), int(match[3] or 0))


BEGINNING = Offset(0, 0, 0)
_ZERO = f"{0:016d}_{0:016d}"


class Producer(Struct, array_like=True, frozen=True):
    """The last that was accepted of an idempotent producer."""

    epoch: int
    sequence: int
    used_ms: int


class Fork(Struct, array_like=True, frozen=True):
    """Where a stream was forked: its data begins with that of `source` before `at`."""

    source: str
    incarnation: int  # Of the source.
    at: Offset
    sub: int = 0  # Bytes, or messages, of the append after `at` that were copied.
    depth: int = 1  # Forks from here to a stream that is none.
    mark: str = ""  # By which the source knows it.


class State(Struct, frozen=True, omit_defaults=True):
    """A stream after one of its records."""

    incarnation: int  # The index of the record that created it; greater if the stream was deleted and created again.
    content_type: str
    begin: Offset  # Of its own records.
    tail: Offset
    written_ms: int
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None  # The producer's id, epoch and sequence.
    sequence: str | None = None  # The greatest `Stream-Seq`.
    producers: dict[str, Producer] = {}
    fork: Fork | None = None
    forks: list[str] = []  # Marks of the forks that read it. No two are equal, also of forks with one name.
    gone: bool = False  # Deleted for its readers, and kept for its forks.
    deleted: bool = False

    @property
    def is_json(self) -> bool:
        """Whether its appends are JSON messages."""
        return media_type(self.content_type) == "application/json"

    def ends_ms(self, touched_ms: int) -> int | None:
        """When it expires; None if it does not."""
        if self.ttl_s is not None:
            return max(self.written_ms, touched_ms) + 1000 * self.ttl_s
        return self.expires_ms


class Record(Struct, frozen=True, omit_defaults=True):
    """One entry of the journal. It counts if it is committed, and no other of its index has a greater `fence`."""

    fence: int
    index: int
    first: int  # The position of its first append, in appends.
    from_ms: int
    state: State
    entries: list[bytes] = []  # Its appends: bytes, or JSON messages with commas between them.

    @property
    def end(self) -> Offset:
        """The position after it."""
        return self.state.tail


def packed(record: Record) -> bytes:
    """The record as a value of the store."""
    return msgspec.msgpack.encode(record)


_decode = msgspec.msgpack.Decoder(Record).decode


def unpacked(value: bytes) -> Record | None:
    """The record of a journal's event; None if it is something else."""
    try:
        return _decode(value)
    except msgspec.MsgspecError:
        return None


def time_ms(event: str) -> int:
    """A time that is not after the event, by which the journal orders it, in milliseconds. `event` is its id.

    It is in whole milliseconds, and at most what an offset has room for: some clock may be centuries ahead.
    """
    return min(int(event[:_HLC_HEX], 16) >> COUNTER_BITS, _TIME_MAX)


def media_type(content_type: str) -> str:
    """A content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


class Chosen:
    """Finds, among the events of a journal in their order, the records that count.

    Whoever wrote a record had all committed records before it. So once one of a later index comes, that of the earlier
    index has come.
    """

    def __init__(self, *, first: int, committed: int) -> None:
        self._first = first
        self._committed = committed
        self._held: Record | None = None
        self.event = ""  # The id of the event that holds the last one.

    def take(self, event: str, value: bytes) -> Record | None:
        """Look at the next event: its id and its value. Returns the record of an earlier index, if it is decided by that."""
        record, held = unpacked(value), self._held
        if (
            record is None
            or not self._first <= record.index < self._committed
            or (held is not None and record.index < held.index)
        ):
            return None
        if held is None or record.index > held.index or record.fence > held.fence:
            self._held, self.event = record, event
        return held if held is not None and record.index > held.index else None

    def last(self) -> Record | None:
        """The last one, after all events."""
        return self._held


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
