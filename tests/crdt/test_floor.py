"""The floor below which no origins are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import HORIZON, NO_FLOOR, Dot, Floor, VersionVector

TIMES = st.integers(0, (1 << 63) - 1)
FLOORS = st.builds(Floor, TIMES, TIMES)


@given(FLOORS, FLOORS, FLOORS)
def test_a_joined_floor_covers_both_in_any_order(one: Floor, two: Floor, three: Floor) -> None:
    both = one.join(two)
    assert both.hlc == max(one.hlc, two.hlc)
    assert both.retired == max(one.retired, two.retired)
    assert both == two.join(one)
    assert both.join(three) == one.join(two.join(three))
    assert both.join(one) == both
    assert one.join(NO_FLOOR) == one


def test_a_floor_is_reached_once_its_retirement_is_seen() -> None:
    floor = Floor(3, 7)
    assert not floor.is_reached(VersionVector.of(Dot(HORIZON, 6)))
    assert floor.is_reached(VersionVector.of(Dot(HORIZON, 7)))
    assert NO_FLOOR.is_reached(VersionVector())


@given(FLOORS)
def test_a_floor_survives_packing(floor: Floor) -> None:
    assert Floor.unpack(floor.pack()) == floor


@pytest.mark.parametrize(("floor", "hlc"), [(Floor(3, 2), 9), (Floor(3, 9), 9), (Floor(0, 2), 9), (Floor(3, 8), 8)])
def test_a_floor_that_no_node_chooses_is_refused(floor: Floor, hlc: int) -> None:
    with pytest.raises(ValueError, match="past"):
        floor.check(hlc)
