"""Long messages of peers are applied step by step, and requests are answered meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pycrdt
import pytest

from shoal.cluster import messages, operation
from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Digest, Have, Push, Shipment, Supply
from shoal.cluster.operation import partition_of
from shoal.cluster.peering import Identity
from shoal.crdt.dot import Origin
from shoal.errors import InvalidValue
from shoal.node import mutation
from shoal.node.peers import delivering, incoming
from shoal.node.spaces.sharing import TURN_SLICE_S
from shoal.protocol import requests
from shoal.testing.machines import VirtualLoop
from simulation.world.fleet import Fleet, Member
from tests.node.wiretap import BRINGER, admit, issued_by, pushed, settled, take, taken
from tests.support.turns import Turns

OTHER = Identity(b"o" * 16, "o:1", "test")


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet("ab", peer_step_operations_max=2) as fleet:
        await fleet.isolate("b")
        yield fleet


async def shipped(fleet: Fleet, names: Iterable[str], *, space: str = "crew") -> list[Shipment]:
    """Operations of the node a."""
    session = fleet["a"].node.session()
    return await issued_by(fleet["a"], [session.call(requests.Add(space, name, 1)) for name in names])


def applied(member: Member) -> int:
    """How many operations the node has taken, durable or not."""
    return sum(sequence for vector in member.node._database.partitions.vectors().values() for sequence in vector.values())


async def received(member: Member, peer: Identity, operations: list[Shipment]) -> None:
    admit(peer, member)
    await pushed(member, peer, operations)


@pytest.mark.answers("node-that-catches-up-stalls-its-clients")
async def test_a_request_is_answered_while_a_long_message_is_applied(fleet: Fleet) -> None:
    shipments = await shipped(fleet, (f"n{number}" for number in range(100)))
    taking = asyncio.create_task(take(fleet["b"], shipments))
    await asyncio.sleep(0)
    await fleet["b"].node.session().call(requests.Add("crew", "own", 1))
    assert not taking.done()
    assert await taking == []
    assert fleet["b"].replicator.quorum.view().members[0].operations == 101


class Steps:
    """The steps that a node takes of what peers push: the turn of the loop, the peer, and the operations."""

    def __init__(self, member: Member, patch: pytest.MonkeyPatch) -> None:
        self.taken: list[tuple[int, bytes, list[Shipment]]] = []
        self.fifth = asyncio.Event()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        sharing, protocol, now_s = member.node.service.sharing, member.replicator._protocol, 0.0
        deliver = protocol.deliver

        def noted(peer: bytes, some: Iterable[Shipment | Arrival], now: float) -> None:
            nonlocal now_s
            now_s += TURN_SLICE_S  # By its clock, each step takes a slice.
            step = list(some)
            self.taken.append((loop.turns, peer, [each.shipment if isinstance(each, Arrival) else each for each in step]))
            deliver(peer, step, now)
            if len(self.taken) == 5:
                self.fifth.set()

        patch.setattr(protocol, "deliver", noted)
        patch.setattr(sharing, "now", lambda: now_s)
        another = sharing.lane("another")
        another.stepped_at = -1.0  # It waits for something else than the disk, and leaves no space alone.
        sharing.entered(another)


@pytest.mark.answers("node-that-catches-up-stalls-its-clients")
async def test_of_two_long_messages_one_step_is_applied_in_a_turn(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    shipments = await shipped(fleet, (f"n{number}" for number in range(40)))
    steps = Steps(fleet["b"], monkeypatch)
    both = (BRINGER, shipments[:20]), (OTHER, shipments[20:])
    await asyncio.gather(*(received(fleet["b"], *each) for each in both))
    assert len({turn for turn, *_ in steps.taken}) == len(steps.taken) == 20


async def test_spaces_take_turns_in_what_peers_push(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    shipments = await shipped(fleet, (f"n{number}" for number in range(20)))
    others = await shipped(fleet, (f"n{number}" for number in range(20)), space="others")
    steps = Steps(fleet["b"], monkeypatch)
    await asyncio.gather(received(fleet["b"], BRINGER, shipments), received(fleet["b"], OTHER, others))
    assert {peer for _, peer, _ in steps.taken[4:8]} == {BRINGER.node, OTHER.node}
    assert sum(len(some) for _, _, some in steps.taken) == 40


async def test_a_quiet_space_overtakes_a_busy_one_on_a_link(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = await shipped(fleet, (f"n{number}" for number in range(100)))
    quiet = await shipped(fleet, ["n"], space="quiet")
    member, steps = fleet["b"], Steps(fleet["b"], monkeypatch)
    admit(BRINGER, member)
    for message in (busy[:50], busy[50:]):
        await member.replicator.received(BRINGER, messages.encode(Push(message)))
    await steps.fifth.wait()
    await member.replicator.received(BRINGER, messages.encode(Push(quiet)))
    await taken(member)
    [nth] = [nth for nth, (_, _, some) in enumerate(steps.taken) if quiet[0] in some]
    assert nth <= 7
    assert sum(len(some) for _, _, some in steps.taken) == 101
    assert await settled(member) == 101


async def test_a_quiet_spaces_dependencies_overtake_with_it(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = await shipped(fleet, [*(f"n{number}" for number in range(50)), "{x}"])
    shares = f"{{{next(name for name in map(str, range(10_000)) if partition_of('quiet', name) == busy[-1].partition)}}}"
    quiet = await shipped(fleet, [shares], space="quiet")
    assert quiet[0].partition == busy[-1].partition
    member, steps = fleet["b"], Steps(fleet["b"], monkeypatch)
    admit(BRINGER, member)
    await member.replicator.received(BRINGER, messages.encode(Push([*busy, *quiet])))
    await taken(member)
    [nth] = [nth for nth, (_, _, some) in enumerate(steps.taken) if quiet[0] in some]
    assert nth <= 2
    assert busy[-1] in steps.taken[nth][2]
    assert member.replicator.early == 0


async def test_an_acknowledgement_overtakes_what_waits_for_a_turn(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = await shipped(fleet, (f"n{number}" for number in range(100)))
    member, compared = fleet["b"], list[int]()

    def compare(*_: object) -> None:
        compared.append(applied(member))

    monkeypatch.setattr(member.replicator._protocol, "_compare", compare)
    admit(BRINGER, member)
    for message in (Push(busy[:50]), Digest(b""), Push(busy[50:]), Have([(1, b"o" * 16, 1)])):
        await member.replicator.received(BRINGER, messages.encode(message))
    assert member.replicator._protocol.known(BRINGER.node).vector(1)[Origin(b"o" * 16)] == 1
    assert compared == [], "a comparison waits for what came before"
    assert applied(member) < 50
    await taken(member)
    [operations] = compared
    assert operations >= 50
    assert applied(member) == 100


async def test_supplied_operations_do_not_hold_up_the_link(fleet: Fleet) -> None:
    supplied = await shipped(fleet, (f"n{number}" for number in range(100)))
    member = fleet["b"]
    admit(BRINGER, member)
    await member.replicator.received(BRINGER, messages.encode(Supply(1, list(map(messages.encode_shipment, supplied)))))
    await member.replicator.received(BRINGER, messages.encode(Have([(1, b"o" * 16, 1)])))
    assert member.replicator._protocol.known(BRINGER.node).vector(1)[Origin(b"o" * 16)] == 1
    assert member.replicator.quorum.view().members[0].operations < 100
    assert await settled(member) == 100


async def test_messages_that_wait_are_taken_in_order(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = await shipped(fleet, (f"n{number}" for number in range(40)))
    member, compared = fleet["b"], list[bytes]()
    monkeypatch.setattr(member.replicator._protocol, "_compare", lambda _peer, _state, digest: compared.append(digest))
    admit(BRINGER, member)
    for message in (Push(busy), Digest(b"1"), Digest(b"2"), Digest(b"3")):
        await member.replicator.received(BRINGER, messages.encode(message))
    await taken(member)
    assert compared == [b"1", b"2", b"3"]


async def test_a_later_failure_is_told_to_the_link(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = await shipped(fleet, (f"n{number}" for number in range(40)))
    member = fleet["b"]

    def compare(*_: object) -> None:
        raise InvalidValue("no such thing")

    monkeypatch.setattr(member.replicator._protocol, "_compare", compare)
    admit(BRINGER, member)
    for message in (Push(busy), Digest(b"1")):
        await member.replicator.received(BRINGER, messages.encode(message))
    await taken(member)
    with pytest.raises(InvalidValue, match="no such thing"):
        await member.replicator.received(BRINGER, messages.encode(Push([])))
    await member.replicator.received(BRINGER, messages.encode(Push([])))


@pytest.mark.parametrize("count", [16, 20])
async def test_a_step_is_bounded_by_its_bytes(count: int) -> None:
    """As many operations as one step may have, and more."""
    async with Fleet("ab", peer_step_bytes_max=200) as fleet:
        await fleet.isolate("b")
        shipments = await shipped(fleet, (f"n{number}" for number in range(count)))
        member, before = fleet["b"], fleet["b"].node._commit.written
        await received(member, BRINGER, shipments)
        await taken(member)
        least = sum(len(each.packed) for each in shipments) // 200
        assert member.node._commit.written - before >= least > 2


async def test_the_next_message_waits_once_too_much_is_ahead() -> None:
    async with Fleet("ab", peer_step_operations_max=2, peer_ahead_bytes_max=1000) as fleet:
        await fleet.isolate("b")
        shipments = await shipped(fleet, (f"n{number}" for number in range(100)))
        member = fleet["b"]
        admit(BRINGER, member)
        await member.replicator.received(BRINGER, messages.encode(Push(shipments)))
        waiting = member.replicator._deliveries._ahead.get(BRINGER.node)
        assert sum(len(each.packed) for each in shipments) > 1000
        assert waiting is None or waiting.bytes <= 1000
        assert await settled(member) == 100


async def test_a_short_message_brings_what_waits_of_its_partition(fleet: Fleet) -> None:
    """Both have one origin: taken before the other, the short one would be early."""
    busy = await shipped(fleet, [*(f"n{number}" for number in range(50)), "{x}"])
    shares = f"{{{next(name for name in map(str, range(10_000)) if partition_of('quiet', name) == busy[-1].partition)}}}"
    quiet = await shipped(fleet, [shares], space="quiet")
    member = fleet["b"]
    admit(BRINGER, member)
    await member.replicator.received(BRINGER, messages.encode(Push(busy)))
    assert applied(member) == 0, "it waits for its turns"
    await member.replicator.received(BRINGER, messages.encode(Push(quiet)))
    assert member.replicator.early == 0
    assert applied(member) >= 2
    assert await settled(member) == 52


async def test_many_short_messages_in_a_row_take_turns(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link may read message after message without a pause: what is taken at once is charged, and the next one waits."""
    shipments = await shipped(fleet, (f"n{number}" for number in range(20)))
    member, steps = fleet["b"], Steps(fleet["b"], monkeypatch)
    admit(BRINGER, member)
    for each in shipments:
        await member.replicator.received(BRINGER, messages.encode(Push([each])))
    assert len(steps.taken) == 1, "its step has used the turn up"
    await taken(member)
    turns = [turn for turn, *_ in steps.taken]
    assert len(turns) == 20
    assert max(map(turns.count, turns)) <= 2


async def test_a_push_that_waited_for_the_disk_is_dropped_if_its_run_is_dead() -> None:
    async with Fleet("ab", writes_pending_max=2) as fleet:
        await fleet.isolate("b")
        shipments = await shipped(fleet, ["n", "m", "l"])
        member, first = fleet["b"], BRINGER._replace(opening=b"1" * 16)
        admit(first, member)
        member.simulated.hold_syncs()
        for each in shipments[:2]:
            await member.replicator.received(first, messages.encode(Push([each])))
        waiting = asyncio.create_task(member.replicator.received(first, messages.encode(Push(shipments[2:]))))
        await asyncio.sleep(0)
        assert (applied(member), waiting.done()) == (2, False)
        admit(first._replace(opening=b"2" * 16), member)
        member.simulated.release_syncs()
        await waiting
        await taken(member, first)
        assert applied(member) == 2


async def test_a_push_that_is_decoded_in_steps_is_dropped_if_its_run_is_dead(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipments = await shipped(fleet, ["n", "m"])
    monkeypatch.setattr(delivering, "PEER_LOOK_OPERATIONS_MAX", 1)
    member, first = fleet["b"], BRINGER._replace(opening=b"1" * 16)
    admit(first, member)
    sound = delivering._Waiting.__init__

    def dies(self: delivering._Waiting, shipment: Shipment) -> None:
        sound(self, shipment)
        if shipment == shipments[-1]:
            admit(first._replace(opening=b"2" * 16), member)

    monkeypatch.setattr(delivering._Waiting, "__init__", dies)
    await member.replicator.received(first, messages.encode(Push(shipments)))
    await taken(member, first)
    assert applied(member) == 0


async def test_a_short_message_that_takes_long_to_check_waits(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked in steps, before it is taken."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("l", type=pycrdt.Array).append("a")
    edit = requests.Updates("crew", "doc", [doc.get_update()])
    shipments = await issued_by(fleet["a"], [fleet["a"].node.session().call(edit)])
    member = fleet["b"]
    monkeypatch.setattr(incoming, "SHORT_BYTES", len(shipments[0].attached) - 1)
    admit(BRINGER, member)
    await member.replicator.received(BRINGER, messages.encode(Push(shipments)))
    assert applied(member) == 0
    assert await settled(member) == 1


async def test_many_operations_of_one_message_are_decoded_in_steps(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    shipments = await shipped(fleet, (f"n{number}" for number in range(100)))
    monkeypatch.setattr(delivering, "PEER_LOOK_OPERATIONS_MAX", 10)
    decoded = Turns(monkeypatch, delivering._Waiting, "__init__", lambda *_: 1)
    await received(fleet["b"], BRINGER, shipments)
    assert (decoded.all, decoded.most) == (100, 10)
    assert await settled(fleet["b"]) == 100


async def test_little_of_what_waits_is_held_decoded() -> None:
    async with Fleet("ab", peer_step_operations_max=2, peer_decoded_bytes_max=1000) as fleet:
        await fleet.isolate("b")
        shipments = await shipped(fleet, (f"n{number}" for number in range(100)))
        member = fleet["b"]
        admit(BRINGER, member)
        for some in (shipments[:30], shipments[30:]):
            await member.replicator.received(BRINGER, messages.encode(Push(some)))
        waiting = [each for queue in member.replicator._deliveries._waiting.values() for each in queue]
        decoded = [each.memory for each in waiting if isinstance(each.operation, Arrival)]
        assert 1000 - max(decoded) < sum(decoded) <= 1000
        assert len(waiting) == 100
        assert await settled(member) == 100


@pytest.mark.parametrize("count", [2, 5])
async def test_a_pushed_operation_is_decoded_once(count: int, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one step, which is taken at once, and as several, which wait for their turns."""
    shipments = await shipped(fleet, (f"n{number}" for number in range(count)))
    member, decoded = fleet["b"], list[bytes]()
    for module in (operation, mutation):
        sound = module.decode

        def counted(packed: bytes, sound: Callable[[bytes], Any] = sound) -> Any:
            decoded.append(packed)
            return sound(packed)

        monkeypatch.setattr(module, "decode", counted)
    await received(member, BRINGER, shipments)
    assert applied(member) == count
    assert len(decoded) == len(set(decoded)) == 2 * count


async def test_a_short_message_is_taken_in_the_turn_in_which_it_comes(fleet: Fleet) -> None:
    shipments = await shipped(fleet, ["n", "m"])
    member, loop = fleet["b"], asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    admit(BRINGER, member)
    began = loop.turns
    await member.replicator.received(BRINGER, messages.encode(Push(shipments)))
    assert (applied(member), loop.turns) == (2, began)


async def test_a_message_of_two_spaces_is_taken_space_by_space(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = await shipped(fleet, ["n"]), await shipped(fleet, ["n"], space="others")
    steps = Steps(fleet["b"], monkeypatch)
    await received(fleet["b"], BRINGER, [*mine, *others])
    assert [some for _, _, some in steps.taken] == [mine, others]


@pytest.mark.parametrize("waits", [False, True])
async def test_waiting_for_the_disk_takes_no_turns(fleet: Fleet, *, waits: bool) -> None:
    """A node that turned in circles until an fsync is done would take the processor from it."""
    loop, member = asyncio.get_running_loop(), fleet["b"]
    assert isinstance(loop, VirtualLoop)
    busy = await shipped(fleet, (f"n{number}" for number in range(100)))
    quiet = await shipped(fleet, ["n"], space="quiet")
    began = loop.turns
    await asyncio.sleep(1.0)
    idle = loop.turns - began
    member.simulated.hold_syncs()
    asked = [
        asyncio.create_task(member.node.session().call(requests.Add(space, "own", 1))) for space in ("crew", "quiet") * waits
    ]
    admit(BRINGER, member)
    for message in (busy[:50], quiet, busy[50:]):
        await member.replicator.received(BRINGER, messages.encode(Push(message)))
    began = loop.turns
    await asyncio.sleep(1.0)
    assert loop.turns - began <= 2 * idle
    member.simulated.release_syncs()
    await asyncio.gather(*asked)
    assert await settled(member) == 101 + len(asked)


async def test_operations_of_peers_are_under_way_until_durable(fleet: Fleet) -> None:
    member = fleet["b"]
    lane = member.node.service.sharing.lane("quiet")
    quiet = await shipped(fleet, ["n"], space="quiet")
    member.simulated.hold_syncs()
    admit(BRINGER, member)
    await member.replicator.received(BRINGER, messages.encode(Push(quiet)))
    assert lane.under_way == 1
    member.simulated.release_syncs()
    await member.node.session().call(requests.ListSpaces())
    assert lane.under_way == 0


async def test_pushes_of_a_dead_run_are_dropped(fleet: Fleet) -> None:
    shipments = await shipped(fleet, (f"n{number}" for number in range(100)))
    member, first = fleet["b"], BRINGER._replace(opening=b"1" * 16)
    admit(first, member)
    await member.replicator.received(first, messages.encode(Push(shipments)))
    admit(first._replace(opening=b"2" * 16), member)
    await taken(member, first)
    assert member.replicator.quorum.view().members[0].operations < 100


@pytest.mark.answers("node-that-catches-up-stalls-its-clients")
async def test_a_step_is_followed_by_a_pause_while_a_request_waits_for_the_disk(fleet: Fleet) -> None:
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    member = fleet["b"]
    deliveries = member.replicator._deliveries
    deliveries._environment = dataclasses.replace(deliveries._environment, pause=pause)
    shipments = await shipped(fleet, (f"n{number}" for number in range(40)))
    await received(member, BRINGER, shipments[:20])
    assert pauses == 0
    await member.node.session().call(requests.ListSpaces())  # Which waits for all that was written.
    member.simulated.hold_syncs()
    waiting = asyncio.create_task(member.node.session().call(requests.Add("crew", "own", 1)))
    await asyncio.sleep(0)
    await received(member, BRINGER, shipments[20:])
    member.simulated.release_syncs()
    await waiting
    assert pauses == 10
