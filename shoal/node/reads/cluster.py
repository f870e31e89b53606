"""Reads of the node's status and of the cluster, and a read that waits for what a quorum holds of a thread.

Whether a node serves, and says that it is ready: only on positive knowledge that it may.

Laws:
- A node that may lack all that its cluster holds, or that is no member, serves nothing but questions about itself: it would
  answer that there is nothing, and write beside what there is.
- One that waits for its peers tells what it waits for, and what its operator can do.
- A member that reaches nobody serves: its directory holds the proof that it is one (`shoal.node.incarnation`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from shoal.cluster.operation import partition_of
from shoal.errors import CatchingUp, NoQuorum
from shoal.names import check_name
from shoal.node.database import Database
from shoal.node.handler import Answers
from shoal.node.incarnation import Incarnation
from shoal.node.replicas import Company, Replicas
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    CatchUp,
    CaughtUp,
    ChangeMembers,
    Cluster,
    ClusterView,
    MembersView,
    NodeStatus,
    ReadMembers,
    Rebuild,
    RebuildView,
    Status,
)
from shoal.storage.commit import GroupCommit


class ClusterReads:
    """Answers what is asked of the node and its cluster. `status` returns the node's status."""

    def __init__(self, database: Database, *, replicas: Replicas, company: Company, status: Callable[[], NodeStatus]) -> None:
        self._company = company
        self._database = database
        self._replicas = replicas
        self._node_status = status
        self.answers: Answers = {
            Status: self._status,
            Cluster: self._cluster,
            CatchUp: self._catch_up,
            ReadMembers: self._members,
            ChangeMembers: self._change_members,
            Rebuild: self._rebuild,
        }
        self.always = self.answers.keys() - {CatchUp}
        """The requests about the node and its cluster, which a node answers whatever it holds."""

    async def _status(self, _request: Status, _bookmark: Bookmark) -> NodeStatus:
        return self._node_status()

    async def _cluster(self, _request: Cluster, _bookmark: Bookmark) -> ClusterView:
        return self._replicas.view()

    async def _members(self, _request: ReadMembers, _bookmark: Bookmark) -> MembersView:
        return self._company.members()

    async def _change_members(self, request: ChangeMembers, _bookmark: Bookmark) -> MembersView:
        return await self._company.change(request)

    async def _rebuild(self, request: Rebuild, _bookmark: Bookmark) -> RebuildView:
        return await self._company.rebuild(request)

    async def _catch_up(self, request: CatchUp, bookmark: Bookmark) -> CaughtUp:
        """Fetch what a quorum holds of a thread's partition; without a quorum the reply says why, and nothing is raised."""
        check_name("space", request.space)
        partition = partition_of(request.space, check_name("thread", request.thread))
        size = self._replicas.view().size
        try:
            await self._replicas.catch_up(partition)
        except NoQuorum as error:
            return CaughtUp(quorum=False, size=size, reason=error.message)
        shown = self._database.vector_of(partition)
        await self._database.durable_of(partition)
        bookmark.note(partition, shown)
        return CaughtUp(quorum=True, size=size, reason="")


_REFILLING = "it is fetching the data that its peers hold"


class Readiness:
    """Of one node, as its directory, its peers and its disk have it."""

    def __init__(self, incarnation: Incarnation, commit: GroupCommit, *, replicas: Replicas) -> None:
        self._incarnation = incarnation
        self._commit = commit
        self._replicas = replicas

    @property
    def serves(self) -> bool:
        """Whether it answers more than questions about itself."""
        return not (self._incarnation.outside or self._incarnation.unproven)

    def check(self, *, stale: bool) -> None:
        """Check whether this node may show what it holds, and build on it. `stale`: the caller reads what is here, be it older.

        Raises:
            CatchingUp: it began with an empty directory, and does not hold yet what its cluster holds.
            NotAMember: it is no member of its cluster.
        """
        if stale or self.serves:
            return
        if self._incarnation.outside:
            self._incarnation.check()
        raise CatchingUp(
            f"this node serves nothing yet: {self._refilling}. Nothing was written. Ask another node, or try again later.",
            state="refilling",
        )

    def admit(self) -> None:
        """Check whether this node may accept a new session. One that met nobody yet, or is no member, tells each request that.

        Raises:
            CatchingUp: the node is still fetching the data that its peers hold.
        """
        if self._replicas.refilling and not self._incarnation.outside:
            raise CatchingUp(
                f"the node accepts no sessions: {self._refilling}. Nothing was written. Ask another node, or try again later."
            )

    @property
    def told(self) -> tuple[Literal["ready", "read-only", "refilling"], str]:
        """The state of the node, and the reason for people: why it is not ready, or counts in no quorum; else empty."""
        incarnation, replicas = self._incarnation, self._replicas
        barred = incarnation.barred and f"this node {incarnation.verb} nothing: {incarnation.barred}"
        if failed := self._commit.failed or replicas.clock_wrong or barred:
            return "read-only", failed
        learning = "; ".join(replicas.learning)
        learns = f"learning, so it counts in no quorum: {learning}" if learning else ""
        if incarnation.fence or replicas.refilling or incarnation.unproven:
            return "refilling", f"{self._refilling}; {learns}"
        return "ready", learns

    @property
    def _refilling(self) -> str:
        return self._incarnation.fence or self._replicas.awaited or _REFILLING
