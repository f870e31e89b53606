"""The list of costs is made from the declarations: no request is left out, of the measurements or of the page."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from shoal.protocol import requests
from tests.access.requests_of_each_kind import kinds
from tests.costs import BYTES, HOLD_MS, MALFORMED, MEMORY_MIB, PAGE, hard, large, most_of, outcomes, rows, tag_of, values

TAGS = {str(kind.__struct_config__.tag) for kind in kinds()}
DECISION = PAGE.parent / "decisions" / "0124-work-is-charged.md"


def test_every_request_is_made_large() -> None:
    grown = {kind for kind in kinds() for how, _ in large(kind, "s") if how}
    assert len(grown) > 80


def _fields() -> list[tuple[type[Any], str, Any, int]]:
    """Each field whose declaration bounds its length: the request, its name, its type and the bound."""
    found = []
    for kind in kinds():
        hints = get_type_hints(kind, include_extras=True)
        for field in kind.__struct_fields__:
            parts = get_args(hints[field]) if get_origin(hints[field]) in (Union, UnionType) else (hints[field],)
            found += [(kind, field, part, most) for part in parts if (most := most_of(part)) is not None]
    return found


def test_lists_and_cursors_are_tried_at_their_most_and_beyond() -> None:
    fields = _fields()
    assert len(fields) > 60
    for kind, field, _, most in fields:
        lengths = [len(getattr(request, field)) for how, request in large(kind, "s") if how.startswith(f"{field}: ")]
        assert any(0.99 * most <= length <= most for length in lengths), f"{kind.__name__}.{field} is not tried at its most"
        assert most >= BYTES // 2 or any(length > most for length in lengths), f"{kind.__name__}.{field} is not tried beyond"


def test_the_most_elements_are_different_ones() -> None:
    [members] = [request for how, request in large(requests.AlterSet, "s") if how == "add: 4,096"]
    assert isinstance(members, requests.AlterSet)
    assert len(set(members.add)) == 4096


OF_A_FORM = frozenset(
    {"ack", "put-snapshot", "rank-items", "remove-elements", "renew-leases", "restore-beginning", "trim-journal", "update"}
)
"""Refused for the form of the cursors, ids, terms and updates that were made for them: their bounds were looked at before that.
Of updates `updates` has the costly ones."""


def test_each_request_with_a_bounded_list_is_on_the_page_within_its_bounds() -> None:
    within = {tag_of(name) for name, outcome in outcomes(PAGE.read_text()).items() if outcome not in MALFORMED}
    lacking = {str(kind.__struct_config__.tag) for kind, *_ in _fields()} - within
    assert lacking <= OF_A_FORM, "run `python -m tests.costs`"


def test_large_values_are_as_large_as_a_request() -> None:
    assert max(map(len, values().values())) >= BYTES


def test_every_request_is_on_the_page() -> None:
    assert {tag_of(name) for name in rows(PAGE.read_text())} >= TAGS, "run `python -m tests.costs`"


def test_every_hard_request_is_on_the_page() -> None:
    assert rows(PAGE.read_text()).keys() >= {name for name, _ in hard()}, "run `python -m tests.costs`"


def test_costs_above_the_targets_are_explained() -> None:
    above = {name for name, (hold, memory) in rows(PAGE.read_text()).items() if hold > HOLD_MS or memory > MEMORY_MIB}
    explained = DECISION.read_text()
    assert {name for name in above if f"`{name}`" not in explained} == set()


def test_the_page_fits_a_request() -> None:
    assert all(len(msgspec.msgpack.encode(request)) <= 16 * 1024 * 1024 for _, request in hard())
