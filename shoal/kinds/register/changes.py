"""Changes of registers."""

from __future__ import annotations

from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation
from shoal.kinds.label.state import FENCE_MAX
from shoal.kinds.register import state as register
from shoal.node.appliers.applier import Appliers, bare
from shoal.storage.keys import Kind


def _check_swap(_stamp: Stamp, change: register.Swap) -> None:
    if not 0 < change.fence <= FENCE_MAX:
        raise BadOperation(f"a swap has the fencing number {change.fence}. Nothing of it was written.", reason="content")


APPLIERS: Appliers = {
    register.Assign: bare(Kind.REGISTER, register.apply),
    register.AssignBy: bare(Kind.REGISTER, register.apply_by, since=lambda _: 7),
    register.Swap: bare(Kind.REGISTER, register.apply_swap, _check_swap, since=lambda _: 7),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    register.entries(rows)
    register.fence(rows)
    register.history(rows)
