"""The operation: the unit of replication, and the hash chain that binds an origin's operations.

Laws:
- A dot names one body, for ever. The chain hash of (o, n) covers every body
  from (o, 1) to (o, n), so that two histories that share a hash are equal.
- An operation's context is the frontier of what its node had applied: the last
  operations of other origins that no later one knows of. If its origin's previous
  operation was ready, this one is ready once these are covered, for each of them
  came after all that it knew of. So a context does not grow with past origins.
- The payload is opaque here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from hashlib import sha256

import msgspec

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.errors import InvalidValue

CHAIN_BYTES = 32
CHAIN_START = bytes(CHAIN_BYTES)


class Body(msgspec.Struct, array_like=True, frozen=True):
    """What the log stores under (partition, dot)."""

    hlc: int
    wall_ms: int
    context: Sequence[tuple[bytes, int]]  # The frontier of what it knows of, without its own origin; sorted.
    key: str | None  # The request's idempotency key.
    payload: bytes
    receipt: bytes = b""  # What to answer when `key` comes again; opaque here.

    def knowing(self) -> VersionVector:
        """The last operations that this one knows of, and, through them, all that it does."""
        return VersionVector((Origin(origin), sequence) for origin, sequence in self.context)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Body)


def encode(body: Body) -> bytes:
    return _encoder.encode(body)


def decode(packed: bytes) -> Body:
    """
    Raises:
        InvalidValue: these bytes are no operation.
    """
    try:
        return _decoder.decode(packed)
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise InvalidValue(f"this is not an operation ({error}). Nothing was written.") from None


def chain(previous: bytes, partition: int, dot: Dot, packed: bytes) -> bytes:
    """The chain hash after `dot`, whose encoded body is `packed`; `previous` is that of the one before."""
    return sha256(previous + partition.to_bytes(2, "big") + dot.pack() + packed).digest()


class LogEntry(msgspec.Struct, frozen=True):
    """An operation as the log keeps it, and as it travels."""

    chain: bytes  # Up to and with it.
    packed: bytes  # The encoded body.

    def pack(self) -> bytes:
        return self.chain + self.packed

    @classmethod
    def unpack(cls, stored: bytes) -> LogEntry:
        return cls(stored[:CHAIN_BYTES], stored[CHAIN_BYTES:])


class Tip(msgspec.Struct, frozen=True):
    """What a replica remembers of one origin in one partition."""

    sequence: int
    hlc: int
    chain: bytes
    known: bool = False  # Whether an operation of another origin knows of it: then it is not in the vector's frontier.

    def pack(self) -> bytes:
        packed = self.sequence.to_bytes(8, "big") + self.hlc.to_bytes(8, "big") + self.chain
        return packed + _KNOWN if self.known else packed

    @classmethod
    def unpack(cls, packed: bytes) -> Tip:
        """Of a tip that an older version stored it is not known whether it is known."""
        sequence, hlc = int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:16], "big")
        return cls(sequence, hlc, packed[16:TIP_BYTES], packed[TIP_BYTES:] == _KNOWN)


TIP_BYTES = 48
_KNOWN = b"\x01"
NO_TIP = Tip(0, 0, CHAIN_START)


class Readiness(Enum):
    READY = "ready"  # Apply it now.
    SEEN = "seen"  # Applied before; drop it.
    EARLY = "early"  # Something it depends on is missing; it waits outside vector and state.


def readiness(vector: VersionVector, dot: Dot, knowing: VersionVector) -> Readiness:
    """Whether an operation may be applied to a replica at `vector`."""
    if vector.covers(dot):
        return Readiness.SEEN
    if vector[dot.origin] + 1 == dot.sequence and vector.dominates(knowing):
        return Readiness.READY
    return Readiness.EARLY
