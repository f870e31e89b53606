"""Decide which operations leave the log of a partition, and when erased data may be removed for good.

Decide which operations leave the log of a partition.

Laws:
- An operation leaves once every owner is known to hold it durably and it is older than `keep_ms`,
  or once every owner holds it and the log is too large.
- If the log is too large, owners that are away no longer hold it up, provided that a quorum of the owners holds the
  operation. Once it is older than `forget_ms`, a quorum is enough. An owner that lacks it by then is left behind.
- An origin's operations leave in their order, so that the rest of its log has no hole.
- Truncating is local. Nothing that nodes compare depends on it.

Nothing here reads a clock or storage: ages are arguments.

When erased data may be removed for good, and when the origins of past openings may be retired.

An *eraser* is an operation that erases: a deletion, a prune, a trim, a compaction.

Laws:
- An eraser is stable once every owner is known to hold it, and everything
  that any owner had issued before it held the eraser. Then no operation that was issued
  without knowledge of the eraser can still arrive, and no owner can still request the
  data that such an operation names.
- If an owner's holdings are not known, nothing becomes stable. Nothing here looks at a clock.
- An origin may be retired in a partition once every owner is known to hold all of it, and everything that any owner
  held by then. So no operation that was issued without knowledge of its last one can still arrive, and every owner that
  has applied the retirement has applied all of these too. If an owner holds more of it, it is not retired.

There are two steps. First, if an owner's whole vector covers the eraser, it covers all that this
owner issued without knowledge of it; the join of all owners' vectors is the `bound`. Single
acknowledgements are not enough: they do not tell which operations the owner issued itself.
Second, every owner must hold the bound. (Causal stability: Baquero, Almeida, Shoker,
"Making operation-based CRDTs operation-based", 2014.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin, VersionVector
from shoal.records import NamedTuple


class Holding(NamedTuple):
    """The operations that an owner is known to hold durably in one partition."""

    vector: VersionVector  # At least this.
    whole: VersionVector | None  # Exactly this, at some time; None: it has not said.
    is_linked: bool = True  # Whether it has a link now; this node itself always has.


class Waiting(NamedTuple):
    """An eraser that is not stable yet."""

    dot: Dot
    bound: VersionVector | None = None  # What every owner must hold; None: not known yet.


def advanced(waiting: Waiting, owners: Sequence[Holding]) -> Waiting:
    """The eraser with its bound, if all owners (this node among them) have told their whole vectors.

    If the bound names operations that no owner holds any more, because they were lost with a disk, it is replaced: nobody
    could ever reach it.
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
    """Whether every owner is known to hold the bound."""
    return waiting.bound is not None and all(owner.vector.dominates(waiting.bound) for owner in owners)


def lacks(waiting: Waiting, owner: Holding) -> bool:
    """Whether the eraser waits for this owner."""
    if waiting.bound is None:
        return owner.whole is None or not owner.whole.covers(waiting.dot)
    return not owner.vector.dominates(waiting.bound)


class Cut(NamedTuple):
    """The operations of a partition that are stable in two steps, as an eraser is; and those that will be next."""

    stable: VersionVector = NOTHING_SEEN
    next: VersionVector = NOTHING_SEEN  # What every owner held when the bound was taken.
    bound: VersionVector | None = None


def advanced_cut(cut: Cut, owners: Sequence[Holding]) -> Cut:
    """The cut once the owners hold this; `owners` as for `advanced`.

    What every owner's whole vector covers is stable once every owner holds everything that any of them held then.
    """
    wholes = [owner.whole for owner in owners if owner.whole is not None]
    if len(wholes) < len(owners):
        return cut
    bound = wholes[0]
    for whole in wholes[1:]:
        bound = bound.join(whole)
    if cut.bound is not None and not bound.dominates(cut.bound):
        cut = Cut(cut.stable)  # It names operations that were lost with a disk.
    if cut.bound is None:
        common = {origin: min(whole[origin] for whole in wholes) for origin in wholes[0]}
        cut = Cut(cut.stable, VersionVector(common).retire((), wholes[0].retired), bound)
    assert cut.bound is not None
    if all(owner.vector.dominates(cut.bound) for owner in owners):
        return Cut(cut.next)
    return cut


class Ripened(NamedTuple):
    """The origins that wait for the second step before they are retired."""

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


def advanced_ripened(step: Ripened, ends: Collection[Dot], owners: Sequence[Holding]) -> Ripened:
    """The step for these origins; a new one if other origins are ripe than before, or the bound was lost with a disk."""
    found = ripe(ends, owners)
    bound = NOTHING_SEEN
    for owner in owners:
        bound = bound.join(owner.whole or NOTHING_SEEN)
    if step.ends and step.ends <= found and bound.dominates(step.bound):
        return step
    return Ripened(found, bound)


def may_retire(step: Ripened, owners: Sequence[Holding]) -> bool:
    """Whether the origins of this step may be retired now."""
    return bool(step.ends) and all(owner.vector.dominates(step.bound) for owner in owners)


class KeepBounds(NamedTuple):
    """How long operations stay in the log, and whether it is too large."""

    keep_ms: int
    forget_ms: int
    is_over: bool = False


class Reach(NamedTuple):
    """The last operation of one origin that several owners are known to hold."""

    by_all: int  # That all of them hold.
    by_present: int  # That a quorum holds, and all that are linked.
    by_quorum: int


def reach(origin: Origin, owners: Sequence[Holding]) -> Reach:
    """The reach of one origin, as far as it is known; `owners` are all owners of the partition, this node among them."""
    held = sorted((owner.vector[origin] for owner in owners), reverse=True)
    by_quorum = held[len(held) // 2]
    linked = [owner.vector[origin] for owner in owners if owner.is_linked]
    return Reach(held[-1], min([by_quorum, *linked]), by_quorum)


def may_leave(sequence: int, age_ms: int, held: Reach, terms: KeepBounds) -> bool:
    """Whether an operation of this age may leave the log."""
    if terms.is_over and sequence <= held.by_present:
        return True
    if sequence <= held.by_all:
        return age_ms > terms.keep_ms
    return sequence <= held.by_quorum and age_ms > terms.forget_ms


def last_leaving(logged: Iterable[tuple[int, int]], held: Reach, terms: KeepBounds) -> int:
    """The sequence of the last operation that leaves; 0 if none does.

    `logged` are an origin's first operations in the log, in their order: sequence and age in milliseconds.
    """
    last = 0
    for sequence, age_ms in logged:
        if not may_leave(sequence, age_ms, held, terms):
            break
        last = sequence
    return last
