"""Decide which operations leave the log of a partition.

Laws:
- An operation leaves once every owner is known to hold it durably and it is older than `keep_ms`,
  or once every owner holds it and the log is too large.
- If the log is too large, owners that are away no longer hold it up, provided that a quorum of the owners holds the
  operation. Once it is older than `forget_ms`, a quorum is enough. An owner that lacks it by then is left behind.
- An origin's operations leave in their order, so that the rest of its log has no hole.
- Truncating is local. Nothing that nodes compare depends on it.

Nothing here reads a clock or storage: ages are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.cluster.stability import Holding
from shoal.crdt.dot import Origin
from shoal.records import NamedTuple


class Terms(NamedTuple):
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


def may_leave(sequence: int, age_ms: int, held: Reach, terms: Terms) -> bool:
    """Whether an operation of this age may leave the log."""
    if terms.is_over and sequence <= held.by_present:
        return True
    if sequence <= held.by_all:
        return age_ms > terms.keep_ms
    return sequence <= held.by_quorum and age_ms > terms.forget_ms


def last_leaving(logged: Iterable[tuple[int, int]], held: Reach, terms: Terms) -> int:
    """The sequence of the last operation that leaves; 0 if none does.

    `logged` are an origin's first operations in the log, in their order: sequence and age in milliseconds.
    """
    last = 0
    for sequence, age_ms in logged:
        if not may_leave(sequence, age_ms, held, terms):
            break
        last = sequence
    return last
