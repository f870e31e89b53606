"""The messages among peers, byte for byte: each is one msgpack array that begins with its tag.

Laws:
- No claim to an operation leaves a node before its fsync, but the operation itself may: a `Push` proves nothing about
  what its sender holds. (Presence is no operation.)
- For any bytes, decoding returns a message or raises InvalidValue.
- Fields are only ever added at the end, with a default. Any other change takes a new
  protocol version in the handshake; a kind of message that it brings is listed in `SINCE`.
- The epoch of its sender's list of members stands before a message, unless it is 0 (`stamped`).

Any message may be lost with its link. Pushes and `Have` are hints that make
replication fast; `Digest`, `Parts`, `Vectors`, `Want`, `Supply` and `Truncated` guarantee it.
`RepairRequest` and `RepairReply` replace rows that a disk damaged. `RightsRequest` and `RightsReply` are about rights to spend.
`Present` tells who is present, which is not durable; `Clock` tells the time (`shoal.cluster.comparing`). The messages of the
quorum register are in `shoal.cluster.consensus.ballots`, those about members in `shoal.cluster.membership.notices` and
`rebuilds`, those about claims in `shoal.kinds.lease.state.wishes`.
`Rows` and `Objects` compare the rows that equal operations have made (`shoal.cluster.scrub`).
`SnapshotRequest` and `SnapshotPiece` bring a whole partition, `RootsRequest` and `Roots` compare it with what others have
(`shoal.cluster.snapshots`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from shoal.cluster import comparing
from shoal.cluster.comparing import Clock, Roots, RootsMessage, RootsRequest
from shoal.cluster.consensus import ballots as motions
from shoal.cluster.consensus.ballots import AnyMotion, Motion
from shoal.cluster.membership import notices
from shoal.cluster.membership.notices import Founded, Founding, Inquiry, Membership, Notice, RebuildNotice, Report, Standing
from shoal.cluster.operation import CHAIN_BYTES, PARTITIONS
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin
from shoal.errors import InvalidValue, ShoalError
from shoal.kinds.lease.state import wishes
from shoal.kinds.lease.state.wishes import Granted, Wishes

Held = tuple[int, bytes, int]  # Partition, origin, sequence: everything up to there is held durably.
Range = tuple[int, bytes, int, int]  # Partition, origin, first and last sequence.
RANGES_MAX = 1024  # In one Want.
LOST_MAX = 256  # Rows in one RepairRequest.
PRESENT_MAX = 256  # Entries in one Present.
OBJECTS_MAX = 8192  # In one Objects.
SNAPSHOT_ID_BYTES = 16
TROUBLE_CHARS_MAX = 1000  # Of the text in one Trouble.


class Shipment(Struct, array_like=True, frozen=True, gc=False):
    """An operation on its way: as its origin logged it, with the attached bytes that its payload names by their hash."""

    partition: int
    origin: bytes
    sequence: int
    chain: bytes  # The chain hash of its origin's log after it.
    packed: bytes  # The encoded body.
    attached: bytes  # Opaque here.

    @property
    def dot(self) -> Dot:
        """The operation's name."""
        return Dot(Origin(self.origin), self.sequence)


class Push(Struct, array_like=True, frozen=True, tag=1):
    """New operations of the sender's own, in the order in which it issued them."""

    operations: Sequence[Shipment | Raw]


class Have(Struct, array_like=True, frozen=True, tag=2):
    """Operations that the sender holds durably, as far as that changed since the last one.

    An operation of the receiver's may be dead at the sender, by a deletion that the receiver has not heard of. So the
    receiver counts its own ones as acknowledged only once it holds the operations in `needs`, by partition.
    """

    held: list[Held]
    needs: list[tuple[int, bytes]] = []  # Vectors that cover the sender's durable deletions, if the receiver may lack some.


class Digest(Struct, array_like=True, frozen=True, tag=3):
    """A hash over all the sender's durable vectors; answered by `Parts` if it differs from the receiver's."""

    digest: bytes
    learner: bool = False  # Whether the sender is one. It counts as an owner once it said, on this link, that it is not.
    once: list[tuple[int, bytes]] = []  # By partition: the operations that the receiver once held and now lacks.
    number: int = 0  # Of `once`, on the link to this receiver.
    heard: int = 0  # The last number of `once` that the sender heard from the receiver.
    fenced: bytes = b""  # The run of the receiver since which the sender takes nothing of earlier ones; all it took is durable.
    unended: bool = False  # Whether the sender does not know yet where its past origins end: its vectors are not whole.


class Parts(Struct, array_like=True, frozen=True, tag=4):
    """A hash of each partition's durable vector; answered by `Vectors` of those that differ."""

    parts: list[tuple[int, bytes]]


class Vectors(Struct, array_like=True, frozen=True, tag=5):
    """Durable vectors of some partitions, whole. If `answer` is set, the receiver sends its own of the same partitions."""

    vectors: list[tuple[int, bytes]]
    answer: bool
    question: int = 0  # A number of the asking node's; the answer repeats it.
    # Of some of these partitions the retired origins, which the sender holds: their last sequences, and when they were retired.
    retired: list[tuple[int, bytes, bytes]] = []


class Want(Struct, array_like=True, frozen=True, tag=6):
    """Operations that the sender lacks; answered by one `Supply` of as many as fit, or by `Busy`."""

    id: int
    ranges: list[Range]


class Supply(Struct, array_like=True, frozen=True, tag=7):
    """Operations that were wanted, in a causal order within each partition."""

    id: int
    operations: Sequence[Shipment | Raw]


class Busy(Struct, array_like=True, frozen=True, tag=8):
    """A `Want` is not served now, and why."""

    id: int
    reason: str
    retry_after_ms: int


class Trouble(Struct, array_like=True, frozen=True, tag=9):
    """An operation that the sender of this message did not apply, and why."""

    partition: int
    origin: bytes
    sequence: int
    reason: str
    message: str

    @classmethod
    def about(cls, shipment: Shipment, error: ShoalError) -> Trouble:
        """The message for an operation that failed with this error."""
        reason = error.detail.get("reason")
        return cls(
            shipment.partition,
            shipment.origin,
            shipment.sequence,
            reason if isinstance(reason, str) else error.code,
            error.message[:TROUBLE_CHARS_MAX],
        )


class RepairRequest(Struct, array_like=True, frozen=True, tag=10):
    """Rows of an object that the sender found missing or damaged on its disk; answered by one `RepairReply`."""

    id: int
    kind: int
    space: str
    name: str
    generation: int
    rows: list[bytes]


class RepairReply(Struct, array_like=True, frozen=True, tag=11):
    """Those of the rows that are whole at the sender, as many as fit; maybe none."""

    id: int
    rows: list[tuple[bytes, bytes]]


class RightsRequest(Struct, array_like=True, frozen=True, tag=12):
    """Asks for rights to spend of a budget; answered by one `RightsReply`."""

    id: int
    space: str
    budget: str
    amount: int
    origin: bytes  # The account that is to receive them.
    node: bytes  # The node of that account.
    spare: bool = False  # Only the rights that the receiver has beyond its share: the sender asks ahead of need.


class RightsReply(Struct, array_like=True, frozen=True, tag=13):
    """The transfer that was made, and that will arrive as an operation; an amount of 0 means none."""

    id: int
    amount: int
    origin: bytes
    sequence: int


class Present(Struct, array_like=True, frozen=True, tag=14):
    """Changes of who is present at the sender: space, document, client, clock, state. Not durable; a hint."""

    entries: list[tuple[str, str, int, int, bytes]]


class Rows(Struct, array_like=True, frozen=True, tag=15):
    """A hash over the sender's rows in a range of keys; answered by `Objects` if the receiver's differ at the same vector."""

    partition: int
    vector: bytes  # A hash of the sender's vector.
    start: bytes
    stop: bytes
    digest: bytes


class Objects(Struct, array_like=True, frozen=True, tag=16):
    """A hash for each object in a range, empty if it cannot be compared. If `answer` is set, the receiver sends its own."""

    partition: int
    vector: bytes
    start: bytes
    stop: bytes
    objects: list[tuple[bytes, bytes]]  # The prefix of its rows' keys, and the hash.
    answer: bool
    proved: list[bytes] = []  # Those of these objects whose rows the sender has rebuilt from its log, which is whole.


class ObjectRowsRequest(Struct, array_like=True, frozen=True, tag=44):
    """Asks for an object's rows in a range, at one vector; answered by `ObjectRows`."""

    id: int
    partition: int
    vector: bytes
    start: bytes
    stop: bytes
    object: bytes  # The prefix of its rows' keys.


class ObjectRows(Struct, array_like=True, frozen=True, tag=45):
    """Keys and values of those rows; none if the sender's vector is another one by now."""

    id: int
    rows: list[tuple[bytes, bytes]]


class Truncated(Struct, array_like=True, frozen=True, tag=40):
    """Operations that the receiver wants have left the sender's log: it must take a snapshot of the partition."""

    partition: int
    base: bytes  # The sender's, packed: the last operation of each origin that has left.


class SnapshotRequest(Struct, array_like=True, frozen=True, tag=41):
    """Asks for a piece of a snapshot of a partition; answered by one `SnapshotPiece`. Without an id, for a new snapshot."""

    partition: int
    attempt: int  # A number of the sender's; the answer repeats it.
    id: bytes = b""  # The name that the receiver gave the snapshot.
    piece: int = 0
    done: bool = False  # The sender needs the snapshot no more; no answer follows.


class SnapshotPiece(Struct, array_like=True, frozen=True, tag=42):
    """A piece of a snapshot: some of its rows, in order. With a reason it does not come, without an id no other one does."""

    partition: int
    attempt: int
    id: bytes
    piece: int
    rows: bytes = b""  # msgpack: a list of keys and values.
    digest: bytes = b""  # Of the last piece: SHA-256 of all pieces' rows, one after another.
    reason: str = ""
    retry_after_ms: int = 0  # With a reason: when it makes sense to ask again, or to begin anew with this node.


Message = (
    Push
    | Have
    | Digest
    | Parts
    | Vectors
    | Want
    | Supply
    | Busy
    | Trouble
    | RepairRequest
    | RepairReply
    | RightsRequest
    | RightsReply
    | Present
    | Rows
    | Objects
    | Clock
    | Truncated
    | ObjectRowsRequest
    | ObjectRows
    | SnapshotRequest
    | SnapshotPiece
    | AnyMotion
    | Notice
    | RebuildNotice
    | Wishes
    | Granted
    | RootsMessage
)


class _Push(Struct, array_like=True, frozen=True, tag=1):
    operations: list[Shipment]


class _Supply(Struct, array_like=True, frozen=True, tag=7):
    id: int
    operations: list[Shipment]


_EPOCH = b"\xcf"  # Of a msgpack integer of 8 bytes. Every message begins with an array.
SINCE: Mapping[type[Message], int] = {
    Wishes: 7,
    Granted: 7,
    Inquiry: 7,
    Report: 7,
    Founding: 7,
    Founded: 7,
    RootsRequest: 7,
    Roots: 7,
}
"""Kinds of messages that are younger than `PEER_PROTOCOL_OLDEST`, and the version that brought each: older peers get none."""

_encoder = msgspec.msgpack.Encoder()
_Received = (
    _Push
    | Have
    | Digest
    | Parts
    | Vectors
    | Want
    | _Supply
    | Busy
    | Trouble
    | RepairRequest
    | RepairReply
    | RightsRequest
    | RightsReply
    | Present
    | Rows
    | Objects
    | Clock
    | Truncated
    | ObjectRowsRequest
    | ObjectRows
    | SnapshotRequest
    | SnapshotPiece
    | AnyMotion
    | Notice
    | RebuildNotice
    | Wishes
    | Granted
    | RootsMessage
)


@cache
def _decoder() -> msgspec.msgpack.Decoder[_Received]:
    """Made at the first use: it takes milliseconds, and a node without peers needs none."""
    return msgspec.msgpack.Decoder(_Received)


_T = TypeVar("_T")


def encode(message: Message) -> bytes:
    """The message as it is sent."""
    return _encoder.encode(message)


def encode_shipment(shipment: Shipment) -> Raw:
    """Encode an operation once, for all the messages that it goes out in."""
    return Raw(_encoder.encode(shipment))


def stamped(packed: bytes, epoch: int) -> bytes:
    """A message as a node sends it in this epoch of its list of members."""
    return _EPOCH + epoch.to_bytes(8, "big") + packed if epoch else packed


def unstamped(packed: bytes) -> tuple[int, bytes]:
    """The epoch in which a message was sent, and the message for `decode`."""
    if packed[:1] != _EPOCH:
        return 0, packed
    return int.from_bytes(packed[1:9], "big"), packed[9:]


def decode(packed: bytes) -> Message:
    """The message in these bytes.

    Raises:
        InvalidValue: these bytes are no message; the text says why.
    """
    try:
        message = _decoder().decode(packed)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
        raise InvalidValue(f"a peer's message is malformed ({error}). Nothing of it was written.") from None
    match message:
        case _Push(operations):
            _check_shipments(operations)
            return Push(operations)
        case _Supply(id, operations):
            _check_shipments(operations)
            return Supply(id, operations)
        case Have(held, needs):
            for partition, origin, _ in held:  # Of each operation several times: no generator.
                if not 0 <= partition < PARTITIONS or len(origin) != ORIGIN_BYTES:
                    raise _impossible_place()
            for partition, _ in needs:
                if not 0 <= partition < PARTITIONS:
                    raise _impossible_place()
        case Want(_, ranges):
            _check_ranges(ranges)
        case Parts(parts) | Vectors(parts):
            _check_places((partition, bytes(ORIGIN_BYTES)) for partition, _ in parts)
        case Digest(_, _, once):
            _check_places((partition, bytes(ORIGIN_BYTES)) for partition, _ in once)
        case Truncated(partition, _):
            _check_places(iter([(partition, bytes(ORIGIN_BYTES))]))
        case RepairRequest(_, _, _, _, generation, rows):
            if not 0 <= generation < 1 << 32 or len(rows) > LOST_MAX:
                raise InvalidValue("a peer asks for too many rows, or for an impossible generation. Nothing was written.")
        case RightsRequest(_, _, _, amount, origin, node, _):
            if not 0 < amount < 1 << 63 or len(origin) != ORIGIN_BYTES or len(node) != ORIGIN_BYTES:
                raise InvalidValue(
                    "a peer asks for an impossible amount of rights, or an impossible account. Nothing was written."
                )
        case RightsReply(_, amount, origin, sequence):
            if amount and (len(origin) != ORIGIN_BYTES or not 0 < sequence < 1 << 63):
                raise InvalidValue("a peer names an impossible transfer of rights. Nothing was written.")
        case Present(entries):
            if len(entries) > PRESENT_MAX or not all(_is_entry(*entry) for entry in entries):
                raise InvalidValue("a peer sent too many presence entries, or an impossible one. Nothing was written.")
        case Clock():
            comparing.check_clock(message)
        case Motion():
            motions.check(message)
        case Wishes() | Granted():
            wishes.check(message)
        case Membership() | Standing():
            notices.check_notice(message)
        case RootsRequest() | Roots():
            comparing.check_roots(message)
        case Inquiry() | Report() | Founding() | Founded():
            notices.check_rebuild(message)
        case SnapshotRequest(partition, _, id, piece) | SnapshotPiece(partition, _, id, piece):
            _check_places(iter([(partition, bytes(ORIGIN_BYTES))]))
            if len(id) > SNAPSHOT_ID_BYTES or not 0 <= piece < 1 << 32:
                raise InvalidValue("a peer names an impossible snapshot, or piece of one. Nothing was written.")
        case (
            Rows(partition, _, start, stop, _)
            | Objects(partition, _, start, stop, _, _, _)
            | ObjectRowsRequest(_, partition, _, start, stop, _)
        ):
            _check_places(iter([(partition, bytes(ORIGIN_BYTES))]))
            if not start < stop or (isinstance(message, Objects) and len(message.objects) > OBJECTS_MAX):
                raise InvalidValue("a peer compares an empty range of rows, or too many objects. Nothing was written.")
    return message


def _is_entry(space: str, _document: str, client: int, clock: int, _state: bytes) -> bool:
    return bool(space) and 0 <= client < 1 << 53 and 0 <= clock < 1 << 53


def batches(entries: Iterable[_T], bytes_of: Callable[[_T], int], *, bytes_max: int) -> Iterator[list[_T]]:
    """All entries, in order, in lists of at most `bytes_max`; a longer entry is alone in its list."""
    batch: list[_T] = []
    size = 0
    for entry in entries:
        length = bytes_of(entry)
        if batch and size + length > bytes_max:
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += length
    if batch:
        yield batch


def slices(operations: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """`operations` in runs of at most `size`, in order."""
    for start in range(0, len(operations), size):
        yield operations[start : start + size]


def _check_shipments(operations: list[Shipment]) -> None:
    for shipment in operations:
        if not 0 <= shipment.partition < PARTITIONS or len(shipment.origin) != ORIGIN_BYTES:
            raise InvalidValue("a peer's message names an impossible partition or origin. Nothing of it was written.")
        if len(shipment.chain) != CHAIN_BYTES or not 0 < shipment.sequence < 1 << 63:
            raise InvalidValue("a peer sent an operation with an impossible chain hash or sequence. Nothing of it was written.")


def _check_places(places: Iterator[tuple[int, bytes]]) -> None:
    if not all(0 <= partition < PARTITIONS and len(origin) == ORIGIN_BYTES for partition, origin in places):
        raise _impossible_place()


def _impossible_place() -> InvalidValue:
    return InvalidValue("a peer's message names an impossible partition or origin. Nothing was written.")


def _check_ranges(ranges: list[Range]) -> None:
    _check_places((partition, origin) for partition, origin, _, _ in ranges)
    if len(ranges) > RANGES_MAX or not all(0 < first <= last < 1 << 63 for _, _, first, last in ranges):
        raise InvalidValue("a peer wants too many ranges, or an impossible one. Nothing was written.")
