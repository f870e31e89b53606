"""The queues of a thread, on which inboxes and worklists are built: reading, following, putting and finishing entries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal import values
from shoal.client.connection import StoreConnection
from shoal.client.resuming import reread
from shoal.kinds.worklist.flows import purge
from shoal.protocol import requests
from shoal.protocol.requests import Durability, QueueEntry
from shoal.workflows.moments import moment

_PAGE = 200


@dataclass(frozen=True, slots=True)
class Finish:
    """The agent that took a message or finished an item, and the time."""

    by: str
    time: datetime
    _result: bytes = field(repr=False)

    @property
    def result(self) -> Any:
        """The result that was given, decoded anew at each access."""
        return values.decode(self._result)


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a thread; the inbox has no name."""

    connection: StoreConnection
    space: str
    thread: str
    name: str

    async def pages(self, *, finished: bool = False, dead: bool = False) -> AsyncGenerator[Sequence[QueueEntry], None]:
        """All pending entries in order, or all finished ones, or all dead letters, by pages."""
        after = ""
        while True:
            page = await self.page(after=after, limit=_PAGE, finished=finished, dead=dead)
            yield page.entries
            if not page.more:
                return
            after = page.entries[-1].place

    async def page(
        self, *, after: str = "", limit: int = 1, finished: bool = False, dead: bool = False
    ) -> requests.QueueEntries:
        """Some entries, and how many are pending and finished."""
        request = requests.ReadQueue(self.space, self.thread, self.name, after, limit, finished, dead)
        return await self.connection.read(request)

    async def entry(self, id: str) -> QueueEntry | None:
        """An entry by its id."""
        found = await self.connection.read(requests.ReadQueueEntry(self.space, self.thread, self.name, id))
        return found.entries[0] if found.entries else None

    def follow(self, *, timeout: float | None = None) -> AsyncGenerator[QueueEntry, None]:
        """Yield pending entries in order, each once; then those that arrive."""
        given: set[str] = set()

        async def rest() -> AsyncGenerator[QueueEntry, None]:
            pending: set[str] = set()
            async for page in self.pages():
                pending |= {entry.id for entry in page}
                for entry in page:
                    if entry.id not in given:
                        given.add(entry.id)
                        yield entry
            given.intersection_update(pending)  # Finished entries do not come again.

        return reread(self.connection, self.space, self.thread, "enqueue", rest, timeout=timeout)

    async def put(
        self, items: list[requests.QueueItem], *, by: str, plan: requests.QueuePlan, durability: Durability | None
    ) -> requests.Enqueued:
        """Add entries."""
        request = requests.Enqueue(
            self.space, self.thread, self.name, items, by, None if plan == requests.QueuePlan() else plan
        )
        return await self.connection.write(request, key=None, durability=durability)

    async def finish(self, request: requests.Dequeue, *, durability: Durability | None) -> requests.Dequeued:
        """Take or finish an entry."""
        return await self.connection.write(request, key=None, durability=durability)

    async def purge(self, before: datetime, *, durability: Durability | None) -> int:
        """Forget entries that were finished before a time, and return their number."""
        return await purge(self.connection, self.space, self.thread, self.name, before, durability=durability)


def finishes(entry: QueueEntry) -> tuple[Finish, ...]:
    """An entry's finishes as handles show them."""
    return tuple(Finish(finish.by, moment(finish.wall_ms), finish.result) for finish in entry.finishes)
