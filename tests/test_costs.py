"""The list of costs is made from the declarations: no request is left out."""

from __future__ import annotations

from tests.access.requests_of_each_kind import kinds
from tests.costs import BYTES, large, values


def test_every_request_is_made_large() -> None:
    grown = {kind for kind in kinds() for how, _ in large(kind, "s") if how}
    assert len(grown) > 80


def test_large_values_are_as_large_as_a_request() -> None:
    assert max(map(len, values().values())) >= BYTES
