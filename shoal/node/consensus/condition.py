"""Whether the quorum register has a quorum, as this node sees it: which members do not vote, why, and since when.

Laws:
- A member counts as voting if it is linked and did not say otherwise: that it may have forgotten votes, or never voted.
- A time is this node's: when it saw the member change, or when it started.
- It is shown to people: in the status, at `/readyz`, in metrics, and in each `NoQuorum` of the register. It decides one
  thing: a member that sees a quorum takes no part in a rebuild (`can_decide`).

The foundation of a rebuilt register: what survivors hold, with every number that its contents count moved ahead.

`shoal.cluster.consensus.recovery` never looks into contents; the tables of leases count fencing numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from shoal.cluster.consensus.ballots import Answer, AnyMotion, Ask, Electorate, Known, State, Value, Vote
from shoal.cluster.consensus.recovery import COUNTS_AHEAD, Foundation, Remains, founded
from shoal.kinds.lease.state import table
from shoal.records import NamedTuple

COMMAND = "shoal cluster rebuild"


class _Seen(NamedTuple):
    says: str  # "": it votes.
    since_ms: int


class Condition:
    """The knowledge of this node about the other voters."""

    def __init__(self, member: str) -> None:
        self._member = member
        self._states: dict[str, State] = {}  # What linked members said last.
        self._seen: dict[str, _Seen] = {}
        self._without_since_ms: int | None = None
        self.is_founded = False
        """Whether anybody has ever voted, as far as this node knows."""

    def heard(self, member: str, motion: AnyMotion) -> None:
        """A message tells what its sender is."""
        match motion:
            case Known():
                self._states[member] = "voting"
                self.is_founded |= not motion.founding
            case Ask(term) if term.number:
                self._states[member] = "forgotten"
            case Ask():
                self._states[member] = "empty"
            case Answer(state=state):
                self._states[member] = state
                self.is_founded |= state != "empty"
            case Vote(refusal=refusal, unfit=is_unfit):
                self._states[member] = "forgotten" if refusal == "not-voting" and not is_unfit else "voting"
                self.is_founded = True

    def rebuilt(self) -> None:
        """The register was founded anew: what members said before is over."""
        self._states.clear()
        self.is_founded = True

    def look(self, electorate: Electorate, linked: Collection[str], own: State, *, now_ms: int, has_failed: bool) -> None:
        """Note what has changed."""
        self.is_founded |= own != "empty"
        self._states = {member: state for member, state in self._states.items() if member in linked}
        seen: dict[str, _Seen] = {}
        for member in electorate.members:
            says = self._says(member, linked, own, has_failed=has_failed)
            before = self._seen.get(member)
            seen[member] = before if before is not None and before.says == says else _Seen(says, now_ms)
        self._seen = seen
        if electorate.decides([member for member, each in seen.items() if not each.says]):
            self._without_since_ms = None
        elif self._without_since_ms is None:
            self._without_since_ms = now_ms

    def can_decide(self, electorate: Electorate) -> bool:
        """Whether enough members have said that they vote, or will by themselves: a register is founded once all are up."""
        if self.is_founded:
            says = {member for member, each in self._seen.items() if not each.says}
            return electorate.decides([at for at in says if at == self._member or self._states.get(at) == "voting"])
        return not any(each.says in (_AWAY, _FAILED) for each in self._seen.values()) and len(electorate.members) > 1

    def told(self, electorate: Electorate) -> str:
        """For people: why there is no quorum, and what to do; empty if there is one, or it is about to be founded."""
        if self._without_since_ms is None:
            return ""
        missing = [(member, each) for member, each in self._seen.items() if each.says]
        why = "; ".join(f"{member} {each.says}, since {_moment(each.since_ms)}" for member, each in missing)
        if not self.is_founded:
            away = [member for member, each in missing if each.says == _AWAY]
            if not away:
                return ""  # It is founded within seconds, or once somebody uses it.
            return (
                f"the quorum register was never founded, which needs all members up at once, for a few seconds: "
                f"{', '.join(away)} cannot be reached. Start them; nothing is lost, and nothing else is to be done. Only if "
                f"they will never come: `{COMMAND}`"
            )
        lists = " and ".join(f"{len(group) // 2 + 1} of {len(group)}" for group in electorate.groups)
        return (
            f"the quorum register has no quorum since {_moment(self._without_since_ms)}: it needs the votes of {lists} "
            f"members, and {why}. Leases, claims, compare-and-set, crews and changes of members wait. If these do not "
            f"come back: `{COMMAND}`"
        )

    def _says(self, member: str, linked: Collection[str], own: State, *, has_failed: bool) -> str:
        if member == self._member and has_failed:
            return _FAILED
        if member != self._member and member not in linked:
            return _AWAY
        return _SAYS[own if member == self._member else self._states.get(member, "voting" if self.is_founded else "empty")]


def why_missing(refusals: Mapping[str, str], there: Collection[str], *, own: str) -> str:
    """For people: why the votes of these members are missing. `there` are those that can vote, as far as is known."""
    return "; ".join(
        f"{member} {_REASONS.get(refusal, 'did not answer')}"
        if member in there
        else f"{member} {_FAILED if member == own else _AWAY}"
        for member, refusal in refusals.items()
    )


_AWAY = "cannot be reached"
_FAILED = "cannot write to its disk"
_REASONS = {
    "beaten": "votes for another operation",
    "not-voting": "may have forgotten votes, and does not vote until enough members have told it theirs",
    "full": "has no room for the key",
    "unfit": "does not vote for it, because it is no step from the members that it knows, or removes a node that is up",
}
_SAYS: Mapping[State, str] = {
    "voting": "",
    "empty": "has no votes yet",
    "forgotten": "may have forgotten votes",
}


def _moment(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_BEAT_BYTES = 8
_NOTHING: Mapping[str, Value] = {}


def foundation_of(
    remains: Mapping[str, Remains], *, id: bytes, shards: int, own: Mapping[str, Value] = _NOTHING, unseen_ms: int = 0
) -> Foundation:
    """The foundation with which these survivors, by address, go on; `own` are values that the rebuild itself makes.

    Leases that none of the survivors knows of may last for another `unseen_ms`.
    """

    def raised(key: str, content: bytes) -> bytes:
        if not key.startswith(table.KEY):
            return content
        return table.rebuilt(content, by=COUNTS_AHEAD, beat=id[:_BEAT_BYTES], unseen_ms=unseen_ms)

    # Also those shards of which no survivor knows anything: a lost member may have granted a lease of them.
    return founded(remains, id=id, own=own, raised=raised, keys=[f"{table.KEY}{nth}" for nth in range(shards)])
