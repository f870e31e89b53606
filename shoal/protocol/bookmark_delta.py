"""One bookmark in two places: a client's, and that of the session which a node keeps for it.

Laws:
- What the node's grew by is told with the reply that showed it, or before it; so
  once a reply has been taken, the client's bookmark names all that it has seen.
- Told is only what changed: of a vector that grew, the origins that did, and those
  that left its frontier. One that was replaced, because the client chose to read
  older state, is told whole.
- What the client told is not told back to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from shoal.crdt.dot import NOTHING_SEEN, VersionVector
from shoal.errors import InvalidValue
from shoal.protocol.bookmark import PARTITIONS_MAX, Bookmark

_ENTRY_BYTES_MAX = 9  # Of a packed partition, beside its vector: an array, two integers, a length.
_HEAD_BYTES_MAX = 4  # Of a packed bookmark: its version, an array.


class Sight(Struct, array_like=True, frozen=True):
    """What changed of one partition."""

    partition: int
    vector: bytes  # Packed: the origins that grew; with `replaced`, all there are.
    replaced: bool = False
    known: bytes = b""  # Packed: entries that what is named now came after, so that the client may leave them out.


class SharedBookmark(Bookmark):
    """The node's side of a bookmark that a client keeps a copy of."""

    __slots__ = ("_replaced", "_told", "_touched")

    def __init__(self, known: Bookmark | None = None) -> None:
        """`known` is what the client has named already."""
        super().__init__()
        self._told: dict[int, VersionVector] = {}
        self._touched: set[int] = set()
        self._replaced: set[int] = set()
        if known is not None:
            self.observe(known)

    def note(self, partition: int, vector: VersionVector) -> None:
        super().note(partition, vector)
        self._touched.add(partition)

    def replace(self, partition: int, vector: VersionVector) -> None:
        super().replace(partition, vector)
        self._touched.add(partition)
        self._replaced.add(partition)

    def observe(self, known: Bookmark) -> None:
        """The client names what it has seen elsewhere."""
        for partition, vector in known:
            super().note(partition, vector)
            self._told[partition] = self._told.get(partition, NOTHING_SEEN).join(vector)

    def news(self) -> list[Sight]:
        """What changed since the last call, to be told to the client."""
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
        """As much as has a place in so many bytes of text, and how many partitions are left out.

        What was touched since the last `news` comes first: who is told it was just shown it.
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
    """The client's side: its copy follows the node's.

    Raises:
        InvalidValue: they are no news of a bookmark.
    """
    for sight in sights:
        try:
            vector, known = VersionVector.unpack(sight.vector), VersionVector.unpack(sight.known)
            if not 0 <= sight.partition < PARTITIONS_MAX:
                raise ValueError("no such partition")
        except ValueError as reason:
            raise InvalidValue(f"what the node says of the bookmark is not understood: {reason}.") from None
        if sight.replaced:
            bookmark.replace(sight.partition, vector)
        else:
            bookmark.note(sight.partition, vector)
            if known:
                bookmark.drop(sight.partition, known)
