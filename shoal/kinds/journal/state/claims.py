"""Keys of a journal: which of the appends that claim a key is its event.

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

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import POSITION_BYTES, Rows
from shoal.errors import StoreCorrupt
from shoal.kinds.journal.state import events
from shoal.kinds.journal.state.events import ERASED, HLC_BYTES, Event, dot_of
from shoal.records import NamedTuple

KEY, LOSER, MARK = b"Q", b"X", b"Y"
MARK_BYTES = 32
_RANK_BYTES = POSITION_BYTES - HLC_BYTES


class KeyedEvent(NamedTuple):
    """The event that counts under a key: its position, and the digest of its payload."""

    position: bytes
    digest: bytes


class Claim(NamedTuple):
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


def apply(rows: Rows, claim: Claim) -> None:
    """Add a claim. It becomes the event if no other claim of its key has a lesser (dot, nth).

    The value of one whose mark is erased must be `ERASED`.
    """
    if find(rows, claim.key) is None:
        _win(rows, claim)
    else:
        _put(rows, claim.key, [*claims_of(rows, claim.key), claim])


def find(rows: Rows, key: str) -> KeyedEvent | None:
    """The event of `key`; None if no append has it."""
    packed = rows.get(KEY + key.encode())
    return None if packed is None else KeyedEvent(packed[:POSITION_BYTES], packed[POSITION_BYTES:])


def claims_of(rows: Rows, key: str) -> list[Claim]:
    """All claims of a key, each with its payload, the event first.

    Raises:
        StoreCorrupt: the event's row is not there.
    """
    entry = find(rows, key)
    if entry is None:
        return []
    event = events.find(rows, entry.position)
    if event is None:
        raise StoreCorrupt(f"the event of key {key!r} is missing from its journal. Run `shoal verify`.")
    claims = [Claim(key, entry.position, event.wall_ms, entry.digest, event.payload)]
    for row, stored in rows.scan(_losers(key)):
        claim = _loser(row, stored)
        claims.append(claim if claim.payload else claim._replace(payload=event.payload))
    return claims


def remove(rows: Rows, key: str, gone: Callable[[Claim], bool]) -> list[Claim]:
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


def erase(rows: Rows, key: str, mark: bytes) -> list[Claim]:
    """Erase the values of the claims of a key that have this mark, from now on. Returns those that had one."""
    rows.put(MARK + mark, b"")
    claims = claims_of(rows, key)
    found = [claim for claim in claims if claim.payload != ERASED and mark_of(key, claim.digest) == mark]
    if found:
        _put(rows, key, [claim._replace(payload=ERASED) if claim in found else claim for claim in claims])
    return found


def marked(rows: Rows, key: str, mark: bytes) -> list[Claim]:
    """The claims of a key that have this mark."""
    return [claim for claim in claims_of(rows, key) if mark_of(key, claim.digest) == mark]


def losers(rows: Rows) -> Iterator[Claim]:
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
        entry = find(rows, claim.key)
        dots += [claim.dot] if entry is None else [claim.dot, dot_of(entry.position)]
    seen = VersionVector()
    for dot in dots:
        seen = seen.join(VersionVector([dot]))
    return seen


def _put(rows: Rows, key: str, claims: Iterable[Claim]) -> None:
    before = find(rows, key)
    if before is not None:
        events.drop(rows, before.position)
        rows.delete(KEY + key.encode())
    for row in [row for row, _ in rows.scan(_losers(key))]:
        rows.delete(row)
    ranked = sorted(claims, key=lambda claim: _rank(claim.position))
    if not ranked:
        return
    _win(rows, ranked[0])
    for claim in ranked[1:]:
        _lose(rows, claim, ranked[0])


def _win(rows: Rows, claim: Claim) -> None:
    rows.put(KEY + claim.key.encode(), claim.position + claim.digest)
    events.put(rows, Event(claim.position, claim.key, claim.wall_ms, claim.payload))


def _lose(rows: Rows, claim: Claim, winner: Claim) -> None:
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


def _loser(row: bytes, stored: bytes) -> Claim:
    end = 3 + int.from_bytes(row[1:3], "big")
    wall_ms = int.from_bytes(stored[8:16], "big")
    return Claim(row[3:end].decode(), stored[:HLC_BYTES] + row[end : end + _RANK_BYTES], wall_ms, stored[16:48], stored[48:])
