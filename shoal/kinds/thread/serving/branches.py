"""Branches: their heads, and the requests that move them.

Laws:
- A move names a checkpoint of its thread and replaces every head that its replica
  knows; a concurrent save on another node stays beside it, as a head.
- A rollback and its event in the journal are one operation.
- Making a new branch at a checkpoint changes nothing if the branch is already there.
- A deletion takes away the heads that its replica knows, and tells the journal which; no checkpoint goes with it.

Whether a thread shows a checkpoint, and the error if it does not.
"""

from __future__ import annotations

from shoal.crdt.rows import Rows
from shoal.errors import BranchTaken, InvalidInput, NotFound, Pruned, TooLarge
from shoal.kinds.journal.serving.journals import tell
from shoal.kinds.thread.state import ancestry, dag, pruning
from shoal.names import check_name
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.naming import check_text, checkpoint_named, hexed
from shoal.protocol import requests
from shoal.protocol.requests import BranchDeleted, CommonAncestor, DeleteBranch, Heads, Move, Moved

BRANCHES_MAX = 4096  # Branches of one thread.


def head_ids(rows: Rows) -> set[bytes]:
    """The ids of the heads of all branches of a thread."""
    return {head.id for heads in dag.branches(rows).values() for head in heads}


def check_room(rows: Rows, thread: str, *, branches_max: int) -> None:
    """Check that a thread may have one more branch. Nodes that make branches at the same time may pass the bound together.

    Raises:
        TooLarge: it has `BRANCHES_MAX`.
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


MAIN = "main"


class Branches:
    """The handler of branches."""

    def __init__(self) -> None:
        self.checks: Checks = {Move: self._check, DeleteBranch: self._check_deletion}
        self.writers: Writers = {Move: self._move, DeleteBranch: self._delete}
        self.readers: Readers = {Heads: self._heads, CommonAncestor: self._common_ancestor}

    def _check(self, request: Move) -> None:
        check_name("thread", request.thread)
        check_name("branch", request.branch)
        check_text(request.reason, "a reason")
        check_text(request.by, "an author")
        check_name("label", request.to)  # Which an id is, too.

    def _check_deletion(self, request: DeleteBranch) -> None:
        check_name("thread", request.thread)
        if check_name("branch", request.branch) == MAIN:
            raise InvalidInput(
                f"branch {MAIN!r} of thread {request.thread!r} cannot be deleted: loads and saves use it by default. "
                "Nothing was written. Delete the thread, or move the branch with rollback()."
            )

    def _move(self, context: WriteContext, request: Move) -> Moved:
        """Put a branch at a checkpoint: a new branch, or a rollback. One that is imported may get several heads: `new` puts the
        first of them, in the place of those that are there.

        Raises:
            NotFound: the thread has no such checkpoint, or no such branch.
            BranchTaken: the branch should be new, but exists at another checkpoint.
            TooLarge: the thread has too many branches.
        """
        rows, to = context.rows, checkpoint_named(context.rows, request.thread, request.to)
        heads = dag.heads(rows, request.branch)
        check_shown(rows, request.thread, to)
        if dag.packed_record(rows, to) is None:
            raise absent(rows, request.thread, to)
        before, target = hexed(heads), to.hex()
        if request.new and heads and before != [target] and context.imported is None:
            raise BranchTaken(
                f"thread {request.thread!r} has a branch {request.branch!r} already, at {', '.join(before)}. "
                "Nothing was written. Use another name, or rollback() to move this one.",
                heads=before,
            )
        if not request.new and not heads and context.imported is None:
            raise NotFound(
                f"thread {request.thread!r} has no branch {request.branch!r}. Nothing was written. "
                f"Make it with branch({request.branch!r}, at=…)."
            )
        if not heads:
            check_room(rows, request.thread, branches_max=BRANCHES_MAX)
        if context.imported is not None:
            if target not in before or (request.new and len(before) > 1):
                self._put(context, request, to, heads if request.new else [])
            return Moved(request.branch, target, before, hexed(dag.heads(rows, request.branch)))
        if before == [target]:
            return Moved(request.branch, target, before, before)
        self._put(context, request, to, heads)
        if not request.new:
            fields = {"branch": request.branch, "from": before, "to": target, "by": request.by, "reason": request.reason}
            tell(context, "rollback", fields)
        return Moved(request.branch, target, before, hexed(dag.heads(rows, request.branch)))

    def _put(self, context: WriteContext, request: Move, to: bytes, heads: list[dag.Head]) -> None:
        key = context.implied_key
        nonce = context.stamp.pack_position() if key is None else key.encode()
        token = dag.token_of(request.branch, to, nonce)
        change = dag.Move(token, request.branch, to, [head.token for head in heads])
        context.apply(change)

    def _delete(self, context: WriteContext, request: DeleteBranch) -> BranchDeleted:
        """Delete a branch, as far as it is known here."""
        heads = dag.heads(context.rows, request.branch)
        if not heads:
            return BranchDeleted(request.branch, [])
        context.apply(dag.Drop(request.branch, [head.token for head in heads]))
        tell(context, "delete-branch", {"branch": request.branch, "from": hexed(heads)})
        return BranchDeleted(request.branch, hexed(heads))

    def _heads(self, view: View, request: Heads) -> requests.Branches:
        if request.names:
            named = {name: dag.heads(view.rows, name) for name in sorted(set(request.names)) if name > request.after}
            return requests.Branches({name: hexed(heads) for name, heads in named.items() if heads})
        found = dag.branches(view.rows, after=request.after, limit=request.limit + 1 if request.limit else None)
        shown = list(found.items())[: request.limit or None]
        return requests.Branches({name: hexed(heads) for name, heads in shown}, more=len(found) > len(shown))

    def _common_ancestor(self, view: View, request: CommonAncestor) -> requests.Ancestor:
        """The nearest common ancestor of some checkpoints.

        Raises:
            NotFound: an id is not a checkpoint of this thread.
            TooLarge: their common ancestor is too far back.
        """
        ids = ancestry.in_order(view.rows, [checkpoint_named(view.rows, request.thread, id) for id in request.checkpoints])
        found = ancestry.common_ancestor(view.rows, ids)
        return requests.Ancestor(None if found is None else found.hex(), [id.hex() for id in ids])
