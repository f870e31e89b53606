"""Deletions of objects. `shoal.node.collection.generations` applies them, because their row belongs to no generation."""

from __future__ import annotations

from shoal.crdt import deletion
from shoal.node.appliers.applier import Appliers, Effects, Sweep, What, bare
from shoal.storage.keys import Kind

APPLIERS: Appliers = {
    deletion.Delete: bare(Kind.THREAD, deletion.apply, effects=Effects(ends=True, sweeps=Sweep(What.GENERATION)))._replace(
        others=frozenset(Kind) - {Kind.THREAD}
    )
}
