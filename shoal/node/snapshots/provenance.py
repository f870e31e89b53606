"""From whom a partition's rows came, if a snapshot brought them, and which other owners had the same.

Law: the row is written with the rows that it is about, so it is there if they are.
"""

from __future__ import annotations

from typing import Self

from msgspec import Struct, msgpack

from shoal.crdt.rows import successor
from shoal.storage import keys
from shoal.storage.interface import Storage

_TAKEN = keys.meta("taken/")  # Followed by the partition₂.


class Taken(Struct, array_like=True, frozen=True):
    """Where a snapshot came from. Nodes are named by their addresses at that time."""

    sender: str
    confirmed_by: list[str]
    wall_ms: int

    def row(self, number: int) -> dict[bytes, bytes | None]:
        """The row that records it of a partition."""
        return {_TAKEN + number.to_bytes(2, "big"): msgpack.encode(self)}

    @property
    def told(self) -> str:
        """For people: what happened to the rows."""
        compared = f"were compared with {' and '.join(self.confirmed_by)}" if self.confirmed_by else "were compared with nobody"
        return f"came in a snapshot from {self.sender}, and {compared}"

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """The record in these bytes.

        Raises:
            ValueError: they are none.
        """
        return msgpack.decode(packed, type=cls)


def taken(storage: Storage) -> dict[int, Taken]:
    """The partitions whose rows came in a snapshot.

    Raises:
        ValueError: a record is damaged.
    """
    found = storage.scan(_TAKEN, successor(_TAKEN))
    return {int.from_bytes(key[len(_TAKEN) :], "big"): Taken.unpack(packed) for key, packed in found}
