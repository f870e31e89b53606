"""Retire origins in a partition: what an operation that names some (`Body.retires`) does, issued here or received.

Laws:
- An operation retires an origin only after every owner holds all of the origin, and everything that any owner held by then
  (`shoal.node.collection.retiring`). It knows of all that itself, so it is applied after all that.
- The tip of the origin goes, and a row of table `R` comes, in the batch of the operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.operation import Tip
from shoal.crdt.dot import HORIZON, ORIGIN_BYTES, Dot, Origin
from shoal.errors import BadOperation
from shoal.node.partitions import Ahead
from shoal.node.retired import Retirement
from shoal.node.transaction import Transaction
from shoal.storage import keys

Retires = Sequence[tuple[bytes, int]]


def check(ahead: Ahead, dot: Dot, retires: Retires, *, own: Origin | None) -> None:
    """Check what an operation from a peer retires; `own` is the origin of this opening.

    Raises:
        BadOperation: no node retires these, or this node holds more of one of them.
    """
    for packed, sequence in retires:
        origin = Origin(packed)
        if len(origin) != ORIGIN_BYTES or origin in (dot.origin, HORIZON) or sequence <= 0:
            raise BadOperation("it retires what cannot be retired", reason="content")
        if origin == own:
            raise BadOperation("it retires the origin under which this node writes", reason="retired")
        held = ahead.vector[origin]
        if held != sequence and not (held > sequence and ahead.tip(origin).sequence == 0):
            raise BadOperation(
                f"it retires origin {origin.hex()} at operation {sequence}, and this node holds {held} of it: two nodes have "
                "written under one origin",
                reason="retired",
            )


def apply(transaction: Transaction, ahead: Ahead, dot: Dot, *, hlc: int, wall_ms: int, retires: Retires) -> None:
    """Retire the origins that an operation names, which `ahead` has taken already."""
    number = ahead.partition.number
    rows: dict[Origin, Retirement] = {}
    for packed, _ in retires:
        origin = Origin(packed)
        tip = ahead.tip(origin)
        if not tip.sequence:
            continue  # Another operation has retired it as well.
        base = transaction.get(keys.base(number, origin))
        is_logged = base is None or Tip.unpack(base).sequence < tip.sequence
        rows[origin] = Retirement(tip, hlc, wall_ms, is_logged)
        transaction.put(keys.retired(number, origin), rows[origin].pack())
        transaction.delete(keys.vector(number, origin))
        if is_logged:
            transaction.put(keys.retired_log(number, hlc, origin), b"")
        else:
            transaction.delete(keys.base(number, origin))
    summary = ahead.retired.summary.retiring(dot, hlc, wall_ms, rows.keys())
    transaction.put(keys.retired(number, HORIZON), summary.pack())
    ahead.retire(dot, rows.keys(), ahead.retired.after(summary, rows))
