"""An attempt of a proposer: what it sends, and when it sends nothing more."""

from __future__ import annotations

import msgspec
import pytest

from shoal.cluster.consensus.acceptor import Acceptor, Limits
from shoal.cluster.consensus.ballots import (
    ID_BYTES,
    NO_BALLOT,
    NOTHING,
    Accept,
    Ballot,
    Ballots,
    Change,
    Electorate,
    Known,
    Lead,
    Phase,
    Prepare,
    Proposal,
    Refusal,
    Rules,
    Term,
    Value,
    Vote,
)

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


# ── why one member's word about another's votes is heeded (docs/decisions/0154-one-members-word.md) ───────────────────


def voters() -> dict[str, Acceptor]:
    made = {
        member: Acceptor(
            member, member.encode(), {}, electorate=MEMBERS, nonce=lambda: b"n" * ID_BYTES, limits=Limits(4, 64), rules=Rules()
        )
        for member in "abc"
    }
    for each in made.values():
        each.receive("a", Known({member: Term(1, member.encode(), 0) for member in "abc"}, founding=True))
    return made


def chosen(voting: dict[str, Acceptor], by: str, content: bytes) -> Value | None:
    """The value that a proposer of this name chooses with the votes of these members; None if they do not give them."""
    change = Change(content[:1] * ID_BYTES, 0, content)
    proposal = Proposal("k", change, electorate=MEMBERS, ballots=Ballots(by.encode() * ID_BYTES))
    proposal.begin({})
    waiting = proposal.messages()
    for _ in range(8):
        for member, motion in [each for each in waiting if each[0] in voting]:
            waiting = [] if not proposal.is_under_way else waiting
            for _, answer in voting[member].receive(by, motion):
                assert isinstance(answer, Vote)
                waiting = proposal.receive(member, answer) or waiting
    return proposal.value if proposal.phase is Phase.CHOSEN else None


def test_a_lie_about_votes_is_the_truth_elsewhere() -> None:
    """b cannot tell a witness of votes that it has lost from a liar: what it knows and what it is told are the same."""
    truth, lie = voters(), voters()
    before = {key: value for key, value in truth["b"].rows.items() if value is not None}
    assert chosen({member: truth[member] for member in "bc"}, "c", b"first") is not None
    told = Known(truth["c"].told)  # What c knows of b's votes, which a has not heard of.
    set_back = Acceptor("b", b"b", before, electorate=MEMBERS, nonce=lambda: b"n" * ID_BYTES, limits=Limits(4, 64))
    assert (set_back.term, set_back.remains) == (lie["b"].term, lie["b"].remains), "two worlds, one directory"

    ignoring = chosen({"a": truth["a"], "b": set_back}, "a", b"second")
    assert ignoring is not None, "where c tells the truth, two are told that they set the key first"
    assert ignoring.version == 1

    lie["b"].receive("c", told)
    assert lie["b"].term is None, "so b heeds it, also where c lies"
    assert chosen({member: lie[member] for member in "ab"}, "a", b"second") is None
