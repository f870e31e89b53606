"""A bookmark: the operations that a client has written and seen, so that no node shows it an older state.

Laws:
- It only grows, except for a partition that is replaced (`replace`) because
  the client chose to read older state, and one that is let go (`let_go`): nodes do not remember for ever which
  origins were retired, so that a client which touches a partition again after a long time may name these.
- Per partition it holds the frontier of the operations seen: the newest operations that
  no other one implies. A node that holds these holds everything before them, so it
  shows at least the state that the client has seen (Terry et al., "Session guarantees for
  weakly consistent replicated data", 1994). Newer operations imply those of past
  openings of a data directory, so a bookmark does not grow with the number of openings.

- Its bytes are bounded, and the origins of each partition, because a node keeps one for each session; a large one is read
  in steps.

Packed: a version byte, then msgpack of [[partition, vector₂₄ₙ], …] by partition.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Generator, Iterator

import msgspec

from shoal.crdt.dot import DOT_BYTES, NOTHING_SEEN, VersionVector
from shoal.errors import BookmarkLost, InvalidValue, TooLarge

PARTITIONS_MAX = 1024
BYTES_MAX = 256 * 1024  # Packed: ten origins in each partition, of which an honest one names those that wrote at the same time.
ORIGINS_MAX = 1024  # In one partition.
_STEP_BYTES = 512 * DOT_BYTES  # Read in one step: a few milliseconds.
_SHARE = 7 / 8  # Of `forget_after_s`: a client's clock and a node's do not run alike.
_VERSION = b"\x01"
_decode = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode


class Bookmark:
    """A mutable bookmark. `revision` increases whenever the bookmark grows.

    `now`: the time in seconds, by any clock that is never set; without it nothing is ever old.
    """

    __slots__ = ("_noted_s", "_now", "_vectors", "revision")

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._vectors: dict[int, VersionVector] = {}
        self._now = now
        self._noted_s: dict[int, float] = {}  # By partition: when something of it was shown or written last.
        self.revision = 0

    def __iter__(self) -> Iterator[tuple[int, VersionVector]]:
        return iter(sorted(self._vectors.items()))

    def __len__(self) -> int:
        return len(self._vectors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bookmark) and self._vectors == other._vectors

    __hash__ = None  # type: ignore[assignment]

    def vector(self, partition: int) -> VersionVector:
        """The frontier of the operations seen of a partition; empty if nothing was seen."""
        return self._vectors.get(partition, NOTHING_SEEN)

    def note(self, partition: int, vector: VersionVector) -> None:
        """Add the operations that `vector` covers: they were shown or written."""
        known = self._vectors.get(partition)
        if self._now is not None:
            self._noted_s[partition] = self._now()
        if known is vector or not vector:
            return
        frontier = vector.frontier
        joined = frontier if known is None or vector.dominates(known) else known.join(frontier)
        if joined != known:
            self._vectors[partition] = joined
            self.revision += 1

    def drop(self, partition: int, known: VersionVector) -> None:
        """Remove the entries that `known` covers, if others remain, because the others imply them."""
        vector = self.vector(partition)
        kept = [(origin, sequence) for origin, sequence in vector.items() if sequence > known[origin]]
        if kept and len(kept) < len(vector):
            self._vectors[partition] = VersionVector(kept)
            self.revision += 1

    def replace(self, partition: int, vector: VersionVector) -> None:
        """Replace a partition's operations: from now on a state that covers `vector` is enough."""
        frontier = vector.frontier
        if self._now is not None:
            self._noted_s[partition] = self._now()
        if self.vector(partition) != frontier:
            self._vectors[partition] = frontier
            self.revision += 1

    def join(self, other: Bookmark) -> None:
        """Add all operations of `other`."""
        for partition, vector in other._vectors.items():
            self.note(partition, vector)

    def let_go(self, lost: BookmarkLost, forget_after_s: float) -> bool:
        """Whether a node lost nothing: it has forgotten what is named, because nothing of the partition was shown or written
        for so long. From then on any state of the partition is enough.
        """
        partition = lost.detail.get("partition")
        if self._now is None or not isinstance(partition, int):
            return False
        noted_s = self._noted_s.get(partition)
        if noted_s is not None and self._now() - noted_s < forget_after_s * _SHARE:
            return False
        self._vectors.pop(partition, None)
        self._noted_s.pop(partition, None)
        return True

    def pack(self) -> bytes:
        """The bookmark as bytes; equal bookmarks give equal bytes."""
        return _VERSION + msgspec.msgpack.encode([(number, vector.pack()) for number, vector in self])

    @classmethod
    def unpack(cls, packed: bytes) -> Bookmark:
        """Read a packed bookmark. Empty `packed` is the bookmark of a client that has seen nothing.

        Raises:
            InvalidValue: `packed` was not made by `pack`.
            TooLarge: it has more bytes, or a partition has more origins, than a bookmark may have.
        """
        steps = cls.reading(packed)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                bookmark: Bookmark = done.value
                return bookmark

    @classmethod
    def reading(cls, packed: bytes) -> Generator[None, None, Bookmark]:
        """Read a packed bookmark in steps, and return it. Raises as `unpack`."""
        bookmark = cls()
        if not packed:
            return bookmark
        if len(packed) > BYTES_MAX:
            raise TooLarge(f"the bookmark has {len(packed)} bytes; {BYTES_MAX} are allowed. Nothing was written.")
        read = 0
        try:
            if packed[:1] != _VERSION:
                raise ValueError("unknown version")
            for partition, vector in _decode(packed[1:]):
                if not 0 <= partition < PARTITIONS_MAX:
                    raise ValueError("no such partition")
                if len(vector) > ORIGINS_MAX * DOT_BYTES:
                    raise TooLarge(
                        f"the bookmark names more than {ORIGINS_MAX} origins of partition {partition}. Nothing was written."
                    )
                bookmark.note(partition, VersionVector.unpack(vector))
                read += len(vector)
                if read > _STEP_BYTES:
                    yield
                    read = 0
        except TooLarge:
            raise
        except ValueError:  # msgspec's errors are ValueErrors too.
            raise InvalidValue(
                "the bookmark is damaged or of a newer version. Nothing was written. "
                "Send a bookmark exactly as a node gave it, or none."
            ) from None
        return bookmark

    def text(self) -> str:
        """The packed form as text that is safe in a header or a URL."""
        return base64.urlsafe_b64encode(self.pack()).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        """Read the text of a bookmark.

        Raises:
            InvalidValue: `text` was not made by `text`.
        """
        try:
            packed = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise InvalidValue(
                "the bookmark is not base64url text. Nothing was written. Send a bookmark exactly as a node gave it, or none."
            ) from None
        return cls.unpack(packed)
