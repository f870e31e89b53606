"""Worklists whose items workers claim: they complete them, give them back, stand still for longer than their claims last, die.

Laws (invariant 24):
- Once a worker was told that it has an item, nobody counts on an earlier claim of it; fencing numbers grow.
- No item is completed twice, and none is handed out after its completion was acknowledged. That result counts.
- Healed, each item that was added is completed or a dead letter within bounded time, whatever its workers did. If a clock
  has jumped, an item may be delayed for as long.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from shoal import values
from shoal.client.store import Space, Store
from shoal.errors import LeaseLost, ShoalError, Taken
from shoal.kinds.worklist.handle.queues import Job, item_id
from shoal.protocol.requests import ClaimItem, CompleteItem, ReadQueue, ReadQueueEntry
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.parts.tenures import Gate, begun, ended
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

SHIFT = "24"
WORK = "shift"

_TTLS_S = (1.0, 1.5, 3.0)
_PAUSES = (0.5, 0.9, 1.02, 1.2, 2.5)  # Of the ttl.
_LOOK_S = 0.02
_DONE_S_MAX = 20.0
"""Healed, all items of a thread are done within this virtual time, unless they are delayed by a clock that was wrong."""

_Key = tuple[str, str]


class Completed(NamedTuple):
    """An acknowledged completion."""

    fence: int
    told: Told


class Shifts:
    """All claims and completions, by thread and key."""

    kinds: tuple[ActKind, ...] = ("claim-work", "add-work")

    def __init__(self) -> None:
        self.added: dict[_Key, Told] = {}
        self.granted: defaultdict[_Key, int] = defaultdict(int)  # The last fencing number that any worker was told.
        self.completed: dict[_Key, Completed] = {}
        self.doubts: list[tuple[Completed, str]] = []  # Violations if the completion is owed.
        self.numbers = 0
        self.agents: list[_Agent] = []

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        self.agents.append(agent)
        return {"add-work": agent.add, "claim-work": agent.work}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        for agent in self.agents:
            await agent.end()
        found = [Violation(SHIFT, text) for completed, text in self.doubts if completed.told.is_owed(losses)]
        for thread in sorted({thread for thread, _ in self.added}):
            found += await self._drained(session, thread, losses)
        for (thread, key), told in sorted(self.added.items()):
            page = await session.call(ReadQueueEntry(SPACE, thread, WORK, item_id(key)))
            entry = page.entries[0] if page.entries else None
            if entry is None:
                if told.is_owed(losses):
                    found.append(Violation(SHIFT, f"{key} of {thread} was added, and is not there"))
                continue
            is_dead = entry.tried is not None and entry.tried.state == "dead"
            if not entry.finishes and not is_dead and not losses.of_delays:
                found.append(Violation(SHIFT, f"healed, {key} of {thread} is neither completed nor a dead letter"))
            done = self.completed.get((thread, key))
            if done is not None and done.told.is_owed(losses):
                results = [values.decode(finish.result) for finish in entry.finishes]
                if results[:1] != [done.fence]:
                    found.append(Violation(SHIFT, f"{key} of {thread} was completed under {done.fence}, and shows {results}"))
        return found

    async def _drained(self, session: Session, thread: str, losses: Losses) -> list[Violation]:
        ends_at = _now() + _DONE_S_MAX
        error = "nobody gets its items"
        while _now() < ends_at:
            try:
                if not (await session.call(ReadQueue(SPACE, thread, WORK, "", 1))).entries:
                    return []
                got = await session.call(ClaimItem(SPACE, thread, WORK, 5000, "judge", wait=2000))
                if got.claimed:
                    assert got.key is not None
                    self.granted[thread, got.key] = max(self.granted[thread, got.key], got.fence)
                    if (done := self.completed.get((thread, got.key))) is not None:
                        self.doubts.append((done, f"{got.key} of {thread} is handed out after it was completed"))
                    result = values.encode(got.fence)
                    await session.call(CompleteItem(SPACE, thread, WORK, got.id, got.fence, got.token, result))
            except ShoalError as refused:
                error = refused.message
                await asyncio.sleep(0.1)
        if losses.of_delays:
            return []
        return [Violation(SHIFT, f"{thread}: healed, its worklist does not become empty: {error}")]


class _Agent:
    def __init__(self, shifts: Shifts, bench: Bench) -> None:
        self._shifts = shifts
        self._bench = bench
        self._stores: list[Store] = []

    async def add(self, act: Act, random: Random) -> None:
        """Add an item, of a group or of none."""
        self._shifts.numbers += 1
        key = f"item-{self._shifts.numbers}"
        work = self._bench.space.thread(self._bench.name).worklist(WORK)
        options: dict[str, Any] = random.choice(
            ({}, {}, {"priority": 3}, {"delay": 2.0}, {"group": "g", "group_max": 1}, {"attempts_max": 2})
        )
        try:
            await work.add([key], by=self._bench.client.name, durability=act.durability, **options)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._shifts.added[self._bench.name, key] = self._bench.told(act.durability)
        self._bench.did(f"add {key}")

    async def work(self, act: Act, random: Random) -> None:
        """Claim an item, and end it in one way or another."""
        connection, gate = begun(self._bench)

        async def nothing() -> None:
            pass

        self._stores.append(Store(connection, close=nothing))
        items = Space(connection, SPACE).thread(self._bench.name).worklist(WORK)
        try:
            job = await items.claim(ttl=random.choice(_TTLS_S), wait=random.choice((0.0, 2.0, 12.0)), holder=str(act.agent))
        except ShoalError as error:
            self._bench.refused(error)
            raise
        if job is None:
            self._bench.did("nothing: there is no work")
            return
        self._granted(job)
        watching = asyncio.create_task(self._watch(job, gate))
        try:
            await self._carried_out(job, gate, random)
        except (LeaseLost, Taken):
            self._bench.did(f"no more of {job.item} under {job.fence}")
        except ShoalError as error:
            self._bench.refused(error)
            raise
        finally:
            watching.cancel()
            job.settle()

    def _granted(self, job: Job) -> None:
        place = self._bench.name, job.item
        before = self._shifts.granted[place]
        if job.fence <= before:
            self._bench.violated(SHIFT, f"claim {job.fence} of {job.item} is granted after {before}")
        self._shifts.granted[place] = max(before, job.fence)
        if (done := self._shifts.completed.get(place)) is not None:
            self._shifts.doubts.append((done, f"{job.item} of {place[0]} is handed out after it was completed"))
        self._bench.did(f"claim {job.item} under {job.fence}, attempt {job.attempt},")

    async def _watch(self, job: Job, gate: Gate) -> None:
        """All the time, while it does not stand still, it may have effects outside."""
        while not job.ended.is_set():
            if gate.goes.is_set():
                with suppress(LeaseLost):
                    job.check()
                    newest = self._shifts.granted[self._bench.name, job.item]
                    if not job.ended.is_set() and job.fence < newest:
                        self._bench.violated(SHIFT, f"claim {job.fence} of {job.item} counts after {newest} began")
            await asyncio.sleep(_LOOK_S)

    async def _carried_out(self, job: Job, gate: Gate, random: Random) -> None:
        gate.loses_renewals = random.random() < 0.3
        job._tenure.begin()
        await asyncio.sleep(random.choice((0.0, 0.05, 0.4, 2.0)))
        if random.random() < 0.4:
            gate.goes.clear()
            for_s = job._tenure.ttl_s * random.choice(_PAUSES)
            asyncio.get_running_loop().call_later(for_s, gate.goes.set)
        ending = random.random()
        if ending < 0.2:
            self._bench.did("no more: it is dead")
            gate.goes = asyncio.Event()
            job._tenure.forget()
        elif ending < 0.4:
            dead = await job.fail("no", retry_in=random.choice((0.0, 1.0)))
            self._bench.did(f"give {job.item} back, {'dead' if dead else 'to be tried again'},")
        else:
            await self._complete(job, gate, again=ending > 0.8)

    async def _complete(self, job: Job, gate: Gate, *, again: bool) -> None:
        place = self._bench.name, job.item
        term = job._tenure.term
        packed = values.encode(job.fence)
        # Not the handle's: a worker may not look at its clock, or may try twice.
        request = CompleteItem(SPACE, place[0], WORK, job.id, job.fence, term.token, packed)
        for _ in range(2 if again else 1):
            await gate.call(request)
            told = self._bench.told("quorum")
            if (before := self._shifts.completed.get(place)) is not None:
                text = f"{job.item} of {place[0]} is completed twice: under {before.fence}, and under {job.fence}"
                self._shifts.doubts.append((before, text))
            self._shifts.completed.setdefault(place, Completed(job.fence, told))
            self._bench.did(f"complete {job.item} under {job.fence}")

    async def end(self) -> None:
        """End what workers that died have left."""
        stores, self._stores = self._stores, []
        for store in stores:
            await ended(store.connection)


def _now() -> float:
    return asyncio.get_running_loop().time()
