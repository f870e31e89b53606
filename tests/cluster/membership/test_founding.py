"""The first members are found by asking, and counted only once all of them have confirmed the same list."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.membership import notices as founding
from shoal.cluster.membership.notices import FirstMembers as Founding
from shoal.cluster.membership.notices import Founder
from shoal.cluster.peering import Identity
from shoal.errors import InvalidValue

ABC = ("a:1", "b:1", "c:1")


def node(name: str, members: tuple[str, ...] = ()) -> Identity:
    return Identity(name.encode().ljust(16), name, "shoal", members)


def test_exactly_as_many_nodes_as_there_are_to_be_are_proposed() -> None:
    founder = Founder("a:1", 3)
    founder.heard([node("c:1")])
    assert founder.proposal is None
    assert "2 of 3 nodes (a:1, c:1)" in founder.told
    founder.heard([node("c:1"), node("b:1")])
    assert founder.proposal == ABC


def test_with_one_too_many_nothing_is_proposed_and_that_is_said() -> None:
    founder = Founder("a:1", 3)
    founder.heard([node("b:1"), node("c:1"), node("d:1")])
    assert founder.proposal is None
    assert "4 of 3 nodes" in founder.told
    assert "surplus" in founder.told


def test_a_node_that_is_gone_before_anything_was_confirmed_is_forgotten() -> None:
    founder = Founder("a:1", 3)
    founder.heard([node("b:1"), node("old:1"), node("c:1")])
    founder.heard([node("b:1"), node("c:1")])
    assert founder.proposal == ABC


def test_the_list_that_another_node_has_confirmed_is_confirmed_as_it_is() -> None:
    founder = Founder("a:1", 3)
    founder.heard([node("b:1", ABC), node("d:1")])
    assert founder.proposal == ABC


def test_all_members_must_have_confirmed_the_list() -> None:
    founder = Founder("a:1", 3, Founding(ABC))
    founder.heard([node("b:1", ABC), node("c:1")])
    assert not founder.is_agreed
    assert "c:1 has not confirmed" in founder.told
    founder.heard([node("c:1", ABC)])  # What was confirmed once holds, though b:1 did not answer now.
    assert founder.is_agreed


def test_a_list_agreed_on_before_a_restart_stands() -> None:
    assert Founder("a:1", 3, Founding(ABC, is_agreed=True)).is_agreed


def test_a_node_beside_a_cluster_that_is_founded_learns_whom_it_would_join() -> None:
    founder = Founder("d:1", 3)
    founder.heard([node("a:1", ABC), node("b:1", ABC)])
    assert (founder.proposal, founder.joins) == (None, None)
    founder.heard([node("a:1", ABC), node("b:1", ABC), node("c:1", ABC)])
    assert founder.joins == ABC


def test_it_is_stored_as_it_is_and_damage_is_noticed() -> None:
    assert founding.decode(founding.encode(Founding(ABC, is_agreed=True))) == Founding(ABC, is_agreed=True)
    with pytest.raises(InvalidValue, match="damaged"):
        founding.decode(b"\x93\x01")


@pytest.mark.answers("members-change-safely")
@given(st.integers(0, 2**32))
def test_two_lists_that_share_a_member_are_never_both_agreed_on(seed: int) -> None:
    """Five nodes, where there are to be three, see each other in any order, restart, and miss each other."""
    random = Random(seed)
    names = [f"{letter}:1" for letter in "abcde"]
    founders = {name: Founder(name, 3) for name in names}
    for _ in range(60):
        name = random.choice(names)
        founder = founders[name]
        if random.random() < 0.2:
            founder = founders[name] = Founder(name, 3, founder.confirmed)
        seen = random.sample([other for other in names if other != name], random.randint(0, 3))
        founder.heard(
            node(other, () if (confirmed := founders[other].confirmed) is None else confirmed.members) for other in seen
        )
        before = founder.confirmed
        if founder.proposal is not None:
            assert before is None
            founder.confirmed = Founding(founder.proposal)
        if founder.is_agreed and founder.confirmed is not None:
            founder.confirmed = Founding(founder.confirmed.members, is_agreed=True)
    agreed = {founder.confirmed.members for founder in founders.values() if founder.confirmed and founder.confirmed.is_agreed}
    assert len(agreed) <= 1
