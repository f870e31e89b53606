"""When origins may be retired: once all owners hold them, and all that anybody held by then."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.cluster.retirement import Step, advanced, may_retire, ripe
from shoal.cluster.stability import Holding
from shoal.crdt.dot import Dot, Origin, VersionVector

PAST, LIVE = Origin(b"p" * 16), Origin(b"l" * 16)
END = Dot(PAST, 3)


def owner(held: Mapping[Origin, int], *, whole: bool = True) -> Holding:
    vector = VersionVector(held)
    return Holding(vector, vector if whole else None)


def test_a_lone_owner_may_retire_at_once() -> None:
    owners = [owner({PAST: 3, LIVE: 1})]
    assert may_retire(advanced(Step(), [END], owners), owners)


def test_an_owner_that_lacks_an_operation_or_everything_holds_it_up() -> None:
    for other in (owner({PAST: 2, LIVE: 1}), owner({}), owner({PAST: 3}, whole=False)):
        owners = [owner({PAST: 3, LIVE: 1}), other]
        assert not may_retire(advanced(Step(), [END], owners), owners)


def test_an_owner_that_holds_more_of_it_holds_it_up() -> None:
    """Somebody else writes under it."""
    assert not ripe([END], [owner({PAST: 3}), owner({PAST: 4})])


def test_what_an_owner_held_besides_must_be_held_by_all_before() -> None:
    """It may have been issued without knowledge of the origin's last operation."""
    owners = [owner({PAST: 3}), owner({PAST: 3, LIVE: 7})]
    step = advanced(Step(), [END], owners)
    assert step.ends == {END}
    assert not may_retire(step, owners)
    later = [owner({PAST: 3, LIVE: 7}), owner({PAST: 3, LIVE: 9})]
    assert advanced(step, [END], later) == step  # What was issued since does not matter.
    assert may_retire(step, later)


def test_a_bound_that_was_lost_with_a_disk_is_replaced() -> None:
    step = advanced(Step(), [END], [owner({PAST: 3}), owner({PAST: 3, LIVE: 7})])
    owners = [owner({PAST: 3}), owner({PAST: 3})]
    assert may_retire(advanced(step, [END], owners), owners)
