"""Read a Yjs v1 update before the engine sees it: the structs that it needs, and those that it brings.

Law: nothing reaches pycrdt that `parse` has not walked to its last byte. There are two
measured reasons: an update that depends on a missing one stays pending inside
a pycrdt document forever, and a value nested 100,000 deep (200 KB) overflows
the engine's stack and kills the process. A bound on size alone prevents neither.
The result is enough for `shoal.kinds.document.state.readiness` to decide what is ready.

The format is that of Yjs 13's UpdateEncoderV1. The length of a string is its number of
UTF-16 code units, as Yjs clocks count it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter
from typing import Literal, NoReturn

from shoal.errors import InvalidValue, TooLarge
from shoal.records import NamedTuple

VALUE_DEPTH_MAX = 48  # Of one plain value; the engine's stack holds some 10,000.
CLIENT_ID_BITS = 53  # pycrdt keeps no more.
CLIENT_MAX = (1 << CLIENT_ID_BITS) - 1
CLOCK_MAX = 2**32 - 1
STRUCTS_MAX = 4000  # Items, and ranges of clocks, that one operation may bring: some 40 ms to look at them and apply them.
VALUE_PARTS_MAX = 64_000  # Of one value of an update that a node takes: the engine takes such a value in one piece.
VALUES_PER_STRUCT = 16  # So many plain values beyond one in each item count as one item more: to look at one takes 0.7 µs.

RootKind = Literal["map", "array", "text", "xml"]
StateVector = dict[int, int]
"""Client → the next clock that it will use."""

GC, DELETED, BINARY, STRING, EMBED, FORMAT, TYPE, ANY, SKIP = 0, 1, 3, 4, 5, 6, 7, 8, 10
"""Kinds of content: collected, deleted, bytes, characters, an embedded object, a format, a shared type, plain values, a gap."""

TEXT_CONTENT = frozenset((STRING, EMBED, FORMAT))
"""Kinds of content that only texts hold."""

ARRAY_CONTENT = frozenset((ANY, BINARY, TYPE))
"""Kinds of content that only arrays hold, except for shared types, which a text may embed."""

NODE = 32 + TYPE
"""An XML element or text, told apart from other shared types. The format has no such number."""

BYTES, UNREAL, XML = 1, 2, 4
"""Bits of `Parsed.odd`: bytes; numbers that are not finite, zero with a sign, and what has no value; XML."""

_REFUSED = {2: "JSON of an old Yjs", 9: "sub-documents", 11: "moves"}
_ARRAY, _MAP, _TEXT, _XML_ELEMENT, _XML_FRAGMENT, _XML_HOOK, _XML_TEXT = range(7)
HAS_ORIGIN, HAS_RIGHT_ORIGIN, HAS_KEY, CONTENT = 0x80, 0x40, 0x20, 0x1F
"""Bits of an item's first byte; the last five tell its kind of content."""

_KEPT_BYTES_MAX = 16 << 20  # Of the update that was looked at last.
_BRACKET = re.compile(r"[\[\]{}]")

_ANY_FIXED = {120: 0, 121: 0, 122: 8, 123: 8, 124: 4, 126: 0, 127: 0}
_ANY_UNDEFINED = 127
_NOT_FINITE = {123: 0xF0, 124: 0x80}  # Floats, and from where the second byte of a number that is not finite begins.
_ANY_INTEGER, _ANY_BUFFER, ANY_ARRAY, ANY_MAP, _ANY_STRING = 125, 116, 117, 118, 119


class Struct(NamedTuple):
    """An item, or a range of clocks without content, as far as readiness and inference need it."""

    clock: int
    length: int
    needs: tuple[tuple[int, int], ...]  # (client, clock) of its origins, or of its parent.
    inside: bool  # True if `needs` names the parent, not siblings.
    shared: bool  # True if it is itself a shared type.
    gap: bool = False  # True if it only skips clocks, which another update has.
    root: str | None = None  # Its parent, if that is a root and no sibling tells which.
    content: int = 0  # Its kind of content, as the format numbers them, or `NODE`.
    keyed: bool = False  # True if it names a key.
    right: bool = False  # True if the last of `needs` is its right origin.


class Wide(NamedTuple):
    """A string of an update that has characters of two UTF-16 code units."""

    client: int
    clock: int
    start: int  # Where it begins in the update, with the number of its bytes,
    end: int  # and where it ends.
    text: str


class Parsed(NamedTuple):
    """The structure of an update, without its values."""

    structs: dict[int, list[Struct]]  # By client, in clock order.
    deletes: list[tuple[int, int, int]]  # Client, clock, length.
    keyed: frozenset[str]  # Roots that it uses as maps.
    listed: frozenset[str]  # Roots that it uses as arrays or texts.
    wide: Sequence[Wide] = ()  # In the update's order; of several updates that were joined, none.
    odd: int = 0  # Which content it has that the engine's JSON does not tell from other content.
    values: int = 0  # Plain values beyond one in each item.

    @property
    def weight(self) -> int:
        """The sum that an operation's bound counts: structs, deletions, and values."""
        return sum(map(len, self.structs.values())) + len(self.deletes) + self.values // VALUES_PER_STRUCT


_latest: tuple[bytes, Parsed] | None = None  # Whoever takes an update looks at it several times.


def parse(update: bytes, *, structs_max: int = CLOCK_MAX) -> Parsed:
    """Walk a whole update. Nobody may alter what is returned.

    Raises:
        InvalidValue: it is not exactly one Yjs v1 update of values, maps, arrays, texts and XML.
        TooLarge: its weight is more than `structs_max`, which its detail tells; no more of it was read.
    """
    global _latest
    known = _latest
    if known is not None and known[0] is update and known[1].weight <= structs_max:
        return known[1]
    reader = Reader(update, structs_max=structs_max)
    parsed, left = _parse_structs(reader, structs_max)
    deletes: list[tuple[int, int, int]] = []
    for delete in reader.deleted():
        deletes.append(delete)
        if len(deletes) > left:
            raise _too_many(structs_max)
    reader.end()
    found = parsed._replace(deletes=deletes)
    if len(update) <= _KEPT_BYTES_MAX:
        _latest = update, found
    return found


def split(update: bytes) -> tuple[bytes, list[tuple[int, int, int]]]:
    """An update without its deletions, and the deletions: client, clock, length.

    Raises:
        InvalidValue: as `parse`.
    """
    reader = Reader(update)
    _parse_structs(reader, CLOCK_MAX)
    structs = reader.taken()
    deletes = reader.deletes()
    reader.end()
    return structs + pack_delete_set([]), deletes


def _too_many(structs_max: int) -> TooLarge:
    return TooLarge(
        f"the update has more than {structs_max} items and deletions, where {VALUES_PER_STRUCT} values in an item count as one "
        "more, which are too many for one operation. "
        "Nothing was written. Send it in parts.",
        items_max=structs_max,
    )


def _too_long(value_max: int) -> TooLarge:
    return TooLarge(
        f"the update has a value of more than {value_max} parts. Nothing was written. Store it as several values.",
        parts_max=value_max,
    )


def parsing(update: bytes, every: int, *, value_max: int = CLOCK_MAX) -> Generator[None, None, Parsed]:
    """As `parse`, in steps of so many structs, values or deletions. A value may have `value_max` parts.

    Raises:
        InvalidValue: as `parse`.
        TooLarge: a value has more parts; it was not read.
    """
    reader = Reader(update, value_max=value_max)
    roots: tuple[set[str], set[str]] = (set(), set())
    structs: dict[int, list[Struct]] = {}
    looked_at = 0
    for _ in range(reader.count()):
        many, client, clock = reader.count(), reader.client(), reader.integer()
        if client in structs:
            _refuse("a client comes twice")
        found = structs[client] = list[Struct]()
        reader.of = client
        for _ in range(many):
            struct = yield from reader.struct_in_steps(clock, roots, every * VALUES_PER_STRUCT)
            found.append(struct)
            clock += struct.length
            if clock > CLOCK_MAX:
                _refuse("a clock is out of range")
            looked_at += 1
            if looked_at % every == 0:
                yield
    deletes: list[tuple[int, int, int]] = []
    for delete in reader.deleted():
        deletes.append(delete)
        if len(deletes) % every == 0:
            yield
    reader.end()
    keyed, listed = frozenset(roots[1]), frozenset(roots[0])
    return Parsed(structs, deletes, keyed, listed, reader.wide, reader.odd, reader.values)


def remember(update: bytes, parsed: Parsed) -> None:
    """Let `parse` find what `parsing` made of these very bytes."""
    global _latest
    if len(update) <= _KEPT_BYTES_MAX:
        _latest = update, parsed


def _parse_structs(reader: Reader, structs_max: int) -> tuple[Parsed, int]:
    """The structs, and how many more there might be."""
    roots: tuple[set[str], set[str]] = (set(), set())
    structs: dict[int, list[Struct]] = {}
    left = structs_max
    for _ in range(reader.count()):
        many, client, clock = reader.count(), reader.client(), reader.integer()
        if client in structs:
            _refuse("a client comes twice")
        structs[client] = []
        reader.of = client
        left -= many
        if left < 0:
            raise _too_many(structs_max)
        for _ in range(many):
            struct = reader.struct(clock, roots)
            structs[client].append(struct)
            clock += struct.length
            if clock > CLOCK_MAX:
                _refuse("a clock is out of range")
    left -= reader.values // VALUES_PER_STRUCT
    if left < 0:
        raise _too_many(structs_max)
    return Parsed(structs, [], frozenset(roots[1]), frozenset(roots[0]), reader.wide, reader.odd, reader.values), left


def joined(parts: Sequence[Parsed]) -> Parsed:
    """Several updates as one, with everything that they need and bring."""
    if len(parts) == 1:
        return parts[0]
    structs: dict[int, list[Struct]] = {}
    for part in parts:
        for client, found in part.structs.items():
            # Another update may fill a gap. If none does, the clock of the next struct shows it.
            structs.setdefault(client, []).extend(struct for struct in found if not struct.gap)
    for found in structs.values():
        found.sort(key=_clock)
    deletes = [delete for part in parts for delete in part.deletes]
    nothing: frozenset[str] = frozenset()
    keyed = nothing.union(*(part.keyed for part in parts))
    odd = 0
    for part in parts:
        odd |= part.odd
    values = sum(part.values for part in parts)
    return Parsed(structs, deletes, keyed, nothing.union(*(part.listed for part in parts)), odd=odd, values=values)


_clock = attrgetter("clock")


def covers(state: StateVector, deletes: list[tuple[int, int, int]], part: Parsed) -> bool:
    """Whether a document with this state vector and these deletions stays as it is if `part` is applied to it."""
    for client, structs in part.structs.items():
        if any(struct.clock + struct.length > state.get(client, 0) for struct in structs if not struct.gap):
            return False
    return pack_deletes(deletes) == pack_deletes(deletes + part.deletes)


def parse_state(packed: bytes) -> StateVector:
    """Read a state vector.

    Raises:
        InvalidValue: it is malformed.
    """
    reader = Reader(packed)
    state = {reader.client(): reader.integer() for _ in range(reader.count())}
    reader.end()
    return state


def pack_state(state: StateVector) -> bytes:
    """A state vector as bytes, clients in order: equal vectors give equal bytes."""
    entries = b"".join(pack_varuint(client) + pack_varuint(clock) for client, clock in sorted(state.items()) if clock)
    return pack_varuint(sum(1 for clock in state.values() if clock)) + entries


def pack_deletes(deletes: list[tuple[int, int, int]]) -> bytes:
    """Deletions as bytes, in a form of Shoal's own: sorted, adjoining ranges joined, so that equal sets give equal bytes."""
    joined: list[tuple[int, int, int]] = []
    for client, clock, length in sorted(deletes):
        if joined and joined[-1][0] == client and clock <= joined[-1][1] + joined[-1][2]:
            start = joined[-1][1]
            joined[-1] = (client, start, max(joined[-1][2], clock + length - start))
        else:
            joined.append((client, clock, length))
    return pack_varuint(len(joined)) + b"".join(pack_varuint(number) for entry in joined for number in entry)


def pack_delete_set(deletes: list[tuple[int, int, int]]) -> bytes:
    """Deletions in the form that an update has after its structs."""
    ranges: dict[int, list[bytes]] = {}
    for client, clock, length in sorted(deletes):
        ranges.setdefault(client, []).append(pack_varuint(clock) + pack_varuint(length))
    return pack_varuint(len(ranges)) + b"".join(
        pack_varuint(client) + pack_varuint(len(found)) + b"".join(found) for client, found in ranges.items()
    )


class Reader:
    """A cursor over lib0's encoding. Every method raises InvalidValue if the bytes end too early or make no sense."""

    __slots__ = ("_before", "_data", "_is_stored", "_position", "_structs_max", "_value_max", "odd", "of", "values", "wide")

    def __init__(
        self,
        data: bytes,
        at: int = 0,
        *,
        is_stored: bool = False,
        structs_max: int = CLOCK_MAX,
        value_max: int = CLOCK_MAX,
    ) -> None:
        """`is_stored`: the engine wrote it, which names the keys of formats that came without one (they have no value). With
        `structs_max` it raises TooLarge before it reads more values than count as so many structs, with `value_max` before it
        reads a value of more parts in steps, or an embedded one.
        """
        self._is_stored = is_stored
        self._structs_max = structs_max
        self._value_max = value_max
        self._before = 0  # How many `values` there were before the one that is read in steps.
        self.values = 0  # As of `Parsed`.
        self._data = data
        self._position = at
        self.of = 0  # The client whose structs are read.
        self.wide: list[Wide] = []
        self.odd = 0  # As of `Parsed`.

    @property
    def position(self) -> int:
        """Where the cursor is."""
        return self._position

    def taken(self) -> bytes:
        """The bytes that were read so far."""
        return self._data[: self._position]

    def end(self) -> None:
        """Check that nothing follows."""
        if self._position != len(self._data):
            _refuse(f"{len(self._data) - self._position} bytes follow its end")

    def integer(self) -> int:
        """An unsigned integer of variable length."""
        # Most of the time to parse an update is spent here, on client ids of eight bytes: no call for each byte.
        data, position = self._data, self._position
        value = shift = 0
        for byte in data[position : position + 9]:
            position += 1
            if byte < 0x80:
                self._position = position
                return value | byte << shift
            value |= (byte & 0x7F) << shift
            shift += 7
        return _refuse("it ends too early" if shift < 63 else "a number is out of range")

    def count(self) -> int:
        """The number of parts that follow, each of which takes at least one byte."""
        value = self.integer()
        if value > len(self._data) - self._position:
            _refuse("it ends too early")
        return value

    def client(self) -> int:
        """A client id."""
        value = self.integer()
        if value > CLIENT_MAX:
            _refuse("a client id is out of range")
        return value

    def text(self) -> str:
        """A string, with its length before it."""
        try:
            return self._take(self.integer()).decode()
        except UnicodeDecodeError:
            _refuse("a string is not UTF-8")

    def struct(self, clock: int, roots: tuple[set[str], set[str]]) -> Struct:
        """The struct at `clock`. The roots that it names are added to `roots`: those without a key, those with one."""
        flags = self._byte()
        if flags in (GC, SKIP):
            return Struct(clock, self._length(), (), False, False, flags == SKIP)
        needs = [self._id() for flag in (HAS_ORIGIN, HAS_RIGHT_ORIGIN) if flags & flag]
        root = None
        inside = False
        if not needs:
            root = self._parent(flags, needs, roots)
            inside = root is None
        content = flags & CONTENT
        if content == TYPE:
            shared = self._type()
            return Struct(
                clock, 1, tuple(needs), inside, True, False, root, shared, bool(flags & HAS_KEY), flags & HAS_RIGHT_ORIGIN > 0
            )
        if content == FORMAT and flags & HAS_KEY and not self._is_stored:
            _refuse("a format is where a value belongs")
        length = self._content(content, clock)
        return Struct(
            clock,
            length,
            tuple(needs),
            inside,
            False,
            False,
            root,
            content,
            bool(flags & HAS_KEY),
            flags & HAS_RIGHT_ORIGIN > 0,
        )

    def struct_in_steps(
        self, clock: int, roots: tuple[set[str], set[str]], every: int, ends: dict[int, int] | None = None
    ) -> Generator[None, None, Struct]:
        """As `struct`, with a step after so many values. Where values that take more than a step end is noted in `ends`."""
        start, flags = self._position, self._byte()
        if flags & CONTENT != ANY or flags in (GC, SKIP):
            self._position = start
            return self.struct(clock, roots)
        needs = [self._id() for flag in (HAS_ORIGIN, HAS_RIGHT_ORIGIN) if flags & flag]
        root = None if needs else self._parent(flags, needs, roots)
        many = self._length()
        self._charge(many - 1)
        left = every
        for _ in range(many):
            begins, before, waiting = self._position, self.values, [(1, False)]
            self._before = before
            while (left := self._walk(waiting, left)) <= 0:
                yield
                left = every
            if ends is not None and self.values - before > every:
                ends[begins] = self._position
        inside = root is None and not flags & (HAS_ORIGIN | HAS_RIGHT_ORIGIN)
        keyed, right = bool(flags & HAS_KEY), flags & HAS_RIGHT_ORIGIN > 0
        return Struct(clock, many, tuple(needs), inside, False, False, root, ANY, keyed, right)

    def deletes(self) -> list[tuple[int, int, int]]:
        """The deletions at the end of an update: client, clock, length."""
        return list(self.deleted())

    def deleted(self) -> Iterator[tuple[int, int, int]]:
        """As `deletes`, one after the other."""
        for _ in range(self.count()):
            client = self.client()
            for _ in range(self.count()):
                clock, length = self.integer(), self._length()
                if clock + length > CLOCK_MAX:
                    _refuse("a clock is out of range")
                yield client, clock, length

    def _parent(self, flags: int, needs: list[tuple[int, int]], roots: tuple[set[str], set[str]]) -> str | None:
        """The root that an item is in, or None if it is in another item, which it then needs."""
        named = self.integer()
        if named not in (0, 1):
            _refuse("a parent is neither a root nor an item")
        root = None
        if named:
            root = self.text()
            roots[bool(flags & HAS_KEY)].add(root)
        else:
            needs.append(self._id())
        if flags & HAS_KEY:
            self.text()
        return root

    def _type(self) -> int:
        """Walk the description of a shared type; `NODE` or another kind of content."""
        shared = self.integer()
        if shared == _XML_ELEMENT:
            self.text()
        elif shared == _XML_HOOK:
            _refuse("it holds an XML hook, whose name the engine does not read")
        elif shared not in (_ARRAY, _MAP, _TEXT, _XML_FRAGMENT, _XML_TEXT):
            _refuse(f"it holds an unknown shared type ({shared})")
        if shared in (_XML_ELEMENT, _XML_FRAGMENT, _XML_TEXT):
            self.odd |= XML
        return NODE if shared in (_XML_ELEMENT, _XML_TEXT) else TYPE

    def _content(self, content: int, clock: int) -> int:
        """Walk the content of an item at `clock`, and return the number of clocks that it covers."""
        if content == ANY:
            many = self._length()
            self._charge(many - 1)
            for _ in range(many):
                self._any()
            return many
        if content == STRING:
            start = self._position
            text = self.text()
            if text.isascii():
                return len(text) or _refuse("an item is empty")
            units = len(text.encode("utf-16-le")) // 2
            if units != len(text):
                self.wide.append(Wide(self.of, clock, start, self._position, text))
            return units
        if content == DELETED:
            return self._length()
        if content == BINARY:
            self.odd |= BYTES
            self._take(self.integer())
        elif content == FORMAT:
            self.text()
            self._json()
        elif content == EMBED:
            self._json()
        else:
            _refuse(f"it holds {_REFUSED.get(content, f'unknown content ({content})')}")
        return 1

    def _any(self) -> None:
        """Walk one plain value."""
        self._walk([(1, False)], CLOCK_MAX)

    def _walk(self, open_counts: list[tuple[int, bool]], steps: int) -> int:
        """Walk plain values, so many parts of them at most, with a stack of counts: a hostile value could exhaust recursion.
        Returns how many parts were left to walk; 0 if there may be more.
        """
        while open_counts and steps:
            left, keyed = open_counts.pop()
            if not left:
                continue
            open_counts.append((left - 1, keyed))
            steps -= 1
            if keyed:
                self.text()
            tag = self._byte()
            if tag in (ANY_ARRAY, ANY_MAP):
                open_counts.append((self.count(), tag == ANY_MAP))
                self._charge(open_counts[-1][0])
                if self.values - self._before > self._value_max:
                    raise _too_long(self._value_max)
                if len(open_counts) > VALUE_DEPTH_MAX + 1:
                    _refuse(f"a value is nested deeper than {VALUE_DEPTH_MAX}")
            elif tag == _ANY_STRING:
                self.text()
            elif tag == _ANY_BUFFER:
                self.odd |= BYTES
                self._take(self.integer())
            elif tag == _ANY_INTEGER:
                self.integer()
            elif tag in _ANY_FIXED:
                packed = self._take(_ANY_FIXED[tag])
                if tag == _ANY_UNDEFINED or (tag in _NOT_FINITE and _is_unreal(packed, _NOT_FINITE[tag])):
                    self.odd |= UNREAL
            else:
                _refuse(f"a value has the unknown tag {tag}")
        return steps

    def _json(self) -> None:
        text = self.text()
        parts = sum(map(text.count, ",[{"))
        if parts > self._value_max:
            raise _too_long(self._value_max)
        self._charge(parts)
        depth = deepest = 0
        for bracket in _BRACKET.findall(text):  # Those within strings count too: that only makes the bound stricter.
            depth += 1 if bracket in "[{" else -1
            deepest = max(deepest, depth)
        if deepest > VALUE_DEPTH_MAX:
            _refuse("an embedded value is nested too deep")
        try:
            json.loads(text)
        except ValueError:
            _refuse("an embedded value is not JSON")

    def _charge(self, values: int) -> None:
        self.values += values
        if self.values // VALUES_PER_STRUCT > self._structs_max:
            raise _too_many(self._structs_max)

    def _id(self) -> tuple[int, int]:
        return self.client(), self.integer()

    def _length(self) -> int:
        return self.integer() or _refuse("an item is empty")

    def _byte(self) -> int:
        position = self._position
        if position >= len(self._data):
            _refuse("it ends too early")
        self._position = position + 1
        return self._data[position]

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            _refuse("it ends too early")
        taken = self._data[self._position : end]
        self._position = end
        return taken


def _is_unreal(packed: bytes, second: int) -> bool:
    """Whether a float is not finite, or zero with a sign."""
    if packed[0] & 0x7F == 0x7F:
        return packed[1] >= second
    return packed[0] == 0x80 and not any(packed[1:])


def pack_varuint(value: int) -> bytes:
    """A number as lib0 encodes it."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def _refuse(why: str) -> NoReturn:
    raise InvalidValue(f"these bytes are not a Yjs v1 update that Shoal can store: {why}. Nothing was written.")
