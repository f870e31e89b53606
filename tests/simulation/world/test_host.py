"""One simulated machine: its clock, the world that its node gets, its lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from shoal.config import Config
from shoal.errors import StoreCorrupt
from shoal.protocol.requests import Add, CounterValue, NodeStatus, ReadCounter, Status
from shoal.storage import keys
from shoal.testing.machines import run
from simulation.world.environment import START_MS
from simulation.world.host import Clock, SimulatedNode
from simulation.world.incarnation import Fenced, own_tasks
from simulation.world.network import Network
from simulation.world.trace import Trace
from simulation.world.wires import Wiring


class Scene:
    """A machine whose cluster has no other."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        own_tasks(self.loop)
        self.problems: list[str] = []
        wiring = Wiring(Network(self.loop.time), Trace(self.loop.time), random_for=Random, problems=self.problems)
        self.host = SimulatedNode(Config(join="n1:1", advertise="n1:1"), wiring=wiring)
        self.host.start()

    async def add(self) -> None:
        await self.host.node.session().call(Add(space="s", counter="c", amount=1))

    async def count(self) -> int:
        reply = await self.host.node.session().call(ReadCounter(space="s", counter="c"))
        assert isinstance(reply, CounterValue)
        return reply.value

    async def again(self) -> None:
        await self.host.gone()
        self.host.start()


def on(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        scene = Scene()
        await story(scene)
        if scene.host.up:
            scene.host.kill()
        await scene.host.gone()
        assert scene.problems == []

    run(main())


def test_a_clock_shows_true_time_until_it_jumps() -> None:
    time = [0.0]
    clock = Clock(lambda: time[0])
    time[0] = 2.0
    assert clock.now_ms() == START_MS + 2000
    clock.jump(-5000)
    assert clock.now_ms() == START_MS - 3000


def test_a_clock_that_drifts_does_not_jump() -> None:
    time = [0.0]
    clock = Clock(lambda: time[0])
    time[0] = 10.0
    clock.drift(0.5)
    assert clock.now_ms() == START_MS + 10_000
    time[0] = 12.0
    assert clock.now_ms() == START_MS + 13_000
    clock.drift(0.0)
    time[0] = 13.0
    assert clock.now_ms() == START_MS + 14_000


def test_acknowledged_writes_survive_a_power_cut() -> None:
    async def story(scene: Scene) -> None:
        await scene.add()
        scene.host.kill(0)
        await scene.again()
        assert await scene.count() == 1
        assert scene.host.node.resumed_after_crash

    on(story)


def test_unsynced_writes_vanish_unless_they_are_kept() -> None:
    async def story(scene: Scene) -> None:
        for keep, left in ((0, 0), (None, 1)):
            await scene.host.node.session().call(Add(space="s", counter="c", amount=1), durability="memory")
            scene.host.kill(keep)
            await scene.again()
            assert await scene.count() == left

    on(story)


def test_a_clean_stop_leaves_its_marker() -> None:
    async def story(scene: Scene) -> None:
        await scene.add()
        await scene.host.stop()
        assert not scene.host.up
        await scene.again()
        assert not scene.host.node.resumed_after_crash
        assert await scene.count() == 1

    on(story)


def test_a_kill_ends_a_stop_that_is_under_way() -> None:
    async def story(scene: Scene) -> None:
        await scene.add()
        stopping = asyncio.create_task(scene.host.stop())
        await asyncio.sleep(0.0001)
        scene.host.kill(0)
        await stopping
        await scene.again()
        assert scene.host.node.resumed_after_crash
        assert not scene.host.stopping

    on(story)


def test_each_life_draws_other_randomness_and_keeps_the_directory() -> None:
    async def story(scene: Scene) -> None:
        async def who() -> tuple[str, str]:
            await scene.add()
            status = await scene.host.node.session().call(Status())
            assert isinstance(status, NodeStatus)
            return status.node, status.origin

        first = await who()
        scene.host.kill(0)
        await scene.again()
        second = await who()
        assert first[0] == second[0]
        assert first[1] != second[1]

    on(story)


def test_a_dead_node_can_do_nothing() -> None:
    async def story(scene: Scene) -> None:
        node = scene.host.node
        before = asyncio.create_task(node.session().call(Add(space="s", counter="c", amount=1)))
        await asyncio.sleep(0)
        scene.host.kill(0)
        rows = scene.host.disk.rows()
        with pytest.raises(Fenced):
            await node.session().call(Add(space="s", counter="c", amount=1))
        with pytest.raises(Fenced):
            await node.stop()
        before.cancel()
        await asyncio.gather(before, return_exceptions=True)
        assert scene.host.disk.rows() == rows

    on(story)


def test_a_sync_takes_time_in_which_others_run_and_a_slow_disk_more() -> None:
    async def story(scene: Scene) -> None:
        async def took() -> float:
            began = scene.loop.time()
            await scene.add()
            return scene.loop.time() - began

        assert 0 < await took() < 0.1
        with scene.host.disk.slowed(5.0):
            assert await took() > 5.0
        assert await took() < 0.1

    on(story)


def test_nothing_becomes_durable_while_it_is_paused() -> None:
    async def story(scene: Scene) -> None:
        with scene.host.paused():
            adding = asyncio.create_task(scene.add())
            await asyncio.sleep(5.0)
            assert not adding.done()
            assert not list(scene.host.disk.copy().scan(keys.OBJECT, keys.VECTOR))
        await adding

    on(story)


def test_two_pauses_end_with_the_last() -> None:
    async def story(scene: Scene) -> None:
        with scene.host.paused():
            with scene.host.paused():
                pass
            adding = asyncio.create_task(scene.add())
            await asyncio.sleep(5.0)
            assert not adding.done()
        await adding

    on(story)


def test_a_node_that_does_not_start_leaves_its_machine_down() -> None:
    async def story(scene: Scene) -> None:
        await scene.add()
        scene.host.kill(0)
        await scene.host.gone()
        hole = scene.host.disk.copy()
        hole.write(dict.fromkeys(key for key, _ in hole.scan(keys.LOG, keys.LOG + b"\xff")))
        scene.host.disk.put_back(hole)
        with pytest.raises(StoreCorrupt):
            scene.host.start()
        assert not scene.host.up

    on(story)
