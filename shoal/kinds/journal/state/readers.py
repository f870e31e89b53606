"""The state that readers of a journal keep in it: cursors of consumers, the progress of loops, and results of reducers.

Consumers of a journal: durable cursors, which only move forward.

Laws:
- A consumer's cursor is the join of all acknowledged cursors. If several readers share a
  name, events that one of them acknowledged may come again; an event that nobody
  acknowledged always comes.
- A reset begins a generation. Only the greatest generation counts, so an acknowledgement
  from before a reset does not undo it.

Rows (within the thread's):
    K 0x00 name        generation₈ acked_ms₈ cursor: the greatest generation, its latest wall time, its join

The progress of loops: per key a number that only grows.

Law: the greatest generation counts alone, and of it the greatest place. A loop that
starts again begins a generation.

Rows (within the thread's):
    K 0x02 key         generation₈ place₈

Results of reducers over a journal's events up to some place, so that a replay need not begin at the first.

Laws:
- A snapshot holds exactly the events up to its position that its vector covers. It
  stands for all events up to there under three conditions: no operation that its vector does
  not cover put an event there (`holds` checks this); no such operation took over a key that was
  claimed before (`claims.contested`); and no event was trimmed that it does not hold. `usable`
  checks the last two.
- Only the greatest version of a reducer is kept: its `SNAPSHOTS_KEPT` greatest
  positions, and at each position the snapshot whose vector covers most.

Rows (within the thread's):
    K 0x01 len₂ reducer version₈ position₃₄      msgpack [vector, rank₂₆, value]
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal import values
from shoal.crdt.applier import Appliers, bare
from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import POSITION_BYTES, Rows, Stamp
from shoal.errors import BadOperation, InvalidValue
from shoal.kinds import Kind
from shoal.kinds.journal.state import events as claims
from shoal.kinds.journal.state import journal, trimming
from shoal.kinds.journal.state.events import EVENT, PLACE_BYTES, dot_of, hlc_of
from shoal.kinds.journal.state.journal import Cursor
from shoal.names import check_key, check_name
from shoal.records import NamedTuple

CONSUMER = b"K\x00"
GENERATION_MAX = 2**63 - 1


class Ack(msgspec.Struct, array_like=True, frozen=True, tag="ack"):
    """The mutation: acknowledges events, or resets the consumer by beginning a generation."""

    consumer: str
    generation: int
    cursor: bytes  # Packed, and clipped to what its origin had applied.


class Consumer(NamedTuple):
    """A consumer, and the events that it has acknowledged."""

    name: str
    generation: int = 0
    acked_ms: int = 0  # 0: never.
    cursor: Cursor = Cursor()


def apply_cursor(rows: Rows, stamp: Stamp, ack: Ack) -> None:
    """Join the cursor to the consumer's, or replace it if its generation is greater."""
    before = find_cursor(rows, ack.consumer)
    cursor, acked_ms = Cursor.unpack(ack.cursor), stamp.wall_ms
    if ack.generation < before.generation:
        return
    if ack.generation == before.generation:
        cursor, acked_ms = journal.join(before.cursor, cursor), max(before.acked_ms, acked_ms)
    packed = ack.generation.to_bytes(8, "big") + acked_ms.to_bytes(8, "big") + cursor.pack()
    rows.put(CONSUMER + ack.consumer.encode(), packed)


def find_cursor(rows: Rows, name: str) -> Consumer:
    """The consumer of that name; one that has acknowledged nothing if there is none."""
    stored = rows.get(CONSUMER + name.encode())
    return Consumer(name) if stored is None else _unpack(name, stored)


def consumers(rows: Rows, *, after: str | None = None) -> Iterator[Consumer]:
    """All consumers that have acknowledged something, by name; `after` is exclusive."""
    start = None if after is None else CONSUMER + after.encode()
    for row, stored in rows.scan(CONSUMER, after=start):
        yield _unpack(row[len(CONSUMER) :].decode(), stored)


def _unpack(name: str, stored: bytes) -> Consumer:
    return Consumer(name, int.from_bytes(stored[:8], "big"), int.from_bytes(stored[8:16], "big"), Cursor.unpack(stored[16:]))


PLACE = b"K\x02"
NUMBER_MAX = 2**63 - 1


class Reach(msgspec.Struct, array_like=True, frozen=True, tag="reach"):
    """The mutation: a loop has come to a place."""

    key: str
    generation: int
    place: int


class LoopProgress(NamedTuple):
    """The progress of one loop. Tuples compare as the law says."""

    generation: int = 0
    place: int = 0


def apply_progress(rows: Rows, _stamp: Stamp, change: Reach) -> None:
    """Record the place, if it is beyond the known one."""
    reached = LoopProgress(change.generation, change.place)
    if reached > find_progress(rows, change.key):
        rows.put(PLACE + change.key.encode(), reached.generation.to_bytes(8, "big") + reached.place.to_bytes(8, "big"))


def find_progress(rows: Rows, key: str) -> LoopProgress:
    """The progress of a loop; all zeros if it was never recorded."""
    stored = rows.get(PLACE + key.encode())
    return (
        LoopProgress() if stored is None else LoopProgress(int.from_bytes(stored[:8], "big"), int.from_bytes(stored[8:], "big"))
    )


def count(rows: Rows, limit: int) -> int:
    """How many loops have recorded progress, up to `limit`."""
    return sum(1 for _ in rows.scan(PLACE, limit=limit))


REDUCTION = b"K\x01"
SNAPSHOTS_KEPT = 8
VERSION_MAX = 2**63 - 1

_decode = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes]).decode


class Reduce(msgspec.Struct, array_like=True, frozen=True, tag="snapshot"):
    """The mutation: stores a snapshot."""

    reducer: str
    version: int
    position: bytes
    vector: bytes  # Packed. The value holds the events up to `position` that it covers.
    value: bytes


class Snapshot(NamedTuple):
    """A reducer's result for the events up to `position` that `vector` covers."""

    position: bytes
    vector: VersionVector
    value: bytes


def apply_reduction(rows: Rows, stamp: Stamp, change: Reduce) -> None:
    """Store the snapshot, and remove those that the laws no longer keep."""
    prefix = _prefix(change.reducer)
    version = change.version.to_bytes(8, "big")
    stored = [row for row, _ in rows.scan(prefix)]
    if any(row[len(prefix) : len(prefix) + 8] > version for row in stored):
        return
    for row in [row for row in stored if row[len(prefix) : len(prefix) + 8] < version]:
        rows.delete(row)
    mine = prefix + version + change.position
    packed = msgspec.msgpack.encode((change.vector, stamp.pack_position()[8:], change.value))
    earlier = rows.get(mine)
    if earlier is None or _rank(earlier) < _rank(packed):
        rows.put(mine, packed)
    kept = [row for row, _ in rows.scan(prefix + version, reverse=True)]
    for row in kept[SNAPSHOTS_KEPT:]:
        rows.delete(row)


def usable(rows: Rows, reducer: str, version: int, here: VersionVector, *, until: bytes | None = None) -> Iterator[Snapshot]:
    """The snapshots up to position `until` in which no event has changed its place since, the latest first.

    `here` is the replica's vector.
    """
    prefix = _prefix(reducer) + version.to_bytes(8, "big")
    contested, (floor, ends), last = claims.contested(rows), trimming.ends(rows), trimming.last(rows)
    for row, stored in rows.scan(prefix, reverse=True):
        position = row[len(prefix) :]
        if until is None or position <= until:
            packed, _, value = _decode(stored)
            vector = VersionVector.unpack(packed)
            moved = all(vector.reaches(Dot(*entry), None, here) for entry in contested.items())
            got = (not floor.hlc or floor.is_reached(vector)) and all(vector.reaches(dot_of(e), hlc_of(e), here) for e in ends)
            if moved and last <= position[:PLACE_BYTES] and got:
                yield Snapshot(position, vector, value)


def holds(rows: Rows, snapshot: Snapshot, vector: VersionVector, *, floor_hlc: int | None, scan_rows_max: int) -> bool:
    """Whether the snapshot lacks no event up to its position, at a replica at `vector`.

    `floor_hlc` is the least HLC of the operations that `vector` covers and the snapshot's does not; None: not known.
    Also False if that would take a look at more than `scan_rows_max` rows.
    """
    start = EVENT + (b"" if floor_hlc is None else floor_hlc.to_bytes(8, "big"))
    for scanned, (row, _) in enumerate(rows.scan(EVENT, after=start)):
        if row[1:] > snapshot.position:
            return True
        dot, hlc = dot_of(row[1:]), hlc_of(row[1:])
        if scanned == scan_rows_max or (vector.reaches(dot, hlc, vector) and not snapshot.vector.reaches(dot, hlc, vector)):
            return False
    return True


def reducers(rows: Rows) -> set[str]:
    """The names of the reducers that have snapshots."""
    found = set()
    for row, _ in rows.scan(REDUCTION):
        start = len(REDUCTION) + 2
        found.add(row[start : start + int.from_bytes(row[start - 2 : start], "big")].decode())
    return found


def _prefix(reducer: str) -> bytes:
    name = reducer.encode()
    return REDUCTION + len(name).to_bytes(2, "big") + name


def _rank(stored: bytes) -> tuple[int, bytes, bytes]:
    packed, rank, _ = _decode(stored)
    return sum(VersionVector.unpack(packed).values()), packed, rank


def check(change: Reduce) -> None:
    """Check a change from a peer.

    Raises:
        ValueError: no node would have made it.
    """
    if len(change.position) != POSITION_BYTES or not 0 <= change.version <= VERSION_MAX:
        raise ValueError("the position or the version is malformed")
    VersionVector.unpack(change.vector)


def _check_ack(stamp: Stamp, ack: Ack) -> None:
    check_name("consumer", ack.consumer)
    try:
        cursor = Cursor.unpack(ack.cursor)
    except InvalidValue:
        raise BadOperation("its cursor cannot be read", reason="content") from None
    if not 0 <= ack.generation <= GENERATION_MAX or journal.clipped(cursor, stamp.context) != cursor:
        raise BadOperation("its cursor claims operations that its origin had not applied", reason="content")


def _check_reduce(_stamp: Stamp, reduce: Reduce) -> None:
    check_name("reducer", reduce.reducer)
    try:
        check(reduce)
        values.check(reduce.value)
    except (ValueError, InvalidValue) as error:
        raise BadOperation(f"its snapshot cannot be read ({error})", reason="content") from None


def _check_reach(_stamp: Stamp, reach: Reach) -> None:
    check_key("loop key", reach.key)
    if not (0 <= reach.generation <= NUMBER_MAX and 0 <= reach.place <= NUMBER_MAX):
        raise BadOperation("its place is not valid", reason="content")


APPLIERS: Appliers = {
    Ack: bare(Kind.THREAD, apply_cursor, _check_ack),
    Reduce: bare(Kind.THREAD, apply_reduction, _check_reduce),
    Reach: bare(Kind.THREAD, apply_progress, _check_reach),
}
