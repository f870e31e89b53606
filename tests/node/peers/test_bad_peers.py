"""A peer that lies, babbles, forges or stalls: it is told why it is refused, and nobody else notices."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from shoal.cluster import messages, operation
from shoal.cluster.messages import (
    Digest,
    Have,
    Message,
    Parts,
    RepairReply,
    RepairRequest,
    Shipment,
    Supply,
    Trouble,
    Vectors,
    Want,
)
from shoal.cluster.operation import partition_of
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.errors import BadOperation, InvalidValue, ShoalError
from shoal.protocol import requests
from shoal.storage import keys
from simulation.world.fleet import Fleet, Member
from tests.node.wiretap import BRINGER, Tap, admit, issued_by, take
from tests.support.examples import examples

N = partition_of("crew", "n")
SOMEBODY = b"o" * 16


async def add(fleet: Fleet, name: str, counter: str = "n") -> None:
    await fleet[name].store().space("crew").counter(counter).add(1)


async def said_to(member: Member, message: Message) -> Tap:
    """What a node answers to one message of a peer."""
    tap = Tap()
    admit(BRINGER, member)
    member.replicator.linked(BRINGER, tap)
    tap.messages.clear()
    await member.replicator.received(BRINGER, messages.encode(message))
    member.replicator.unlinked(BRINGER, tap)
    return tap


# ── links that are closed ─────────────────────────────────────────────────────

NO_MESSAGES = {
    "nothing": b"",
    "no array": b"\x01",
    "an unknown tag": msgspec.msgpack.encode([99, b""]),
    "no tag": msgspec.msgpack.encode([]),
    "a message cut short": messages.encode(Have([(1, SOMEBODY, 1)]))[:-3],
    "a message and more": messages.encode(Digest(b"d" * 32)) + b"\x00",
    "a partition that is none": messages.encode(Have([(1024, SOMEBODY, 1)])),
    "an origin that is none": messages.encode(Have([(1, b"short", 1)])),
    "a negative sequence": messages.encode(Have([(1, SOMEBODY, -1)])),
    "a sequence beyond all": messages.encode(Have([(1, SOMEBODY, (1 << 64) - 1)])),
    "a vector that is none": messages.encode(Vectors([(1, b"x" * 25)], False)),
    "a vector out of order": messages.encode(
        Vectors([(1, Dot(Origin(b"b" * 16), 1).pack() + Dot(Origin(b"a" * 16), 1).pack())], False)
    ),
    "a range that ends before it begins": messages.encode(Want(1, [(1, SOMEBODY, 5, 4)])),
    "a range from nothing": messages.encode(Want(1, [(1, SOMEBODY, 0, 4)])),
    "more ranges than are allowed": messages.encode(Want(1, [(1, SOMEBODY, 1, 1)] * (messages.RANGES_MAX + 1))),
    "an operation of no partition": messages.encode(Supply(1, [Shipment(9999, SOMEBODY, 1, bytes(32), b"", b"")])),
    "an operation without a chain": messages.encode(Supply(1, [Shipment(1, SOMEBODY, 1, b"", b"", b"")])),
    "arrays within arrays": b"\x91" * 100_000,
}


@pytest.mark.answers("one-bad-message-crashes-every-node-in-turn")
@pytest.mark.parametrize("what", NO_MESSAGES)
async def test_a_malformed_message_ends_its_link_alone(what: str) -> None:
    async with Fleet() as fleet:
        await add(fleet, "a")
        await fleet.converged()
        before = fleet.rows("b")
        fleet.spoil = lambda source, target, message: NO_MESSAGES[what] if (source, target) == ("a", "b") else message
        while fleet.wires["a", "b"].refusal is None:
            await asyncio.sleep(0.001)
        assert isinstance(fleet.wires["a", "b"].refusal, InvalidValue | BadOperation)
        assert "othing" in str(fleet.wires["a", "b"].refusal), "it says that nothing was written"
        assert fleet.rows("b") == before
        await add(fleet, "a")
        await fleet.converged()  # By way of c.


@examples(150, suppress_health_check=list(HealthCheck))
@given(cut=st.integers(0, 400), flips=st.lists(st.integers(0, 3199), max_size=4))
async def test_an_altered_message_of_any_kind_is_taken_or_refused_and_nothing_else(cut: int, flips: list[int]) -> None:
    async with Fleet("ab", quarantine_s=1e-6) as fleet:
        await fleet.isolate("b")
        shipments = await issued_by(
            fleet["a"], [fleet["a"].node.session().call(requests.Add("crew", "n", 1)) for _ in range(2)]
        )
        sound: list[Message] = [
            Supply(1, shipments),
            Have([(N, SOMEBODY, 3)]),
            Digest(b"d" * 32),
            Parts([(N, b"p" * 8)]),
            Vectors([(N, Dot(Origin(SOMEBODY), 4).pack())], True),
            Want(7, [(N, SOMEBODY, 1, 4)]),
            Trouble(N, SOMEBODY, 1, "content", "it is bad"),
            RepairRequest(3, 1, "crew", "t", 0, [b"C" + bytes(32)]),
            RepairReply(3, [(b"C" + bytes(32), b"?")]),
        ]
        for message in sound:
            altered = bytearray(messages.encode(message))
            for flip in flips:
                altered[flip // 8 % len(altered)] ^= 1 << flip % 8
            with suppress(ShoalError):
                await fleet["b"].replicator.received(BRINGER, bytes(altered[: cut or None]))
        await add(fleet, "b")
        assert await fleet["b"].store().space("crew").counter("n").value() >= 1, "the node goes on"


# ── claims that cannot be ─────────────────────────────────────────────────────


async def own_origin(member: Member) -> bytes:
    status = await member.node.session().call(requests.Status())
    assert isinstance(status, requests.NodeStatus)
    return bytes.fromhex(status.origin)


@pytest.mark.parametrize("held_as", ["have", "vector"])
async def test_claims_of_operations_never_issued_are_refused(held_as: str) -> None:
    async with Fleet("ab") as fleet:
        await add(fleet, "a")
        origin = await own_origin(fleet["a"])
        claim: Message = Have([(N, origin, 2)])
        if held_as == "vector":
            claim = Vectors([(N, Dot(Origin(origin), 2).pack())], False)
        with pytest.raises(BadOperation, match="which this node has not issued"):
            await said_to(fleet["a"], claim)


async def test_writes_not_yet_issued_cannot_have_been_taken() -> None:
    async with Fleet("ab") as fleet:
        await add(fleet, "a")
        origin = await own_origin(fleet["a"])
        fleet["a"].simulated.hold_syncs()
        writing = asyncio.create_task(add(fleet, "a"))
        await asyncio.sleep(0)
        await said_to(fleet["a"], Have([(N, origin, 2)]))  # It may be durable elsewhere before it is here.
        with pytest.raises(BadOperation):
            await said_to(fleet["a"], Have([(N, origin, 3)]))
        fleet["a"].simulated.release_syncs()
        await writing


async def test_a_claim_of_operations_that_nobody_can_bring_costs_one_question() -> None:
    # So much is first asked for as a snapshot, three times; then, as it does not come, as operations.
    async with Fleet("ab", snapshot_idle_s=0.02) as fleet:
        tap = await said_to(fleet["a"], Vectors([(N, VersionVector({Origin(SOMEBODY): 1 << 40}).pack())], True))
        fleet["a"].replicator.linked(BRINGER, tap)
        while not (asked := [message for message in tap.messages if isinstance(message, Want)]):
            await asyncio.sleep(0.001)
        tap.messages.clear()
        await fleet["a"].replicator.received(BRINGER, messages.encode(Supply(asked[0].id, [])))
        await asyncio.sleep(0.02)
        assert not [message for message in tap.messages if isinstance(message, Want)], "not before it claims it again"


async def test_a_want_of_what_does_not_exist_is_answered_with_nothing() -> None:
    async with Fleet("ab") as fleet:
        await add(fleet, "a")
        tap = await said_to(fleet["a"], Want(7, [(5, SOMEBODY, 1, 1 << 62), (N, await own_origin(fleet["a"]), 2, 1 << 62)]))
        assert tap.messages == [Supply(7, [])]


# ── operations that are refused ───────────────────────────────────────────────


def forged(shipment: Shipment) -> Shipment:
    """Another operation under the same dot, as a copy of its origin's directory would issue it."""
    body = msgspec.structs.replace(operation.decode(shipment.packed), wall_ms=1)
    packed = operation.encode(body)
    chain = operation.chain(operation.CHAIN_START, shipment.partition, shipment.dot, packed)
    return msgspec.structs.replace(shipment, packed=packed, chain=chain)


@pytest.mark.answers("no-dot-names-two-payloads", "sequence-number-is-reused-after-a-lost-fsync")
async def test_another_operation_under_a_dot_that_is_taken_is_refused_and_reported_to_both() -> None:
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        [shipment] = await issued_by(fleet["a"], [fleet["a"].node.session().call(requests.Add("crew", "n", 1))])
        assert await take(fleet["b"], [shipment]) == []
        before = fleet.rows("b")
        [trouble] = await take(fleet["b"], [forged(shipment)])
        assert trouble.reason == "dot-taken"
        assert fleet.rows("b") == before
        assert "two nodes write under one origin" in fleet["b"].replicator.quorum.view().quarantined[0]


async def test_of_two_operations_under_one_dot_that_wait_the_second_is_refused() -> None:
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        session = fleet["a"].node.session()
        _, second = await issued_by(fleet["a"], [session.call(requests.Add("crew", "n", 1)) for _ in range(2)])
        assert await take(fleet["b"], [second]) == []
        [trouble] = await take(fleet["b"], [forged(second)])
        assert trouble.reason == "dot-taken"


def break_push(message: bytes) -> bytes:
    """The same message with its operations altered, if it brings any."""
    epoch, packed = messages.unstamped(message)
    decoded = messages.decode(packed)
    if not isinstance(decoded, messages.Push | Supply):
        return message
    broken = [
        msgspec.structs.replace(each, packed=each.packed + b"\x00") for each in decoded.operations if isinstance(each, Shipment)
    ]
    return messages.stamped(messages.encode(msgspec.structs.replace(decoded, operations=broken)), epoch)


@pytest.mark.answers("one-bad-message-crashes-every-node-in-turn")
async def test_an_altered_operation_is_told_to_its_sender_and_a_sound_copy_of_another_peer_is_taken() -> None:
    async with Fleet(quarantine_s=0.02) as fleet:
        fleet.spoil = lambda source, target, message: break_push(message) if (source, target) == ("a", "b") else message
        await fleet.cut("c", "b")
        await add(fleet, "a")
        while not (reasons := [member.reason for member in fleet["a"].replicator.quorum.view().members if member.reason]):
            await asyncio.sleep(0.001)
        assert "did not apply operation 1" in reasons[0]
        assert fleet["b"].replicator.quorum.view().quarantined
        await add(fleet, "b", "other")
        assert await fleet["b"].store().space("crew").counter("n").value() == 0
        fleet.link("c", "b")
        await fleet.converged()
        assert await fleet["b"].store().space("crew").counter("n").value() == 1
        assert fleet["b"].replicator.quorum.view().quarantined == [], "what was applied after all is not reported any more"


async def test_a_quarantined_origin_does_not_hold_up_others_of_its_partition() -> None:
    async with Fleet(quarantine_s=60.0) as fleet:
        fleet.spoil = lambda source, target, message: break_push(message) if source == "a" else message
        await add(fleet, "a")
        while not fleet["b"].replicator.quorum.view().quarantined:
            await asyncio.sleep(0.001)
        await add(fleet, "c")
        while await fleet["b"].store().space("crew").counter("n").value() != 1:
            await asyncio.sleep(0.001)


async def test_damage_in_the_log_of_one_partition_does_not_keep_others_from_a_peer() -> None:
    async with Fleet("abc") as fleet:
        await fleet.isolate("c")
        for counter in ("n", "m"):
            await add(fleet, "a", counter)
        await fleet["b"].node.session().call(requests.ListSpaces())
        logged = keys.log(N, Dot(Origin(await own_origin(fleet["a"])), 1))
        fleet["a"].storage.write({logged: b"d" * 32 + b"\xc1"})
        fleet.link("a", "c")
        fleet.link("c", "a")
        while await fleet["c"].store().space("crew").counter("m").value() != 1:
            await asyncio.sleep(0.001)
        assert await fleet["c"].store().space("crew").counter("n").value() == 0
        fleet.link("b", "c")
        fleet.link("c", "b")
        while await fleet["c"].store().space("crew").counter("n").value() != 1:  # The sound copy.
            await asyncio.sleep(0.001)


# ── peers that stall ──────────────────────────────────────────────────────────


@pytest.mark.answers("queues-are-bounded", "slow-consumer-makes-memory-grow-without-bound")
async def test_waiting_for_a_stalled_peer_is_bounded() -> None:
    async with Fleet(peer_send_bytes_max=4096) as fleet:
        stalled = fleet.wires["a", "c"]
        stalled.open.clear()
        for _ in range(100):
            await fleet["a"].store().space("crew").thread("t").journal.append("x" * 200)
            assert stalled.waiting_bytes <= 4096
        [dropped] = [member.dropped for member in fleet["a"].replicator.quorum.view().members if member.name == "c:1"]
        assert dropped > 0
        stalled.open.set()
        await fleet.converged()
        assert fleet.rows("a") == fleet.rows("c")


@pytest.mark.answers("queues-are-bounded")
async def test_operations_that_wait_for_a_lost_one_are_bounded_and_fetched_once_it_is_there() -> None:
    async with Fleet("ab", early_bytes_max=4000) as fleet:
        await fleet.isolate("b")
        session = fleet["a"].node.session()
        shipments = await issued_by(fleet["a"], [session.call(requests.Add("crew", "n", 1)) for _ in range(50)])
        assert await take(fleet["b"], shipments[1:]) == []
        assert 0 < fleet["b"].replicator.quorum.view().early < 10
        fleet.link_all("b")
        await fleet.converged()
        assert fleet["b"].replicator.quorum.view().early == 0


@pytest.mark.answers("queues-are-bounded")
async def test_a_peer_that_sends_faster_than_the_disk_takes_it_waits() -> None:
    async with Fleet("ab", writes_pending_max=8, peer_step_operations_max=4) as fleet:
        await fleet.isolate("b")
        session = fleet["a"].node.session()
        shipments = await issued_by(fleet["a"], [session.call(requests.Add("crew", f"n-{n}", 1)) for n in range(300)])
        fleet["b"].simulated.hold_syncs()
        taking = asyncio.create_task(take(fleet["b"], shipments))
        for _ in range(50):
            await asyncio.sleep(0)
        assert fleet["b"].node.writes_pending <= 8
        assert not taking.done()
        fleet["b"].simulated.release_syncs()
        assert await taking == []
        assert fleet.rows("a") == fleet.rows("b")
