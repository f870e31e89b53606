"""Which updates of a document a compaction covers.

Laws:
- It covers those at or below its floor (`shoal.crdt.floor`), and of each origin that it names those up to an operation. So
  whether it covers an update follows from the update's position alone, on every replica.
- An origin's end has the time of its operation. So of two coverages it can be said whether one covers what the other does,
  although they may name different origins.
- It raises its floor to the last operation of the origins that its replica has forgotten, if no update that it does not cover
  is as old. So it names as many origins as a replica remembers, however many have edited the document.
- It says up to which time no request can be repeated any more (`settled`). An edit for a request that is covered and as old
  has no second one that is still to come: see `shoal.kinds.document.state.repeats`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.crdt.dot import DOT_BYTES, Dot, Origin, VersionVector
from shoal.crdt.floor import FLOOR_BYTES, HLC_BYTES, NO_FLOOR, Floor
from shoal.kinds.document.state.document import dot_of
from shoal.records import NamedTuple

_VERSION = b"\x01"
_END_BYTES = DOT_BYTES + HLC_BYTES


class End(NamedTuple):
    """The last operation of an origin whose updates are covered."""

    sequence: int
    hlc: int


class Coverage(NamedTuple):
    """The updates that a compaction covers, as the module describes. It is never changed."""

    floor: Floor = NO_FLOOR
    ends: Mapping[Origin, End] = {}
    settled: int = 0  # HLC.

    def settles(self, position: bytes) -> bool:
        """Whether it covers the update at a position, and no other edit of its request can come."""
        return int.from_bytes(position[:HLC_BYTES], "big") <= self.settled and self.covers(position)

    def covers(self, position: bytes) -> bool:
        """Whether it covers the update at a position."""
        if int.from_bytes(position[:HLC_BYTES], "big") <= self.floor.hlc:
            return True
        dot = dot_of(position)
        end = self.ends.get(dot.origin)
        return end is not None and end.sequence >= dot.sequence

    def dominates(self, other: Coverage) -> bool:
        """Whether it covers all that the other one does."""
        return other.floor.hlc <= self.floor.hlc and all(
            end.hlc <= self.floor.hlc or ((own := self.ends.get(origin)) is not None and own.sequence >= end.sequence)
            for origin, end in other.ends.items()
        )

    def join(self, other: Coverage) -> Coverage:
        """The updates that either of them covers."""
        floor = self.floor.join(other.floor)
        ends = dict(self.ends)
        for origin, end in other.ends.items():
            ends[origin] = max(end, ends.get(origin, end))
        return Coverage(floor, _above(floor, ends), max(self.settled, other.settled))

    def raised(self, context: VersionVector, below: int) -> Coverage:
        """The same, with as high a floor as a replica at `context` can tell. It covers every update older than `below`."""
        retired = context.retired
        if retired is None or not self.floor.hlc < retired.forgotten_hlc < below:
            return self
        floor = self.floor.join(Floor(retired.forgotten_hlc, retired.forgotten))
        return self._replace(floor=floor, ends=_above(floor, self.ends))

    @property
    def vector(self) -> VersionVector:
        """The operations that it names."""
        return VersionVector([(origin, end.sequence) for origin, end in self.ends.items()])

    def pack(self) -> bytes:
        """The floor, 8 bytes for `settled`, then 32 for each origin, by origin. Equal ones give equal bytes."""
        ends = [origin + sequence.to_bytes(8, "big") + hlc.to_bytes(8, "big") for origin, (sequence, hlc) in self.ends.items()]
        return _VERSION + self.floor.pack() + self.settled.to_bytes(HLC_BYTES, "big") + b"".join(sorted(ends))

    @classmethod
    def unpack(cls, packed: bytes) -> Coverage:
        """The coverage in bytes from `pack`.

        Raises:
            ValueError: `packed` is not what `pack` returns.
        """
        floor, settled = packed[len(_VERSION) :][:FLOOR_BYTES], packed[len(_VERSION) + FLOOR_BYTES :][:HLC_BYTES]
        first = len(_VERSION) + FLOOR_BYTES + HLC_BYTES
        ends = [_unpack_end(packed[at : at + _END_BYTES]) for at in range(first, len(packed), _END_BYTES)]
        found = cls(Floor.unpack(floor), dict(ends), int.from_bytes(settled, "big"))
        # Neither torn, nor out of order, nor twice, nor below the floor: one coverage has one form.
        if found.pack() != packed or any(end.sequence <= 0 or end.hlc <= found.floor.hlc for end in found.ends.values()):
            raise ValueError("the bytes are no coverage")
        return found


NOTHING_COVERED = Coverage()


def coverage_of(positions: Iterable[bytes]) -> Coverage:
    """The coverage of the updates at these positions, and all earlier ones of their origins."""
    ends: dict[Origin, End] = {}
    for position in positions:
        dot = dot_of(position)
        if dot.origin not in ends or ends[dot.origin].sequence < dot.sequence:
            ends[dot.origin] = End(dot.sequence, int.from_bytes(position[:HLC_BYTES], "big"))
    return Coverage(NO_FLOOR, ends)


def _above(floor: Floor, ends: Mapping[Origin, End]) -> Mapping[Origin, End]:
    return {origin: end for origin, end in ends.items() if end.hlc > floor.hlc}


def _unpack_end(packed: bytes) -> tuple[Origin, End]:
    dot = Dot.unpack(packed[:DOT_BYTES])
    return dot.origin, End(dot.sequence, int.from_bytes(packed[DOT_BYTES:], "big"))
