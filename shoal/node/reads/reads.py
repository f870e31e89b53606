"""Answers every read of a node.

Laws:
- A read shows at least what its bookmark names, or a typed error; the bookmark takes in what is
  shown before the answer is given. With `stale` it shows what is here, and the bookmark goes back to it.
- It is answered once everything that it shows is durable here: a crash does not unshow it.
- Names are checked here, before anything else.
- What lists the objects of a space shows all its partitions, and waits for all that the bookmark names.
- What is found to be damaged is mended first, and never shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from shoal.cluster.partition import partition_of
from shoal.config import Config
from shoal.crdt.dot import VersionVector
from shoal.errors import InvalidInput, NoQuorum, StoreCorrupt
from shoal.names import check_name
from shoal.node.database import Database
from shoal.node.reads import multireads
from shoal.node.replicas import ReadRepair, Replicas
from shoal.node.target import Target, target_of
from shoal.node.watching.awareness import Presences
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply
from shoal.storage.keys import KINDS

_Outcome = TypeVar("_Outcome")


class Reads:
    def __init__(
        self,
        database: Database,
        *,
        replicas: Replicas,
        presences: Presences,
        status: Callable[[], requests.NodeStatus],
        config: Config,
    ) -> None:
        self._database = database
        self._replicas = replicas
        self._presences = presences
        self._status = status
        self._config = config

    async def answer(self, request: requests.AnyRead, bookmark: Bookmark, *, stale: bool) -> AnyReply:
        match request:
            case requests.Status():
                return self._status()
            case requests.Cluster():
                return self._replicas.view()
            case requests.ListSpaces():
                return await self._spaces(request, bookmark)
            case requests.ListObjects():
                return await self._objects(request, bookmark)
            case requests.ListThreads():
                return await self._threads(request, bookmark)
            case requests.CatchUp():
                return await self._caught_up(request, bookmark)
            case requests.MultiRead():
                return await self._together(request, bookmark, stale=stale)
            case requests.ReadPresence():
                return self._presences.read(request)
            case requests.Announce():
                raise InvalidInput("presence needs a session that stays open. Nothing was announced.")
        assert isinstance(request, requests.ObjectRead)
        target = target_of(request)
        check_name("space", target.space)
        check_name(target.kind.label, target.name)
        return await self._seen(lambda: self._shown(request, target), target.partition, bookmark, stale=stale)

    async def _together(self, request: requests.MultiRead, bookmark: Bookmark, *, stale: bool) -> AnyReply:
        targets = multireads.targets_of(request, self._config)
        partition = targets[0].partition

        async def read() -> tuple[AnyReply, VersionVector]:
            reply = await multireads.answered(request, targets, self._database, self._replicas, self._config)
            return reply, self._database.vector_of(partition)

        return await self._seen(read, partition, bookmark, stale=stale)

    async def _seen(
        self, read: Callable[[], Awaitable[tuple[AnyReply, VersionVector]]], partition: int, bookmark: Bookmark, *, stale: bool
    ) -> AnyReply:
        """What `read` shows of a partition, once this node holds what the bookmark names, and what it shows is durable."""
        wanted = bookmark.vector(partition)
        if not stale and not self._database.holds(partition, wanted):
            await self._replicas.wait_applied(partition, wanted)
        reply, shown = await read()
        # What was read may be ahead of the disk: a crash must not unshow it.
        await self._database.durable_of(partition)
        if stale and not shown.dominates(wanted):
            bookmark.replace(partition, shown)
        else:
            bookmark.note(partition, shown)
        return reply

    async def _shown(self, request: requests.ObjectRead[Any], target: Target) -> tuple[AnyReply, VersionVector]:
        """The answer of a read, and the vector that it was read at. What turns out to be damaged is mended first."""
        repair: ReadRepair | None = None
        while True:
            try:
                if isinstance(request, requests.RankItems):
                    ranked = await in_turns(self._database.ranked(request, target))
                    return ranked, self._database.vector(target)
                return self._database.show(request, target), self._database.vector(target)
            except StoreCorrupt as error:
                repair = repair or self._replicas.read_repair(target)
                await repair.repair(error)

    async def _caught_up(self, request: requests.CatchUp, bookmark: Bookmark) -> requests.CaughtUp:
        check_name("space", request.space)
        partition = partition_of(request.space, check_name("thread", request.thread))
        size = self._replicas.view().size
        try:
            await self._replicas.catch_up(partition)
        except NoQuorum as error:
            return requests.CaughtUp(quorum=False, size=size, reason=error.message)
        shown = self._database.vector_of(partition)
        await self._database.durable_of(partition)
        bookmark.note(partition, shown)
        return requests.CaughtUp(quorum=True, size=size, reason="")

    async def _objects(self, request: requests.ListObjects, bookmark: Bookmark) -> requests.Names:
        check_name("space", request.space)
        await self._reach_all(bookmark)
        limit = min(max(1, request.limit), self._config.page_items_max)
        names = self._database.catalog.names(
            request.space, KINDS[request.kind], prefix=request.prefix, after=request.after, limit=limit + 1
        )
        shown = {number: self._database.vector_of(number) for number in {partition_of(request.space, name) for name in names}}
        await self._database.all_durable()
        for partition, vector in shown.items():
            bookmark.note(partition, vector)
        return requests.Names(names[:limit], more=len(names) > limit)

    async def _threads(self, request: requests.ListThreads, bookmark: Bookmark) -> requests.ThreadNames:
        check_name("space", request.space)
        await self._reach_all(bookmark)
        found = self._database.threads(request)
        shown = {number: self._database.vector_of(number) for number in found.partitions}
        await self._database.all_durable()
        for partition, vector in shown.items():
            bookmark.note(partition, vector)
        return found.reply

    async def _spaces(self, request: requests.ListSpaces, bookmark: Bookmark) -> requests.Names:
        await self._reach_all(bookmark)
        limit = min(max(1, request.limit), self._config.page_items_max)
        spaces = self._database.catalog.spaces(after=request.after, limit=limit + 1)
        await self._database.all_durable()
        return requests.Names(spaces[:limit], more=len(spaces) > limit)

    async def _reach_all(self, bookmark: Bookmark) -> None:
        for partition, wanted in list(bookmark):
            if not self._database.holds(partition, wanted):
                await self._replicas.wait_applied(partition, wanted)


async def in_turns(steps: Generator[None, None, _Outcome]) -> _Outcome:
    """What work in steps comes to; others get their turn between them."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            outcome: _Outcome = done.value
            return outcome
        await asyncio.sleep(0)
