"""Found the quorum register anew from what is left of it, once too few members are left that can vote.

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

from shoal.cluster.consensus.ballots import ID_BYTES, NO_TERM, NOTHING, Ballot, Term, Value, joined
from shoal.cluster.consensus.motions import TERMS_MAX, Slot, State
from shoal.errors import InvalidValue

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
