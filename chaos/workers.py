"""Workers on the public client: effects outside, budgets, worklists and counters, each deed noted in the ledger.

Laws:
- A worker goes on with the next thing after any error; whether the error was one to be
  expected is the judge's business.
- What it does not know the outcome of it asks again, through another client that begins
  with another node. An effect is only ever caused by a step.
- It alone adds to its counters, and each add has a bit of its own; a budget is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from chaos.cluster import Cluster, Node
from chaos.ledger import JOBS, WORK, Deed, Kind
from shoal.client.store import Space
from shoal.config import Config
from shoal.errors import BudgetExhausted, RightsElsewhere, ShoalError
from shoal.protocol.requests import Durability

BITS = 40
"""Adds to one counter, before the next one is begun."""

CREW = 3
"""So many workers share a budget."""

_INTERVAL_S = 0.15  # Between two things that a worker does, on average.
_GRANT = 60
_SPEND_MAX = 5
_ALL = 0.15  # The share of the writes that ask for every copy.
_PAUSE_S = 0.05
_PATIENCE = Config(request_timeout_s=8.0)
_TRIES = 3  # Of a step, each through another client.
_DIES = 0.1  # The share of the calls that have their effect, and no end.


class Died(BaseException):
    """The worker's process is gone, in the middle of a call."""


class Desk:
    """Where deeds are noted, and how they are done."""

    def __init__(self, cluster: Cluster, note: Callable[[Deed], None]) -> None:
        self.cluster = cluster
        self.note = note
        self._numbers = 0

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def do(self, kind: Kind, name: str, do: Callable[[], Awaitable[object]], *, key: str = "", value: int = 0) -> bool:
        """Do something, and note what came of it; False: it was not acknowledged."""
        try:
            await do()
        except ShoalError as error:
            self.note(Deed(kind, name, key, value, "no" if error.written == "no" else "unknown", error.code))
            return False
        except asyncio.CancelledError:
            self.note(Deed(kind, name, key, value, "unknown"))
            raise
        self.note(Deed(kind, name, key, value))
        return True

    async def step(self, space: Space, name: str, key: str, *, dies: bool = False) -> int | None:
        """Carry out a step, and note its effect and its result; None: it is not known to be done."""

        async def call() -> int:
            number = self.number()
            self.note(Deed("effect", name, key, number))
            if dies:
                raise Died
            return number

        try:
            result: int = await space.thread(name).step("effect", key=key, call=call)
        except ShoalError as error:
            self.note(Deed("step", name, key, 0, "unknown", error.code))
            return None
        except Died:
            return None
        self.note(Deed("step", name, key, result))
        return result

    async def step_through(self, node: Node, name: str, key: str, *, within_s: float, dies: bool = False) -> int | None:
        """The same through a client that knows only this node; it may take so long."""
        try:
            config = Config(request_timeout_s=within_s)
            client = self.cluster.connect(node.url, durability="quorum", config=config)
            async with asyncio.timeout(2 * within_s), client as store:
                return await self.step(store.space(WORK), name, key, dies=dies)
        except TimeoutError:
            return None


class Worker:
    def __init__(self, desk: Desk, *, number: int, random: Random) -> None:
        self.turn = asyncio.Lock()  # Held while it does something.
        self._desk = desk
        self._number = number
        self._thread = f"worker-{number}"
        self._budget = f"budget-{number // CREW}"
        self._random = random
        self._bits = self._steps = 0
        self._undone: list[str] = []
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        """Act again and again, until `stop`."""
        while not self._stopping:
            try:
                async with self._desk.cluster.connect(
                    self._desk.cluster.urls(self._number), durability="quorum", in_order=True, wait_s=30, config=_PATIENCE
                ) as store:
                    await self._work(store.space(WORK))
            finally:
                self._number += 1  # The next client begins with the next node, and has seen nothing.

    async def _work(self, space: Space) -> None:
        """Until something fails."""
        acts = (self._add, self._spend, self._put, self._finish, self._step)
        while not self._stopping:
            await asyncio.sleep(self._random.uniform(0, 2 * _INTERVAL_S))
            async with self.turn:
                try:
                    if not await self._random.choice(acts)(space):
                        return
                except ShoalError as error:  # Of a read: writes note their own.
                    self._desk.note(Deed("read", self._thread, outcome="no", code=error.code))
                    return

    @property
    def _durability(self) -> Durability:
        return "all" if self._random.random() < _ALL else "quorum"

    async def _add(self, space: Space) -> bool:
        name, bit = f"{self._thread}-{self._bits // BITS}", 1 << self._bits % BITS
        self._bits += 1
        return await self._desk.do("add", name, lambda: space.counter(name).add(bit, durability=self._durability), value=bit)

    async def _spend(self, space: Space) -> bool:
        budget, amount, note = space.budget(self._budget), self._random.randint(1, _SPEND_MAX), self._desk.note
        try:
            await budget.spend(amount, durability=self._durability)
        except (BudgetExhausted, RightsElsewhere) as error:
            note(Deed("spend", self._budget, "", amount, "no", error.code))
            key = f"{self._thread}-{self._desk.number()}"
            return await self._desk.do("grant", self._budget, lambda: budget.grant(_GRANT, key=key), value=_GRANT)
        except ShoalError as error:
            note(Deed("spend", self._budget, "", amount, "no" if error.written == "no" else "unknown", error.code))
            return False
        note(Deed("spend", self._budget, "", amount))
        return True

    async def _put(self, space: Space) -> bool:
        key, jobs = f"job-{self._desk.number()}", space.thread(self._thread).worklist(JOBS)
        self._undone.append(key)
        return await self._desk.do("put", self._thread, lambda: jobs.add([key], durability=self._durability), key=key)

    async def _finish(self, space: Space) -> bool:
        if not self._undone:
            return True
        key, jobs = self._undone.pop(0), space.thread(self._thread).worklist(JOBS)
        if await jobs.find(key) is None:  # It may never have been put.
            return True
        return await self._desk.do(
            "done", self._thread, lambda: jobs.done(key, by=self._thread, durability=self._durability), key=key
        )

    async def _step(self, space: Space) -> bool:
        self._steps += 1
        key, dies = f"step-{self._steps}", self._random.random() < _DIES
        if await self._desk.step(space, self._thread, key, dies=dies) is not None:
            return True
        for nth in range(1, _TRIES):
            await asyncio.sleep(_PAUSE_S)
            node = self._desk.cluster.nodes[(self._number + nth) % len(self._desk.cluster.nodes)]
            await self._desk.step_through(node, self._thread, key, within_s=1.0)
        return False
