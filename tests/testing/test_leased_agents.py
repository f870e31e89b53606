"""`crash_everywhere` with agents that work under leases, claim items, and run as a crew; examples/crew.py is a larger crew."""

from __future__ import annotations

from typing import Any

import pytest

import shoal
from shoal.crew.seat import THREAD
from shoal.errors import NotFound
from shoal.testing import crash_everywhere


def world() -> dict[str, Any]:
    async def charge(order: str, *, key: str) -> str:
        return f"receipt for {order}"

    return {"charge": charge}


async def leased(store: shoal.Store, charge: Any) -> None:
    """Drives a thread under its lease."""
    thread = store.space("shop").thread("checkout")
    async with thread.lease(ttl=3, wait=60) as lease:
        try:
            done = (await thread.load()).state["done"]
        except NotFound:
            done = 0
        for order in ("tea", "coffee")[done:]:
            lease.check()
            await charge(order, key=order)
            done += 1
            await thread.save({"done": done})


async def claiming(store: shoal.Store, charge: Any) -> None:
    """Claims items of a worklist."""
    work = store.space("shop").worklist("orders")
    await work.add(["tea", "coffee"])
    while not (await work.progress()).is_complete:
        job = await work.claim(ttl=3, wait=10)
        if job is not None:
            async with job:
                await job.complete(await charge(job.item, key=job.item))


async def crew(store: shoal.Store, charge: Any) -> None:
    """A crew of one agent, which finishes."""
    crew = shoal.Crew(store, "shop")

    @crew.agent("clerk", ttl=3)
    async def clerk(ctx: shoal.CrewContext) -> None:
        if "receipt" not in ctx.state:
            receipt = await ctx.thread.step("charge", idempotent=True, call=lambda: charge("tea", key="tea"))
            await ctx.checkpoint({"receipt": receipt})

    await crew.run(until_finished=True)
    assert [agent.state for agent in (await crew.status()).agents] == ["finished"]


def without_the_record(name: str, content: Any) -> Any:
    """A machine that dies with its node may leave a fork in the crew's record, which the next change ends."""
    return None if name.startswith(f"thread shop/{THREAD}") else content


LONGER = [(claiming, 3), (crew, 1), (crew, 3)]
"""A crew passes eighty points. What its machines do when one is killed, tests/crew shows."""


@pytest.mark.answers("agents-have-one-driver")
@pytest.mark.parametrize(
    ("agent", "nodes"),
    [(leased, 1), (leased, 3), (claiming, 1), *(pytest.param(*longer, marks=pytest.mark.thorough) for longer in LONGER)],
)
def test_an_agent_survives_a_crash_anywhere(agent: Any, nodes: int) -> None:
    report = crash_everywhere(
        agent, tools=world, keys={"charge": "key"}, nodes=nodes, durability="quorum", normalise=without_the_record
    )
    report.raise_if_bad()
    assert report.points > 10


def test_a_lease_alone_does_not_keep_an_effect_from_being_repeated() -> None:
    async def careless(store: shoal.Store, charge: Any) -> None:
        async with store.space("shop").thread("checkout").lease(ttl=3, wait=60):
            await charge("tea", key="tea")

    found = str(crash_everywhere(careless, tools=world))
    assert "twice: charge('tea', key='tea'): 2 times instead of 1" in found
