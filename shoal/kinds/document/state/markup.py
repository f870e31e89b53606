"""Edit XML in place until it is as wanted, by a small change, so that concurrent edits of the rest survive. And the differences
of two sequences, for all edits.

Finding the least change takes time that grows with the square of the part that differs, and with its cube if items repeat.
Beyond a bound, and where the allowance of the request ends, everything between the first and the last difference is replaced.

Laws:
- The wanted nodes have the form that `shoal.kinds.document.state.content` shows; "attributes" and "children" may be left out.
- Nodes that are equal are left alone. Others are edited in place if possible: a text as a text; an element if the
  wanted one has the same tag and, if both have it, the same "id". Its attributes are set one by one. The rest is replaced.
- In a text, equal characters stay, and formats are set where they differ.
- The wanted nodes are checked before anything is edited: `normal` refuses them, or `fill` can make them, unless the
  existing XML holds something that no reader is shown. Things that only another client can make are refused:
  a shared type embedded in a text, a fragment within XML.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NoReturn

import pycrdt

from shoal.errors import InvalidValue
from shoal.kinds.document.state.content import Walk, append_run, attributes_of, children_of, runs_of, shown_text, to_py
from shoal.records import NamedTuple
from shoal.values.work import Allowance

# The greatest product of the lengths of two pieces whose least difference is sought: some tens of milliseconds.
MATCHED_MAX = 1 << 20


def differences(held: Sequence[Any], wanted: Sequence[Any], allowance: Allowance) -> list[tuple[int, int, int, int]]:
    """Where two sequences differ: (start, stop, first, last), in order: `held[start:stop]` becomes `wanted[first:last]`."""
    before, after = common(held, wanted)
    old, new = held[before : len(held) - after], wanted[before : len(wanted) - after]
    if not old and not new:
        return []
    if len(old) * len(new) > MATCHED_MAX:
        return [(before, before + len(old), before, before + len(new))]
    return [
        (before + start, before + stop, before + first, before + last)
        for tag, start, stop, first, last in allowance.opcodes(old, new)
        if tag != "equal"
    ]


def common(held: Sequence[Any], wanted: Sequence[Any]) -> tuple[int, int]:
    """How many items two sequences share at their beginning, and how many of the rest at their end."""
    most = min(len(held), len(wanted))
    before = next((i for i in range(most) if held[i] != wanted[i]), most)
    most -= before
    after = next((i for i in range(most) if held[-1 - i] != wanted[-1 - i]), most)
    return before, after


def equal(one: Any, other: Any) -> bool:
    """Equality of JSON: numbers by value; true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def same_id(held: Any, wanted: Any) -> bool:
    """Whether two objects may be the same one: their ids are equal, or one has none."""
    return held is None or wanted is None or equal(held, wanted)


DEPTH_MAX = 64  # `NESTING_MAX` of a document.

Check = Callable[[Any], None]
"""Counts a plain value; raises if a document cannot hold it."""


def normal(wanted: Any, check: Check, depth: int = 0) -> list[Any]:
    """The wanted nodes in the form in which they will be shown: complete, with runs joined.

    Raises:
        InvalidValue: they are not valid XML.
    """
    if not isinstance(wanted, list):
        _fail("XML is an array of nodes")
    if depth > DEPTH_MAX:
        _fail(f"XML is nested deeper than {DEPTH_MAX}")
    nodes = []
    for node in wanted:
        nodes.append(_normal_node(node, check, depth))  # noqa: PERF401
    return nodes


def fill(parent: Any, wanted: list[Any], allowance: Allowance, walk: Walk) -> None:
    """Give a fragment or an element the `wanted` children, which must be `normal`. `allowance`: of finding what differs.

    Raises:
        InvalidValue: the existing XML cannot be edited by its places. Discard the edit.
        TooLarge: it takes more steps than `walk` has.
    """
    children = parent.children
    held = [to_py(child, walk) for child in children_of(parent)]
    if len(held) != len(children):
        _fail("another client put a node into the XML that does not belong there, so its nodes cannot be addressed by index")
    # From the end, so that the nodes before keep their places.
    old, new = [_mark(node) for node in held], [_mark(node) for node in wanted]
    for start, stop, first, last in reversed(differences(old, new, allowance)):
        paired = 0
        while paired < min(stop - start, last - first) and _can_be(held[start + paired], wanted[first + paired]):
            paired += 1
        if start + paired < stop:
            walk.to_element(stop - start - paired)
            del children[start + paired : stop]
        for index, node in enumerate(wanted[first + paired : last], start + paired):
            walk.to_element()
            walk.listed += 1
            children.insert(index, pycrdt.XmlElement(node["tag"]) if "tag" in node else pycrdt.XmlText())
    for child, node in zip(children_of(parent), wanted, strict=True):
        if not equal(to_py(child, walk), node):
            _fill_node(child, node, allowance, walk)


def _fill_node(node: Any, wanted: Any, allowance: Allowance, walk: Walk) -> None:
    if isinstance(node, pycrdt.XmlText):
        runs = wanted["text"] if isinstance(wanted, dict) else [{"insert": wanted}]
        _fill_text(node, _cells(runs), allowance, walk)
    else:
        fill(node, wanted["children"], allowance, walk)
    held, attributes = attributes_of(node), wanted["attributes"] if isinstance(wanted, dict) else {}
    for key in sorted(held.keys() - attributes.keys()):
        del node.attributes[key]
    for key, value in attributes.items():
        if key not in held or not equal(held[key], value):
            node.attributes[key] = value


# ── texts ─────────────────────────────────────────────────────────────────────


class _Cell(NamedTuple):
    """A character or an embedded object."""

    value: Any
    mark: str  # Equal if the cells are.
    formats: str  # As JSON.


def _fill_text(text: Any, wanted: list[_Cell], allowance: Allowance, walk: Walk) -> None:
    held = _cells(runs_of(text))
    if len(held) != len(text):
        _fail("another client put content into a text that does not belong there, so it cannot be addressed by index")
    old, new = [cell.mark for cell in held], [cell.mark for cell in wanted]
    for start, stop, first, last in reversed(differences(old, new, allowance)):
        at = start
        if start < stop:
            walk.to_place()
            del text[start:stop]
        for piece, formats, size in _pieces(wanted[first:last]):
            walk.to_place()
            walk.written += 2
            put = text.insert if isinstance(piece, str) else text.insert_embed
            put(at, piece, formats)
            at += size
    # Inserted text may have taken on the formats around it.
    at = 0
    for (has, wants), pairs in groupby(zip(_cells(runs_of(text)), wanted, strict=True), _formats):
        size = len(list(pairs))
        if has != wants:
            walk.to_place(2)
            walk.written += 2
            before, after = json.loads(has), json.loads(wants)
            text.format(at, at + size, {**dict.fromkeys(sorted(before.keys() - after.keys())), **after})
        at += size


def _formats(pair: tuple[_Cell, _Cell]) -> tuple[str, str]:
    return pair[0].formats, pair[1].formats


def _cells(runs: list[dict[str, Any]]) -> list[_Cell]:
    cells: list[_Cell] = []
    for run in runs:
        formats = _json(run.get("attributes", {}))
        if isinstance(run.get("insert"), str):
            cells += [_Cell(character, character, formats) for character in run["insert"]]
        else:
            # No character is so long.
            cells.append(_Cell(run.get("insert"), f"embedded {_json(run)}", formats))
    return cells


def _pieces(cells: list[_Cell]) -> Iterator[tuple[Any, dict[str, Any], int]]:
    """Strings and embedded objects, with their formats and sizes."""
    for (packed, written), group in groupby(cells, lambda cell: (cell.formats, isinstance(cell.value, str))):
        formats = json.loads(packed)
        if written:
            piece = "".join(cell.value for cell in group)
            yield piece, formats, len(piece)
        else:
            yield from ((cell.value, formats, 1) for cell in group)


# ── matching ──────────────────────────────────────────────────────────────────


def _mark(node: Any) -> str:
    """Equal for nodes that are equal, or that are to be edited into each other."""
    if isinstance(node, dict) and "tag" in node and isinstance(node["attributes"].get("id"), str | int):
        return f"id {node['tag']} {node['attributes']['id']!r}"
    return _json(node)


def _can_be(held: Any, wanted: Any) -> bool:
    """Whether a node can be edited into the wanted one."""
    if not _is_element(held) or not _is_element(wanted):
        return _is_text(held) and _is_text(wanted)
    return held["tag"] == wanted["tag"] and same_id(held["attributes"].get("id"), wanted["attributes"].get("id"))


def _is_element(node: Any) -> bool:
    return isinstance(node, dict) and "tag" in node


def _is_text(node: Any) -> bool:
    return isinstance(node, str) or "text" in node


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


# ── checking ──────────────────────────────────────────────────────────────────


def _normal_node(node: Any, check: Check, depth: int) -> Any:
    if isinstance(node, str):
        check(node)
        return node
    if not isinstance(node, dict):
        _fail("a node of XML is a string or an object")
    attributes = node.get("attributes", {})
    check(attributes)
    if not isinstance(attributes, dict):
        _fail("the attributes of XML are an object")
    if node.keys() <= {"tag", "attributes", "children"} and isinstance(node.get("tag"), str):
        check(node["tag"])
        children = normal(node.get("children", []), check, depth + 1)
        return {"tag": node["tag"], "attributes": to_py(attributes), "children": children}
    if not node.keys() <= {"text", "attributes"} or not isinstance(node.get("text"), list):
        _fail('a node of XML is a string, or has a "tag" with "attributes" and "children", or a "text" with "attributes"')
    return shown_text(_normal_runs(node["text"], check), to_py(attributes))


def _normal_runs(runs: list[Any], check: Check) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for run in runs:
        if not isinstance(run, dict) or "insert" not in run or not run.keys() <= {"insert", "attributes"}:
            _fail('a text of XML is made of runs with "insert" and "attributes"')
        formats = run.get("attributes", {})
        check(run)
        if not isinstance(formats, dict) or None in formats.values():
            _fail("the formats of a text are an object without nulls")
        try:
            json.dumps(run, allow_nan=False)
        except (TypeError, ValueError):
            _fail("formats and embedded objects are JSON")
        plain: dict[str, Any] = to_py({"insert": run["insert"], **({"attributes": formats} if formats else {})})
        if plain["insert"] != "":
            append_run(found, plain)
    return found


def _fail(why: str) -> NoReturn:
    raise InvalidValue(f"{why}. Nothing was written.")
