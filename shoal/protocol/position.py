"""A position: the changes that a watcher has received, so that any node can continue after them.

Law: per partition it covers a version vector, and the first mutations of some operations beyond
that. A change is delivered to a watcher if its position does not cover it. It does not
say what the watcher has read; that is the bookmark.

Packed: a version byte, then msgpack of [origins, partitions, parts]: the origins, each once; per
partition [number, index of an origin, sequence, …], by number; and [partition, dot₂₄, nth] for
each operation covered in part. Equal positions give equal bytes.

Its text is the packed form in base64url. If that is too long, it is another version byte and the same as columns
(origins; steps from partition to partition; how many origins each has; their indexes; the sequences; parts)
compressed by zlib: a third of the bytes or less, because the parts that grow repeat.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Mapping
from itertools import accumulate, chain, islice, pairwise

import msgspec

from shoal.crdt.dot import DOT_BYTES, NOTHING_SEEN, Dot, Origin, VersionVector
from shoal.errors import InvalidValue
from shoal.protocol.bookmark import PARTITIONS_MAX
from shoal.protocol.requests import Change

COLUMNS_BYTES_MAX = 1 << 20
"""The bytes of a position as columns, before zlib: some ten thousand entries for each of its partitions."""

_VERSION = b"\x01"
_COLUMNS_VERSION = b"\x02"
_Packed = tuple[list[bytes], list[list[int]], list[tuple[int, bytes, int]]]
_Columns = tuple[list[bytes], list[int], list[int], list[int], list[int], list[tuple[int, bytes, int]]]
_decode = msgspec.msgpack.Decoder(_Packed).decode
_decode_columns = msgspec.msgpack.Decoder(_Columns).decode


class Position:
    """A mutable position; a new one covers nothing."""

    __slots__ = ("_parts", "_vectors")

    def __init__(
        self, vectors: Mapping[int, VersionVector] | None = None, parts: Mapping[tuple[int, Dot], int] | None = None
    ) -> None:
        self._vectors = dict(vectors or {})
        self._parts = dict(parts or {})  # Partition and dot → the last of the mutations that are covered.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and (self._vectors, self._parts) == (other._vectors, other._parts)

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Position:
        """A copy that changes independently."""
        return Position(self._vectors, self._parts)

    @property
    def partitions(self) -> Iterable[int]:
        """The partitions of which it covers anything, in no order."""
        return self._vectors.keys()

    def vector(self, partition: int) -> VersionVector:
        """The operations covered of a partition; empty if there are none."""
        return self._vectors.get(partition, NOTHING_SEEN)

    def covers(self, partition: int, dot: Dot, nth: int) -> bool:
        """Whether mutation `nth` of the operation `dot`, counted from 0, was delivered."""
        return self.vector(partition).covers(dot) or nth <= self._parts.get((partition, dot), -1)

    def note(self, change: Change) -> None:
        """Cover a change that was delivered.

        Raises:
            InvalidValue: the change has a malformed position.
        """
        try:
            vector, part = VersionVector.unpack(change.seen), unpack_part(change.part) if change.part else None
        except ValueError:
            raise InvalidValue("the node sent a malformed position of the watch.") from None
        if part is not None:
            self._parts[change.partition, part[0]] = part[1]
        self.join(change.partition, vector)

    def join(self, partition: int, vector: VersionVector) -> None:
        """Cover all operations of `vector` too."""
        if vector:
            joined = self._vectors[partition] = self.vector(partition).join(vector)
            for number, dot in list(self._parts):
                if number == partition and joined.covers(dot):
                    del self._parts[number, dot]

    def pack(self) -> bytes:
        """The position as bytes; equal positions give equal bytes."""
        origins = sorted({origin for vector in self._vectors.values() for origin in vector})
        index = {origin: at for at, origin in enumerate(origins)}
        entries = [
            [number, *(part for origin, sequence in vector.entries() for part in (index[origin], sequence))]
            for number, vector in sorted(self._vectors.items())
        ]
        parts = [(number, dot.pack(), nth) for (number, dot), nth in sorted(self._parts.items())]
        return _VERSION + msgspec.msgpack.encode((origins, entries, parts))

    @classmethod
    def unpack(cls, packed: bytes) -> Position:
        """Read a packed position.

        Raises:
            InvalidValue: `packed` was not made by `pack`.
        """
        try:
            if packed[:1] != _VERSION:
                raise ValueError("unknown version")
            origins, entries, parts = _decode(packed[1:])
            if any(len(origin) != DOT_BYTES - 8 for origin in origins):
                raise ValueError("no origin")
            vectors: dict[int, VersionVector] = {}
            for number, *rest in entries:
                if not 0 <= number < PARTITIONS_MAX or len(rest) % 2 or number in vectors:
                    raise ValueError("no such partition")
                vectors[number] = VersionVector(
                    (Origin(origins[at]), sequence) for at, sequence in zip(rest[::2], rest[1::2], strict=True)
                )
            found = cls(vectors, {(number, Dot.unpack(dot)): nth for number, dot, nth in parts})
            if found.pack() != packed:
                raise ValueError("another form of it")
            return found
        except (ValueError, IndexError, OverflowError):  # msgspec's errors are ValueErrors too.
            raise InvalidValue(
                "the position of a watch is damaged or of a newer version. Send one exactly as a node gave it, or none."
            ) from None

    def text(self, *, bytes_max: int | None = None) -> str:
        """Text that is safe in a header or a URL; in the compressed form if the plain one is longer than `bytes_max`."""
        text = _text(self.pack())
        return text if bytes_max is None or len(text) <= bytes_max else _text(self._columns())

    def _columns(self) -> bytes:
        origins, entries, parts = _decode(self.pack()[1:])
        numbers = [entry[0] for entry in entries]
        steps = [number - before for before, number in pairwise([0, *numbers])]
        lengths = [len(entry) // 2 for entry in entries]
        indexes = [index for entry in entries for index in entry[1::2]]
        sequences = [sequence for entry in entries for sequence in entry[2::2]]
        return _COLUMNS_VERSION + zlib.compress(msgspec.msgpack.encode((origins, steps, lengths, indexes, sequences, parts)))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the text of a position.

        Raises:
            InvalidValue: `text` was not made by `text`.
        """
        try:
            packed = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise InvalidValue("the position of a watch is not base64url text. Send one exactly as a node gave it.") from None
        return cls.unpack(_of_columns(packed) if packed[:1] == _COLUMNS_VERSION else packed)


def _text(packed: bytes) -> str:
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def _of_columns(packed: bytes) -> bytes:
    """The packed form of columns; if they are malformed, bytes that `unpack` rejects."""
    try:
        inflating = zlib.decompressobj()
        columns = inflating.decompress(packed[1:], COLUMNS_BYTES_MAX)
        if not inflating.eof or inflating.unused_data:
            return b""
        origins, steps, lengths, indexes, sequences, parts = _decode_columns(columns)
    except (zlib.error, ValueError):  # msgspec's errors are ValueErrors, too.
        return b""
    if len(steps) != len(lengths) or min(lengths, default=0) < 0 or not sum(lengths) == len(indexes) == len(sequences):
        return b""
    vectors = zip(indexes, sequences, strict=True)
    entries = [
        [number, *chain.from_iterable(islice(vectors, length))]
        for number, length in zip(accumulate(steps), lengths, strict=True)
    ]
    return _VERSION + msgspec.msgpack.encode((origins, entries, parts))


def pack_part(dot: Dot, nth: int) -> bytes:
    """An operation and one of its mutations, as 26 bytes: dot₂₄, nth₂."""
    return dot.pack() + nth.to_bytes(2, "big")


def unpack_part(packed: bytes) -> tuple[Dot, int]:
    """The operation and the mutation of `pack_part`.

    Raises:
        ValueError: `packed` has another length.
    """
    if len(packed) != DOT_BYTES + 2:
        raise ValueError("no part of an operation")
    return Dot.unpack(packed[:DOT_BYTES]), int.from_bytes(packed[DOT_BYTES:], "big")
