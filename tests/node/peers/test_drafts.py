"""Operations of many changes are drafted in steps: what is applied is what would be without, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from itertools import count
from typing import Any

import pycrdt
import pytest

from shoal.cluster import operation
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import CHAIN_START, Body
from shoal.crdt.applier import NOTHING, Blobs
from shoal.crdt.dot import COUNTER_BITS, Dot, Origin
from shoal.kinds.budget import state as budget
from shoal.kinds.counter import state as counter
from shoal.kinds.document import changes as document_changes
from shoal.kinds.document.state import document
from shoal.kinds.journal.state import journal
from shoal.kinds.register import state as register
from shoal.kinds.schema import state as schema
from shoal.node import mutation
from shoal.node.handler import Target
from shoal.node.mutation import Mutation
from shoal.node.peers import incoming
from shoal.node.peers.incoming import Incoming
from shoal.node.transaction import pack_blobs
from shoal.node.turns import Steps
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

    def change(self: Incoming, *arguments: Any) -> Steps[None]:
        yield from sound(self, *arguments)
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

    def change(self: Incoming, *arguments: Any) -> Steps[None]:
        yield from sound(self, *arguments)
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


# ── what is kept in memory ────────────────────────────────────────────────────


def listed(client: int, *values: Any) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client)
    doc.get("l", type=pycrdt.Array).extend(values)
    return doc.get_update()


def many(kind: Kind, made: Callable[[int], tuple[Any, Blobs]]) -> Shipment:
    """Changes of `MANY` objects of a kind, as one operation."""
    parts = [made(nth) for nth in range(MANY)]
    changes = [Mutation(kind, "crew", f"{{n}}{nth}", change) for nth, (change, _) in enumerate(parts)]
    number = Target(kind, "crew", "{n}0").partition
    packed = operation.encode(Body(START_MS << COUNTER_BITS, START_MS, [], None, mutation.encode(changes)))
    dot = Dot(LIAR, 1)
    chain = operation.chain(CHAIN_START, number, dot, packed)
    return Shipment(number, *dot, chain, packed, pack_blobs([beside for _, beside in parts]))


def granted(_nth: int) -> tuple[Any, Blobs]:
    return budget.Grant(7), NOTHING


def put(nth: int) -> tuple[Any, Blobs]:
    content = schema.encode(schema.Content(b'{"maxLength": %d}' % nth))
    return schema.Put(1, sha256(content).digest()), Blobs(content)


def updated(nth: int) -> tuple[Any, Blobs]:
    update = listed(9, nth)
    return document.Update(sha256(update).digest(), {"l": "array"}), Blobs(update)


@pytest.mark.parametrize(("kind", "made"), [(Kind.BUDGET, granted), (Kind.SCHEMA, put), (Kind.DOCUMENT, updated)])
async def test_changes_of_what_memory_keeps_are_applied_in_steps(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, kind: Kind, made: Callable[[int], tuple[Any, Blobs]]
) -> None:
    turns = Turns(monkeypatch, Incoming, "_change", lambda *_: 1)
    assert await take(fleet["a"], [many(kind, made)]) == []
    assert turns.all == MANY
    assert turns.most <= 10


async def test_updates_of_many_documents_are_looked_at_in_steps(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "CHANGES_STEP_MAX", 10)
    monkeypatch.setattr(document_changes, "SHORT_BYTES", 10)
    turns = Turns(monkeypatch, document_changes, "_vet", lambda *_: 1)
    monkeypatch.setitem(
        mutation._APPLIERS,
        document.Update,
        mutation._APPLIERS[document.Update]._replace(vet=lambda *arguments: document_changes._vet(*arguments)),
    )
    monkeypatch.setattr(incoming, "SHORT_BYTES", 10)
    assert await take(fleet["a"], [many(Kind.DOCUMENT, updated)]) == []
    assert turns.all == MANY
    assert turns.most <= 10


async def test_open_documents_show_what_was_drafted(fleet: Fleet) -> None:
    session = fleet["a"].node.session()

    async def shown(nth: int) -> Any:
        return json.loads((await session.call(requests.ReadDocumentJson("crew", f"{{n}}{nth}"))).json)["l"]

    for nth in range(3):
        await session.call(requests.Update("crew", f"{{n}}{nth}", listed(5, "mine"), {"l": "array"}))
    assert await take(fleet["a"], [many(Kind.DOCUMENT, updated)]) == []
    assert [sorted(map(str, await shown(nth))) for nth in range(3)] == [[str(nth), "mine"] for nth in range(3)]
    assert await shown(MANY - 1) == [MANY - 1]


async def test_a_document_that_is_opened_while_it_is_drafted_shows_it(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    session, numbers, sound = fleet["a"].node.session(), count(1), Incoming._change
    await session.call(requests.Update("crew", "{n}0", listed(5, "mine"), {"l": "array"}))
    fleet["a"].node._database.documents._open.clear()

    def change(self: Incoming, *arguments: Any) -> Steps[None]:
        yield from sound(self, *arguments)
        if next(numbers) == 50:
            reading.append(asyncio.create_task(session.call(requests.ReadDocumentJson("crew", "{n}0"))))

    reading: list[asyncio.Task[Any]] = []
    monkeypatch.setattr(Incoming, "_change", change)
    assert await take(fleet["a"], [many(Kind.DOCUMENT, updated)]) == []
    assert len(await asyncio.gather(*reading)) == 1
    assert sorted(map(str, json.loads((await session.call(requests.ReadDocumentJson("crew", "{n}0"))).json)["l"])) == [
        "0",
        "mine",
    ]


async def test_a_thread_that_is_looked_through_meanwhile_has_moved(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what only the drafted changes use would be swept."""
    session, numbers, sound = fleet["a"].node.session(), count(1), Incoming._change
    unmoved, target = fleet["a"].node._database.garbage.unmoved, Target(Kind.THREAD, "crew", "{n}0")
    await session.call(requests.Append("crew", "{n}0", b"\x01"))

    def change(self: Incoming, *arguments: Any) -> Steps[None]:
        yield from sound(self, *arguments)
        if next(numbers) == 50:
            unmoved.add(target)

    monkeypatch.setattr(Incoming, "_change", change)
    event = b"\x02"
    made = journal.Append(sha256(event).digest()), Blobs(event)
    assert await take(fleet["a"], [many(Kind.THREAD, lambda _: made)]) == []
    assert target not in unmoved
