"""A thread's inbox: keyed messages from other agents, each taken once.

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

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.errors import InvalidInput
from shoal.kinds.worklist.handle.jobs import Job, claimed, revive_request
from shoal.kinds.worklist.handle.queues import Finish, Queue, finishes
from shoal.kinds.worklist.state import INBOX
from shoal.protocol import requests
from shoal.protocol.requests import Durability, QueueEntry
from shoal.workflows.moments import moment


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
