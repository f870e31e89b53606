"""The key of a certificate speaks for the address under which it was first admitted."""

from __future__ import annotations

import pytest

from shoal.cluster.peering import Identity
from shoal.errors import PeerRefused
from simulation.world.fleet import Fleet, Member
from tests.node.membership.test_changes import SETTINGS, asked, changes, is_done

pytestmark = pytest.mark.virtual_time

KEYS = {"b": b"b" * 32, "c": b"c" * 32}


def shown(fleet: Fleet, name: str, key: str) -> Identity:
    """How a member presents itself with this key."""
    return fleet[name].identity()._replace(key=KEYS[key])


def met(fleet: Fleet, member: Member) -> None:
    for name in KEYS:
        member.replicator.admit(shown(fleet, name, name))


async def test_the_key_of_one_member_does_not_speak_for_another() -> None:
    async with Fleet("abc") as fleet:
        met(fleet, fleet["a"])
        with pytest.raises(PeerRefused, match="claims to be b:1 shows the key of c:1"):
            fleet["a"].replicator.admit(shown(fleet, "b", "c"))


async def test_keys_are_remembered_over_a_restart() -> None:
    async with Fleet("abc") as fleet:
        met(fleet, fleet["a"])
        await fleet.durable()
        fleet.start("a", await fleet.crash("a"))
        with pytest.raises(PeerRefused, match="shows the key of c:1"):
            fleet["a"].replicator.admit(shown(fleet, "b", "c"))


async def test_a_renewed_key_and_a_new_directory_are_admitted() -> None:
    async with Fleet("abc") as fleet:
        met(fleet, fleet["a"])
        fleet["a"].replicator.admit(fleet["c"].identity()._replace(key=b"n" * 32))
        await fleet.isolate("c")
        fleet["a"].replicator.admit(shown(fleet, "c", "c")._replace(node=b"n" * 16))


async def test_one_certificate_for_all_members_is_admitted() -> None:
    async with Fleet("abc") as fleet:
        for name in "bcb":
            fleet["a"].replicator.admit(shown(fleet, name, "b"))


async def test_keys_go_with_their_members_to_other_addresses() -> None:
    """As when all nodes get other addresses in their configuration."""
    async with Fleet("abc") as fleet:
        met(fleet, fleet["a"])
        fleet["a"].replicator._pins.check(shown(fleet, "b", "b")._replace(name="moved:1"), [], own="a:1")


async def test_the_key_of_a_forgotten_member_is_refused_everywhere() -> None:
    async with Fleet("abc", **SETTINGS) as fleet:
        met(fleet, fleet["a"])
        await fleet.until(lambda: fleet["a"].replicator.register.is_voting)
        await fleet.isolate("c")
        gone = fleet["c"].identity()
        await fleet.crash("c")
        await asked(fleet, changes(fleet, "a").change("forget", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab"))
        for name in ("b:1", "c:1", "d:1"):
            with pytest.raises(PeerRefused):
                fleet["a"].replicator.admit(gone._replace(name=name, node=b"n" * 16, key=KEYS["c"]))
        with pytest.raises(PeerRefused, match="was removed from the members"):
            fleet["a"].replicator._pins.check(gone._replace(name="b:1", key=KEYS["c"]), ["c:1"], own="a:1")


async def test_no_member_speaks_for_this_node() -> None:
    async with Fleet("abc") as fleet:
        met(fleet, fleet["a"])
        pins = fleet["a"].replicator._pins
        with pytest.raises(PeerRefused, match="claims to be a:1 shows the key of b:1"):
            pins.check(shown(fleet, "b", "b")._replace(name="a:1"), [], own="a:1")


async def test_without_tls_no_key_is_remembered() -> None:
    async with Fleet("abc") as fleet:
        pins = fleet["a"].replicator._pins
        for name in "bc":
            pins.admitted(fleet[name].identity()._replace(key=b""))
        assert pins._addresses == {}


async def test_a_key_speaks_for_each_of_its_addresses() -> None:
    async with Fleet("abc") as fleet:
        for name, key in ("bb", "cb", "cc", "cb"):  # One for both, and later one of c's own.
            fleet["a"].replicator.admit(shown(fleet, name, key))
