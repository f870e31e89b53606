"""Edit shared types in place to hold the wanted content, by a small change, so that concurrent edits of the rest survive.

Laws:
- Equal content is left alone. Objects become shared maps and lists shared arrays, at every level; a plain one
  that differs becomes shared.
- A map is edited key by key, a text by the runs of characters that differ. In an array equal elements
  stay; objects with an "id" are matched by it; other objects and lists in the place of such ones are edited in place.
- The wanted content is checked before anything is edited: `Editor` refuses it, or all of it can be done.
- XML is edited by `shoal.kinds.document.state.markup`. A new root is never XML: a list is an array.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from itertools import groupby, islice
from math import copysign, isfinite
from typing import Any, NoReturn

import pycrdt

from shoal import values
from shoal.crdt.dot import Origin
from shoal.errors import EngineFailed, InvalidValue, TooLarge
from shoal.kinds.document.shared.doc import Map
from shoal.kinds.document.shared.plain import check_text, fail
from shoal.kinds.document.state import markup
from shoal.kinds.document.state.content import EXACT_INTEGER_MAX, Unbounded, Walk, check_kind, open_root, to_py
from shoal.kinds.document.state.document import RootKind
from shoal.kinds.document.state.live import LiveDocument, merged
from shoal.kinds.document.state.markup import differences, equal, same_id
from shoal.kinds.document.state.yjs import BYTES, CLIENT_ID_BITS, UNREAL, VALUE_DEPTH_MAX
from shoal.names import check_name
from shoal.records import NamedTuple
from shoal.values.work import Allowance

# Values that one request may put, counting nested ones: the engine finds an array's index by walking it, so
# that an array of 10,000 takes 0.6 s and one of 20,000 takes 2 s. Copies count, because they could double at each step.
VALUES_MAX = 10_000
# An object or a list in a list counts as one value more for each so many elements beside it: to put it, and to show it in the
# answer, the engine walks along them.
WALKED_PER_VALUE = 400
PUT_AT_ONCE = 100  # Elements of arrays, in one transaction.

NOTHING: Mapping[RootKind, Any] = {"map": {}, "array": [], "text": "", "xml": []}
"""The content of an empty root."""

_ID = "id"


class Edited(NamedTuple):
    """The update to issue (`EMPTY` if nothing changed), and the roots that it is the first to use."""

    update: bytes
    roots: dict[str, RootKind]


def client_of(origin: Origin, generation: int, author: str) -> int:
    """The Yjs client id under which an origin edits a generation of a document for an author.

    A document keeps an entry for each client that ever edited it, so an edit has no client of its own. That nobody else uses
    this one follows from the origin: no two openings share it, and each holds all operations that it issued.
    """
    digest = hashlib.sha256(b"edit" + origin + generation.to_bytes(4, "big") + author.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - CLIENT_ID_BITS)


Turn = Callable[[], None]
"""Called after an element was put into an array, while nothing but the transaction of the whole edit is open."""


class Transactions:
    """The transactions of one edit. Only at the end of one the engine joins items that were inserted side by side, and it looks
    at all others for each insertion: 10,000 elements took 7 s and 2 GB in one transaction, and take 0.1 s in a hundred.
    """

    def __init__(self, doc: pycrdt.Doc[Any]) -> None:
        self._doc = doc
        self._open = doc.transaction()
        self._put = 0

    def __enter__(self) -> Turn:
        self._open.__enter__()
        return self._turn

    def __exit__(self, *why: Any) -> None:
        self._open.__exit__(*why)

    def _turn(self) -> None:
        self._put += 1
        if self._put % PUT_AT_ONCE == 0:
            self._open.__exit__(None, None, None)
            self._open = self._doc.transaction()
            self._open.__enter__()


def on_copy(document: LiveDocument, edit: Callable[[pycrdt.Doc[Any], Turn], dict[str, RootKind]], *, client_id: int) -> Edited:
    """Run `edit`, which returns the roots that it declares, on a copy of `document`, which stays as it is.

    Nobody else may use `client_id`, and `document` must hold all that was edited under it: see `client_of`.
    """
    doc = document.fork(client_id=client_id)
    updates: list[bytes] = []
    observing = doc.observe(lambda event: updates.append(event.update))
    try:
        with Transactions(doc) as turn:
            declared = edit(doc, turn)
    except EngineFailed:  # It panics if another client put content where it does not belong. The copy is dropped.
        raise InvalidValue(f"the Yjs engine cannot edit this ({doc.broken[:200]}). Nothing was written.") from None
    finally:
        doc.unobserve(observing)  # Or the engine would keep the copy forever.
    return Edited(merged(updates), declared)


def read_json(packed: bytes, what: str) -> Any:
    """Parse JSON without NaN and infinities.

    Raises:
        InvalidValue: it is not JSON; the text names it as `what`.
    """
    try:
        return json.loads(packed, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{what} is not JSON ({error}). Nothing was written.") from None


def read_content(packed: bytes) -> Any:
    """JSON text as the content of a document: plain values; bytes and the like from their tagged form.

    Raises:
        InvalidValue: it is not JSON, or a tagged form is malformed.
    """
    return values.from_json(read_json(packed, "the content"))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class Editor:
    """Edits for one request. It counts the values that it puts, and what it copies, reads and compares."""

    def __init__(self, values_max: int = VALUES_MAX, *, turn: Turn = lambda: None, walk: Walk | None = None) -> None:
        """`walk` counts the steps of the engine. None where nobody else waits for it: they are not counted."""
        self._values_left = values_max
        self._turn = turn
        self.allowance = Allowance()
        self.walk = walk or Unbounded()
        self.told = walk  # None: what the document has had is not known, so each element is asked for.

    def replace(self, doc: pycrdt.Doc[Any], kinds: Mapping[str, RootKind], wanted: Any) -> dict[str, RootKind]:
        """Make a document's content `wanted`, and return the roots that are new. A root that `wanted` lacks is emptied.

        If it raises, nothing was edited.

        Raises:
            InvalidValue: it is no object of objects, arrays and strings that a document can hold.
            InvalidName: a root's name is not legal.
            RootConflict: a root exists as another kind.
            TooLarge: it holds more than `VALUES_MAX` values.
        """
        declared = self.check_content(doc, kinds, wanted)
        for name, kind in {**kinds, **declared}.items():
            self.fill(open_root(doc, name, kind), wanted.get(name, NOTHING[kind]))
        return declared

    def check_content(self, doc: pycrdt.Doc[Any], kinds: Mapping[str, RootKind], wanted: Any) -> dict[str, RootKind]:
        """The new roots in the wanted content. Raises as `replace`."""
        if not isinstance(wanted, dict):
            fail("a document is an object of roots")
        declared: dict[str, RootKind] = {}
        for name, content in wanted.items():
            kind = kind_of(name, content, kinds.get(name))
            if name not in kinds:
                declared[check_name("document root", name)] = kind
            check_kind(name, kind, kinds.get(name, kind))
        left = self._values_left
        for name, content in wanted.items():
            self.check_root(doc, name, kinds.get(name), content)
        self._values_left = left
        return declared

    def check_root(self, doc: pycrdt.Doc[Any], name: str, kind: RootKind | None, wanted: Any) -> None:
        """Check that a root, of this `kind` if it exists, can be given the wanted content. Raises as `check`."""
        if kind == "xml" and not equal(to_py(open_root(doc, name, kind), self.told), wanted):
            markup.normal(wanted, self.count)
        elif kind != "xml":
            self.count(wanted)

    def check(self, value: Any) -> None:
        """Check a value without counting it.

        Raises:
            InvalidValue: a document cannot hold it.
            TooLarge: with the values before it, it is more than `VALUES_MAX` values.
        """
        left = self._values_left
        self.count(value)
        self._values_left = left

    def count(self, value: Any, depth: int = 0) -> None:
        """Check a value, and count it. Raises as `check`."""
        self._spend(1)
        if depth > VALUE_DEPTH_MAX:
            fail(f"a value is nested deeper than {VALUE_DEPTH_MAX}")
        if isinstance(value, list):
            self.spend_beside(len(value), value)
            for item in value:
                self.count(item, depth + 1)
        elif isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                fail("an object's keys must be strings")
            for key, item in value.items():
                check_text(key)
                self.count(item, depth + 1)
        else:
            self.walk.odd |= _check_plain(value)

    def spend_beside(self, length: int, items: list[Any]) -> None:
        """Count what the objects and lists among these items cost in a list of this length. Raises TooLarge, as `check`."""
        if length >= WALKED_PER_VALUE:
            self._spend(length // WALKED_PER_VALUE * sum(isinstance(item, dict | list) for item in items))

    def _spend(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise TooLarge(
                f"it puts more than {VALUES_MAX} values, where an object or a list in a list counts as one more for each "
                f"{WALKED_PER_VALUE} elements beside it; send it in parts. Nothing was written."
            )

    def fill(self, shared: Any, wanted: Any) -> None:
        """Make the content of a shared type `wanted`, which must be of its kind."""
        if isinstance(shared, pycrdt.Text):
            _splice_text(shared, wanted, self.allowance, self.walk)
        elif isinstance(shared, pycrdt.Array):
            self._fill_array(shared, wanted)
        elif isinstance(shared, pycrdt.XmlFragment):
            if not equal(to_py(shared, self.told), wanted):
                markup.fill(shared, markup.normal(wanted, _UNCOUNTED), self.allowance, self.walk)
        else:
            self._fill_map(shared, wanted)

    def put(self, parent: Any, key: Any, wanted: Any) -> None:
        """Make an entry of a map, or an element of an array, `wanted`; in place if possible."""
        if isinstance(key, int):
            self.walk.to_element()
        held = parent[key]
        if _can_be(held, wanted):
            self.fill(held, wanted)
        elif not equal(to_py(held, self.told), wanted):
            self.place(parent, key, wanted)

    def place(self, parent: Any, key: Any, value: Any, *, insert: bool = False) -> None:
        """Put a new value into a map, or into an array in the place of an element; with `insert` before it."""
        grows = _is_long(value)
        # What is long is filled where it is: then others get their turn in between.
        put = ({} if isinstance(value, dict) else []) if grows else value
        self.count(put)
        if isinstance(key, int):
            self.walk.to_element(1 + (not insert) + grows)
            self.walk.listed += 1 + (not insert)
            if not insert:
                del parent[key]
        parent.put_grown(key, put)
        if grows:
            self.fill(parent[key], value)
        elif insert:
            self._turn()

    def _insert_all(self, array: Any, index: int, wanted: list[Any]) -> None:
        """Insert elements before the one at an index. Runs of plain ones are put in without asking for each place."""
        for is_grown, run in groupby(wanted, lambda item: isinstance(item, dict | list)):
            if is_grown:
                for item in run:
                    self.place(array, index, item, insert=True)
                    index += 1
                continue
            while chunk := list(islice(run, PUT_AT_ONCE)):
                for item in chunk:
                    self.count(item)
                self.walk.to_element(len(chunk))
                array.insert_plain(index, chunk)
                index += len(chunk)
                for _ in chunk:
                    self._turn()

    def _fill_map(self, entries: Map, wanted: dict[str, Any]) -> None:
        for key in [key for key in entries.keys() if key not in wanted]:  # noqa: SIM118
            del entries[key]
        held = set(entries.keys())
        known, plain = entries.plain_of(held), dict[str, Any]()
        for key, value in wanted.items():
            if not isinstance(value, dict | list) and (key in known or key not in held):
                if key not in known or not equal(to_py(known[key]), value):
                    self.count(value)
                    plain[check_text(key)] = value
                continue
            entries.put_plain(plain)  # In the order of the keys: equal beginnings are made by equal edits.
            plain.clear()
            if key in held:
                self.put(entries, key, value)
            else:
                self.place(entries, check_text(key), value)
        entries.put_plain(plain)

    def _fill_array(self, array: pycrdt.Array[Any], wanted: list[Any]) -> None:
        if not len(array):
            self._insert_all(array, 0, wanted)
            return
        held = to_py(array, self.told)
        old, new = ([_mark(item) for item in items] for items in (held, to_py(wanted)))
        # From the end, so that the elements before keep their places.
        for start, stop, first, last in reversed(differences(old, new, self.allowance)):
            paired = 0
            while paired < min(stop - start, last - first) and self._can_become(array, start + paired, wanted[first + paired]):
                paired += 1
            if start + paired < stop:
                self.walk.to_element()
                del array[start + paired : stop]
            self._insert_all(array, start + paired, wanted[first + paired : last])
            for offset in range(paired):
                self.put(array, start + offset, wanted[first + offset])
            held[start:stop] = wanted[first:last]
        for index, item in enumerate(wanted):
            if isinstance(item, dict | list) and not equal(held[index], item):
                self.put(array, index, item)

    def _can_become(self, array: pycrdt.Array[Any], index: int, wanted: Any) -> bool:
        self.walk.to_element()
        return _can_be(array[index], wanted)


# For values that were checked before.
_UNCOUNTED = Editor(sys.maxsize).count


def _is_long(value: Any) -> bool:
    """Whether a list within it has more elements than are put at once."""
    if isinstance(value, dict):
        return any(map(_is_long, value.values()))
    return isinstance(value, list) and (len(value) > PUT_AT_ONCE or any(map(_is_long, value)))


def _can_be(held: Any, wanted: Any) -> bool:
    """Whether the held value can be edited into the wanted one."""
    return (
        (isinstance(held, pycrdt.Text) and isinstance(wanted, str))
        or (isinstance(held, pycrdt.Array) and isinstance(wanted, list))
        or (isinstance(held, pycrdt.XmlFragment) and _is_xml(wanted))
        or (isinstance(held, pycrdt.Map) and isinstance(wanted, dict) and same_id(to_py(held.get(_ID)), wanted.get(_ID)))
    )


def _is_xml(wanted: Any) -> bool:
    try:
        markup.normal(wanted, _UNCOUNTED)
    except InvalidValue:
        return False
    return True


_written = json.JSONEncoder(sort_keys=True, default=repr).encode  # `json.dumps` would make one for each element.


def _mark(item: Any) -> str:
    """Equal for elements that are equal, or that are to be edited into each other."""
    if isinstance(item, dict) and isinstance(item.get(_ID), str | int):
        return f"id {item[_ID]!r}"
    return _written(item)


def _splice_text(text: pycrdt.Text, wanted: str, allowance: Allowance, walk: Walk) -> None:
    """Edit a text where it differs. Objects that are embedded in it stay.

    Raises:
        InvalidValue: `wanted` holds a lone surrogate.
    """
    held = str(text)
    check_text(wanted)
    places = _places(text)
    for start, stop, first, last in reversed(differences(held, wanted, allowance)):
        at = places[start] if start < len(held) else len(text)
        for index in reversed(range(start, stop)):
            if index + 1 == stop or places[index] + 1 != places[index + 1]:
                end = places[index] + 1
            if index == start or places[index - 1] + 1 != places[index]:
                walk.to_place()
                walk.written += 1
                del text[places[index] : end]
        if first < last:
            walk.to_place()
            walk.written += 2
            text.insert(at, wanted[first:last])


def _places(text: pycrdt.Text) -> list[int]:
    """The position of each character: each embedded object takes one, too."""
    places: list[int] = []
    at = 0
    for chunk, _ in text.diff():
        size = len(chunk) if isinstance(chunk, str) else 1
        if isinstance(chunk, str):
            places += range(at, at + size)
        at += size
    return places


def kind_of(name: Any, value: Any, known: RootKind | None = None) -> RootKind:
    """The kind of a root for `value`, or its `known` kind if it exists. `name` is for the message.

    Raises:
        InvalidValue: no root can hold the value.
    """
    if known == "xml" and isinstance(value, list):
        return known
    kinds: dict[type[Any], RootKind] = {dict: "map", list: "array", str: "text"}
    return kinds.get(type(value)) or fail(
        f"the root {str(name)[:80]!a} is {value!a:.40}; a root is an object (a map), an array or a string (a text). "
        'Put a single value into one, as in {"settings": {"flag": True}}'
    )


def _check_plain(value: Any) -> int:
    """Returns whether the engine's JSON tells it: as `Walk.odd`."""
    if type(value) is int and -EXACT_INTEGER_MAX <= value <= EXACT_INTEGER_MAX:
        return 0  # Of many values most are such, or texts.
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, int) and abs(value) > EXACT_INTEGER_MAX:
        fail("an integer past ±(2⁵³ − 1) would be rounded; store it as a string")
    elif value is not None and not isinstance(value, bool | int | float | bytes):
        fail(f"a document cannot hold a value of type {type(value).__name__}")
    if isinstance(value, float) and (not isfinite(value) or (value == 0 and copysign(1, value) < 0)):
        return UNREAL
    return BYTES if isinstance(value, bytes) else 0
