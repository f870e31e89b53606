"""Whether a thread shows a checkpoint, and which error says that it does not."""

from __future__ import annotations

from shoal.crdt.rows import Rows
from shoal.crdt.thread import dag, pruning
from shoal.errors import NotFound, Pruned

BRANCHES_MAX = 4096


def head_ids(rows: Rows) -> set[bytes]:
    return {head.id for heads in dag.branches(rows, BRANCHES_MAX).values() for head in heads}


def check_shown(rows: Rows, thread: str, id: bytes) -> None:
    """
    Raises:
        Pruned: the checkpoint was given up.
    """
    if dag.is_pruned(rows, id):
        raise Pruned(f"checkpoint {id.hex()} of thread {thread!r} was pruned. Nothing was written. List others with history().")


def absent(rows: Rows, thread: str, id: bytes, *, wanted: str = "") -> NotFound:
    """The error for a checkpoint that is not there."""
    if pruning.ever_pruned(rows):
        return Pruned(
            f"thread {thread!r} has no checkpoint {id.hex()}{wanted}: it was pruned, or never was. Nothing was written. "
            "List others with history()."
        )
    return NotFound(f"thread {thread!r} has no checkpoint {id.hex()}{wanted}. Nothing was written. List them with history().")
