"""Ownership of a thread: the lease that it is under, and the latest claim of writers that agree
to ask.

Laws:
- Of all claims the one with the greatest (HLC, token) holds, on every replica, so
  that an owner, once superseded, never becomes current again. Two claims that one
  request made on two nodes have one token, and are one.
- Of all marks of leases the one with the greatest (fencing number, whether it is over, holder) counts, on every replica. The
  quorum register decides who holds a lease; the mark tells a node that it has to ask.
- When each lease began and was given back is kept of the marks with the greatest numbers, `TERMS_MAX` terms: the same on every
  replica, in whatever order the marks came. Nothing is decided by it.

Rows (within the thread's, beside the checkpoints'):
    O                        hlc₈ token: the claim that holds
    J                        fence₈ over₁ holder: the mark that counts
    J fence₈ over₁           hlc₈ holder: the earliest mark of this term's begin, or of its end
"""

from __future__ import annotations

import msgspec

from shoal.crdt.dot import wall_ms_of
from shoal.crdt.rows import Rows, Stamp
from shoal.records import NamedTuple

OWNER, LEASE = b"O", b"J"
FENCE_MAX = 2**63 - 1
TERMS_MAX = 64  # Of a thread, of which it is kept when they began and ended.


class TakeOwnership(msgspec.Struct, array_like=True, frozen=True, tag="claim"):
    """The mutation: its writer becomes the owner of the thread."""

    token: bytes


def apply(rows: Rows, stamp: Stamp, claim: TakeOwnership) -> None:
    """Let the claim hold, unless a greater one is known."""
    offered = stamp.hlc.to_bytes(8, "big") + claim.token
    if offered > (rows.get(OWNER) or b""):
        rows.put(OWNER, offered)


def owner(rows: Rows) -> bytes:
    """The token of the claim that holds; empty if the thread was never claimed."""
    return (rows.get(OWNER) or b"")[8:]


class LeaseMark(msgspec.Struct, array_like=True, frozen=True, tag="lease"):
    """The mutation: the thread is under a lease with this fencing number, or is not any more."""

    fence: int
    holder: str
    over: bool = False


class Marked(NamedTuple):
    """The mark that counts."""

    fence: int
    over: bool
    holder: str


def apply_mark(rows: Rows, _stamp: Stamp, mark: LeaseMark) -> None:
    """Let the mark count, unless a greater one is known."""
    offered = mark.fence.to_bytes(8, "big") + bytes([mark.over]) + mark.holder.encode()
    if offered > (rows.get(LEASE) or b""):
        rows.put(LEASE, offered)


def marked(rows: Rows) -> Marked | None:
    """The mark that counts; None if the thread never was under a lease."""
    packed = rows.get(LEASE)
    return None if packed is None else Marked(int.from_bytes(packed[:8], "big"), packed[8] == 1, packed[9:].decode())


class TimedMark(msgspec.Struct, array_like=True, frozen=True, tag="lease-timed"):
    """The mutation: a mark, which is also kept with its time."""

    fence: int
    holder: str
    over: bool = False


class Tenure(NamedTuple):
    """A term of a lease, as its marks tell it."""

    fence: int
    holder: str
    from_ms: int
    until_ms: int  # When it was given back; 0: it was not: it goes on, or was not renewed.


def apply_term(rows: Rows, stamp: Stamp, term: TimedMark) -> None:
    """Let the mark count as `apply_mark` does, and keep its time unless greater terms fill the room."""
    apply_mark(rows, stamp, LeaseMark(term.fence, term.holder, term.over))
    row, told = _term(term.fence, term.over), stamp.hlc.to_bytes(8, "big") + term.holder.encode()
    known = rows.get(row)
    if known is None or told < known:
        rows.put(row, told)
    kept = [row for row, _ in rows.scan(LEASE, after=LEASE, limit=2 * TERMS_MAX + 1)]
    if len(kept) > 2 * TERMS_MAX:
        rows.delete(kept[0])


def is_open(rows: Rows, fence: int) -> bool:
    """Whether it is kept when this term began, and not that it was given back."""
    return rows.get(_term(fence, False)) is not None and rows.get(_term(fence, True)) is None


def tenures(rows: Rows) -> list[Tenure]:
    """The terms whose begin is kept, the newest first."""
    told = dict(rows.scan(LEASE, after=LEASE))
    begun = [(int.from_bytes(row[1:9], "big"), packed) for row, packed in told.items() if not row[9]]
    ends = ((fence, packed, told.get(_term(fence, True))) for fence, packed in sorted(begun, reverse=True))
    return [
        Tenure(fence, packed[8:].decode(), _wall_ms(packed), 0 if end is None else _wall_ms(end)) for fence, packed, end in ends
    ]


def _term(fence: int, over: bool) -> bytes:
    return LEASE + fence.to_bytes(8, "big") + bytes([over])


def _wall_ms(packed: bytes) -> int:
    return wall_ms_of(int.from_bytes(packed[:8], "big"))
