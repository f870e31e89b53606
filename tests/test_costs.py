"""The list of costs is made from the declarations: no request is left out, of the measurements or of the page."""

from __future__ import annotations

import msgspec

from tests.access.requests_of_each_kind import kinds
from tests.costs import BYTES, HOLD_MS, MEMORY_MIB, PAGE, hard, large, rows, tag_of, values

TAGS = {str(kind.__struct_config__.tag) for kind in kinds()}
DECISION = PAGE.parent / "decisions" / "0124-work-is-charged.md"


def test_every_request_is_made_large() -> None:
    grown = {kind for kind in kinds() for how, _ in large(kind, "s") if how}
    assert len(grown) > 80


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
