"""How many items a document's lists and texts have, and a hash of what its JSON leaves out: the engine tells neither.

A hash of what the engine's JSON does not tell of a document's content: bytes, numbers that are not finite or zero with a
sign, values that are undefined, XML beside what looks like it, formats, and objects that are embedded in texts.

The engine keeps formats, and objects that a text embeds, as JSON, whose numbers it reads not quite exactly: each time when a
document is encoded and read again, about one of six numbers with a fraction moves by an ulp or two: to one that stays, mostly
at once, or back and forth. So only replicas that were opened equally often would have equal numbers.

Laws:
- Replicas that applied the same updates have equal hashes, however the engine cut and joined their items, in whatever order
  it writes the keys of a plain map, and however often they were opened (`settled`).
- Content that is exchanged for other content under the same ids, and is shown alike, changes the hash.
- What is deleted does not count: of that the engine keeps what it likes.
- The hash is made in steps.
- A number, and what the engine makes of it however often it is read, have the same settled number.

How many items of the engine each list and text of a document has, and how deep its shared types nest.

The engine reaches an element by walking along all items before it, and does not tell how many these are. Values that are
appended are one item; values that were put before each other are an item each, and so are elements that were deleted between
others. So they are counted here, from the updates.

Laws:
- A list or a text of the engine has no more items than are counted: an item that may be cut in two counts as two.
- How many shared types are around an item is exact.
- What is remembered takes a few numbers for each run of a client's items in one place, never an object for each item.
- Counting a whole document is done in steps.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from math import inf, isfinite
from typing import Any

import msgspec

from shoal.kinds.document.state import yjs
from shoal.kinds.document.state.yjs import ANY, DELETED, FORMAT, GC, NODE, STRING, TEXT_CONTENT, UNREAL, Parsed, Reader, Struct

_READ_MAX = 4096  # Times. The longest way that was found has 93.
_WRITTEN_WHOLE = 2.0**63  # Whole numbers below it are written without a point, zero without its sign, and read as they are.
_POWERS = [float(f"1e{power}") for power in range(309)]


def settled(value: Any) -> Any:
    """A plain value with its floats settled. Its depth is bounded by `shoal.kinds.document.state.yjs.parse`."""
    if isinstance(value, float):
        return _settled(value)
    if isinstance(value, dict):
        return {key: settled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [settled(item) for item in value]
    return value


def _settled(number: float) -> float | int:
    """The number that it becomes, or the least of those among which it moves; an int if it is written as one."""
    known: dict[float, None] = {}
    while number not in known and len(known) < _READ_MAX:
        known[number] = None
        number = read(number)
    moved = list(known)
    found = min(moved[moved.index(number) :]) if number in known else number
    return int(found) if _is_whole(found) else found


def read(number: float) -> float:
    """A number as the engine reads it from the JSON that it has written (serde_json without `float_roundtrip`)."""
    if not isfinite(number):
        return number
    if _is_whole(number):
        return number + 0.0
    digits, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = digits.partition(".")
    found, power = float(int(whole + fraction)), int(exponent or 0) - len(fraction)
    while power < -308:
        found, power = found / 1e308, power + 308
    found = found * _POWERS[power] if power >= 0 else found / _POWERS[-power]
    if found == inf:  # The engine refuses it.
        return number
    return -found if number < 0 else found


def _is_whole(number: float) -> bool:
    return number.is_integer() and abs(number) < _WRITTEN_WHOLE


Steps = Generator[None, None, bytes]

_UNTOLD = frozenset((yjs.BINARY, yjs.FORMAT, yjs.EMBED))


def digest(snapshot: bytes, deletes: Iterable[tuple[int, int, int]], *, structs_max: int) -> Steps:
    """The SHA-256 for a document, given as one update of the engine's, in steps of so many structs (values in them count as
    `yjs.Parsed.weight` says; a single item is one step).

    `deletes` are its deletions: client, clock, length.

    Raises:
        InvalidValue: it is no Yjs update.
    """
    gone: dict[int, list[tuple[int, int]]] = {}
    for client, clock, length in sorted(deletes):
        gone.setdefault(client, []).append((clock, clock + length))
    reader, sections, looked_at = _Reader(snapshot), dict[int, bytes](), 0
    for _ in range(reader.count()):
        many, client, clock = reader.count(), reader.client(), reader.integer()
        ranges, found = gone.get(client, []), hashlib.sha256()
        for _ in range(many):
            clock += reader.struct(clock, (set(), set())).length
            for at, told in reader.untold:
                within = bisect_right(ranges, (at, yjs.CLOCK_MAX + 1))
                if not within or ranges[within - 1][1] <= at:
                    found.update(msgspec.msgpack.encode((at, told)))
                    sections[client] = b""
            reader.untold.clear()
            reader.wide.clear()
            looked_at += 1
            if looked_at + reader.values // yjs.VALUES_PER_STRUCT >= structs_max:
                looked_at = reader.values = 0
                yield
        if client in sections:
            sections[client] = found.digest()
    return hashlib.sha256(msgspec.msgpack.encode(sorted(sections.items()))).digest()


class _Reader(Reader):
    """Notes what JSON does not tell of each struct, with its clock."""

    __slots__ = ("_clock", "untold")

    def __init__(self, snapshot: bytes, at: int = 0) -> None:
        super().__init__(snapshot, at, is_stored=True)
        self.untold: list[tuple[int, Any]] = []
        self._clock = 0

    def struct(self, clock: int, roots: tuple[set[str], set[str]]) -> Struct:
        self._clock = clock
        return super().struct(clock, roots)

    def _type(self) -> int:
        start, self.odd = self._position, 0
        content = super()._type()
        if self.odd:
            self.untold.append((self._clock, self._data[start : self._position]))
        return content

    def _content(self, content: int, clock: int) -> int:
        if content == yjs.ANY:
            many = self._length()
            self._charge(many - 1)
            for nth in range(many):
                start, self.odd = self._position, 0
                self._any()
                if self.odd:
                    self.untold.append((clock + nth, _Reader(self._data, start).plain()))
            return many
        start = self._position
        length = super()._content(content, clock)
        if content in _UNTOLD:
            read = _Reader(self._data, start)
            told: list[Any] = [content]
            if content == yjs.FORMAT:
                told.append(read.text())
            told.append(self._data[start : self._position] if content == yjs.BINARY else _written(read.text()))
            self.untold.append((clock, told))
        return length

    def plain(self) -> Any:
        """The next value: maps with their keys in order, all else as it is written. `_any` has bounded its depth."""
        start, tag = self._position, self._byte()
        if tag == yjs.ANY_ARRAY:
            return [self.plain() for _ in range(self.count())]
        if tag == yjs.ANY_MAP:
            return [tag, sorted((self.text(), self.plain()) for _ in range(self.count()))]
        self._position = start
        self._any()
        return self._data[start : self._position]


def _written(text: str) -> str:
    return json.dumps(settled(json.loads(text)), sort_keys=True)


Id = tuple[int, int]
"""Client and clock."""

_NOWHERE, _UNKNOWN = -1, -2  # Instead of a seat: of an item that is in nothing any more; of one that is not looked at yet.
_JOINING = frozenset((ANY, STRING, DELETED))  # Of content that the engine makes one item of.
_SHARED = frozenset((yjs.TYPE, NODE))
_SLACK = 1000  # Items that may be counted too many before counting anew is worth it.

Counting = Generator[None, None, None]


class Census:
    """The counts of one document. A *seat* is where items are: between the elements of an owner, or at its keys."""

    def __init__(self) -> None:
        self.deepest = 0  # How many shared types are in each other at most.
        self.odd = 0  # What the document has had that JSON does not tell (`shoal.kinds.document.state.yjs.Parsed`).
        self._seats: dict[tuple[str | Id, bool], int] = {}
        self._owners: list[str | Id] = []
        self._keyed: list[bool] = []
        self._depths: list[int] = []  # −1 if it is not known yet.
        # Items of each seat: of values and nodes, of characters and formats, and of what was deleted, which may be either.
        self._counts: tuple[array[int], array[int], array[int]] = (array("Q"), array("Q"), array("Q"))
        self._runs: dict[int, tuple[array[int], array[int]]] = {}  # By client: first clocks, and their seats.
        self._last: dict[int, _Last] = {}
        self._counted = self._slack = 0
        self.listed = self.written = 0  # The most items of one list or element of XML, and of one text.

    @property
    def is_loose(self) -> bool:
        """Whether so many items may be counted too many that counting anew is worth it."""
        return self._slack > max(_SLACK, self._counted // 2)

    def get(self, item: Id, default: None = None) -> int | None:
        """How many shared types are around an item; None if it is not known, or in nothing any more."""
        seat = self._seat_at(*item)
        return default if seat < 0 else self._depth(seat)

    def add(self, parsed: Parsed) -> None:
        """Count an update that the engine has taken. What was counted before counts once."""
        for _ in self._adding(parsed.structs.items(), 1 << 62):
            pass
        self._cut(parsed.deletes)
        self.odd |= parsed.odd

    def read(self, snapshot: bytes, structs_max: int) -> Counting:
        """Count a whole document, given as one update, in steps of so many structs.

        Raises:
            InvalidValue: it is no Yjs update.
        """
        reader = Reader(snapshot, is_stored=True)
        yield from self._adding(_sections(reader), structs_max, is_whole=True)
        self.odd |= reader.odd

    # ── where items are ───────────────────────────────────────────────────────

    def _adding(
        self, sections: Iterable[tuple[int, Iterable[Struct]]], structs_max: int, *, is_whole: bool = False
    ) -> Counting:
        """Of a whole document the items are as the engine has them: none of them is joined, or cut, any more."""
        new: dict[int, _Section] = {}
        looked_at = 0
        for client, structs in sections:
            last = self._last.get(client)
            section = new[client] = _Section(last)
            for struct in structs:
                looked_at += 1
                if looked_at % structs_max == 0:
                    yield
                if not struct.gap and struct.clock + struct.length > section.end:
                    section.note(client, struct, self._named(struct))
        for client, section in new.items():
            for index in range(len(section.seats)):
                looked_at += 1
                if looked_at % structs_max == 0:
                    yield
                self._settle((client, index), new)
        for client, section in new.items():
            starts, seats = self._runs.setdefault(client, (array("Q"), array("q")))
            for index, seat in enumerate(section.seats):
                looked_at += 1
                if looked_at % structs_max == 0:
                    yield
                if not seats or seats[-1] != seat:
                    starts.append(section.clocks[index])
                    seats.append(seat)
                if seat >= 0:
                    items, cuts = (1, 0) if is_whole else (section.items[index], section.cuts[index])
                    self._count(seat, section.contents[index], items, cuts)
            self._last[client] = section.last
        for section in new.values():
            for content, seat in zip(section.contents, section.seats, strict=True):
                looked_at += 1
                if looked_at % structs_max == 0:
                    yield
                if content in _SHARED and seat >= 0:
                    self.deepest = max(self.deepest, self._depth(seat) + 1)

    def _named(self, struct: Struct) -> int:
        """The seat that an item names itself; `_UNKNOWN` if its neighbours tell it."""
        if struct.root is not None:
            return self._seat(struct.root, struct.keyed)
        if not struct.needs:
            return _NOWHERE
        return self._seat(struct.needs[0], struct.keyed) if struct.inside else _UNKNOWN

    def _seat(self, owner: str | Id, keyed: bool) -> int:
        seat = self._seats.get((owner, keyed))
        if seat is None:
            seat = self._seats[owner, keyed] = len(self._owners)
            self._owners.append(owner)
            self._keyed.append(keyed)
            self._depths.append(0 if isinstance(owner, str) else -1)
            for counts in self._counts:
                counts.append(0)
        return seat

    def _settle(self, at: tuple[int, int], new: dict[int, _Section]) -> None:
        """Find the seat of a new item along its neighbours, and that of those."""
        path: list[tuple[int, int]] = []
        while True:
            client, index = at
            seat = new[client].seats[index]
            if seat != _UNKNOWN:
                break
            path.append(at)
            new[client].seats[index] = seat = _NOWHERE  # So the walk ends even if neighbours form a circle.
            of, clock = new[client].neighbours_of[index], new[client].neighbours_at[index]
            section = new.get(of)
            if section is not None and section.clocks and clock >= section.clocks[0]:
                at = of, bisect_right(section.clocks, clock) - 1
                continue
            seat = self._seat_at(of, clock)
            break
        for client, index in path:
            new[client].seats[index] = seat

    def _seat_at(self, client: int, clock: int) -> int:
        last = self._last.get(client)
        if last is None or clock >= last.end:
            return _NOWHERE
        starts, seats = self._runs[client]
        run = bisect_right(starts, clock)
        return seats[run - 1] if run else _NOWHERE

    def _depth(self, seat: int) -> int:
        path: list[int] = []
        while self._depths[seat] < 0:
            path.append(seat)
            self._depths[seat] = 0  # So the walk ends even if it goes in a circle.
            owner = self._owners[seat]
            assert not isinstance(owner, str)
            around = self._seat_at(*owner)
            if around < 0:
                break
            seat = around
        depth = self._depths[seat] if not path or path[-1] != seat else -1
        for each in reversed(path):
            depth += 1
            self._depths[each] = depth
        return depth

    # ── how many there are ────────────────────────────────────────────────────

    def _count(self, seat: int, content: int, items: int, cuts: int) -> None:
        if self._keyed[seat]:
            if content == FORMAT:
                self.odd |= UNREAL  # The key has no value, and JSON shows null.
            return
        kind = 1 if content in TEXT_CONTENT else 2 if content == DELETED else 0
        self._counts[kind][seat] += items + cuts
        self._counted += items
        self._slack += cuts
        self._most(seat)

    def _cut(self, deletes: Iterable[tuple[int, int, int]]) -> None:
        for client, clock, length in deletes:
            for at in (clock, clock + length - 1):
                seat = self._seat_at(client, at)
                if seat >= 0 and not self._keyed[seat]:
                    self._counts[2][seat] += 1
                    self._slack += 1
                    self._most(seat)

    def _most(self, seat: int) -> None:
        listed, written, deleted = (counts[seat] for counts in self._counts)
        self.listed = max(self.listed, listed + deleted)
        self.written = max(self.written, written + deleted)


class _Last:
    """The last item of a client."""

    __slots__ = ("clock", "content", "end", "right")

    def __init__(self, clock: int, end: int, content: int, right: Id | None) -> None:
        self.clock, self.end, self.content, self.right = clock, end, content, right


class _Section:
    """New items of one client, in clock order, as columns."""

    __slots__ = ("clocks", "contents", "cuts", "end", "items", "last", "neighbours_at", "neighbours_of", "seats")

    def __init__(self, last: _Last | None) -> None:
        self.last = last or _Last(0, 0, GC, None)
        self.end = self.last.end
        self.clocks, self.seats = array("Q"), array("q")
        self.neighbours_of, self.neighbours_at = array("Q"), array("Q")
        self.contents, self.items, self.cuts = array("B"), array("B"), array("B")

    def note(self, client: int, struct: Struct, seat: int) -> None:
        left = right = None
        if struct.needs and not struct.inside:
            right = struct.needs[-1] if struct.right else None
            left = struct.needs[0] if len(struct.needs) > struct.right else None
        before = self.last
        follows = left == (client, struct.clock - 1) and before.end == struct.clock
        is_joined = follows and right == before.right and struct.content == before.content and struct.content in _JOINING
        self.clocks.append(max(struct.clock, self.end))
        self.seats.append(seat)
        neighbour = left or right or (0, 0)
        self.neighbours_of.append(neighbour[0])
        self.neighbours_at.append(neighbour[1])
        self.contents.append(struct.content)
        self.items.append(not is_joined)
        # The item that it comes after, or before, may have to be cut there, if that is not where one ends, or begins.
        cuts = (left is not None and not follows) + (right not in (None, before.right, (client, before.clock)))
        self.cuts.append(cuts)
        self.end = struct.clock + struct.length
        self.last = _Last(struct.clock, self.end, struct.content, right)


def _sections(reader: Reader) -> Iterator[tuple[int, Iterator[Struct]]]:
    for _ in range(reader.count()):
        many, client, clock = reader.count(), reader.client(), reader.integer()
        yield client, _structs(reader, many, clock)


def _structs(reader: Reader, many: int, clock: int) -> Iterator[Struct]:
    for _ in range(many):
        struct = reader.struct(clock, (set(), set()))
        reader.wide.clear()
        clock += struct.length
        yield struct
