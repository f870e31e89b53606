"""The content of a document's roots, as plain values.

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
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pycrdt

from shoal.errors import InvalidValue, RootConflict
from shoal.kinds.document.shared.containers import Array, Map
from shoal.kinds.document.shared.texts import Text
from shoal.kinds.document.shared.xml import XmlFragment
from shoal.kinds.document.state.yjs import RootKind

EXACT_INTEGER_MAX = 2**53 - 1

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


def to_py(value: Any) -> Any:
    """A shared type or a value that pycrdt returned, as plain Python."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return int(value) if _is_integer(float(value)) else float(value)
    if isinstance(value, pycrdt.Text):
        return str(value)
    if isinstance(value, pycrdt.Array | list):
        items = []
        for item in (
            value.elements() if isinstance(value, Array) else value
        ):  # No comprehension: each would be one more frame per level.
            items.append(to_py(item))  # noqa: PERF401
        return items
    if isinstance(value, pycrdt.Map | dict):
        entries = {}
        for key, item in sorted_entries(value):
            entries[key] = to_py(item)
        return entries
    if isinstance(value, Xml):
        return _xml_to_py(value)
    return bytes(value) if isinstance(value, bytearray) else value


def sorted_entries(value: Any) -> Iterator[tuple[str, Any]]:
    """A map's entries, keys in order. A key to which another client gave a mere format has no value, and is left out."""
    for key in sorted(value.keys()):
        with suppress(KeyError):
            yield key, value[key]


def _xml_to_py(node: Any) -> Any:
    if isinstance(node, pycrdt.XmlText):
        return shown_text(runs_of(node), attributes_of(node))
    children = []
    for child in node.children:
        children.append(within(to_py(child)))  # noqa: PERF401
    if isinstance(node, pycrdt.XmlFragment):
        return children
    return {"tag": node.tag or "", "attributes": attributes_of(node), "children": children}


def within(shown: Any) -> Any:
    """A node as it is shown among the children of another: a fragment is {"children": …} there, not a list."""
    return {"children": shown} if isinstance(shown, list) else shown


def attributes_of(node: Any) -> dict[str, Any]:
    """The attributes of an XML element or text, keys in order."""
    # For an attribute that is a shared type pycrdt returns the bare engine's object.
    return {key: to_py(node._maybe_as_type_or_doc(value)) for key, value in sorted(node.attributes, key=_first)}


def runs_of(text: Any) -> list[dict[str, Any]]:
    """The runs of an XML text."""
    runs: list[dict[str, Any]] = []
    for chunk, formats in text.diff():
        shared = isinstance(chunk, pycrdt.Map | pycrdt.Array | pycrdt.Text | Xml)
        run: dict[str, Any] = {"shared" if shared else "insert": to_py(chunk)}
        if formats:
            run["attributes"] = to_py(formats)
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
