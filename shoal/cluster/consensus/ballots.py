"""The quorum register's ballots, and the proposer that reads or changes one of its keys.

The values of the quorum register, and its messages, byte for byte.

The values that proposers and acceptors exchange: ballots, versions, changes, terms, and the members that decide.

Laws:
- A ballot is used once. Its proposer's id is random and new at each start of a process, so no
  counter has to survive a restart.
- A value's version grows by one with each change, and the value names the changes that made its last
  versions. So a proposer recognises its own change, and never applies it twice.
- A term is a period in which one directory votes for a member without forgetting. The terms that a node
  knows form a crash vector (Michael, Ports, Sharma, Szekeres: "Recovering Shared Objects Without Stable Storage",
  DISC 2017): a vote counts only if no vote counted with it names a later term of its sender.
- No member counts far beyond what it knows because another says so: numbers above `COUNTS_FREE`, which no cluster reaches, are
  believed in steps of `COUNTS_STEP`. So a lie cannot use up the numbers of a key or of a member.

The messages of the quorum register, byte for byte. `shoal.cluster.messages` decodes them with all others.

Laws:
- A `Vote` or an `Answer` leaves a node only once the disk holds what it says.
- Every message carries the terms that its sender knows: a receiver that finds a later term of its own has forgotten
  votes, and stops voting.
- Fields are only ever added at the end, with a default.

One read or change of a key of the quorum register: a proposer of CASPaxos, as a state machine.

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

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Literal

from msgspec import Struct

from shoal.errors import InvalidValue
from shoal.names import KEY_BYTES_MAX
from shoal.records import NamedTuple

RECENT_MAX = 16
"""The changes that a value names. A change that is older than these cannot be recognised any more."""

ID_BYTES = 16  # Of proposers, changes and terms.


COUNTS_FREE = 1 << 53  # As far as every client can count, so that all that is counted here stays below.
COUNTS_STEP = 1 << 32  # A thousand million steps are left above. Members that were lied to differently find together in steps.


def believed(count: int, known: int) -> int:
    """The part of another's count that is believed by a member that has counted to `known`."""
    return min(count, max(known, COUNTS_FREE) + COUNTS_STEP)


class Ballot(NamedTuple):
    """Orders proposals for one key."""

    counter: int
    proposer: bytes


NO_BALLOT = Ballot(0, b"")


class Ballots:
    """The ballots of one run of a node; `proposer` is random."""

    def __init__(self, proposer: bytes) -> None:
        self.proposer = proposer
        self._counter = 0

    def next(self) -> Ballot:
        """A ballot above all that this proposer has used or seen."""
        self._counter += 1
        return Ballot(self._counter, self.proposer)

    def saw(self, ballot: Ballot, *, ahead: int = 0) -> None:
        """Another proposer uses this ballot, and maybe so many after it."""
        if ballot.proposer != self.proposer:
            self._counter = max(self._counter, believed(ballot.counter + ahead, self._counter))


class Value(NamedTuple):
    """The state of a key after `version` changes."""

    version: int
    content: bytes
    recent: tuple[bytes, ...]  # The ids of the last changes, at most `RECENT_MAX`; the newest last.

    def version_of(self, change: bytes) -> int | None:
        """The version that a change made; None if it is not among the recent ones."""
        return self.version - len(self.recent) + 1 + self.recent.index(change) if change in self.recent else None


NOTHING = Value(0, b"", ())
"""The value of a key that was never changed."""


class Rules(NamedTuple):
    """The values that a key may hold, beyond the rules of the register: anything for most keys."""

    fits: Callable[[str, Value], bool] = lambda key, value: (
        True
    )  # Whether a member that follows the rules can have proposed it.
    objects: Callable[[str, Value], bool] = lambda key, value: False  # Whether this member sees why it should not be chosen.

    def allow(self, key: str, value: Value) -> bool:
        """Whether this member may hold a value that it does not hold yet."""
        return self.fits(key, value) and not self.objects(key, value)


ANYTHING = Rules()


class Verdict(Enum):
    """The verdict of a chosen value on a change."""

    MADE = "made"
    REFUSED = "refused"  # The key has another version than expected, and this change has not made it and never will.
    UNKNOWN = "unknown"  # The change may have made a version that is no longer among the recent ones.


class Change(NamedTuple):
    """Set the content of a key if it has the `expected` version. The same `id` is applied once."""

    id: bytes
    expected: int
    content: bytes

    def apply(self, value: Value) -> Value:
        """The value after the change; the same value if it was made before or cannot be made."""
        if value.version != self.expected or value.version_of(self.id) is not None:
            return value
        return Value(value.version + 1, self.content, (*value.recent, self.id)[-RECENT_MAX:])

    def judge(self, chosen: Value) -> Verdict:
        """The outcome of the change, once `chosen` was chosen after the last attempt to apply it."""
        if chosen.version_of(self.id) is not None:
            return Verdict.MADE
        is_named = chosen.version - len(chosen.recent) <= self.expected
        return Verdict.REFUSED if is_named else Verdict.UNKNOWN


class Term(NamedTuple):
    """A period in which one directory votes for a member, and how often it has voted in it. Later terms are greater."""

    number: int  # 0: no term; 1: since the register was founded; more: since the directory was restored.
    nonce: bytes  # The directory's id in the first term, random in later ones.
    votes: int  # Durable votes; they tell a directory that was set back within a term.


NO_TERM = Term(0, b"", 0)

Terms = Mapping[str, Term]


def joined(*known: Terms) -> dict[str, Term]:
    """The latest term of each member, in the members' order."""
    latest: dict[str, Term] = {}
    for terms in known:
        for member, term in terms.items():
            latest[member] = max(term, latest.get(member, NO_TERM))
    return dict(sorted(latest.items()))


class Electorate(NamedTuple):
    """The members whose votes count: a majority of every group decides. Two groups are a change under way: old list first."""

    groups: tuple[frozenset[str], ...]

    @property
    def members(self) -> list[str]:
        """All of them, in a fixed order."""
        return sorted(frozenset().union(*self.groups))

    def decides(self, voters: Collection[str]) -> bool:
        """Whether these votes are enough. Any two sets of voters that are enough share a member."""
        return all(len(group.intersection(voters)) >= len(group) // 2 + 1 for group in self.groups)

    def restores(self, member: str, voters: Collection[str]) -> bool:
        """Whether what these voters report is enough for `member`, which has forgotten.

        They must share a voter other than `member` with whatever decided, now or before: of three both others, of two or four
        half of the group. All of that needed a majority of the old list. Any two recoveries of one member must share a voter,
        too. So the new list is asked as well, but if the old one is odd half of it is enough: else a member that has forgotten
        would wait for another one that has.
        """
        old, *new = self.groups
        needed = [(old, (len(old) + 1) // 2), *((group, (len(group) + 1 - len(old) % 2) // 2 or 1) for group in new)]
        return all(len((group - {member}).intersection(voters)) >= min(few, len(group - {member})) for group, few in needed)


TERMS_MAX = 128  # Members in one message: those of two lists.
SLOTS_MAX = 4096  # Keys in one Answer.
_COUNT_MAX = 1 << 62

Refusal = Literal["", "beaten", "not-voting", "full"]
"""Why a member does not vote for a ballot: it has promised a higher one, may have forgotten votes, or holds too many keys."""

State = Literal["voting", "empty", "forgotten"]
"""The state of a member: a voter, a new directory that never voted, or one that may have forgotten votes."""

Slot = tuple[str, Ballot, Ballot, Value]
"""A key, the ballot promised for it, the ballot accepted, and the value accepted with it."""


class Motion(Struct, array_like=True, frozen=True):
    """The fields that all messages of the quorum register have in common."""


class Prepare(Motion, array_like=True, frozen=True, tag=17):
    """Asks for the promise to accept no lower ballot; answered by a `Vote`."""

    key: str
    ballot: Ballot
    terms: dict[str, Term]


class Accept(Motion, array_like=True, frozen=True, tag=18):
    """Asks to accept a value; answered by a `Vote`, which also promises the ballot `promise` if that is higher."""

    key: str
    ballot: Ballot
    value: Value
    terms: dict[str, Term]
    promise: Ballot = NO_BALLOT  # The sender's next one.


class Vote(Motion, array_like=True, frozen=True, tag=19):
    """The answer to a `Prepare`, or with `accepting` to an `Accept`, of this ballot."""

    key: str
    ballot: Ballot
    accepting: bool
    refusal: Refusal  # Empty: the vote is given.
    promised: Ballot
    accepted: Ballot  # Of the last value that the sender accepted; only in a promise.
    value: Value
    term: Term  # The sender's own.
    terms: dict[str, Term]
    unfit: bool = False  # With the refusal "not-voting": the sender votes, and not for this value.


class Ask(Motion, array_like=True, frozen=True, tag=20):
    """A member that does not vote asks what it must know; answered by an `Answer`.

    With a term above 0 it wants to vote in that term: a voter that answers counts no earlier vote of it any more.
    """

    term: Term
    terms: dict[str, Term]


class Answer(Motion, array_like=True, frozen=True, tag=21):
    """The answer to an `Ask` of this term. Only a voter's answer to a term that it `grants` has slots."""

    asked: Term
    state: State
    grants: bool
    directory: bytes
    term: Term  # The sender's own.
    terms: dict[str, Term]
    slots: list[Slot] = []


class Known(Motion, array_like=True, frozen=True, tag=22):
    """The terms that a voter knows, or that the founder gives; a member that does not vote learns from it that it could."""

    terms: dict[str, Term]
    founding: bool = False


AnyMotion = Prepare | Accept | Vote | Ask | Answer | Known


def check(motion: Motion) -> None:
    """Check what the types leave open.

    Raises:
        InvalidValue: a count, an id or a key is impossible.
    """
    match motion:
        case Prepare(key, ballot, terms):
            is_sound = _is_key(key) and _is_ballot(ballot) and _are_terms(terms)
        case Accept(key, ballot, value, terms, promise):
            is_sound = _is_key(key) and _is_ballot(ballot) and _is_value(value) and _are_terms(terms) and _is_ballot(promise)
        case Vote(key, ballot, _, _, promised, accepted, value, term, terms, _):
            is_sound = _is_key(key) and all(map(_is_ballot, (ballot, promised, accepted))) and _is_value(value)
            is_sound = is_sound and _is_term(term) and _are_terms(terms)
        case Ask(term, terms):
            is_sound = _is_term(term) and _are_terms(terms)
        case Answer(asked, _, _, directory, term, terms, slots):
            is_sound = _is_term(asked) and _is_term(term) and _are_terms(terms) and len(directory) <= ID_BYTES
            is_sound = is_sound and len(slots) <= SLOTS_MAX and all(_is_slot(*slot) for slot in slots)
        case Known(terms, _):
            is_sound = _are_terms(terms)
        case _:
            is_sound = False
    if not is_sound:
        raise InvalidValue("a peer's message about the quorum register has an impossible field. Nothing was written.")


def _is_key(key: str) -> bool:
    return 0 < len(key.encode()) <= KEY_BYTES_MAX


def _is_ballot(ballot: Ballot) -> bool:
    return 0 <= ballot.counter < _COUNT_MAX and len(ballot.proposer) <= ID_BYTES


def _is_value(value: Value) -> bool:
    return 0 <= value.version < _COUNT_MAX and len(value.recent) <= min(RECENT_MAX, value.version)


def _is_term(term: Term) -> bool:
    return 0 <= term.number < _COUNT_MAX and len(term.nonce) <= ID_BYTES and 0 <= term.votes < _COUNT_MAX


def _are_terms(terms: dict[str, Term]) -> bool:
    return len(terms) <= TERMS_MAX and all(map(_is_term, terms.values()))


def _is_slot(key: str, promised: Ballot, accepted: Ballot, value: Value) -> bool:
    return _is_key(key) and _is_ballot(promised) and _is_ballot(accepted) and _is_value(value)


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
