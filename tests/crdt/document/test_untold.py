"""What JSON does not tell counts in the canonical form of a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, nan
from typing import Any

import pycrdt
import pytest

from shoal.kinds.document.state import untold, yjs
from shoal.kinds.document.state.document import RootKind
from shoal.node.turns import at_once
from tests.crdt.document.edits import live

ROOTS: dict[str, RootKind] = {"m": "map", "l": "array", "t": "text", "x": "xml"}
Edit = Callable[[pycrdt.Doc[Any]], object]


def replica(*edits: Edit, client: int = 7) -> Any:
    """What one client made."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client)
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    for edit in edits:
        edit(doc)
    found = live(roots=ROOTS)
    for update in updates:
        found.integrate(update, {})
    return found


def entry(value: object) -> Edit:
    return lambda doc: doc.get("m", type=pycrdt.Map).update({"k": value})


def element(*values: object) -> Edit:
    return lambda doc: doc.get("l", type=pycrdt.Array).extend(values)


def node(made: Any) -> Edit:
    return lambda doc: doc.get("x", type=pycrdt.XmlFragment).children.append(made)


def text(doc: pycrdt.Doc[Any]) -> Any:
    return doc.get("t", type=pycrdt.Text)


def written(doc: pycrdt.Doc[Any]) -> None:
    text(doc).insert(0, "ab")


ALIKE: dict[str, tuple[Edit, Edit]] = {
    "bytes and a list": (entry(b"\x01\x02"), entry([1.0, 2.0])),
    "bytes and a list within a list": (entry([b"\x01", 2.0]), entry([[1.0], 2.0])),
    "bytes and a list within a map": (entry({"a": {"b": b"\x01"}}), entry({"a": {"b": [1.0]}})),
    "bytes among elements": (element(1.0, b"\x01"), element(1.0, [1.0])),
    "no number and nothing": (entry(nan), entry(None)),
    "infinity and nothing": (element(inf, 1.0), element(None, 1.0)),
    "infinity and minus infinity": (element(inf), element(-inf)),
    "zero and minus zero": (entry(0.0), entry(-0.0)),
    "formats": (
        lambda doc: text(doc).format(0, 1, {"bold": True}),
        lambda doc: text(doc).format(0, 1, {"bold": 1.0}),
    ),
    "objects in a text": (
        lambda doc: text(doc).insert_embed(0, {"a": 1.0}),
        lambda doc: text(doc).insert_embed(0, {"a": 2.0}),
    ),
}


@pytest.mark.parametrize("how", ALIKE)
def test_content_that_is_shown_alike_differs(how: str) -> None:
    one, other = (replica(written, edit) for edit in ALIKE[how])
    assert one.extent() == other.extent()
    assert one.canonical() != other.canonical()
    assert one.canonical() == replica(written, ALIKE[how][0]).canonical()


def test_keys_of_plain_maps_count_in_no_order() -> None:
    names = [f"k{nth}" for nth in range(40)]  # The engine writes them in an order of its own, each time another one.
    forms = {replica(entry({"a": dict.fromkeys(names, b"\x01")})).canonical() for _ in range(4)}
    assert len(forms) == 1


def test_cuts_of_the_engine_do_not_count() -> None:
    whole = replica(element(b"\x01", 1.0, nan, b"\x02", [b"\x03"], inf), element(4.0))
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=8)
    doc.apply_update(whole.snapshot())
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    items = doc.get("l", type=pycrdt.Array)
    items.insert(3, "between")
    del items[3]
    cut = live(roots=ROOTS, updates=[whole.snapshot(), *updates])
    at_once_cut = live(roots=ROOTS, updates=[cut.snapshot()])
    assert cut.canonical() == at_once_cut.canonical() != whole.canonical()
    parts = cut.canonical(), whole.canonical()
    assert parts[0][-32:] == parts[1][-32:]


def test_deleted_content_does_not_count() -> None:
    def gone(doc: pycrdt.Doc[Any]) -> None:
        del doc.get("m", type=pycrdt.Map)["k"]

    one, other = replica(entry(b"\x01"), gone), replica(entry([1.0]), gone)
    assert one.canonical() == other.canonical()
    kept = replica(entry(b"\x01"))  # As an engine would that keeps what is deleted.
    deletes = [(7, 0, 1)]
    assert hashed(kept, deletes) == hashed(replica(entry([1.0])), deletes) != hashed(kept, [])


def hashed(found: Any, deletes: list[tuple[int, int, int]]) -> bytes:
    return at_once(untold.digest(found.snapshot(), deletes, structs_max=10))


def test_it_is_made_in_steps() -> None:
    found = replica(*(entry(float(nth)) for nth in range(100)))
    structs = sum(map(len, yjs.parse(found.snapshot()).structs.values()))

    def steps(structs_max: int) -> Iterator[None]:
        return untold.digest(found.snapshot(), [], structs_max=structs_max)

    assert len(list(steps(1))) == structs
    assert len(list(steps(structs + 1))) == 0


def test_values_within_an_item_count_for_its_steps() -> None:
    found = replica(*(lambda doc, key=key: doc.get("m", type=pycrdt.Map).update({key: [0.0] * 2000}) for key in "abc"))
    assert len(list(untold.digest(found.snapshot(), [], structs_max=100))) == 3
