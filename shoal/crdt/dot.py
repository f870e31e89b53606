"""Dots and version vectors: which operations a replica has seen.

Law: a vector is a contiguous prefix per origin. It covers (o, n) only if it
covers (o, 1) … (o, n − 1) too, which is why one integer per origin is enough.
An operation's dot together with the vector it was issued under is a dotted
version vector (Preguiça et al., "Dotted Version Vectors", 2010).
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import NamedTuple, NewType

Origin = NewType("Origin", bytes)
"""16 random bytes: one opening of one node's data directory."""

ORIGIN_BYTES = 16


class Dot(NamedTuple):
    """Names one operation: the `sequence`-th that `origin` issued in its partition."""

    origin: Origin
    sequence: int  # From 1, so that 0 can mean "nothing seen".

    def pack(self) -> bytes:
        """24 bytes whose order is the dots' order."""
        return self.origin + self.sequence.to_bytes(8, "big")

    @classmethod
    def unpack(cls, packed: bytes) -> Dot:
        return cls(Origin(packed[:ORIGIN_BYTES]), int.from_bytes(packed[ORIGIN_BYTES:], "big"))


DOT_BYTES = ORIGIN_BYTES + 8


class VersionVector(Mapping[Origin, int]):
    """Immutable map of origin → highest contiguous sequence. Absent means 0; no entry is 0."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[Origin, int] | Iterable[tuple[Origin, int]] = ()) -> None:
        self._entries: dict[Origin, int] = {o: n for o, n in dict(entries).items() if n > 0}

    @classmethod
    def _of(cls, entries: dict[Origin, int]) -> VersionVector:
        """Of entries that are none of them 0, which it keeps."""
        vector = cls.__new__(cls)
        vector._entries = entries
        return vector

    def __getitem__(self, origin: Origin) -> int:
        return self._entries.get(origin, 0)

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, origin: object) -> bool:
        return origin in self._entries

    def items(self) -> ItemsView[Origin, int]:
        return self._entries.items()

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VersionVector) and self._entries == other._entries

    def __repr__(self) -> str:
        inside = ", ".join(f"{o.hex()[:8]}:{n}" for o, n in self.entries())
        return f"VersionVector({inside})"

    def covers(self, dot: Dot) -> bool:
        return self._entries.get(dot.origin, 0) >= dot.sequence

    def dominates(self, other: VersionVector) -> bool:
        """True if everything that `other` covers is covered here."""
        ours = self._entries
        for origin, sequence in other._entries.items():  # noqa: SIM110 (a generator takes twice as long)
            if ours.get(origin, 0) < sequence:
                return False
        return True

    def join(self, other: VersionVector) -> VersionVector:
        """The least vector that dominates both."""
        joined = dict(self._entries)
        for origin, sequence in other._entries.items():
            if sequence > joined.get(origin, 0):
                joined[origin] = sequence
        return VersionVector._of(joined)

    def advance(self, dot: Dot) -> VersionVector:
        """The vector once `dot` is applied.

        Raises:
            ValueError: `dot` is not the next of its origin; a hole would be covered.
        """
        if self._entries.get(dot.origin, 0) + 1 != dot.sequence:
            raise ValueError(f"{dot} does not follow sequence {self[dot.origin]}")
        return VersionVector._of({**self._entries, dot.origin: dot.sequence})

    def since(self, older: VersionVector) -> VersionVector:
        """The entries that differ from `older`: what a delta-coded vector carries."""
        if older is self:
            return NOTHING_SEEN
        theirs = older._entries
        return VersionVector._of({o: n for o, n in self._entries.items() if theirs.get(o) != n})

    def entries(self) -> list[tuple[Origin, int]]:
        """Sorted by origin."""
        return sorted(self._entries.items())

    def missing(self, theirs: VersionVector) -> dict[Origin, range]:
        """Per origin, the sequences that we cover and `theirs` does not."""
        return {o: range(theirs[o] + 1, n + 1) for o, n in self._entries.items() if theirs[o] < n}

    def pack(self) -> bytes:
        """24 bytes per entry, by origin. Equal vectors give equal bytes."""
        return b"".join([origin + sequence.to_bytes(8, "big") for origin, sequence in sorted(self._entries.items())])

    @classmethod
    def unpack(cls, packed: bytes) -> VersionVector:
        """
        Raises:
            ValueError: `packed` is not what `pack` returns.
        """
        dots = [Dot.unpack(packed[start : start + DOT_BYTES]) for start in range(0, len(packed), DOT_BYTES)]
        vector = cls(dots)
        # Neither torn, nor out of order, nor twice, nor zero: one vector has one form.
        if vector.pack() != packed:
            raise ValueError("the bytes are no version vector")
        return vector


NOTHING_SEEN = VersionVector()
