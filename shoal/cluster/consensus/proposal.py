"""One read or change of a key of the quorum register: a proposer of CASPaxos, as a state machine.

    begin · receive   →   messages, and in the end a chosen value, and a lead

Votes for a value promise the proposer's next ballot, too. If a majority has promised it in this way, the proposer has a
`Lead`: its next operation on the key needs no first phase, as long as nobody else proposes (Multi-Paxos; the CASPaxos
paper calls it the one-round-trip optimization).

Laws:
- The value that is proposed is made from the one with the highest ballot that a majority has accepted, or from none. One
  that no member can have proposed (`Rules.fits`) is an invention, and counts as none.
- A read proposes what it found, and so does a change that cannot be made: what is told of a key was chosen.
- A vote counts only if no vote counted with it names a later term of its sender (`shoal.cluster.consensus.ballots`).
  The terms that were known when a lead was won are known to the operation that uses it.
- A member whose vote does not count is asked again at once, once in a phase. After that it has to wait for the caller: one that
  answers as before, because it lies, would be asked without end.
- An attempt that is over sends nothing more, whenever the caller's time to send again has come: it may have no value.
- A lead is used once, by the proposer that won it, in the epoch in which it was won.
- All votes that are counted in an attempt were given in one epoch of the members, that of the attempt.
- The caller decides when to send again, when to begin again with a higher ballot, and when to give up. A change stays the
  same in all attempts, and is applied once.
"""

from __future__ import annotations

from enum import Enum

from shoal.cluster.consensus.ballots import (
    ANYTHING,
    NO_BALLOT,
    NO_TERM,
    NOTHING,
    Accept,
    AnyMotion,
    Ballot,
    Ballots,
    Change,
    Electorate,
    Prepare,
    Rules,
    Term,
    Terms,
    Value,
    Vote,
    joined,
)
from shoal.records import NamedTuple


class Phase(Enum):
    """How far an attempt is."""

    PREPARING = "preparing"
    ACCEPTING = "accepting"
    CHOSEN = "chosen"
    BEATEN = "beaten"  # A member has promised a higher ballot.


class Lead(NamedTuple):
    """A majority has accepted `value` last, and has promised `ballot`."""

    ballot: Ballot
    value: Value
    terms: Terms  # Those that the proposer knew.


class Proposal:
    """Read `key`, or make a `change` of it, with the votes of an electorate."""

    def __init__(
        self, key: str, change: Change | None, *, electorate: Electorate, ballots: Ballots, rules: Rules = ANYTHING
    ) -> None:
        self.key = key
        self.change = change
        self.ballot = NO_BALLOT
        self.phase = Phase.BEATEN
        self.value = NOTHING
        """The value that is proposed; chosen once the phase says so."""
        self.may_be_made = False
        """Whether a member may have accepted the change, in any attempt."""
        self.refusals: dict[str, str] = {}
        """Why members did not vote, in this attempt."""
        self._electorate = electorate
        self._ballots = ballots
        self._rules = rules
        self._terms: dict[str, Term] = {}
        self._votes: dict[str, Vote] = {}
        self._asked_again: set[str] = set()  # At once, in this phase.
        self._promise = NO_BALLOT

    def begin(self, terms: Terms, lead: Lead | None = None) -> None:
        """Begin an attempt, with a new ballot or that of a lead. `terms` are those that this node knows.

        `messages` returns what to send.
        """
        self._votes, self.refusals, self._asked_again = {}, {}, set()
        if lead is None:
            self.ballot = self._ballots.next()
            self.phase = Phase.PREPARING
            self._terms = joined(self._terms, terms)
        else:
            self.ballot = lead.ballot
            self._terms = joined(self._terms, terms, lead.terms)
            self._propose(lead.value)

    @property
    def is_under_way(self) -> bool:
        """Whether votes are still asked for: the attempt is neither beaten nor won."""
        return self.phase in (Phase.PREPARING, Phase.ACCEPTING)

    @property
    def lead(self) -> Lead | None:
        """The lead for the next operation of this proposer, once a value is chosen."""
        promised = [member for member in self.counted if self._votes[member].promised == self._promise]
        if self.phase is not Phase.CHOSEN or not self._electorate.decides(promised):
            return None
        return Lead(self._promise, self.value, self._terms)

    def reform(self, electorate: Electorate) -> None:
        """The members have changed: an attempt that is under way is over, and the next one needs the votes of these."""
        self._electorate = electorate
        if self.phase is not Phase.CHOSEN:
            self.phase = Phase.BEATEN

    def messages(self) -> list[tuple[str, AnyMotion]]:
        """The messages to each member whose vote does not count yet: nothing once the attempt is over."""
        if not self.is_under_way:
            return []
        counted = self.counted
        return [(member, self._message()) for member in self._electorate.members if member not in counted]

    def receive(self, member: str, vote: Vote) -> list[tuple[str, AnyMotion]]:
        """Take a vote; returns what to send."""
        if vote.ballot != self.ballot or vote.key != self.key or vote.accepting != (self.phase is Phase.ACCEPTING):
            return []
        if not self.is_under_way:
            return []
        self._terms = joined(self._terms, vote.terms, {member: vote.term})
        if vote.refusal:
            self.refusals[member] = "unfit" if vote.unfit else vote.refusal
            if vote.refusal == "beaten":
                self._ballots.saw(vote.promised)
                self.phase = Phase.BEATEN
            return []
        self.refusals.pop(member, None)
        self._votes[member] = vote
        counted = self.counted
        if not self._electorate.decides(counted):
            # A member that voted before it got the term, or the votes, that others know of must vote again.
            again = [voted for voted in self._votes if voted not in counted and voted not in self._asked_again]
            self._asked_again.update(again)
            return [(voted, self._message()) for voted in again]
        return self._go_on()

    @property
    def counted(self) -> list[str]:
        """The members whose votes count in this phase."""
        return [member for member, vote in self._votes.items() if vote.term >= self._terms.get(member, NO_TERM)]

    def _go_on(self) -> list[tuple[str, AnyMotion]]:
        if self.phase is Phase.ACCEPTING:
            self.phase = Phase.CHOSEN
            return []
        self._propose(self._found())
        return self.messages()

    def _propose(self, found: Value) -> None:
        self.value = found if self.change is None else self.change.apply(found)
        self.may_be_made |= self.change is not None and self.value.version_of(self.change.id) is not None
        self.phase = Phase.ACCEPTING
        self._votes, self._asked_again = {}, set()
        self._promise = self._ballots.next()

    def _found(self) -> Value:
        """The value that may have been chosen before."""
        votes = [self._votes[member] for member in self.counted]
        found = [(vote.accepted, vote.value) for vote in votes if self._rules.fits(self.key, vote.value)]
        return max(found, key=lambda each: each[0], default=(NO_BALLOT, NOTHING))[1]

    def _message(self) -> AnyMotion:
        if self.phase is Phase.PREPARING:
            return Prepare(self.key, self.ballot, self._terms)
        assert self.phase is Phase.ACCEPTING, "an attempt that is over proposes nothing"
        return Accept(self.key, self.ballot, self.value, self._terms, self._promise)
