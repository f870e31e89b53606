"""The past of a thread: its checkpoints, labels, mutations and audit; undo, pruning and deletion.

Laws:
- A page is one request, and the next page is requested when it is needed.
- Reading does not change the position that the next save builds on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

from shoal.client.arguments import named
from shoal.kinds.thread.flows import undo
from shoal.kinds.thread.flows.audit import AuditEntry, audit
from shoal.kinds.thread.flows.checkpoint import Checkpoint, shown_checkpoint
from shoal.kinds.thread.flows.mutations import Mutation, mutations
from shoal.kinds.thread.handle.checkout import Checkout
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.values.filtering import packed_fields
from shoal.workflows.moments import as_duration_ms


@named
class ThreadHistory:
    """The part of a thread's handle for its past."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout

    async def history(
        self,
        *,
        branch: str = "main",
        before: str | None = None,
        limit: int | None = None,
        filter: Mapping[str, Any] | None = None,
        author: str | None = None,
        states: bool = False,
        stale: bool = False,
    ) -> AsyncIterator[Checkpoint]:
        """Yield checkpoints backwards, newest first, from the branch's winner or from the parent of `before`.

        `filter`: only those whose metadata meets these conditions, as in a search of items: `{"score": {"$gte": 3}}`;
        `author`: only those of this author. `stale`: see `Store`.

        Raises:
            InvalidInput: the filter is not legal.
        """
        wanted = packed_fields(filter)
        checkout = self._checkout
        pages = checkout.pages(
            branch=branch, before=before, limit=limit, states=states, filter=wanted, author=author, stale=stale
        )
        async for found in pages:
            yield shown_checkpoint(checkout.shown(found) if states else found, channels=states)

    async def labels(self, prefix: str = "", *, reverse: bool = False, stale: bool = False) -> AsyncIterator[tuple[str, str]]:
        """Yield labels in byte order, each with the id of its checkpoint. `stale`: see `Store`."""
        async for label, id in self._checkout.labels(prefix, reverse=reverse, stale=stale):
            yield label, id

    async def unlabel(self, *labels: str, key: str | None = None, durability: Durability | None = None) -> int:
        """Remove these labels from their checkpoints, and return how many existed."""
        request = requests.Unlabel(self._checkout.space, self._checkout.thread, list(labels))
        reply = await self._checkout.connection.write(request, key=key, durability=durability)
        return reply.count

    async def mutations(
        self, *, branch: str = "main", after: str | None = None, limit: int | None = None, reveal: bool = False
    ) -> AsyncIterator[Mutation]:
        """Yield the changes of the state, oldest first: each changed place, with its author and time.

        `after` is the id of a mutation or a checkpoint; the log begins after it. Values of secret
        fields are hidden unless `reveal` is set.

        Raises:
            NotFound: `after` is not in the branch's history.
        """
        head = await self._checkout.newest(branch)
        async for mutation in mutations(self._checkout, head, after=after, limit=limit, reveal=reveal):
            yield mutation

    async def undo(
        self,
        n: int = 1,
        *,
        branch: str = "main",
        checkpoint: str | None = None,
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Revert the changes of the branch's last `n` checkpoints, or of one by its id, in a new checkpoint.

        Raises:
            NotFound: there are fewer.
            UndoConflict: later checkpoints changed the same places.
            HeadMoved: another client saved at the same time; load, and try again.
        """
        return await undo.undo(self._checkout, n, branch=branch, checkpoint=checkpoint, key=key, durability=durability)

    async def redo(
        self, n: int = 1, *, branch: str = "main", key: str | None = None, durability: Durability | None = None
    ) -> Checkpoint:
        """Revert the last `n` undos.

        Raises:
            NotFound: there are fewer since something else was saved.
            HeadMoved: another client saved at the same time; load, and try again.
        """
        return await undo.redo(self._checkout, n, branch=branch, key=key, durability=durability)

    async def audit(self) -> list[AuditEntry]:
        """Checkpoints, the journal's events (moves and decisions among them) and steps, oldest first.

        Checkpoints are those that lead to a head, to a labelled one, or to one that a rollback left behind.
        """
        return await audit(self._checkout)

    async def prune(
        self,
        *,
        keep_last: int | None = 10,
        older_than: timedelta | float | None = None,
        branch: str | None = None,
        dry_run: bool = False,
        durability: Durability | None = None,
    ) -> requests.PruneReport:
        """Prune old checkpoints: those that are neither among the last `keep_last` of a branch nor
        younger than `older_than`.

        Heads, labelled checkpoints and those where branches part always stay. With `branch` only checkpoints
        saved on that branch are pruned. With `dry_run` nothing is pruned, and the report says what would be.
        Histories end where they were pruned. Disk is freed once all nodes hold the prune.

        Raises:
            InvalidInput: neither `keep_last` nor `older_than` is given, or one is out of range.
        """
        age_ms = as_duration_ms(older_than, what="older_than")
        request = requests.Prune(self._checkout.space, self._checkout.thread, keep_last, age_ms, branch, dry_run)
        return await self._checkout.connection.write(request, key=None, durability=durability)

    async def delete(self, *, key: str | None = None, durability: Durability | None = None) -> bool:
        """Delete the thread with its checkpoints, branches and journal, on every node. False if there was none.

        Writes made without knowing of the deletion are deleted too, even if they arrive
        later. The first write made with knowledge of it creates the thread again.
        """
        checkout = self._checkout
        reply = await checkout.connection.write(
            requests.DeleteThread(checkout.space, checkout.thread), key=key, durability=durability
        )
        checkout.bases.clear()
        return reply.existed
