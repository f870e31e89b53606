"""Lists of spaces, objects and threads.

Laws:
- A page of threads reads at most `LISTING_SCAN_MAX` threads, however few match, and says where
  the next page begins. So a search for rare metadata does not delay other requests.
- A search by status reads the threads that have it; the catalog leads to them, their own rows decide.
- An answer also shows which threads do not match: the bookmark notes their partitions too.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.kinds.step import state as status
from shoal.kinds.thread.state import dag
from shoal.names import check_name, is_colocated
from shoal.node.database import Database
from shoal.node.handler import Answers
from shoal.node.replicas import Replicas
from shoal.node.target import Target
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.declared import FILTER_TERMS_MAX
from shoal.protocol.requests import ListObjects, ListSpaces, ListThreads, Names, ThreadNames
from shoal.storage.keys import KINDS, Kind
from shoal.values.filtering import Filter

LISTING_SCAN_MAX = 1000  # Threads examined for one page of a listing by status or metadata.

_BRANCH = "main"


class Listings:
    """Answers lists. A list covers all partitions of a space, and waits for everything that the bookmark names."""

    def __init__(self, database: Database, *, replicas: Replicas, config: Config) -> None:
        self._database = database
        self._replicas = replicas
        self._config = config
        self.answers: Answers = {ListSpaces: self._spaces, ListObjects: self._objects, ListThreads: self._threads}

    async def _spaces(self, request: ListSpaces, bookmark: Bookmark) -> Names:
        await self._reach_all(bookmark)
        limit = self._limit(request.limit)
        spaces = self._database.catalog.spaces(after=request.after, limit=limit + 1)
        await self._database.all_durable()
        return Names(spaces[:limit], more=len(spaces) > limit)

    async def _objects(self, request: ListObjects, bookmark: Bookmark) -> Names:
        check_name("space", request.space)
        await self._reach_all(bookmark)
        limit = self._limit(request.limit)
        names = self._database.catalog.names(
            request.space, KINDS[request.kind], prefix=request.prefix, after=request.after, limit=limit + 1
        )
        await self._show(request.space, names, bookmark)
        return Names(names[:limit], more=len(names) > limit)

    async def _threads(self, request: ListThreads, bookmark: Bookmark) -> ThreadNames:
        check_name("space", request.space)
        filter = Filter.of_fields(request.filter, terms_max=FILTER_TERMS_MAX)
        await self._reach_all(bookmark)
        bound = LISTING_SCAN_MAX
        looked = self._database.catalog.threads(
            request.space, request.status, prefix=request.prefix, after=request.after, limit=bound + 1
        )
        more = len(looked) > bound
        names: list[str] = []
        seen: list[str] = []
        for name, may_match in looked[:bound]:
            if len(names) == self._limit(request.limit):
                more = True
                break
            seen.append(name)
            if may_match and _matches(self._database.document(Target(Kind.THREAD, request.space, name)).rows, request, filter):
                names.append(name)
        await self._show_all(self._partitions(request, seen), bookmark)
        return ThreadNames(names, seen[-1] if more and seen else "")

    async def _show(self, space: str, names: Iterable[str], bookmark: Bookmark) -> None:
        """Wait until everything that an answer shows of these objects is durable, and note it in the bookmark."""
        await self._show_all({partition_of(space, name) for name in names}, bookmark)

    def _partitions(self, request: ListThreads, seen: list[str]) -> set[int]:
        """The partitions of the threads that an answer shows, or shows not to match."""
        if request.status in ("", "running"):
            return {partition_of(request.space, name) for name in seen}
        bound = LISTING_SCAN_MAX
        names = self._database.catalog.names(
            request.space, Kind.THREAD, prefix=request.prefix, after=request.after, limit=bound + 1
        )
        if len(names) <= bound or is_colocated(request.space):
            return {partition_of(request.space, name) for name in names}
        return set(self._database.changelog.vectors())

    async def _show_all(self, partitions: set[int], bookmark: Bookmark) -> None:
        shown = {number: self._database.vector_of(number) for number in partitions}
        await self._database.all_durable()
        for partition, vector in shown.items():
            bookmark.note(partition, vector)

    async def _reach_all(self, bookmark: Bookmark) -> None:
        for number in self._database.partitions.closed:
            self._database.partitions.load(number).check_open()
        for partition, wanted in list(bookmark):
            if not self._database.holds(partition, wanted):
                await self._replicas.wait_applied(partition, wanted)

    def _limit(self, asked: int) -> int:
        return min(max(1, asked), self._config.page_items_max)


def _matches(rows: Rows, request: ListThreads, filter: Filter) -> bool:
    if request.status:
        current = status.current(rows)
        if (current.status if current is not None else "running") != request.status:
            return False
    return not filter.wanted or _holds(rows, filter)


def _holds(rows: Rows, filter: Filter) -> bool:
    heads = dag.heads(rows, _BRANCH)
    head = dag.checkpoint(rows, heads[0].id) if heads else None
    return head is not None and filter.matches(head.record.metadata)
