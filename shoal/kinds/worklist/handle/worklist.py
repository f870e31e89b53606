"""Handles for work that is done once: a keyed worklist, and a thread's inbox.

A keyed worklist: many items that several workers do, each once, also after crashes.

    work = thread.worklist("files")
    await work.add(names)                              # each key once, even if it is added again
    while (job := await work.claim(ttl=60)) is not None:
        async with job:                                # one worker at a time
            await job.complete(convert(job.item))

Without claims, `pending` and `done` do the same for one worker, or for items that may be done twice.

Laws:
- A key is pending until it is done, and then stays done. If two workers do one
  concurrently, the result of one counts on every node, and both are shown.
- Done items are remembered until `forget`, so that adding one again does nothing.

A thread's inbox: keyed messages from other agents, each taken once.

    await space.thread("writer").inbox.send({"review": 17}, key="review-17", by="editor")

    async for message in thread.inbox.receive():
        state = work(message.value)
        await thread.save(state, take=[message])        # both are done, or neither

Laws:
- A message comes to every reader until one takes it. From then on it comes to no
  reader on any replica that has received the take. If two readers take it concurrently,
  both succeed, and `taken` shows both. To have the second one rejected instead,
  take it with `durability="quorum"`, or let one agent read one inbox.
- A key counts once for as long as its message waits, and after it was taken for
  `inbox_taken_s`, or until `forget`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.errors import InvalidInput
from shoal.kinds.lease.handle.leases import check_times
from shoal.kinds.worklist.handle.queues import Finish, Job, Queue, claimed, completed, finishes, item_id, revive_request
from shoal.kinds.worklist.state import INBOX
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability, QueueEntry, QueueTry
from shoal.workflows.connection import moment

_ADDED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class WorklistItem:
    """An item of a worklist, with its value and results."""

    key: str
    time: datetime  # When it was added.
    done: tuple[Finish, ...]  # The results. The first counts; there are several if it was done concurrently.
    tried: QueueTry | None  # The last claim of it, and how that ended.
    _value: bytes = field(repr=False)

    @property
    def value(self) -> Any:
        """The value added under the key, decoded again at each access."""
        return values.decode(self._value)


@dataclass(frozen=True, slots=True)
class Done:
    """The result of `Worklist.done`."""

    first: bool  # False if it was done before; `result` is then the first one.
    by: str
    _result: bytes = field(repr=False)

    @property
    def result(self) -> Any:
        """The result that counts, decoded anew at each access."""
        return values.decode(self._result)


@dataclass(frozen=True, slots=True)
class WorklistProgress:
    """How many items of a worklist are pending, done, and dead letters."""

    pending: int
    done: int
    dead: int = 0

    @property
    def total(self) -> int:
        """The number of all items."""
        return self.pending + self.done + self.dead

    @property
    def is_complete(self) -> bool:
        """Whether no item is pending. Dead letters are not."""
        return not self.pending


@named
class Worklist:
    """A list of items by key: those to do and those done."""

    def __init__(self, connection: StoreConnection, space: str, thread: str, name: str) -> None:
        self._queue = Queue(connection, space, thread, check_name("worklist", name))

    @property
    def name(self) -> str:
        """The name of the list within its thread."""
        return self._queue.name

    def __repr__(self) -> str:
        return f"Worklist({self._queue.space!r}, {self._queue.thread!r}, {self.name!r})"

    async def add(
        self,
        items: Iterable[str] | Mapping[str, Any],
        *,
        by: str = "",
        priority: int = 0,
        delay: float = 0.0,
        group: str = "",
        group_max: int = 0,
        attempts_max: int = 0,
        durability: Durability | None = None,
    ) -> int:
        """Add keys, or keys with values; return how many were new. If it fails half-way, the same call adds the rest.

        For those who claim them: items with a `priority` (to 9) come first; nobody gets them for `delay` seconds; of a
        `group`, at most `group_max` are handed out at once; after `attempts_max` claims they are dead letters (0: as the
        node is configured, 5).

        Raises:
            InvalidInput: one of these is out of bounds.
            KeyReused: a key was added with another value.
            Overloaded: too many items are pending.
        """
        if isinstance(items, str):
            raise InvalidInput(
                f"items must be keys, or keys with values; got the text {items!r}. Nothing was written. Use a list."
            )
        pairs = items.items() if isinstance(items, Mapping) else ((key, None) for key in items)
        check_times(delay)
        plan = requests.QueuePlan(priority, round(delay * 1000), group, group_max, attempts_max)
        packed = [requests.QueueItem(key, values.encode(value, where=f"item {key!r}")) for key, value in pairs]
        added = 0
        for start in range(0, len(packed), _ADDED_AT_ONCE):
            reply = await self._queue.put(packed[start : start + _ADDED_AT_ONCE], by=by, plan=plan, durability=durability)
            added += sum(reply.added)
        return added

    async def pending(
        self,
        *,
        follow: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[WorklistItem, None]:
        """Yield the items to do in the order in which they were added; with `follow` also those added later.

        Items that another worker has meanwhile finished are skipped, as far as this node knows. If the node fails, the
        stream continues by itself, with another node if there is one. With a `timeout` it follows until nothing has been
        added for that many seconds.
        """
        if follow:
            async with aclosing(self._queue.follow(timeout=timeout)) as entries:
                async for entry in entries:
                    yield shown_item(entry)
            return
        async for page in self._queue.pages():
            for entry in page:
                yield shown_item(entry)

    async def claim(self, *, ttl: float = 60.0, wait: float = 0.0, holder: str | None = None) -> Job | None:
        """Claim the next item: no other worker gets it, on any node, until the claim has ended. None: there is none.

        The claim ends `ttl` seconds after its last renewal; `async with job` renews it. If its worker dies, the item is
        handed out again. `wait`: how many seconds to wait for an item. `holder`: a name for people.

        Raises:
            NoQuorum: too few nodes can be reached.
            Overloaded: too many items are claimed at once.
        """
        return await claimed(self._queue, ttl=ttl, wait=wait, holder=holder)

    async def dead(self) -> AsyncIterator[WorklistItem]:
        """Yield the dead letters: items that were claimed `attempts_max` times. `item.tried.reason` says why."""
        async for page in self._queue.pages(dead=True):
            for entry in page:
                yield shown_item(entry)

    async def revive(self, item: WorklistItem | str, *, by: str = "", durability: Durability | None = None) -> None:
        """Put a dead letter back; its attempts are counted anew.

        Raises:
            NotFound: it is none.
        """
        key = item if isinstance(item, str) else item.key
        request = revive_request(self._queue, item_id(key), by=by)
        await self._queue.connection.write(request, key=None, durability=durability)

    async def finished(self) -> AsyncIterator[WorklistItem]:
        """Yield the finished items in the order in which they were finished."""
        async for page in self._queue.pages(finished=True):
            for entry in page:
                yield shown_item(entry)

    async def find(self, key: str) -> WorklistItem | None:
        """An item by its key, pending or done; None if it was never added, or is forgotten."""
        entry = await self._queue.entry(item_id(key))
        return None if entry is None else shown_item(entry)

    async def done(
        self, item: WorklistItem | str, *, result: Any = None, by: str = "", durability: Durability | None = None
    ) -> Done:
        """Mark an item as done. If it was done before, nothing changes, and the answer has the first result.

        In the block of this store's own claim of it, it is completed under the claim.

        Raises:
            NotFound: it was never added.
            LeaseHeld: a worker has claimed it.
        """
        request = done_request(self._queue.space, self._queue.thread, self.name, item, result=result, by=by)
        if await completed(self._queue, request.id, result, by=by, durability=durability):
            return Done(True, by, request.result)
        reply = await self._queue.finish(request, durability=durability)
        return Done(reply.first, reply.by, reply.result)

    async def progress(self) -> WorklistProgress:
        """How many items are pending and done."""
        page = await self._queue.page()
        return WorklistProgress(page.pending, page.finished, page.dead)

    async def forget(self, *, before: datetime, durability: Durability | None = None) -> int:
        """Forget the items done before a time; if added again, they are to be done again. Return how many."""
        return await self._queue.purge(before, durability=durability)


def done_request(
    space: str, thread: str, worklist: str, item: WorklistItem | str, *, result: Any = None, by: str = ""
) -> requests.Dequeue:
    """The request that marks an item as done."""
    key = item if isinstance(item, str) else item.key
    return requests.Dequeue(space, thread, worklist, item_id(key), by, values.encode(result, where="result"))


def shown_item(entry: QueueEntry) -> WorklistItem:
    """An entry of the list as handles show it."""
    return WorklistItem(entry.key or "", moment(entry.wall_ms), finishes(entry), entry.tried, entry.value)


@dataclass(frozen=True, slots=True)
class Message:
    """A message of an inbox, with those who took it."""

    id: str
    key: str | None
    by: str  # The sender's name, as the sender gave it.
    time: datetime
    taken: tuple[Finish, ...]  # The takers. The first counts; there are several if they took it concurrently.
    _value: bytes = field(repr=False)
    _others: tuple[bytes, ...] = field(repr=False, default=())

    @property
    def value(self) -> Any:
        """The message's value, decoded again at each access."""
        return values.decode(self._value)

    @property
    def others(self) -> list[Any]:
        """Other values that were sent concurrently under the same key; they do not count as messages."""
        return [values.decode(other) for other in self._others]


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of `Inbox.send`."""

    id: str
    sent: bool  # False if the key was sent before; `id` is then the first message's.


@named
class Inbox:
    """The inbox of a thread."""

    def __init__(self, connection: StoreConnection, space: str, thread: str) -> None:
        self._queue = Queue(connection, space, thread, INBOX)

    def __repr__(self) -> str:
        return f"Inbox({self._queue.space!r}, {self._queue.thread!r})"

    async def send(self, message: Any, *, key: str | None = None, by: str = "", durability: Durability | None = None) -> Sent:
        """Send a message. Of all messages with one `key`, one is sent.

        Raises:
            InvalidValue: the message cannot be serialised.
            KeyReused: `key` was sent with another message.
            Overloaded: too many messages wait.
        """
        request = send_request(self._queue.space, self._queue.thread, message, key=key, by=by)
        reply = await self._queue.connection.write(request, key=None, durability=durability)
        return Sent(reply.ids[0], reply.added[0])

    async def receive(self, *, timeout: float | None = None) -> AsyncGenerator[Message, None]:  # noqa: ASYNC109
        """Yield the waiting messages in order, then new ones; each once, taken or not.

        After a disconnect it continues by itself, with another node if there is one. With a `timeout` it ends when
        nothing has come for so many seconds. To stop early, close it (`contextlib.aclosing`), which ends its
        subscription at once.

        Raises:
            Disconnected: no node could be reached for `request_timeout_s`. Receive again: messages not taken come again.
        """
        async with aclosing(self._queue.follow(timeout=timeout)) as entries:
            async for entry in entries:
                yield shown_message(entry)

    async def next(self, *, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109
        """Wait for the first message; None if none comes for `timeout` seconds."""
        async with aclosing(self.receive(timeout=timeout)) as messages:
            return await anext(messages, None)

    async def pending(self) -> AsyncIterator[Message]:
        """The messages that wait now."""
        async for page in self._queue.pages():
            for entry in page:
                yield shown_message(entry)

    async def taken(self) -> AsyncIterator[Message]:
        """The messages that were taken and are not forgotten yet, in the order in which they were taken."""
        async for page in self._queue.pages(finished=True):
            for entry in page:
                yield shown_message(entry)

    async def find(self, id: str) -> Message | None:
        """A message by its id, waiting or taken; None if it was never sent, or is forgotten."""
        entry = await self._queue.entry(id)
        return None if entry is None else shown_message(entry)

    async def claim(self, *, ttl: float = 60.0, wait: float = 0.0, holder: str | None = None) -> Job | None:
        """Claim the next message, as `Worklist.claim`: `job.complete()` takes it. Messages become dead letters, too."""
        return await claimed(self._queue, ttl=ttl, wait=wait, holder=holder)

    async def dead(self) -> AsyncIterator[Message]:
        """The dead letters: messages that were claimed too often, and not completed."""
        async for page in self._queue.pages(dead=True):
            for entry in page:
                yield shown_message(entry)

    async def revive(self, message: Message, *, by: str = "", durability: Durability | None = None) -> None:
        """Put a dead letter back; its attempts are counted anew.

        Raises:
            NotFound: it is none.
        """
        await self._queue.connection.write(revive_request(self._queue, message.id, by=by), key=None, durability=durability)

    async def take(self, message: Message, *, by: str = "", durability: Durability | None = None) -> None:
        """Take the message, so that no reader gets it again. To take it together with a checkpoint:
        `thread.save(state, take=[message])`.

        Raises:
            Taken: another agent has taken it.
        """
        await self._queue.finish(take_request(self._queue.space, self._queue.thread, message, by=by), durability=durability)

    async def forget(self, *, before: datetime, durability: Durability | None = None) -> int:
        """Forget the messages that were taken before a time, and their keys; return how many."""
        return await self._queue.purge(before, durability=durability)


def send_request(space: str, thread: str, message: Any, *, key: str | None = None, by: str = "") -> requests.Enqueue:
    """The request that puts a message into a thread's inbox."""
    item = requests.QueueItem(key, values.encode(message, where="message"))
    return requests.Enqueue(space, thread, INBOX, [item], by)


def take_request(space: str, thread: str, message: Message, *, by: str = "") -> requests.Dequeue:
    """The request that takes a message.

    Raises:
        InvalidInput: it is not a message.
    """
    if not isinstance(message, Message):
        raise InvalidInput(
            f"take needs a message that inbox.next() or inbox.receive() returned, not {type(message).__name__}. "
            "Nothing was written."
        )
    return requests.Dequeue(space, thread, INBOX, message.id, by, once=True)


def shown_message(entry: QueueEntry) -> Message:
    """An entry of the inbox as handles show it."""
    return Message(entry.id, entry.key, entry.by, moment(entry.wall_ms), finishes(entry), entry.value, tuple(entry.others))
