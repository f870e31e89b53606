"""Prunes of a thread's checkpoints."""

from __future__ import annotations

from shoal.crdt.rows import Stamp
from shoal.errors import BadOperation
from shoal.kinds.thread.state import dag, pruning
from shoal.node.appliers.applier import Appliers, bare
from shoal.node.appliers.effects import Effects, Erased, Sweep, What
from shoal.storage.keys import Kind


def _check(stamp: Stamp, change: pruning.Prune) -> None:
    if any(len(id) != dag.ID_BYTES for id in (*change.ids, *change.moves)):
        raise BadOperation("its prune does not name checkpoints", reason="content")
    if not 0 <= change.moves_hlc < stamp.hlc:
        raise BadOperation("its prune forgets moves that are not in its past", reason="content")


def _erases(change: pruning.Prune, erased: Erased) -> None:
    erased.checkpoints.update(change.ids)


APPLIERS: Appliers = {
    pruning.Prune: bare(
        Kind.THREAD,
        pruning.apply,
        _check,
        effects=Effects(hides=lambda prune: prune.ids, sweeps=Sweep(What.CHECKPOINTS), erases=_erases),
    )
}
