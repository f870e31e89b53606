"""Messages about members and rebuilds, byte for byte; whether nodes agree on the members; and how a first list is found.

Whether nodes agree on who the members are: on the configured lists, and on a record of a later epoch.

Laws:
- A disagreement of configured lists is reported to people; nothing is refused for it.
- A later record is believed once more than half of a list that decides in the present epoch hold it, or have voted for it,
  and one of them holds it. So one member's word changes nothing.
- If more than half cannot be had, it is believed once all members that have a link hold it, for a while, and it can follow
  from the present one. A node that is new needs as many of them as half of those that it was configured with, and one more.
- A member whose directory never had a part in any epoch has no word, as one that is away. A new node needs no more
  of them than there are once it is linked to all, and the rest say that they are such directories: nobody knows more.

The messages about members, byte for byte. `shoal.cluster.messages` decodes them with all others.

Laws:
- A record in a message is one member's word: its receiver adopts it once most members say the same (`Voices`).
- Fields are only ever added at the end, with a default.

The first list of members, if the configuration has seeds and a number instead: found by asking, and agreed on by all.

A service's name leads to different nodes while they start and does not say how many there are to be. A node that took what
it sees for the members might count a majority that does not meet another one.

    heard   →   propose · agreed

Laws:
- A node confirms one list, once: it tells it to others only when its disk has it, and never confirms another.
- A list is agreed on once each of its members has confirmed it. So two lists that share a member are never both
  agreed on, whatever names lead to whichever nodes.
- A node proposes a list only if it has found exactly as many nodes as there are to be: with one too many, nobody can know
  which ones are meant. A list that another node proposes, with this node in it, is confirmed as it is.

The messages of a rebuild, byte for byte, and what it is decided by. `shoal.cluster.messages` decodes them.

    Inquiry → Report (what a member has left)    Inquiry that halts → Report    Founding → Founded

Laws:
- They are taken in every epoch: survivors may have missed the last ones.
- A member that was halted votes no more, and takes the founding of the inquiry that halted it last, and no other; nor one
  that leaves out what it holds itself, or a member that it reaches.
- Fields are only ever added at the end, with a default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec import Struct

from shoal.cluster.consensus import recovery as rebuilding
from shoal.cluster.consensus.ballots import ID_BYTES, SLOTS_MAX, Answer, Electorate, Known
from shoal.cluster.consensus.ballots import check as check_motion
from shoal.cluster.consensus.recovery import Foundation, Remains
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Record
from shoal.cluster.peering import Identity
from shoal.errors import InvalidValue

_LISTED_MAX = 10
_NAME_CHARS_MAX = 100


def disagreement(own: Identity, peer: Identity, others: Iterable[Identity]) -> str:
    """How a peer's address or list of members contradicts this node's, and what to do; empty if they agree.

    `others` are further nodes that this one is linked to. A peer that does not tell its members is not compared.
    """
    for other in (own, *others):
        if other.name == peer.name and other.node != peer.node:  # The lists need not be compared: their names mislead.
            return (
                f"two nodes advertise {_short(peer.name)}: {peer.node.hex()[:8]} and {other.node.hex()[:8]}"
                f"{' (this one)' if other is own else ''}. Give each its own SHOAL_ADVERTISE, and restart it."
            )
    if own.epoch or peer.epoch:
        return ""  # The record decides, not the configured lists.
    here, there = set(own.members), set(peer.members)
    if not here or not there or here == there:
        return ""
    sides = ((own.name, here - there), (peer.name, there - here))
    only = "; ".join(f"only {_short(name)} has {_shortened(rest)}" for name, rest in sides if rest)
    return (
        f"{_short(own.name)} (this node) and {_short(peer.name)} have different members: {only}. Nodes that have different "
        "members count different majorities. Give all nodes the same SHOAL_JOIN, and each the SHOAL_ADVERTISE under which "
        "the list has it, and restart them. If a name in SHOAL_JOIN leads to several nodes, set SHOAL_CLUSTER_SIZE to their "
        "number."
    )


class Voices:
    """Words of others on records that are later than this node's. `own` is its address, `directory` its directory's id."""

    def __init__(self, own: str, directory: bytes) -> None:
        self._own = own
        self._directory = directory
        self._held: dict[str, tuple[bytes, Record]] = {}  # By address: its directory, and the record that it is in.
        self._voted: dict[str, tuple[bytes, Record]] = {}
        self._left: set[str] = set()  # Addresses of nodes that say that they have no part any more.
        self._since: tuple[Record, float] | None = None  # The record that all who are linked hold, and since when.

    def holds(self, address: str, node: bytes, record: Record) -> None:
        """A node says that it is in this epoch."""
        self._held[address] = node, record

    def voted(self, address: str, node: bytes, record: Record) -> None:
        """A node says that it has voted for this record."""
        self._voted[address] = node, record

    def left(self, address: str) -> None:
        """A node says that it was removed: a node without a vote need not ask it."""
        self._left.add(address)

    def entered(self, record: Record) -> None:
        """This node is in this epoch: what was said of it, or of an earlier one, is over."""
        takes_part, self._since = set(record.everyone), None
        self._left.clear()
        for said in (self._held, self._voted):
            for address, (_, told) in list(said.items()):
                if told.epoch <= record.epoch or address not in takes_part:
                    del said[address]

    def believed(
        self,
        record: Record,
        own: Record | None,
        *,
        has_voice: bool,
        is_new: bool,
        linked: Mapping[str, bytes],
        unaware: Collection[str] = (),
        now: float,
        wait_s: float,
    ) -> Record | None:
        """The record to adopt in place of `record`; None if there is none yet.

        `own` is what this node has voted for itself, if it votes (`has_voice`). One that `is_new` holds nothing, and has had no
        part in any epoch. `linked` are the nodes that have a link, by address, and `unaware` those of them that say that they
        had no part in any; `wait_s` is how long all the others must say the same if they are not enough. What was said by one
        that has no link any more still holds: epochs only grow.
        """
        held = {at: told for at, (node, told) in self._held.items() if linked.get(at, node) == node}
        voted = {at: told for at, (node, told) in self._voted.items() if linked.get(at, node) == node}
        if own is not None:
            voted[self._own] = own
        for later in sorted((told for told in held.values() if told.epoch > record.epoch), key=lambda told: -told.epoch):
            voices = {at for told in (held, voted) for at, each in told.items() if each == later}
            if any(_is_most(voices, group) for group in self._asked(record, has_voice=has_voice)):
                return later
            # Two others are more than one liar, and what is more than half of the others is what snapshots are believed by.
            others = voices - {self._own}
            if len(others) > 1 and any(_is_most(others, group) for group in self._asked(record, has_voice=False)):
                return later
        fellows = (linked.keys() if is_new else linked.keys() & set(record.electorate.members)) - set(unaware)
        asked = self._asked(record, has_voice=False)[0]
        if is_new and len(fellows) <= len(asked) // 2 and not linked.keys() >= asked:
            fellows = set()  # It knows nothing by which it could judge: whoever comes first could make it his.
        return self._unanimous(
            [held.get(address) for address in fellows],
            lambda later: later.epoch > record.epoch and (is_new or epochs.follows(record, later)),
            now=now,
            wait_s=wait_s,
        )

    def _asked(self, record: Record, *, has_voice: bool) -> list[frozenset[str]]:
        """The lists of each of which more than half is enough."""
        groups = record.electorate.groups
        return list(groups) if has_voice else [group - self._left - {self._own} for group in groups]

    def _unanimous(
        self, said: Sequence[Record | None], can_be: Callable[[Record], bool], *, now: float, wait_s: float
    ) -> Record | None:
        """The record that all linked members hold, once they have for a while: those that left may be gone for good.

        No node leaves because of that: it is not told its own removal in this way.
        """
        later = said[0] if said else None
        is_in = later is not None and self._own in later.everyone and later.removal_of(self._directory) is None
        if later is None or not is_in or any(each != later for each in said) or not can_be(later):
            self._since = None
            return None
        if self._since is None or self._since[0] != later:
            self._since = later, now
        return later if now >= self._since[1] + wait_s else None


def _is_most(said: Collection[str], group: Collection[str]) -> bool:
    return len(set(group).intersection(said)) > len(group) // 2


def _shortened(names: set[str]) -> str:
    shown = [_short(name) for name in sorted(names)[:_LISTED_MAX]]
    return ", ".join(shown) + f" and {len(names) - _LISTED_MAX} more" * (len(names) > _LISTED_MAX)


def _short(name: str) -> str:
    return name[:_NAME_CHARS_MAX] or "a node without an address"


_PROBLEM_CHARS_MAX = 500


class Membership(Struct, array_like=True, frozen=True, tag=50):
    """The newest record that the sender knows."""

    record: Record


class Standing(Struct, array_like=True, frozen=True, tag=51):
    """How far the sender is with the change that is under way in its epoch."""

    epoch: int
    is_caught_up: bool  # See `epochs.is_ready`.
    is_voting: bool  # Whether its directory votes in the register.
    keys: list[str] = []  # The keys of the register that it knows, if it votes.
    problem: str = ""  # Why it cannot take part, for people.
    voted: Record | None = None  # The record of a later epoch that it has voted for, and was not told of yet.
    is_unaware: bool = False  # Whether its directory never had a part in any epoch: it cannot know of a later record.


Notice = Membership | Standing


def check_notice(notice: Notice) -> None:
    """Check what the types leave open.

    Raises:
        InvalidValue: a count, an address or an id is impossible.
    """
    match notice:
        case Membership(record):
            epochs.check(record)
        case Standing(epoch, _, _, keys, problem, voted, _):
            if voted is not None:
                epochs.check(voted)
            if not 0 <= epoch < 1 << 62 or len(keys) > SLOTS_MAX or len(problem) > _PROBLEM_CHARS_MAX:
                raise InvalidValue("a peer's message about members has an impossible field. Nothing was written.")


FOUND_MAX = 64
"""Nodes that are remembered; further ones are left out."""

PLACEHOLDER = "not-found-yet-"
"""How the addresses begin that stand for members which nobody has found yet; such a name cannot be resolved."""


class FirstMembers(Struct, array_like=True, frozen=True):
    """The list that a node has confirmed, as its disk holds it."""

    members: tuple[str, ...]  # Sorted.
    is_agreed: bool = False


class Founder:
    """Of the node `own`, for a cluster of `size` members. `confirmed` is what its disk holds."""

    def __init__(self, own: str, size: int, confirmed: FirstMembers | None = None) -> None:
        self._own = own
        self._size = size
        self.confirmed = confirmed
        self._lists: dict[str, tuple[str, ...]] = {}  # By node: the list that it has confirmed, or none.

    def heard(self, peers: Iterable[Identity]) -> None:
        """These nodes were found now, and told what they have confirmed, which holds for ever."""
        self._lists = {name: members for name, members in self._lists.items() if members}
        for peer in peers:
            if len(self._lists) < FOUND_MAX and peer.name != self._own:
                self._lists[peer.name] = tuple(sorted(peer.members))

    @property
    def proposal(self) -> tuple[str, ...] | None:
        """The list to confirm now; None if there is none, or one was confirmed before."""
        if self.confirmed is not None:
            return None
        lists = {members for members in self._lists.values() if self._own in members and len(members) == self._size}
        if lists:
            return min(lists)
        found = {self._own, *self._lists}
        is_free = not any(self._lists.values())
        return tuple(sorted(found)) if is_free and len(found) == self._size else None

    @property
    def is_agreed(self) -> bool:
        """Whether all members have confirmed the list that this node has."""
        if self.confirmed is None:
            return False
        if self.confirmed.is_agreed:
            return True
        members = self.confirmed.members
        return all(self._lists.get(name) == members for name in members if name != self._own)

    @property
    def joins(self) -> tuple[str, ...] | None:
        """The members of a cluster that is founded, of which this node is none; None if there is no such cluster."""
        if self.confirmed is not None:
            return None
        lists = {members for members in self._lists.values() if members and self._own not in members}
        return next((members for members in sorted(lists) if all(self._lists.get(name) == members for name in members)), None)

    @property
    def told(self) -> str:
        """For people: what is missing."""
        if self.confirmed is None:
            found = sorted({self._own, *self._lists})
            few = f"the seeds lead to {len(found)} of {self._size} nodes ({_listed(found)})"
            many = "; take the surplus away from the seeds, or set cluster_size to their number" * (len(found) > self._size)
            return few + many
        missing = [name for name in self.confirmed.members if self._lists.get(name) != self.confirmed.members]
        waiting = [name for name in missing if name != self._own]
        return (
            f"{_listed(waiting)} has not confirmed the members {_listed(self.confirmed.members)} yet. If one of these is gone "
            "for good, start the others with the list of members as SHOAL_JOIN, without SHOAL_CLUSTER_SIZE"
        )


def encode(founding: FirstMembers) -> bytes:
    """As it is stored."""
    return msgspec.msgpack.encode(founding)


def decode(packed: bytes) -> FirstMembers:
    """
    Raises:
        InvalidValue: it is damaged.
    """
    try:
        return msgspec.msgpack.decode(packed, type=FirstMembers)
    except msgspec.DecodeError as error:
        raise InvalidValue(f"the stored list of members is damaged ({error}).") from None


def placeholders(size: int) -> list[str]:
    """Addresses for the other members as long as they are not known."""
    return [f"{PLACEHOLDER}{number}:1" for number in range(1, size)]


def is_placeholder(address: str) -> bool:
    """Whether an address stands for a member that nobody has found yet."""
    return address.startswith(PLACEHOLDER)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


MET_MAX = 64  # Directories that a node refused because another one has their place.
_EPOCHS = 1 << 62


class Inquiry(Struct, array_like=True, frozen=True, tag=52):
    """Asks what the receiver holds; answered by a `Report`. If it names an epoch, the receiver votes no more before that."""

    id: bytes
    epoch: int = 0


class Report(Struct, array_like=True, frozen=True, tag=53):
    """The holdings of the sender's directory."""

    id: bytes  # Of the inquiry.
    epoch: int  # For which the sender is halted; 0: it is not.
    record: Record  # The newest that it knows, of epoch 0 if it knows none.
    remains: Remains
    is_learner: bool
    operations: int  # How many it holds durably.
    ahead: dict[str, int]  # By address: operations that a member was known to hold, and the sender does not.
    away_ms: dict[str, int]  # By address: how long there has been no link to a member, as far as the sender saw.
    met: list[bytes] = []  # Directories that it refused because another one has their place.


class Founding(Struct, array_like=True, frozen=True, tag=54):
    """The record and the register from which all survivors go on; answered by `Founded`."""

    id: bytes
    record: Record
    foundation: Foundation


class Founded(Struct, array_like=True, frozen=True, tag=55):
    """The sender has the founding on disk, or says why it does not take it."""

    id: bytes
    refusal: str = ""


RebuildNotice = Inquiry | Report | Founding | Founded


def check_rebuild(notice: RebuildNotice) -> None:
    """Check what the types leave open.

    Raises:
        InvalidValue: a count, an address or an id is impossible.
    """
    is_sound = len(notice.id) == ID_BYTES
    match notice:
        case Inquiry(_, epoch):
            is_sound &= 0 <= epoch < _EPOCHS
        case Report():
            is_sound &= 0 <= notice.epoch < _EPOCHS and notice.operations >= 0 and len(notice.met) <= MET_MAX
            is_sound &= max(len(notice.ahead), len(notice.away_ms)) <= 2 * epochs.MEMBERS_MAX
            epochs.check(notice.record, founded=True)
            rebuilding.check(notice.remains)
            remains = notice.remains
            check_motion(
                Answer(remains.term, remains.state, False, remains.directory, remains.term, remains.terms, remains.slots)
            )
        case Founding(_, record, foundation):
            epochs.check(record)
            check_motion(Known(foundation.terms))
            is_sound &= set(foundation.terms) == set(record.members) and notice.id == foundation.id
            for some in list(foundation.terms.values())[:1]:  # There is none in a message that is not sound.
                check_motion(Answer(some, "voting", True, b"", some, {}, foundation.slots))
    if not is_sound:
        raise InvalidValue("a peer's message about a rebuild has an impossible field. Nothing was written.")


def newest(reports: Mapping[str, Report], *, own: str) -> Record:
    """The newest record that a survivor knows, or has voted for: a copy has given up the one that its original knew.

    `own` is the address of the node that asks. What others say counts if it can follow from what that one knows.
    """
    known = _newest_of(reports[own])
    told = [record for record in map(_newest_of, reports.values()) if record == known or epochs.follows(known, record)]
    return max(told, key=lambda record: record.epoch)


def _newest_of(report: Report) -> Record:
    voted = [value.content for key, _, _, value in report.remains.slots if key == epochs.KEY and value.version]
    records = [report.record]
    for content in voted:
        with suppress(InvalidValue):
            records.append(epochs.decode(content))
    return max(records, key=lambda record: record.epoch)


def why_refused(founding: Founding, own: str, remains: Remains, reached: Collection[str]) -> str:
    """Why a survivor at this address does not take a founding, for people; empty if it does. `reached` are the members of
    its epoch that it has a link to."""
    record, versions = founding.record, {key: value.version for key, _, _, value in founding.foundation.slots}
    if record.directories.get(own) != remains.directory or own not in record.members:
        return f"{own} is no member in it"
    if left_out := sorted(set(reached) - set(record.members)):
        return f"it leaves {', '.join(left_out)} out, which can be reached"
    behind = [key for key, _, _, value in remains.slots if value.version and versions.get(key, 0) <= value.version]
    return f"it lacks what {own} has of {behind[0]!r}" if behind else ""


def survivors(record: Record, reports: Mapping[str, Report]) -> dict[str, Report]:
    """The reports of members, by address: those that a rebuild keeps."""
    members = set(record.electorate.members)
    return {address: report for address, report in sorted(reports.items()) if address in members}


def has_quorum(record: Record, reports: Mapping[str, Report]) -> bool:
    """Whether those that vote are enough, so that there is nothing to rebuild."""
    voting = [address for address, report in reports.items() if report.remains.state == "voting"]
    return Electorate(record.electorate.groups).decides(voting)


def plan_of(record: Record, reports: Mapping[str, Report]) -> str:
    """Names what is kept and what is given up: what an operator was shown is what is done."""
    kept = [(address, report.remains.directory.hex()) for address, report in sorted(reports.items())]
    return sha256(msgspec.json.encode((record.epoch, record.electorate.members, kept))).hexdigest()[:16]
