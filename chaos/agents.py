"""Agents on the public client: they save, append, add, set, edit and read, and note all they do and are shown.

Laws:
- An agent is one session. It does one thing at a time, but for an edit, which is
  made durable beside its other work; it reads no document meanwhile.
- It alone writes its thread and its register; a crew shares a journal, a counter
  and a document.
- It may take its bookmark to another client, on another node: the session is the
  same, and is owed the same.
- It never goes on from older state unasked: a node that is behind what it has
  seen is noted, and so is that it let go.
- An error is noted and work goes on; whether it was one to be expected is the
  judge's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from random import Random

from chaos.cluster import Cluster
from chaos.samples import Samples
from chaos.timeline import Timeline
from chaos.workers import Desk, Worker
from shoal.client.store import Store
from shoal.errors import BookmarkLost, NotFound, Overloaded, SessionBehind, ShoalError
from shoal.kinds.document.handle.document import Document
from shoal.protocol.requests import Durability
from simulation.judging.amounts import Amounts
from simulation.judging.history import (
    Acknowledged,
    Event,
    Failed,
    Invoked,
    LetGo,
    Refused,
    Shown,
    WriteKind,
)
from simulation.workload.random_agents import ROOT, SPACE, content_of, state_of

CREW = 6
"""So many agents share objects."""

_PAUSE_S = 0.05
_WHOLE = 0.03  # The share of a journal's reads that begin at its start.

Act = Callable[[str], Awaitable[None]]


class Agent:
    def __init__(
        self,
        cluster: Cluster,
        *,
        number: int,
        durability: Durability,
        numbers: Iterator[int],
        amounts: Amounts,
        note: Callable[[Event], None],
        samples: Samples,
        random: Random,
    ) -> None:
        self.name = f"agent-{number}"
        self.timeline = Timeline()
        self.turn = asyncio.Lock()  # Held while it does something.
        self._crew = f"crew-{number // CREW}"
        self._cluster = cluster
        self._number = number
        self._durability: Durability = durability
        self._numbers = numbers
        self._amounts = amounts
        self._note = note
        self._samples = samples
        self._random = random
        self._cursors: dict[str, bytes] = {}
        self._document: Document | None = None
        self._editing: asyncio.Task[None] | None = None
        self._stopping = self._leaving = self._is_placed = False

    def stop(self) -> None:
        """Let `run` end once what it does is done."""
        self._stopping = True

    def return_to(self, node: str) -> None:
        """If it prefers this node, and was driven away, let it go on there with another client."""
        self._leaving = node == self._cluster.nodes[self._number % len(self._cluster.nodes)].name

    async def run(self, interval_s: float) -> None:
        """Act every `interval_s`, until `stop`; what is late is not made up for."""
        bookmark = ""
        while not self._stopping:
            async with self._cluster.connect(
                self._cluster.urls(self._number), durability=self._durability, in_order=True, wait_s=30
            ) as store:
                if bookmark:
                    store.observe(bookmark)
                self._take(store)
                await self._work(interval_s)
                await self._end()
                bookmark = store.bookmark

    def _take(self, store: Store) -> None:
        self._store = store
        self._space = store.space(SPACE)
        self._leaving = self._is_placed = False
        self._take_handles()

    def _take_handles(self) -> None:
        """New handles: they have no position, and no context."""
        self._has_loaded = False
        self._thread = self._space.thread(self.name)
        self._register = self._space.register(self.name)

    async def _work(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time() + self._random.uniform(0, interval_s)
        while not (self._stopping or self._leaving):
            await asyncio.sleep(next_at - loop.time())
            async with self.turn:
                await self._act()
            next_at = max(next_at + interval_s, loop.time())

    async def _act(self) -> None:
        own, shared = self.name, self._crew
        acts: list[tuple[Act, str, int]] = [
            (self._save, own, 6),
            (self._append, self._random.choice((own, shared)), 4),
            (self._add, self._random.choice((own, shared)), 4),
            (self._assign, own, 2),
            (self._edit, shared, 1),
            (self._load, own, 2),
            (self._read_journal, self._random.choice((own, shared)), 2),
            (self._read_counter, self._random.choice((own, shared)), 2),
            (self._read_register, own, 1),
            (self._read_document, shared, 1),
        ]
        act, name, _ = self._random.choices(acts, weights=[weight for _, _, weight in acts])[0]
        try:
            await act(name)
            if not self._is_placed:
                await self._locate()
        except (SessionBehind, BookmarkLost) as error:
            await self._let_go(name, error)
        except Overloaded as error:
            await asyncio.sleep(float(str(error.detail.get("retry_after_s", _PAUSE_S))))
        except ShoalError:
            await asyncio.sleep(_PAUSE_S)

    # ── writes ────────────────────────────────────────────────────────────────

    async def _save(self, name: str) -> None:
        if not self._has_loaded:
            await self._load(name)  # Otherwise it would leave what it saved before as a head.

        async def save(number: int) -> Acknowledged:
            saved = await self._thread.save(state_of(number), on_conflict="fork")
            return Acknowledged(number, saved.id)

        await self._write("save", name, save)

    async def _append(self, name: str) -> None:
        key = self._random.random() < 0.5

        async def append(number: int) -> Acknowledged:
            journal = self._space.thread(name).journal
            appended = await journal.append(content_of(number), key=f"event-{number}" if key else None)
            return Acknowledged(number, appended.id)

        await self._write("append", name, append)

    async def _add(self, name: str) -> None:
        counter, by = self._amounts.next(name)

        async def add(number: int) -> Acknowledged:
            return Acknowledged(number, value=await self._space.counter(counter).add(by))

        await self._write("add", counter, add, by=by)

    async def _assign(self, name: str) -> None:
        async def assign(number: int) -> Acknowledged:
            await self._register.set(number)
            return Acknowledged(number)

        await self._write("assign", name, assign)

    async def _edit(self, name: str) -> None:
        if self._editing is None or self._editing.done():
            self._editing = asyncio.create_task(self._edit_through(name))

    async def _edit_through(self, name: str) -> None:
        async def edit(number: int) -> Acknowledged:
            if self._document is None:
                self._document = await self._space.document(name)
            self._document.map(ROOT)[str(number)] = number
            await self._document.flush()
            return Acknowledged(number)

        with suppress(ShoalError):  # It is noted.
            await self._write("edit", name, edit)

    async def _write(self, kind: WriteKind, name: str, send: Callable[[int], Awaitable[Acknowledged]], *, by: int = 0) -> None:
        number = next(self._numbers)
        self._note(Invoked(number, kind, name, self.name, by=by))
        sent_s = self._cluster.now_s()
        try:
            told = await send(number)
        except ShoalError as error:
            # An edit stays in the mirror, whatever the error says of this attempt: it may be written later.
            self._samples.failed(error.code, now_s=self._cluster.now_s())
            self._note(Failed(number, "unknown" if kind == "edit" else error.written, error.code, self.timeline.node))
            raise
        self._note(Acknowledged(number, told.id, told.value, self.timeline.node))
        now_s = self._cluster.now_s()
        self.timeline.acknowledged(now_s, sent_s=sent_s)
        self._samples.answered("write", asked_s=sent_s, now_s=now_s)

    # ── reads ─────────────────────────────────────────────────────────────────

    async def _load(self, name: str, *, stale: bool = False) -> None:
        async with self._reading(name):
            try:
                heads = list((await self._thread.load(stale=stale)).heads)
            except NotFound:
                heads = []
            self._has_loaded = True
            self._show("save", name, ids=heads)

    async def _read_journal(self, name: str) -> None:
        cursor = None if self._random.random() < _WHOLE else self._cursors.get(name)
        async with self._reading(name):
            events = [event async for event in self._space.thread(name).journal.read(after=cursor)]
            self._show("append", name, numbers=[event.event["number"] for event in events], whole=cursor is None)
            if events:
                self._cursors[name] = events[-1].cursor

    async def _read_counter(self, name: str, *, stale: bool = False) -> None:
        counter = self._amounts.counter(name)
        async with self._reading(counter):
            self._show("add", counter, value=await self._space.counter(counter).value(stale=stale))

    async def _read_register(self, name: str) -> None:
        async with self._reading(name):
            self._show("assign", name, numbers=await self._register.siblings())

    async def _read_document(self, name: str) -> None:
        if self._editing is not None and not self._editing.done():
            return
        async with self._reading(name), await self._space.document(name) as document:
            self._show("edit", name, numbers=[int(key) for key in document.to_py().get(ROOT, {})])

    def _show(
        self,
        kind: WriteKind,
        name: str,
        *,
        ids: list[str] | None = None,
        numbers: list[int] | None = None,
        value: int = 0,
        whole: bool = True,
    ) -> None:
        self._note(Shown(self.name, kind, name, ids or [], numbers or [], value, whole, self.timeline.node))

    @asynccontextmanager
    async def _reading(self, name: str) -> AsyncIterator[None]:
        asked_s = self._cluster.now_s()
        try:
            yield
        except ShoalError as error:
            self._samples.failed(error.code, now_s=self._cluster.now_s())
            self._note(Refused(self.name, name, error.code, self.timeline.node))
            raise
        self._samples.answered("read", asked_s=asked_s, now_s=self._cluster.now_s())

    # ── going on ──────────────────────────────────────────────────────────────

    async def _let_go(self, name: str, error: ShoalError) -> None:
        """Go on from what this node has of the partition of `name`; if even that fails, the next act meets the error again."""
        self._note(LetGo(self.name, name, error.code))
        self._cursors.pop(name, None)
        with suppress(ShoalError):  # It is noted.
            await self._read_counter(name, stale=True)
            if name == self.name:
                self._take_handles()
                await self._load(name, stale=True)

    async def _locate(self) -> None:
        """Note the node that this client began with: it leaves it when that node is struck, and not before."""
        status = await self._store.status()
        name = next((node.name for node in self._cluster.nodes if node.id == status.node), status.node)
        self.timeline.on(name, self._cluster.now_s())
        self._is_placed = True

    async def _end(self) -> None:
        if self._editing is not None:
            await self._editing
        if self._document is not None:
            with suppress(ShoalError):  # What it could not write is noted as unknown already.
                await self._document.close()
        self._editing = self._document = None


class Crowd:
    """All agents and workers, at work."""

    def __init__(self, agents: list[Agent], workers: list[Worker], tasks: list[asyncio.Task[None]]) -> None:
        self.agents = agents
        self._everybody: list[Agent | Worker] = [*agents, *workers]
        self._tasks = tasks

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Everybody has ended what it did, and does nothing until the context is left; edits may still be under way."""
        async with AsyncExitStack() as stack:
            for one in self._everybody:
                await stack.enter_async_context(one.turn)
            yield

    def return_to(self, node: str) -> None:
        """A node is there again: let those who prefer it come back."""
        for agent in self.agents:
            agent.return_to(node)

    async def finish(self) -> None:
        """Let everybody end what it does, and all edits; what ended one before its time is raised."""
        for one in self._everybody:
            one.stop()
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def at_work(
    desk: Desk,
    *,
    agents: int,
    rate: float,
    workers: int,
    durability: Durability,
    note: Callable[[Event], None],
    samples: Samples,
    random: Random,
) -> AsyncIterator[Crowd]:
    """Agents that together do `rate` things a second, and workers beside them, spread evenly over the nodes."""
    numbers, amounts = count(1), Amounts()
    crowd = [
        Agent(
            desk.cluster,
            number=number,
            durability=durability,
            numbers=numbers,
            amounts=amounts,
            note=note,
            samples=samples,
            random=Random(random.random()),
        )
        for number in range(agents)
    ]
    crew = [Worker(desk, number=number, random=Random(random.random())) for number in range(workers)]
    tasks = [asyncio.create_task(agent.run(agents / rate)) for agent in crowd]
    tasks += [asyncio.create_task(worker.run()) for worker in crew]
    try:
        yield Crowd(crowd, crew, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
