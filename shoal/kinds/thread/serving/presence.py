"""Whether a thread shows a checkpoint, and the error if it does not."""

from __future__ import annotations

from shoal.crdt.rows import Rows
from shoal.errors import NotFound, Pruned, TooLarge
from shoal.kinds.thread.state import dag, pruning


def head_ids(rows: Rows) -> set[bytes]:
    """The ids of the heads of all branches of a thread."""
    return {head.id for heads in dag.branches(rows).values() for head in heads}


def check_room(rows: Rows, thread: str, *, branches_max: int) -> None:
    """Check that a thread may have one more branch. Nodes that make branches at the same time may pass the bound together.

    Raises:
        TooLarge: it has `branches_max`.
    """
    if sum(1 for _ in rows.scan(dag.BRANCH, limit=branches_max)) >= branches_max:
        raise TooLarge(
            f"thread {thread!r} has {branches_max} branches, which is the maximum. Nothing was written. Use one of them, or "
            "another thread."
        )


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
