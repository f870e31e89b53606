"""The queues of a thread, on which inboxes and worklists are built: reading, following, putting and finishing entries.

Items of a worklist, or messages of an inbox, that are claimed by one worker at a time.

    while (job := await work.claim(ttl=60)) is not None:
        async with job:
            await job.complete(convert(job.item))

Laws:
- At most one claim of an item counts at any time, on all nodes. A claim is a lease: `shoal.kinds.lease.handle.tenure`.
- Within its block a claim is renewed. A block that ends without `complete` or `fail` gives the item back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import StoreConnection, delays, paused, reread, waiting
from shoal.errors import InvalidInput, LeaseLost, ShoalError, Taken
from shoal.kinds.lease.handle.leases import check_times
from shoal.kinds.lease.handle.tenure import Held, Tenure, keeper_of
from shoal.kinds.worklist.state import identify
from shoal.protocol import requests
from shoal.protocol.requests import (
    ClaimItem,
    CompleteItem,
    Durability,
    ExtendClaim,
    FailItem,
    ItemClaimed,
    ItemFailed,
    QueueEntry,
    ReviveItem,
    Term,
)
from shoal.raising import partly
from shoal.workflows.connection import Connection, moment


def item_id(key: str) -> str:
    """The id of a worklist's item with this key."""
    return identify(key).hex()


async def purge(
    connection: Connection, space: str, thread: str, queue: str, before: datetime, *, durability: Durability | None
) -> int:
    """Forget entries that were finished before a time, in one request per page, and return their number."""
    before_ms, count, more = int(before.timestamp() * 1000), 0, True
    while more:
        request = requests.Purge(space, thread, queue, before_ms)
        with partly(count, f"{count} entries are forgotten", "Repeat the request to forget the rest."):
            reply = await connection.write(request, key=None, durability=durability)
        count, more = count + reply.count, reply.more
    return count


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


_TOKEN_BYTES = 16
_ENDED = "its block ended without complete()"
_REASON_CHARS_MAX = 500


@named
class Job(Held):
    """An item that this worker has claimed: `async with job` renews the claim, until `complete` or `fail`."""

    def __init__(self, queue: Queue, claimed: ItemClaimed, holder: str, *, ttl_s: float, sent_s: float) -> None:
        term = Term(queue.space, queue.thread, False, claimed.fence, claimed.token, queue.name, claimed.id)
        super().__init__(Tenure(queue.connection, term, ttl_s=ttl_s, sent_s=sent_s), holder)
        self.id: str = claimed.id
        self.item: str = claimed.key or claimed.id
        """The item's key, or the message's id if it has none."""
        self.attempt: int = claimed.attempt
        """How often the item was claimed, this time included."""
        self.by: str = claimed.by
        self._queue = queue
        self._value = claimed.value
        self._settled = False

    def __repr__(self) -> str:
        return f"Job({self.item!r}, attempt={self.attempt}, fence={self.fence})"

    @property
    def value(self) -> Any:
        """The item's value, decoded again at each access."""
        return values.decode(self._value)

    @property
    def ticket(self) -> str:
        """The fencing number and the secret, for the command line and HTTP: whoever has it may complete the item."""
        return f"{self.fence}.{self._tenure.term.token}"

    async def complete(self, result: Any = None, *, durability: Durability | None = None) -> None:
        """Complete the item, with its result. To complete it together with a checkpoint: `batch.thread(…).complete(job, …)`.

        Raises:
            Taken: it is completed already.
            LeaseLost: the claim has ended.
            NoQuorum: too few nodes can be reached. The claim ends by itself.
        """
        request = complete_request(self._queue.space, self._queue.thread, self, result)
        await self._write(request, durability)
        self.settle()

    async def fail(self, reason: str, *, retry_in: float = 0.0, durability: Durability | None = None) -> bool:
        """Give the item back, at once or so many seconds later. Returns whether it is a dead letter now.

        Raises:
            as `complete`.
        """
        request = fail_request(self._queue.space, self._queue.thread, self, reason, retry_in=retry_in)
        reply: ItemFailed = await self._write(request, durability)
        self.settle()
        return reply.dead

    async def extend(self, ttl: float | None = None) -> None:
        """Renew the claim now. With a longer `ttl`, it has that from now on; a shorter one changes nothing.

        Raises:
            LeaseLost: the claim has ended.
        """
        if ttl is not None:
            check_times(ttl)
        self._tenure.check()
        queue, term = self._queue, self._tenure.term
        sent_s = queue.connection.uptime()
        request = ExtendClaim(queue.space, queue.thread, queue.name, self.id, term.fence, term.token, round((ttl or 0) * 1000))
        reply = await queue.connection.session.call(request)
        self._tenure.ttl_s = reply.ttl / 1000
        self._tenure.renewed(sent_s)
        self._tenure.check()

    def settle(self, _reply: object = None) -> None:
        """It is completed, or given back."""
        self._settled = True
        self._tenure.forget()

    async def _write(self, request: CompleteItem | FailItem, durability: Durability | None) -> Any:
        if not self._settled:
            self._tenure.check()
        connection = self._queue.connection
        try:
            return await connection.write(request, key=None, durability=durability)
        except LeaseLost:
            if not self._settled:
                self._tenure.lose()
            raise

    async def __aenter__(self) -> Job:
        self._tenure.check()
        self._tenure.task = asyncio.current_task()
        self._tenure.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tenure = self._tenure
        task, tenure.task = tenure.task, None
        try:
            if not self._settled and not tenure.is_lost:
                reason = _ENDED if error is None else f"{type(error).__name__}: {error}"[:_REASON_CHARS_MAX]
                with suppress(ShoalError):  # If it fails, the claim ends by itself.
                    await self.fail(reason)
        finally:
            tenure.forget()
        tenure.leave(task, kind)
        if kind is None and not self._settled:
            tenure.check()


def complete_request(space: str, thread: str, job: Job, result: Any = None) -> CompleteItem:
    """The request that completes a claimed item.

    Raises:
        InvalidInput: it is of another thread, or no job.
        LeaseLost: the claim has ended.
    """
    term = _term_of(space, thread, job)
    packed = values.encode(result, where="result")
    return CompleteItem(space, thread, term.worklist, job.id, term.fence, term.token, packed, job.holder)


async def completed(queue: Queue, id: str, result: Any, *, by: str, durability: Durability | None) -> bool:
    """Complete an entry under the claim that this store has of it, within a block. False: it has none."""
    term = next((term for term in keeper_of(queue.connection).terms if _is_of(term, queue, id)), None)
    if term is None:
        return False
    packed = values.encode(result, where="result")
    request = CompleteItem(queue.space, queue.thread, queue.name, id, term.fence, term.token, packed, by)
    try:
        await queue.connection.write(request, key=None, durability=durability)
    except (Taken, LeaseLost) as error:
        if error.written != "no":
            raise
        return False
    return True


def _is_of(term: Term, queue: Queue, id: str) -> bool:
    return (term.space, term.lease, term.worklist, term.item) == (queue.space, queue.thread, queue.name, id)


def fail_request(space: str, thread: str, job: Job, reason: str, *, retry_in: float = 0.0) -> FailItem:
    """The request that gives a claimed item back."""
    term = _term_of(space, thread, job)
    check_times(retry_in)
    return FailItem(space, thread, term.worklist, job.id, term.fence, term.token, reason, round(retry_in * 1000), job.holder)


def revive_request(queue: Queue, id: str, *, by: str) -> ReviveItem:
    """The request that puts a dead letter back."""
    return ReviveItem(queue.space, queue.thread, queue.name, id, by)


def _term_of(space: str, thread: str, job: Job) -> Term:
    if not isinstance(job, Job):
        raise InvalidInput(f"this needs a job that claim() returned, not {type(job).__name__}. Nothing was written.")
    term = job._tenure.term
    if (term.space, term.lease) != (space, thread):
        raise InvalidInput(
            f"the item {job.item!r} is of thread {term.lease!r} in space {term.space!r}, not of {thread!r} in {space!r}. "
            "Nothing was written."
        )
    return term


async def claimed(queue: Queue, *, ttl: float, wait: float, holder: str | None) -> Job | None:
    """Claim the next entry of a queue; None if none comes within `wait` seconds.

    A claim that ended before its answer arrived was never held: while its `wait` lasts, the client goes on waiting.
    """
    check_times(ttl, wait)
    async with waiting():
        return await _claimed(queue, ttl=ttl, wait=wait, holder=holder)


async def _claimed(queue: Queue, *, ttl: float, wait: float, holder: str | None) -> Job | None:
    connection = queue.connection
    name = connection.holder if holder is None else holder
    request = ClaimItem(queue.space, queue.thread, queue.name, round(ttl * 1000), name)
    request = replace(request, token=connection.entropy(_TOKEN_BYTES).hex())
    ends_s, pauses = connection.uptime() + wait, None
    while True:
        sent_s = connection.uptime()
        wait_s = max(0.0, min(ends_s - sent_s, connection.config.lease_poll_s))
        try:
            reply = await connection.session.call(replace(request, wait=int(wait_s * 1000)))
        except ShoalError as error:
            pauses = pauses or delays(connection.config)
            if not error.retryable or not await paused(pauses, error):
                raise
            continue
        pauses = None
        if reply.claimed:
            job = Job(queue, reply, name, ttl_s=ttl, sent_s=sent_s)
            if await job._tenure.holds():
                return job
        if connection.uptime() >= ends_s or connection.closed.is_set():
            return None
