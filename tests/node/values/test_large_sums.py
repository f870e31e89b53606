"""Sums beyond what a message holds: they stay readable, and can be brought back."""

from __future__ import annotations

import msgspec
import pytest

from shoal.errors import InvalidInput
from shoal.kinds.map import state as ormap
from shoal.node.handler import Target
from shoal.protocol import requests
from shoal.protocol.requests import Add, AddEntry, Grant, MultiRead, ReadBudget, ReadCounter, ReadMap, Spend
from shoal.storage import keys
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench

MOST = 2**63 - 1


def told(reply: requests.AnyReply) -> requests.AnyReply:
    """The reply as a client gets it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=type(reply))


async def test_a_counter_grows_no_further_than_it_can_be_told(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(Add("crew", "n", MOST))
    with pytest.raises(InvalidInput, match="Nothing was written"):
        await session.call(Add("crew", "n", 1))
    assert (await session.call(ReadCounter("crew", "n"))).value == MOST
    assert (await session.call(Add("crew", "n", -MOST))).value == 0
    await session.call(Add("crew", "n", -MOST))
    with pytest.raises(InvalidInput, match="below its negative"):
        await session.call(Add("crew", "n", -1))


async def test_a_budget_is_granted_no_more_than_can_be_told(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(Grant("crew", "b", MOST))
    with pytest.raises(InvalidInput, match="Nothing was written"):
        await session.call(Grant("crew", "b", 1))
    await session.call(Spend("crew", "b", 5))
    assert (await session.call(ReadBudget("crew", "b"))).remaining == MOST - 5


async def test_a_key_of_a_map_grows_no_further_than_it_can_be_told(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(AddEntry("crew", "m", "k", MOST))
    with pytest.raises(InvalidInput, match="Nothing was written"):
        await session.call(AddEntry("crew", "m", "k", 1))
    await session.call(AddEntry("crew", "m", "k", -MOST))
    assert (await session.call(ReadMap("crew", "m"))).entries[0].count == 0


async def test_a_fold_takes_no_more_than_a_row_holds(bench: Bench) -> None:
    """Of adds that cancel each other out, only some may be folded now."""
    session = bench.node.session()
    for nth, amount in enumerate([MOST, -MOST, MOST]):
        await session.call(AddEntry("crew", "m", "k", amount), key=f"add-{nth}")
    rows = bench.node._database._view(Target(keys.Kind.MAP, "crew", "m")).rows
    fold = ormap.fold(rows, "k", directory=b"d" * 16, own=lambda _: True, settled=lambda add: add.amount > 0, least=1, most=9)
    assert fold is not None
    assert (fold.amount, len(fold.over)) == (MOST, 1)
    for amount in (-MOST, MOST, -MOST, MOST):  # Without keys they are merged with those before them, if a row holds that.
        await session.call(AddEntry("crew", "m", "k", amount))
    assert (await session.call(ReadMap("crew", "m"))).entries[0].count == MOST


async def test_sums_of_nodes_that_were_apart_are_told() -> None:
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        for name in "ab":
            session = fleet[name].node.session()
            await session.call(Add("crew", "n", MOST))
            await session.call(Grant("crew", "b", MOST))
        fleet.link_all("b")
        await fleet.converged()
        session = fleet["a"].node.session()
        assert told(await session.call(ReadCounter("crew", "n"))) == requests.CounterValue(MOST)
        budget = told(await session.call(ReadBudget("crew", "b")))
        assert isinstance(budget, requests.BudgetState)
        assert (budget.granted, budget.remaining) == (MOST, MOST)
        assert len((await session.call(MultiRead([ReadCounter("crew", "n")]))).replies) == 1
        assert told(await session.call(Add("crew", "n", -5))) == requests.Added(MOST, True), "on its way back"
        await session.call(Add("crew", "n", -MOST))
        assert (await session.call(ReadCounter("crew", "n"))).value == MOST - 5
