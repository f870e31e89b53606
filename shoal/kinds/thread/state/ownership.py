"""Ownership of a thread: the lease that it is under, and the latest claim of writers that agree
to ask.

Laws:
- Of all claims the one with the greatest (HLC, token) holds, on every replica, so
  that an owner, once superseded, never becomes current again. Two claims that one
  request made on two nodes have one token, and are one.
- Of all marks of leases the one with the greatest (fencing number, whether it is over, holder) counts, on every replica. The
  quorum register decides who holds a lease; the mark tells a node that it has to ask.

Rows (within the thread's, beside the checkpoints'):
    O                        hlc₈ token: the claim that holds
    J                        fence₈ over₁ holder: the mark that counts
"""

from __future__ import annotations

import msgspec

from shoal.crdt.rows import Rows, Stamp
from shoal.records import NamedTuple

OWNER, LEASE = b"O", b"J"
FENCE_MAX = 2**63 - 1


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
