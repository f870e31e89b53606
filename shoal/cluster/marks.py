"""The most that a peer was ever known to hold durably: its mark.

A directory that was set back with its whole block device or machine cannot notice it. Its
peers can: on a new link it says less than its mark.

Laws:
- A mark names only what its peer said that it holds durably. It grows; it is lowered only when
  the peer, after it was told of the mark, says that it has caught up, and then what it holds.
- A link is compared with the mark as it was when the link began, because messages on a link
  may overtake each other.
- A peer counts as an owner only if every partition of its mark was compared on the link that
  stands, and none is behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector

TOLD_DOTS_MAX = 16_384  # In one message; about 400 KiB.


class Mark:
    """Of one peer. `unwritten` has the entries that differ from what is stored; None: none is left."""

    def __init__(self, vectors: Mapping[int, VersionVector] | None = None) -> None:
        self.number = 0
        """Of what the peer is to be told; it changes whenever that does."""
        self.unwritten: dict[tuple[int, Origin], int | None] = {}
        self._vectors = dict(vectors or {})
        self._compared_with: dict[int, VersionVector] = {}
        self._uncompared: set[int] = set()
        self._behind: dict[int, VersionVector] = {}
        self._told: list[int] = []
        self.begin()

    def begin(self) -> None:
        """A link begins: compare anew."""
        self._compared_with = dict(self._vectors)
        self._uncompared = set(self._vectors)
        self._behind = {}

    @property
    def is_held(self) -> bool:
        """Whether the peer has said, on this link, that it holds all of this."""
        return not self._uncompared and not self._behind

    @property
    def is_behind(self) -> bool:
        """Whether the peer has said, on this link, that it holds less than this."""
        return bool(self._behind)

    def note(self, partition: int, vector: VersionVector) -> None:
        """The peer holds this, at least."""
        before = self._vectors.get(partition, NOTHING_SEEN)
        grown = before.join(vector)
        if grown == before:
            return
        self._vectors[partition] = grown
        self.unwritten.update({(partition, origin): sequence for origin, sequence in grown.since(before).items()})

    def compare(self, told: Mapping[int, VersionVector]) -> bool:
        """The peer holds exactly this in these partitions; returns whether it is now to be told of more."""
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
        """Partitions of which the peer has not said yet that it holds what it once held."""
        return sorted(self._uncompared | self._behind.keys())

    def telling(self) -> list[tuple[int, bytes]]:
        """What the peer once held and does not hold now, as much as fits: partitions and vectors."""
        self._told, size = [], 0
        for partition in sorted(self._behind):
            size += len(self._behind[partition])
            if self._told and size > TOLD_DOTS_MAX:
                break
            self._told.append(partition)
        return [(partition, self._behind[partition].pack()) for partition in self._told]

    def settle(self, held: Mapping[int, VersionVector]) -> bool:
        """The peer was told, and has caught up as far as anybody holds it; returns whether more is to be told.

        `held` is what it has said since that it holds, by partition (`told`).
        """
        for partition, vector in held.items():
            self._behind.pop(partition, None)
            self._lower(partition, vector)
        self._told = []
        self.number += 1
        return bool(self._behind)

    @property
    def told(self) -> Iterable[int]:
        return tuple(self._told)

    def _lower(self, partition: int, held: VersionVector) -> None:
        for origin in self._vectors.get(partition, NOTHING_SEEN).missing(held):
            self.unwritten[partition, origin] = held[origin] or None
        self._vectors[partition] = self._compared_with[partition] = held
