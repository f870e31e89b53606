"""The records of a stream in the journal of a thread, and how far they are committed.

Laws:
- A record has an index. If several have the same one, that with the greatest fencing number counts; the others were never
  acknowledged. What counts at an index that is committed never changes.
- A record holds the stream's state after it, so state and appended data are one write.
- An offset names a position between two appends. It says how many appends are before it, and from where a reader looks for
  the next one: no record from the index `record` on is older than `from_ms`.

Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from shoal.crdt.clock import COUNTER_BITS
from shoal.errors import InvalidInput
from shoal.names import STREAMS
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
