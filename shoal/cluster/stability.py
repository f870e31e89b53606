"""When what an operation erased may be gone for good.

Laws:
- An eraser is stable once every owner is known to hold its operation, and everything
  that any owner had issued before it held it. Then no operation that was issued
  without knowledge of the eraser can still arrive, and no owner can still ask for
  what such an operation names.
- An owner that is not known stops the clock. Nothing here looks at a clock.

Two steps. An owner's vector that covers the eraser, told whole, covers all that this
owner issued in ignorance of it: the join of all owners' is the `bound`. Single
acknowledgements do not do: they tell nothing of what the owner issued itself.
Then every owner must hold the bound. (Causal stability: Baquero, Almeida, Shoker,
"Making operation-based CRDTs operation-based", 2014.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.crdt.dot import Dot, VersionVector


class Holding(NamedTuple):
    """What an owner is known to hold durably in one partition."""

    vector: VersionVector  # At least this.
    whole: VersionVector | None  # Exactly this, at some time; None: it has not said.


class Waiting(NamedTuple):
    """An eraser that is not stable yet."""

    dot: Dot
    bound: VersionVector | None = None  # What every owner must hold; None: not known yet.


def advanced(waiting: Waiting, owners: Sequence[Holding]) -> Waiting:
    """Take note of the bound, if all owners, this node among them, have told theirs.

    A bound that names what no owner holds any more, because it was lost with a disk, is replaced: nobody could ever reach it.
    """
    bound = VersionVector()
    for owner in owners:
        if owner.whole is None or not owner.whole.covers(waiting.dot):
            return waiting
        bound = bound.join(owner.whole)
    if waiting.bound is not None and bound.dominates(waiting.bound):
        return waiting
    return Waiting(waiting.dot, bound)


def is_stable(waiting: Waiting, owners: Sequence[Holding]) -> bool:
    return waiting.bound is not None and all(owner.vector.dominates(waiting.bound) for owner in owners)


def lacks(waiting: Waiting, owner: Holding) -> bool:
    """Whether this owner is what the eraser waits for."""
    if waiting.bound is None:
        return owner.whole is None or not owner.whole.covers(waiting.dot)
    return not owner.vector.dominates(waiting.bound)
