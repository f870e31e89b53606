"""Operations of many changes are drafted in steps: what is applied is what would be without, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from shoal.cluster import operation
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import CHAIN_START, Body
from shoal.crdt.applier import NOTHING
from shoal.crdt.dot import COUNTER_BITS, Dot, Origin
from shoal.kinds.counter import state as counter
from shoal.kinds.register import state as register
from shoal.node import mutation
from shoal.node.handler import Target
from shoal.node.mutation import Mutation
from shoal.node.peers import incoming
from shoal.node.peers.incoming import Incoming
from shoal.node.transaction import pack_blobs
from shoal.protocol import requests
from shoal.storage.keys import Kind
from simulation.world.environment import START_MS
from simulation.world.fleet import Fleet, Member
from tests.node.wiretap import BRINGER, POLL_S, take
from tests.support.turns import Turns

LIAR = Origin(b"l" * 16)
MANY = 100


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "CHANGES_STEP_MAX", 10)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet("a", join="b:1") as fleet:
        yield fleet


def sent(*, spoilt: bool = False) -> Shipment:
    """Adds to `MANY` counters of one partition, as one operation; spoilt: the last change is none."""
    changes = [Mutation(Kind.COUNTER, "crew", f"{{n}}{nth}", counter.Add(1)) for nth in range(MANY)]
    if spoilt:
        changes[-1] = Mutation(Kind.COUNTER, "crew", f"{{n}}{MANY - 1}", register.Assign(b"\x01", ()))
    number = Target(Kind.COUNTER, "crew", "{n}0").partition
    packed = operation.encode(Body(START_MS << COUNTER_BITS, START_MS, [], None, mutation.encode(changes)))
    dot = Dot(LIAR, 1)
    return Shipment(number, *dot, operation.chain(CHAIN_START, number, dot, packed), packed, pack_blobs([NOTHING] * MANY))


async def total(member: Member, nth: int) -> int:
    reply = await member.node.session().call(requests.ReadCounter("crew", f"{{n}}{nth}"))
    return reply.value


async def test_many_changes_are_applied_in_steps(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, Incoming, "_change", lambda *_: 1)
    assert await take(fleet["a"], [sent()]) == []
    assert (turns.all, turns.most) == (MANY, 10)
    assert [await total(fleet["a"], nth) for nth in range(MANY)] == [1] * MANY


@pytest.mark.parametrize("step", range(1, 10))
async def test_writes_that_are_made_meanwhile_are_kept(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    member, numbers, sound = fleet["a"], count(1), Incoming._change

    def change(self: Incoming, *arguments: Any) -> None:
        sound(self, *arguments)
        if next(numbers) == 10 * step:
            writing.append(asyncio.create_task(member.node.session().call(requests.Add("crew", "{n}0", 5))))

    writing: list[asyncio.Task[Any]] = []
    monkeypatch.setattr(Incoming, "_change", change)
    assert await take(member, [sent()]) == []
    await asyncio.gather(*writing)
    assert len(writing) == 1
    assert [await total(member, nth) for nth in range(MANY)] == [6] + [1] * (MANY - 1)


async def test_one_bad_change_spoils_all_after_one_look(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, Incoming, "_change", lambda *_: 1)
    [trouble] = await take(fleet["a"], [sent(spoilt=True)])
    assert "takes no change of another kind" in trouble.message
    assert (turns.all, turns.most) == (MANY, 10)
    assert fleet["a"].node._database.partitions.vectors() == {}
    assert (await fleet["a"].node.session().call(requests.ListObjects("crew", "counter"))).names == []


async def test_a_watcher_that_comes_meanwhile_misses_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    member, numbers, sound = fleet["a"], count(1), Incoming._change
    seen: list[Any] = []

    async def watch() -> None:
        async for change in member.store().space("crew").watch():
            seen.append(change)  # noqa: PERF401 (it never ends)

    def change(self: Incoming, *arguments: Any) -> None:
        sound(self, *arguments)
        if next(numbers) == 50:
            watching.append(asyncio.create_task(watch()))

    watching: list[asyncio.Task[None]] = []
    monkeypatch.setattr(Incoming, "_change", change)
    assert await take(member, [sent()]) == []
    await asyncio.sleep(50 * POLL_S)
    watching[0].cancel()
    assert len({each.name for each in seen}) == MANY


async def test_a_draft_leaves_nothing_behind(fleet: Fleet) -> None:
    member = fleet["a"]
    assert await take(member, [sent()]) == []
    assert member.replicator._database.exchange.incoming._drafts == {}
    assert not member.replicator._deliveries.is_ahead(BRINGER.node)
