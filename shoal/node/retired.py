"""The origins that were retired in a partition, as its table `R` in storage has them.

Laws:
- The replica holds every operation of a retired origin. Its vector does not name the origin any more, and its tip and base
  are gone: a row says what its last operation was, and when it was retired. What is left of its log leaves as any other
  (`shoal.node.collection.truncating`); until then there is a row in the queue of such logs.
- Rows are read when somebody asks for one. So neither the start nor the memory of a node depends on how many there are.
- Old rows are forgotten, at most so many are kept. An origin that is neither known nor retired may then be a forgotten one:
  its operations are not newer than `forgotten_hlc`, so older ones of an unknown origin are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from shoal.cluster.operation import TIP_BYTES, Tip
from shoal.crdt.dot import HORIZON, NOTHING_SEEN, ORIGIN_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.errors import StoreCorrupt
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage

_NUMBER = 8


class Retirement(NamedTuple):
    """The record of a retired origin: a row of table `R`."""

    tip: Tip  # Its last operation.
    time: int  # Of the operation that retired it.
    wall_ms: int  # By the clock of the node that retired it.
    is_logged: bool  # Whether some of its operations are still in the log.

    @property
    def sequence(self) -> int:
        """The sequence of its last operation."""
        return self.tip.sequence

    def pack(self) -> bytes:
        """The bytes of the row."""
        times = self.time.to_bytes(_NUMBER, "big") + self.wall_ms.to_bytes(_NUMBER, "big")
        return replace(self.tip, known=False).pack() + times + bytes([self.is_logged])

    @classmethod
    def unpack(cls, packed: bytes) -> Retirement:
        """The row in bytes from `pack`."""
        times = packed[TIP_BYTES:]
        time, wall_ms = int.from_bytes(times[:_NUMBER], "big"), int.from_bytes(times[_NUMBER : 2 * _NUMBER], "big")
        return cls(Tip.unpack(packed[:TIP_BYTES]), time, wall_ms, times[2 * _NUMBER :] == b"\x01")


class Summary(NamedTuple):
    """The summary of all origins that were ever retired in a partition: the row under `HORIZON`."""

    horizon: int = 0  # The time of the last retirement.
    forgotten: int = 0  # The greatest time of the retirements whose rows are gone,
    forgotten_hlc: int = 0  # and of the last operations of these origins.
    remembered: int = 0  # The number of rows that are there,
    oldest_ms: int = 0  # and a time before which none of these origins was retired.
    floor: VersionVector = NOTHING_SEEN  # The operations that retired: a replica that holds these has retired the same.

    def retiring(self, dot: Dot, time: int, wall_ms: int, origins: Collection[Origin]) -> Summary:
        """The summary once an operation has retired some origins."""
        return self._replace(
            horizon=max(self.horizon, time),
            remembered=self.remembered + len(origins),
            oldest_ms=min(self.oldest_ms, wall_ms) if self.remembered else wall_ms,
            floor=self.floor.retire(origins, None).join(VersionVector.of(dot)),
        )

    def forgetting(self, gone: Sequence[Retirement], oldest_ms: int) -> Summary:
        """The summary once these rows are gone; the others are not older than `oldest_ms`."""
        return self._replace(
            forgotten=max([self.forgotten, *(row.time for row in gone)]),
            forgotten_hlc=max([self.forgotten_hlc, *(row.tip.hlc for row in gone)]),
            remembered=self.remembered - len(gone),
            oldest_ms=oldest_ms,
        )

    def pack(self) -> bytes:
        """The bytes of the row."""
        numbers = self.horizon, self.forgotten, self.forgotten_hlc, self.remembered, self.oldest_ms
        return b"".join(number.to_bytes(_NUMBER, "big") for number in numbers) + self.floor.pack()

    @classmethod
    def unpack(cls, packed: bytes) -> Summary:
        """The row in bytes from `pack`."""
        first, second, third, fourth, fifth = (
            int.from_bytes(packed[at : at + _NUMBER], "big") for at in range(0, 5 * _NUMBER, _NUMBER)
        )
        return cls(first, second, third, fourth, fifth, VersionVector.unpack(packed[5 * _NUMBER :]))


class RetiredOrigins:
    """The retired origins of a partition at one moment: those of storage, and those that a write in the making retires.

    It is immutable. What is retired later has a later time, and is none of it.
    """

    __slots__ = ("_storage", "number", "recent", "summary")

    def __init__(
        self, storage: Storage, number: int, summary: Summary | None = None, recent: Mapping[Origin, Retirement] | None = None
    ) -> None:
        self._storage = storage
        self.number = number
        self.recent = recent or {}
        if summary is None:
            stored = storage.get(keys.retired(number, HORIZON))
            try:
                summary = Summary() if stored is None else Summary.unpack(stored)
            except ValueError:
                raise StoreCorrupt(
                    f"the row that says which origins were retired in partition {number} is damaged, so that nobody knows what "
                    "is held there. Nothing was changed. Run `shoal verify` on the directory; move it aside and restore a "
                    "backup, or rebuild it from peers."
                ) from None
        self.summary = summary

    @property
    def horizon(self) -> int:
        """The time of the last retirement (`Retired.horizon`)."""
        return self.summary.horizon

    @property
    def forgotten(self) -> int:
        """The time of the last retirement that it no longer remembers; 0 if there is none (`Retired.forgotten`)."""
        return self.summary.forgotten

    @property
    def forgotten_hlc(self) -> int:
        """The time of the last operation of the origins that it no longer remembers; 0 if there are none
        (`Retired.forgotten_hlc`).
        """
        return self.summary.forgotten_hlc

    def last(self, origin: Origin, /) -> int:
        """The last sequence of a retired origin; 0 if the replica does not know that it is one (`Retired.last`)."""
        found = self.find(origin)
        return 0 if found is None else found.sequence

    def time(self, origin: Origin, /) -> int:
        """When it was retired (HLC of the operation that did); 0 if the replica does not know that it was (`Retired.time`)."""
        found = self.find(origin)
        return 0 if found is None else found.time

    def find(self, origin: Origin) -> Retirement | None:
        """The record of a retired origin; None if it was not retired, or so long ago that it is forgotten."""
        if not self.summary.horizon or origin == HORIZON:
            return None
        found = self.recent.get(origin)
        if found is None:
            stored = self._storage.get(keys.retired(self.number, origin))
            found = None if stored is None else Retirement.unpack(stored)
        return None if found is None or found.time > self.summary.horizon else found

    def all(self) -> Iterator[tuple[Origin, Retirement]]:
        """All rows that storage has, by origin."""
        prefix = keys.retired(self.number)
        if self.summary.horizon:
            for key, packed in self._storage.scan(successor(prefix + HORIZON) or b"", successor(prefix)):
                yield Origin(key[-ORIGIN_BYTES:]), Retirement.unpack(packed)

    def after(self, summary: Summary, rows: Mapping[Origin, Retirement]) -> RetiredOrigins:
        """These, and some more that a write in the making retires."""
        return RetiredOrigins(self._storage, self.number, summary, {**self.recent, **rows})

    def base(self, origin: Origin) -> int:
        """The last operation of a retired origin that has left the log."""
        found = self.find(origin)
        if found is None or not found.is_logged:
            return 0 if found is None else found.sequence
        stored = self._storage.get(keys.base(self.number, origin))
        return 0 if stored is None else Tip.unpack(stored).sequence

    def lacking(self, seen: VersionVector) -> list[tuple[Origin, Retirement]] | None:
        """The retired origins of which a vector for clients does not cover all; None if some may be forgotten."""
        horizon, summary = seen[HORIZON], self.summary
        if horizon >= summary.horizon:
            return []
        if horizon < summary.forgotten:
            return None
        return [(o, found) for o, found in self.all() if found.time > horizon and seen[o] < found.sequence]

    def written(self) -> RetiredOrigins:
        """The same, now that storage has all of it."""
        return RetiredOrigins(self._storage, self.number, self.summary)


class RetiredLogs:
    """The bases of the retired origins, in place of their last operations: for the vector of a partition's bases."""

    __slots__ = ("_retired",)

    def __init__(self, retired: RetiredOrigins) -> None:
        self._retired = retired

    @property
    def horizon(self) -> int:
        """The time of the last retirement (`Retired.horizon`)."""
        return self._retired.horizon

    @property
    def forgotten(self) -> int:
        """The time of the last retirement that it no longer remembers; 0 if there is none (`Retired.forgotten`)."""
        return self._retired.forgotten

    @property
    def forgotten_hlc(self) -> int:
        """The time of the last operation of the origins that it no longer remembers; 0 if there are none
        (`Retired.forgotten_hlc`).
        """
        return self._retired.forgotten_hlc

    def last(self, origin: Origin, /) -> int:
        """The last operation of a retired origin that has left the log."""
        return self._retired.base(origin)

    def time(self, origin: Origin, /) -> int:
        """When it was retired (HLC of the operation that did); 0 if the replica does not know that it was (`Retired.time`)."""
        return self._retired.time(origin)
