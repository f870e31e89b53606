"""Reads of the node's status and of the cluster, and a read that waits for what a quorum holds of a thread."""

from __future__ import annotations

from collections.abc import Callable

from shoal.cluster.partition import partition_of
from shoal.errors import NoQuorum
from shoal.names import check_name
from shoal.node.database import Database
from shoal.node.handler import Answers
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
