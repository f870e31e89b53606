"""A worklist whose items agents add, do and forget, under few keys: they meet.

Laws (invariant 16):
- What was added waits or is done; what is done waits nowhere. Both hold for what nobody has forgotten since.
- An item that waits shows the key that its id stands for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from random import Random
from typing import Any

from shoal.errors import NotFound, ShoalError
from shoal.kinds.worklist.handle.queues import item_id
from shoal.protocol import requests
from shoal.protocol.requests import Dequeue, Enqueue, Purge, Write
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

MESSAGES = "16"
WORK = "work"
_KEYS = ("job-0", "job-1")
_END = datetime(9000, 1, 1, tzinfo=UTC)


class Jobs:
    """All by thread and key."""

    kinds: tuple[ActKind, ...] = ("add-job", "do-job", "forget-jobs")

    def __init__(self) -> None:
        self.added: defaultdict[tuple[str, str], list[Told]] = defaultdict(list)
        self.done: defaultdict[tuple[str, str], list[Told]] = defaultdict(list)
        self.forgotten: set[str] = set()  # Threads of which some may have been.

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"add-job": agent.add, "do-job": agent.do, "forget-jobs": agent.forget}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for thread in sorted({name for name, _ in self.added}):
            waiting = await _entries(session, thread)
            ended = await _entries(session, thread, finished=True)
            for id, key in waiting.items():
                if key is None or item_id(key) != id:
                    found.append(Violation(MESSAGES, f"item {id[:16]} of {thread} waits under the key {key}"))
            if thread in self.forgotten:
                continue
            for key in _KEYS:
                id = item_id(key)
                added, done = (any(told.is_owed(losses) for told in tolds[thread, key]) for tolds in (self.added, self.done))
                if added and id not in waiting and id not in ended:
                    found.append(Violation(MESSAGES, f"{key} of {thread} was added, and is not there"))
                if done and (id in waiting or id not in ended):
                    found.append(Violation(MESSAGES, f"{key} of {thread} was done, and is not"))
        return found


class _Agent:
    def __init__(self, jobs: Jobs, bench: Bench) -> None:
        self._jobs = jobs
        self._bench = bench
        self._work = bench.space.thread(bench.name).worklist(WORK)

    async def add(self, act: Act, random: Random) -> None:
        key = random.choice(_KEYS)

        async def send() -> None:
            if await self._work.add([key], by=self._bench.client.name, durability=act.durability):
                self._jobs.added[self._bench.name, key].append(self._bench.told(act.durability))

        await self._carried_out(act, random, send, Enqueue, f"add {key}")

    async def do(self, act: Act, random: Random) -> None:
        key = random.choice(_KEYS)

        async def send() -> None:
            done = await self._work.done(key, by=self._bench.client.name, durability=act.durability)
            if done.first:
                self._jobs.done[self._bench.name, key].append(self._bench.told(act.durability))

        await self._carried_out(act, random, send, Dequeue, f"do {key}")

    async def forget(self, act: Act, random: Random) -> None:
        self._jobs.forgotten.add(self._bench.name)

        async def send() -> None:
            await self._work.forget(before=_END, durability=act.durability)

        await self._carried_out(act, random, send, Purge, "forget what is done")

    async def _carried_out(
        self, act: Act, random: Random, send: Callable[[], Awaitable[None]], of: type[Write[Any]], what: str
    ) -> None:
        try:
            await self._bench.send(act, random, send, of=of)
        except NotFound:
            return  # Nobody has added it, or somebody has forgotten it.
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(what)


async def _entries(session: Session, thread: str, *, finished: bool = False) -> dict[str, str | None]:
    """Keys by id."""
    page = await session.call(requests.ReadQueue(SPACE, thread, WORK, "", finished=finished))
    assert not page.more
    return {entry.id: entry.key for entry in page.entries}
