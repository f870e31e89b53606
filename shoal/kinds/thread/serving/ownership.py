"""Reject a write of an owner that is known to be superseded. A write that names no owner is never rejected.

Marks of threads that are under a lease, and which writes need it.

Reading the register would not do: what it says may have been renewed long ago, and others may have waited for nearly the
whole ttl.
"""

from __future__ import annotations

from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, OwnerSuperseded
from shoal.kinds.label import state as labels
from shoal.names import check_name
from shoal.node.handler import Checks, Readers, Target, WriteContext, Writers
from shoal.protocol.base import declared
from shoal.protocol.requests import Annotate, MarkedLease, MarkLease, Save, Unlabel


def check_owner(rows: Rows, request: Save | Annotate | Unlabel) -> None:
    """Check that the owner that a write names is still the owner.

    Raises:
        OwnerSuperseded: this replica knows that another writer has claimed the thread.
    """
    if request.owner and labels.owner(rows).hex() != request.owner:
        raise OwnerSuperseded(
            f"another writer has claimed thread {request.thread!r} since this one did. Nothing was written. "
            "Stop, or claim the thread again and continue from its current state."
        )


class UnderLease(Exception):
    """A write without a lease, to a thread that may be under one: the quorum register knows."""

    def __init__(self, target: Target, mark: labels.Marked) -> None:
        super().__init__()
        self.target = target
        self.mark = mark


class UnderClaim(Exception):
    """A write without a claim, which finishes an entry of a queue that may be claimed: the quorum register knows."""

    def __init__(self, target: Target, queue: str, id: bytes) -> None:
        super().__init__()
        self.target = target
        self.queue = queue
        self.id = id


class Fencing:
    """The handler of marks."""

    checks: Checks
    writers: Writers
    readers: Readers

    def __init__(self) -> None:
        self.checks = {MarkLease: _check}
        self.writers = {MarkLease: _mark}
        self.readers = {}


def _check(request: MarkLease) -> None:
    check_name("thread", request.thread)
    if not 0 < request.fence <= labels.FENCE_MAX:
        raise InvalidInput(f"a fencing number is 1 to {labels.FENCE_MAX}; got {request.fence}. Nothing was written.")
    if request.holder:
        check_name("holder", request.holder)


def _mark(context: WriteContext, request: MarkLease) -> MarkedLease:
    mark = labels.marked(context.rows)
    wanted = (request.fence, request.over, request.holder)
    timed = labels.TimedMark(request.fence, request.holder, request.over)
    is_known = context.is_known_to_peers(timed)
    if mark is None or mark < wanted:
        context.apply(timed if is_known else labels.LeaseMark(request.fence, request.holder, request.over))
        return MarkedLease(request.fence)
    if is_known and request.over and labels.is_open(context.rows, request.fence):
        context.apply(timed)  # The mark of the next holder came first: this one only says when the term was given back.
    return MarkedLease(mark.fence, mark == wanted)


DRIVING = frozenset(kind for kind, declaration in declared().items() if declaration.drives)
"""The requests that a thread under a lease takes from its holder alone."""
