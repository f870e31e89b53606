"""What nodes that meet tell people of their members."""

from __future__ import annotations

import pytest
from msgspec import msgpack

from shoal.cluster.consensus.ballots import NO_TERM, Term
from shoal.cluster.consensus.recovery import Foundation, Remains
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Record, Removal
from shoal.cluster.membership.notices import Founded, Founding, Inquiry, Membership, Report, Standing, Voices, disagreement
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
    [51, 3, False, True, [], "", [4, ["a:1", "b:1"]]],
    [51, 0, False, False, [], "", None, True],
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
    Standing(3, is_caught_up=False, is_voting=True, voted=Record(4, ("a:1", "b:1"))),
    Standing(0, is_caught_up=False, is_voting=False, is_unaware=True),
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


# ── records that others tell ──────────────────────────────────────────────────

WAIT_S = 5.0


def directory(name: str) -> bytes:
    return name.encode() * 16


def addresses(names: str) -> list[str]:
    return [f"{name}:1" for name in names]


PRESENT = epochs.founded(addresses("abc"))
LATER = epochs.begin(PRESENT, "add", joins="d:1", directories={})


def believed(
    voices: Voices,
    own: Record | None = None,
    *,
    present: Record = PRESENT,
    linked: str = "bc",
    unaware: str = "",
    has_voice: bool = True,
    is_new: bool = False,
    now: float = 0.0,
) -> Record | None:
    there = {f"{name}:1": directory(name) for name in linked}
    return voices.believed(
        present,
        own,
        has_voice=has_voice,
        is_new=is_new,
        linked=there,
        unaware=addresses(unaware),
        now=now,
        wait_s=WAIT_S,
    )


def told(held: str = "", voted: str = "", record: Record = LATER) -> Voices:
    """What the node at a:1 has heard: these members hold the record, and those have voted for it."""
    voices = Voices("a:1", directory("a"))
    for name in held:
        voices.holds(f"{name}:1", directory(name), record)
    for name in voted:
        voices.voted(f"{name}:1", directory(name), record)
    return voices


def test_one_members_word_is_not_believed() -> None:
    assert all(believed(told("b"), now=now) is None for now in (0, 2 * WAIT_S))


def test_more_than_half_are_believed() -> None:
    assert believed(told("bc")) == LATER


def test_a_nodes_own_vote_counts() -> None:
    assert believed(told("b"), LATER) == LATER


def test_the_votes_of_others_count_beside_a_holder() -> None:
    present = epochs.founded(addresses("abcde"))
    assert believed(told("b", "cd"), present=present) == LATER
    assert believed(told("b", "c"), present=present) is None


def test_votes_of_which_nothing_came_are_not_believed() -> None:
    assert believed(told("", "bc"), LATER) is None


def test_a_node_without_a_vote_asks_most_others() -> None:
    assert believed(told("b"), has_voice=False) is None
    assert believed(told("bc"), has_voice=False) == LATER
    assert believed(told("b"), present=epochs.founded(addresses("ab")), has_voice=False) == LATER


def test_all_that_are_linked_are_believed_after_a_while() -> None:
    voices = told("b")
    assert believed(voices, linked="b") is None
    assert believed(voices, linked="b", now=WAIT_S - 1) is None
    assert believed(voices, linked="b", now=WAIT_S) == LATER


def test_a_new_node_needs_more_than_half_as_many() -> None:
    for linked, after in (("b", None), ("bd", LATER)):
        voices = told("bd")
        voices.holds("c:1", directory("c"), PRESENT)
        assert believed(voices, linked=linked, has_voice=False, is_new=True) is None
        assert believed(voices, linked=linked, has_voice=False, is_new=True, now=WAIT_S) == after


def test_one_that_had_no_part_is_as_one_away() -> None:
    voices = told("b")
    assert believed(voices, unaware="c") is None
    assert believed(voices, unaware="c", now=WAIT_S) == LATER


@pytest.mark.parametrize(("linked", "unaware", "is_told"), [("bc", "c", True), ("bc", "", False), ("bcd", "cd", False)])
def test_a_new_node_hears_all_before_it_believes_one(linked: str, unaware: str, is_told: bool) -> None:
    voices = told("b")
    present = epochs.founded(addresses("abc" if "d" not in linked else "abcde"))
    for now, after in ((0, None), (WAIT_S, LATER if is_told else None)):
        found = believed(voices, present=present, linked=linked, unaware=unaware, has_voice=False, is_new=True, now=now)
        assert found == after


def test_a_node_that_left_need_not_be_asked() -> None:
    voices = told("b")
    voices.left("c:1")
    assert believed(voices, has_voice=False, is_new=True) == LATER


def test_a_link_to_another_one_begins_the_wait_anew() -> None:
    voices = told("b")
    assert believed(voices, linked="b") is None
    assert believed(voices, linked="bc", now=WAIT_S) is None
    assert believed(voices, linked="b", now=WAIT_S + 1) is None


def test_a_few_are_not_believed_what_cannot_follow() -> None:
    voices = told("b", record=Record(1, tuple(addresses("ab"))))
    assert believed(voices, linked="b") is None
    assert believed(voices, linked="b", now=WAIT_S) is None


@pytest.mark.parametrize(
    "record",
    [
        Record(3, tuple(addresses("bc")), {}, None, (Removal("a:1", directory("a"), 3, False),)),
        Record(3, tuple(addresses("abc")), {}, None, (Removal("a:1", directory("a"), 3, False),)),
    ],
)
def test_a_few_do_not_remove_a_node(record: Record) -> None:
    voices = told("b", record=record)
    assert believed(voices, linked="b") is None
    assert believed(voices, linked="b", now=WAIT_S) is None


def test_another_directory_at_an_address_has_said_nothing() -> None:
    voices = told("b")
    voices.holds("c:1", directory("x"), LATER)
    assert believed(voices) is None


def test_words_on_an_epoch_end_with_it() -> None:
    voices = told("bc")
    voices.entered(LATER)
    assert believed(voices, present=PRESENT) is None
