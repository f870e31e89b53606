"""A stream of three real nodes in virtual time: each write and each answer may be late by more than a lease lasts, while nodes
are cut off, lose their power and come back. Producers repeat at another node what was not answered, and readers change nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from shoal.config import Config
from shoal.errors import ShoalError
from shoal.protocol.requests import Durability, R, Request
from shoal.protocol.session import Session, Wrapper
from shoal.testing.machines import run
from shoal.workflows.streams import record as chain
from shoal.workflows.streams.decisions import Append, Create, ProducerHeaders, Settle
from shoal.workflows.streams.record import BEGINNING, Offset
from shoal.workflows.streams.writer import Writer
from simulation.bounds import altered
from simulation.world.fleet import Fleet

TTL_S = 1.0
CONFIG = Config(stream_ttl_s=TTL_S)
LATE_SHARE = 0.04  # Of the calls: so many wait before they are made, or before their answer is given.
FAULTS = 8
SEEDS = (23, pytest.param(1, marks=pytest.mark.thorough), pytest.param(8, marks=pytest.mark.thorough))
"""8 and 23 find it if a record and its note are one write, as at a single node."""


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(stream_idle_s=0.3, stream_wait_s=4.0):
        yield


class Late(Wrapper):
    """A session whose node stands still at times, before a call or after it."""

    def __init__(self, session: Session, chance: Random) -> None:
        super().__init__(session)
        self._chance = chance

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        await self._stand_still()
        try:
            return await self._session.call(request, key=key, durability=durability, stale=stale)
        finally:
            await self._stand_still()

    async def _stand_still(self) -> None:
        if self._chance.random() < LATE_SHARE:
            await asyncio.sleep(self._chance.uniform(0.0, 3 * TTL_S))


class Scene:
    """A stream, its writers, and what its producers and readers know."""

    def __init__(self, nodes: Fleet, chance: Random) -> None:
        self.nodes = nodes
        self.chance = chance
        self.acknowledged = {"p": 0, "q": 0}
        self.seen: list[list[bytes]] = []
        self.over = False
        self._writers: dict[str, Writer] = {}

    def writer(self, name: str) -> Writer:
        writer = self._writers.get(name)
        if writer is None:
            session = Late(self.nodes[name].node.session(), self.chance)
            writer = self._writers[name] = Writer(session, "crew", "s", config=CONFIG, now_ms=lambda: 1)
        return writer

    def node(self) -> str:
        return self.chance.choice(sorted(self.nodes.members))

    async def produce(self, id: str) -> None:
        name = self.node()
        while not self.over:
            number = self.acknowledged[id]
            append = Append("s", "text/plain", f"{id}{number};".encode(), producer=ProducerHeaders(id, 0, number))
            try:
                async with asyncio.timeout(5 * TTL_S):
                    outcome = (await self.writer(name).submit(append)).outcome
                assert outcome.status in (200, 204), (id, number, outcome)
                self.acknowledged[id] += 1
            except (ShoalError, TimeoutError, KeyError):
                await asyncio.sleep(0.05)
                name = self.node()

    async def read(self) -> None:
        """Follow the stream, as a live reader does: from what any node has noted."""
        seen, offset = list[bytes](), BEGINNING
        self.seen.append(seen)
        while not self.over:
            await asyncio.sleep(self.chance.uniform(0.0, 0.2))
            with suppress(ShoalError):
                session = self.nodes[self.node()].node.session()
                head = await chain.head(session, "crew", "s")
                if head.state is not None and head.state.tail.data >= offset.data:
                    offset = await self._read_on(session, head, seen, offset)

    async def _read_on(self, session: Session, head: chain.Head, seen: list[bytes], offset: Offset) -> Offset:
        assert head.state is not None
        size = self.chance.choice((1, 1 << 20))
        part = await chain.read(session, "crew", "s", head.state, offset, committed=head.committed, bytes_max=size)
        assert part.end.data == offset.data + len(part.entries)
        seen.extend(part.entries)
        return part.end

    async def fail(self) -> None:
        """One fault, and its end."""
        name, kind = self.node(), self.chance.choice(("isolate", "cut", "crash", "mute", "mute"))
        other = self.chance.choice([each for each in sorted(self.nodes.members) if each != name])
        if kind == "isolate":
            await self.nodes.isolate(name)
        elif kind == "cut":
            await self.nodes.cut(name, other)
        elif kind == "mute":  # Its links seem to be up, and nothing that it says arrives.
            self.nodes.spoil = lambda source, _, message: None if source == name else message
        else:
            left = await self.nodes.crash(name)
            self._writers.pop(name, None)  # Also one that was made while it went down.
        await asyncio.sleep(self.chance.uniform(0.0, 4 * TTL_S))
        self.nodes.spoil = lambda _source, _target, message: message
        if kind == "crash":
            self.nodes.start(name, left)
        self.nodes.link_all(name)
        await asyncio.sleep(self.chance.uniform(0.0, 2 * TTL_S))

    async def stored(self) -> list[bytes]:
        """All of it, once a holder has noted what was left."""
        session = self.nodes["a"].node.session()
        while True:
            try:
                await self.writer("a").submit(Settle("s"))
                head = await chain.caught_up(session, "crew", "s")
                break
            except ShoalError:
                await asyncio.sleep(0.1)
        assert head.state is not None
        part = await chain.read(session, "crew", "s", head.state, BEGINNING, committed=head.committed, bytes_max=1 << 30)
        return part.entries


async def scene(seed: int) -> tuple[list[bytes], Scene]:
    chance = Random(seed)
    async with Fleet("abc", seed=seed, quorum_timeout_s=1.0, quorum_register_retry_s=0.05) as nodes:
        found = Scene(nodes, chance)
        await Writer(nodes["a"].node.session(), "crew", "s", config=CONFIG, now_ms=lambda: 1).submit(Create("s", "text/plain"))
        working = [
            asyncio.create_task(work) for work in (found.produce("p"), found.produce("q"), *(found.read() for _ in "abc"))
        ]
        for _ in range(FAULTS):
            await found.fail()
        found.over = True
        await asyncio.gather(*working)
        stored = await found.stored()
        await asyncio.sleep(10 * TTL_S)  # Writers let go, and what was late is over.
        await nodes.converged()
        assert await found.stored() == stored
        return stored, found


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_shown_in_another_order(seed: int) -> None:
    stored, found = run(scene(seed))
    for id, count in found.acknowledged.items():
        mine = [entry for entry in stored if entry.startswith(id.encode())]
        assert mine == [f"{id}{n};".encode() for n in range(len(mine))]
        assert count <= len(mine) <= count + 1
        assert count > 0
    for seen in found.seen:
        assert seen == stored[: len(seen)]
