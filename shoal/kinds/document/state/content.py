"""The content of a document's roots as plain values, and a plain copy that follows each change.

    map              a dict, keys in order
    array            a list
    text             a string; formats and embedded objects are not shown (pycrdt's `Text.diff` tells them)
    XML fragment     a list of nodes
    XML element      {"tag": "p", "attributes": {…}, "children": [nodes]}
    XML text         a string if it is only characters, else {"text": [runs], "attributes": {…}}

A run is {"insert": characters or an embedded object, "attributes": {formats, if any}}, as in Quill's deltas; for an
embedded shared type it is {"shared": its plain form} instead. A fragment within XML is {"children": [nodes]}.

Laws:
- Equal content is shown alike on every replica: adjoining runs of equal formats are joined.
- All XML is shown, with one ambiguity: an embedded bare string looks like characters.
- Numbers are floats to the engine: an integral one within ±(2⁵³ − 1) is shown as an integer.
- What a node shows takes no more steps of the engine than `Walk` has: lists that would are refused.
- A list is read as JSON, which the engine writes in one go; elements that JSON does not tell are asked for one by one.

A plain copy of a document's root that follows the engine's events and tells what each of them changed.

Laws:
- After a transaction's events the copy is equal to `to_py` of the root itself.
- The differences, applied one after the other to the content before, give the content
  after: an index is valid when its difference is applied.
- The cost grows with the change; for a text also with the text, by one copy of its bytes.
- In XML a path leads through the shown form: (root, 0, "children", 2, "attributes", "level"). An XML text that is more than
  characters, before or after, is "set" as a whole.

The copy is needed because the engine tells how many elements or characters were deleted, but not which.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec
import pycrdt
from pycrdt._pycrdt import Array as EngineArray
from pycrdt._pycrdt import Map as EngineMap

from shoal.errors import InvalidValue, RootConflict, TooLarge
from shoal.kinds.document.shared.doc import Array, Map
from shoal.kinds.document.shared.positions import EMBEDDED, characters, packed
from shoal.kinds.document.shared.texts import Text, XmlFragment
from shoal.kinds.document.state.untold import settled
from shoal.kinds.document.state.yjs import BYTES, UNREAL, XML, RootKind
from shoal.records import NamedTuple

EXACT_INTEGER_MAX = 2**53 - 1

# The engine finds an element by walking along all items before it, some 5 to 10 ns each: 25 to 50 ms.
WALKED_MAX = 5_000_000
_ASKED_MAX = 4096  # Steps for a whole list that is read element by element without looking at its JSON first.

_PLAIN = frozenset({str, int, float, bool, type(None)})  # Most values are.
_READ_AS_TEXT = 16  # Bytes of JSON that take as long as a step.

_KINDS: dict[RootKind, type[Any]] = {
    "map": Map,
    "array": Array,
    "text": Text,
    "xml": XmlFragment,
}

Xml = pycrdt.XmlFragment | pycrdt.XmlElement | pycrdt.XmlText


def open_root(doc: pycrdt.Doc[Any], name: str, kind: RootKind) -> Any:
    """The shared type behind a root: a Map, Array, Text or XmlFragment of `shoal.crdt.document.shared`."""
    return doc.get(name, type=_KINDS[kind])


def check_kind(name: str, kind: str, declared: str) -> None:
    """Check the kind that a root is to have against the declared one.

    Raises:
        InvalidValue: `kind` is none.
        RootConflict: the root was declared as another kind.
    """
    if kind not in _KINDS:
        raise InvalidValue(
            f"the root {name[:80]!r} has the kind {kind!r}; it must be map, array, text or xml. Nothing was written."
        )
    if kind != declared:
        raise RootConflict(f"the root {name[:80]!r} is of kind {declared}, not {kind}. Nothing was written.", declared=declared)


class Walk:
    """The steps of the engine that are left to whoever shows or edits a document, and what each walk takes.

    `listed` and `written` are the most items of one list, and of one text; `odd` is that of `Parsed`.
    """

    __slots__ = ("left", "listed", "odd", "written")

    def __init__(self, listed: int = 0, written: int = 0, odd: int = 0) -> None:
        self.left = WALKED_MAX
        self.listed, self.written, self.odd = listed, written, odd

    def spend(self, steps: int) -> None:
        """Take these steps.

        Raises:
            TooLarge: there are not so many left.
        """
        self.left -= steps
        if self.left < 0:
            raise TooLarge(
                "this takes too many steps in lists or texts of the document that have very many parts: objects, bytes, or what"
                " was put in between or deleted one by one. Nothing was written. Ask for less at once, or keep the content in "
                "several lists, or in an object by ids. A mirror or a Yjs client can still open the document."
            )

    def to_element(self, times: int = 1) -> None:
        """Go to so many elements of lists. Raises as `spend`."""
        self.spend(times * self.listed)

    def to_place(self, times: int = 1) -> None:
        """Go to so many places of texts. Raises as `spend`."""
        self.spend(times * self.written)


class Unbounded(Walk):
    """Steps where nobody else waits for them."""

    __slots__ = ()

    def spend(self, steps: int) -> None:
        """Take these steps."""


def to_py(value: Any, walk: Walk | None = None) -> Any:
    """A shared type or a value that pycrdt returned, as plain Python.

    Raises:
        TooLarge: a `walk` was given, and it has too few steps.
    """
    if isinstance(value, str) or value is None or (type(value) is int and -EXACT_INTEGER_MAX <= value <= EXACT_INTEGER_MAX):
        return value
    if isinstance(value, float | int) and not isinstance(value, bool):
        return int(value) if _is_integer(float(value)) else float(value)
    if isinstance(value, pycrdt.Text):
        return str(value)
    if isinstance(value, Array | Map) and value.is_integrated:
        with value.doc.transaction() as transaction:
            return _engine_to_py(value.integrated, transaction._txn, value._maybe_as_type_or_doc, walk)
    if isinstance(value, pycrdt.Array | list):
        items = []
        for item in value:  # No comprehension: each would be one more frame per level.
            items.append(to_py(item, walk))  # noqa: PERF401
        return items
    if isinstance(value, dict):
        entries = {}
        for key in sorted(value):
            entries[key] = to_py(value[key], walk)
        return entries
    if isinstance(value, pycrdt.Map):
        entries = {}
        for key, item in sorted_entries(value):
            entries[key] = to_py(item, walk)
        return entries
    if isinstance(value, Xml):
        return _xml_to_py(value, walk)
    return bytes(value) if isinstance(value, bytearray) else value


def _engine_to_py(found: Any, inner: Any, typed: Callable[[Any], Any], walk: Walk | None) -> Any:
    """An object of the engine, within one transaction, as plain Python: none of pycrdt is made for each array and map in it."""
    if walk is not None and not walk.odd and isinstance(found, EngineArray | EngineMap):
        return to_py(_read(found, inner, walk))
    if isinstance(found, EngineArray):
        count = found.len(inner)
        told: list[Any] | None = None
        if walk is not None:
            if count * walk.listed > _ASKED_MAX:
                told = _read(found, inner, walk)
            else:
                walk.to_element(count)
        items = []
        for index in range(count):
            if told is not None and walk is not None:
                if _is_told(told[index], walk.odd):
                    items.append(to_py(told[index]))
                    continue
                walk.to_element()
            items.append(_engine_to_py(found.get(inner, index), inner, typed, walk))
        return items
    if isinstance(found, EngineMap):
        entries = {}
        for key in sorted(found.keys(inner)):  # type: ignore[attr-defined]
            if found.has(inner, key):  # As in `sorted_entries`.
                with suppress(KeyError):
                    entries[key] = _engine_to_py(found.get(inner, key), inner, typed, walk)
        return entries
    return to_py(found if type(found) in _PLAIN else typed(found), walk)


def _read(found: Any, inner: Any, walk: Walk) -> Any:
    """An array or a map as the engine's JSON tells it."""
    text = found.to_json(inner)
    walk.spend(walk.listed + len(text) // _READ_AS_TEXT if walk.odd else 0)  # Of what is within others it is read again.
    return msgspec.json.decode(text)


def _is_told(told: Any, odd: int) -> bool:
    """Whether JSON says all of a value in a document with such odd content."""
    waiting = [told]
    while waiting:
        value = waiting.pop()
        if value is None or (value == 0 and isinstance(value, int | float) and not isinstance(value, bool)):
            if odd & UNREAL:
                return False
        elif isinstance(value, str):
            if odd & XML:
                return False
        elif isinstance(value, list):
            if odd & BYTES and all(type(each) is int and 0 <= each < 256 for each in value):
                return False
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
    return True


def sorted_entries(value: Any) -> Iterator[tuple[str, Any]]:
    """A map's entries, keys in order. A key to which another client gave a mere format has no value, and is left out."""
    for key in sorted(value.keys()):
        with suppress(KeyError):
            yield key, value[key]


def _xml_to_py(node: Any, walk: Walk | None) -> Any:
    if isinstance(node, pycrdt.XmlText):
        return shown_text(runs_of(node, walk), attributes_of(node, walk))
    children = [within(to_py(child, walk)) for child in children_of(node)]
    if isinstance(node, pycrdt.XmlFragment):
        return children
    return {"tag": node.tag or "", "attributes": attributes_of(node, walk), "children": children}


def children_of(node: Any) -> list[Any]:
    """The nodes in a node of XML, which the engine finds along each other."""
    with node.doc.transaction() as transaction:
        found = node.integrated.children(transaction._txn)
    return [node._maybe_as_type_or_doc(each) for each in found]


def within(shown: Any) -> Any:
    """A node as it is shown among the children of another: a fragment is {"children": …} there, not a list."""
    return {"children": shown} if isinstance(shown, list) else shown


def attributes_of(node: Any, walk: Walk | None = None) -> dict[str, Any]:
    """The attributes of an XML element or text, keys in order."""
    # For an attribute that is a shared type pycrdt returns the bare engine's object.
    return {key: to_py(node._maybe_as_type_or_doc(value), walk) for key, value in sorted(node.attributes, key=_first)}


def runs_of(text: Any, walk: Walk | None = None) -> list[dict[str, Any]]:
    """The runs of an XML text."""
    runs: list[dict[str, Any]] = []
    for chunk, formats in text.diff():
        shared = isinstance(chunk, pycrdt.Map | pycrdt.Array | pycrdt.Text | Xml)
        run: dict[str, Any] = {"shared" if shared else "insert": to_py(settled(chunk), walk)}
        if formats:
            run["attributes"] = to_py(settled(formats))
        append_run(runs, run)
    return runs


def append_run(runs: list[dict[str, Any]], run: dict[str, Any]) -> None:
    """Add a run, or join it with the last one if both are characters of equal formats."""
    if runs and _is_written(run) and _is_written(runs[-1]) and runs[-1].get("attributes") == run.get("attributes"):
        runs[-1]["insert"] += run["insert"]
    else:
        runs.append(run)


def _is_written(run: dict[str, Any]) -> bool:
    return isinstance(run.get("insert"), str)


def shown_text(runs: list[dict[str, Any]], attributes: dict[str, Any]) -> Any:
    """An XML text as it is shown: a string if it is only characters."""
    if attributes or any("attributes" in run or not _is_written(run) for run in runs):
        return {"text": runs, "attributes": attributes}
    return "".join(run["insert"] for run in runs)


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _is_integer(value: float) -> bool:
    # −0.0 is integral too, but an integer has no sign to keep.
    return value.is_integer() and abs(value) <= EXACT_INTEGER_MAX and (value != 0.0 or str(value) == "0.0")


DifferenceKind = Literal["add", "set", "delete", "insert"]


class Difference(NamedTuple):
    """One change in one place.

    `set` of an XML text, or of a root that holds content of another kind: the path leads to it. Otherwise:
    `add`, `set` and `delete` of a map's key, which ends the path: `old` and `new` are its values (None if there was
    none). `insert` and `delete` in an array or a text: the path ends with the index, which in a text counts characters;
    `new` or `old` is the list, or the string, that was inserted or deleted.
    """

    kind: DifferenceKind
    path: tuple[str | int, ...]
    old: Any
    new: Any


class _Node:
    """A copy of an XML element or fragment. A fragment has no tag."""

    __slots__ = ("attributes", "children", "listed", "tag")

    def __init__(self, node: Any, *, listed: bool) -> None:
        self.tag = None if isinstance(node, pycrdt.XmlFragment) else node.tag
        self.attributes = {} if isinstance(node, pycrdt.XmlFragment) else attributes_of(node)
        self.children = [_copied(child, within=True) for child in node.children]
        self.listed = listed  # Shown as a list.

    def shown(self) -> Any:
        children = [_shown(child) for child in self.children]
        if self.listed:
            return children
        if self.tag is None:
            return {"children": children}
        return {
            "tag": self.tag,
            "attributes": {key: self.attributes[key] for key in sorted(self.attributes)},
            "children": children,
        }


class _Characters:
    """A copy of an XML text, as it is shown."""

    __slots__ = ("plain",)

    def __init__(self, text: Any) -> None:
        self.plain = to_py(text)


class _Astray(Exception):
    """The events do not lead through the shown content: another client put content there that does not belong."""


class DiffMirror:
    """Mirrors the root `name`, whose shared type is `shared`. It holds only a weak reference to that."""

    def __init__(self, name: str, shared: Any) -> None:
        self._name = name
        self._root = weakref.ref(shared)
        self._copy = _copied(shared)

    def to_py(self) -> Any:
        """The copy as plain values, equal to `to_py` of the root."""
        return _shown(self._copy)

    def follow(self, events: Sequence[Any]) -> list[Difference]:
        """Apply one transaction's events, of the root and everything within it, and return the changes."""
        found: list[Difference] = []
        try:
            # Outer events first: a new value is copied with everything within it.
            for event in sorted(events, key=lambda event: len(event.path)):
                found += self._follow(event)
        except _Astray:
            return self._taken_anew(found)
        return found

    def _follow(self, event: Any) -> list[Difference]:
        inside, live = self._copy, self._root()
        path: tuple[str | int, ...] = (self._name,)
        for step in event.path:
            if isinstance(inside, bytearray):
                return []  # Objects embedded in a text are not shown.
            if isinstance(inside, _Characters):
                return _follow_characters(inside, path, live, [])
            inside, live, path = _entered(inside, live, path, step)
        if isinstance(event, pycrdt.MapEvent):
            return _follow_map(inside, path, event.keys)  # type: ignore[attr-defined]
        if isinstance(inside, list):
            return _follow_list(inside, path, event.delta)
        if isinstance(inside, _Node):
            return _follow_node(inside, path, event)
        if isinstance(inside, _Characters):
            return _follow_characters(inside, path, event.target, event.delta)
        return _follow_text(inside, path, event.delta)

    def _taken_anew(self, found: list[Difference]) -> list[Difference]:
        before = self.to_py()
        self._copy = _copied(self._root())
        return [*found, Difference("set", (self._name,), before, self.to_py())]


def _entered(inside: Any, live: Any, path: tuple[str | int, ...], step: Any) -> tuple[Any, Any, tuple[str | int, ...]]:
    """The copy at a step of an event's path, the shared type itself, and the path at which it is shown."""
    try:
        if not isinstance(inside, _Node):
            return inside[step], live[step], (*path, step)
        # If other content is among the nodes, the engine's indices differ, and it panics at them.
        if isinstance(step, int) and len(inside.children) == len(live.children):
            at = (*path, step) if inside.listed else (*path, "children", step)
            return inside.children[step], live.children[step], at
    except (KeyError, IndexError):
        pass
    # An attribute that is a shared type is copied as plain values.
    raise _Astray


def _follow_map(entries: dict[str, Any], path: tuple[str | int, ...], keys: dict[str, Any]) -> list[Difference]:
    found: list[Difference] = []
    for key in sorted(keys):
        there, old = key in entries, _shown(entries.get(key))
        if keys[key]["action"] == "delete":
            entries.pop(key, None)
            if there:
                found.append(Difference("delete", (*path, key), old, None))
            continue
        entries[key] = _copied(keys[key]["newValue"])
        found.append(Difference("set" if there else "add", (*path, key), old, _shown(entries[key])))
    return found


def _follow_list(
    items: list[Any], path: tuple[str | int, ...], delta: list[dict[str, Any]], *, within: bool = False
) -> list[Difference]:
    found: list[Difference] = []
    at = 0
    for step in delta:
        if "retain" in step:
            at += step["retain"]
        elif "delete" in step:
            gone = items[at : at + step["delete"]]
            del items[at : at + step["delete"]]
            found.append(Difference("delete", (*path, at), [_shown(item) for item in gone], None))
        else:
            new = [_copied(item, within=within) for item in step["insert"]]
            items[at:at] = new
            found.append(Difference("insert", (*path, at), None, [_shown(item) for item in new]))
            at += len(new)
    return found


def _follow_node(node: _Node, path: tuple[str | int, ...], event: Any) -> list[Difference]:
    found: list[Difference] = []
    if not isinstance(event.target, pycrdt.XmlElement | pycrdt.XmlFragment):
        raise _Astray
    inserted = [item for step in event.delta for item in step.get("insert", ())]
    if getattr(event.target, "tag", None) != node.tag or not all(isinstance(item, Xml) for item in inserted):
        raise _Astray
    if node.tag is not None and event.keys:
        keys = {key: _attribute(event.target, event.keys[key]) for key in event.keys}
        found += _follow_map(node.attributes, (*path, "attributes"), keys)
    found += _follow_list(node.children, path if node.listed else (*path, "children"), event.delta, within=True)
    if len(node.children) != len(event.target.children):
        raise _Astray
    return found


def _attribute(element: Any, change: dict[str, Any]) -> dict[str, Any]:
    """A change in the form of a map's key. For a shared type the engine gives the bare object."""
    if change["action"] == "delete":
        return change
    return {**change, "newValue": to_py(element._maybe_as_type_or_doc(change["newValue"]))}


def _follow_characters(
    text: _Characters, path: tuple[str | int, ...], live: Any, delta: list[dict[str, Any]]
) -> list[Difference]:
    before, after = text.plain, to_py(live)
    text.plain = after
    if before == after:
        return []
    if isinstance(before, str) and isinstance(after, str) and delta:
        return _follow_text(bytearray(before.encode()), path, delta)
    return [Difference("set", path, before, after)]


def _follow_text(text: bytearray, path: tuple[str | int, ...], delta: list[dict[str, Any]]) -> list[Difference]:
    found: list[Difference] = []
    at = 0
    for step in delta:
        if "retain" in step:
            at += step["retain"]
        elif "delete" in step:
            gone = text[at : at + step["delete"]]
            del text[at : at + step["delete"]]
            found.append(Difference("delete", (*path, characters(text[:at])), _decoded(gone), None))
        else:
            new = packed([step["insert"]])
            text[at:at] = new
            found.append(Difference("insert", (*path, characters(text[:at])), None, _decoded(new)))
            at += len(new)
    return found


def _copied(value: Any, *, within: bool = False) -> Any:
    if isinstance(value, pycrdt.Text):
        return bytearray(packed(chunk for chunk, _ in value.diff()))
    if isinstance(value, pycrdt.Map):
        return {key: _copied(item) for key, item in sorted_entries(value)}
    if isinstance(value, pycrdt.Array):
        return [_copied(item) for item in value]
    if isinstance(value, pycrdt.XmlText):
        return _Characters(value)
    if isinstance(value, pycrdt.XmlElement | pycrdt.XmlFragment):
        return _Node(value, listed=not within and isinstance(value, pycrdt.XmlFragment))
    return to_py(value)


def _shown(copy: Any) -> Any:
    if isinstance(copy, _Node):
        return copy.shown()
    if isinstance(copy, _Characters):
        return copy.plain
    if isinstance(copy, bytearray):
        return _decoded(copy)
    if isinstance(copy, dict):
        return {key: _shown(copy[key]) for key in sorted(copy)}
    if isinstance(copy, list):
        return [_shown(item) for item in copy]
    return copy


def _decoded(text: bytes | bytearray) -> str:
    return text.replace(EMBEDDED, b"").decode()
