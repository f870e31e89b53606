"""The newest record of the members that this node knows, durably, and what this node may do in that epoch.

Laws:
- A record is adopted once it is durable; epochs only grow. From then on everything that this node sends names the new epoch.
- Of a member that names a newer epoch nothing is counted until this node has its record (`ahead`); nothing of anybody while
  a newer record is being written.
- A node writes nothing from the moment in which it writes down that it is joining, leaving or removed: what it
  issued before is durable when it adopts the record.
- A node joins with an empty directory: it brings nothing that the members have not. So an empty directory takes no operations
  before it knows that it has a part in the epoch in which they were sent. None is taken while a node waits to be added, nor
  by a removed one.
- A member's word that this node is none bars it: if the member is in a later epoch, or if no member ever admitted this
  directory, empty or not. The word is kept on disk until a member of that epoch, or a later one, takes links of this node.
- Until the first change there is no record: the configured list is epoch 0.

Which keys of certificates speak for which members.

Laws:
- A key speaks for each address under which a peer was admitted with it. That is on disk, in each node.
- A key that speaks for other addresses alone is refused at an address for which another key speaks, and at this node's own.
- A key all of whose addresses were removed from the members is refused under every address, until one of these is added again.
- A key that was never seen is taken: certificates are renewed, and only the CA makes them.
- Without TLS there are no keys. Then a peer proves that it has the cluster's key, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import Struct, msgpack

from shoal.cluster.consensus.ballots import Value
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import MEMBERS_MAX, Record, Removal
from shoal.cluster.peering import Identity
from shoal.crdt.rows import successor
from shoal.errors import InvalidValue, NotAMember, PeerRefused, ShoalError, StoreCorrupt
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.context import NodeContext
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage

_ROW = keys.meta("members")
_REFUSED = keys.meta("refused")

T = TypeVar("T")


class Refusal(Struct, array_like=True, frozen=True):
    """The refusal of a member to a node whose links it does not take."""

    epoch: int  # Of that member.
    is_removed: bool  # Whether this directory was removed, or was never added.
    told: str = ""


def readable(decode: Callable[[bytes], T], stored: bytes) -> T:
    """The content of a row about the members: without it this node cannot know whether it is one.

    Raises:
        StoreCorrupt: the row is damaged.
    """
    try:
        return decode(stored)
    except InvalidValue as error:
        raise StoreCorrupt(
            f"{error.message.removesuffix(' Nothing was written.')} Nothing was changed. Move the directory aside, and start "
            "with an empty one: the peers have the data."
        ) from None


class Roster:
    """`configured` are the addresses of the configured list, this node's own first. `is_empty`: is the directory?"""

    def __init__(self, context: NodeContext, *, configured: Sequence[str], is_empty: Callable[[], bool]) -> None:
        self._commit = context.commit
        self._incarnation = context.incarnation
        self._is_empty = is_empty
        self.own = configured[0]
        self._storage = context.storage
        stored = self.kept(_ROW)
        self.record = epochs.founded(configured) if stored is None else readable(epochs.decode, stored)
        self.problem = ""
        """Why this node cannot take part in the newest epoch that it has heard of, for people."""
        self._adopted: Callable[[Record], None] = lambda before: None
        self._heard = self.record.epoch  # The newest epoch that most members, or votes, say there is.
        self._ahead: dict[str, int] = {}  # By address: the newer epoch that a member names.
        self._written: tuple[int, Record] | None = None  # The write of a newer record that is not durable yet.
        self._beside: Callable[[], None] | None = None  # Called once what was written beside it is durable, too.
        refusal = self.kept(_REFUSED)
        self._refusal = None if refusal is None else readable(_refusal_of, refusal)
        """The word of the member in the newest epoch that said that this node is none."""
        is_removed = self._refusal is not None and self._refusal.is_removed
        self._founds = self.record == epochs.founded([self.own]) and not is_removed
        """Whether this node begins a cluster of its own: what another cluster said of it does not count any more."""
        if self._founds:
            self._refusal = None
        self._entered = asyncio.Event()
        self._bar()

    def report_to(self, adopted: Callable[[Record], None]) -> None:
        """From now on `adopted` is called after a new record took the place of the one that it gets."""
        self._adopted = adopted

    def introduction(self) -> dict[bytes, bytes | None]:
        """The rows to write before anything else: a copied directory gives up its record, which may be of another cluster.

        So does one that begins a cluster of its own give up what members of another one said.
        """
        if self._incarnation.copied:
            return {_ROW: None, _REFUSED: None}
        return {_REFUSED: None} if self._founds and self._storage.get(_REFUSED) is not None else {}

    def kept(self, row: bytes) -> bytes | None:
        """The decision about the members that the disk holds. That of a copied directory may be of another cluster."""
        return None if self._incarnation.copied else self._storage.get(row)

    async def keep(self, row: bytes, value: bytes) -> None:
        """Write a decision, and return once it is durable.

        Raises:
            ReadOnly, StorageFull: storage failed before, or now.
        """
        await self._commit.wait_durable(self._commit.write({row: value}))

    def found(self, members: Sequence[str]) -> None:
        """The members of epoch 0 were found by seeds, and are agreed on."""
        before, self.record = self.record, epochs.founded(members)
        self._adopted(before)

    @property
    def directory(self) -> bytes:
        """The id of this directory."""
        return self._incarnation.node

    @property
    def originals(self) -> tuple[bytes, ...]:
        """The ids of the directories of which this one is a copy."""
        return self._incarnation.originals

    @property
    def epoch(self) -> int:
        """The epoch of the record."""
        return self.record.epoch

    @property
    def is_current(self) -> bool:
        """Whether this node has heard of no newer epoch."""
        return self.is_settled and not self._ahead

    @property
    def is_settled(self) -> bool:
        """Whether no newer record is being written, and none was refused."""
        return self._heard == self.record.epoch

    @property
    def ahead(self) -> frozenset[str]:
        """The members that name a newer epoch. What they hold in it may be less than what was acknowledged in this one."""
        return frozenset(self._ahead)

    @property
    def is_admissible(self) -> bool:
        """Whether this node may become an owner in its epoch: no member says that it has no part in that, or in a later one."""
        return self.is_current and self._refusal is None and self._state(self.record) != "removed"

    @property
    def is_member(self) -> bool:
        """Whether this directory is a member, be it leaving."""
        return self._state(self.record) in ("member", "leaving")

    @property
    def outside(self) -> str:
        """Why this node is no member, as its record or a member says, for people; empty if it is."""
        return self._incarnation.barred if self._incarnation.outside else ""

    @property
    def waits(self) -> bool:
        """Whether this node waits to be added: it is configured with members, and one of them says that it is none."""
        return self._refusal is not None and not self._refusal.is_removed

    @property
    def is_removed(self) -> bool:
        """Whether this directory was removed from its cluster, as its record or a member says."""
        return self._state(self.record) == "removed" or (self._refusal is not None and self._refusal.is_removed)

    def removal_of(self, directory: bytes, originals: Collection[bytes] = ()) -> Removal | None:
        """As `Record.removal_of`, from the moment in which this node writes down a record that says so.

        What it applied before is durable when it adopts that record.
        """
        newest = self.record if self._written is None else self._written[1]
        return newest.removal_of(directory, originals)

    async def reach(self, epoch: int) -> None:
        """Return once this node is in that epoch, or in a later one."""
        while self.record.epoch < epoch:
            await self._entered.wait()

    def takes(self, epoch: int) -> bool:
        """Whether this node takes operations that a peer sent in this epoch."""
        is_out = self._state(self.record) == "removed" or self._refusal is not None
        return not is_out and not (epoch > self.epoch and self.is_new)

    def heard(self, address: str, epoch: int) -> None:
        """The node at this address says that it is in this epoch. If that is not so, it costs nobody's voice but its own."""
        if epoch > self.record.epoch and address in self.record.everyone:
            self._ahead[address] = max(epoch, self._ahead.get(address, 0))

    def refused(self, told: str, *, is_removed: bool, by: Identity | None) -> None:
        """A node says that this one is no member: it was removed, or was not added yet. `by` is that node, if it is proven."""
        epoch = 0 if by is None else by.epoch
        # Of two rebuilt clusters, each of which removed the other, the later one goes on.
        counts = (
            (self.is_member and epoch > self.epoch) if is_removed else self.is_new or (by is not None and self._is_heeded(by))
        )
        if counts:
            self._heed(Refusal(epoch, is_removed, told.partition(". ")[0] if is_removed else ""))

    def _is_heeded(self, by: Identity) -> bool:
        """Whether a node with data heeds the word of that one that it is no member.

        One that is being added may be of another cluster. And if a member's peers are configured with another list of the
        same epoch, it goes on: only their operator knows which list is right.
        """
        is_fellow = by.name in self.record.members and self.record.directories.get(by.name, by.node) == by.node
        is_unknown = self._incarnation.learner or not self._incarnation.had_fellows
        return is_fellow and (by.epoch > self.epoch or (by.epoch == self.epoch and is_unknown))

    def accepted(self, epoch: int) -> None:
        """A node in this epoch takes links of this one, so it is a member, as far as that node knows.

        A node with an empty directory may know no more than this one: what a node in a later epoch said counts.
        """
        if self._refusal is not None and epoch >= self._refusal.epoch:
            self._refusal = None
            self._write_refusal()
            self._bar()

    def _heed(self, refusal: Refusal) -> None:
        known = (-1, False) if self._refusal is None else (self._refusal.epoch, self._refusal.is_removed)
        if (refusal.epoch, refusal.is_removed) > known:
            self._refusal = refusal
            self._write_refusal()
            self._bar()

    def _write_refusal(self) -> None:
        with suppress(ShoalError):  # It is told again.
            self._commit.write({_REFUSED: None if self._refusal is None else msgspec.msgpack.encode(self._refusal)})

    def learn(self, record: Record) -> None:
        """Adopt a record that the register has chosen, once it is durable, if it is newer."""
        self._heard = max(self._heard, record.epoch)
        if record.epoch <= max(self.record.epoch, 0 if self._written is None else self._written[1].epoch):
            return
        if self._state(record) == "joining" and self._state(self.record) != "joining" and not self._is_empty():
            self.problem = f"{self.own} holds data from before, and a node joins with an empty directory. {_ASIDE}"
            return
        if self._state(record) == "removed" and self.is_new:
            # Its address was a member's. Members that it does not know yet may add it.
            self._heed(Refusal(record.epoch, is_removed=False))
            return
        if barred := self._barred(record):
            self._incarnation.bar(barred, outside=self._state(record) == "removed")
        with suppress(ShoalError):  # It is told again.
            self._written, self._beside = (self._commit.write({_ROW: epochs.encode(record)}), record), None

    def fits(self, key: str, value: Value) -> bool:
        """Whether a value of the register can be one, in this epoch: the present record, or a step from it."""
        if key != epochs.KEY:
            return True
        if not value.version:
            return self.record.epoch == 0
        try:
            told = epochs.decode(value.content)
        except InvalidValue:
            return False
        return value.version == told.epoch and (told == self.record or epochs.is_step(self.record, told))

    def rebuilt(self, record: Record, rows: Mapping[bytes, bytes | None], *, then: Callable[[], None]) -> None:
        """Adopt the record of a rebuild in which this directory is a survivor, once it is durable together with these rows.

        Raises:
            ReadOnly, StorageFull: storage failed.
            NotAMember: a newer record is known here.
        """
        newest = self.record if self._written is None else self._written[1]
        if record.epoch <= newest.epoch:
            raise NotAMember(f"this node is in epoch {newest.epoch} by now. Nothing was written. Look again.")
        self._heard = max(self._heard, record.epoch)
        self._written = self._commit.write({_ROW: epochs.encode(record), **rows}), record
        self._beside = then

    def durable(self, number: int) -> None:
        """All writes up to this number are durable: adopt the record that is among them."""
        if self._written is None or self._written[0] > number:
            return
        record, self._written = self._written[1], None
        beside, self._beside = self._beside, None
        before, self.record, self.problem = self.record, record, ""
        self._ahead = {at: epoch for at, epoch in self._ahead.items() if at in record.everyone and epoch > record.epoch}
        if self._refusal is not None and record.epoch >= self._refusal.epoch:
            self._refusal = None
            self._write_refusal()
        self._bar()
        change = "" if record.change is None else record.change.told
        log(events.MEMBERS_ENTERED, epoch=record.epoch, members=record.members, change=change)
        self._entered.set()
        self._entered = asyncio.Event()
        self._adopted(before)
        if beside is not None:
            beside()

    @property
    def is_new(self) -> bool:
        """Whether this directory is empty and has had no part in any epoch that was changed."""
        return self.record.epoch == 0 and self._is_empty()

    @property
    def is_unaware(self) -> bool:
        """Whether this directory never had a part in any epoch, as far as it knows: it is new, or a copy, and was not admitted.

        One that a peer says was set back is none: a lie would take its word.
        """
        return self.record.epoch == 0 and self._incarnation.learner and not self._incarnation.told_by

    def _bar(self) -> None:
        """Forbid this node to write, or to serve, as the record and what members said have it."""
        refusal = self._refusal
        if refusal is None:
            self._incarnation.bar(self._barred(self.record), outside=self._state(self.record) == "removed")
        elif refusal.is_removed:
            self._incarnation.bar(f"it was removed from its cluster, as a member says: {refusal.told}. {_LEFT}", outside=True)
        elif self._is_empty():
            told = f"it is no member of the cluster yet. `shoal cluster add {self.own}`, asked of a member, adds it"
            self._incarnation.bar(told, outside=True)
        else:
            told = f"it is no member of the cluster, and holds data, which would not be added with it. {_ASIDE}"
            self._incarnation.bar(told, outside=True)

    def _state(self, record: Record) -> str:
        if record.removal_of(self._incarnation.node) is not None:
            return "removed"
        return record.state_of(self.own)

    def _barred(self, record: Record) -> str:
        """Why this node writes nothing in that epoch, for people; empty if it writes."""
        removal = record.removal_of(self._incarnation.node)
        change = record.change
        match self._state(record):
            case "removed" if removal is not None and removal.handed_over:
                return f"it was drained in epoch {removal.epoch}: the others hold all that it held. It can be stopped"
            case "removed" if removal is not None:
                return f"it was removed from its cluster in epoch {removal.epoch}. {_LEFT}"
            case "removed":
                return f"it is not a member of its cluster any more (epoch {record.epoch}). {_LEFT}"
            case "joining":
                return "it is being added to the cluster, and is fetching what the others hold"
            case "leaving" if change is not None and change.is_joint:
                return f"it leaves the cluster: `shoal cluster {change.told}` is under way"
        return ""


_LEFT = (
    "Data that only this directory holds is not in the cluster; once the node is stopped, `shoal cluster leftovers DIR` "
    "lists it. To use the node again, give it an empty directory and add it"
)

_ASIDE = (
    "Stop it, move its directory aside, and start it with an empty one; `shoal cluster leftovers DIR --issue` brings what only "
    "the old one holds into the cluster"
)


def _refusal_of(packed: bytes) -> Refusal:
    """
    Raises:
        InvalidValue: it is damaged.
    """
    try:
        return msgspec.msgpack.decode(packed, type=Refusal)
    except msgspec.DecodeError as error:
        raise InvalidValue(f"the stored word of a member is damaged ({error}).") from None


_PINNED = keys.meta("pinned/")  # Followed by the key's fingerprint₃₂; the value is msgpack of the addresses.
_PINS_MAX = 4096  # Keys. A peer with one more is admitted, and its key is not remembered.
_ADVICE = (
    "Nothing was written. If this node is to have that address, issue a certificate with a new key to it: `shoal tls node`."
)


class Pins:
    """The keys that peers have shown to this node."""

    def __init__(self, storage: Storage, commit: GroupCommit) -> None:
        self._commit = commit
        rows = storage.scan(_PINNED, successor(_PINNED))
        self._addresses = {key[len(_PINNED) :]: msgpack.decode(packed, type=list[str]) for key, packed in rows}

    def check(self, peer: Identity, gone: Collection[str], *, own: str) -> None:
        """Check that the key of a peer may speak for its address. Members at `gone` were removed; `own` is this node.

        Raises:
            PeerRefused: it may not.
        """
        spoken = self._addresses.get(peer.key)
        if not peer.key or spoken is None:
            return
        named = " and ".join(spoken)
        if set(spoken).issubset(gone):
            raise PeerRefused(
                f"the peer at {peer.name} shows the key of {named}, which was removed from the members. {_ADVICE}",
                reason="certificate",
            )
        if peer.name not in spoken and (peer.name == own or any(peer.name in each for each in self._addresses.values())):
            raise PeerRefused(
                f"the peer that claims to be {peer.name} shows the key of {named}. {_ADVICE}", reason="certificate"
            )

    def admitted(self, peer: Identity) -> None:
        """Remember the key of a peer that is admitted.

        Raises:
            ReadOnly, StorageFull: storage failed before, or now.
        """
        spoken = self._addresses.get(peer.key, [])
        if not peer.key or peer.name in spoken or len(spoken) >= MEMBERS_MAX or len(self._addresses) >= _PINS_MAX:
            return
        self._commit.write({_PINNED + peer.key: msgpack.encode([*spoken, peer.name])})
        self._addresses[peer.key] = [*spoken, peer.name]
