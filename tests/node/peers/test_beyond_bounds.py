"""Operations of a peer beyond what any node issues, and long ones: refused before they are decoded, or looked at in steps."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

import msgspec
import pycrdt
import pytest

from shoal.cluster import operation
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import CHAIN_START, Body
from shoal.crdt.applier import NOTHING, VECTOR_BYTES_MAX, Blobs
from shoal.crdt.dot import COUNTER_BITS, Dot, Origin
from shoal.errors import TooLarge
from shoal.kinds.counter import state as counter
from shoal.kinds.document import changes
from shoal.kinds.document.state import yjs
from shoal.kinds.document.state.compaction import Compact
from shoal.kinds.document.state.document import Update
from shoal.kinds.items import state as items
from shoal.kinds.label import state as labels
from shoal.kinds.list import state as lists
from shoal.kinds.map import state as ormap
from shoal.kinds.register import state as register
from shoal.kinds.set import state as orset
from shoal.node import mutation, transaction
from shoal.node.handler import Target
from shoal.node.mutation import Mutation
from shoal.node.peers import delivering
from shoal.node.transaction import pack_blobs
from shoal.node.turns import DOCUMENT_STEP_UPDATES_MAX
from shoal.protocol import requests
from shoal.protocol.base import ELEMENTS_MAX, FEW_MAX
from shoal.storage.keys import Kind
from shoal.values.forms import VECTOR_DIMS_MAX
from simulation.world.environment import START_MS
from simulation.world.fleet import Fleet, Member
from tests.node.wiretap import take
from tests.support.turns import Turns

LIAR = Origin(b"l" * 16)
MOST = 50


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet("a", join="b:1") as fleet:
        yield fleet


def sent(kind: Kind, change: Any, beside: Blobs = NOTHING, *, context: list[tuple[bytes, int]] | None = None) -> Shipment:
    """The first operation of the liar, its chain right."""
    return operation_of(kind, [Mutation(kind, "crew", "n", change)], [beside], context=context)


def operation_of(
    kind: Kind, changes: list[Mutation], besides: list[Blobs] | None = None, *, context: list[tuple[bytes, int]] | None = None
) -> Shipment:
    """The same, of several changes to one object."""
    target = Target(kind, "crew", "n")
    payload = mutation.encode(changes)
    packed = operation.encode(Body(START_MS << COUNTER_BITS, START_MS, context or [], None, payload))
    dot = Dot(LIAR, 1)
    chain = operation.chain(CHAIN_START, target.partition, dot, packed)
    return Shipment(target.partition, *dot, chain, packed, pack_blobs(besides or [NOTHING] * len(changes)))


async def refusal(member: Member, shipment: Shipment) -> str:
    """Why the node refuses an operation, which it tells its sender and lists in its status. It goes on."""
    before = dict(member.node._database.partitions.vectors())
    [trouble] = await take(member, [shipment])
    assert any(trouble.message in each for each in member.replicator.quorum.view().quarantined)
    assert member.node._database.partitions.vectors() == before, "nothing was written"
    await member.store().space("crew").counter("other").add(1)
    return trouble.message


DOTS = tuple((number.to_bytes(16, "big"), 1) for number in range(operation.PARTS_MAX // 3 + 1))
NAMED = tuple(orset.Named(number.to_bytes(4, "big")) for number in range(operation.PARTS_MAX // 3 + 1))
LABELS = tuple(f"l{number}" for number in range(FEW_MAX + 1))
MANY = tuple(items.Delete((), f"k{number}", ()) for number in range(ELEMENTS_MAX + 1))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Kind.REGISTER, register.Assign(b"\x01", DOTS)),
        (Kind.SET, orset.Alter(NAMED)),
        (Kind.ITEMS, items.Declare(tuple(f"f{number}" for number in range(operation.PARTS_MAX + 1)))),
    ],
)
async def test_more_values_than_any_operation_has_are_not_decoded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, kind: Kind, change: Any
) -> None:
    shipment = sent(kind, change)
    monkeypatch.setattr(mutation, "decode", lambda payload: pytest.fail("it was decoded"))
    assert f"more than {operation.PARTS_MAX} values" in await refused_alone(fleet["a"], shipment)


async def refused_alone(member: Member, shipment: Shipment) -> str:
    [trouble] = await take(member, [shipment])
    assert any(trouble.message in each for each in member.replicator.quorum.view().quarantined)
    return trouble.message


async def test_a_context_of_more_origins_than_any_has_is_not_decoded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    shipment = sent(Kind.SET, orset.Alter(), context=list(DOTS))
    monkeypatch.setattr(operation, "decode", lambda packed: pytest.fail("it was decoded"))
    assert f"more than {operation.PARTS_MAX} values" in await refused_alone(fleet["a"], shipment)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Kind.ITEMS, items.Declare(LABELS)),
        (Kind.ITEMS, items.Drop(tuple((label, ()) for label in LABELS))),
        (Kind.ITEMS, items.Delete(LABELS, "k", ())),
        (Kind.ITEMS, items.Put((), "k", b"\x01", (), 1, vectors=(b"",) * (FEW_MAX + 1))),
        (Kind.ITEMS, items.Put((), "k", b"\x01", (), 1, vectors=(bytes(4 * (VECTOR_DIMS_MAX + 1)),))),
        (Kind.ITEMS, items.Expire(MANY)),
        (Kind.ITEMS, items.Refresh(tuple(items.Refreshed((), each.key, (), 1) for each in MANY))),
        (Kind.MAP, ormap.Add("k", 1, tuple((bytes(16), nth) for nth in range(FEW_MAX + 1)))),
        (Kind.THREAD, labels.Cut("l", bytes(VECTOR_BYTES_MAX + 1))),
        (Kind.LIST, lists.Insert(lists.Place(), (b"\x01",) * (ELEMENTS_MAX + 1))),
        (Kind.LIST, lists.Remove((lists.Named(bytes(lists.ID_BYTES)),) * (ELEMENTS_MAX + 1))),
    ],
)
async def test_more_parts_than_any_change_has_are_refused(fleet: Fleet, kind: Kind, change: Any) -> None:
    assert "more than" in (why := await refusal(fleet["a"], sent(kind, change))) or "the most" in why


async def test_more_blobs_than_any_operation_has_are_not_hashed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = msgspec.msgpack.encode([[b"", [b"c"] * transaction.BLOBS_MAX]])
    shipment = msgspec.structs.replace(sent(Kind.SET, orset.Alter()), attached=beside)
    monkeypatch.setattr(transaction, "_unpacked", lambda packed: pytest.fail("they were hashed"))
    assert f"more than {transaction.BLOBS_MAX} blobs" in await refused_alone(fleet["a"], shipment)


async def test_more_changes_than_any_operation_has_are_refused(fleet: Fleet) -> None:
    changes = [Mutation(Kind.COUNTER, "crew", "n", counter.Add(1))] * (mutation.CHANGES_MAX + 1)
    assert f"more than {mutation.CHANGES_MAX} changes" in await refusal(fleet["a"], operation_of(Kind.COUNTER, changes))


@pytest.mark.parametrize("parts", [1, 2])
async def test_more_elements_than_any_operation_has_are_refused(fleet: Fleet, parts: int) -> None:
    each = orset.Alter(NAMED[: mutation.ELEMENTS_MAX // parts + 1])
    changes = [Mutation(Kind.SET, "crew", "n", each)] * parts
    why = await refusal(fleet["a"], operation_of(Kind.SET, changes))
    assert f"{mutation.ELEMENTS_MAX} elements" in why


async def test_a_long_operation_is_decoded_in_one_turn_and_applied_in_another(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "PEER_LOOK_BYTES_MAX", 10)
    shipment = sent(Kind.SET, orset.Alter(NAMED[:10]))
    work = Turns(monkeypatch, mutation, "decode", lambda *_: 1)
    applied = Turns(monkeypatch, fleet["a"].replicator._deliveries, "_take", lambda *_: 1)
    assert await take(fleet["a"], [shipment]) == []
    assert (work.all, applied.all) == (1, 1)
    assert work._turn < applied._turn


async def test_a_compaction_of_more_origins_than_any_is_refused(fleet: Fleet) -> None:
    merged = b"\x00\x00"
    change = Compact(sha256(merged).digest(), bytes(VECTOR_BYTES_MAX + 1))
    assert "more than" in await refusal(fleet["a"], sent(Kind.DOCUMENT, change, Blobs(merged)))


@pytest.mark.parametrize(("of", "bound", "most"), [(operation, "PARTS_MAX", 4 * MOST), (mutation, "ELEMENTS_MAX", MOST)])
async def test_no_node_issues_more_than_its_peers_take(monkeypatch: pytest.MonkeyPatch, of: Any, bound: str, most: int) -> None:
    monkeypatch.setattr(of, bound, most)
    async with Fleet("ab") as fleet:
        members = fleet["a"].store().space("crew").set("s")
        with pytest.raises(TooLarge, match=r"Nothing was written\. Write it in parts"):
            await members.add(*range(2 * MOST))
        await members.add(*range(MOST))
        await fleet.converged()
        assert await fleet["b"].store().space("crew").set("s").len() == MOST
        assert fleet["b"].replicator.quorum.view().quarantined == []


# ── documents ─────────────────────────────────────────────────────────────────


def listed(values: list[Any]) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("l", type=pycrdt.Array).extend(values)
    return doc.get_update()


def edit(update: bytes, **fields: Any) -> Shipment:
    return sent(Kind.DOCUMENT, Update(sha256(update).digest(), {"l": "array"}, **fields), Blobs(update))


def embedded(value: Any) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("l", type=pycrdt.Text).insert_embed(0, value)
    return doc.get_update()


LONG = [None] * (yjs.VALUE_PARTS_MAX + 1)


@pytest.mark.parametrize("update", [listed([LONG]), listed([1, {"k": [LONG[:40_000], LONG[:40_000]]}]), embedded(LONG)])
async def test_a_longer_value_than_any_node_issues_is_refused(fleet: Fleet, update: bytes) -> None:
    assert f"a value of more than {yjs.VALUE_PARTS_MAX} parts" in await refusal(fleet["a"], edit(update))


async def shown(member: Member) -> Any:
    reply = await member.node.session().call(requests.ReadDocumentJson("crew", "n"))
    return json.loads(reply.json)


def run(count: int) -> bytes:
    """An update that puts so many values into a list, as one item. The engine would take gigabytes to make it."""
    return b"\x01\x01\x05\x00\x08\x01\x01l" + yjs.pack_varuint(count) + b"\x7c\x3f\xc0\x00\x00" * count + b"\x00"


VALUES = 20 * DOCUMENT_STEP_UPDATES_MAX * yjs.VALUES_PER_STRUCT


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_long_update_is_looked_at_in_steps(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, is_open: bool) -> None:
    member = fleet["a"]
    if is_open:
        other: pycrdt.Doc[Any] = pycrdt.Doc(client_id=4)
        other.get("l", type=pycrdt.Array).append("first")
        await member.node.session().call(requests.Update("crew", "n", other.get_update(), {"l": "array"}))
        assert await shown(member) == {"l": ["first"]}
    read = Turns(monkeypatch, yjs.Reader, "_walk", lambda _reader, _counts, steps: min(steps, 1))
    assert await take(member, [edit(run(VALUES))]) == []
    assert read.all >= VALUES
    assert read.most <= 2 * DOCUMENT_STEP_UPDATES_MAX * yjs.VALUES_PER_STRUCT
    assert len((await shown(member))["l"]) == VALUES + is_open


async def test_a_single_value_is_looked_at_in_steps(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SHORT_BYTES", 10)
    read = Turns(monkeypatch, yjs.Reader, "_byte", lambda _reader: 1)
    assert await take(fleet["a"], [edit(listed([[1.5] * yjs.VALUE_PARTS_MAX]))]) == []
    assert read.all >= yjs.VALUE_PARTS_MAX
    assert read.most <= 2 * DOCUMENT_STEP_UPDATES_MAX * yjs.VALUES_PER_STRUCT


@pytest.mark.parametrize("spoil", [lambda update: update + b"\x00", lambda update: update[:-2]])
async def test_a_long_update_that_is_bad_is_refused_after_one_look(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[bytes], bytes]
) -> None:
    read = Turns(monkeypatch, yjs.Reader, "_walk", lambda _reader, _counts, steps: min(steps, 1))
    assert "not a Yjs v1 update" in await refusal(fleet["a"], edit(spoil(run(VALUES))))
    assert read.all < 1.5 * VALUES
    assert read.most <= 2 * DOCUMENT_STEP_UPDATES_MAX * yjs.VALUES_PER_STRUCT


async def test_a_beginning_that_is_none_is_refused_after_a_look_in_steps(fleet: Fleet) -> None:
    shipment = edit(run(VALUES), genesis=b"g" * 32)
    assert "does not use the client id" in await refusal(fleet["a"], shipment)


async def test_a_look_at_one_change_is_none_at_another_with_these_bytes(fleet: Fleet) -> None:
    update = run(4000)  # Both are one step, which is applied once it was looked at.
    other = msgspec.structs.replace(edit(update, genesis=b"g" * 32), origin=b"o" * 16)
    chain = operation.chain(CHAIN_START, other.partition, other.dot, other.packed)
    [trouble] = await take(fleet["a"], [edit(update), msgspec.structs.replace(other, chain=chain)])
    assert trouble.origin == other.origin
    assert "does not use the client id" in trouble.message
