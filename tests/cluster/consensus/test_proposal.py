"""An attempt of a proposer: what it sends, and when it sends nothing more."""

from __future__ import annotations

import pytest

from shoal.cluster.consensus.ballots import ID_BYTES, NO_BALLOT, NOTHING, Ballot, Ballots, Change, Electorate, Term
from shoal.cluster.consensus.motions import Accept, Prepare, Refusal, Vote
from shoal.cluster.consensus.proposal import Phase, Proposal

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
