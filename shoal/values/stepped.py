"""Values between JSON text and msgpack in steps, so that a large one does not delay others.

Laws:
- The result is the one of `shoal.values.tagged`, in one step: `encode(from_json(…))`, and `to_json(decode(…))` as text.
- A step makes objects of a few thousand values at most, whatever the value holds: what waits in everything that is open counts
  together. What cannot be divided, a tagged object of JSON or an extension value, may have `WHOLE_VALUES_MAX` values inside.
- Text and bytes are gone through once, however deep the value nests: a part that was converted is copied once, at the end.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from itertools import islice, pairwise
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec

from shoal.errors import InvalidValue, TooLarge
from shoal.values import tagged
from shoal.values.codec import LANGGRAPH, decode_channel, encode
from shoal.values.forms import BY_CLASS, FROZENSET_CODE, SET_CODE
from shoal.values.tagged import JSON_DEPTH_MAX
from shoal.values.work import EXTENSIONS, LISTS, MAPS, Allowance

STEP_BYTES = 16 * 1024
"""The bytes that one step converts: some milliseconds, if all of it is empty lists."""
WHOLE_VALUES_MAX = 50_000
"""The values within one part that cannot be divided."""
STEP_PARTS = 2048
_PART_BYTES = 16
"""Of a text or of bytes, as much work as one value."""

Steps = Generator[None, None, bytes]

# A string is one token, so that what it holds is not taken for structure; a long one is looked at in pieces.
_STRING = rb'(?:[^"\\]++|\\.){0,%d}+("?)' % STEP_PARTS
_TOKEN = re.compile(rb'"' + _STRING + rb"|[][{},]", re.DOTALL)
_REST = re.compile(_STRING, re.DOTALL)
_COMMA, _QUOTE, _OBJECT = b',"{'
_OPENING = frozenset(b"[{")


def packed_in_steps(text: bytes) -> Steps:
    """The packed value of well-formed JSON text.

    Raises:
        InvalidValue: as `from_json`.
        TooLarge: a tagged object has more than `WHOLE_VALUES_MAX` values inside.
        msgspec.MsgspecError, UnicodeError, RecursionError: a part of it is no JSON after all.
    """
    opened: list[_Given] = []
    done = 0  # All before is converted, in each container that is open.
    is_small = len(text) <= STEP_BYTES or text[:1] == b'"'
    for met, (at, first) in enumerate(() if is_small else _tokens(text)):
        if not met % STEP_PARTS:
            yield
        if first == _COMMA:
            if at - done > STEP_BYTES:
                _convert(opened, text, at)
                done = at + 1
                yield
            opened[-1].end_element(at)
        elif first in _OPENING:
            if len(opened) == JSON_DEPTH_MAX:
                raise InvalidValue(f"the JSON nests more than {JSON_DEPTH_MAX} deep. Nothing was written.")
            opened.append(_Given(at, first == _OBJECT, JSON_DEPTH_MAX - len(opened), met))
        elif first != _QUOTE:
            pieces = yield from opened.pop().closed(text, at, met)
            if pieces is not None and not opened:
                return (yield from _joined(pieces))
            if pieces is not None:
                opened[-1].add(pieces)
    return encode(tagged.from_json(msgspec.json.decode(text)))  # It is small, or one text, or little in much space.


def made_at_once(text: bytes, depth_max: int) -> Generator[None, None, int]:
    """The number of values at most so deep in JSON text: those for which a decoder makes objects, if it leaves deeper ones."""
    depth = made = 0
    for met, (_, first) in enumerate(_tokens(text)):
        if not met % STEP_PARTS:
            yield
        if first in _OPENING:
            depth += 1
            made += depth <= depth_max
        elif first == _COMMA:
            made += depth <= depth_max
        elif first != _QUOTE:
            depth -= 1
    return made


def made_of_packed(packed: bytes, depth_max: int, bound: int) -> Generator[None, None, int]:
    """As `made_at_once`, of msgpack; counts no further than beyond `bound`, nor beyond what is well-formed."""
    walker = msgpack.Unpacker(max_buffer_size=len(packed))
    walker.feed(packed)
    left, made, met = [1], 0, 0
    try:
        while left and made <= bound:
            if not left[-1]:
                left.pop()
                continue
            left[-1] -= 1
            met += 1
            if not met % STEP_PARTS:
                yield
            first = packed[walker.tell()]
            if len(left) > depth_max or not (first in LISTS or first in MAPS):
                walker.skip()
                continue
            inside = walker.read_array_header() if first in LISTS else walker.read_map_header()
            made += inside
            left.append(inside if first in LISTS else 2 * inside)
    except (msgpack.UnpackException, ValueError, IndexError):
        pass  # The decoder says why.
    return made


def has_more_values(text: bytes, bound: int) -> bool:
    """Whether JSON text has more values than this, nested ones included."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") <= bound:
        return False  # Those within strings are counted, too: it can only be less.
    values = (1 for _, first in _tokens(text) if first == _COMMA or first in _OPENING)
    return sum(islice(values, bound + 1)) > bound


def _tokens(text: bytes) -> Iterator[tuple[int, int]]:
    """Where each string, comma and bracket of JSON text is, and its first byte; a long string is several tokens."""
    position: int | None = 0
    while position is not None:
        begin, position = position, None
        for token in _TOKEN.finditer(text, begin):
            at = token.start()
            yield at, text[at]
            if token[1] == b"":
                position = token.end()
                break
        while position is not None and (rest := _REST.match(text, position)) is not None and rest.end() > position:
            position = rest.end()
            yield position, _QUOTE
            if rest[1]:
                break


class _Pieces(list[Any]):
    """A converted part: bytes, and the pieces of parts inside it. Copying it at each level would take levels × bytes."""


def _joined(pieces: _Pieces) -> Steps:
    parts: list[bytes] = []
    waiting = [iter(pieces)]
    met = 0
    while waiting:
        met += 1
        if not met % STEP_PARTS:
            yield
        piece = next(waiting[-1], None)
        if piece is None:
            waiting.pop()
        elif type(piece) is _Pieces:
            waiting.append(iter(piece))
        else:
            parts.append(piece)
    return b"".join(parts)


def _packed_together(parts: list[Any]) -> bytes | _Pieces:
    """Small parts as one, so that a map of a million entries is not a million pieces."""
    return b"".join(parts) if all(type(part) is bytes for part in parts) else _Pieces(parts)


def _convert(opened: list[_Given], text: bytes, at: int) -> None:
    """Convert what waits before the comma at `at`, in all that is open."""
    for outer, inner in pairwise(opened):
        outer.take_before(text, inner.start)
        if outer.is_whole:
            return
    opened[-1].take(text, at)


class _Given:
    """A list or an object of a JSON text, converted as far as its text was looked through."""

    __slots__ = (
        "_begin",
        "_comma",
        "_depth",
        "_elements",
        "_entries",
        "_is_map",
        "_key",
        "_length",
        "_met",
        "is_whole",
        "start",
    )

    def __init__(self, start: int, is_map: bool, depth: int, met: int) -> None:
        self.start = start
        self.is_whole = False  # It has a tag, and is converted when it ends.
        self._begin: int | None = start + 1  # Of the elements that wait; None between a converted one and its comma.
        self._comma = start + 1  # After the last comma between its elements.
        self._is_map = is_map
        self._depth = depth
        self._met = met
        self._elements = _Pieces()
        self._length = 0
        self._entries: dict[str, bytes | _Pieces] = {}  # The last one of a name counts, as in JSON.
        self._key = ""

    def end_element(self, at: int) -> None:
        """A comma of this container, the innermost one that is open."""
        if self._begin is None:
            self._begin = at + 1
        self._comma = at + 1

    def add(self, pieces: _Pieces) -> None:
        """Take an element that was converted by itself."""
        if self._is_map:
            self._entries[self._key] = pieces
        else:
            self._elements.append(pieces)
            self._length += 1
        self._begin = None

    def closed(self, text: bytes, end: int, met: int) -> Generator[None, None, _Pieces | None]:
        """The packed value; None if nothing of it was converted, so that it is converted with its neighbours."""
        if not self._elements and not self._entries and not self.is_whole:
            return None
        self.take(text, end)
        if self.is_whole:
            if met - self._met > 2 * WHOLE_VALUES_MAX:  # A value counts, and so does the comma after it.
                raise _indivisible()
            return _Pieces([encode(_value(msgspec.json.decode(text[self.start : end + 1]), self._depth))])
        packer = msgpack.Packer()
        if not self._is_map:
            return _Pieces([packer.pack_array_header(self._length), self._elements])
        pieces, items = _Pieces([packer.pack_map_header(len(self._entries))]), iter(self._entries.items())
        while chunk := list(islice(items, STEP_PARTS)):
            pieces.append(_packed_together([part for key, packed in chunk for part in (packer.pack(key), packed)]))
            yield
        return pieces

    def take(self, text: bytes, end: int) -> None:
        """Convert the elements that wait, which end before `end`."""
        begin, self._begin = self._begin, end + 1
        if begin is None or self.is_whole:
            return
        chunk = text[begin:end]
        if not self._is_map:
            tree = _value(msgspec.json.decode(b"[" + chunk + b"]"), self._depth)
            self._length += len(tree)
            self._elements.append(encode(tree)[1 if len(tree) < 16 else 3 if len(tree) < 1 << 16 else 5 :])
            return
        entries = msgspec.json.decode(b"{" + chunk + b"}")
        self.is_whole = "$type" in entries
        if not self.is_whole:
            for key, item in entries.items():
                self._entries[key] = encode(_value(item, self._depth - 1))

    def take_before(self, text: bytes, child: int) -> None:
        """Convert the elements before the one that begins at `child`, which is converted by itself."""
        if self._begin is None or self._begin >= child:
            return
        if self._comma > self._begin:
            self.take(text, self._comma - 1)
        if self._is_map and not self.is_whole:
            self._key = msgspec.json.decode(text[max(self._begin, self._comma) : child].rstrip().removesuffix(b":"))
            self.is_whole = self._key == "$type"
        self._begin = child


def _value(tree: Any, depth: int) -> Any:
    try:
        return tagged.value_of(tree, depth)
    except (InvalidValue, MemoryError):
        raise
    except Exception as failure:  # Registered classes may raise anything.
        raise InvalidValue(f"the JSON is no value: {failure or type(failure).__name__}. Nothing was written.") from failure


def _indivisible() -> TooLarge:
    return TooLarge(
        f"an object with a tag, which is converted as a whole, has more than {WHOLE_VALUES_MAX} values inside. "
        "Nothing was written. Send or read it as msgpack: Content-Type or Accept: application/msgpack."
    )


def text_in_steps(packed: bytes, schema: str = "") -> Steps:
    """The JSON text of a packed value, a channel of a checkpoint with this schema if there is one.

    Raises:
        InvalidValue: it is no value, cannot be read here, or nests too deep.
        TooLarge: an extension value in it has more than `WHOLE_VALUES_MAX` values inside.
    """
    if len(packed) <= STEP_BYTES:
        return msgspec.json.encode(tagged.to_json(decode_channel(packed, schema)))
    try:
        return (yield from _joined((yield from _text(memoryview(packed), schema, JSON_DEPTH_MAX))))
    except (msgpack.UnpackException, ValueError, IndexError) as reason:
        raise InvalidValue(f"the bytes are not one msgpack value: {reason or type(reason).__name__}.") from None


def _text(packed: memoryview, schema: str, depth_max: int) -> Generator[None, None, _Pieces]:
    walker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(packed))
    walker.feed(packed)
    opened = [_Shown(1, depth_max + 1)]  # A list of the value alone.
    done = 0
    while True:
        inner = opened[-1]
        while not inner.left:
            ended = opened.pop()
            if not opened:
                return ended.texts()
            inner = opened[-1]
            inner.add(*(yield from ended.closed()))
        at, depth = walker.tell(), inner.depth - 1
        first = packed[at]
        weight = 1
        if inner.awaits_key():
            walker.skip()
            weight = _weight(packed[at : walker.tell()])
            inner.name(_whole(packed[at : walker.tell()], schema), weight)
        elif first in LISTS or first in MAPS:
            if depth == 0:
                raise tagged.too_deep()
            is_map = first in MAPS
            opened.append(_Shown(walker.read_map_header() if is_map else walker.read_array_header(), depth, is_map=is_map))
        elif first in EXTENSIONS:
            walker.skip()
            weight = _weight(packed[at : walker.tell()])
            inner.add((yield from _extension(packed[at : walker.tell()], schema, depth)), weight)
        else:
            tree = tagged.tree_of(walker.unpack(), depth)
            weight = 1 + (walker.tell() - at) // _PART_BYTES
            inner.add(tree, weight)
        done += weight
        if done >= STEP_PARTS:
            done = 0
            yield


def _weight(packed: memoryview) -> int:
    """The values that are in one part, at most."""
    return len(packed) if packed[0] in EXTENSIONS else 1 + len(packed) // _PART_BYTES


def _extension(packed: memoryview, schema: str, depth: int) -> Generator[None, None, Any]:
    head = EXTENSIONS[packed[0]]
    tag = None if schema == LANGGRAPH or len(packed) <= STEP_BYTES else _LISTED.get(packed[head - 1])
    if tag is None or packed[head] not in LISTS:
        return tagged.tree_of(_whole(packed, schema), depth)
    yield  # Each of those that nest is read as bytes of its own.
    return _Pieces([b'{"$type":"' + tag + b'","value":', (yield from _text(packed[head:], schema, depth - 1)), b"}"])


# Extensions that hold the list of their elements, a set in the order in which it is shown.
_LISTED = {BY_CLASS[tuple].code: b"tuple", SET_CODE: b"set", FROZENSET_CODE: b"frozenset"}
_NO_KEY = object()


def _whole(packed: memoryview, schema: str) -> Any:
    if len(packed) > STEP_BYTES:
        try:
            Allowance(nodes=WHOLE_VALUES_MAX, bytes=len(packed)).charge_packed(bytes(packed))
        except TooLarge:
            raise _indivisible() from None
    return decode_channel(bytes(packed), schema)


class _Shown:
    """A list or a map that is shown: trees of its last elements, and text of those before."""

    __slots__ = (
        "_elements",
        "_entries",
        "_fresh",
        "_has_names",
        "_is_map",
        "_is_text",
        "_key",
        "_texts",
        "_weight",
        "depth",
        "left",
    )

    def __init__(self, left: int, depth: int, *, is_map: bool = False) -> None:
        self.left = left
        self.depth = depth
        self._is_map = is_map
        self._weight = 0
        self._is_text = False
        self._has_names = True
        self._elements: list[Any] = []
        self._texts = _Pieces()
        self._entries: dict[Any, Any] = {}
        self._key: Any = _NO_KEY  # Of the entry whose value is next.
        self._fresh: list[Any] = []  # The keys of trees.

    def awaits_key(self) -> bool:
        """Whether the next value is a key."""
        return self._is_map and self._key is _NO_KEY

    def name(self, key: Any, weight: int) -> None:
        """Take the key of the next value, of so many values."""
        self._key = key
        self._weight += weight

    def add(self, tree: Any, weight: int) -> None:
        """Take an element, or the value of the entry whose key was met: a tree of so many values, or pieces of text."""
        self.left -= 1
        self._weight += weight
        if self._is_map:
            try:
                self._entries[self._key] = tree
            except TypeError as reason:
                raise InvalidValue(f"this process cannot read the bytes as a value: {reason}.") from None
            self._has_names = self._has_names and type(self._key) is str
            self._fresh.append(self._key)
            self._key = _NO_KEY
        elif type(tree) is _Pieces:
            self._write()
            self._append(tree)
        else:
            self._elements.append(tree)
        if self._weight >= STEP_PARTS or type(tree) is _Pieces:
            self._write()

    def texts(self) -> _Pieces:
        """The elements of a list, as text without brackets."""
        self._write()
        return self._texts

    def closed(self) -> Generator[None, None, tuple[Any, int]]:
        """The whole, as a tree or as pieces of text, and the number of its trees' values."""
        is_object = self._has_names and "$type" not in self._entries
        if not self._is_text:
            tree: Any = self._entries if self._is_map else self._elements
            if self._is_map and not is_object:
                tree = {"$type": "dict", "value": [[self._shown(key), item] for key, item in self._entries.items()]}
            return tree, self._weight + 1
        self._write()
        yield
        if not self._is_map:
            return _Pieces([b"[", self._texts, b"]"]), 1
        pieces, parts, size = _Pieces(), list[Any](), 0
        separator = b"{" if is_object else b'{"$type":"dict","value":['
        for key, text in self._entries.items():
            name = msgspec.json.encode(key if is_object else self._shown(key))
            parts += (separator, name, b":", text) if is_object else (separator, b"[", name, b",", text, b"]")
            separator = b","
            size += len(name) + (len(text) if type(text) is bytes else 0)
            if size > STEP_BYTES or len(parts) > STEP_PARTS:
                pieces.append(_packed_together(parts))
                parts, size = [], 0
                yield
        return _Pieces([pieces, *parts, b"}" if is_object else b"]}"]), 1

    def _shown(self, key: Any) -> Any:
        return tagged.tree_of(key, self.depth - 1)

    def _append(self, text: bytes | _Pieces) -> None:
        self._texts += (b",", text) if self._texts else (text,)

    def _write(self) -> None:
        self._is_text = True
        self._weight = 0
        if self._elements:
            self._append(msgspec.json.encode(self._elements)[1:-1])
            self._elements = []
        for key in self._fresh:
            if type(self._entries[key]) not in (bytes, _Pieces):
                self._entries[key] = msgspec.json.encode(self._entries[key])
        self._fresh = []
