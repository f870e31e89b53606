"""The handle of a journal's consumer, which continues after the last event that was acknowledged under its name.

    async for event in thread.journal.consumer("billing"):
        await bill(event.event, key=event.key)
        await consumer.ack(event)

Law: at least once. An event that is not acknowledged comes again to the next reader of
this name, on any node. Of two events with the same key and content a
reader gets one. If an event is acknowledged in one batch with its effects
(`batch.thread(name).ack(consumer, event)`), each effect counts once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.kinds.journal.flows.events import Event
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.moments import moment

KEYS_MAX = 4096  # How many keys a reader remembers to leave out repetitions.


class Source(Protocol):
    """The journal that a consumer reads."""

    space: str
    thread: str

    def read(
        self, *, after: bytes | None, follow: bool, timeout: float | None, skip_trimmed: bool
    ) -> AsyncGenerator[Event, None]:
        """Yield events in order, after a cursor or from the first (`Journal.read`)."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer of a journal, and how far behind it is."""

    name: str
    behind: int  # How many events it has not acknowledged; at least so many if `counted` is false.
    counted: bool
    acked: datetime | None  # When it acknowledged last; None if it never did.
    cursor: bytes


@named
class Consumer:
    """A reader of a journal whose cursor is stored under a name."""

    def __init__(self, connection: StoreConnection, journal: Source, name: str) -> None:
        self._connection = connection
        self._journal = journal
        self.name = check_name("consumer", name)
        self.generation: int | None = None  # The generation of the cursor that it reads from; a reset begins another.

    def __repr__(self) -> str:
        return f"Consumer({self._journal.space!r}, {self._journal.thread!r}, {self.name!r})"

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.read()

    async def read(
        self,
        *,
        follow: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109
        skip_trimmed: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events that this consumer has not acknowledged, and with `follow` new ones as they come.

        After a disconnect it continues by itself, with another node if there is one. With a `timeout` it follows until
        nothing has come for so many seconds.

        Raises:
            Disconnected: no node could be reached for `request_timeout_s`. Read again after the last acknowledged event.
            JournalTrimmed: events that it has not acknowledged were trimmed; with `skip_trimmed` it continues after them.
        """
        state = await self._state()
        self.generation = state.generation
        got: dict[str, bytes] = {}
        source = self._journal.read(after=state.cursor, follow=follow, timeout=timeout, skip_trimmed=skip_trimmed)
        async with aclosing(source) as events:
            async for event in events:
                # A key that was appended on two nodes moves to one of the two places, and may come again.
                if event.key is not None:
                    if got.get(event.key) == event.packed:
                        continue
                    got[event.key] = event.packed
                    if len(got) > KEYS_MAX:
                        del got[next(iter(got))]
                yield event

    async def ack(self, event: Event, *, durability: Durability | None = None) -> None:
        """Acknowledge `event` and all events that this consumer received before it.

        Raises:
            ConsumerReset: the cursor was reset after this handle began to read; read again.
        """
        request = ack_request(self._journal.space, self._journal.thread, self, event)
        await self._connection.write(request, key=None, durability=durability)

    async def reset(self, after: Event | None = None, *, durability: Durability | None = None) -> None:
        """Set the cursor after `event`, or to the start of the journal, even if that moves it backwards."""
        cursor = b"" if after is None else after.cursor
        request = requests.Ack(self._journal.space, self._journal.thread, self.name, cursor, None, True)
        self.generation = (await self._connection.write(request, key=None, durability=durability)).generation

    async def info(self) -> ConsumerInfo:
        """How far behind the consumer is."""
        return described(await self._state())

    async def _state(self) -> requests.ConsumerState:
        journal = self._journal
        return await self._connection.read(requests.ReadConsumer(journal.space, journal.thread, self.name))


def ack_request(space: str, thread: str, consumer: Consumer, event: Event) -> requests.Ack:
    """The request that acknowledges an event and all that the consumer received before it."""
    return requests.Ack(space, thread, consumer.name, event.cursor, consumer.generation)


def described(state: requests.ConsumerState) -> ConsumerInfo:
    """A consumer's state as handles show it."""
    acked = moment(state.acked_ms) if state.acked_ms else None
    return ConsumerInfo(state.name, state.behind, state.counted, acked, state.cursor)
