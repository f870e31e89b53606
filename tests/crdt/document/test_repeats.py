"""Which insertions of an edit are withdrawn where another edit of the same request counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.crdt.document import patch, repeats
from shoal.crdt.document.live import LiveDocument
from shoal.errors import BadOperation

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


def test_what_is_within_an_added_element_goes_with_it() -> None:
    found = spans(document({"tasks": [1]}), add("/tasks/1", {"steps": ["a", "b"]}), add("/tasks/-", 9))
    assert [length for _, length in found] == [1, 1]


def test_what_is_set_at_a_key_is_none_nor_is_what_it_holds() -> None:
    assert spans(document({"plan": {"a": 1}}), add("/plan/b", {"steps": [1, 2]}), add("/plan/a", 2)) == []


def test_characters_of_a_text_are_ones() -> None:
    assert spans(document({"title": "plan"}), {"op": "replace", "path": "/title", "value": "my plan"}) == [(0, 3)]


def test_what_the_client_made_in_an_earlier_edit_was_there_before() -> None:
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
    repeats.check(made, edited.update)
    for claimed in (
        repeats.Attempt(made.request, 1, made.spans),
        repeats.Attempt(made.request, CLIENT, [(0, 2)]),
        repeats.Attempt(b"short", CLIENT, made.spans),
    ):
        with pytest.raises(BadOperation):
            repeats.check(claimed, edited.update)
