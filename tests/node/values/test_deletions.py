"""Counters, registers, sets, maps and budgets, deleted: alone, among nodes, and across crashes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, cast

import pytest

from shoal.client.store import Space
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.crdt import deletion
from shoal.crdt.rows import successor
from shoal.errors import BudgetExhausted, DeletedMeanwhile, InvalidName
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.keys import KINDS
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.writes.test_erasing import swept


class Kind(NamedTuple):
    """How an object of one kind is written and read, through its handle."""

    handle: Callable[[Space], Any]
    write: Callable[[Any, int], Awaitable[Any]]
    read: Callable[[Any], Awaitable[Any]]
    empty: Any
    once: Any  # What is read after one write, of 1.


KINDS_DELETED: dict[str, Kind] = {
    "counter": Kind(lambda space: space.counter("x"), lambda it, n: it.add(n), lambda it: it.value(), 0, 1),
    "register": Kind(lambda space: space.register("x"), lambda it, n: it.set(n), lambda it: it.siblings(), [], [1]),
    "set": Kind(lambda space: space.set("x"), lambda it, n: it.add(n), lambda it: it.members(), [], [1]),
    "map": Kind(lambda space: space.map("x"), lambda it, n: it.add("k", n), lambda it: it.get("k"), None, 1),
    "budget": Kind(lambda space: space.budget("x"), lambda it, n: it.grant(n), lambda it: it.remaining(), 0, 1),
}
every_kind = pytest.mark.parametrize(("label", "kind"), KINDS_DELETED.items(), ids=KINDS_DELETED)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(quorum_timeout_s=30) as fleet:
        yield fleet


def at(fleet: Fleet, name: str, kind: Kind) -> Any:
    return kind.handle(fleet[name].store().space("crew"))


@every_kind
async def test_deleted_objects_can_be_made_again(label: str, kind: Kind, bench: Bench) -> None:
    it = kind.handle(bench.space)
    assert await it.delete() is False
    for _ in range(3):
        await kind.write(it, 7)
    assert await it.delete() is True
    assert await kind.read(it) == kind.empty
    assert await it.delete() is False
    await kind.write(it, 1)
    assert await kind.read(it) == kind.once
    assert verify(bench.storage.left_by_crash(None), config=Config()).sound


@every_kind
async def test_it_is_listed_no_more(label: str, kind: Kind, bench: Bench) -> None:
    it = kind.handle(bench.space)
    await kind.write(it, 1)
    assert (await bench.node.session().call(requests.ListObjects("crew", cast(requests.ObjectKind, label)))).names == ["x"]
    await it.delete()
    assert (await bench.node.session().call(requests.ListObjects("crew", cast(requests.ObjectKind, label)))).names == []


@every_kind
async def test_a_deletion_survives_a_crash_and_its_rows_are_swept(label: str, kind: Kind, open_bench: Opener) -> None:
    bench = open_bench()
    it = kind.handle(bench.space)
    await kind.write(it, 7)
    await it.delete()
    after = open_bench(bench.storage.left_by_crash())
    assert await kind.read(kind.handle(after.space)) == kind.empty
    await swept(after.storage)
    prefix = keys.object_rows(partition_of("crew", "x"), KINDS[label], "crew", "x")
    left = [key.removeprefix(prefix) for key, _ in after.storage.scan(prefix, successor(prefix))]
    assert left == [deletion.ROW]


@pytest.mark.answers("deleted-values-stay-for-ever")
@every_kind
async def test_a_write_that_did_not_know_of_the_deletion_goes_with_it(label: str, kind: Kind, fleet: Fleet) -> None:
    await kind.write(at(fleet, "a", kind), 7)
    await fleet.converged()
    await fleet.isolate("c")
    await kind.write(at(fleet, "c", kind), 9)
    await at(fleet, "a", kind).delete()
    await kind.write(at(fleet, "a", kind), 1)
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        assert await kind.read(at(fleet, name, kind)) == kind.once
        assert fleet.rows(name) == fleet.rows("a")
        assert verify(fleet[name].storage.left_by_crash(None), config=Config()).sound


@every_kind
async def test_nodes_that_delete_it_at_once_agree(label: str, kind: Kind, fleet: Fleet) -> None:
    await kind.write(at(fleet, "a", kind), 7)
    await fleet.converged()
    await fleet.isolate("c")
    assert await at(fleet, "c", kind).delete()
    await kind.write(at(fleet, "c", kind), 1)
    assert await at(fleet, "a", kind).delete()
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":  # Both ended the first generation; what was written after either belongs to the second.
        assert await kind.read(at(fleet, name, kind)) == kind.once
        assert fleet.rows(name) == fleet.rows("a")


async def test_a_quorum_does_not_acknowledge_an_add_to_what_was_deleted_meanwhile(fleet: Fleet) -> None:
    counter = fleet["a"].store().space("crew").counter("x")
    await counter.add(1)
    await fleet.converged()
    fleet.wires["a", "c"].open.clear()
    fleet.wires["b", "c"].open.clear()
    await counter.delete(durability="quorum")
    adding = fleet["c"].store().space("crew").counter("x").add(5, durability="all")
    with pytest.raises(DeletedMeanwhile):
        await reopened(fleet, adding)


async def reopened(fleet: Fleet, call: Awaitable[int]) -> int:
    fleet.wires["a", "c"].open.set()
    fleet.wires["b", "c"].open.set()
    return await call


async def test_the_sum_of_a_maps_counter_is_not_remembered_beyond_its_deletion(bench: Bench) -> None:
    scores = bench.space.map("scores")
    for nth in range(40):
        await bench.node.session().call(requests.AddEntry("crew", "scores", "k", 1), key=f"add-{nth}")
    assert await scores.get("k") == 40
    await scores.delete()
    await scores.add("k", 2)
    assert await scores.get("k") == 2


@pytest.mark.answers("deleted-values-stay-for-ever")
async def test_a_peers_deletion_ends_the_sums_that_this_node_remembers(fleet: Fleet) -> None:
    for nth in range(40):
        await fleet["a"].node.session().call(requests.AddEntry("crew", "x", "k", 1), key=f"add-{nth}")
    await fleet.converged()
    there = fleet["c"].store().space("crew").map("x")
    assert await there.get("k") == 40
    await fleet["a"].store().space("crew").map("x").delete()
    await fleet.converged()
    await there.add("k", 2)
    assert await there.get("k") == 2


async def test_no_right_to_a_deleted_budget_is_left(fleet: Fleet) -> None:
    budgets = {name: fleet[name].store().space("crew").budget("x") for name in "abc"}
    await budgets["a"].grant(90)
    await fleet.converged()
    for name in "abc":
        await budgets[name].spend(10)
        await budgets[name].draw(5)
    await fleet.converged()
    await budgets["b"].delete(durability="all")
    await fleet.converged()
    for name in "abc":
        with pytest.raises(BudgetExhausted):
            await budgets[name].spend(1)
    await budgets["c"].grant(3)
    await fleet.converged()
    spent = 0
    for name in "abcabc":
        try:
            await budgets[name].spend(1)
        except BudgetExhausted:
            continue
        spent += 1
        await fleet.converged()
    assert spent == 3
    assert await budgets["a"].remaining() == 0


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_spend_without_knowledge_of_the_deletion_takes_nothing_of_the_next_budget(fleet: Fleet, crashes: bool) -> None:
    first = fleet["a"].store().space("crew").budget("x")
    await first.grant(90)
    await fleet.converged()
    await fleet["c"].store().space("crew").budget("x").draw(30)
    await fleet.converged()
    await fleet.isolate("c")
    assert await first.delete(durability="quorum")
    await first.grant(3, durability="quorum")
    await fleet["c"].store().space("crew").budget("x").spend(10)
    if crashes:
        fleet.start("c", await fleet.crash("c"))
    else:
        fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        assert await fleet[name].store().space("crew").budget("x").remaining() == 3
    await fleet["c"].store().space("crew").budget("x").spend(3)
    await fleet.converged()
    for name in "abc":
        with pytest.raises(BudgetExhausted):
            await fleet[name].store().space("crew").budget("x").spend(1)


@pytest.mark.answers("deleted-values-stay-for-ever")
async def test_unsure_rights_end_with_the_budget(bench: Bench) -> None:
    budget = bench.space.budget("x")
    await budget.grant(50)
    session = bench.node.session()
    bench.node._database.issue(requests.DrawRights("crew", "x", 20), None)  # As before an answer of the others comes.
    await budget.delete()
    await budget.grant(5)
    await session.call(requests.ReleaseRights("crew", "x", 20, unsure=True))
    assert (await session.call(requests.ReadBudget("crew", "x"))).pool == 5


@pytest.mark.answers("deleted-values-stay-for-ever")
@every_kind
async def test_a_retry_of_a_deletion_deletes_nothing_that_came_later(label: str, kind: Kind, bench: Bench) -> None:
    it = kind.handle(bench.space)
    await kind.write(it, 7)
    assert await it.delete(key="once") is True
    await kind.write(it, 1)
    assert await it.delete(key="once") is True
    assert await kind.read(it) == kind.once


async def test_a_name_that_is_not_legal_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidName):
        await bench.node.session().call(requests.DeleteCounter("crew", ""))
