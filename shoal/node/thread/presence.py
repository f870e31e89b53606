"""Whether a thread shows a checkpoint, and the error if it does not."""

from __future__ import annotations

from shoal.crdt.rows import Rows
from shoal.crdt.thread import dag, pruning
from shoal.errors import NotFound, Pruned

BRANCHES_MAX = 4096


def head_ids(rows: Rows) -> set[bytes]:
    """The ids of the heads of a thread's first `BRANCHES_MAX` branches by name."""
    return {head.id for heads in dag.branches(rows, BRANCHES_MAX).values() for head in heads}


def check_shown(rows: Rows, thread: str, id: bytes) -> None:
    """Check that a checkpoint was not pruned. It may still be absent.

    Raises:
        Pruned: the checkpoint was pruned.
    """
    if dag.is_pruned(rows, id):
        raise Pruned(f"checkpoint {id.hex()} of thread {thread!r} was pruned. Nothing was written. List others with history().")


def absent(rows: Rows, thread: str, id: bytes, *, wanted: str = "") -> NotFound:
    """The error for a checkpoint that does not exist; `wanted` says what for."""
    if pruning.ever_pruned(rows):
        return Pruned(
            f"thread {thread!r} has no checkpoint {id.hex()}{wanted}: it was pruned or never existed. Nothing was written. "
            "List others with history()."
        )
    return NotFound(f"thread {thread!r} has no checkpoint {id.hex()}{wanted}. Nothing was written. List them with history().")
