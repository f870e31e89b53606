"""When the origins of past openings may be retired in a partition.

Laws:
- An origin may be retired once every owner is known to hold all of it, and everything that any owner held by then. So no
  operation that was issued without knowledge of its last one can still arrive, and every owner that has applied the
  retirement has applied all of these too.
- If an owner's holdings are not known, or an owner holds more of an origin, nothing of it is retired.

As for erasers (`shoal.cluster.stability`), there are two steps. Nothing here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from shoal.cluster.stability import Holding
from shoal.crdt.dot import NOTHING_SEEN, Dot, VersionVector


class Step(NamedTuple):
    """The origins that wait for the second step."""

    ends: frozenset[Dot] = frozenset()  # The last operation of each.
    bound: VersionVector = NOTHING_SEEN  # What every owner must hold.


def ripe(ends: Collection[Dot], owners: Sequence[Holding]) -> frozenset[Dot]:
    """Those of the origins, by their last operations, that all owners (this node among them) hold to that end exactly."""
    return frozenset(
        end
        for end in ends
        if all(
            owner.whole is not None and owner.whole[end.origin] == end.sequence == owner.vector[end.origin] for owner in owners
        )
    )


def advanced(step: Step, ends: Collection[Dot], owners: Sequence[Holding]) -> Step:
    """The step for these origins; a new one if other origins are ripe than before, or the bound was lost with a disk."""
    found = ripe(ends, owners)
    bound = NOTHING_SEEN
    for owner in owners:
        bound = bound.join(owner.whole or NOTHING_SEEN)
    if step.ends and step.ends <= found and bound.dominates(step.bound):
        return step
    return Step(found, bound)


def may_retire(step: Step, owners: Sequence[Holding]) -> bool:
    """Whether the origins of this step may be retired now."""
    return bool(step.ends) and all(owner.vector.dominates(step.bound) for owner in owners)
