"""A hash of what the engine's JSON does not tell of a document's content: bytes, numbers that are not finite or zero with a
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
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Generator, Iterable
from math import inf, isfinite
from typing import Any

import msgspec

from shoal.kinds.document.state import yjs
from shoal.kinds.document.state.yjs import Reader, Struct

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
