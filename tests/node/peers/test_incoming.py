"""What a node makes of operations that are not what their origin sent: each is refused with a reason, and leaves no trace."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pycrdt
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from shoal.cluster import operation
from shoal.cluster.messages import Shipment, Want
from shoal.cluster.operation import CHAIN_START, Body, partition_of
from shoal.config import Config
from shoal.crdt.applier import NOTHING, Blobs
from shoal.crdt.dot import COUNTER_BITS, END_MS, Dot, Origin
from shoal.kinds.counter import state as counter
from shoal.kinds.document.state import document
from shoal.kinds.items import state as items
from shoal.node import mutation, transaction
from shoal.node.handler import Target
from shoal.node.mutation import Mutation
from shoal.node.peers import incoming as vetting
from shoal.node.turns import document_pace
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage.keys import Kind
from simulation.world.environment import START_MS
from simulation.world.fleet import Fleet
from tests.node.wiretap import asked_of, issued_by, take
from tests.support.examples import examples

STRANGER = Origin(b"s" * 16)
HLC = START_MS << COUNTER_BITS
COUNT = Target(Kind.COUNTER, "crew", "n")
ADD = Mutation(Kind.COUNTER, "crew", "n", counter.Add(5))
BODY = Body(HLC, START_MS, [], None, mutation.encode([ADD]))
QUARANTINE_S = 0.001
NO_CONTENT = transaction.pack_blobs([NOTHING])


def shipped(body: Body = BODY, *, sequence: int = 1, partition: int = COUNT.partition, beside: bytes = NO_CONTENT) -> Shipment:
    """An operation of a stranger, its chain right; only the first of its log is."""
    packed = operation.encode(body)
    dot = Dot(STRANGER, sequence)
    return Shipment(partition, *dot, operation.chain(CHAIN_START, partition, dot, packed), packed, beside)


def packed_as(packed: bytes) -> Shipment:
    """The stranger's first operation in these bytes, its chain right."""
    chain = operation.chain(CHAIN_START, COUNT.partition, Dot(STRANGER, 1), packed)
    return Shipment(COUNT.partition, STRANGER, 1, chain, packed, NO_CONTENT)


def item(change: items.Put | items.Delete | items.Refresh | items.Expire) -> Shipment:
    payload = mutation.encode([Mutation(Kind.ITEMS, "crew", "n", change)])
    return shipped(msgspec.structs.replace(BODY, payload=payload), partition=COUNT.partition)


def changed(**fields: Any) -> Shipment:
    return shipped(msgspec.structs.replace(BODY, **fields))


def holding(*mutations: Mutation) -> Shipment:
    beside = transaction.pack_blobs([NOTHING] * len(mutations))
    return shipped(msgspec.structs.replace(BODY, payload=mutation.encode(list(mutations))), beside=beside)


async def test_an_operation_of_a_stranger_is_applied() -> None:
    async with Fleet("a", join="b:1") as fleet:
        assert await take(fleet["a"], [shipped()]) == []
        assert await fleet["a"].store().space("crew").counter("n").value() == 5


BAD: dict[str, tuple[Shipment, str]] = {
    "an undecodable body": (
        Shipment(1, STRANGER, 1, operation.chain(CHAIN_START, 1, Dot(STRANGER, 1), b"\xc1"), b"\xc1", b""),
        "not an operation",
    ),
    "an undecodable payload": (changed(payload=b"\xc1"), "cannot be decoded"),
    "a body with bytes after it": (packed_as(operation.encode(BODY) + b"\x00"), "not an operation"),
    "a payload with bytes after it": (changed(payload=mutation.encode([ADD]) + b"\x00"), "cannot be decoded"),
    "a mutation of an unknown kind of change": (
        changed(payload=msgspec.msgpack.encode([(3, "crew", "n", ("multiply", 5))])),
        "cannot be decoded",
    ),
    "an unknown kind of object": (holding(Mutation(77, "crew", "n", counter.Add(5))), "not a valid Kind"),
    "a change of another kind of object": (holding(Mutation(Kind.THREAD, "crew", "n", counter.Add(5))), "takes no change"),
    "an object of another partition": (shipped(partition=COUNT.partition ^ 1), "belongs to another partition"),
    "an empty name": (holding(Mutation(Kind.COUNTER, "crew", "", counter.Add(5))), "must not be empty"),
    "a name that is too long": (holding(Mutation(Kind.COUNTER, "crew", "n" * 70_000, counter.Add(5))), "at most"),
    "a key that is too long": (changed(key="k" * 70_000), "at most"),
    "too few attachments": (shipped(beside=transaction.pack_blobs([])), "the number of its blobs differs"),
    "too many attachments": (shipped(beside=transaction.pack_blobs([NOTHING] * 2)), "the number of its blobs differs"),
    "attachments that are none": (shipped(beside=b"\xc1"), "cannot be read"),
    "no time": (changed(hlc=0), "its time is not after"),
    "a time at the end of time": (changed(hlc=(1 << 64) - 1), "beyond all clocks"),
    "a wall time before all time": (changed(wall_ms=-1), "beyond all clocks"),
    "a context of its own future": (changed(context=[(STRANGER, 1)]), "which cannot be"),
    "a context of an origin that is none": (changed(context=[(b"short", 1)]), "which cannot be"),
    "a negative context": (changed(context=[(b"o" * 16, -1)]), "which cannot be"),
    "a broken chain": (msgspec.structs.replace(shipped(), chain=bytes(32)), "chain hash"),
    "an item without a key": (item(items.Put((), "", b"\x01", (), 1)), "must not be empty"),
    "an item whose label would be two": (item(items.Delete(("a\x00b",), "k", ())), "control characters"),
    "an item with an empty label": (item(items.Expire((items.Delete(("",), "k", ()),))), "must not be empty"),
    "an item that is no value": (item(items.Put((), "k", b"\xc1", (), 1)), "not one msgpack value"),
    "an item that expires before all time": (item(items.Put((), "k", b"\x01", (), 1, 5, -1)), "not a valid time of an item"),
    "a refresh past all time": (item(items.Refresh((items.Refreshed((), "k", (), 1 << 63),))), "not a valid time of an item"),
    "an update that is none": (
        shipped(
            Body(HLC, START_MS, [], None, mutation.encode([Mutation(2, "crew", "n", document.Update(b"d" * 32))])),
            partition=COUNT.partition,
        ),
        "does not match its hash",
    ),
    "an update that is another than it names, and claims to be erased in part": (
        shipped(
            Body(HLC, START_MS, [], None, mutation.encode([Mutation(2, "crew", "n", document.Update(b"d" * 32))])),
            partition=COUNT.partition,
            beside=transaction.pack_blobs([Blobs(b"another", erased=True)]),
        ),
        "does not match its hash",
    ),
}


@pytest.mark.answers("one-bad-message-crashes-every-node-in-turn", "update-does-not-match-its-hash")
@pytest.mark.parametrize("what", BAD)
async def test_impossible_operations_are_refused_with_a_reason(what: str) -> None:
    bad, reason = BAD[what]
    async with Fleet("a", join="b:1") as fleet:
        before = fleet.rows("a")
        [trouble] = await take(fleet["a"], [bad])
        assert reason in trouble.message
        assert "shoal verify" not in trouble.message  # The peer's operation is bad, not this node's disk.
        assert fleet.rows("a") == before
        [listed] = fleet["a"].replicator.quorum.view().quarantined
        assert reason in listed


_LONG_PAYLOAD = mutation.encode([ADD])
_LONG_PAYLOAD = b"\xdd\x00\x00\x00\x01" + _LONG_PAYLOAD[1:]
ODD = {
    "a longer head": b"\xdc\x00\x07" + operation.encode(BODY)[1:],
    "longer lists within": operation.encode(msgspec.structs.replace(BODY, payload=_LONG_PAYLOAD)),
    "a longer number": operation.encode(BODY).replace(msgspec.msgpack.encode(START_MS), b"\xd3" + START_MS.to_bytes(8, "big")),
    "fields of a later version": msgspec.msgpack.encode([*msgspec.to_builtins(BODY, builtin_types=[bytes]), "", [], "later"]),
}


@pytest.mark.parametrize("what", ODD)
async def test_an_operation_in_other_bytes_than_nodes_write_is_kept_and_sent_as_it_came(what: str) -> None:
    """Its bytes are what its chain covers: what was decoded of them serves this node alone."""
    odd = packed_as(ODD[what])
    async with Fleet("a", join="b:1") as fleet:
        assert await take(fleet["a"], [odd]) == []
        assert await fleet["a"].store().space("crew").counter("n").value() == 5
        want = Want(1, [(COUNT.partition, STRANGER, 1, 1)])
        assert [each.packed for each in await asked_of(fleet["a"], want)] == [odd.packed]
        assert verify(fleet["a"].storage, config=Config()).problems == []


@pytest.mark.answers("one-node-with-a-fast-clock-wins-every-conflict")
async def test_after_a_time_far_ahead_the_node_still_writes_and_says_how_far_it_is() -> None:
    ahead_ms = 365 * 24 * 3600 * 1000
    async with Fleet("a", join="b:1") as fleet:
        assert await take(fleet["a"], [changed(hlc=(START_MS + ahead_ms) << COUNTER_BITS)]) == []
        assert await fleet["a"].store().space("crew").counter("n").add(1) == 6
        assert fleet["a"].replicator.quorum.view().clock_ahead_ms == ahead_ms


@pytest.mark.answers("time-near-the-end-stops-replication")
async def test_after_a_time_at_the_end_of_all_clocks_replication_goes_on() -> None:
    """The last time that is taken leads every clock to the end; what is issued after it is past the end."""
    async with Fleet("abc") as fleet:
        assert await take(fleet["a"], [changed(hlc=(END_MS << COUNTER_BITS) - 1)]) == []
        await fleet.converged()
        for name in "ab":
            await fleet[name].store().space("crew").counter("n").add(1, durability="all")
            await fleet[name].store().space("crew").counter("other").add(1, durability="all")
        await fleet.converged()
        assert all(member.replicator.quorum.view().quarantined == [] for member in fleet.members.values())


async def write_of_each_kind(fleet: Fleet) -> list[Shipment]:
    """What node a issues, as it is pushed. The thread's chunks are there already for the last save."""
    session = fleet["a"].node.session()
    doc: pycrdt.Doc[pycrdt.Map[int]] = pycrdt.Doc(client_id=7)
    doc.get("m", type=pycrdt.Map)["x"] = 1
    notes = b"".join(b"\xa4%04d" % n for n in range(9000))
    grown = b"\xdd\x00\x00#(" + notes, b"\xdd\x00\x00#)" + notes + b"\xa4last"
    writes: list[requests.AnyWrite] = [
        requests.Save("crew", "{x}t", {"log": grown[0], "step": b"\x01"}),
        requests.Save("crew", "{x}t", {"log": grown[1], "step": b"\x02"}),
        requests.Append("crew", "{x}t", b"\xa5event", "key"),
        requests.Update("crew", "{x}d", doc.get_update(), {"m": "map"}),
        requests.Add("crew", "{x}c", 512),
        requests.Assign("crew", "{x}r", b"\xa5value"),
    ]
    return await issued_by(fleet["a"], [session.call(write, key=f"k{nth}") for nth, write in enumerate(writes)])


def alter_bit(shipment: Shipment, bit: int) -> Shipment:
    """Another bit in one of the parts that a hash has to cover."""
    name = ("packed", "attached", "chain")[bit % 3]
    part = bytearray(getattr(shipment, name))
    part[bit // 24 % len(part)] ^= 1 << (bit // 3 % 8)
    return msgspec.structs.replace(shipment, **{name: bytes(part)})


@pytest.mark.answers("one-bad-message-crashes-every-node-in-turn")
@examples(60, suppress_health_check=list(HealthCheck))
@given(bits=st.lists(st.integers(0, 24 * 60_000), min_size=6, max_size=6))
async def test_an_operation_with_any_bit_altered_is_refused_or_comes_to_the_same(bits: list[int]) -> None:
    async with Fleet("ab", quarantine_s=QUARANTINE_S) as fleet:
        await fleet.isolate("b")
        shipments = await write_of_each_kind(fleet)
        for shipment, bit in zip(shipments, bits, strict=True):
            before = fleet.rows("b")
            if await take(fleet["b"], [alter_bit(shipment, bit)]):
                assert fleet.rows("b") == before, "what is refused leaves no trace"
                await asyncio.sleep(2 * QUARANTINE_S)
            assert await take(fleet["b"], [shipment]) == []
        assert fleet.rows("b") == fleet.rows("a")


async def test_a_chunk_that_its_checkpoint_does_not_name_is_refused() -> None:
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        first, second, *_ = await write_of_each_kind(fleet)
        assert await take(fleet["b"], [first]) == []
        [beside] = transaction.unpack_blobs(second.attached)
        more = Blobs(beside.content, {**beside.chunks, b"any": b"a chunk of nobody's"})
        bad = msgspec.structs.replace(second, attached=transaction.pack_blobs([more]))
        [trouble] = await take(fleet["b"], [bad])
        assert "names no such chunk" in trouble.message


async def test_a_record_that_describes_its_values_wrongly_is_refused() -> None:
    """A checkpoint's id covers what its recipes make, and not the recipes."""
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        first, second, *_ = await write_of_each_kind(fleet)
        assert await take(fleet["b"], [first]) == []
        [beside] = transaction.unpack_blobs(second.attached)
        record = msgspec.msgpack.decode(beside.content)
        recipe = record[6]["log"]
        assert recipe[5] is True, "it keeps the tail of the checkpoint before"
        recipe[5] = False
        bad = transaction.pack_blobs([Blobs(msgspec.msgpack.encode(record), beside.chunks)])
        [trouble] = await take(fleet["b"], [msgspec.structs.replace(second, attached=bad)])
        assert "described differently" in trouble.message


async def test_each_operation_that_saved_an_id_keeps_its_own_record() -> None:
    """A retry on another node, whose caches are cold: it describes the same values otherwise."""
    log = [b"\xa4%04d" % n for n in range(9000)]
    async with Fleet() as fleet:
        first = requests.Save("crew", "t", {"log": b"\xdd\x00\x00#(" + b"".join(log)}, parent=requests.NO_HEAD)
        saved = await fleet["a"].node.session().call(first)
        assert isinstance(saved, requests.Saved)
        await fleet.converged()
        for name in "ab":
            await fleet.isolate(name)
        changed = [*log[:8000], b"\xa4edit", *log[8001:]]  # Only who has the old value at hand knows how much is as it was.
        edited = requests.Save("crew", "t", {"log": b"\xdd\x00\x00#(" + b"".join(changed)}, parent=saved.id)
        partition = partition_of("crew", "t")
        twice = []
        for name in "ab":
            twice += await issued_by(fleet[name], [fleet[name].node.session().call(edited, key="key")])
        assert twice[0].attached != twice[1].attached
        least, other = sorted(twice, key=lambda shipment: shipment.dot)
        holder = "a" if twice[0] is other else "b"
        assert await take(fleet[holder], [least]) == []
        want = Want(1, [(partition, other.origin, other.sequence, other.sequence)])
        [sent] = await asked_of(fleet[holder], want)
        assert transaction.unpack_blobs(sent.attached)[0].content == transaction.unpack_blobs(other.attached)[0].content
        assert await take(fleet["c"], [sent]) == []
        assert verify(fleet["c"].storage, config=Config()).problems == []
        assert await asked_of(fleet["c"], want) == [sent], "it can be given on"
        assert await take(fleet["c"], [least]) == []
        assert fleet.rows("c") == fleet.rows(holder)


async def test_of_a_slice_all_but_the_bad_ones_and_what_follows_them_is_applied() -> None:
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        add = requests.Add("crew", "n", 1)
        other = requests.Add("crew", "other", 1)
        session = fleet["a"].node.session()
        shipments = await issued_by(fleet["a"], [session.call(request) for request in (add, other, add, add)])
        bad = msgspec.structs.replace(shipments[2], packed=shipments[3].packed)
        troubles = await take(fleet["b"], [shipments[0], bad, shipments[1], shipments[3]])
        assert [trouble.sequence for trouble in troubles] == [2]
        space = fleet["b"].store().space("crew")
        assert await space.counter("n").value() == 1, "what followed the bad one in its log is not applied"
        assert await space.counter("other").value() == 1, "the other partition goes on"


async def test_a_message_makes_the_same_rows_as_its_operations_one_by_one() -> None:
    """The object is deleted by one node and changed by another: in one write, the change must find the deletion."""
    async with Fleet("abcd") as fleet:
        append = requests.Append("crew", "t", b"\x01")
        await fleet["a"].node.session().call(append)
        await fleet.converged()
        for name in "abcd":
            await fleet.isolate(name)
        session = fleet["a"].node.session()
        ours = await issued_by(fleet["a"], [session.call(each) for each in (append, requests.DeleteThread("crew", "t"))])
        theirs = await issued_by(fleet["b"], [fleet["b"].node.session().call(append)])
        assert await take(fleet["c"], [*ours, *theirs]) == []
        for shipment in (*ours, *theirs):
            assert await take(fleet["d"], [shipment]) == []
        assert fleet.rows("c") == fleet.rows("d")
        assert verify(fleet["c"].storage, config=Config()).problems == []


async def test_redelivered_operations_change_nothing() -> None:
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        shipments = await write_of_each_kind(fleet)
        assert await take(fleet["b"], shipments) == []
        before = fleet.rows("b")
        assert await take(fleet["b"], [*shipments, *reversed(shipments)]) == []
        assert fleet.rows("b") == before


async def test_a_bad_change_leaves_no_trace_of_others() -> None:
    """The first change of the operation is sound, and was made before the second was refused."""
    async with Fleet("a", join="b:1") as fleet:
        sound = shipped(msgspec.structs.replace(BODY, payload=mutation.encode([ADD])))
        bad = holding(ADD, Mutation(77, "crew", "n", counter.Add(5)))
        before = fleet.rows("a")
        assert await take(fleet["a"], [bad]) != []
        await asyncio.sleep(2 * fleet["a"].config.quarantine_s)
        assert fleet.rows("a") == before
        other = msgspec.structs.replace(sound, origin=b"t" * 16)
        chain = operation.chain(CHAIN_START, other.partition, other.dot, other.packed)
        assert await take(fleet["a"], [bad, msgspec.structs.replace(other, chain=chain)]) != []
        assert await fleet["a"].store().space("crew").counter("n").value() == 5


async def test_a_message_is_one_write() -> None:
    async with Fleet("a", join="b:1") as fleet:
        commit = fleet["a"].replicator._commit
        await take(fleet["a"], [])
        before = commit.written
        await take(fleet["a"], [shipped()])
        assert commit.written == before + 1


def test_vetting_refuses_nothing() -> None:
    for bad in (shipped(beside=b"\xc1"), changed(payload=b"\xc1"), msgspec.structs.replace(shipped(), packed=b"\xc1")):
        assert list(vetting.vet(bad, document_pace())) == []
