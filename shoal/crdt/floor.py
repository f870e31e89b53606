"""The floor: a time below which a record of operations names none of their origins.

Laws:
- It is the time of an operation whose origin was retired and is forgotten. All owners held that operation before its origin
  was retired, so what they issued after they got it is above the floor; what they had issued by then, they all held too. A
  replica that has applied the retirement therefore holds every operation at or below the floor.
- So whoever names one last operation for each origin need not name those at or below the floor, if everything at or below the
  floor belongs to what is named. Such a record has as many entries as origins that a replica remembers.
"""

from __future__ import annotations

from shoal.crdt.dot import DOT_BYTES, HORIZON, VersionVector
from shoal.records import NamedTuple

HLC_BYTES = 8


class Floor(NamedTuple):
    """The time up to which it is not said of which origins the operations are."""

    hlc: int = 0
    retired: int = 0  # A replica that has applied a retirement of this time or later holds every operation up to `hlc`.

    @property
    def place(self) -> bytes:
        """An HLC and a dot above those of all operations up to the floor; empty if there is no floor."""
        return self.hlc.to_bytes(HLC_BYTES, "big") + b"\xff" * DOT_BYTES if self.hlc else b""

    def is_reached(self, seen: VersionVector) -> bool:
        """Whether a vector for clients covers every operation up to the floor, as far as it can tell."""
        return seen[HORIZON] >= self.retired

    def join(self, other: Floor) -> Floor:
        """The floor of both."""
        return Floor(max(self.hlc, other.hlc), max(self.retired, other.retired))

    def check(self, hlc: int) -> None:
        """Check the floor in an operation of a peer, issued at `hlc`.

        Raises:
            ValueError: no node would have chosen it.
        """
        if self != NO_FLOOR and not 0 < self.hlc <= self.retired < hlc:
            raise ValueError("its floor is not in its past")

    def pack(self) -> bytes:
        """16 bytes."""
        return self.hlc.to_bytes(HLC_BYTES, "big") + self.retired.to_bytes(HLC_BYTES, "big")

    @classmethod
    def unpack(cls, packed: bytes) -> Floor:
        """The floor in bytes from `pack`."""
        return cls(int.from_bytes(packed[:HLC_BYTES], "big"), int.from_bytes(packed[HLC_BYTES:], "big"))


NO_FLOOR = Floor()
FLOOR_BYTES = 2 * HLC_BYTES
