"""The most that a peer was ever known to hold durably: its mark.

A node cannot notice if its directory was set back together with the whole block device or machine. Its
peers can: on a new link it tells less than its mark.

Laws:
- A mark holds only operations that its peer claimed to hold durably. It grows. It is lowered only when
  the peer, after it was told of the mark, says that it has caught up; then it becomes what the peer holds.
- A mark names no origin that its peer has retired: a peer that holds the retirement holds all of that origin, and may have
  forgotten it.
- A link is compared with the mark as it was when the link began, because messages on a link
  may overtake each other.
- A peer counts as an owner only if every partition of its mark was compared on the current link,
  and none is behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector

TOLD_DOTS_MAX = 16_384  # In one message; about 400 KiB.


class Mark:
    """The mark of one peer. `unwritten` has the entries that differ from those on disk; None: the entry is to be deleted."""

    def __init__(self, vectors: Mapping[int, VersionVector] | None = None) -> None:
        self.number = 0
        """The version of `telling`: it changes with the operations that the peer must be told of."""
        self.unwritten: dict[tuple[int, Origin], int | None] = {}
        self._vectors = dict(vectors or {})
        self._compared_with: dict[int, VersionVector] = {}
        self._uncompared: set[int] = set()
        self._behind: dict[int, VersionVector] = {}
        self._told: list[int] = []
        self.begin()

    def begin(self) -> None:
        """A link begins: compare everything again."""
        self._compared_with = dict(self._vectors)
        self._uncompared = set(self._vectors)
        self._behind = {}

    @property
    def is_held(self) -> bool:
        """Whether the peer has said, on this link, that it holds the whole mark."""
        return not self._uncompared and not self._behind

    @property
    def is_behind(self) -> bool:
        """Whether the peer has said, on this link, that it holds less than the mark."""
        return bool(self._behind)

    def note(self, partition: int, vector: VersionVector) -> None:
        """The peer holds this, at least."""
        before = self._vectors.get(partition, NOTHING_SEEN)
        grown = before.join(vector)
        if grown == before:
            return
        self._vectors[partition] = grown
        self.unwritten.update({(partition, origin): sequence for origin, sequence in grown.since(before).items()})

    def vectors(self) -> Mapping[int, VersionVector]:
        """The whole mark, as it is now, by partition."""
        return dict(self._vectors)

    def vector(self, partition: int) -> VersionVector:
        """The operations of a partition that the peer was known to hold."""
        return self._vectors.get(partition, NOTHING_SEEN)

    def retire(self, partition: int, origins: Collection[Origin]) -> None:
        """Forget these origins: this replica or the peer has retired them, so it was known that the peer held all of them."""
        for vectors in (self._vectors, self._compared_with, self._behind):
            before = vectors.get(partition)
            if before is None:
                continue
            if vectors is self._vectors:
                self.unwritten.update({(partition, origin): None for origin in origins if origin in before})
            vectors[partition] = before.retire(origins, None)
            if vectors is self._behind and not vectors[partition]:
                del vectors[partition]

    def compare(self, told: Mapping[int, VersionVector]) -> bool:
        """Compare with the peer's exact vectors of these partitions. Returns whether there is more to tell it."""
        number = self.number
        for partition, whole in told.items():
            self._compare(partition, whole)
        return self.number > number

    def _compare(self, partition: int, whole: VersionVector) -> None:
        before = self._behind.pop(partition, None)
        self._uncompared.discard(partition)
        once = self._compared_with.get(partition, NOTHING_SEEN)
        if not whole.dominates(once):
            self._behind[partition] = VersionVector({origin: once[origin] for origin in once.missing(whole)})
        behind = self._behind.get(partition, NOTHING_SEEN)
        if not (before or NOTHING_SEEN).dominates(behind):
            self.number += 1

    def to_compare(self) -> list[int]:
        """The partitions in which the peer has not said yet that it holds its mark."""
        return sorted(self._uncompared | self._behind.keys())

    def telling(self) -> list[tuple[int, bytes]]:
        """The operations that the peer once held and lacks now, as many as fit: partitions and packed vectors."""
        self._told, size = [], 0
        for partition in sorted(self._behind):
            size += len(self._behind[partition])
            if self._told and size > TOLD_DOTS_MAX:
                break
            self._told.append(partition)
        return [(partition, self._behind[partition].pack()) for partition in self._told]

    def settle(self, held: Mapping[int, VersionVector]) -> bool:
        """The peer, once told, has caught up as far as anybody holds the operations. Returns whether there is more to tell.

        `held` are the operations that it has claimed to hold since then, by partition (`told`).
        """
        for partition, vector in held.items():
            self._behind.pop(partition, None)
            self._lower(partition, vector)
        self._told = []
        self.number += 1
        return bool(self._behind)

    @property
    def told(self) -> Iterable[int]:
        """The partitions of the last `telling`, until they are settled."""
        return tuple(self._told)

    def _lower(self, partition: int, held: VersionVector) -> None:
        for origin in self._vectors.get(partition, NOTHING_SEEN).missing(held):
            self.unwritten[partition, origin] = held[origin] or None
        self._vectors[partition] = self._compared_with[partition] = held
