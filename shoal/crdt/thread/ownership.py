"""Who may write a thread, among writers that agree to ask: the latest claim.

Law: of all claims the one with the greatest (HLC, token) holds, on every replica, so
that an owner, once superseded, never becomes current again. Two claims that one
request made on two nodes have one token, and are one.

Rows (within the thread's, beside the checkpoints'):
    O                        hlc₈ token: the claim that holds
"""

from __future__ import annotations

import msgspec

from shoal.crdt.rows import Rows, Stamp

OWNER = b"O"


class Claim(msgspec.Struct, array_like=True, frozen=True, tag="claim"):
    """The mutation: claims the thread."""

    token: bytes


def apply(rows: Rows, stamp: Stamp, claim: Claim) -> None:
    """Let the claim hold, unless a greater one is known."""
    offered = stamp.hlc.to_bytes(8, "big") + claim.token
    if offered > (rows.get(OWNER) or b""):
        rows.put(OWNER, offered)


def owner(rows: Rows) -> bytes:
    """The token of the claim that holds; empty if the thread was never claimed."""
    return (rows.get(OWNER) or b"")[8:]
