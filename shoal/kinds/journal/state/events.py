"""The rows of a journal's events, and the keys that decide which append is an event.

The rows of a journal's events, and their totals.

Law: if the totals are kept, they are those of the event rows: every event
is added by `put` and removed by `drop`.

Rows (within the thread's):
    E position₃₄          wall_ms₈ keylength₂ key payload: an event; if its value was erased, the payload is `ERASED`
    H n                   events₈ bytes₈: the totals; only in a journal that ever had a retention

Keys of a journal: which of the appends that claim a key is its event.

Laws:
- Of the claims of a key the one with the least (dot, nth) is the event, at its own position.
- The others stay known until they are trimmed. So if the event alone is trimmed, the
  journal becomes what it would be if the event had never existed.
- A claim keeps its payload if that differs from the event's, and else stores none. So the
  rows of a key are a function of its set of claims.
- An erasure names a key and a value by their mark. It erases the value of every claim that has this mark, also of those
  that arrive later: the same append, sent to another node, does not bring the value back. So a mark is kept while the
  thread exists, and the rows are a function of the sets of claims and of erasures.

Rows (within the thread's):
    Q key                         position₃₄ digest₃₂: the claim that is the event
    X keylength₂ key rank₂₆       hlc₈ wall_ms₈ digest₃₂ payload: one that is not; its rank is its dot and nth
    Y mark₃₂                      (empty): the value of this key was erased
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import groupby

from shoal.crdt.dot import DOT_BYTES, Dot, VersionVector
from shoal.crdt.rows import POSITION_BYTES, Rows
from shoal.errors import StoreCorrupt
from shoal.records import NamedTuple

EVENT = b"E"
TOTALS = b"Hn"
HLC_BYTES = 8
PLACE_BYTES = HLC_BYTES + DOT_BYTES  # A position without the number within its operation.
Place = bytes  # So many.
ERASED = b"\xc1"  # In place of a value that was erased: the one byte that msgpack never uses, so no value is this.


class Event(NamedTuple):
    """An event of a journal, in its place."""

    position: bytes
    key: str | None
    wall_ms: int
    payload: bytes
    late: bool = False  # It sorts before events that this reader already got.

    @property
    def is_erased(self) -> bool:
        """Whether its value was erased; its place, key and time are there."""
        return self.payload == ERASED


class Totals(NamedTuple):
    """The size of a journal."""

    events: int
    bytes: int  # Of the rows' values.


class Issue(NamedTuple):
    """The events of one operation."""

    place: bytes  # HLC and dot: 32 bytes.
    events: list[Event]
    bytes: int

    @property
    def dot(self) -> Dot:
        """The operation."""
        return dot_of(self.place)


def hlc_of(position: bytes) -> int:
    """When the operation at a position or place was issued."""
    return int.from_bytes(position[:HLC_BYTES], "big")


def dot_of(position: bytes) -> Dot:
    """The operation in a position, or in a place."""
    return Dot.unpack(position[HLC_BYTES:PLACE_BYTES])


def put(rows: Rows, event: Event) -> None:
    """Write an event, in a place where there is none."""
    key = b"" if event.key is None else event.key.encode()
    stored = event.wall_ms.to_bytes(8, "big") + len(key).to_bytes(2, "big") + key + event.payload
    rows.put(EVENT + event.position, stored)
    _count(rows, 1, len(stored))


def blank(rows: Rows, event: Event) -> None:
    """Erase the value of an event that is in its place."""
    drop(rows, event.position)
    put(rows, event._replace(payload=ERASED))


def drop(rows: Rows, position: bytes) -> None:
    """Remove the event at a position, if there is one."""
    stored = rows.get(EVENT + position)
    if stored is not None:
        rows.delete(EVENT + position)
        _count(rows, -1, -len(stored))


def drop_all(rows: Rows, dropped: Sequence[tuple[bytes, bytes]]) -> None:
    """Remove the events whose rows these are; the totals are counted once."""
    for row, _ in dropped:
        rows.delete(row)
    if dropped:
        _count(rows, -len(dropped), -sum(len(stored) for _, stored in dropped))


def find(rows: Rows, position: bytes) -> Event | None:
    """The event at a position; None if there is none."""
    stored = rows.get(EVENT + position)
    return None if stored is None else unpack(position, stored)


def unpack(position: bytes, stored: bytes, *, late: bool = False) -> Event:
    """The event in a row `E`."""
    end = 10 + int.from_bytes(stored[8:10], "big")
    # A key is never empty: no bytes are no key.
    return Event(position, stored[10:end].decode() or None, int.from_bytes(stored[:8], "big"), stored[end:], late)


def issues(rows: Rows, *, after: bytes | None = None) -> Iterator[Issue]:
    """The events in order, grouped by operation; `after` is a position, exclusive."""
    start = None if after is None else EVENT + after
    for place, group in groupby(rows.scan(EVENT, after=start), key=lambda row: row[0][1 : 1 + PLACE_BYTES]):
        stored = list(group)
        yield Issue(place, [unpack(row[1:], value) for row, value in stored], sum(len(value) for _, value in stored))


def totals(rows: Rows) -> Totals | None:
    """The journal's totals; None if they are not kept."""
    packed = rows.get(TOTALS)
    return None if packed is None else Totals(int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:], "big"))


def keep_totals(rows: Rows) -> None:
    """Keep totals from now on. The first call reads all events once."""
    if rows.get(TOTALS) is None:
        sizes = [len(stored) for _, stored in rows.scan(EVENT)]
        _put_totals(rows, Totals(len(sizes), sum(sizes)))


def _count(rows: Rows, events: int, size: int) -> None:
    if (kept := totals(rows)) is not None:
        _put_totals(rows, Totals(kept.events + events, kept.bytes + size))


def _put_totals(rows: Rows, kept: Totals) -> None:
    rows.put(TOTALS, kept.events.to_bytes(8, "big") + kept.bytes.to_bytes(8, "big"))


KEY, LOSER, MARK = b"Q", b"X", b"Y"
MARK_BYTES = 32
_RANK_BYTES = POSITION_BYTES - HLC_BYTES


class KeyedEvent(NamedTuple):
    """The event that counts under a key: its position, and the digest of its payload."""

    position: bytes
    digest: bytes


class KeyedAppend(NamedTuple):
    """An append with a key, whether it is the event or not."""

    key: str
    position: bytes
    wall_ms: int
    digest: bytes
    payload: bytes

    @property
    def dot(self) -> Dot:
        """The operation that made it."""
        return dot_of(self.position)


def apply_claim(rows: Rows, claim: KeyedAppend) -> None:
    """Add a claim. It becomes the event if no other claim of its key has a lesser (dot, nth).

    The value of one whose mark is erased must be `ERASED`.
    """
    if find_claim(rows, claim.key) is None:
        _win(rows, claim)
    else:
        _put(rows, claim.key, [*claims_of(rows, claim.key), claim])


def find_claim(rows: Rows, key: str) -> KeyedEvent | None:
    """The event of `key`; None if no append has it."""
    packed = rows.get(KEY + key.encode())
    return None if packed is None else KeyedEvent(packed[:POSITION_BYTES], packed[POSITION_BYTES:])


def claims_of(rows: Rows, key: str) -> list[KeyedAppend]:
    """All claims of a key, each with its payload, the event first.

    Raises:
        StoreCorrupt: the event's row is not there.
    """
    entry = find_claim(rows, key)
    if entry is None:
        return []
    event = find(rows, entry.position)
    if event is None:
        raise StoreCorrupt(f"the event of key {key!r} is missing from its journal. Run `shoal verify`.")
    claims = [KeyedAppend(key, entry.position, event.wall_ms, entry.digest, event.payload)]
    for row, stored in rows.scan(_losers(key)):
        claim = _loser(row, stored)
        claims.append(claim if claim.payload else claim._replace(payload=event.payload))
    return claims


def remove(rows: Rows, key: str, gone: Callable[[KeyedAppend], bool]) -> list[KeyedAppend]:
    """Remove the claims for which `gone` is true, as if they had never been made, and return them."""
    claims = claims_of(rows, key)
    removed = [claim for claim in claims if gone(claim)]
    if removed:
        _put(rows, key, [claim for claim in claims if not gone(claim)])
    return removed


def mark_of(key: str, digest: bytes) -> bytes:
    """The mark of a key and of the SHA-256 of a value: a SHA-256 of both, so that it tells neither."""
    return sha256(digest + key.encode()).digest()


def is_erased(rows: Rows, key: str, digest: bytes) -> bool:
    """Whether the value with this SHA-256 was erased under this key."""
    return rows.get(MARK + mark_of(key, digest)) is not None


def erase(rows: Rows, key: str, mark: bytes) -> list[KeyedAppend]:
    """Erase the values of the claims of a key that have this mark, from now on. Returns those that had one."""
    rows.put(MARK + mark, b"")
    claims = claims_of(rows, key)
    found = [claim for claim in claims if claim.payload != ERASED and mark_of(key, claim.digest) == mark]
    if found:
        _put(rows, key, [claim._replace(payload=ERASED) if claim in found else claim for claim in claims])
    return found


def marked(rows: Rows, key: str, mark: bytes) -> list[KeyedAppend]:
    """The claims of a key that have this mark."""
    return [claim for claim in claims_of(rows, key) if mark_of(key, claim.digest) == mark]


def losers(rows: Rows) -> Iterator[KeyedAppend]:
    """The claims that are no events, by key. If its payload is the same as the event's, a claim comes with an empty payload."""
    for row, stored in rows.scan(LOSER):
        yield _loser(row, stored)


def payload(rows: Rows, key: str, position: bytes) -> bytes | None:
    """The payload of a claim that is no event and has another payload; None if there is no such claim."""
    stored = rows.get(_losers(key) + _rank(position))
    return None if stored is None else stored[HLC_BYTES + 8 + 32 :]


def contested(rows: Rows) -> VersionVector:
    """A vector that covers every claim of a key with several claims: only such events ever change their place."""
    dots: list[Dot] = []
    for claim in losers(rows):
        entry = find_claim(rows, claim.key)
        dots += [claim.dot] if entry is None else [claim.dot, dot_of(entry.position)]
    seen = VersionVector()
    for dot in dots:
        seen = seen.join(VersionVector([dot]))
    return seen


def _put(rows: Rows, key: str, claims: Iterable[KeyedAppend]) -> None:
    before = find_claim(rows, key)
    if before is not None:
        drop(rows, before.position)
        rows.delete(KEY + key.encode())
    for row in [row for row, _ in rows.scan(_losers(key))]:
        rows.delete(row)
    ranked = sorted(claims, key=lambda claim: _rank(claim.position))
    if not ranked:
        return
    _win(rows, ranked[0])
    for claim in ranked[1:]:
        _lose(rows, claim, ranked[0])


def _win(rows: Rows, claim: KeyedAppend) -> None:
    rows.put(KEY + claim.key.encode(), claim.position + claim.digest)
    put(rows, Event(claim.position, claim.key, claim.wall_ms, claim.payload))


def _lose(rows: Rows, claim: KeyedAppend, winner: KeyedAppend) -> None:
    # Of two with one value one may be erased: its payload was swept after a trim that has not arrived here.
    own = b"" if (claim.digest, claim.payload) == (winner.digest, winner.payload) else claim.payload
    hlc = claim.position[:HLC_BYTES]
    rows.put(_losers(claim.key) + _rank(claim.position), hlc + claim.wall_ms.to_bytes(8, "big") + claim.digest + own)


def _rank(position: bytes) -> bytes:
    """Dot and nth: they decide between claims. The HLC does not, because the clocks decide its order."""
    return position[HLC_BYTES:]


def _losers(key: str) -> bytes:
    packed = key.encode()
    return LOSER + len(packed).to_bytes(2, "big") + packed


def _loser(row: bytes, stored: bytes) -> KeyedAppend:
    end = 3 + int.from_bytes(row[1:3], "big")
    wall_ms = int.from_bytes(stored[8:16], "big")
    return KeyedAppend(
        row[3:end].decode(), stored[:HLC_BYTES] + row[end : end + _RANK_BYTES], wall_ms, stored[16:48], stored[48:]
    )
