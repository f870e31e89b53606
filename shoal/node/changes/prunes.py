"""Prunes of a thread's checkpoints."""

from __future__ import annotations

from shoal.crdt import lineage, pruning
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation
from shoal.node.attached import Attached
from shoal.node.changes.handling import Handling, Handlings
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: pruning.Prune, _attached: Attached) -> None:
    pruning.apply(rows, stamp, change)


def _receive(rows: Rows, stamp: Stamp, change: pruning.Prune, _attached: Attached) -> None:
    if any(len(id) != lineage.ID_BYTES for id in (*change.ids, *change.moves)):
        raise BadOperation("its prune names what is no checkpoint", reason="content")
    pruning.apply(rows, stamp, change)


HANDLINGS: Handlings = {pruning.Prune: Handling(Kind.THREAD, _apply, _receive)}
