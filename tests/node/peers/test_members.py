"""Nodes whose members differ notice it, and tell people, on both sides."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from shoal.cluster import messages
from shoal.cluster.consensus.ballots import Known
from shoal.cluster.membership import epochs
from shoal.cluster.membership.notices import Membership
from shoal.cluster.peer_state import Reset
from shoal.cluster.peering import Identity, Outlet
from shoal.crdt.dot import Origin, VersionVector
from shoal.errors import PeerRefused
from shoal.node.membership.roster import Roster
from shoal.node.peers.admission import Resets
from shoal.node.peers.members import Members
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet, Member


async def disagreements(fleet: Fleet, name: str) -> list[str]:
    return (await fleet[name].store().cluster()).disagreements


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def replaced(fleet: Fleet, name: str, **settings: str) -> None:
    """Start a node again with other settings."""
    left = await fleet.crash(name)
    config = fleet._config
    fleet._config = msgspec.structs.replace(config, **settings)
    fleet.start(name, left)
    fleet._config = config


async def test_nodes_that_agree_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with Fleet() as fleet:
        assert [await disagreements(fleet, name) for name in "abc"] == [[], [], []]
    assert warnings(caplog) == []


@pytest.mark.answers("nodes-count-different-majorities")
async def test_another_list_is_told_on_both_sides_once_and_until_it_is_mended(caplog: pytest.LogCaptureFixture) -> None:
    async with Fleet() as fleet:
        await replaced(fleet, "c", join="a:1,b:1,c:1,d:1")
        for name, peers in (("a", "c"), ("b", "c"), ("c", "ab")):
            told = await disagreements(fleet, name)
            assert len(told) == len(peers)
            assert all(f"{peer}:1 have different members" in text for peer, text in zip(peers, told, strict=True))
            assert all("only c:1 has d:1" in text for text in told)
        assert len(warnings(caplog)) == 4
        for _ in range(5):
            await fleet.isolate("c")
            fleet.link_all("c")
        assert len(warnings(caplog)) == 4
        await replaced(fleet, "c")
        assert [await disagreements(fleet, name) for name in "abc"] == [[], [], []]
        assert len(warnings(caplog)) == 4


async def test_an_address_that_two_nodes_advertise_is_told_by_all_who_meet_them(caplog: pytest.LogCaptureFixture) -> None:
    async with Fleet() as fleet:
        await fleet.isolate("c")
        twin = fleet["c"]
        fleet.members["c"] = _advertising("a:1", twin)
        await twin.node.stop()
        for pair in (("c", "a"), ("a", "c"), ("b", "c")):
            fleet.link(*pair)
        with pytest.raises(PeerRefused, match=r"advertises a:1, where node .* is linked: it is a clone") as refused:
            fleet.link("c", "b")
        assert refused.value.detail["reason"] == "clone"
        for name in "abc":
            assert any("two nodes advertise a:1" in text for text in await disagreements(fleet, name))
        assert any("two nodes advertise a:1" in text and "(this one)" in text for text in warnings(caplog))


async def test_a_second_node_at_an_address_knows_it_once_all_members_say_so() -> None:
    async with Fleet(reconnect_delay_s_max=0.1) as fleet:
        twin = _advertising("a:1", fleet["a"])
        for name, told in (("b", False), ("c", True)):
            with pytest.raises(PeerRefused) as refused:
                fleet[name].replicator.admit(twin.identity())
            twin.replicator.refused(f"{name}:1", refused.value, fleet[name].identity())
            assert bool(twin.replicator.memberships.second) is told
        assert fleet["a"].replicator.memberships.second == ""
        await asyncio.sleep(0.5)
        assert twin.replicator.memberships.second == "", "they have not said so for a while"
        await twin.node.stop()


async def test_of_a_second_node_at_an_address_nothing_is_told_once_it_has_stopped() -> None:
    """Its operator is told to stop it, or to give it another address: then it is over."""
    async with Fleet(reconnect_delay_s_max=0.1) as fleet:
        twin = _advertising("a:1", fleet["a"])
        asks_until = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < asks_until:
            with pytest.raises(PeerRefused, match="it is a clone"):
                fleet["b"].replicator.admit(twin.identity())
            await asyncio.sleep(0.1)
            assert any("two nodes advertise a:1" in text for text in await disagreements(fleet, "b"))
        await twin.node.stop()
        await asyncio.sleep(0.5)
        assert await disagreements(fleet, "b") == []


async def test_a_clone_that_came_before_the_original_is_cut_off_once_the_original_is_linked() -> None:
    async with Fleet() as fleet:
        await fleet.isolate("c")
        await fleet.cut("b", "a")  # So that nobody is known to be at its address.
        twin = fleet["c"]
        fleet.members["c"] = _advertising("a:1", twin)
        await twin.node.stop()
        fleet.link("c", "b")
        fleet.link("b", "a")
        async with asyncio.timeout(30):
            while fleet.wires["c", "b"].refusal is None:
                await asyncio.sleep(0.005)
        assert isinstance(fleet.wires["c", "b"].refusal, PeerRefused)


def _advertising(address: str, member: Member) -> Member:
    made = Member(member.name, MemoryStorage(), msgspec.structs.replace(member.config, advertise=address), 77)
    made.address = member.address
    return made


def test_disagreements_with_more_nodes_than_there_can_be_are_forgotten() -> None:
    members = Members(cast(Roster, SimpleNamespace(record=epochs.founded(["a:1", "b:1"]), own="a:1")))
    own = Identity(b"a" * 16, "a:1", "test", ("a:1", "b:1"))
    for number in range(500):
        members.compare(Identity(number.to_bytes(16, "big"), "b:1", "test", (f"x{number}:1",)), own=own, now=0.0)
    assert len(members.disagreements) == 64
    assert "x499:1" in members.disagreements[-1]


def test_the_list_of_a_node_that_waits_to_be_added_is_no_disagreement() -> None:
    """Else the first sentence during each `cluster add` is to restart all nodes with another list."""
    members = Members(cast(Roster, SimpleNamespace(record=epochs.founded(["a:1", "b:1"]), own="a:1")))
    own = Identity(b"a" * 16, "a:1", "test", ("a:1", "b:1"))
    assert members.compare(Identity(b"d" * 16, "d:1", "test", ("a:1", "d:1")), own=own, now=0.0) is None
    assert members.disagreements == []
    assert members.compare(Identity(b"b" * 16, "b:1", "test", ("a:1", "b:1", "d:1")), own=own, now=0.0)


@pytest.mark.answers("two-owners-addresses-lead-to-one-node")
async def test_a_node_to_which_two_addresses_led_holds_nothing_for_the_second() -> None:
    """Else an operation would leave every log, or be erased, although one owner lacks it."""
    async with Fleet() as fleet:
        await fleet["a"].store().space("crew").counter("n").add(1)
        await fleet.converged(30)
        quorum, [partition] = fleet["a"].replicator.quorum, fleet["a"].node._database.partitions.holding()
        await fleet.until(lambda: all(holding.vector for holding in quorum.holdings(partition).values()))
        first, second = quorum.members.all
        second.node = first.node
        assert sorted(bool(holding.vector) for holding in quorum.holdings(partition).values()) == [False, True]


class _Roster:
    """What `Members` asks of the roster."""

    own = "a:1"

    def __init__(self, *addresses: str) -> None:
        self.removed: set[bytes] = set()
        self.enter(*addresses)

    def enter(self, *addresses: str) -> None:
        self.record = epochs.founded(addresses)

    def removal_of(self, directory: bytes) -> object:
        return directory if directory in self.removed else None


def _members(*addresses: str) -> tuple[Members, _Roster]:
    roster = _Roster("a:1", *addresses)
    return Members(cast(Roster, roster)), roster


def _linked(members: Members, address: str, peer: Identity) -> bytes:
    return members.linked(peer, cast(Outlet, SimpleNamespace(address=address)), now_ms=0)


@pytest.mark.answers("seed-361415")
def test_an_address_that_leads_to_another_member_stands_for_nobody() -> None:
    """As when the address of a pod that died is another pod's by now, and an operator forgets it."""
    members, _ = _members("b:1", "c:1")
    b, c, other = (Identity(name.encode() * 16, f"{name}:1", "test", ()) for name in "bcd")
    assert _linked(members, "b:1", b) == _linked(members, "c:1", c) == b""
    assert _linked(members, "b:1", c) == b""
    assert members.node_at("b:1") == b.node
    assert _linked(members, "b:1", b) == b""
    assert _linked(members, "b:1", Identity(other.node, "b:1", "test", ())) == b.node
    assert members.node_at("b:1") == other.node


@pytest.mark.answers("seed-361823")
def test_a_linked_directory_may_be_added() -> None:
    """As a new directory at an address that was removed, if this node learns late of both."""
    members, roster = _members("b:1", "c:1")
    old, new = b"b" * 16, b"n" * 16
    for node in (old, new):
        _linked(members, "b:1", Identity(node, "b:1", "test", ()))
    roster.removed.add(old)
    roster.enter("a:1", "c:1")
    assert members.reform() == []
    assert members.addresses == {"c:1"}
    roster.enter("a:1", "b:1", "c:1")
    members.reform()
    assert members.reached == {"b:1": new}
    roster.removed.add(new)
    roster.enter("a:1", "c:1")
    assert [state.node for state in members.reform()] == [new]


# ── epochs ────────────────────────────────────────────────────────────────────


async def said(fleet: Fleet, message: messages.Message, *, epoch: int) -> None:
    """b sends this to a, in some epoch."""
    packed = messages.stamped(messages.encode(message), epoch)
    await fleet["a"].replicator.received(fleet["b"].identity(), packed)


async def test_a_vote_of_another_epoch_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet() as fleet:
        heard: list[object] = []
        monkeypatch.setattr(fleet["a"].replicator.register, "heard", lambda _node, motion: heard.append(motion))
        await said(fleet, Known({}), epoch=9)
        assert heard == []
        await said(fleet, Known({}), epoch=0)
        assert heard == [Known({})]


async def test_a_sender_in_an_older_epoch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet() as fleet:
        roster = fleet["a"].replicator.memberships._roster
        roster.learn(epochs.Record(2, ("a:1", "b:1", "c:1")))
        await roster.reach(2)
        told: list[messages.Message] = []
        monkeypatch.setattr(fleet["a"].replicator._outlets, "send", lambda _nodes, message: told.append(message))
        await said(fleet, Known({}), epoch=1)
        assert Membership(roster.record) in told


async def test_requests_without_a_handler_are_for_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet() as fleet:
        replicator, taken = fleet["a"].replicator, []
        monkeypatch.setattr(replicator._protocol, "receive", lambda _peer, message, *_, **__: taken.append(message))
        await said(fleet, messages.Digest(b""), epoch=0)
        assert taken == [messages.Digest(b"")]
        assert messages.Digest not in replicator.handlers


def test_a_partition_is_listed_until_its_base_is_held() -> None:
    origin = Origin(b"o" * 16)
    held = VersionVector()
    resets = Resets(vector_of=lambda _: held, named=lambda _: "b:1")
    resets.note(Reset(b"b" * 16, 3, VersionVector({origin: 2})))
    assert ["lacks 2 operations" in text for text in resets.told] == [True]
    held = VersionVector({origin: 2})
    assert resets.told == []


async def test_a_newer_epoch_in_a_message_ends_counting() -> None:
    async with Fleet() as fleet:
        members = fleet["a"].replicator.quorum.members
        assert members.decides(["b:1", "c:1"], "quorum")
        await said(fleet, Known({}), epoch=9)
        assert not members.decides(["b:1", "c:1"], "all")
        assert members.decides(["b:1", "c:1"], "quorum"), "the other one is in this node's epoch"
        assert not members.decides(["b:1"], "quorum")


async def test_a_node_that_waits_asks_all_members_it_hears_of() -> None:
    async with Fleet("abc") as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        memberships = fleet["d"].replicator.memberships
        member = fleet["a"].identity()._replace(members=("a:1", "b:1", "d:1"))
        assert memberships.addresses == ["a:1"]
        memberships.refused("a:1", PeerRefused("d:1 is no member. Nothing was written.", reason="member"), member)
        assert memberships.addresses == ["a:1", "b:1"]
