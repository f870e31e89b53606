"""A thread's branches: listing, creating, moving, deleting, comparing and merging them.

Law: nothing here deletes a checkpoint. Moving or merging a branch also moves the handle; comparing and listing do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from shoal.client.arguments import named
from shoal.errors import NotFound
from shoal.kinds.thread.flows import merges
from shoal.kinds.thread.flows.checkpoint import Checkpoint
from shoal.kinds.thread.flows.differences import Difference, difference
from shoal.kinds.thread.flows.merges import Sides
from shoal.kinds.thread.flows.merging import Resolver
from shoal.kinds.thread.handle.checkout import Checkout
from shoal.protocol import requests
from shoal.protocol.requests import Durability


class Branch(Struct, frozen=True):
    """A branch and its heads."""

    name: str
    heads: tuple[str, ...]  # The winner first.

    @property
    def head(self) -> str:
        """The winner, which a handle without a position builds on."""
        return self.heads[0]

    @property
    def forked(self) -> bool:
        """Whether the branch has more than one head."""
        return len(self.heads) > 1


@named
class ThreadBranches:
    """The part of a thread's handle for its branches."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout

    async def heads(self, *, stale: bool = False) -> dict[str, list[str]]:
        """Branch name → ids of its heads, the winner first; more than one is a fork. `stale`: see `Store`."""
        return await self._checkout.heads(stale=stale)

    async def branches(self, *, stale: bool = False) -> list[Branch]:
        """The branches by name. `stale`: see `Store`."""
        return [Branch(name, tuple(ids)) for name, ids in sorted((await self.heads(stale=stale)).items())]

    async def branch(
        self, name: str, *, at: str | None = None, key: str | None = None, durability: Durability | None = None
    ) -> Branch:
        """Create a branch at a checkpoint of this thread: `at`, an id or a label, or the handle's position on "main".

        Raises:
            BranchTaken: a branch of this name exists at another checkpoint.
            NotFound: the thread has no such checkpoint.
        """
        checkout = self._checkout
        request = requests.Move(checkout.space, checkout.thread, name, at or await self._here(), True)
        return await self._move(request, key, durability)

    async def rollback(
        self,
        to: str,
        *,
        branch: str = "main",
        reason: str = "",
        by: str = "",
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Branch:
        """Move a branch to a checkpoint of this thread, given by its id or a label, and the handle with it.

        Nothing is deleted, and the journal records the move. Saves of other handles are rejected
        until they load. A save that was made meanwhile on a node without knowledge of the move stays
        as a second head.

        Raises:
            NotFound: the thread has no such checkpoint, or no such branch.
        """
        checkout = self._checkout
        request = requests.Move(checkout.space, checkout.thread, branch, to, False, reason, by or checkout.provenance.name)
        return await self._move(request, key, durability)

    async def delete_branch(self, name: str, *, key: str | None = None, durability: Durability | None = None) -> Branch | None:
        """Delete a branch, and return it as it was; None if there was none.

        Its checkpoints stay: they can be loaded by id, and `branch(name, at=…)` brings it back, until they are pruned.
        The journal records the deletion. A save that was made meanwhile on a node without knowledge of it stays, and with it
        the branch. A handle that goes on saving on the branch begins it anew, from where that handle was.

        Raises:
            InvalidInput: the branch is "main"; nothing was written.
        """
        request = delete_branch_request(self._checkout.space, self._checkout.thread, name)
        deleted = await self._checkout.delete(request, key, durability)
        return Branch(deleted.branch, tuple(deleted.before)) if deleted.before else None

    async def diff(
        self, before: str, after: str | None = None, *, branch: str = "main", reveal: bool = False, stale: bool = False
    ) -> Difference:
        """Return the changes from one checkpoint to another, per channel and path.

        Both are ids, names of branches or labels; the default of `after` is the winner of `branch`.
        Values of secret fields are hidden unless `reveal` is set. Only channels whose hashes differ are read.

        Raises:
            NotFound: there is no such checkpoint or branch.
        """
        return await difference(self._checkout, before, after or branch, reveal=reveal, stale=stale)

    async def merge(
        self,
        heads: Sequence[str] | None = None,
        resolver: Resolver | None = None,
        *,
        branch: str = "main",
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Merge all heads of a branch, or the given checkpoints, into one checkpoint on the branch,
        and move the handle to it.

        Per channel: if one side left it as in their nearest common ancestor, the other's value is taken;
        lists that grew on both sides keep both additions; `resolver(channel, base, sides)` decides all others.
        If there is only one head, it is loaded.

        If all sides were saved under one version of a schema, so is the merge. A path that is secret in one
        side stays secret.

        Raises:
            MergeConflict: channels are in conflict, and no resolver decides them.
            HeadMoved: the branch moved meanwhile; merge again.
            NotFound: there is no such branch or checkpoint.
        """
        return await merges.merge(
            self._checkout, heads, resolver, branch=branch, metadata=metadata, key=key, durability=durability
        )

    async def sides(self, heads: Sequence[str] | None = None, *, branch: str = "main") -> Sides:
        """Return the inputs that a `merge` with the same arguments would have.

        Raises:
            NotFound: there is no such branch or checkpoint.
        """
        return await merges.sides(self._checkout, heads, branch=branch)

    async def _here(self) -> str:
        parent = await self._checkout.newest("main")
        if parent == requests.NO_HEAD:
            raise NotFound(
                f"thread {self._checkout.thread!r} has no checkpoint to branch at. Nothing was written. Save one first."
            )
        return parent

    async def _move(self, request: requests.Move, key: str | None, durability: Durability | None) -> Branch:
        moved = await self._checkout.move(request, key, durability)
        return Branch(moved.branch, tuple(moved.heads))


def delete_branch_request(space: str, thread: str, name: str) -> requests.DeleteBranch:
    """The request that deletes a branch."""
    return requests.DeleteBranch(space, thread, name)
