"""Signed statements of what a node holds, and its log, from which they can be checked.

`SignHeads` changes no object, and so has no idempotency key.
"""

from __future__ import annotations

from msgspec import Struct, field

from shoal.protocol.base import Read, Reply
from shoal.protocol.declared import Elements, Parts, operation

__all__ = ["LeftOut", "LogHead", "LogPage", "LoggedOperation", "ReadLog", "SignHeads", "StateRoot", "Statement"]


class LogHead(Struct, array_like=True, frozen=True, gc=False):
    """The last operation of one origin's log in one partition."""

    partition: int
    origin: bytes
    sequence: int
    hlc: int
    chain: bytes  # Its chain hash, which covers all operations of this log up to it.


class StateRoot(Struct, array_like=True, frozen=True, gc=False):
    """A hash of the rows that a partition's operations make: of exactly those that its heads in the same statement cover."""

    partition: int
    vector: bytes  # A hash of the last operation of each origin that is not retired, with its chain hash.
    listed: bytes  # SHA-256 of the list of its objects,
    objects: bytes  # and of the rows of these,
    left: list[bytes]  # without these objects (a hash of each one's name): they wait to be swept, or lack data.


class LeftOut(Struct, array_like=True, frozen=True, gc=False):
    """A partition whose rows are to be read anew, without objects that another root of it leaves out."""

    partition: int
    objects: Elements[bytes]  # As `StateRoot.left`.


@operation(action="admin", family="cluster")
class SignHeads(Read["Statement"], array_like=True, frozen=True, tag="sign-heads"):
    """Sign what the serving node holds durably. Each call makes another statement, which the node does not keep.

    With `without`, it has roots of these partitions alone, which are computed from the rows as they are now.
    """

    without: Parts[LeftOut] = field(default_factory=list)


class Statement(Reply, array_like=True, frozen=True, tag="statement"):
    """The heads that a node held at one moment, signed with Ed25519 (RFC 8032) over all other fields but the key."""

    node: bytes
    number: int  # The node numbers the statements that it keeps, from 1; 0: it does not keep this one.
    time_ms: int
    previous: bytes  # SHA-256 of the last statement before that the node keeps, with its signature; empty if it keeps none.
    own: list[bytes]  # The origins under which the node writes: one, or none before its first write.
    heads: list[LogHead]  # In this order. Numbers above 1: of partitions in which something moved since the one before.
    key: bytes  # The node's public key, 32 bytes.
    signature: bytes
    roots: list[StateRoot] | None = None  # Of partitions with heads here, as many as could be made; None: an older version's.


@operation(discloses=True, action="admin", family="cluster", reveals=True)
class ReadLog(Read["LogPage"], array_like=True, frozen=True, tag="read-log"):
    """Read operations of one log, in order."""

    partition: int
    origin: bytes
    after: int = 0  # A sequence.
    limit: int = 1000


class LoggedOperation(Struct, array_like=True, frozen=True, gc=False):
    """An operation as the log holds it."""

    sequence: int
    chain: bytes  # Its chain hash.
    packed: bytes  # The operation: docs/STORAGE.md.


class LogPage(Reply, array_like=True, frozen=True, tag="log-page"):
    """A part of one log. It ends before the answer grows too large."""

    base: int  # The last operation that has left the log; 0: none has.
    base_chain: bytes
    tip: int  # The last operation; 0: the node holds none.
    tip_chain: bytes
    forgotten_hlc: int = 0  # Of a log that is not there: its operations up to this time may be of an origin that was retired.
    operations: list[LoggedOperation] = field(default_factory=list)
