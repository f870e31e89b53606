"""A client's bookmark, and how the client and a node keep the same one.

A bookmark: the operations that a client has written and seen, so that no node shows it an older state.

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

One bookmark in two places: the client's, and the copy that a node keeps for the client's session.

Laws:
- The node sends the growth of its copy with the reply that shows the new state, or before it,
  so that after each reply the client's bookmark covers all that the client has seen.
- Only changes are sent: of a vector that grew, the origins that grew, and those
  that left its frontier. A vector that was replaced, because the client chose to read
  older state, is sent whole.
- Changes that came from the client are not sent back to it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Generator, Iterable, Iterator

import msgspec
from msgspec import Struct

from shoal.crdt.dot import DOT_BYTES, NOTHING_SEEN, VersionVector
from shoal.errors import BookmarkLost, InvalidValue, TooLarge

SEEN_BYTES_MAX = 2 * 1024  # What the author of a checkpoint had read in other partitions; the rest goes with the next save.

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
    `token`: the id of the token under which its consumer writes; empty: there is none. It goes wherever its writes go.
    """

    __slots__ = ("_noted_s", "_now", "_vectors", "revision", "token")

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._vectors: dict[int, VersionVector] = {}
        self._now = now
        self._noted_s: dict[int, float] = {}  # By partition: when something of it was shown or written last.
        self.revision = 0
        self.token = ""

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


_ENTRY_BYTES_MAX = 9  # A packed partition without its vector: an array, two integers, a length.
_HEAD_BYTES_MAX = 4  # A packed bookmark without its partitions: its version, an array.


class Sight(Struct, array_like=True, frozen=True):
    """The change of one partition of a bookmark."""

    partition: int
    vector: bytes  # Packed: the origins that grew; with `replaced`, all origins.
    replaced: bool = False
    known: bytes = b""  # Packed: entries that the new ones imply, so that the client may remove them.


class SharedBookmark(Bookmark):
    """The node's side of a bookmark that a client keeps a copy of."""

    __slots__ = ("_replaced", "_told", "_touched")

    def __init__(self, known: Bookmark | None = None) -> None:
        """`known` is the bookmark that the client has sent."""
        super().__init__()
        self._told: dict[int, VersionVector] = {}
        self._touched: set[int] = set()
        self._replaced: set[int] = set()
        if known is not None:
            self.observe(known)

    def note(self, partition: int, vector: VersionVector) -> None:
        """Add the operations that `vector` covers: they were shown or written (`Bookmark.note`); the change is part of the next
        `news`.
        """
        super().note(partition, vector)
        self._touched.add(partition)

    def replace(self, partition: int, vector: VersionVector) -> None:
        """Replace a partition's operations: from now on a state that covers `vector` is enough (`Bookmark.replace`); the next
        `news` contains the whole vector.
        """
        super().replace(partition, vector)
        self._touched.add(partition)
        self._replaced.add(partition)

    def observe(self, known: Bookmark) -> None:
        """Add operations that the client has seen at another node.

        Raises:
            TooLarge: with what it has seen before, they name more than a bookmark may. Discard this one.
        """
        for partition, vector in known:
            super().note(partition, vector)
            self._told[partition] = self._told.get(partition, NOTHING_SEEN).join(vector)
            if len(self._told[partition]) > ORIGINS_MAX:
                raise TooLarge(f"the bookmark names more than {ORIGINS_MAX} origins of a partition. Nothing was written.")
        if sum(map(len, self._told.values())) * DOT_BYTES > BYTES_MAX:
            raise TooLarge(f"the session's bookmarks take more than {BYTES_MAX} bytes together. Nothing was written.")

    def news(self) -> list[Sight]:
        """The changes since the last call, to be sent to the client."""
        if not self._touched:
            return []
        sights = [sight for partition in self._touched if (sight := self._sight(partition)) is not None]
        self._touched.clear()
        self._replaced.clear()
        return sights

    def _sight(self, partition: int) -> Sight | None:
        vector, told = self.vector(partition), self._told.get(partition, NOTHING_SEEN)
        if vector is told or vector == told:
            return None
        self._told[partition] = vector
        if partition in self._replaced:
            return Sight(partition, vector.pack(), replaced=True)
        known = VersionVector({origin: sequence for origin, sequence in told.items() if origin not in vector})
        return Sight(partition, vector.since(told).pack(), known=known.pack())

    def within(self, text_bytes_max: int) -> tuple[Bookmark, int]:
        """The part of the bookmark that fits `text_bytes_max` bytes of text, and the number of partitions left out.

        Partitions that changed since the last `news` come first, because the client was just shown them.
        """
        room = text_bytes_max * 3 // 4 - _HEAD_BYTES_MAX
        chosen, left_out = Bookmark(), 0
        for partition, vector in sorted(self, key=lambda entry: entry[0] not in self._touched):
            room -= len(vector.pack()) + _ENTRY_BYTES_MAX
            if room >= 0:
                chosen.note(partition, vector)
            else:
                left_out += 1
        return chosen, left_out


def take_news(bookmark: Bookmark, sights: Iterable[Sight]) -> None:
    """Apply a node's changes to the client's bookmark.

    Raises:
        InvalidValue: `sights` are malformed.
    """
    for sight in sights:
        try:
            vector, known = VersionVector.unpack(sight.vector), VersionVector.unpack(sight.known)
            if not 0 <= sight.partition < PARTITIONS_MAX:
                raise ValueError("no such partition")
        except ValueError as reason:
            raise InvalidValue(f"the node sent a malformed change of the bookmark: {reason}.") from None
        if sight.replaced:
            bookmark.replace(sight.partition, vector)
        else:
            bookmark.note(sight.partition, vector)
            if known:
                bookmark.drop(sight.partition, known)
