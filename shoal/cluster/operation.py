"""The operation, which is the unit of replication, with the hash chain of its origin; and the partition of an object.

A context that named all origins grew with the openings of a directory: 99 MB of log for 5,000 openings with one append
each, where the frontier takes 1.2 MB and says the same.

Laws:
- A dot names one body, forever. The chain hash of (o, n) covers every body
  from (o, 1) to (o, n), so that two histories that share a hash are equal.
- An operation's context is the frontier of the operations that its node had applied: the
  last ones of other origins that no later one knows of. If its origin's previous
  operation was ready, this one is ready once its context is covered, because each operation in it
  came after all those that it knew of. So a context does not grow with past origins.
- The payload is opaque here.
- A body, and its payload, hold at most `PARTS_MAX` values: no node issues more, and what a peer sends is not decoded if it
  does. So are its changes bounded, and the elements in them (`shoal.node.mutation`). What is stored is not asked.

The partition that holds an object.

Law: the partition is a function of the space and of the name's tag alone, and never
changes: an object in another partition would be lost. The tag is as in Redis Cluster: the
part between the first `{` and the first `}` after it, if that is not empty; else
the whole name.

A space whose whole name is in braces, such as `{crew}`, is colocated: all its
objects share one partition, so that any of them can be in one batch. This depends
on the name alone, so all nodes and clients agree.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import sha256

import msgspec

from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin, VersionVector
from shoal.errors import InvalidValue
from shoal.names import MEMOIZED_MAX, is_colocated
from shoal.values.work import counting, has_at_most

PARTS_MAX = 1 << 17  # Packed values: the most elements of a request's parts, 16,384, each with what it replaces.
PARTS_STEP_MAX = 1 << 14  # Of those, counted in one step of a look at what a peer sent: some 9 ms.

CHAIN_BYTES = 32
CHAIN_START = bytes(CHAIN_BYTES)


class Body(msgspec.Struct, array_like=True, frozen=True, gc=False):  # It refers to nothing that could refer back.
    """The content of an operation: the log stores it under (partition, dot)."""

    hlc: int
    wall_ms: int
    context: Sequence[tuple[bytes, int]]  # The frontier of the operations that it knows of, without its own origin; sorted.
    key: str | None  # The request's idempotency key.
    payload: bytes
    receipt: bytes = b""  # The answer to a request with the same `key`; opaque here.
    retires: list[tuple[bytes, int]] = []  # Origins that it retires, with the last sequence of each; sorted.

    def knowing(self) -> VersionVector:
        """The context as a vector. It implies all operations that this one knows of."""
        if not self.context:
            return NOTHING_SEEN
        return VersionVector((Origin(origin), sequence) for origin, sequence in self.context)


class TokenBody(Body, array_like=True, frozen=True, gc=False):
    """The content of an operation that was written under a token. Others lack the last field, and have no byte more."""

    token: str = ""  # The token's id, by which it is revoked; never its secret.


class RedactedBody(TokenBody, array_like=True, frozen=True, gc=False):
    """The content of an operation of which something was replaced before it was issued. Others lack the last field."""

    redacted: list[tuple[str, str, int]] = []  # Where, by which rule, how often; never what it was.


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Body)
_told_decoder = msgspec.msgpack.Decoder(RedactedBody)
_TOLD = frozenset(0x90 + len(kind.__struct_fields__) for kind in (TokenBody, RedactedBody))  # How their arrays begin.


def encode(body: Body) -> bytes:
    """The body as it is logged, hashed and sent."""
    return _encoder.encode(body)


def decode(packed: bytes) -> Body:
    """The body in these bytes.

    Raises:
        InvalidValue: these bytes are no operation.
    """
    try:
        return _decoder.decode(packed)
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise InvalidValue(f"this is not an operation ({error}). Nothing was written.") from None


def decode_sent(packed: bytes) -> Body:
    """The body in bytes that a peer sent.

    Raises:
        InvalidValue: these bytes are no operation, or hold more than any has; they are not decoded then.
    """
    if is_beyond(packed):
        raise too_long()
    return decode(packed)


def decoding_sent(packed: bytes) -> Generator[None, None, Body]:
    """As `decode_sent`, in steps."""
    if (yield from measuring(packed)):
        raise too_long()
    return decode(packed)


def too_long() -> InvalidValue:
    """The error for bytes that hold more than any operation has."""
    return InvalidValue(f"this is not an operation: it holds more than {PARTS_MAX} values. Nothing was written.")


def measuring(packed: bytes) -> Generator[None, None, bool]:
    """As `is_beyond`, in steps."""
    return len(packed) > PARTS_MAX and not (yield from counting(packed, PARTS_MAX, PARTS_STEP_MAX))


def is_beyond(packed: bytes) -> bool:
    """Whether a packed body or payload holds more values, one within another counted, than any that is issued."""
    return len(packed) > PARTS_MAX and not has_at_most(packed, PARTS_MAX)


def told_in(packed: bytes) -> RedactedBody | None:
    """An encoded operation with the id of its token and what was replaced in it; None: it has neither.

    Raises:
        InvalidValue: these bytes are no operation.
    """
    if not packed or packed[0] not in _TOLD:
        return None
    try:
        return _told_decoder.decode(packed)
    except ValueError as error:
        raise InvalidValue(f"this is not an operation ({error}). Nothing was written.") from None


def chain(previous: bytes, partition: int, dot: Dot, packed: bytes) -> bytes:
    """The chain hash after `dot`, whose encoded body is `packed`; `previous` is the chain hash before it."""
    return chain_at(previous, partition.to_bytes(2, "big") + dot.pack(), packed)


def chain_at(previous: bytes, place: bytes, packed: bytes) -> bytes:
    """The same of the operation at a place: partition₂ origin₁₆ sequence₈, as in the key of its row in the log."""
    return sha256(previous + place + packed).digest()


def continues(previous: bytes, place: bytes, stored: bytes) -> bool:
    """Whether an operation as the log stores it follows from the chain hash before it.

    `place` is packed: partition₂ origin₁₆ sequence₈, as in the key of its row.
    """
    return sha256(previous + place + stored[CHAIN_BYTES:]).digest() == stored[:CHAIN_BYTES]


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """An operation as the log stores it, and as it is sent."""

    chain: bytes  # The chain hash after it.
    packed: bytes  # The encoded body.

    def pack(self) -> bytes:
        """The bytes of the log's row."""
        return self.chain + self.packed

    @classmethod
    def unpack(cls, stored: bytes) -> LogEntry:
        """The entry in bytes from `pack`. Nothing is checked."""
        return cls(stored[:CHAIN_BYTES], stored[CHAIN_BYTES:])


class Tip(msgspec.Struct, frozen=True, gc=False):
    """The last operation of one origin in one partition: the last that was applied, or the last that left the log."""

    sequence: int
    hlc: int
    chain: bytes
    known: bool = False  # Whether an operation of another origin knows of it. If so, it is not in the vector's frontier.
    logged: int = 0  # The bytes in the log of all operations up to it, those that have left the log included.

    def pack(self) -> bytes:
        """The bytes of the vector's row for this origin."""
        numbers = self.sequence.to_bytes(8, "big") + self.hlc.to_bytes(8, "big") + self.logged.to_bytes(8, "big")
        return numbers + self.chain + _KNOWN if self.known else numbers + self.chain

    @classmethod
    def unpack(cls, packed: bytes) -> Tip:
        """The tip in bytes from `pack`."""
        sequence, hlc = int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:16], "big")
        logged = int.from_bytes(packed[16:24], "big")
        return cls(sequence, hlc, packed[24:TIP_BYTES], packed[TIP_BYTES:] == _KNOWN, logged)

    def after(self, sequence: int, hlc: int, chain: bytes, packed: bytes) -> Tip:
        """The tip once the origin's next operation, with this encoded body, is applied."""
        return Tip(sequence, hlc, chain, logged=self.logged + LOG_ROW_BYTES + len(packed))


TIP_BYTES = 56
LOG_ROW_BYTES = 27 + CHAIN_BYTES  # Of a row of the log, with its key, beside the operation.
_KNOWN = b"\x01"
NO_TIP = Tip(0, 0, CHAIN_START)


class Readiness(Enum):
    """Whether an operation may be applied."""

    READY = "ready"  # Apply it now.
    SEEN = "seen"  # Applied before; drop it.
    EARLY = "early"  # It depends on a missing operation; it waits outside vector and state.


class Reach:
    """A vector that grows by one operation after another. Growing costs less than it does for a `VersionVector`."""

    __slots__ = ("_grown", "_vector")

    def __init__(self, vector: VersionVector) -> None:
        self._vector = vector
        self._grown: dict[bytes, int] = {}

    def __getitem__(self, origin: Origin, /) -> int:
        return self._grown.get(origin) or self._vector[origin]

    def __bool__(self) -> bool:
        """Whether it has grown."""
        return bool(self._grown)

    def take(self, dot: Dot) -> None:
        """Cover the next operation of its origin."""
        self._grown[dot.origin] = dot.sequence


def readiness(vector: VersionVector | Reach, dot: Dot, context: Sequence[tuple[bytes, int]]) -> Readiness:
    """Whether an operation with this context (`Body.context`) may be applied to a replica at `vector`."""
    held = vector[dot.origin]
    if dot.sequence <= held:
        return Readiness.SEEN
    if dot.sequence > held + 1:
        return Readiness.EARLY
    for origin, sequence in context:
        if vector[Origin(origin)] < sequence:
            return Readiness.EARLY
    return Readiness.READY


PARTITIONS = 1024


def tag_of(name: str) -> str:
    """The part of a name that chooses its partition: `crew-7` for `{crew-7}/planner`."""
    opening = name.find("{")
    if opening >= 0:
        closing = name.find("}", opening + 1)
        if closing > opening + 1:
            return name[opening + 1 : closing]
    return name


@lru_cache(maxsize=MEMOIZED_MAX)
def partition_of(space: str, name: str) -> int:
    """The partition, 0 to 1023. The space is length-prefixed, so that ("a", "bc") and ("ab", "c") are independent."""
    encoded = space.encode()
    tag = "" if is_colocated(space) else tag_of(name)
    digest = sha256(len(encoded).to_bytes(2, "big") + encoded + tag.encode()).digest()
    return int.from_bytes(digest[:8], "big") % PARTITIONS
