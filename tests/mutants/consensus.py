"""Bugs of the quorum register: what is chosen is not kept, or not told as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
import pytest

from shoal.cluster.consensus import acceptor
from shoal.cluster.consensus.acceptor import Acceptor
from shoal.cluster.consensus.ballots import (
    NO_TERM,
    NOTHING,
    AnyMotion,
    Ballot,
    Change,
    Electorate,
    Lead,
    Proposal,
    Term,
    Terms,
    Value,
)
from shoal.cluster.consensus.recovery import Recovery, Restored
from shoal.errors import NoQuorum, OutcomeUnknown
from shoal.node.consensus.quorum_register import QuorumRegister
from tests.mutants.mutant import Mutant


def votes_leave_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    sound = QuorumRegister._reply

    def reply(self: QuorumRegister, answers: Iterable[tuple[str, AnyMotion]]) -> None:
        sends = list(answers)
        sound(self, [])
        self._send(sends)

    patch.setattr(QuorumRegister, "_reply", reply)


def one_vote_is_a_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Electorate, "decides", lambda self, voters: len(voters) >= 1)


def a_proposer_ignores_what_was_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Proposal, "_found", lambda self: NOTHING)


def an_acceptor_accepts_below_its_promise(patch: pytest.MonkeyPatch) -> None:
    sound = Acceptor._refusal

    def refusal(self: Acceptor, key: str, ballot: Ballot, promised: Ballot) -> str:
        return sound(self, key, ballot, min(ballot, promised))

    patch.setattr(Acceptor, "_refusal", refusal)


def accepted_values_are_forgotten_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    sound = acceptor._unpack

    def unpack(rows: Mapping[bytes, bytes], slots: dict[str, tuple[Ballot, Ballot, Value]], terms: dict[str, Term]) -> object:
        own = sound(rows, slots, terms)
        slots.clear()
        return own

    patch.setattr(acceptor, "_unpack", unpack)


def a_wiped_directory_votes_at_once(patch: pytest.MonkeyPatch) -> None:
    def restored(self: Recovery, electorate: Electorate, terms: Terms) -> Restored:
        return Restored(self._later(terms.get(self._member, NO_TERM)), terms, [])

    patch.setattr(Recovery, "restored", restored)


def a_wiped_directory_learns_from_one_voter(patch: pytest.MonkeyPatch) -> None:
    def restores(self: Electorate, member: str, voters: Collection[str]) -> bool:
        return len(voters) >= min(1, len(self.members) - 1)

    patch.setattr(Electorate, "restores", restores)


def a_copied_directory_votes_with_old_promises(patch: pytest.MonkeyPatch) -> None:
    sound = Acceptor.__init__

    def init(self: Acceptor, member: str, directory: bytes, rows: Mapping[bytes, bytes] | None, **rest: Any) -> None:
        if rows and b"own" in rows:
            own = msgspec.msgpack.decode(rows[b"own"], type=acceptor._Own)
            rows = {**rows, b"own": msgspec.msgpack.encode(own._replace(directory=directory))}
        sound(self, member, directory, rows, **rest)

    patch.setattr(Acceptor, "__init__", init)
    patch.setattr(Acceptor, "forget", lambda self: None)


def a_directory_that_was_set_back_goes_on_voting(patch: pytest.MonkeyPatch) -> None:
    """It does not believe that it has forgotten, and proposers count its votes, whatever others know of it."""
    patch.setattr(Acceptor, "forget", lambda self: None)
    patch.setattr(Proposal, "counted", property(lambda self: list(self._votes)))


def votes_are_told_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    """A node that crashes has made fewer votes than others know of, and does not vote any more."""
    patch.setattr(Acceptor, "told", property(lambda self: dict(self.terms)))


def a_change_is_not_recognised_when_it_is_repeated(patch: pytest.MonkeyPatch) -> None:
    sound = Change.apply

    def apply(self: Change, value: Value) -> Value:
        return sound(self._replace(expected=value.version) if self.id in value.recent else self, value._replace(recent=()))

    patch.setattr(Change, "apply", apply)


def a_lead_has_the_value_before_the_change(patch: pytest.MonkeyPatch) -> None:
    """The next change of the same proposer is made as if the last one had not been."""
    sound, propose = Proposal.lead.fget, Proposal._propose  # type: ignore[attr-defined]

    def noted(self: Proposal, found: Value) -> None:
        self.found = found  # type: ignore[attr-defined]
        propose(self, found)

    def lead(self: Proposal) -> Lead | None:
        won: Lead | None = sound(self)
        return won and won._replace(value=self.found)  # type: ignore[attr-defined]

    patch.setattr(Proposal, "_propose", noted)
    patch.setattr(Proposal, "lead", property(lead))


def a_change_that_may_be_made_is_denied(patch: pytest.MonkeyPatch) -> None:
    sound = QuorumRegister._undecided

    def undecided(self: QuorumRegister, proposal: Proposal, *, repeated: bool) -> NoQuorum | OutcomeUnknown:
        error = sound(self, proposal, repeated=repeated)
        return NoQuorum(error.message) if isinstance(error, OutcomeUnknown) else error

    patch.setattr(QuorumRegister, "_undecided", undecided)


_LOSSES = frozenset({"forgotten", "stale_copy", "one_by_one"})

MUTANTS = (
    Mutant(votes_leave_before_the_fsync, "a vote in the quorum register is sent before its fsync", ("8",)),
    Mutant(one_vote_is_a_quorum, "one vote decides in the quorum register", ("8",)),
    Mutant(a_proposer_ignores_what_was_accepted, "a proposer ignores the values that were accepted", ("8",)),
    Mutant(an_acceptor_accepts_below_its_promise, "an acceptor accepts a ballot below its promise", ("8",)),
    Mutant(accepted_values_are_forgotten_at_a_restart, "an acceptor forgets its votes at a restart", ("8",)),
    Mutant(a_wiped_directory_votes_at_once, "a directory that forgot votes at once", ("8",), "composed", _LOSSES),
    Mutant(
        a_wiped_directory_learns_from_one_voter, "a directory that forgot learns from one voter", ("8",), "composed", _LOSSES
    ),
    Mutant(
        a_copied_directory_votes_with_old_promises,
        "a copied directory votes with its original's promises",
        ("8",),
        "composed",
        frozenset({"stale_copy", "set_back"}),
    ),
    Mutant(
        a_directory_that_was_set_back_goes_on_voting, "a directory that was set back as a whole goes on voting", ("8",), "storm"
    ),
    Mutant(votes_are_told_before_the_fsync, "the number of a voter's votes is told before their fsync", ("9",), "storm"),
    Mutant(a_change_is_not_recognised_when_it_is_repeated, "a change that is repeated is made again, or denied", ("8",)),
    Mutant(a_lead_has_the_value_before_the_change, "a proposer with a lead does not know its own last change", ("8",)),
    Mutant(a_change_that_may_be_made_is_denied, "a change of unknown outcome is said not to be made", ("8",), "storm"),
)
