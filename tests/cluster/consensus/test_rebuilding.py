"""What survivors of a lost majority go on with, and when copies of all members are whole."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shoal.cluster.consensus.ballots import NO_TERM, Ballot, Term, Value
from shoal.cluster.consensus.recovery import COUNTS_AHEAD, TERMS_AHEAD, Remains, founded, why_not_whole

MEMBERS = "abc"
ID = b"i" * 16
NOTHING: Mapping[str, Term] = {}


def copy(member: str, *, votes: int = 5, knows: Mapping[str, Term] = NOTHING, at: str = "") -> Remains:
    """The copy of a member's directory."""
    original = member.encode()
    return Remains(b"copy of " + original, "forgotten", original, at or member, Term(1, original, votes), dict(knows), [])


def remains(slots: list[tuple[str, Ballot, Ballot, Value]], *, number: int = 1) -> Remains:
    return Remains(b"d", "voting", b"d", "a", Term(number, b"d", 0), {"b": Term(number + 1, b"x", 3)}, slots)


def test_copies_of_all_members_are_whole() -> None:
    assert why_not_whole({member: copy(member, knows={"b": Term(1, b"b", 5)}) for member in MEMBERS}, MEMBERS) == ""


@pytest.mark.answers("lost-majorities-are-rebuilt")
@pytest.mark.parametrize(
    ("other", "why"),
    [
        (copy("b", at="c"), "is a copy of that of c"),
        (copy("b", votes=4), "the copy of b is older than that of a"),
        (Remains(b"b", "voting", b"b", "b", Term(1, b"b", 9), {}, []), "b is no copy"),
        (Remains(b"new", "empty", b"", "", NO_TERM, {}, []), "b is no copy"),
        (Remains(b"copy", "forgotten", b"b", "b", NO_TERM, {}, []), "b is no copy"),
    ],
)
def test_copies_are_not_whole_if_one_is_another(other: Remains, why: str) -> None:
    found = {"a": copy("a", knows={"b": Term(1, b"b", 5)}), "b": other, "c": copy("c")}
    assert why in why_not_whole(found, MEMBERS)


def test_copies_are_not_whole_if_one_is_missing() -> None:
    assert "c has not told" in why_not_whole({member: copy(member) for member in "ab"}, MEMBERS)


def test_of_each_key_the_value_with_the_highest_ballot_is_kept() -> None:
    old, new = Value(3, b"old", (b"x",)), Value(4, b"new", (b"x", b"y"))
    found = founded(
        {
            "a": remains([("k", Ballot(9, b"p"), Ballot(2, b"p"), old)]),
            "c": remains([("k", Ballot(5, b"q"), Ballot(5, b"q"), new), ("only", Ballot(1, b"p"), Ballot(1, b"p"), old)]),
        },
        id=ID,
        own={"members": Value(7, b"record", ())},
        raised=lambda key, content: content + b"+",
        keys=["unseen"],
    )
    values = {key: value for key, _, _, value in found.slots}
    assert values == {
        "k": Value(4 + COUNTS_AHEAD, b"new+", ()),
        "only": Value(3 + COUNTS_AHEAD, b"old+", ()),
        "unseen": Value(COUNTS_AHEAD, b"+", ()),
        "members": Value(7, b"record", ()),
    }
    assert {(promised, accepted) for _, promised, accepted, _ in found.slots} == {(Ballot(9 + COUNTS_AHEAD, ID),) * 2}


def test_terms_are_later_than_all_that_anybody_knows() -> None:
    found = founded({"a": remains([], number=4), "c": remains([])}, id=ID, own={}, raised=lambda key, content: content, keys=())
    assert found.terms == {"a": Term(5 + TERMS_AHEAD, ID, 0), "c": Term(5 + TERMS_AHEAD, ID, 0)}
