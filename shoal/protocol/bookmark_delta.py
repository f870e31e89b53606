"""One bookmark in two places: the client's, and the copy that a node keeps for the client's session.

Laws:
- The node sends the growth of its copy with the reply that shows the new state, or before it,
  so that after each reply the client's bookmark covers all that the client has seen.
- Only changes are sent: of a vector that grew, the origins that grew, and those
  that left its frontier. A vector that was replaced, because the client chose to read
  older state, is sent whole.
- Changes that came from the client are not sent back to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from shoal.crdt.dot import DOT_BYTES, NOTHING_SEEN, VersionVector
from shoal.errors import InvalidValue, TooLarge
from shoal.protocol.bookmark import BYTES_MAX, ORIGINS_MAX, PARTITIONS_MAX, Bookmark

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
