"""Operators of a simulated cluster remove members, add them again, and forget lost directories."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from msgspec.structs import replace

from shoal.node.partitions import Partitions
from simulation.plan import Cut, Disown, Leave, Plan, Replace, Wipe, from_json, to_json
from tests.simulation.scene import ADD, Scene, on

OPERATED = Plan(
    seed=1, settings={"quorum_register_found_s": 0.2, "members_tell_s": 0.2, "mark_interval_s": 0.5, "sync_interval_s": 0.2}
)


def epochs(scene: Scene) -> set[int]:
    return {host.peer.quorum.members.roster.epoch for host in scene.cluster.hosts.values()}


def origins(scene: Scene) -> int:
    """How many origins a node's vectors name at most."""
    partitions: list[Partitions] = [host.node._database.partitions for host in scene.cluster.hosts.values()]
    return max(sum(map(len, each.vectors().values())) for each in partitions)


@pytest.mark.answers("node-that-is-added-again-is-never-counted")
@pytest.mark.parametrize("how", ["drain", "forget"])
def test_a_member_leaves_and_comes_back_with_an_empty_disk(how: Literal["drain", "forget"]) -> None:
    async def story(scene: Scene) -> None:
        await scene.client("n3").call(ADD, durability="quorum")
        await asyncio.sleep(2.0)
        before = scene.cluster.hosts["n3"].peer.identity().node
        await scene.cluster.carry_out(Leave(at=0, node="n3", how=how, away_s=1.0))
        after = scene.cluster.hosts["n3"].peer.identity().node
        assert after != before
        await scene.cluster.converged()
        assert await scene.count("n3") == 1
        await asyncio.sleep(2.0)
        assert len(epochs(scene)) == 1
        record = scene.cluster.hosts["n1"].peer.quorum.members.roster.record
        assert [removal.directory for removal in record.removed] == [before]
        assert origins(scene) == 1  # That of the one that retired the other.

    on(story, OPERATED)


@pytest.mark.parametrize(("how", "nodes"), [("drain", 3), ("drain", 5), ("forget", 4), ("forget", 5)])
def test_a_member_is_replaced_by_one_that_was_drained(how: Literal["drain", "forget"], nodes: int) -> None:
    async def story(scene: Scene) -> None:
        hosts = scene.cluster.hosts
        await scene.client("n3").call(ADD, durability="quorum")
        await asyncio.sleep(2.0)
        before = {name: hosts[name].peer.identity().node for name in ("n2", "n3")}
        seen = set()
        replacing = scene.begin(Replace(at=0, node="n3", by="n2", how=how, away_s=0.5))
        while not replacing.done():
            seen.add(hosts["n1"].peer.quorum.members.roster.record.members)
            await asyncio.sleep(0.01)
        await scene.cluster.converged()
        assert [await scene.count(name) for name in hosts] == [1] * nodes
        assert {frozenset({"n2:7400"}), frozenset({"n3:7400"})} <= {
            frozenset(host.address for host in hosts.values()) - set(members) for members in seen
        }
        await asyncio.sleep(2.0)
        record = hosts["n1"].peer.quorum.members.roster.record
        assert len(record.members) == nodes
        assert [(gone.directory, gone.handed_over) for gone in record.removed] == [
            (before["n2"], True),
            (before["n3"], how == "drain"),
        ]

    on(story, replace(OPERATED, nodes=nodes))


def test_a_lost_directory_is_forgotten() -> None:
    async def story(scene: Scene) -> None:
        await scene.client("n3").call(ADD, durability="all")
        await asyncio.sleep(2.0)
        await scene.cluster.carry_out(Wipe(at=0, node="n3"))
        await scene.cluster.converged()
        await asyncio.sleep(1.0)  # The others meet the new directory, whichever of them is asked for the old one.
        await scene.cluster.carry_out(Disown(at=0, node="n3"))
        await asyncio.sleep(2.0)
        assert epochs(scene) == {1}
        assert origins(scene) == 1

    on(story, OPERATED)


def test_operators_act_one_after_the_other_and_all_nodes_are_members_in_the_end() -> None:
    async def story(scene: Scene) -> None:
        await scene.client("n1").call(ADD, durability="all")
        await asyncio.sleep(2.0)
        leaving = [scene.begin(Leave(at=0, node=node, away_s=0.5)) for node in ("n2", "n3")]
        await asyncio.sleep(1.0)
        await scene.cluster.heal()
        await asyncio.gather(*leaving)
        await scene.cluster.converged()
        for host in scene.cluster.hosts.values():
            assert len(host.peer.quorum.members.roster.record.members) == 3

    on(story, OPERATED)


def test_a_plan_with_operators_is_data() -> None:
    plan = Plan(
        seed=1,
        faults=[Leave(at=1, node="n1", how="forget", away_s=0.3), Disown(at=2, node="n2"), Replace(at=3, node="n1", by="n2")],
    )
    assert from_json(to_json(plan)) == plan


@pytest.mark.answers("seed-plan-of-five-nodes")
def test_a_node_that_got_data_from_a_member_that_was_away_gets_another_empty_disk_and_is_added() -> None:
    async def story(scene: Scene) -> None:
        hosts = scene.cluster.hosts
        await scene.client("n3").call(ADD, durability="quorum")
        await asyncio.sleep(2.0)
        others = ["n1", "n4", "n5"]
        away = scene.begin(Cut(at=0, sources=["n2", "n3"], targets=["client", *others], for_s=8.0))
        await asyncio.sleep(1.5)
        leaving = scene.begin(Leave(at=0, node="n3", how="forget", away_s=0.5))
        await asyncio.sleep(6.0)
        assert hosts["n3"].up
        assert hosts["n3"].held()  # What only n2 can have given it, which does not know that it was removed.
        await asyncio.gather(away, leaving)
        await scene.cluster.converged()
        assert len(hosts["n1"].peer.quorum.members.roster.record.members) == 5

    on(story, replace(OPERATED, nodes=5))
