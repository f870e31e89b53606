"""Changes of counters."""

from __future__ import annotations

from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.counter import state as counter
from shoal.node.appliers.applier import Appliers, bare
from shoal.node.naming import check as check_implied
from shoal.storage.keys import Kind


def _check_add(_stamp: Stamp, change: counter.Add) -> None:
    check_implied(change.key)


APPLIERS: Appliers = {
    counter.Add: bare(Kind.COUNTER, counter.apply, _check_add),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    counter.value(rows)
    counter.conflicts(rows)
