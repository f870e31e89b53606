"""Dots, version vectors and floors, which tell the operations that a replica has seen; and the hybrid logical clock.

Hybrid logical clock (Kulkarni et al., 2014), as one integer.

Law: a reading is greater than everything the clock has issued or seen. The
upper 48 bits are milliseconds of wall time, the lower 16 a counter. If the counter
overflows, it runs into the milliseconds, which keeps the order. A time far ahead
is accepted, because refusing it would stall replication and clamping it would break
causal order; `ahead_ms` lets the caller report it. A time past `END_MS` is refused
unless it follows another one that was seen: a clock that has reached the end can
only issue such times.

A floor is a time below which a record of operations names none of their origins.

Laws:
- A vector is a contiguous prefix per origin. It covers (o, n) only if it
  covers (o, 1) … (o, n − 1) too, which is why one integer per origin is enough.
  An operation's dot together with the vector it was issued under is a dotted
  version vector (Preguiça et al., "Dotted Version Vectors", 2010).
- It is the time of an operation whose origin was retired and is forgotten. All owners held that operation before its origin
  was retired, so what they issued after they got it is above the floor; what they had issued by then, they all held too. A
  replica that has applied the retirement therefore holds every operation at or below the floor.
- So whoever names one last operation for each origin need not name those at or below the floor, if everything at or below the
  floor belongs to what is named. Such a record has as many entries as origins that a replica remembers.
"""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping
from typing import NewType, Protocol

from shoal.records import NamedTuple

COUNTER_BITS = 16
END_MS = 1 << 47  # The year 6429: half of what 48 bits hold. Clocks that have reached it count on in the other half.
END_HLC = END_MS << COUNTER_BITS
"""A reading below it is plausible at any time."""

_STEP_MS_MAX = 3600 * 1000  # How far a reading past the end may be from the greatest one seen.


class HybridClock:
    """Mutable; one per node. Wall time is an argument, in milliseconds since 1970."""

    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def issue(self, wall_ms: int) -> int:
        """A reading for a new operation: above all before it, and at or above `wall_ms`, unless that is past `END_MS`."""
        self.last = max(self.last + 1, min(wall_ms, END_MS - 1) << COUNTER_BITS)
        return self.last

    def observe(self, hlc: int) -> None:
        """Advance to a reading made elsewhere, or before a restart."""
        self.last = max(self.last, hlc)

    def ahead_ms(self, wall_ms: int) -> int:
        """How far the clock runs ahead of `wall_ms`; 0 when it does not."""
        return max(0, (self.last >> COUNTER_BITS) - wall_ms)


def is_plausible(hlc: int, *, seen: int) -> bool:
    """Whether a clock can have issued `hlc`, if the greatest reading seen here is `seen`.

    A reading past `END_MS` must follow another one. With a fixed end, a node that accepted a time just
    before it could issue no operation that its peers accept.
    """
    return hlc < END_HLC or hlc <= seen + (_STEP_MS_MAX << COUNTER_BITS)


def wall_ms_of(hlc: int) -> int:
    """The milliseconds in a reading: for display, never for order."""
    return hlc >> COUNTER_BITS


def made_ms(hlc: int, wall_ms: int, now_ms: int) -> int:
    """When something was made, as far as its age counts: the later of its two times.

    A node whose clock was behind still gave it a logical time that is not before those of others. One that is ahead of `now_ms`
    comes from a clock that was wrong, and says nothing.
    """
    logical_ms = wall_ms_of(hlc)
    return max(wall_ms, logical_ms) if logical_ms <= now_ms else wall_ms


Origin = NewType("Origin", bytes)
"""One opening of one node's data directory: 8 random bytes, then the first 8 of the directory's id (`origin_of`).

Origins of older versions are 16 random bytes; they belong to no directory.
"""

ORIGIN_BYTES = 16
DIRECTORY_BYTES = 8
"""Of a directory's id, in its origins. Two directories whose ids begin alike are not told apart by them."""

_RANDOM_BYTES = ORIGIN_BYTES - DIRECTORY_BYTES


def origin_of(directory: bytes, random: bytes) -> Origin:
    """An origin of a directory with this id, from 16 random bytes."""
    return Origin(random[:_RANDOM_BYTES] + directory[:DIRECTORY_BYTES])


def belongs(origin: Origin, directory: bytes) -> bool:
    """Whether an opening of the directory with this id wrote under the origin."""
    return bool(directory) and origin[_RANDOM_BYTES:] == directory[:DIRECTORY_BYTES]


HORIZON = Origin(bytes(ORIGIN_BYTES))
"""No origin. In a vector for clients, the entry under it is the time (HLC) of the last retirement that its replica had applied.

Who retired an origin knew that every owner held all of it, and held everything that any owner held by then. So a replica that
had applied a retirement of that time, or a later one, held everything of the origin, although its vector does not name it.
"""


class Dot(NamedTuple):
    """Names one operation: the `sequence`-th that `origin` issued in its partition."""

    origin: Origin
    sequence: int  # From 1, so that 0 can mean "nothing seen".

    def pack(self) -> bytes:
        """24 bytes whose order is the dots' order."""
        return self.origin + self.sequence.to_bytes(8, "big")

    @classmethod
    def unpack(cls, packed: bytes) -> Dot:
        """The dot in 24 bytes from `pack`. Nothing is checked."""
        return cls(Origin(packed[:ORIGIN_BYTES]), int.from_bytes(packed[ORIGIN_BYTES:], "big"))


DOT_BYTES = ORIGIN_BYTES + 8
END = 1 << 63  # No origin issues as many operations.
_ZERO = bytes(8)


class Retired(Protocol):
    """The origins that a replica has retired in a partition: it holds all of them, but its vectors do not name them."""

    @property
    def horizon(self) -> int:
        """The time of the last retirement."""
        ...

    @property
    def forgotten(self) -> int:
        """The time of the last retirement that it no longer remembers; 0 if there is none."""
        ...

    @property
    def forgotten_hlc(self) -> int:
        """The time of the last operation of the origins that it no longer remembers; 0 if there are none."""
        ...

    def last(self, origin: Origin, /) -> int:
        """The last sequence of a retired origin; 0 if the replica does not know that it is one."""
        ...

    def time(self, origin: Origin, /) -> int:
        """When it was retired (HLC of the operation that did); 0 if the replica does not know that it was."""
        ...


OVER_MAX = 32  # Entries that a vector holds of its own before it copies the entries that it shares with another.


class VersionVector(Mapping[Origin, int]):
    """Immutable map of origin → highest contiguous sequence. Absent means 0; no entry is 0.

    A vector that was made from another shares that one's entries (`_base`, which never changes) and holds only the entries
    that have grown since (`_over`), each greater than the one below it. So the cost of adding an operation to a vector, and of
    comparing the two, depends on the changes alone and not on the number of origins.

    A replica's vector also covers the origins that it has `_retired`; these are no entries.
    """

    __slots__ = ("_base", "_frontier", "_over", "_retired")

    def __init__(self, entries: Mapping[Origin, int] | Iterable[tuple[Origin, int]] = ()) -> None:
        self._base: dict[Origin, int] = {o: n for o, n in dict(entries).items() if n > 0}
        self._over: dict[Origin, int] = {}
        self._frontier: dict[Origin, int] | None = None
        self._retired: Retired | None = None

    @classmethod
    def of(cls, dot: Dot) -> VersionVector:
        """The vector that covers this operation, and those that its origin issued before it."""
        return cls._of({dot[0]: dot[1]})

    @classmethod
    def _of(
        cls,
        base: dict[Origin, int],
        over: dict[Origin, int] | None = None,
        frontier: dict[Origin, int] | None = None,
        retired: Retired | None = None,
    ) -> VersionVector:
        """Make a vector of entries, none of them 0. It keeps the given dicts."""
        vector = cls.__new__(cls)
        if over and len(over) > OVER_MAX:
            base, over = {**base, **over}, None
        vector._base, vector._over, vector._frontier, vector._retired = base, over or {}, frontier, retired
        return vector

    def __getitem__(self, origin: Origin) -> int:
        found = self._over.get(origin) or self._base.get(origin, 0)
        return found if found or self._retired is None else self._retired.last(origin)

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._merged())

    def __bool__(self) -> bool:
        return bool(self._over or self._base)

    def __len__(self) -> int:
        return len(self._base) + sum(origin not in self._base for origin in self._over)

    def __contains__(self, origin: object) -> bool:
        return origin in self._over or origin in self._base

    def items(self) -> ItemsView[Origin, int]:
        """As of a dict; much faster than what `Mapping` derives."""
        return ({**self._base, **self._over} if self._over else self._base).items()

    def _merged(self) -> dict[Origin, int]:
        return {**self._base, **self._over} if self._over else self._base

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VersionVector):
            return False
        if self._base is other._base:
            return self._over == other._over
        return self._merged() == other._merged()

    def __repr__(self) -> str:
        inside = ", ".join(f"{o.hex()[:8]}:{n}" for o, n in self.entries())
        return f"VersionVector({inside})"

    @property
    def frontier(self) -> VersionVector:
        """The entries that no other operation of the vector knows of: a replica that holds these holds the whole vector.

        This follows from causal delivery. A vector without a recorded frontier is its own frontier.
        """
        return self if self._frontier is None else VersionVector._of(self._frontier)

    def with_frontier(self, origins: Iterable[Origin]) -> VersionVector:
        """The same vector, whose recorded frontier is its entries of these origins."""
        return VersionVector._of(self._base, self._over, {origin: self[origin] for origin in origins}, self._retired)

    def retire(self, origins: Collection[Origin], retired: Retired | None) -> VersionVector:
        """The same operations, without entries for `origins`; `retired` covers these from now on."""
        base = {o: n for o, n in self.items() if o not in origins}
        frontier = None if self._frontier is None else {o: n for o, n in self._frontier.items() if o not in origins}
        return VersionVector._of(base, None, frontier, retired)

    def showing(self, horizon: int) -> VersionVector:
        """The vector for clients of a replica whose last retirement was at this time."""
        if not horizon:
            return self
        return VersionVector._of(self._base, {**self._over, HORIZON: horizon}, self._frontier, self._retired)

    @property
    def retired(self) -> Retired | None:
        """The retired origins that it covers. With each retirement it is another object."""
        return self._retired

    def context_of(self, origin: Origin) -> list[tuple[Origin, int]]:
        """The context of the next operation of `origin`: the frontier's entries of other origins, sorted by origin."""
        frontier = self._merged() if self._frontier is None else self._frontier
        if len(frontier) == 1 and origin in frontier:
            return []
        return sorted((o, n) for o, n in frontier.items() if o != origin)

    def covers(self, dot: Dot) -> bool:
        """Whether the operation is among those that the vector covers."""
        return self[dot.origin] >= dot.sequence

    def reaches(self, dot: Dot, hlc: int | None, here: VersionVector) -> bool:
        """As `covers`, for a vector for clients and an operation that a replica at `here` has applied, issued at `hlc`.

        The vector may be older than the operation, or so much newer that it no longer names its origin. If the replica does
        not remember when that was retired, the operation's own time decides; None: it is not known, and so not covered.
        """
        if self[dot.origin] >= dot.sequence:
            return True
        horizon, retired = self[HORIZON], here._retired
        if not horizon or retired is None or dot.origin in here:
            return False
        time = retired.time(dot.origin) or retired.forgotten
        if 0 < time <= horizon:
            return True
        return bool(retired.forgotten) and not retired.time(dot.origin) and hlc is not None and hlc <= horizon

    def accepts(self, other: VersionVector) -> bool:
        """As `dominates`, but an unknown origin may be one that was retired so long ago that it is forgotten."""
        return all(self.bound(origin) >= sequence for origin, sequence in other.items())

    def bound(self, origin: Origin) -> int:
        """The last sequence that may be held of an origin: `END` if it may be one that is forgotten."""
        return self[origin] or (END if self._retired is not None and self._retired.forgotten else 0)

    def is_forgotten(self, origin: Origin) -> bool:
        """Whether an origin of which the replica has applied something was retired so long ago that it is forgotten."""
        retired = self._retired
        return retired is not None and bool(retired.forgotten) and origin not in self and not retired.time(origin)

    def dominates(self, other: VersionVector) -> bool:
        """True if everything that `other` covers is covered here."""
        over, base = self._over, self._base
        theirs = other._over if base is other._base else other._merged()
        for origin, sequence in theirs.items():
            if (over.get(origin) or base.get(origin, 0)) < sequence and self[origin] < sequence:
                return False
        return True

    def join(self, other: VersionVector) -> VersionVector:
        """The least vector that dominates both."""
        theirs = other._over if self._base is other._base else other._merged()
        grown = {origin: sequence for origin, sequence in theirs.items() if sequence > self[origin]}
        return VersionVector._of(self._base, {**self._over, **grown}, None, self._retired) if grown else self

    def advance(self, dot: Dot, knowing: VersionVector | None = None) -> VersionVector:
        """The vector once `dot` is applied. With `knowing`, the operation's own context, its frontier is recorded too.

        Raises:
            ValueError: `dot` is not the next of its origin; a hole would be covered.
        """
        origin, sequence = dot
        if (self._over.get(origin) or self._base.get(origin, 0)) + 1 != sequence:
            raise ValueError(f"{dot} does not follow sequence {self[origin]}")
        frontier: dict[Origin, int] | None = None
        if knowing is not None:
            before = self._merged() if self._frontier is None else self._frontier
            frontier = {o: n for o, n in before.items() if knowing[o] < n} if knowing is not NOTHING_SEEN else before.copy()
            frontier[origin] = sequence
        base, over = self._base, {**self._over, origin: sequence}  # As `_grown`: each operation takes several of these.
        if len(over) > OVER_MAX:
            base, over = {**base, **over}, {}
        vector = VersionVector.__new__(VersionVector)
        vector._base, vector._over, vector._frontier, vector._retired = base, over, frontier, self._retired
        return vector

    def issue(self, dot: Dot) -> VersionVector:
        """The vector after its holder has issued `dot`, which knows of everything here."""
        origin, sequence = dot
        return self._grown(origin, sequence, {origin: sequence})

    def _grown(self, origin: Origin, sequence: int, frontier: dict[Origin, int] | None) -> VersionVector:
        base, over = self._base, {**self._over, origin: sequence}
        if len(over) > OVER_MAX:
            base, over = {**base, **over}, {}
        vector = VersionVector.__new__(VersionVector)
        vector._base, vector._over, vector._frontier, vector._retired = base, over, frontier, self._retired
        return vector

    def since(self, older: VersionVector) -> VersionVector:
        """The entries that differ from `older`: the content of a delta-coded vector."""
        if older is self:
            return NOTHING_SEEN
        if self._base is not older._base:
            return VersionVector._of({o: n for o, n in self.items() if older[o] != n})
        grown = {o: n for o, n in self._over.items() if older[o] != n}
        fallen = {o: self._base[o] for o in older._over if o not in self._over and o in self._base}
        return VersionVector._of({**grown, **fallen})

    def entries(self) -> list[tuple[Origin, int]]:
        """All (origin, sequence) pairs, sorted by origin."""
        return sorted(self.items())

    def missing(self, theirs: VersionVector) -> dict[Origin, range]:
        """Per origin, the sequences that we cover and `theirs` does not."""
        ours = self._over if self._base is theirs._base else self._merged()
        return {o: range(theirs[o] + 1, n + 1) for o, n in ours.items() if theirs[o] < n}

    def pack(self) -> bytes:
        """24 bytes per entry, by origin. Equal vectors give equal bytes."""
        return b"".join([origin + sequence.to_bytes(8, "big") for origin, sequence in sorted(self.items())])

    @classmethod
    def unpack(cls, packed: bytes) -> VersionVector:
        """The vector in bytes from `pack`.

        Raises:
            ValueError: `packed` is not what `pack` returns.
        """
        if len(packed) == DOT_BYTES and packed[ORIGIN_BYTES:] != _ZERO:  # As most contexts and bookmarks.
            return cls.of(Dot.unpack(packed))
        dots = [Dot.unpack(packed[start : start + DOT_BYTES]) for start in range(0, len(packed), DOT_BYTES)]
        vector = cls(dots)
        # Neither torn, nor out of order, nor twice, nor zero: one vector has one form.
        if vector.pack() != packed:
            raise ValueError("the bytes are no version vector")
        return vector


NOTHING_SEEN = VersionVector()


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
