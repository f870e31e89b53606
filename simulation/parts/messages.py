"""Messages that agents send to an inbox and take from it, and a journal that they consume under one name.

Laws (invariant 16: a message is neither lost nor taken back):
- What was sent is delivered or was taken; what was taken is delivered to nobody who
  could know, and to nobody at all once all hold the same.
- A consumer's cursor never goes back, neither in one session nor below what was acknowledged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from itertools import count
from random import Random
from typing import Any

from shoal import values
from shoal.crdt.dot import VersionVector
from shoal.errors import NotFound, ShoalError, Taken
from shoal.kinds.journal.state.journal import Cursor
from shoal.kinds.worklist.handle.worklist import Message
from shoal.protocol import requests
from shoal.protocol.requests import Ack, Append, Dequeue, Enqueue, Write
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

MESSAGES = "16"
_CONSUMER = "reader"


class Messages:
    """All by thread."""

    kinds: tuple[ActKind, ...] = ("send-message", "take-message", "consume")

    def __init__(self) -> None:
        self.sent: defaultdict[str, dict[str, Told]] = defaultdict(dict)  # By id.
        self.taken: defaultdict[str, dict[str, Told]] = defaultdict(dict)
        self.maybe_taken: set[str] = set()  # Ids; what was taken is forgotten once a clock is past its window.
        self.acked: defaultdict[str, list[tuple[VersionVector, Told]]] = defaultdict(list)
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"send-message": agent.send, "take-message": agent.take, "consume": agent.consume}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for thread in sorted(self.sent.keys() | self.acked.keys()):
            waiting = Counter([entry.id async for entry in _entries(session, thread)])
            taken = Counter([entry.id async for entry in _entries(session, thread, finished=True)])
            for id, told in self.sent[thread].items():
                times = waiting[id] + taken[id]
                forgotten = losses.of_windows and id in self.maybe_taken
                if times > 1 or (not times and not forgotten and told.is_owed(losses)):
                    found.append(Violation(MESSAGES, f"message {id[:16]} of {thread} was sent, and is there {times} times"))
            for id, told in self.taken[thread].items():
                if waiting[id] and told.is_owed(losses):
                    found.append(Violation(MESSAGES, f"message {id[:16]} of {thread} was taken, and still waits"))
            state = await session.call(requests.ReadConsumer(SPACE, thread, _CONSUMER))
            cursor = Cursor.unpack(state.cursor).vector
            for vector, told in self.acked[thread]:
                if told.is_owed(losses) and not cursor.dominates(vector):
                    found.append(Violation(MESSAGES, f"the consumer of {thread} is behind what was acknowledged"))
        return found


class _Agent:
    def __init__(self, messages: Messages, bench: Bench) -> None:
        self._messages = messages
        self._bench = bench
        self._thread = bench.space.thread(bench.name)
        self._taken: set[str] = set()  # By this session.
        self._cursor = VersionVector()  # That this session was shown.

    async def send(self, act: Act, random: Random) -> None:
        number = next(self._messages.numbers)
        key = f"message-{number}" if random.random() < 0.5 else None

        async def send() -> None:
            sent = await self._thread.inbox.send(
                {"number": number}, key=key, by=self._bench.client.name, durability=act.durability
            )
            self._messages.sent[self._bench.name][sent.id] = self._bench.told(act.durability)
            self._bench.did(f"send message {number}, {sent.id[:8]},")

        await self._carried_out(act, random, send, Enqueue)

    async def take(self, act: Act, random: Random) -> None:
        try:
            waiting = [message async for message in self._thread.inbox.pending()]
        except ShoalError as error:
            self._bench.refused(error)
            raise
        for message in waiting:
            if message.id in self._taken:
                self._bench.violated(MESSAGES, f"this session has taken message {message.id[:16]}, and gets it again")
        if waiting:
            await self._take(act, random, random.choice(waiting[:3]))

    async def _take(self, act: Act, random: Random, message: Message) -> None:
        self._messages.maybe_taken.add(message.id)

        async def send() -> None:
            await self._thread.inbox.take(message, by=self._bench.client.name, durability=act.durability)
            self._taken.add(message.id)
            self._messages.taken[self._bench.name][message.id] = self._bench.told(act.durability)
            self._bench.did(f"take message {message.id[:8]}")

        await self._carried_out(act, random, send, Dequeue)

    async def consume(self, act: Act, random: Random) -> None:
        """Append an event, read on as the consumer, and acknowledge some of what came."""

        async def append() -> None:
            await self._thread.journal.append(
                {"kind": "news", "number": next(self._messages.numbers)}, durability=act.durability
            )

        await self._carried_out(act, random, append, Append)
        consumer = self._thread.journal.consumer(_CONSUMER)
        try:
            events = [event async for event in consumer.read(follow=False)]
            self._moved(Cursor.unpack((await consumer.info()).cursor).vector)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        if not events:
            return
        event = random.choice(events)

        async def ack() -> None:
            await consumer.ack(event, durability=act.durability)
            self._messages.acked[self._bench.name].append(
                (Cursor.unpack(event.cursor).vector, self._bench.told(act.durability))
            )
            self._bench.did("acknowledge an event")

        await self._carried_out(act, random, ack, Ack)

    def _moved(self, cursor: VersionVector) -> None:
        if not cursor.dominates(self._cursor):
            self._bench.violated(MESSAGES, "the consumer's cursor went back")
        self._cursor = self._cursor.join(cursor)

    async def _carried_out(self, act: Act, random: Random, send: Callable[[], Awaitable[None]], of: type[Write[Any]]) -> None:
        try:
            await self._bench.send(act, random, send, of=of)
        except (Taken, NotFound):
            return  # By another agent, who may have forgotten it since.
        except ShoalError as error:
            self._bench.refused(error)
            raise


async def _entries(session: Session, thread: str, *, finished: bool = False) -> AsyncIterator[requests.QueueEntry]:
    after, more = "", True
    while more:
        page = await session.call(requests.ReadQueue(SPACE, thread, "", after, finished=finished))
        for entry in page.entries:
            values.decode(entry.value)
            yield entry
            after = entry.place
        more = page.more
