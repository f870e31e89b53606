"""What nodes that meet tell people of their members."""

from __future__ import annotations

import pytest
from msgspec import msgpack

from shoal.cluster.consensus.ballots import NO_TERM, Term
from shoal.cluster.consensus.rebuilding import Foundation, Remains
from shoal.cluster.membership.agreement import disagreement
from shoal.cluster.membership.epochs import Record
from shoal.cluster.membership.notices import Membership, Standing
from shoal.cluster.membership.rebuilds import Founded, Founding, Inquiry, Report
from shoal.cluster.messages import Message, decode
from shoal.cluster.peering import Identity

ALL = ("n1:7400", "n2:7400", "n3:7400")


def node(number: int, *, name: str = "", members: tuple[str, ...] = ALL) -> Identity:
    return Identity(bytes([number]) * 16, name or f"n{number}:7400", "shoal", members)


def test_nodes_with_the_same_members_agree() -> None:
    assert disagreement(node(1), node(2), [node(2), node(3)]) == ""


@pytest.mark.answers("nodes-count-different-majorities")
def test_members_in_one_list_alone_are_named_twice() -> None:
    near, far = node(1), node(2, members=("n1:7400", "n2:7400", "n4:7400"))
    for own, peer in ((near, far), (far, near)):
        told = disagreement(own, peer, [])
        assert f"{own.name} (this node) and {peer.name} have different members" in told
        assert "only n1:7400 has n3:7400" in told
        assert "only n2:7400 has n4:7400" in told
        assert "SHOAL_JOIN" in told


def test_an_address_that_two_nodes_advertise_is_told_by_both_and_by_those_who_meet_them() -> None:
    first, second = node(1), node(2, name="n1:7400")
    for own, peer in ((first, second), (second, first)):
        assert "two nodes advertise n1:7400" in (told := disagreement(own, peer, []))
        assert "(this one)" in told
    told = disagreement(node(3), second, [first])
    assert f"{second.node.hex()[:8]} and {first.node.hex()[:8]}. " in told


def test_a_peer_that_does_not_tell_its_members_is_not_compared() -> None:
    assert disagreement(node(1), node(2, members=()), []) == ""


def test_long_names_and_lists_are_cut() -> None:
    many = tuple(f"{'x' * 200}{number}:1" for number in range(50))
    assert len(disagreement(node(1), node(2, members=many), [])) < 2500
    assert "and 40 more" in disagreement(node(1), node(2, members=many), [])


NO_REMAINS = [b"d" * 16, "voting", b"", "", [0, b"", 0], {}, []]
RECORDED = [
    [50, [3, ["a:1", "b:1"]]],
    [51, 3, True, False],
    [51, 3, False, True, ["members"], "its disk is full"],
    [52, b"i" * 16],
    [52, b"i" * 16, 7],
    [53, b"i" * 16, 7, [3, ["a:1", "b:1"]], NO_REMAINS, True, 5, {"b:1": 2}, {"b:1": 40}],
    [54, b"i" * 16, [7, ["a:1"]], [b"i" * 16, {"a:1": [1, b"d" * 16, 2]}, []]],
    [55, b"i" * 16],
    [55, b"i" * 16, "not halted"],
]
"""As earlier versions send them."""
MEANT = [
    Membership(Record(3, ("a:1", "b:1"))),
    Standing(3, is_caught_up=True, is_voting=False),
    Standing(3, is_caught_up=False, is_voting=True, keys=["members"], problem="its disk is full"),
    Inquiry(b"i" * 16),
    Inquiry(b"i" * 16, epoch=7),
    Report(
        b"i" * 16,
        epoch=7,
        record=Record(3, ("a:1", "b:1")),
        remains=Remains(b"d" * 16, "voting", b"", "", NO_TERM, {}, []),
        is_learner=True,
        operations=5,
        ahead={"b:1": 2},
        away_ms={"b:1": 40},
    ),
    Founding(b"i" * 16, record=Record(7, ("a:1",)), foundation=Foundation(b"i" * 16, {"a:1": Term(1, b"d" * 16, 2)}, [])),
    Founded(b"i" * 16),
    Founded(b"i" * 16, refusal="not halted"),
]


@pytest.mark.parametrize(("recorded", "meant"), [*zip(RECORDED, MEANT, strict=True)])
def test_fields_of_messages_about_members_keep_their_places(recorded: list[object], meant: Message) -> None:
    assert decode(msgpack.encode(recorded)) == meant
