"""The past of a thread as a handle shows and changes it: checkpoints, branches, audits and schemas.

The past of a thread: its checkpoints, labels, mutations and audit; undo, pruning and deletion.

Laws:
- A page is one request, and the next page is requested when it is needed.
- Reading does not change the position that the next save builds on.

Checks of a thread's checkpoints, and explanations of them.

A thread's branches: listing, creating, moving, deleting, comparing and merging them.

Law: nothing here deletes a checkpoint. Moving or merging a branch also moves the handle; comparing and listing do not.

The schema that a handle declares, and the violations of schemas by the thread's heads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, get_args

from msgspec import Struct

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.errors import NotFound
from shoal.kinds.journal.flows import Event, shown_event
from shoal.kinds.thread.flows import merging as merges
from shoal.kinds.thread.flows import mutations as undo
from shoal.kinds.thread.flows.audit import AuditEntry, AuditKind, Moment, audit, moments
from shoal.kinds.thread.flows.checkpoints import Checkpoint, shown_checkpoint
from shoal.kinds.thread.flows.merging import Difference, Resolver, Sides, difference
from shoal.kinds.thread.flows.mutations import Mutation, mutations
from shoal.kinds.thread.handle.checkout import Checkout
from shoal.kinds.thread.handle.declared import Declared, Violation
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.conformance import check_word
from shoal.protocol.requests import Damage, Durability
from shoal.schemas import Schema
from shoal.values.filtering import packed_fields
from shoal.workflows.connection import as_duration_ms


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

    def timeline(self, *, kind: AuditKind | None = None, by: str = "", text: str = "") -> AsyncIterator[Moment]:
        """All that was done in the thread, the newest first, page by page: checkpoints, steps and events in one order of time.

        `kind`: "checkpoint", "step" or "event". `by`: only of this author. `text`: only with this text, in any case of letters.

        Raises:
            InvalidInput: there is no such kind.
        """
        if kind is not None:
            check_word(kind, get_args(AuditKind), "a kind")
        checkout = self._checkout
        return moments(checkout.connection, requests.ReadTimeline(checkout.space, checkout.thread, kind or "", by, text))

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


_PAGE = 1000  # Checkpoints in one request, which reads each of their chunks once.


class Verified(Struct, frozen=True):
    """The result of `Thread.verify`."""

    checkpoints: int  # How many were checked.
    damage: tuple[Damage, ...]  # By checkpoint and channel; without a channel, the checkpoint's record is damaged.

    @property
    def sound(self) -> bool:
        """Whether no damage was found."""
        return not self.damage


class Why(Struct, frozen=True):
    """The information that the author of a checkpoint had."""

    checkpoint: Checkpoint
    setting: dict[str, Any]  # The author's configuration and dependencies; empty if they were not given.
    seen: str  # What the author had read of other partitions, as a bookmark for `Store.observe`.
    earlier: tuple[Checkpoint, ...]  # The checkpoints that it built on, newest first.
    events: tuple[Event, ...]  # The journal before it, newest first.

    @property
    def partitions(self) -> dict[int, int]:
        """Partition → the number of operations seen of the origins in the bookmark."""
        return {number: sum(vector.values()) for number, vector in Bookmark.parse(self.seen)}


@named
class ThreadInspection:
    """The part of a thread's handle for checks and explanations."""

    def __init__(self, connection: StoreConnection, space: str, thread: str) -> None:
        self._connection = connection
        self._space, self._thread = space, thread

    async def verify(self, checkpoint: str | None = None, *, branch: str = "main", stale: bool = False) -> Verified:
        """Let a node check what it has stored (chunks, values and ids) of one checkpoint, or of all on a branch.

        Only the node's own copy is checked; `shoal verify` checks a whole directory.

        Raises:
            NotFound: there is no such checkpoint or branch.
        """
        checked, damage, start = 0, list[Damage](), ""
        while True:
            request = requests.VerifyCheckpoints(self._space, self._thread, checkpoint, branch, start, _PAGE)
            page = await self._connection.read(request, stale=stale)
            checked, start = checked + page.checked, page.next
            damage += page.damage
            if not start:
                return Verified(checked, tuple(damage))

    async def why(self, checkpoint: str, *, limit: int = 20, stale: bool = False) -> Why:
        """Return the context of a checkpoint: its base, its author's setting and bookmark, and the journal before it.

        At most `limit` earlier checkpoints and as many events are returned. They may include some that another node
        issued shortly before and that had not arrived yet, but none that the author certainly had not seen.

        Raises:
            NotFound: there is no such checkpoint.
        """
        found = await self._connection.read(requests.Explain(self._space, self._thread, checkpoint, limit), stale=stale)
        return Why(
            shown_checkpoint(found.checkpoint, channels=False),
            dict(values.decode(found.setting)) if found.setting else {},
            Bookmark.unpack(found.seen).text(),
            tuple(shown_checkpoint(older, channels=False) for older in found.earlier),
            tuple(map(shown_event, found.events)),
        )


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


@named
class ThreadSchema:
    """The part of a thread's handle for its declared schema."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout

    def declare(self, schema: Schema) -> None:
        """Check saves and migrate loads by this schema from now on: see `shoal.Schema`."""
        self._checkout.declared = Declared(schema, self._checkout.read)

    async def violations(self, *, stale: bool = False) -> list[Violation]:
        """List how the heads of this thread violate the schemas of its space and the declared schema.

        A save that violates a schema is rejected. Violations come from forks, from merges without the schema, and
        from saves made before the schema.
        """
        checkout, declared = self._checkout, self._checkout.declared
        reply = await checkout.connection.read(requests.ReadViolations(checkout.space, checkout.thread), stale=stale)
        found = [Violation(v.checkpoint, v.branch, v.schema, v.version, v.path, v.why) for v in reply.violations]
        if declared is not None:
            for branch, heads in (await checkout.heads(stale=stale)).items():
                for id in dict.fromkeys(heads):
                    broken = declared.violation(await checkout.read(id), branch)
                    found += [broken] if broken is not None else []
        return found
