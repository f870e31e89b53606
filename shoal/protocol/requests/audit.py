"""Signed statements of what a node holds, and its log, from which they can be checked.

`SignHeads` changes no object, and so has no idempotency key.
"""

from __future__ import annotations

from msgspec import Struct, field

from shoal.protocol.requests.base import Read, Reply
from shoal.protocol.requests.declared import operation

__all__ = ["LogHead", "LogPage", "LoggedOperation", "ReadLog", "SignHeads", "Statement"]


class LogHead(Struct, array_like=True, frozen=True, gc=False):
    """The last operation of one origin's log in one partition."""

    partition: int
    origin: bytes
    sequence: int
    hlc: int
    chain: bytes  # Its chain hash, which covers all operations of this log up to it.


@operation(action="admin", family="cluster")
class SignHeads(Read["Statement"], array_like=True, frozen=True, tag="sign-heads"):
    """Sign what the serving node holds durably. Each call makes another statement, which the node does not keep."""


class Statement(Reply, array_like=True, frozen=True, tag="statement"):
    """What a node held at one moment, signed with Ed25519 (RFC 8032) over all other fields but the key."""

    node: bytes
    number: int  # The node numbers the statements that it keeps, from 1; 0: it does not keep this one.
    time_ms: int
    previous: bytes  # SHA-256 of the last statement before that the node keeps, with its signature; empty if it keeps none.
    own: list[bytes]  # The origins under which the node writes: one, or none before its first write.
    heads: list[LogHead]  # In the order of partitions and origins. Numbers above 1: those that moved since the one before.
    key: bytes  # The node's public key, 32 bytes.
    signature: bytes


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
