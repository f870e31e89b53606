"""Faults of identity: a copied directory, an address that leads to another node, a member list that differs."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import ShoalError
from simulation.plan import Clone, Misroute, Relist
from tests.simulation.scene import ADD, Scene, on


def test_a_clone_that_serves_takes_no_writes_and_is_gone_after_its_time() -> None:
    async def story(scene: Scene) -> None:
        await scene.client("n1").call(ADD, durability="all")
        clone = scene.begin(Clone(at=0, node="n1", name="n1", for_s=3.0, serves=True))
        await asyncio.sleep(1.0)
        assert await scene.count("n1") == 1
        with pytest.raises(ShoalError) as refused:
            await scene.client("n1").call(ADD)
        assert refused.value.code == "catching-up"
        await clone
        await scene.client("n1").call(ADD, durability="all")

    on(story)


def test_an_address_that_leads_back_leaves_a_quorum_as_large_as_it_was() -> None:
    async def story(scene: Scene) -> None:
        await scene.cluster.founded()
        astray = [scene.begin(Misroute(at=0, node="n1", name=name, to="n1", for_s=4.0)) for name in ("n2", "n3")]
        await asyncio.sleep(1.0)
        with pytest.raises(ShoalError) as refused:
            await scene.client("n1").call(ADD, durability="quorum")
        assert refused.value.code == "no-quorum"
        await asyncio.gather(*astray)
        await asyncio.sleep(2.0)
        await scene.client("n1").call(ADD, durability="quorum")

    on(story)


def test_a_node_with_another_list_counts_by_it_until_all_is_healed() -> None:
    async def story(scene: Scene) -> None:
        await scene.client().call(ADD, durability="all")
        await scene.cluster.carry_out(Relist(at=0, node="n1", members=["n1", "n2"]))
        assert scene.cluster.hosts["n1"].peer.quorum.members.size == 2
        await scene.cluster.heal()
        assert scene.cluster.hosts["n1"].peer.quorum.members.size == 3
        await scene.cluster.converged()

    on(story)
