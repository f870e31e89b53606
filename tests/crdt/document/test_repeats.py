"""Which insertions of an edit are withdrawn where another edit of the same request counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin
from shoal.crdt.rows import Stamp
from shoal.errors import BadOperation
from shoal.kinds.document.state import patch, repeats, yjs
from shoal.kinds.document.state.live import LiveDocument
from shoal.node.transaction import ObjectRows, Transaction
from shoal.node.turns import at_once
from shoal.storage.interface import MemoryStorage

CLIENT = 77


def document(content: dict[str, Any]) -> LiveDocument:
    live = LiveDocument(bytes_max=1 << 20, roots_max=8)
    added = [{"op": "add", "path": f"/{name}", "value": value} for name, value in content.items()]
    edited = patch.patch(live, json.dumps(added).encode(), client_id=1)
    live.integrate(edited.update, edited.roots)
    return live


def spans(live: LiveDocument, *operations: dict[str, Any]) -> list[repeats.Span]:
    edited = patch.patch(live, json.dumps(operations).encode(), client_id=CLIENT)
    return repeats.inserted(edited.update, CLIENT)


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def test_an_element_that_is_added_to_an_array_is_one() -> None:
    assert spans(document({"tasks": [1, 2]}), add("/tasks/-", 3)) == [(0, 1)]


def test_elements_that_are_added_side_by_side_are_one_range() -> None:
    assert spans(document({"tasks": []}), add("/tasks/-", 3), add("/tasks/-", 4)) == [(0, 2)]


@pytest.mark.answers("patch-at-two-nodes-inserts-twice")
def test_content_of_an_added_element_goes_with_it() -> None:
    found = spans(document({"tasks": [1]}), add("/tasks/1", {"steps": ["a", "b"]}), add("/tasks/-", 9))
    assert [length for _, length in found] == [1, 1]


def test_values_set_at_a_key_are_no_spans() -> None:
    assert spans(document({"plan": {"a": 1}}), add("/plan/b", {"steps": [1, 2]}), add("/plan/a", 2)) == []


def test_characters_of_a_text_are_ones() -> None:
    assert spans(document({"title": "plan"}), {"op": "replace", "path": "/title", "value": "my plan"}) == [(0, 3)]


def test_content_of_an_earlier_edit_was_there_before() -> None:
    live = document({"tasks": [1], "title": "plan"})
    for value in (2, {"steps": ["a"]}):
        edited = patch.patch(live, json.dumps([add("/tasks/-", value)]).encode(), client_id=CLIENT)
        live.integrate(edited.update, edited.roots)
    beside = spans(live, add("/tasks/2", 3))
    within = spans(live, add("/tasks/2/steps/-", "b"))
    assert [length for _, length in beside] == [length for _, length in within] == [1]
    assert spans(live, add("/tasks/2/who", "ada")) == []


def test_an_edit_that_claims_other_insertions_is_refused() -> None:
    edited = patch.patch(document({"tasks": [1]}), json.dumps([add("/tasks/-", 2)]).encode(), client_id=CLIENT)
    made = repeats.attempt("k", CLIENT, edited.update)
    at_once(repeats.checking(made, yjs.parse(edited.update), 2))
    for claimed in (
        repeats.Attempt(made.request, 1, made.spans),
        repeats.Attempt(made.request, CLIENT, [(0, 2)]),
        repeats.Attempt(b"short", CLIENT, made.spans),
    ):
        with pytest.raises(BadOperation):
            at_once(repeats.checking(claimed, yjs.parse(edited.update), 2))


# ── the rows of requests ──────────────────────────────────────────────────────


def noted(*edits: tuple[bytes, int, int]) -> ObjectRows:
    """Rows after edits of these requests, by these clients, at these positions."""
    rows = ObjectRows(Transaction(MemoryStorage()), b"")
    for request, client, number in edits:
        stamp = Stamp(Dot(Origin(bytes(15) + bytes([client])), number), number, 0, NOTHING_SEEN, 0)
        repeats.note(rows, stamp, repeats.Attempt(request * repeats.REQUEST_BYTES, client, [(number, 1)]))
    return rows


def settled(rows: ObjectRows, until: int) -> list[bytes]:
    def is_settled(position: bytes) -> bool:
        return int.from_bytes(position[:8], "big") <= until

    pages = list(repeats.settled(lambda: rows, is_settled=is_settled, requests_max=2))
    assert all(len(page) <= 2 for page in pages)
    return [request[:1] for page in pages for request in page]


@pytest.mark.parametrize("order", [1, -1])
def test_the_edit_with_the_least_dot_counts(order: int) -> None:
    rows = noted(*[(b"a", 2, 1), (b"a", 1, 2)][::order])
    assert list(repeats.deletes(rows, known=lambda position: True)) == [(2, 1, 1)]


def test_a_request_is_settled_once_all_its_edits_are() -> None:
    rows = noted((b"a", 1, 1), (b"b", 1, 2), (b"b", 2, 4), (b"c", 2, 3))
    assert settled(rows, 0) == []
    assert settled(rows, 3) == [b"a", b"c"]
    assert settled(rows, 4) == [b"a", b"b", b"c"]


def test_forgotten_origins_leave_no_row() -> None:
    rows = noted((b"a", 1, 1), (b"b", 1, 2), (b"b", 2, 3), (b"c", 1, 4), (b"c", 2, 5))
    repeats.forget(rows, [each * repeats.REQUEST_BYTES for each in (b"a", b"b")])
    assert list(rows.scan(b"")) == list(noted((b"c", 1, 4), (b"c", 2, 5)).scan(b""))
    assert list(repeats.deletes(rows, known=lambda position: True)) == [(2, 5, 1)]
    repeats.forget(rows, [b"c" * repeats.REQUEST_BYTES])
    assert not list(rows.scan(b""))
