"""Two decisions after losses: when a directory may vote in the quorum register, and how to found the register anew.

Decide when a directory may vote in the quorum register: a new one, and one that may have forgotten votes.

    questions · answered · founded   →   begin a term

Laws:
- A directory that was wiped, copied, restored or set back asks for a new term. A voter that grants it records the term,
  durably, and then reports all that it has promised and accepted. The directory votes once enough voters have
  (`Electorate.restores`), and then knows the highest ballots and the newest value that they reported.
- Only answers of voters that have not forgotten anything since count: each answer names the terms that its sender
  knows, and an answer whose own term is behind one of these is asked for again.
- A register is founded when all members are empty at the same time: the member with the least address, the founder,
  then gives each member its first term, named by the id of its directory. A directory that was replaced does not take it.
- If too few voters are left, nobody can vote, and the register stays unavailable: nothing can tell what was chosen.

Found the quorum register anew from what is left of it, once too few members are left that can vote.

    remains of each survivor   →   a foundation that all of them begin with

Laws:
- The value that the survivors accepted last is kept, key by key: the value with the highest ballot. What only lost members have
  accepted is lost, so everything that counts goes up by more than those can have used: terms, ballots, versions and,
  in the contents, fencing numbers.
- A foundation is for one epoch of the members, and a member takes it only if it has not voted since it told its remains.
- Copies of all members are *whole* if each was made of the directory that voted for its address, and none of them knows of
  a vote that the copy of its voter lacks. Together they then hold every vote that any of them has ever heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from shoal.cluster.consensus.ballots import (
    ID_BYTES,
    NO_TERM,
    NOTHING,
    TERMS_MAX,
    Answer,
    AnyMotion,
    Ask,
    Ballot,
    Electorate,
    Slot,
    State,
    Term,
    Terms,
    Value,
    joined,
)
from shoal.errors import InvalidValue
from shoal.records import NamedTuple


class Restored(NamedTuple):
    """A term that may begin, and what must be known in it."""

    term: Term
    terms: Terms
    slots: list[Slot]


class Recovery:
    """One directory on its way to vote. `empty`: it holds no vote; `nonce` returns random bytes for the name of a term."""

    def __init__(self, member: str, directory: bytes, *, empty: bool, nonce: Callable[[], bytes]) -> None:
        self.empty = empty
        self.suspect = False
        """Whether it is empty, but known to have been set back: then it takes its first term from the founder alone."""
        self._member = member
        self._directory = directory
        self._nonce = nonce
        self._round = 0  # Of questions, so that the founder takes only answers to the last.
        self._is_founded = False  # Whether there is a voter, as far as this directory has heard.
        self._wanted: Term | None = None  # The term asked for.
        self._answers: dict[str, Answer] = {}  # Of voters, that grant it.
        self._empty: dict[str, bytes] = {}  # Members that are empty, with their directories, in this round.
        self.states: dict[str, str] = {}  # What each member said of itself last, for people.

    def first(self) -> Term:
        """The term that a founder gives this directory."""
        return Term(1, self._directory, 0)

    def is_given(self, term: Term) -> bool:
        """Whether this is the first term of this directory, and it has not voted in it."""
        return self.empty and not self.suspect and term == self.first()

    def questions(self, electorate: Electorate, terms: Terms) -> list[tuple[str, AnyMotion]]:
        """The questions to ask now, and again until this directory votes; those that were answered are left out."""
        self._round += 1
        self._empty = {}
        if self._is_founded or not self.empty:
            self._want(terms.get(self._member, NO_TERM))
        asked = self._wanted or Term(0, b"", self._round)
        waiting = [member for member in electorate.members if member != self._member and member not in self._answers]
        return [(member, Ask(asked, dict(terms))) for member in waiting]

    def answered(self, source: str, answer: Answer, terms: Terms) -> None:
        """Take an answer; `terms` includes what it says of terms."""
        self.states[source] = answer.state
        if answer.state == "voting":
            self._is_founded = True
            self._want(terms.get(self._member, NO_TERM))
            if answer.grants and answer.asked == self._wanted:
                self._answers[source] = answer
        elif answer.state == "empty" and answer.asked == Term(0, b"", self._round):
            self._empty[source] = answer.directory

    def heard(self) -> None:
        """A voter exists."""
        self._is_founded = True

    def founding(self, electorate: Electorate) -> dict[str, Term]:
        """The first terms of all members, which the founder gives once all are empty; none on any other member."""
        others = [member for member in electorate.members if member != self._member]
        if not self.empty or not others or self._member > others[0] or not all(member in self._empty for member in others):
            return {}
        self.suspect = False
        return {self._member: self.first()} | {member: Term(1, self._empty[member], 0) for member in others}

    def restored(self, electorate: Electorate, terms: Terms) -> Restored | None:
        """The term that this directory may begin now, if it has heard enough."""
        if self._wanted is None and not electorate.restores(self._member, ()):
            return None
        known = joined(terms, *(answer.terms for answer in self._answers.values()))
        for source in [source for source, answer in self._answers.items() if answer.term < known.get(source, NO_TERM)]:
            del self._answers[source]  # It has forgotten since, or has voted since.
        if not electorate.restores(self._member, self._answers):
            return None
        wanted = self._wanted or self._later(known.get(self._member, NO_TERM))
        return Restored(wanted, known, [slot for answer in self._answers.values() for slot in answer.slots])

    def _want(self, known: Term) -> None:
        """Ask for a term that is later than any that this member had."""
        if self._wanted is None or self._wanted < known:
            self._wanted = self._later(known)
            self._answers = {}

    def _later(self, known: Term) -> Term:
        return Term(max(known.number, 1) + 1, self._nonce(), 0)


TERMS_AHEAD = 1 << 20
"""More terms than a member has ever had: one for each time that its directory was lost."""

COUNTS_AHEAD = 1 << 40
"""More ballots, versions and fencing numbers than lost members can have used: a million a second would take 12 days, and
10,000 a second, which no cluster reaches, four years. 8,000 rebuilds fit into the 53 bits that every client can count with."""


class Remains(Struct, array_like=True, frozen=True):
    """The part of the register that one directory holds."""

    directory: bytes
    state: State
    voter: bytes  # The directory that gave the votes; another one's id in a copy. Empty: there are none.
    member: str  # The address for which that directory voted.
    term: Term  # Of these votes; none if they are known to be incomplete.
    terms: dict[str, Term]
    slots: list[Slot]

    @property
    def is_copy(self) -> bool:
        """Whether another directory gave these votes, and nothing says that some are missing."""
        return self.state == "forgotten" and self.voter not in (b"", self.directory) and self.term.number > 0


class Foundation(Struct, array_like=True, frozen=True):
    """The values with which every member of the new register begins."""

    id: bytes
    terms: dict[str, Term]
    slots: list[Slot]


def founded(
    remains: Mapping[str, Remains],
    *,
    id: bytes,
    own: Mapping[str, Value],
    raised: Callable[[str, bytes], bytes],
    keys: Iterable[str],
) -> Foundation:
    """The foundation for these survivors, by address.

    `own` are values that the rebuild itself makes. `raised` returns the content of a key with what it counts moved ahead;
    `keys` are those that must count ahead though no survivor has them.
    """
    newest: dict[str, tuple[Ballot, Value]] = {key: (Ballot(0, b""), NOTHING) for key in keys}
    counter = 0
    for each in remains.values():
        for key, promised, accepted, value in each.slots:
            counter = max(counter, promised.counter, accepted.counter)
            before = newest.get(key, (Ballot(0, b""), NOTHING))
            newest[key] = max(before, (accepted, value))
    ballot = Ballot(counter + COUNTS_AHEAD, id)
    values = {
        key: Value(value.version + COUNTS_AHEAD, raised(key, value.content), ())  # A change of before is not recognised.
        for key, (_, value) in newest.items()
    }
    known = joined(*(each.terms for each in remains.values()), *({at: each.term} for at, each in remains.items()))
    number = max((term.number for term in known.values()), default=0) + TERMS_AHEAD
    return Foundation(
        id,
        {member: Term(number, id, 0) for member in sorted(remains)},
        [(key, ballot, ballot, value) for key, value in sorted((values | dict(own)).items())],
    )


def why_not_whole(remains: Mapping[str, Remains], members: Iterable[str]) -> str:
    """Why these are not whole copies of all members, for people; empty if they are."""
    for member in sorted(members):
        copy = remains.get(member)
        if copy is None:
            return f"{member} has not told what it holds"
        if not copy.is_copy:
            return f"the directory of {member} is no copy of one that voted"
        if copy.member != member:
            return f"the directory of {member} is a copy of that of {copy.member}"
    for member in sorted(members):
        ahead = [at for at, each in sorted(remains.items()) if each.terms.get(member, NO_TERM) > remains[member].term]
        if ahead:
            return f"the copy of {member} is older than that of {ahead[0]}, which knows of later votes of it"
    return ""


def check(remains: Remains) -> None:
    """Check what the types leave open, but for slots and terms, which are checked as in other messages.

    Raises:
        InvalidValue: an id or a count is impossible.
    """
    if not all(len(id) <= ID_BYTES for id in (remains.directory, remains.voter)) or len(remains.terms) > TERMS_MAX:
        raise InvalidValue("a peer's message about a rebuild has an impossible field. Nothing was written.")
