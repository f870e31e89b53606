"""Whether an update of a document is ready, how deep it nests, and how a large one is cut into small ones.

Whether an update of a document is ready, and how deep shared types nest after it.

Law: `advance` follows the engine's own rule: a struct is integrated once its
origins, its parent and its client's previous clock are known; an update is
ready if all its structs are, and everything that it deletes is known by then. An
update that is not ready names one clock that it needs; it cannot become ready
before the client has reached that clock.

A large update as several small ones, so that no single call of the engine takes long.

Law: applied one after the other, the pieces make what the update makes. No struct comes before one that it
needs, so the engine never has to keep a piece for later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Protocol

from shoal.errors import InvalidValue, NotReady, StoreCorrupt, TooLarge
from shoal.kinds.document.state.document import Pace
from shoal.kinds.document.state.yjs import (
    ANY,
    CLOCK_MAX,
    CONTENT,
    HAS_KEY,
    HAS_ORIGIN,
    HAS_RIGHT_ORIGIN,
    VALUES_PER_STRUCT,
    Parsed,
    Reader,
    StateVector,
    Struct,
    pack_delete_set,
    pack_varuint,
    parse,
)
from shoal.records import NamedTuple


class Advanced(NamedTuple):
    """The state of a document after an update is applied."""

    state: StateVector
    deepest: int  # An upper bound of how deep shared types nest, roots not counted.
    shared: dict[tuple[int, int], int]  # The update's shared types: id → an upper bound of how many are around it.


class Early(NamedTuple):
    """An update that is not ready, and one clock that it needs: `client` must reach `clock`."""

    which: int  # Its index among the given updates.
    client: int
    clock: int


class Depths(Protocol):
    """How many shared types are around an item; None if it is not known."""

    def get(self, item: tuple[int, int], /) -> int | None:
        """How many are around this one."""


NO_TYPES: Depths = dict[tuple[int, int], int]()


class Lacking(NamedTuple):
    """Why an update is not ready: `client` must reach `clock` first."""

    client: int
    clock: int
    deletes: bool  # True if the update deletes up to that clock, False if it builds on it.


def early(parts: Sequence[Parsed], state: StateVector) -> list[Early]:
    """The updates that are not ready, even once the others are applied to a document at `state`.

    An update counts as a whole: two that each need a part of the other are both early.
    """
    waiting: dict[int, list[Early]] = {}
    runnable = deque(range(len(parts)))
    while runnable:
        index = runnable.popleft()
        found = attempt(parts[index], state)
        if isinstance(found, Lacking):
            waiting.setdefault(found.client, []).append(Early(index, found.client, found.clock))
            continue
        state = found.state
        for client in parts[index].structs.keys() & waiting.keys():
            reached = state.get(client, 0)
            runnable.extend(each.which for each in waiting[client] if each.clock <= reached)
            waiting[client] = [each for each in waiting[client] if each.clock > reached]
    return sorted(each for found in waiting.values() for each in found)


def advance(parsed: Parsed, state: StateVector, *, deepest: int = 0, shared: Depths = NO_TYPES) -> Advanced:
    """Apply an update to a document at `state`, whose types nest `deepest` deep, some of them known as `shared`.

    Raises:
        NotReady: the update depends on another that the document lacks.
    """
    found = attempt(parsed, state, deepest=deepest, shared=shared)
    if isinstance(found, Lacking):
        what = "deletes content" if found.deletes else "depends on an update"
        raise NotReady(
            f"the update {what} that has not arrived yet. Nothing was written. Send the updates that it builds on first."
        )
    return found


def attempt(parsed: Parsed, state: StateVector, *, deepest: int = 0, shared: Depths = NO_TYPES) -> Advanced | Lacking:
    """As `advance`, but returns `Lacking` if the update is not ready."""
    after = dict(state)
    depths = _Depths(deepest, shared)
    left = {client: iter(structs) for client, structs in parsed.structs.items()}
    heads = {client: next(structs, None) for client, structs in left.items()}
    waiting: dict[int, list[int]] = {}
    runnable = list(heads)
    while runnable:
        client = runnable.pop()
        moved = False
        while (struct := heads[client]) is not None:
            missing = _missing(client, struct, after)
            if missing is not None:
                if missing[0] != client:  # Else a clock is skipped, and no other client can help.
                    waiting.setdefault(missing[0], []).append(client)
                break
            depths.note(client, struct)
            after[client] = max(after.get(client, 0), struct.clock + struct.length)
            heads[client] = next(left[client], None)
            moved = True
        if moved:  # Else two clients that wait for each other would wake each other forever.
            runnable.extend(waiting.pop(client, ()))
    for client, head in heads.items():
        if head is not None:
            return _lacking(client, heads, parsed, after)
    for client, clock, length in parsed.deletes:
        if clock + length > after.get(client, 0):
            return Lacking(client, clock + length, deletes=True)
    return Advanced({client: clock for client, clock in after.items() if clock}, depths.deepest, depths.found)


def _lacking(client: int, heads: Mapping[int, Struct | None], parsed: Parsed, state: StateVector) -> Lacking:
    """The clock for which the stuck `client` waits in the end: not one that the update itself would bring."""
    followed: set[int] = set()
    while True:
        followed.add(client)
        head = heads[client]
        assert head is not None
        missing = _missing(client, head, state)
        assert missing is not None
        needed, clock = missing
        brought = parsed.structs.get(needed)
        if needed in followed or heads.get(needed) is None or brought is None or brought[-1].clock + brought[-1].length < clock:
            return Lacking(needed, clock, deletes=False)
        client = needed


def _missing(client: int, struct: Struct, state: StateVector) -> tuple[int, int] | None:
    """The client and the clock that this struct waits for; its own client, forever, if a clock is skipped."""
    known, end = state.get(client, 0), struct.clock + struct.length
    if end <= known:
        return None  # Applied before; the engine skips it.
    if struct.clock > known or struct.gap:
        return client, end if struct.gap else struct.clock
    for needed, clock in struct.needs:
        if clock >= (struct.clock if needed == client else state.get(needed, 0)):
            return needed, clock + 1
    return None


class _Depths:
    """How many shared types are around each item of an update: an upper bound, exact if enough is known."""

    def __init__(self, deepest: int, shared: Depths) -> None:
        self.deepest = deepest
        self.found: dict[tuple[int, int], int] = {}
        self._known, self._unknown = shared, deepest
        self._runs: dict[int, tuple[list[int], list[int]]] = {}

    def note(self, client: int, struct: Struct) -> None:
        # Siblings are equally deep, so the least of their bounds holds.
        depth = min((self._at(need, inside=struct.inside) for need in struct.needs), default=0)
        clocks, depths = self._runs.setdefault(client, ([], []))
        if not depths or depths[-1] != depth:
            clocks.append(struct.clock)
            depths.append(depth)
        if struct.shared:
            self.found[client, struct.clock] = depth
            self.deepest = max(self.deepest, depth + 1)

    def _at(self, item: tuple[int, int], *, inside: bool) -> int:
        clocks, depths = self._runs.get(item[0], ((), ()))
        run = bisect_right(clocks, item[1])
        known = depths[run - 1] if run else self._known.get(item)
        return self._unknown if known is None else known + inside


NOTHING = b"\x00\x00"
"""A piece that brings nothing: given where looking takes long."""


def parts(update: bytes, pace: Pace, *, whole_max: int) -> Iterator[bytes]:
    """A stored update whole, or, if it has more than `whole_max` bytes, its pieces.

    Raises:
        StoreCorrupt: it is large, and no Yjs update.
    """
    if len(update) <= whole_max:
        yield update
        return
    try:
        yield from pieces(update, structs_max=pace.updates)
    except InvalidValue as error:
        raise StoreCorrupt(f"a stored update cannot be read: {error.message} Run `shoal verify`.") from None


def in_operations(update: bytes, *, structs_max: int) -> Iterator[bytes]:
    """An update as it is, or, if it has more structs, its pieces; some bring nothing: others should get a turn then.

    Raises:
        InvalidValue: it is no Yjs update.
    """
    # A struct has two bytes at least.
    if len(update) <= 2 * structs_max or _has_at_most(update, structs_max):
        yield update
    else:
        yield from pieces(update, structs_max=structs_max)


def _has_at_most(update: bytes, structs_max: int) -> bool:
    try:
        parse(update, structs_max=structs_max)
    except TooLarge:
        return False
    return True


def pieces(update: bytes, *, structs_max: int) -> Iterator[bytes]:
    """The pieces of an update, each of at most so many structs (values in them count as `Parsed.weight` says) or deletions;
    these come last. A run of values that is longer is cut; a single value that is larger is a piece by itself.

    Raises:
        InvalidValue: it is no Yjs update.
    """
    reader, runs, ends = Reader(update, is_stored=True), dict[int, _Run](), dict[int, int]()
    looked_at = values = 0
    for _ in range(reader.count()):
        many, client, clock = reader.count(), reader.client(), reader.integer()
        if client in runs:
            raise InvalidValue("a client comes twice in the update. Nothing was written.")
        runs[client] = _Run(update, client, many, clock, reader.position, structs_max, ends)
        for _ in range(many):
            reading = reader.struct_in_steps(clock, (set(), set()), VALUES_PER_STRUCT * structs_max, ends)
            while (struct := _next(reading)) is None:
                looked_at, values = 0, reader.values
                yield NOTHING
            clock += struct.length
            looked_at += 1
            if looked_at + (reader.values - values) // VALUES_PER_STRUCT >= structs_max:
                looked_at, values = 0, reader.values
                yield NOTHING
    taken: dict[int, _Run] = {}
    count = values = 0
    for run in _in_order(runs):
        count, values = count + 1, values + run.values
        if count + values // VALUES_PER_STRUCT > structs_max and taken:
            yield _packed(taken)
            taken.clear()
            count, values = 1, run.values
        run.take()
        taken[run.client] = run
    yield _packed(taken)
    deletes: list[tuple[int, int, int]] = []
    for delete in reader.deleted():
        deletes.append(delete)
        if len(deletes) == structs_max:
            yield b"\x00" + pack_delete_set(deletes)
            deletes.clear()
    reader.end()
    yield b"\x00" + pack_delete_set(deletes)


def _next(reading: Generator[None, None, Struct]) -> Struct | None:
    """The struct, once it is read."""
    try:
        next(reading)
    except StopIteration as done:
        found: Struct = done.value
        return found
    return None


def _in_order(runs: dict[int, _Run]) -> Iterator[_Run]:
    """The runs whose next structs are to be taken, one after the other, each once all that the struct needs is taken."""
    for run in runs.values():
        waiting = [(run, CLOCK_MAX)]  # Each but the first is needed by the one before it, up to this clock.
        while waiting:
            current, until = waiting[-1]
            if current.clock > until or current.head is None:
                waiting.pop()
            elif (needed := _needed(runs, current.head, [each for each, _ in waiting])) is not None:
                waiting.append(needed)
            else:
                yield current


def _needed(runs: dict[int, _Run], struct: Struct, waiting: list[_Run]) -> tuple[_Run, int] | None:
    """A run that must come before a struct, and up to which clock; none that waits for the struct itself."""
    for client, clock in struct.needs:
        run = runs.get(client)
        if run is not None and run.clock <= clock and run.head is not None and run not in waiting:
            return run, clock
    return None


def _packed(taken: dict[int, _Run]) -> bytes:
    return pack_varuint(len(taken)) + b"".join(run.packed() for run in taken.values()) + b"\x00"


class _Run:
    """The structs of one client, of which the first are taken."""

    __slots__ = ("_count", "_first", "_head", "_heads", "_taken", "client", "clock")

    def __init__(
        self, update: bytes, client: int, left: int, clock: int, at: int, structs_max: int, ends: dict[int, int]
    ) -> None:
        self.client = client
        self.clock = clock  # Of the next struct.
        self._heads = _heads(update, client, left, clock, at, VALUES_PER_STRUCT * structs_max // 2, ends)
        self._head: _Head | None = None
        self._taken: list[bytes] = []  # And not packed.
        self._first, self._count = clock, 0  # From this clock, so many structs.

    @property
    def head(self) -> Struct | None:
        """The next struct; None if all are taken."""
        if self._head is None:
            self._head = next(self._heads, None)
        return None if self._head is None else self._head.struct

    @property
    def values(self) -> int:
        """Those in the head, beyond one."""
        return 0 if self._head is None else self._head.values

    def take(self) -> None:
        """Take the head."""
        assert self._head is not None
        self.clock += self._head.struct.length
        self._count += 1
        self._taken.append(self._head.packed)
        self._head = None

    def packed(self) -> bytes:
        """The pieces that were taken since the last time, as an update holds them."""
        packed = pack_varuint(self._count) + pack_varuint(self.client) + pack_varuint(self._first) + b"".join(self._taken)
        self._first, self._count = self.clock, 0
        self._taken.clear()
        return packed


class _Head(NamedTuple):
    struct: Struct
    packed: bytes
    values: int  # Beyond one.


def _heads(
    update: bytes, client: int, left: int, clock: int, at: int, values_max: int, ends: dict[int, int]
) -> Iterator[_Head]:
    """The structs of one client, each once it is asked for; a run of more values in pieces. `ends` tells where long values end,
    by where they begin.
    """
    reader = _Cutter(update, at, ends)
    for _ in range(left):
        start = reader.position
        if reader.is_run():
            for head in reader.run(client, clock, values_max):
                yield head
                clock += head.struct.length
            continue
        struct = reader.struct(clock, (set(), set()))
        yield _Head(struct, update[start : reader.position], reader.taken_values())
        clock += struct.length


class _Cutter(Reader):
    __slots__ = ("_counted", "_ends")

    def __init__(self, update: bytes, at: int, ends: dict[int, int]) -> None:
        super().__init__(update, at, is_stored=True)
        self._ends = ends
        self._counted = 0

    def is_run(self) -> bool:
        """Whether an item of plain values comes next."""
        return self._data[self._position] & CONTENT == ANY

    def taken_values(self) -> int:
        """How many values were read since the last time."""
        counted, self._counted = self._counted, self.values
        return self.values - counted

    def _one(self, values_max: int) -> None:
        """Pass one value. How many parts a long one has counts no more: it is a piece by itself."""
        end = self._ends.get(self._position)
        if end is None:
            self._any()
        else:
            self._position, self.values = end, self.values + values_max

    def run(self, client: int, clock: int, values_max: int) -> Iterator[_Head]:
        """A run of plain values in pieces, each of which comes after the one before, as the engine cuts an item."""
        start = self._position
        flags = self._byte()
        left, right = flags & HAS_ORIGIN, flags & HAS_RIGHT_ORIGIN
        needs: list[tuple[int, int]] = [self._id()] if left else []
        after = self._position
        if right:
            needs.append(self._id())
        beside, root = self._data[after : self._position], None
        if not (left or right):
            root = self._parent(flags, needs, (set(), set()))
        first = Struct(
            clock,
            0,
            tuple(needs),
            root is None and not (left or right),
            False,
            False,
            root,
            ANY,
            bool(flags & HAS_KEY),
            right > 0,
        )
        head, many, count = self._data[start : self._position], self.integer(), 0
        begins = self._position
        for nth in range(many):
            self._one(values_max)
            count += 1
            values = self.values - self._counted + count - 1
            if values < values_max and nth + 1 < many:
                continue
            self._counted = self.values
            packed = head + pack_varuint(count) + self._data[begins : self._position]
            if clock == first.clock:
                yield _Head(first._replace(length=count), packed, values)
            else:
                around = ((client, clock - 1), *first.needs[-1:]) if right else ((client, clock - 1),)
                yield _Head(Struct(clock, count, around, False, False, content=ANY, right=right > 0), packed, values)
            clock += count
            head = bytes([ANY | HAS_ORIGIN | right | flags & HAS_KEY])
            head += pack_varuint(client) + pack_varuint(clock - 1) + beside
            begins, count = self._position, 0
