"""A thread's queues: keyed entries, pending until somebody finishes them. Its inbox is one, its worklists are others.

Laws:
- Of the puts with one key, the one with the least (dot, nth, index) is the entry,
  on every replica; puts of another value under that key stay visible beside it.
- A finished entry is never pending again, whatever put of its key arrives later. If
  several clients finished it concurrently, all of them stay visible. The result of the one with the
  greatest fencing number counts, and among equals that of the one with the least (dot, nth).
- Pending entries are in the order of positions: (HLC, dot, nth, index).
- A try replaces those that its origin knew. Of several that are left, the one with the greatest (nth, fence, dot) is
  the last. A dead letter is an entry whose last try says so; it is not pending.
- Forgetting an entry removes the puts and finishes that its origin had seen, and no
  others: a concurrent put becomes a new entry. So a key is known until it is
  forgotten, and its rows are gone after that.

Rows (within the thread's; queue: `I` for the inbox, `W` for worklists, whose names are in the key):
    I P position₃₈         W P len₂ name position₃₈        id₃₂: a pending entry; then 01 if it has a row R, too
    I R turn₉ position₃₈   W R len₂ name turn₉ position₃₈  id₃₂: a pending entry that has a priority, or waits for its time
    I D position₃₄         W D len₂ name position₃₄        id₃₂: a dead letter, at its last try
    I F position₃₄         W F len₂ name position₃₄        id₃₂: a finished one, at its first finish
    I E id₃₂               W E len₂ name id₃₂              msgpack [key, [put, …], [finish, …]], by rank; then [try, …], if any
    I N                    W N name                        pending₈ finished₈: how many there are; then dead₈, if any
A put is [position₃₈, wall_ms, by, value], and its plan, if any; a finish [position₃₄, wall_ms, by, key, result], and its
fencing number, if any. A turn is (255 − priority)₁ (the time from which it may be handed out)₈, so that it sorts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.records import NamedTuple

INBOX = ""  # No worklist's name is empty.
ID_BYTES = 32
_HLC_BYTES = 8
_PENDING, _READY, _DEAD, _FINISHED, _ENTRY, _COUNTS = b"P", b"R", b"D", b"F", b"E", b"N"
_ELSEWHERE = b"\x01"
_COUNTS_BYTES_MAX = 3 * 8

PRIORITY_MAX = 9
RUNNING, WAITING, DEAD = 0, 1, 2
"""The states of a try: a worker has the entry, gave it back, or nobody gets it any more."""

Context = tuple[tuple[Origin, int], ...]


class Item(msgspec.Struct, array_like=True, frozen=True):
    """A value to put: under a key of the user or the request, or under none."""

    key: str | None
    value: bytes


class Plan(msgspec.Struct, array_like=True, frozen=True):
    """How an entry is to be handed out."""

    priority: int = 0  # To PRIORITY_MAX; the greatest first.
    not_before_ms: int = 0
    group: str = ""
    group_max: int = 0  # How many entries of the group may be handed out at once.
    attempts_max: int = 0  # 0: as the node is configured.


class Enqueue(msgspec.Struct, array_like=True, frozen=True, tag="enqueue"):
    """A mutation: puts these values."""

    queue: str
    by: str
    items: list[Item]
    plan: Plan | None = None  # Of all of them.


class SomeOf(Enqueue, array_like=True, frozen=True, tag="enqueue"):
    """A part of that, from the `first` of its items. It is never stored or sent."""

    first: int = 0


class Dequeue(msgspec.Struct, array_like=True, frozen=True, tag="dequeue"):
    """A mutation: finishes an entry. `key` is the request's, so that a request sent to two nodes counts as one finish."""

    queue: str
    id: bytes
    by: str
    key: str | None
    result: bytes
    fence: int = 0  # Of the claim under which it was finished.


class Attempt(msgspec.Struct, array_like=True, frozen=True, tag="attempt"):
    """A mutation: an entry is handed out, given back, or a dead letter."""

    queue: str
    id: bytes
    nth: int  # From 1; one more than the last that its origin knew.
    fence: int  # Of the claim.
    attempt: int  # How often it was handed out.
    state: int
    by: str
    not_before_ms: int
    reason: str
    replaces: Context = ()  # The tries that it replaces, as far as it covers them.


class Purge(msgspec.Struct, array_like=True, frozen=True, tag="purge"):
    """A mutation: forgets these entries, as far as `context` covers them."""

    queue: str
    ids: list[bytes]
    context: Context


class Put(msgspec.Struct, array_like=True, frozen=True):
    """A put of an entry."""

    position: bytes  # With the index of the item within its mutation.
    wall_ms: int
    by: str
    value: bytes
    plan: Plan | None = None


class Finish(msgspec.Struct, array_like=True, frozen=True):
    """A finish of an entry."""

    position: bytes
    wall_ms: int
    by: str
    key: str | None
    result: bytes
    fence: int = 0


class Try(msgspec.Struct, array_like=True, frozen=True):
    """One try of an entry."""

    nth: int
    fence: int
    position: bytes
    wall_ms: int
    attempt: int
    state: int
    by: str
    not_before_ms: int
    reason: str

    @property
    def rank(self) -> tuple[int, int, bytes]:
        """The greatest is the last."""
        return self.nth, self.fence, self.position[_HLC_BYTES:]


class RankedEntry(NamedTuple):
    """An entry with its puts and finishes by rank: the first put is the entry, the first finish the one that counts."""

    key: str | None
    puts: list[Put]
    finishes: list[Finish]
    tries: Sequence[Try] = ()

    @property
    def last(self) -> Try | None:
        """The last try."""
        return self.tries[-1] if self.tries else None

    @property
    def is_open(self) -> bool:
        """Whether it was put and not finished."""
        return bool(self.puts) and not self.finishes

    @property
    def is_dead(self) -> bool:
        """Whether it is a dead letter."""
        return bool(self.tries) and self.tries[-1].state == DEAD and self.is_open

    @property
    def is_pending(self) -> bool:
        """Whether it is to be done."""
        return bool(self.puts) and not self.finishes and not (self.tries and self.tries[-1].state == DEAD)

    @property
    def plan(self) -> Plan:
        """How it is to be handed out."""
        return (self.puts[0].plan if self.puts else None) or _NO_PLAN

    @property
    def not_before_ms(self) -> int:
        """The time from which it may be handed out; 0: at once."""
        return self.plan.not_before_ms if self.last is None else self.last.not_before_ms

    @property
    def turn(self) -> bytes:
        """Its order among the pending ones that have one; empty: it has none."""
        if not self.tries and self.puts[0].plan is None:
            return b""
        priority, from_ms = self.plan.priority, self.not_before_ms
        return bytes([255 - priority]) + from_ms.to_bytes(8, "big") if priority or from_ms else b""

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
    dead: int = 0


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    key: str | None
    puts: list[Put]
    finishes: list[Finish]
    tries: tuple[Try, ...] = ()


_NO_PLAN = Plan()
_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(_Stored).decode


def identify(key: str) -> bytes:
    """The id of the entry with this key."""
    return sha256(b"\x01" + key.encode()).digest()


def identify_position(start: bytes, index: int) -> bytes:
    """The id of an entry without a key: the `index`-th of the mutation at position `start`."""
    return sha256(b"\x00" + start + index.to_bytes(4, "big")).digest()


def apply_enqueue(rows: Rows, stamp: Stamp, change: Enqueue) -> None:
    """Put the values, each under its own entry."""
    start = stamp.pack_position()
    for index, item in enumerate(change.items, change.first if isinstance(change, SomeOf) else 0):
        position = start + index.to_bytes(4, "big")
        id = identify(item.key) if item.key is not None else identify_position(start, index)
        before = entry(rows, change.queue, id) or RankedEntry(item.key, [], [])
        put = Put(position, stamp.wall_ms, change.by, item.value, change.plan)
        puts = sorted([*before.puts, put], key=lambda put: put.position[_HLC_BYTES:])
        # The entry may be without its key, if a finish came first or outlived a purge.
        _store(rows, change.queue, id, before, before._replace(key=item.key, puts=puts))


def apply_dequeue(rows: Rows, stamp: Stamp, change: Dequeue) -> None:
    """Finish an entry, known or not."""
    before = entry(rows, change.queue, change.id) or RankedEntry(None, [], [])
    finish = Finish(stamp.pack_position(), stamp.wall_ms, change.by, change.key, change.result, change.fence)
    finishes = sorted([*before.finishes, finish], key=lambda finish: (-finish.fence, finish.position[_HLC_BYTES:]))
    _store(rows, change.queue, change.id, before, before._replace(finishes=finishes))


def apply_attempt(rows: Rows, stamp: Stamp, change: Attempt) -> None:
    """Note a try, in place of those that its origin knew."""
    before = entry(rows, change.queue, change.id) or RankedEntry(None, [], [])
    made = Try(
        change.nth,
        change.fence,
        stamp.pack_position(),
        stamp.wall_ms,
        change.attempt,
        change.state,
        change.by,
        change.not_before_ms,
        change.reason,
    )
    replaced = VersionVector(change.replaces)
    others = (other for other in before.tries if not replaced.covers(_dot(other.position)))
    tries = tuple(sorted((*others, made), key=lambda tried: tried.rank))
    _store(rows, change.queue, change.id, before, before._replace(tries=tries))


def apply_purge(rows: Rows, _stamp: Stamp, change: Purge) -> None:
    """Remove the puts and finishes that the context covers."""
    context = VersionVector(change.context)
    for id in change.ids:
        before = entry(rows, change.queue, id)
        if before is not None:
            puts = [put for put in before.puts if not context.covers(_dot(put.position))]
            finishes = [finish for finish in before.finishes if not context.covers(_dot(finish.position))]
            tries = tuple(tried for tried in before.tries if not context.covers(_dot(tried.position)))
            _store(rows, change.queue, id, before, RankedEntry(before.key, puts, finishes, tries))


def context_of(rows: Rows, stamp: Stamp, queue: str, ids: Iterable[bytes]) -> Context:
    """The entries that a purge of these covers: the puts, finishes and tries that they have here, of earlier operations.

    It names them, and not all that is applied here: a vector does not name origins that were retired.
    """
    found = [each for each in (entry(rows, queue, id) for id in ids) if each is not None]
    positions = [put.position for each in found for put in each.puts]
    positions += [finish.position for each in found for finish in each.finishes]
    positions += [tried.position for each in found for tried in each.tries]
    return _context(stamp, positions)


def replaced_by(stamp: Stamp, entry: RankedEntry) -> Context:
    """The tries that a new try of an entry replaces: the tries that it has here, of earlier operations."""
    return _context(stamp, [tried.position for tried in entry.tries])


def entry(rows: Rows, queue: str, id: bytes) -> RankedEntry | None:
    """An entry, pending or finished; None if it is not known."""
    stored = rows.get(_row(_ENTRY, queue) + id)
    if stored is None:
        return None
    found = _decode(stored)
    return RankedEntry(found.key, found.puts, found.finishes, found.tries)


def pending(rows: Rows, queue: str, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Positions and ids of the pending entries, in order; `after` is a position, exclusive."""
    prefix = _row(_PENDING, queue)
    for row, id in rows.scan(prefix, after=prefix + after if after else None):
        yield row[len(prefix) :], id[:ID_BYTES]


def ready(rows: Rows, queue: str, now_ms: int) -> Iterator[bytes]:
    """Ids of the pending entries that may be handed out by `now_ms`: those with a turn first, the greatest priority first."""
    for turns in _turns(rows, queue):
        for row, id in rows.scan(turns):
            if _from_ms(row, turns) > now_ms:
                break
            yield id
    for _, id in rows.scan(_row(_PENDING, queue)):
        if len(id) == ID_BYTES:
            yield id


def next_ready_ms(rows: Rows, queue: str, now_ms: int) -> int | None:
    """When the next pending entry may be handed out that may not be yet; None: there is none."""
    found = []
    for turns in _turns(rows, queue):
        later = turns + (now_ms + 1).to_bytes(8, "big")
        row = next((row for row, _ in rows.scan(turns, after=later)), None)
        if row is not None:
            found.append(_from_ms(row, turns))
    return min(found, default=None)


def dead(rows: Rows, queue: str, *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Positions of last tries, and ids, of the dead letters, in order; `after` is a position, exclusive."""
    prefix = _row(_DEAD, queue)
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
        if len(stored) <= _COUNTS_BYTES_MAX:  # Else it is of a swept checkpoint, whose id begins so.
            yield row[2:].decode(), _unpack_counts(stored)


def _store(rows: Rows, queue: str, id: bytes, before: RankedEntry, after: RankedEntry) -> None:
    """Replace an entry, and the rows derived from it."""
    old, new = _listed(queue, id, before), _listed(queue, id, after)
    if old != new:
        for row in old:
            if row not in new:
                rows.delete(row)
        for row, value in new.items():
            if old.get(row) != value:
                rows.put(row, value)
    here = counts(rows, queue)
    moved = Counts(
        here.pending + after.is_pending - before.is_pending,
        here.finished + bool(after.finishes) - bool(before.finishes),
        here.dead + (after.is_dead - before.is_dead if after.tries or before.tries else 0),
    )
    if moved == Counts():
        rows.delete(_counts_row(queue))
    elif moved != here:
        rows.put(_counts_row(queue), b"".join(count.to_bytes(8, "big") for count in (moved if moved.dead else moved[:2])))
    if after.puts or after.finishes or after.tries:
        rows.put(_row(_ENTRY, queue) + id, _packed(after))
    else:
        rows.delete(_row(_ENTRY, queue) + id)


def _listed(queue: str, id: bytes, entry: RankedEntry) -> dict[bytes, bytes]:
    """The rows by which an entry is found."""
    if entry.finishes:
        return {_row(_FINISHED, queue) + entry.finishes[0].position: id}
    if not entry.puts:
        return {}
    if entry.is_dead:
        assert entry.last is not None
        return {_row(_DEAD, queue) + entry.last.position: id}
    position, turn = entry.puts[0].position, entry.turn
    if not turn:
        return {_row(_PENDING, queue) + position: id}
    return {_row(_PENDING, queue) + position: id + _ELSEWHERE, _row(_READY, queue) + turn + position: id}


def _packed(entry: RankedEntry) -> bytes:
    """The row of an entry. What it does not have is left out, so that it is as it was before there were claims."""
    key = entry.key if entry.puts else None  # Only puts tell the key, and a finish may be left without any.
    puts = [put if put.plan else (put.position, put.wall_ms, put.by, put.value) for put in entry.puts]
    finishes = [
        finish if finish.fence else (finish.position, finish.wall_ms, finish.by, finish.key, finish.result)
        for finish in entry.finishes
    ]
    row = (key, puts, finishes)
    return _encoder.encode(row if not entry.tries else (*row, entry.tries))


def _turns(rows: Rows, queue: str) -> Iterator[bytes]:
    """The beginnings of the rows of all priorities, the greatest first; none if no entry has a turn."""
    prefix = _row(_READY, queue)
    if any(True for _ in rows.scan(prefix)):
        for priority in range(PRIORITY_MAX, -1, -1):
            yield prefix + bytes([255 - priority])


def _from_ms(row: bytes, turns: bytes) -> int:
    return int.from_bytes(row[len(turns) : len(turns) + 8], "big")


def _context(stamp: Stamp, positions: Iterable[bytes]) -> Context:
    dots = sorted(_dot(position) for position in positions)
    return tuple(VersionVector(dot for dot in dots if dot != stamp.dot).entries())


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
    return Counts(*(int.from_bytes(stored[at : at + 8], "big") for at in range(0, len(stored), 8))) if stored else Counts()
