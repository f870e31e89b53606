"""Edit shared types in place, until they hold what is wanted, by a small change: so that concurrent edits of the rest survive.

Laws:
- What is equal is left alone. Objects become shared maps and lists shared arrays, at every level; a plain one
  that differs becomes shared.
- A map is edited key by key. A text by the runs of characters that differ. Of an array those elements
  stay that are equal; objects with an "id" are matched by it, other objects and lists that stand where another stood
  are edited in place.
- What is wanted is checked before anything is edited: `Editor` refuses it, or all of it can be done.

Finding the least change takes time that grows with the square of what differs: past a bound all that lies
between the first and the last difference is replaced as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple, NoReturn

import pycrdt

from shoal import values
from shoal.crdt.document import RootKind
from shoal.crdt.live import EMPTY, EXACT_INTEGER_MAX, LiveDocument, check_kind, open_root, to_py
from shoal.crdt.yjs import VALUE_DEPTH_MAX
from shoal.errors import InvalidValue, TooLarge
from shoal.names import check_name

# Values that one request may put, nested ones counted: the engine finds an array's index by walking it, so
# that an array of 10,000 takes 0.6 s and one of 20,000 takes 2 s. Copies count, for they could double at each step.
VALUES_MAX = 10_000

# The product of the lengths of two pieces of which the least difference is sought: some tens of milliseconds.
MATCHED_MAX = 1 << 20
_ID = "id"


class Edited(NamedTuple):
    """What to issue: a Yjs update (`EMPTY` if nothing changed), and the roots that it is the first to use."""

    update: bytes
    roots: dict[str, RootKind]


def on_copy(document: LiveDocument, edit: Callable[[pycrdt.Doc[Any]], dict[str, RootKind]], *, client_id: int) -> Edited:
    """What `edit`, which returns the roots that it declares, makes of `document`, which stays as it is.

    `client_id` must never have been used before.
    """
    doc = document.fork(client_id=client_id)
    updates: list[bytes] = []
    observing = doc.observe(lambda event: updates.append(event.update))
    try:
        with doc.transaction():
            declared = edit(doc)
    finally:
        doc.unobserve(observing)  # Or the engine would keep the copy for ever.
    return Edited(updates[0] if updates else EMPTY, declared)


def read_json(packed: bytes, what: str) -> Any:
    """
    Raises:
        InvalidValue: it is not JSON; `what` it is says the text.
    """
    try:
        return json.loads(packed, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{what} is not JSON ({error}). Nothing was written.") from None


def read_content(packed: bytes) -> Any:
    """JSON text as what a document is to hold: plain values, with bytes and the like from their tagged form.

    Raises:
        InvalidValue: it is not JSON, or holds what is no value.
    """
    return values.from_json(read_json(packed, "the content"))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class Editor:
    """For one request: it counts what it puts."""

    def __init__(self, values_max: int = VALUES_MAX) -> None:
        self._values_left = values_max

    def replace(self, doc: pycrdt.Doc[Any], kinds: Mapping[str, RootKind], wanted: Any) -> dict[str, RootKind]:
        """Make a document's content `wanted`, and return the roots that are new. A root that is not in it is emptied.

        Raises:
            InvalidValue: it is no object of objects, arrays and strings that a document can hold. Nothing was edited.
            InvalidName: a root's name is not legal. Likewise.
            RootConflict: a root exists as another kind. Likewise.
            TooLarge: it holds more than `VALUES_MAX` values. Likewise.
        """
        declared = self.check_content(kinds, wanted)
        for name, kind in {**kinds, **declared}.items():
            self.fill(open_root(doc, name, kind), wanted.get(name, {"map": {}, "array": [], "text": ""}[kind]))
        return declared

    def check_content(self, kinds: Mapping[str, RootKind], wanted: Any) -> dict[str, RootKind]:
        """The roots that are new in what is wanted. Raises as `replace`."""
        if not isinstance(wanted, dict):
            fail("a document is an object of roots")
        declared: dict[str, RootKind] = {}
        for name, content in wanted.items():
            kind = kind_of(content)
            if name not in kinds:
                declared[check_name("document root", name)] = kind
            check_kind(name, kind, kinds.get(name, kind))
        self.check(wanted)
        return declared

    def check(self, value: Any) -> None:
        """
        Raises:
            InvalidValue: it is nothing that a document can hold.
            TooLarge: with what was put before it holds more than `VALUES_MAX` values.
        """
        left = self._values_left
        self.shared(value)
        self._values_left = left

    def shared(self, value: Any, depth: int = 0) -> Any:
        """`value` ready to be put into a document: objects and arrays as shared types. Raises as `check`."""
        self._values_left -= 1
        if self._values_left < 0:
            raise TooLarge(f"it puts more than {VALUES_MAX} values; send it in parts. Nothing was written.")
        if depth > VALUE_DEPTH_MAX:
            fail(f"a value is nested deeper than {VALUE_DEPTH_MAX}")
        if isinstance(value, list):
            return pycrdt.Array([self.shared(item, depth + 1) for item in value])
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                fail("an object's keys must be strings")
            return pycrdt.Map({check_text(key): self.shared(item, depth + 1) for key, item in value.items()})
        _check_plain(value)
        return value

    def fill(self, shared: Any, wanted: Any) -> None:
        """Make the content of a shared type `wanted`, which is of its kind."""
        if isinstance(shared, pycrdt.Text):
            splice_text(shared, wanted)
        elif isinstance(shared, pycrdt.Array):
            self._fill_array(shared, wanted)
        else:
            self._fill_map(shared, wanted)

    def put(self, parent: Any, key: Any, wanted: Any) -> None:
        """Make an entry of a map, or an element of an array, `wanted`: in place if it can be."""
        held = parent[key]
        if _can_be(held, wanted):
            self.fill(held, wanted)
        elif not equal(to_py(held), wanted):
            parent[key] = self.shared(wanted)

    def _fill_map(self, entries: pycrdt.Map[Any], wanted: dict[str, Any]) -> None:
        for key in [key for key in entries.keys() if key not in wanted]:  # noqa: SIM118
            del entries[key]
        for key, value in wanted.items():
            if key in entries:
                self.put(entries, key, value)
            else:
                entries[check_text(key)] = self.shared(value)

    def _fill_array(self, array: pycrdt.Array[Any], wanted: list[Any]) -> None:
        old, new = ([_mark(item) for item in to_py(items)] for items in (array, wanted))
        # From the end, so that what comes before stays where it is.
        for start, stop, first, last in reversed(_differences(old, new)):
            paired = 0
            while paired < min(stop - start, last - first) and _can_be(array[start + paired], wanted[first + paired]):
                paired += 1
            if start + paired < stop:
                del array[start + paired : stop]
            for index, item in enumerate(wanted[first + paired : last], start + paired):
                array.insert(index, self.shared(item))
            for offset in range(paired):
                self.put(array, start + offset, wanted[first + offset])
        for index, item in enumerate(wanted):
            if isinstance(item, dict | list):
                self.put(array, index, item)


def _can_be(held: Any, wanted: Any) -> bool:
    """Whether what is held can be edited until it is `wanted`."""
    return (
        (isinstance(held, pycrdt.Text) and isinstance(wanted, str))
        or (isinstance(held, pycrdt.Array) and isinstance(wanted, list))
        or (isinstance(held, pycrdt.Map) and isinstance(wanted, dict) and _same_id(to_py(held.get(_ID)), wanted.get(_ID)))
    )


def _same_id(held: Any, wanted: Any) -> bool:
    return held is None or wanted is None or equal(held, wanted)


def _mark(item: Any) -> str:
    """Equal for elements that are the same, or are to be made the same."""
    if isinstance(item, dict) and isinstance(item.get(_ID), str | int):
        return f"id {item[_ID]!r}"
    return json.dumps(item, sort_keys=True, default=repr)


def _differences(held: Sequence[Any], wanted: Sequence[Any]) -> list[tuple[int, int, int, int]]:
    """Where two sequences differ: `held[start:stop]` is `wanted[first:last]`, in order."""
    before, after = common(held, wanted)
    old, new = held[before : len(held) - after], wanted[before : len(wanted) - after]
    if not old and not new:
        return []
    if len(old) * len(new) > MATCHED_MAX:
        return [(before, before + len(old), before, before + len(new))]
    matched = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [
        (before + start, before + stop, before + first, before + last)
        for tag, start, stop, first, last in matched
        if tag != "equal"
    ]


def splice_text(text: pycrdt.Text, wanted: str) -> None:
    """Edit a text where it differs.

    Raises:
        InvalidValue: it holds a lone surrogate.
    """
    held = str(text)
    check_text(wanted)
    # The engine counts UTF-8 bytes, and an index within a character destroys what is around it.
    for start, stop, first, last in reversed(_differences(held, wanted)):
        at = len(held[:start].encode())
        if start < stop:
            del text[at : at + len(held[start:stop].encode())]
        if first < last:
            text.insert(at, wanted[first:last])


def common(held: Sequence[Any], wanted: Sequence[Any]) -> tuple[int, int]:
    """How many items two sequences share at their beginning, and at their end besides."""
    most = min(len(held), len(wanted))
    before = next((i for i in range(most) if held[i] != wanted[i]), most)
    most -= before
    after = next((i for i in range(most) if held[-1 - i] != wanted[-1 - i]), most)
    return before, after


def equal(one: Any, other: Any) -> bool:
    """Equality of JSON: numbers by value, true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def kind_of(value: Any) -> RootKind:
    """
    Raises:
        InvalidValue: it can be no root.
    """
    kinds: dict[type[Any], RootKind] = {dict: "map", list: "array", str: "text"}
    return kinds.get(type(value)) or fail("a root is an object, an array or a string")


def check_text(text: str) -> str:
    """
    Raises:
        InvalidValue: it holds a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        fail("a key or a string holds a lone surrogate")
    return text


def _check_plain(value: Any) -> None:
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, int) and abs(value) > EXACT_INTEGER_MAX:
        fail("an integer past ±(2⁵³ − 1) would be rounded; store it as a string")
    elif value is not None and not isinstance(value, bool | int | float | bytes):
        fail(f"a document cannot hold a {type(value).__name__}")


def fail(why: str) -> NoReturn:
    raise InvalidValue(why)
