"""A crew under random strikes: whatever happens, an agent has one driver at a time, and healed, each is at work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import pytest

import shoal
from shoal.errors import ShoalError
from tests.crew.machines import SPACE, TTL_S, Ground, Process, now, on_ground

SHORT_S, LONG_S = 20.0, 60.0
HEALED_S_MAX = 60.0
PROCESSES = 4
AGENTS = 4


class Storm:
    """Strikes against processes and nodes, and what people do meanwhile. All chance comes from the seed."""

    def __init__(self, ground: Ground, seed: int, lasts_s: float, waits_s: float) -> None:
        self._ground = ground
        self._waits_s = waits_s
        self._lasts_s = lasts_s
        self._random = Random(seed)
        self._started = 0
        self._alive: list[Process] = []
        self._later: list[asyncio.Task[None]] = []
        self._still: list[Process] = []

    def start(self) -> None:
        """Start processes, so that there are enough."""
        while len(self._alive) < PROCESSES:
            self._started += 1
            node = self._random.choice(sorted(self._ground.nodes.members))
            process = self._ground.process(f"p{self._started}", count=AGENTS, node=node, standby=1, waits_s=self._waits_s)
            self._alive.append(process.start(grace_s=1.0))

    async def rage(self) -> None:
        """Strike until the storm is over."""
        strikes: list[Callable[[], Awaitable[None]]] = [
            self._kill, self._stand_still, self._drain, self._isolate, self._crash, self._scale, self._move, self._drain_machine
        ]  # fmt: skip
        ends_s = now() + self._lasts_s
        while now() < ends_s:
            await asyncio.sleep(self._random.uniform(0.1, 2 * TTL_S))
            with suppress(ShoalError, TimeoutError):
                async with asyncio.timeout(20):
                    await self._random.choice(strikes)()
            self.start()

    async def heal(self) -> None:
        """Nothing is wrong any more, and the crew is as it was declared."""
        await asyncio.gather(*self._later)
        for process in self._still:
            process.go_on()
        crew = self._crew()
        async with asyncio.timeout(HEALED_S_MAX):
            for machine in (await crew.status()).machines:
                if machine.drained:
                    with suppress(shoal.errors.NotFound):
                        await crew.drain_machine(machine.name, undo=True)
            await crew.scale("w", AGENTS)
            healed_s = now()
            while len(self._ground.at_work(healed_s)) < AGENTS:
                await asyncio.sleep(0.1)

    def _crew(self) -> shoal.Crew:
        name = self._random.choice(sorted(self._ground.nodes.members))
        return shoal.Crew(self._ground.nodes[name].store(), SPACE)

    def _drawn(self) -> Process:
        return self._random.choice(self._alive)

    async def _kill(self) -> None:
        process = self._drawn()
        self._alive.remove(process)
        process.kill()

    async def _stand_still(self) -> None:
        process = self._drawn()
        process.stand_still()
        self._alive.remove(process)
        self._still.append(process)

        async def go_on() -> None:
            await asyncio.sleep(self._random.uniform(0.1, 3 * TTL_S))
            process.go_on()

        self._later.append(asyncio.ensure_future(go_on()))

    async def _drain(self) -> None:
        process = self._drawn()
        self._alive.remove(process)
        process.crew.drain()

    async def _isolate(self) -> None:
        if self._later and not self._later[-1].done():
            return
        nodes = self._ground.nodes
        name = self._random.choice(sorted(nodes.members))
        await nodes.isolate(name)

        async def link() -> None:
            await asyncio.sleep(self._random.uniform(0.1, 2 * TTL_S))
            nodes.link_all(name)

        task = asyncio.ensure_future(link())
        self._later.append(task)
        await task

    async def _crash(self) -> None:
        nodes = self._ground.nodes
        name = self._random.choice(sorted(nodes.members))
        for process in [process for process in self._alive if process.node == name]:
            self._alive.remove(process)
            process.kill()  # Its client knows no other node.
        self._still = [process for process in self._still if process.node != name]
        left = await nodes.crash(name)
        await asyncio.sleep(self._random.uniform(0.1, 2.0))
        nodes.start(name, left)

    async def _scale(self) -> None:
        await self._crew().scale("w", self._random.randint(1, AGENTS + 2))

    async def _move(self) -> None:
        await self._crew().move(f"w-{self._random.randint(1, AGENTS)}", to=self._drawn().name)

    async def _drain_machine(self) -> None:
        await self._crew().drain_machine(self._drawn().name, undo=self._random.random() < 0.5)


SEEDS = [(0, SHORT_S), *(pytest.param(seed, LONG_S, marks=pytest.mark.thorough) for seed in range(6))]


@pytest.mark.answers("agents-have-one-driver")
@pytest.mark.parametrize("waits_s", [0.0, 1.5])
@pytest.mark.parametrize(("seed", "lasts_s"), SEEDS)
def test_in_a_storm_an_agent_has_one_driver_and_healed_each_is_at_work(seed: int, lasts_s: float, waits_s: float) -> None:
    async def work(ground: Ground) -> None:
        storm = Storm(ground, seed, lasts_s, waits_s)
        storm.start()
        await storm.rage()
        await storm.heal()

    on_ground(work)
