"""The members of a cluster in epochs: which changes are allowed, which votes decide, and when a change may go on.

    founded · begin · advance · cancel · rebuilt   →   the record of the next epoch
    is_step · follows                              →   whether a record that a peer tells can be one

Laws:
- One change is under way at a time, and each step of it is an epoch of its own. A change is *prepared* while the old list
  decides alone and the joining node catches up. Then it is *joint*: both lists decide. Then the new list decides alone.
- Each group that decides in one epoch shares a member with whatever decides in the next one. So of two lists that do not
  intersect, both never decide: a step is decided by those of the epoch before it, which then know the new epoch.
- The record of epoch e is version e of the key `members` of the quorum register. Epoch 0 is the configured list, and has
  no record.
- A joining node is a learner until the change is joint: it counts in no majority.
- A record that is no step from the present one is never voted for (`is_step`): a step changes one member at most, and numbers
  the epochs one by one.
- A rebuild leaves the epochs out that the lost members may have made, and is decided by the survivors alone. Everybody else
  is barred by its later epoch.

The lists are of addresses: a member whose disk is replaced stays a member. A directory that was removed is refused by its id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from shoal.cluster.consensus.ballots import Electorate
from shoal.errors import ChangeUnderWay, InvalidInput, InvalidValue
from shoal.records import NamedTuple

KEY = "members"
"""The key of the register that holds the record."""

MEMBERS_MAX = 64
ADDRESS_CHARS_MAX = 255
REMOVED_MAX = 64
"""The removed directories that a record names; the oldest are dropped."""

REBUILD_AHEAD = 1_000_000
"""A rebuild's epoch is the next multiple of this, and a random part: people make no million changes, and of two rebuilds by
survivors that cannot hear each other the later one bars the other."""

Kind = Literal["add", "drain", "replace", "forget"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Change(Struct, array_like=True, frozen=True):
    """A change that is under way."""

    kind: Kind
    joins: str  # An address; empty: no node joins.
    leaves: str  # An address; empty: no node leaves.
    is_joint: bool = False  # Else it is being prepared.
    hands_over: bool = False  # Whether the leaving node is up, so that the others must first hold all that it holds.

    @property
    def told(self) -> str:
        """For people: the command that began it."""
        return " ".join(filter(None, (self.kind, self.leaves, self.joins)))


class Removal(NamedTuple):
    """A directory that is no member any more."""

    address: str
    directory: bytes  # Its id; empty if no node knew it.
    epoch: int  # The first without it.
    handed_over: bool  # Whether the others hold all that it held.


class Record(Struct, array_like=True, frozen=True):
    """The members in one epoch."""

    epoch: int
    members: tuple[str, ...]  # Addresses, sorted. While a change is joint: the old list.
    directories: dict[str, bytes] = {}  # The ids of their directories, as far as they were known when the epoch began.
    change: Change | None = None
    removed: tuple[Removal, ...] = ()  # The oldest first.

    @property
    def target(self) -> tuple[str, ...]:
        """The list after the change that is under way; the present one if there is none."""
        if self.change is None:
            return self.members
        return tuple(sorted({*self.members, self.change.joins} - {self.change.leaves, ""}))

    @property
    def electorate(self) -> Electorate:
        """The lists of which each needs a majority."""
        lists = (self.members, self.target) if self.change is not None and self.change.is_joint else (self.members,)
        return Electorate(tuple(map(frozenset, lists)))

    @property
    def everyone(self) -> tuple[str, ...]:
        """All nodes that take part: members of both lists, and a node that joins."""
        return tuple(sorted({*self.members, *self.target}))

    def removal_of(self, directory: bytes, originals: Collection[bytes] = ()) -> Removal | None:
        """How a directory was removed, or one of those of which it is a copy; None if none was, as far as the record says.

        A copy that the record names as a member's directory is one.
        """
        gone = {directory} if directory in self.directories.values() else {directory, *originals}
        return next((removal for removal in reversed(self.removed) if removal.directory and removal.directory in gone), None)

    def state_of(self, address: str) -> Literal["member", "joining", "leaving", "removed"]:
        """The part that the node at an address has in this epoch."""
        if address not in self.everyone:
            return "removed"
        if self.change is not None and address == self.change.leaves:
            return "leaving"
        return "member" if address in self.members else "joining"


def founded(addresses: Iterable[str]) -> Record:
    """Epoch 0: the configured list."""
    return Record(0, tuple(sorted(set(addresses))))


# ── changes ───────────────────────────────────────────────────────────────────


def begin(
    record: Record, kind: Kind, *, joins: str = "", leaves: str = "", directories: Mapping[str, bytes], hands_over: bool = False
) -> Record:
    """The record that begins a change; the same record if this very change is under way.

    Raises:
        ChangeUnderWay: another change is.
        InvalidInput: the change is impossible.
    """
    change = Change(kind, joins, leaves, hands_over=hands_over)
    if record.change is not None:
        if record.change.told == change.told:
            return record
        raise _under_way(record.change)
    _check(record, change)
    return _next(record, change=change, directories=directories)


def advance(record: Record, *, directories: Mapping[str, bytes]) -> Record:
    """The record of the next step of the change that is under way. Call it only if `is_ready` says so."""
    change = record.change
    assert change is not None, "a change is under way"
    if not change.is_joint:
        return _next(record, change=msgspec.structs.replace(change, is_joint=True), directories=directories)
    removed = list(record.removed)
    if change.leaves:
        directory = record.directories.get(change.leaves) or directories.get(change.leaves, b"")
        removed.append(Removal(change.leaves, directory, record.epoch + 1, change.hands_over))
    return _next(record, members=record.target, change=None, removed=removed, directories=directories)


def cancel(record: Record, *, directories: Mapping[str, bytes]) -> Record:
    """The record in which the change that is under way is taken back.

    That is safe in every step: what a joint majority acknowledged is on a majority of the old list.

    Raises:
        InvalidInput: no change is under way.
    """
    if record.change is None:
        raise InvalidInput("no change of the members is under way, so there is nothing to cancel. Nothing was written.")
    return _next(record, change=None, directories=directories)


def forget_directory(record: Record, directory: bytes, address: str, *, directories: Mapping[str, bytes]) -> Record:
    """The record from which on a directory is refused whose place at this address another one took: no member changes.

    Raises:
        ChangeUnderWay: a change of the members is.
    """
    if record.change is not None:
        raise _under_way(record.change)
    return _next(
        record,
        change=None,
        directories=directories,
        removed=[*record.removed, Removal(address, directory, record.epoch + 1, handed_over=False)],
    )


def rebuilt(record: Record, kept: Mapping[str, bytes], *, gone: Mapping[bytes, str], after: int, drawn: int) -> Record:
    """The record of the survivors `kept`, their directories by address, who go on alone.

    `gone` are the directories that are known to be no survivor's, with their addresses; `after` is an epoch that the new one
    must be later than; `drawn` is a random number.
    """
    epoch = (max(record.epoch, after) // REBUILD_AHEAD + 1) * REBUILD_AHEAD + drawn % REBUILD_AHEAD
    known = {removal.directory for removal in record.removed}
    removed = [
        *record.removed,
        *(
            Removal(address, directory, epoch, handed_over=False)
            for directory, address in sorted(gone.items(), key=lambda item: item[1])
            if directory not in known and directory not in kept.values()
        ),
    ]
    return Record(epoch, tuple(sorted(kept)), dict(sorted(kept.items())), None, tuple(removed[-REMOVED_MAX:]))


def is_ready(record: Record, *, caught_up: Collection[str], voting: Collection[str]) -> bool:
    """Whether the change that is under way may go on to its next step.

    `caught_up` are the nodes that say, in this epoch, that they are no learners and, if the change is joint, that they hold
    all that a majority of the old list (and a leaving node that hands over) reported in this epoch. `voting` are those that say
    in this epoch that they vote in the register.
    """
    change = record.change
    if change is None or not Electorate((frozenset(record.target),)).decides(caught_up):
        return False
    if change.is_joint:
        return record.electorate.decides(voting)
    return (not change.joins or change.joins in caught_up) and (not change.hands_over or change.leaves in caught_up)


def is_done(record: Record, kind: Kind, *, joins: str, leaves: str) -> bool:
    """Whether the newest record says that a node left as this change would have it leave, and that the node for it came.

    An `add` alone is never done: that a node is a member already is what its operator needs to be told. Nor is anything
    while a change is under way, for which one has to wait.
    """
    left = next((removal for removal in reversed(record.removed) if removal.address == leaves), None)
    if left is None or leaves in record.members or record.change is not None:
        return False
    return (left.handed_over or kind != "drain") and (not joins or joins in record.members)


def tells(later: Record, asked: Record) -> bool:
    """Whether this record tells that what `asked` begins was begun, by whoever; a record of a later epoch may not know.

    A node that was forgotten was not drained: the others may lack what it held. Of one step two proposers may know different
    directories.
    """
    change = asked.change
    if later.epoch <= asked.epoch or change is None:
        return msgspec.structs.replace(later, directories=asked.directories) == asked
    if later.change is not None:
        return later.change.told == change.told
    is_left = not change.leaves or any(
        removal.address == change.leaves and removal.epoch > asked.epoch and removal.handed_over >= change.hands_over
        for removal in later.removed
    )
    return is_left and (not change.joins or change.joins in later.members)


# ── what peers tell ───────────────────────────────────────────────────────────


def is_step(record: Record, later: Record) -> bool:
    """Whether an operator, or a member that goes on with a change, can have made this record from that one.

    The ids of directories are taken as they are: they are those that the proposer knew.
    """
    known, change, gone = later.directories, later.change, later.removed[-1:]
    made: list[Record] = []
    with suppress(ChangeUnderWay, InvalidInput):
        if record.change is not None:
            left = {each.address: each.directory for each in gone if each.address == record.change.leaves}
            left = left if record.change.is_joint else {}
            made = [cancel(record, directories=known), advance(record, directories=known | left)]
        elif change is not None:
            nodes = {"joins": change.joins, "leaves": change.leaves}
            made = [begin(record, change.kind, **nodes, directories=known, hands_over=change.hands_over)]
        else:
            made = [forget_directory(record, each.directory, each.address, directories=known) for each in gone]
    return later in made


def objection(record: Record, later: Record, present: Mapping[str, bytes]) -> str:
    """Why a member does not vote for a step, for people; empty if it does. `present` are the nodes that it reaches, itself
    included, by address: nobody has a node forgotten that is up."""
    begun = later.change if record.change is None else None
    if begun is not None and begun.leaves in present and not begun.hands_over:
        return f"{begun.leaves} is up"
    before = {removal.directory for removal in record.removed}
    if record.change is None:
        for removal in later.removed:
            if removal.directory not in before and removal.directory in present.values():
                return f"directory {removal.directory.hex()[:8]} is in use at {removal.address}"
            if removal.directory not in before and not present.keys() >= set(record.members):
                return "not all members can be reached, and a copy of a lost directory may be one's"
    return ""


def follows(record: Record, later: Record) -> bool:
    """Whether changes of one member at a time can have led to a later record, or a rebuild. A member that was away may ask no
    more: it does not know the records in between."""
    if later.epoch <= record.epoch:
        return False
    if later.epoch // REBUILD_AHEAD > record.epoch // REBUILD_AHEAD:
        return True
    steps = later.epoch - record.epoch
    before, after = set(record.everyone), set(later.everyone)
    named = {removal.address for removal in later.removed if removal.epoch > record.epoch}
    is_cut = len(later.removed) == REMOVED_MAX and later.removed[0].epoch > record.epoch
    is_named = is_cut or set(record.members) - after <= named
    # A change takes three steps, and a node joins with the first one, or leaves with the last one.
    return is_named and 3 * max(len(before - after), len(after - before)) <= steps + 2


def _under_way(change: Change) -> ChangeUnderWay:
    return ChangeUnderWay(
        f"`shoal cluster {change.told}` is under way, and one change is made at a time. Nothing was written. Wait "
        "until it is done (`shoal cluster members`), or take it back with `shoal cluster cancel`.",
        change=change.told,
    )


def _check(record: Record, change: Change) -> None:
    joins, leaves = change.joins, change.leaves
    why = ""
    if joins and not is_address(joins):
        why = f"{joins[:ADDRESS_CHARS_MAX]!r} is not an address HOST:PORT"
    elif joins and joins in record.members:
        why = f"{joins} is a member already"
    elif leaves and leaves not in record.members:
        why = f"{leaves[:ADDRESS_CHARS_MAX]!r} is not a member; the members are {', '.join(record.members)}"
    elif len(record.members) + bool(joins) > MEMBERS_MAX:
        why = f"a cluster has at most {MEMBERS_MAX} members"
    elif leaves and not joins and len(record.members) == 1:
        why = f"{leaves} is the last member"
    elif bool(joins) != (change.kind in ("add", "replace")) or bool(leaves) != (change.kind != "add"):
        why = f"{change.kind} names other nodes than these"
    if why:
        raise InvalidInput(f"`shoal cluster {change.told}` is impossible: {why}. Nothing was written.")


def _next(
    record: Record,
    *,
    change: Change | None,
    directories: Mapping[str, bytes],
    members: tuple[str, ...] | None = None,
    removed: Iterable[Removal] | None = None,
) -> Record:
    made = Record(
        record.epoch + 1,
        record.members if members is None else members,
        {},
        change,
        record.removed if removed is None else tuple(removed)[-REMOVED_MAX:],
    )
    gone = {removal.directory for removal in made.removed}
    known = {**record.directories, **{address: node for address, node in directories.items() if node}}
    known = {address: node for address, node in known.items() if node not in gone}
    return msgspec.structs.replace(made, directories={address: known[address] for address in made.everyone if address in known})


# ── bytes ─────────────────────────────────────────────────────────────────────

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """The record as the register, the disk and messages hold it."""
    return _encoder.encode(record)


def decode(packed: bytes) -> Record:
    """The record in these bytes.

    Raises:
        InvalidValue: they are no record.
    """
    try:
        record = _decoder.decode(packed)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
        raise InvalidValue(f"the record of the members is malformed ({error}). Nothing was written.") from None
    check(record)
    return record


def check(record: Record, *, founded: bool = False) -> None:
    """Check what the types leave open. With `founded` it may be that of epoch 0, which no register holds.

    Raises:
        InvalidValue: a count, an address or an id is impossible.
    """
    addresses = {*record.everyone, *record.directories}
    ids = [*record.directories.values(), *(removal.directory for removal in record.removed)]
    is_sound = (
        (0 if founded else 1) <= record.epoch < 1 << 62
        and 0 < len(record.members) <= MEMBERS_MAX
        and len(record.removed) <= REMOVED_MAX
    )
    is_sound = is_sound and len(addresses) <= 2 * MEMBERS_MAX and all(map(is_address, addresses))
    if not is_sound or not all(len(id) in (0, 16) for id in ids) or list(record.members) != sorted(set(record.members)):
        raise InvalidValue("the record of the members has an impossible field. Nothing was written.")


def is_address(address: str) -> bool:
    """Whether this is HOST:PORT."""
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= 65535
    return bool(colon and host) and is_port and len(address) <= ADDRESS_CHARS_MAX and "," not in address
