"""An attempt of a proposer: what it sends, and when it sends nothing more."""

from __future__ import annotations

import msgspec
import pytest

from shoal.cluster.consensus.ballots import (
    ID_BYTES,
    NO_BALLOT,
    NOTHING,
    Accept,
    Ballot,
    Ballots,
    Change,
    Electorate,
    Prepare,
    Refusal,
    Rules,
    Term,
    Value,
    Vote,
)
from shoal.cluster.consensus.proposal import Lead, Phase, Proposal

MEMBERS = Electorate((frozenset("abc"),))
CHANGE = Change(b"c" * ID_BYTES, 0, b"content")
HIGHER = Ballot(99, b"p" * ID_BYTES)


def begun() -> Proposal:
    proposal = Proposal("k", CHANGE, electorate=MEMBERS, ballots=Ballots(b"o" * ID_BYTES))
    proposal.begin({})
    return proposal


def vote(proposal: Proposal, member: str, *, promised: Ballot | None = None) -> Vote:
    refusal: Refusal = "beaten" if promised is not None else ""
    accepting = proposal.phase is Phase.ACCEPTING
    return Vote(
        "k",
        proposal.ballot,
        accepting,
        refusal,
        promised or proposal.ballot,
        NO_BALLOT,
        NOTHING,
        Term(1, member.encode(), 0),
        {},
    )


def test_an_attempt_asks_again_whoever_has_not_voted() -> None:
    proposal = begun()
    assert [member for member, motion in proposal.messages() if isinstance(motion, Prepare)] == ["a", "b", "c"]
    proposal.receive("a", vote(proposal, "a"))
    assert [member for member, _ in proposal.messages()] == ["b", "c"]
    proposal.receive("b", vote(proposal, "b"))
    proposal.receive("c", vote(proposal, "c"))
    assert [member for member, motion in proposal.messages() if isinstance(motion, Accept)] == ["a", "b"]


@pytest.mark.parametrize("promises", [0, 1, 2])
def test_an_attempt_that_the_members_changed_under_sends_nothing_more(promises: int) -> None:
    """It may have no value yet: whoever has promised its ballot would accept that, and forget what was chosen before."""
    proposal = begun()
    for member in "abc"[:promises]:
        proposal.receive(member, vote(proposal, member))
    proposal.reform(MEMBERS)
    assert proposal.messages() == []


def test_an_attempt_that_was_beaten_sends_nothing_more() -> None:
    proposal = begun()
    proposal.receive("a", vote(proposal, "a"))
    proposal.receive("b", vote(proposal, "b", promised=HIGHER))
    assert proposal.phase is Phase.BEATEN
    assert proposal.messages() == []
    proposal.begin({})
    assert proposal.ballot > HIGHER
    assert all(isinstance(motion, Prepare) for _, motion in proposal.messages())


def test_a_chosen_value_is_sent_no_more() -> None:
    proposal = begun()
    for _ in range(2):
        for member in "ab":
            proposal.receive(member, vote(proposal, member))
    assert proposal.phase is Phase.CHOSEN
    assert proposal.messages() == []


def given(proposal: Proposal, member: str, **changed: object) -> Vote:
    return msgspec.structs.replace(vote(proposal, member), **changed)


def test_a_vote_of_an_older_term_does_not_count() -> None:
    """b has heard that a lost its disk after a voted: what a promised before is forgotten."""
    proposal = begun()
    proposal.receive("a", vote(proposal, "a"))
    again = proposal.receive("b", given(proposal, "b", terms={"a": Term(2, b"new", 0)}))
    assert proposal.counted == ["b"]
    assert [member for member, _ in again] == ["a"]
    assert proposal.phase is Phase.PREPARING


def test_a_member_that_repeats_its_vote_is_asked_later() -> None:
    """A liar, whose votes are of an older term whatever it is told."""
    proposal = begun()
    proposal.receive("b", given(proposal, "b", terms={"a": Term(2, b"new", 0)}))
    asked = [proposal.receive("a", vote(proposal, "a")) for _ in range(100)]
    assert [member for again in asked for member, _ in again] == ["a"]
    assert "a" in [member for member, _ in proposal.messages()], "the caller asks it when the time has come"
    for member in "bc":
        proposal.receive(member, vote(proposal, member))
    assert [member for member, _ in proposal.receive("a", vote(proposal, "a"))] == ["a"], "and once in the next phase"


def test_each_question_carries_the_terms_that_are_known() -> None:
    known = {"a": Term(3, b"later", 0)}
    proposal = Proposal("k", CHANGE, electorate=MEMBERS, ballots=Ballots(b"o" * ID_BYTES))
    proposal.begin(known)
    for _ in range(2):
        assert all(motion.terms["a"] == known["a"] for _, motion in proposal.messages())
        proposal.receive("b", given(proposal, "b"))
        proposal.receive("c", given(proposal, "c"))


def test_the_value_with_the_highest_ballot_is_proposed() -> None:
    older, newer = Value(1, b"older", (b"x",)), Value(1, b"newer", (b"y",))
    proposal = Proposal("k", None, electorate=MEMBERS, ballots=Ballots(b"o" * ID_BYTES))
    proposal.begin({})
    proposal.receive("a", given(proposal, "a", accepted=Ballot(1, b"p"), value=older))
    proposal.receive("b", given(proposal, "b", accepted=Ballot(2, b"p"), value=newer))
    assert proposal.value == newer


def test_a_read_is_over_once_its_value_is_chosen() -> None:
    found = Value(1, b"found", (b"x",))
    proposal = Proposal("k", None, electorate=MEMBERS, ballots=Ballots(b"o" * ID_BYTES))
    proposal.begin({})
    for member in "ab":
        proposal.receive(member, given(proposal, member, accepted=Ballot(1, b"p"), value=found))
    assert proposal.phase is Phase.ACCEPTING
    assert [motion.value for _, motion in proposal.messages() if isinstance(motion, Accept)] == [found] * 3


def test_terms_go_with_the_lead() -> None:
    known = {"a": Term(3, b"later", 0)}
    proposal = begun()
    proposal.begin({}, Lead(Ballot(9, b"o" * ID_BYTES), NOTHING, known))
    for member in "ab":
        proposal.receive(member, vote(proposal, member))
    assert proposal.counted == ["b"]
    assert proposal.phase is Phase.ACCEPTING


def test_a_change_is_applied_once_in_all_attempts() -> None:
    proposal = begun()
    for member in "ab":
        proposal.receive(member, vote(proposal, member))
    made = proposal.value
    proposal.begin({})
    for member in "ab":
        proposal.receive(member, given(proposal, member, accepted=Ballot(1, b"o" * ID_BYTES), value=made))
    assert proposal.value == made


def test_an_invented_value_is_not_proposed() -> None:
    true, invented = Value(1, b"true", (b"x",)), Value(1, b"invented", (b"y",))
    rules = Rules(fits=lambda key, value: value != invented)
    proposal = Proposal("k", None, electorate=MEMBERS, ballots=Ballots(b"o" * ID_BYTES), rules=rules)
    proposal.begin({})
    proposal.receive("a", given(proposal, "a", accepted=Ballot(1, b"p"), value=true))
    proposal.receive("b", given(proposal, "b", accepted=Ballot(2, b"p"), value=invented))
    assert proposal.value == true
