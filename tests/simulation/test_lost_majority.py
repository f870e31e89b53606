"""Two of three members are lost for an hour: what works meanwhile, what is refused and why, and that all is well afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shoal.errors import NoQuorum
from shoal.protocol.requests import Add, ChangeMembers, ReadMembers
from simulation.plan import Cut, Plan
from tests.simulation.scene import ADD, Scene, on

HOUR_S = 3600.0
PLAN = Plan(seed=5, settings={"quorum_register_found_s": 1.0, "members_tell_s": 0.5, "tick_idle_s": 5.0})


async def crash_the_others(scene: Scene, _: float) -> Callable[[], Awaitable[None]]:
    hosts = [scene.cluster.hosts[name] for name in ("n2", "n3")]
    for host in hosts:
        host.kill()
        await host.gone()

    async def start() -> None:
        for host in hosts:
            host.start()

    return start


async def cut_all_links(scene: Scene, lost_s: float) -> Callable[[], Awaitable[None]]:
    cuts = [
        scene.begin(Cut(at=0.0, sources=[one], targets=[other], for_s=lost_s))
        for one, other in (("n1", "n2"), ("n1", "n3"), ("n2", "n3"))
    ]

    async def mend() -> None:
        await asyncio.gather(*cuts)

    return mend


@pytest.mark.answers("majority-of-the-members-is-lost")
@pytest.mark.parametrize(
    ("lost_s", "every_s"), [(HOUR_S / 3, 50.0), pytest.param(HOUR_S, 120.0, marks=pytest.mark.thorough)], ids=["short", "hour"]
)
@pytest.mark.parametrize("lose", [crash_the_others, cut_all_links])
def test_without_a_majority_local_writes_go_on_and_changes_of_members_are_refused(
    lose: Callable[[Scene, float], Awaitable[Callable[[], Awaitable[None]]]], lost_s: float, every_s: float
) -> None:
    async def story(scene: Scene) -> None:
        session, hosts = scene.client("n1"), scene.cluster.hosts.values()
        async with asyncio.timeout(60.0):
            while not all(host.peer.register.is_voting for host in hosts):
                await asyncio.sleep(0.1)
        until = scene.loop.time() + lost_s
        mend, written = await lose(scene, lost_s), 0
        await asyncio.sleep(5.0)  # Links that are cut break a while after.
        while scene.loop.time() < until - every_s:
            await session.call(ADD)
            written += 1
            with pytest.raises(NoQuorum, match="Nothing was written"):
                await session.call(Add("s", "counter", 1), durability="quorum")
            with pytest.raises(NoQuorum, match=r"needs the votes of 2 of 3 members.*Nothing was written") as refused:
                await session.call(ChangeMembers("drain" if written % 2 else "forget", leaves="n3:7400"))
            assert refused.value.written == "no"
            await asyncio.sleep(every_s)
        assert written > 20
        assert (await session.call(ReadMembers())).epoch == 0
        await mend()
        await scene.cluster.converged(60.0)
        assert [await scene.count(host.name) for host in hosts] == [written] * 3
        await session.call(ADD, durability="all")
        await session.call(ChangeMembers("drain", leaves="n3:7400"))
        async with asyncio.timeout(60.0):
            while (view := await session.call(ReadMembers())).change or view.epoch < 3:
                await asyncio.sleep(0.1)
        assert [seat.name for seat in view.members] == ["n1:7400", "n2:7400"]

    on(story, PLAN)
