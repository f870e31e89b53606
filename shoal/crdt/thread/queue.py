"""A thread's queues: keyed entries, pending until somebody finishes them. Its inbox is one, its worklists are others.

Laws:
- Of the puts with one key, the one with the least (dot, nth, index) is the entry,
  on every replica; puts of another value under that key stay visible beside it.
- A finished entry is never pending again, whatever put of its key arrives later. If
  several clients finished it concurrently, all of them stay visible, and the result of the one with
  the least (dot, nth) counts.
- Pending entries are in the order of positions: (HLC, dot, nth, index).
- Forgetting an entry removes the puts and finishes that its origin had seen, and no
  others: a concurrent put becomes a new entry. So a key is known until it is
  forgotten, and its rows are gone after that.

Rows (within the thread's; queue: `I` for the inbox, `W` for worklists, whose names are in the key):
    I P position₃₈         W P len₂ name position₃₈        id₃₂: a pending entry
    I F position₃₄         W F len₂ name position₃₄        id₃₂: a finished one, at its first finish
    I E id₃₂               W E len₂ name id₃₂              msgpack [key, [put, …], [finish, …]], by rank
    I N                    W N name                        pending₈ finished₈: how many there are
A put is [position₃₈, wall_ms, by, value], a finish [position₃₄, wall_ms, by, key, result].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp

INBOX = ""  # No worklist's name is empty.
ID_BYTES = 32
_HLC_BYTES = 8
_PENDING, _FINISHED, _ENTRY, _COUNTS = b"P", b"F", b"E", b"N"

Context = tuple[tuple[Origin, int], ...]


class Item(msgspec.Struct, array_like=True, frozen=True):
    """A value to put: under a key of the user or the request, or under none."""

    key: str | None
    value: bytes


class Enqueue(msgspec.Struct, array_like=True, frozen=True, tag="enqueue"):
    """A mutation: puts these values."""

    queue: str
    by: str
    items: list[Item]


class Dequeue(msgspec.Struct, array_like=True, frozen=True, tag="dequeue"):
    """A mutation: finishes an entry. `key` is the request's, so that a request sent to two nodes counts as one finish."""

    queue: str
    id: bytes
    by: str
    key: str | None
    result: bytes


class Purge(msgspec.Struct, array_like=True, frozen=True, tag="purge"):
    """A mutation: forgets these entries, as far as `context` covers them."""

    queue: str
    ids: list[bytes]
    context: Context


class Put(NamedTuple):
    """A put of an entry."""

    position: bytes  # With the index of the item within its mutation.
    wall_ms: int
    by: str
    value: bytes


class Finish(NamedTuple):
    """A finish of an entry."""

    position: bytes
    wall_ms: int
    by: str
    key: str | None
    result: bytes


class RankedEntry(NamedTuple):
    """An entry with its puts and finishes by rank: the first put is the entry, the first finish the one that counts."""

    key: str | None
    puts: list[Put]
    finishes: list[Finish]

    @property
    def is_pending(self) -> bool:
        """Whether it was put and not finished."""
        return bool(self.puts) and not self.finishes

    def takers(self) -> list[Finish]:
        """The finishes, one for each request."""
        seen: dict[str, None] = {}
        found = []
        for finish in self.finishes:
            if finish.key is None or finish.key not in seen:
                found.append(finish)
            if finish.key is not None:
                seen[finish.key] = None
        return found


class Counts(NamedTuple):
    """How many entries a queue has."""

    pending: int = 0
    finished: int = 0


_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(
    tuple[str | None, list[tuple[bytes, int, str, bytes]], list[tuple[bytes, int, str, str | None, bytes]]]
).decode


def identify(key: str) -> bytes:
    """The id of the entry with this key."""
    return sha256(b"\x01" + key.encode()).digest()


def identify_position(start: bytes, index: int) -> bytes:
    """The id of an entry without a key: the `index`-th of the mutation at position `start`."""
    return sha256(b"\x00" + start + index.to_bytes(4, "big")).digest()


def apply_enqueue(rows: Rows, stamp: Stamp, change: Enqueue) -> None:
    """Put the values, each under its own entry."""
    start = stamp.pack_position()
    for index, item in enumerate(change.items):
        position = start + index.to_bytes(4, "big")
        id = identify(item.key) if item.key is not None else identify_position(start, index)
        before = entry(rows, change.queue, id) or RankedEntry(item.key, [], [])
        put = Put(position, stamp.wall_ms, change.by, item.value)
        puts = sorted([*before.puts, put], key=lambda put: put.position[_HLC_BYTES:])
        # The entry may be without its key, if a finish came first or outlived a purge.
        _store(rows, change.queue, id, before, before._replace(key=item.key, puts=puts))


def apply_dequeue(rows: Rows, stamp: Stamp, change: Dequeue) -> None:
    """Finish an entry, known or not."""
    before = entry(rows, change.queue, change.id) or RankedEntry(None, [], [])
    finish = Finish(stamp.pack_position(), stamp.wall_ms, change.by, change.key, change.result)
    finishes = sorted([*before.finishes, finish], key=lambda finish: finish.position[_HLC_BYTES:])
    _store(rows, change.queue, change.id, before, before._replace(finishes=finishes))


def apply_purge(rows: Rows, _stamp: Stamp, change: Purge) -> None:
    """Remove the puts and finishes that the context covers."""
    context = VersionVector(change.context)
    for id in change.ids:
        before = entry(rows, change.queue, id)
        if before is not None:
            puts = [put for put in before.puts if not context.covers(_dot(put.position))]
            finishes = [finish for finish in before.finishes if not context.covers(_dot(finish.position))]
            _store(rows, change.queue, id, before, RankedEntry(before.key, puts, finishes))


def context_of(rows: Rows, stamp: Stamp, queue: str, ids: Iterable[bytes]) -> Context:
    """What a purge of these entries covers: the puts and finishes that they have here, of earlier operations.

    It names them, and not all that is applied here: a vector does not name origins that were retired.
    """
    found = [each for each in (entry(rows, queue, id) for id in ids) if each is not None]
    positions = [put.position for each in found for put in each.puts]
    positions += [finish.position for each in found for finish in each.finishes]
    dots = sorted(_dot(position) for position in positions)
    return tuple(VersionVector(dot for dot in dots if dot != stamp.dot).entries())


def entry(rows: Rows, queue: str, id: bytes) -> RankedEntry | None:
    """An entry, pending or finished; None if it is not known."""
    stored = rows.get(_row(_ENTRY, queue) + id)
    if stored is None:
        return None
    key, puts, finishes = _decode(stored)
    return RankedEntry(key, [Put(*put) for put in puts], [Finish(*finish) for finish in finishes])


def pending(rows: Rows, queue: str, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Positions and ids of the pending entries, in order; `after` is a position, exclusive."""
    prefix = _row(_PENDING, queue)
    for row, id in rows.scan(prefix, after=prefix + after if after else None):
        yield row[len(prefix) :], id


def finished(rows: Rows, queue: str, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Positions of first finishes, and ids, in order; `after` is a position, exclusive."""
    prefix = _row(_FINISHED, queue)
    for row, id in rows.scan(prefix, after=prefix + after if after else None):
        yield row[len(prefix) :], id


def counts(rows: Rows, queue: str) -> Counts:
    """How many entries the queue has; reads one row."""
    return _unpack_counts(rows.get(_counts_row(queue)))


def worklists(rows: Rows) -> Iterator[tuple[str, Counts]]:
    """Names of the worklists that have entries, in byte order, with their counts."""
    for row, stored in rows.scan(b"W" + _COUNTS):
        yield row[2:].decode(), _unpack_counts(stored)


def _store(rows: Rows, queue: str, id: bytes, before: RankedEntry, after: RankedEntry) -> None:
    """Replace an entry, and the rows derived from it."""
    if _spot(before) != _spot(after):
        if (spot := _spot(before)) is not None:
            rows.delete(_row(_PENDING, queue) + spot)
        if (spot := _spot(after)) is not None:
            rows.put(_row(_PENDING, queue) + spot, id)
    if before.finishes[:1] != after.finishes[:1]:
        for finish in before.finishes[:1]:
            rows.delete(_row(_FINISHED, queue) + finish.position)
        for finish in after.finishes[:1]:
            rows.put(_row(_FINISHED, queue) + finish.position, id)
    here = counts(rows, queue)
    moved = Counts(
        here.pending + after.is_pending - before.is_pending,
        here.finished + bool(after.finishes) - bool(before.finishes),
    )
    if moved == Counts():
        rows.delete(_counts_row(queue))
    elif moved != here:
        rows.put(_counts_row(queue), moved.pending.to_bytes(8, "big") + moved.finished.to_bytes(8, "big"))
    if after.puts or after.finishes:
        # Only puts tell the key, and a finish may be left without any.
        key = after.key if after.puts else None
        rows.put(_row(_ENTRY, queue) + id, _encoder.encode((key, after.puts, after.finishes)))
    else:
        rows.delete(_row(_ENTRY, queue) + id)


def _spot(entry: RankedEntry) -> bytes | None:
    return entry.puts[0].position if entry.is_pending else None


def _dot(position: bytes) -> Dot:
    return Dot.unpack(position[_HLC_BYTES : _HLC_BYTES + DOT_BYTES])


def _row(kind: bytes, queue: str) -> bytes:
    if queue == INBOX:
        return b"I" + kind
    name = queue.encode()
    return b"W" + kind + len(name).to_bytes(2, "big") + name


def _counts_row(queue: str) -> bytes:
    return b"I" + _COUNTS if queue == INBOX else b"W" + _COUNTS + queue.encode()


def _unpack_counts(stored: bytes | None) -> Counts:
    return Counts() if stored is None else Counts(int.from_bytes(stored[:8], "big"), int.from_bytes(stored[8:], "big"))
