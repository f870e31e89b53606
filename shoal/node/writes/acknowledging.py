"""When a write may be acknowledged: once it is as durable as was asked, and has an effect.

Laws:
- A write with durability `quorum` or `all` is acknowledged once enough owners hold it on disk.
- It is not acknowledged as made if a deletion that this node knows by then has ended an object that it changes.
- If a write cannot be acknowledged, the error says that it may be recorded.
"""

from __future__ import annotations

import asyncio

from shoal.crdt.dot import VersionVector
from shoal.errors import DeletedMeanwhile, NoQuorum, OutcomeUnknown
from shoal.node.database import Database
from shoal.node.handler import Contest
from shoal.node.replicas import Replicas
from shoal.node.writes.issuing import Issued, Located
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply, Durability
from shoal.protocol.tracing import Commits, Stages, stages
from shoal.storage.commit import GroupCommit


class Acknowledging:
    """Waits until writes of this node may be acknowledged."""

    def __init__(self, database: Database, commit: GroupCommit, *, replicas: Replicas, traced: Commits) -> None:
        self._database = database
        self._commit = commit
        self._traced = traced
        self._replicas = replicas

    def issued(self, told: Stages, located: Located, issued: Issued, durability: Durability) -> None:
        """Tell a traced write how far it comes from here on."""
        told.issued(is_durable=issued.number <= self._commit.durable)
        self._traced.add(issued.number, told)
        if durability in ("quorum", "all"):
            told.copying(self._replicas.when_each_holds(located.partition, issued.copied, told.acknowledged))

    async def made_durable(self, located: Located, issued: Issued, bookmark: Bookmark, durability: Durability) -> None:
        """Return once the write is as durable as was asked.

        Raises:
            StorageFull, OutcomeUnknown: that is not known.
            DeletedMeanwhile: it has no effect on an object that was deleted.
        """
        if durability == "memory":
            await asyncio.sleep(0)  # Others, and the sync, get their turn between two writes of one caller.
            return
        await self._commit.wait_durable(issued.number, located.targets[0].space)
        if durability != "local":
            await self._wait_replicated(located.partition, issued.copied, durability)
            if (told := stages.get()) is not None:
                told.copied()
            await self.refuse_dead(located, issued, bookmark, durability)

    async def refuse_dead(self, located: Located, issued: Issued, bookmark: Bookmark, durability: Durability) -> None:
        """Check, once the owners hold a write, that it has an effect on all of its objects.

        Raises:
            DeletedMeanwhile: an object was deleted, so the write has no effect there.
            OutcomeUnknown: it is not known whether the write has an effect.
        """
        if issued.dot is None:
            return
        partition = located.partition
        if issued.again:
            # The owners acknowledged it to the node that issued it. This node may lack deletions that they know.
            try:
                await self._replicas.catch_up(partition, durability)
            except NoQuorum as error:
                raise OutcomeUnknown(
                    f"the write is recorded, but it is not known whether its object was deleted meanwhile: {error.message} "
                    "Send it again with the same key."
                ) from None
        elif self._database.partitions.load(partition).endings is issued.endings:
            return  # Nothing was deleted there since.
        dead = self._database.dead(issued)
        if not dead:
            return
        shown = self._database.vector_of(partition)
        await self._database.durable_of(partition)
        bookmark.note(partition, shown)
        objects = [f"{target.kind.label} {target.name!r} of space {target.space!r}" for target in dead]
        rest = " The rest of the batch counts." if len(dead) < len(set(located.targets)) else ""
        raise DeletedMeanwhile(
            f"{', '.join(objects)} was deleted by a client that had not seen this write. The write is recorded "
            "but has no effect "
            f"there, because it was deleted with the object.{rest} Load again, and write with a new key if the "
            "write is still needed.",
            objects=objects,
        )

    async def looked_again(self, contest: Contest, located: Located, reply: AnyReply, bookmark: Bookmark) -> AnyReply:
        """The reply once a quorum holds the write. If two callers make it at once, at least one sees the other."""
        if not contest.won(reply):
            return reply
        [request], partition = located.writes, located.partition
        try:
            await self._replicas.catch_up(partition)
        except NoQuorum as error:
            raise OutcomeUnknown(contest.unknown(request, error.message)) from None
        seen = self._database.decided_again(contest, request, reply)
        await self._database.durable_of(partition)
        bookmark.note(partition, self._database.vector_of(partition))
        return seen

    async def _wait_replicated(self, partition: int, wanted: VersionVector, durability: Durability) -> None:
        """Return once enough owners hold what `wanted` covers.

        Raises:
            OutcomeUnknown: too few are known to hold it in time.
        """
        copied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(late: OutcomeUnknown | None) -> None:
            if copied.done():
                return  # The caller gave up.
            if late is None:
                copied.set_result(None)
            else:
                copied.set_exception(late)

        leave = self._replicas.when_replicated(partition, wanted, durability, told)
        try:
            await copied
        finally:
            leave()
