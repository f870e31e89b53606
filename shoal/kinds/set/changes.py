"""Changes of sets."""

from __future__ import annotations

from shoal.crdt.rows import Rows
from shoal.kinds.set import state as orset
from shoal.node.appliers.applier import Appliers, Effects, bare
from shoal.storage.keys import Kind

APPLIERS: Appliers = {
    orset.Alter: bare(Kind.SET, orset.apply, effects=Effects(frees=lambda alter: bool(alter.remove))),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    orset.size(rows)
    list(orset.members(rows))
