"""Clients for the trials: agents that write and read at random, and note all they do and see.

Law: an agent knows a `Session` and nothing of what answers it, so that the same
workload runs on a node in this process, in a worker that will be killed, and
over the network. A cancelled agent leaves its last write without an outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pycrdt

from shoal import values
from shoal.errors import Disconnected, OutcomeUnknown, Overloaded, ShoalError, SlowConsumer
from shoal.kinds.document.state.yjs import CLIENT_ID_BITS
from shoal.protocol import requests
from shoal.protocol.session import Session
from simulation.judging.history import (
    Acknowledged,
    Event,
    Failed,
    Invoked,
    Opened,
    SeenCursor,
    SeenId,
    SeenValue,
    WriteKind,
    amount,
)

SPACE = "trial"
SHARED = "shared"  # The counter and the journal that all agents write.
ROOT = "written"  # The root map of a document.
_PAUSE_S = 0.01

Note = Callable[[Event], None]


def state_of(number: int) -> dict[str, Any]:
    """The state that the save `number` saves: one channel that is small, one that is cut into chunks."""
    notes = [f"observation {n}: the {n * 7919 % 1000}th thing that was seen" for n in range(number - 24, number)]
    return {"step": number, "notes": notes}


def channels_of(number: int) -> dict[str, bytes]:
    return {name: values.encode(value) for name, value in state_of(number).items()}


def content_of(number: int) -> dict[str, Any]:
    """What the append `number` appends."""
    return {"number": number, "text": f"event {number}"}


def event_of(number: int) -> bytes:
    return values.encode(content_of(number))


class Agent:
    """One writer. It alone writes its thread, its register and its document."""

    def __init__(self, session: Session, *, name: str, numbers: Iterator[int], note: Note, random: Random) -> None:
        self.name = name
        self._session = session
        self._numbers = numbers
        self._note = note
        self._random = random
        self._position: str | None = None
        self._cursor = b""
        self._stopping = False

    def stop(self) -> None:
        """Let `run` end once its request is answered."""
        self._stopping = True

    async def run(self) -> None:
        """Write and read until `stop`.

        Raises:
            ShoalError: whatever the node answers, but for Overloaded.
        """
        acts = [self._save, self._append, self._add, self._assign, self._edit, self._read]
        while not self._stopping:
            try:
                await self._random.choices(acts, weights=(4, 3, 3, 1, 1, 3))[0]()
            except Overloaded:
                await asyncio.sleep(_PAUSE_S)

    # ── writes ────────────────────────────────────────────────────────────────

    async def _save(self) -> None:
        def request(number: int) -> requests.AnyWrite:
            return requests.Save(SPACE, self.name, channels_of(number), parent=self._position)

        reply = await self._write("save", self.name, request)
        if isinstance(reply, requests.Saved):
            self._position = reply.id

    async def _append(self) -> None:
        name = self._random.choice((self.name, SHARED))
        await self._write("append", name, lambda n: requests.Append(SPACE, name, event_of(n), f"event-{n}"))

    async def _add(self) -> None:
        await self._write("add", SHARED, lambda n: requests.Add(SPACE, SHARED, amount(n)))

    async def _assign(self) -> None:
        await self._write("assign", self.name, lambda n: requests.Assign(SPACE, self.name, values.encode(n)))

    async def _edit(self) -> None:
        client_id = self._random.getrandbits(CLIENT_ID_BITS)

        def request(number: int) -> requests.AnyWrite:
            doc: pycrdt.Doc[pycrdt.Map[int]] = pycrdt.Doc(client_id=client_id)
            doc.get(ROOT, type=pycrdt.Map)[str(number)] = number
            return requests.Update(SPACE, self.name, doc.get_update(), {ROOT: "map"})

        await self._write("edit", self.name, request)

    async def _write(self, kind: WriteKind, name: str, request: Callable[[int], requests.AnyWrite]) -> requests.AnyReply | None:
        """Note the write, send it, and note what became of it."""
        number = next(self._numbers)
        self._note(Invoked(number, kind, name))
        key = f"trial-{number}" if self._random.random() < 0.5 else None
        try:
            reply: requests.AnyReply = await self._session.call(request(number), key=key)
        except ShoalError as error:
            self._note(Failed(number, error.written, error.code))
            raise
        id = reply.id if isinstance(reply, requests.Saved | requests.Appended) else ""
        self._note(Acknowledged(number, id))
        if isinstance(reply, requests.Added):
            self._note(SeenValue("add", name, reply.value))
        return reply

    # ── reads ─────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        reads: list[Callable[[], Awaitable[None]]] = [self._load, self._events, self._total, self._register]
        # A document is sent whole.
        reads.extend([self._document] if self._random.random() < 0.2 else [])
        await self._random.choice(reads)()

    async def _load(self) -> None:
        branches = await self._session.call(requests.Heads(SPACE, self.name))
        for heads in branches.branches.values():
            for head in heads:
                self._note(SeenId("save", self.name, head))

    async def _events(self) -> None:
        page = await self._session.call(requests.ReadJournal(SPACE, SHARED, self._cursor, 100))
        for event in page.events:
            self._note(SeenId("append", SHARED, event.id))
        self._cursor = page.cursor
        self._note(SeenCursor(SHARED, page.cursor))

    async def _total(self) -> None:
        total = await self._session.call(requests.ReadCounter(SPACE, SHARED))
        self._note(SeenValue("add", SHARED, total.value))

    async def _register(self) -> None:
        for value in numbers_of(await self._session.call(requests.ReadRegister(SPACE, self.name))):
            self._note(SeenValue("assign", self.name, value))

    async def _document(self) -> None:
        state = await self._session.call(requests.ReadDocument(SPACE, self.name))
        self._note(SeenValue("edit", self.name, max(written_in(state.update), default=0)))


def numbers_of(siblings: requests.AnyReply) -> list[int]:
    assert isinstance(siblings, requests.Siblings)
    return [values.decode(sibling.value) for sibling in siblings.siblings]


def written_in(update: bytes) -> list[int]:
    """The numbers that a document holds."""
    doc: pycrdt.Doc[pycrdt.Map[int]] = pycrdt.Doc()
    doc.apply_update(update)
    held: Mapping[str, object] = doc.get(ROOT, type=pycrdt.Map).to_py() or {}
    return [int(key) for key in held]


async def watch(session: Session, note: Note) -> None:
    """Note every change that is pushed, until this is cancelled; subscribes anew when a subscription breaks."""
    while True:
        try:
            async with session.subscribe(requests.Watch(SPACE)) as pushes:
                async for push in pushes:
                    if isinstance(push, requests.Change) and push.id:
                        note(SeenId("save" if push.what == "save" else "append", push.name, push.id))
        except (SlowConsumer, Disconnected, OutcomeUnknown):
            await asyncio.sleep(_PAUSE_S)


async def note_origin(session: Session, note: Note) -> None:
    """Note the origin of this opening, once there is one."""
    status = await session.call(requests.Status())
    if status.origin:
        note(Opened(status.origin))


class Work:
    """Agents and a watcher, at work."""

    def __init__(self, agents: list[Agent], tasks: list[asyncio.Task[None]], watcher: asyncio.Task[None]) -> None:
        self._agents = agents
        self._tasks = tasks
        self._watcher = watcher

    async def finish(self) -> None:
        """Let every agent end what it does; then nothing of theirs is unknown."""
        for agent in self._agents:
            agent.stop()
        await asyncio.gather(*self._tasks)

    def cut_off(self) -> None:
        for task in (*self._tasks, self._watcher):
            task.cancel()


@asynccontextmanager
async def working(session: Session, *, agents: int, numbers: Iterator[int], note: Note, random: Random) -> AsyncIterator[Work]:
    """Agents and a watcher at work. At the end they are cut off in the middle of what they do.

    Raises:
        ExceptionGroup: one of them failed, at once.
    """
    workers = [
        Agent(session, name=f"agent-{n}", numbers=numbers, note=note, random=Random(random.random())) for n in range(agents)
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(agent.run()) for agent in workers]
        work = Work(workers, tasks, group.create_task(watch(session, note)))
        try:
            yield work
        finally:
            work.cut_off()
