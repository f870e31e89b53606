"""Every interleaving of small cases keeps the promises of the quorum register, and planted bugs are found."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from shoal.cluster.consensus import acceptor
from shoal.cluster.consensus.acceptor import Acceptor
from shoal.cluster.consensus.ballots import (
    NO_BALLOT,
    NO_TERM,
    NOTHING,
    Answer,
    AnyMotion,
    Ballot,
    Ballots,
    Change,
    Electorate,
    Lead,
    Phase,
    Proposal,
    Term,
    Terms,
    Value,
    Vote,
)
from shoal.cluster.consensus.recovery import Recovery, Restored
from tests.cluster.consensus import explorer
from tests.cluster.consensus.explorer import Broken, Case, Client, explore, wander

P, Q = Change(b"p", 0, b"P"), Change(b"q", 0, b"Q")
TWO_CHANGES = Case((P, Q), attempts=(2, 2))
CHANGE_AND_READ = Case((P, None), attempts=(2, 2))
ONE_AFTER_THE_OTHER = Case((P, Change(b"q", 1, b"Q")), attempts=(2, 2))
RESTARTS = Case((P, Q), attempts=(1, 1), restarts=2)
CRASHES = Case((P, Q), attempts=(2, 1), restarts=2, crashes=1)
WIPED = Case((P, Q), attempts=(1, 1), wipes=1)
LEAD = Case((P, Change(b"q", 1, b"Q"), Change(b"r", 1, b"R")), attempts=(1, 2, 1), leads=True)
LEAD_AND_RESTARTS = Case((P, Change(b"q", 1, b"Q"), None), attempts=(1, 1, 1), restarts=2, leads=True)
LEAD_AND_WIPE = Case((P, Change(b"q", 1, b"Q")), attempts=(1, 1), wipes=1, leads=True)
LEAD_WIPE_AND_READ = Case((P, Change(b"q", 1, b"Q"), None), attempts=(1, 1, 1), wipes=1, leads=True)
SMALL = [RESTARTS, LEAD, LEAD_AND_RESTARTS, LEAD_AND_WIPE]
LARGE = [TWO_CHANGES, CHANGE_AND_READ, ONE_AFTER_THE_OTHER, CRASHES, WIPED, LEAD_WIPE_AND_READ]  # Half a minute.


@pytest.mark.answers("register-is-linearizable", note="every interleaving of small cases")
@pytest.mark.parametrize("case", [*SMALL, *(pytest.param(case, marks=pytest.mark.thorough) for case in LARGE)])
def test_every_interleaving_has_one_history(case: Case) -> None:
    assert explore(case) > (300 if case is RESTARTS else 500)


@pytest.mark.parametrize("case", LARGE)
def test_random_ways_through_a_large_case_have_one_history(case: Case) -> None:
    """`make thorough` takes all ways."""
    wander(case, walks=150)


def test_a_promise_that_is_forgotten_at_a_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = acceptor._unpack

    def unpack(rows: dict[bytes, bytes], slots: dict[str, tuple[Ballot, Ballot, Value]], terms: dict[str, Term]) -> object:
        own = sound(rows, slots, terms)
        slots.update({key: (accepted, accepted, value) for key, (_, accepted, value) in slots.items()})
        return own

    monkeypatch.setattr(acceptor, "_unpack", unpack)
    with pytest.raises(Broken):
        explore(RESTARTS)


def test_a_proposer_that_ignores_the_highest_accepted_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proposal, "_found", lambda self: NOTHING)
    with pytest.raises(Broken):
        wander(TWO_CHANGES)


def test_a_proposer_that_takes_any_accepted_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(self: Proposal) -> Value:
        return min((self._votes[member] for member in self.counted), key=lambda vote: vote.accepted).value

    monkeypatch.setattr(Proposal, "_found", found)
    with pytest.raises(Broken):
        wander(TWO_CHANGES)


def test_a_quorum_of_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Electorate, "decides", lambda self, voters: len(voters) >= 1)
    with pytest.raises(Broken):
        wander(TWO_CHANGES)


def test_a_ballot_that_is_used_again_after_a_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of the proposer survives the restart, and its counter does not; then another client asks."""

    def client(self: explorer._Search, number: int, change: Change | None, crashes: int) -> Client:
        ballots = Ballots(b"the same")
        return Client(self._same(Proposal("k", change, electorate=explorer.ELECTORATE, ballots=ballots)), 0, crashes, -1)

    monkeypatch.setattr(explorer._Search, "_client", client)
    with pytest.raises(Broken):
        wander(TWO_CHANGES)


def test_a_read_that_does_not_confirm_what_it_found_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Proposal._go_on

    def go_on(self: Proposal) -> list[tuple[str, AnyMotion]]:
        if self.change is not None:
            return sound(self)
        self.value, self.phase = self._found(), Phase.CHOSEN
        return []

    monkeypatch.setattr(Proposal, "_go_on", go_on)
    with pytest.raises(Broken):
        wander(Case((P, None, None), attempts=(1, 2, 2)))


def test_a_change_that_is_applied_to_any_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(self: Change, value: Value) -> Value:
        return Value(value.version + 1, self.content, (*value.recent, self.id))

    monkeypatch.setattr(Change, "apply", apply)
    with pytest.raises(Broken):
        wander(TWO_CHANGES)


def test_an_acceptor_that_accepts_below_its_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Acceptor._refusal

    def refusal(self: Acceptor, key: str, ballot: Ballot, promised: Ballot) -> str:
        return sound(self, key, ballot, NO_BALLOT)

    monkeypatch.setattr(Acceptor, "_refusal", refusal)
    with pytest.raises(Broken):
        wander(TWO_CHANGES)


def test_a_wiped_acceptor_that_votes_at_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def restored(self: Recovery, electorate: Electorate, terms: Terms) -> Restored:
        return Restored(self._later(NO_TERM), terms, [])

    monkeypatch.setattr(Recovery, "restored", restored)
    with pytest.raises(Broken):
        wander(WIPED)


def test_a_wiped_acceptor_that_learns_from_one_other_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def restores(self: Electorate, member: str, voters: Collection[str]) -> bool:
        return len(voters) >= 1

    monkeypatch.setattr(Electorate, "restores", restores)
    with pytest.raises(Broken):
        wander(WIPED)


@pytest.mark.answers("register-is-linearizable", note="of sixteen planted bugs")
def test_votes_of_before_a_disk_was_lost_that_are_counted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proposal, "counted", property(lambda self: list(self._votes)))
    with pytest.raises(Broken):
        wander(WIPED)


def test_a_voter_that_does_not_record_the_terms_that_it_grants_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: Acceptor, source: str, asked: Term) -> Answer:
        return self._told(asked, grants=self.term is not None and asked.number > 1)

    monkeypatch.setattr(Acceptor, "_answer", answer)
    with pytest.raises(Broken):
        wander(WIPED)


def test_a_wiped_acceptor_that_does_not_learn_the_promises_of_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Acceptor._told

    def told(self: Acceptor, asked: Term, *, grants: bool) -> Answer:
        answer = sound(self, asked, grants=grants)
        slots = [(key, accepted, accepted, value) for key, _, accepted, value in answer.slots]
        return Answer(asked, answer.state, grants, answer.directory, answer.term, answer.terms, slots)

    monkeypatch.setattr(Acceptor, "_told", told)
    with pytest.raises(Broken):
        wander(WIPED)


def test_a_vote_names_the_terms_that_its_sender_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The explorer sees nothing wrong in votes that name too much; it does in votes that name too little."""
    sound = Acceptor._reply

    def reply(self: Acceptor, *rest: object) -> Vote:
        vote = sound(self, *rest)  # type: ignore[arg-type]
        return msgspec.structs.replace(vote, terms={})

    monkeypatch.setattr(Acceptor, "_reply", reply)
    with pytest.raises(Broken):
        wander(WIPED)


@pytest.mark.answers("lease-without-a-margin")
def test_a_vote_that_does_not_keep_the_next_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Acceptor._put

    def put(self: Acceptor, key: str, promised: Ballot, accepted: Ballot, value: Value) -> None:
        before = self._slots[key][1] if key in self._slots else NO_BALLOT
        sound(self, key, accepted if accepted > before else promised, accepted, value)

    monkeypatch.setattr(Acceptor, "_put", put)
    with pytest.raises(Broken):
        explore(LEAD)


@pytest.mark.answers("lease-without-a-margin")
def test_a_lead_that_no_majority_promised_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lead(self: Proposal) -> Lead | None:
        return Lead(self._promise, self.value, self._terms) if self.phase is Phase.CHOSEN else None

    def accept(self: Acceptor, key: str, ballot: Ballot, value: Value, promise: Ballot) -> Vote:
        return sound(self, key, ballot, value, NO_BALLOT)

    sound = Acceptor._accept
    monkeypatch.setattr(Acceptor, "_accept", accept)
    monkeypatch.setattr(Proposal, "lead", property(lead))
    with pytest.raises(Broken):
        explore(LEAD)


@pytest.mark.answers("lease-without-a-margin")
@pytest.mark.answers("register-is-linearizable", note="of sixteen planted bugs")
def test_a_lead_that_two_operations_use_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Proposal.begin
    kept: list[Lead] = []

    def begin(self: Proposal, terms: Terms, lead: Lead | None = None) -> None:
        kept.extend([lead] if lead is not None else [])
        is_other = self.change is not None and self.change.id == b"r"
        sound(self, terms, kept[0] if is_other and kept else lead)

    monkeypatch.setattr(Proposal, "begin", begin)
    with pytest.raises(Broken):
        explore(LEAD)
