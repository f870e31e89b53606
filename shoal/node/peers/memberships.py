"""The node in its epoch: puts the record of the members, the register and the replication protocol together.

Laws:
- Everything that a node sends names its epoch. If a message names a newer one, nothing of its sender counts until this node
  has that record; if it names an older one, its sender is told the record.
- The word of a message on the register, or of a change that is joint, counts only if its sender was in this node's epoch.
- A node that another one, in a later epoch, refuses because it is no member votes no more: that epoch is decided without it.
- A node that waits to be added asks all members that a member has ever named, and takes links of these: those that it
  is configured with may leave before it is added. They count in nothing until it is in the epoch that adds it.
- A node that joins is heard in the epoch in which it does. In another one its directory may hold anything: in an older one it
  has not said that it is empty, and in a newer one the change may have been taken back for that reason.

Finds the first members of the cluster by seeds, for a node that is configured with these and with their number.

Law: until the members are agreed on, the node reads and writes what it owns; every majority is counted over the configured
number, so nothing that needs one can be had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import filterfalse

from shoal import __version__
from shoal.cluster.handshake import OPENING_BYTES
from shoal.cluster.membership import notices as founding
from shoal.cluster.membership.epochs import Record
from shoal.cluster.membership.notices import FirstMembers as Founding
from shoal.cluster.membership.notices import Founder, Membership, Notice, RebuildNotice, Standing, is_placeholder
from shoal.cluster.peering import Identity
from shoal.cluster.replication import Replication
from shoal.errors import PeerRefused
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.consensus.quorum_register import QuorumRegister
from shoal.node.context import NodeContext
from shoal.node.membership import views
from shoal.node.membership.changes import MEMBERS_TELL_S, Changes, Sight
from shoal.node.membership.rebuilding import Rebuilding
from shoal.node.membership.roster import Roster, readable
from shoal.node.peers.members import Members
from shoal.node.peers.replica import Outlets
from shoal.protocol.requests import ChangeMembers, MembersView, Rebuild, RebuildView
from shoal.storage import keys

_ROW = keys.meta("founding")
_ASKS_AGAIN = 3  # A node that does not ask for a link for so many of the longest delays is gone.


class Seeding:
    """`size` is the configured number of members."""

    def __init__(self, roster: Roster, *, size: int) -> None:
        self._roster = roster
        stored = roster.kept(_ROW)
        self._founder = Founder(roster.own, size, None if stored is None else readable(founding.decode, stored))
        self.is_over = False
        self._settle()

    @property
    def members(self) -> tuple[str, ...]:
        """The members that this node reports to others: the list that it has confirmed, or none."""
        return () if self._founder.confirmed is None else self._founder.confirmed.members

    @property
    def told(self) -> str:
        """For people: what is missing."""
        return "" if self.is_over else self._founder.told

    async def heard(self, peers: list[Identity]) -> None:
        """Nodes were found by the seeds, and told what they have confirmed.

        Raises:
            ReadOnly, StorageFull: a decision could not be written.
        """
        self._founder.heard(peers)
        proposal = self._founder.proposal
        if proposal is not None:
            await self._confirm(Founding(proposal))
        if self._founder.is_agreed and not self.is_over:
            assert self._founder.confirmed is not None
            await self._confirm(Founding(self._founder.confirmed.members, is_agreed=True))
        self._settle()

    async def _confirm(self, confirmed: Founding) -> None:
        await self._roster.keep(_ROW, founding.encode(confirmed))
        self._founder.confirmed = confirmed

    def _settle(self) -> None:
        confirmed, joins = self._founder.confirmed, self._founder.joins
        if self.is_over or self._roster.epoch:
            self.is_over = True
        elif confirmed is not None and confirmed.is_agreed:
            self._begin(confirmed.members)
        elif joins is not None:
            self._begin((*joins, self._roster.own))  # As if they were configured: they refuse it until it is added.

    def _begin(self, members: tuple[str, ...]) -> None:
        self.is_over = True
        log(events.MEMBERS_FOUND, members=members)
        self._roster.found(members)


_FAREWELL = 2  # How long a node that was removed stays linked, to learn of it, in intervals of `MEMBERS_TELL_S`.


class Memberships:
    """`entered` is called after each change of epoch, with the nodes that do not take part any more."""

    def __init__(
        self,
        context: NodeContext,
        members: Members,
        register: QuorumRegister,
        *,
        protocol: Replication,
        outlets: Outlets,
        sight: Sight,
        entered: Callable[[list[bytes]], None],
    ) -> None:
        roster = self._roster = members.roster
        self._members = members
        self._register = register
        self._protocol = protocol
        self._outlets = outlets
        self._config = context.config
        self._now = context.environment.monotonic
        self._heard: dict[str, bytes] = {}  # Member → the node that was last admitted under this address.
        self._runs: dict[bytes, bytes] = {}  # Node → the start of it that was last admitted.
        self.run = context.environment.entropy(OPENING_BYTES)
        """Names this start of the node, in handshakes."""
        self._entered = entered
        self._second: dict[str, tuple[str, float]] = {}
        """By address: why a member takes this node for a clone, and when it said so."""
        self._farewell: float | None = None  # When the links to nodes that were removed end.
        self._all_linked: float | None = None  # Since when all configured members are, while the register is not founded.
        self._dial: Callable[[list[str]], None] = lambda addresses: None
        self.changes = Changes(context, roster, register, sight)
        self.rebuilding = Rebuilding(context, roster, register, sight)
        roster.report_to(self._adopted)  # The next line may already agree on the first members.
        self.seeding = Seeding(roster, size=context.config.cluster_size) if context.config.cluster_size else None
        """Finds the first members, if the configuration has seeds."""
        if roster.record.change is not None and roster.record.change.is_joint:
            protocol.enter_epoch(is_joint=True)

    @property
    def trouble(self) -> str:
        """Why a register without a quorum does not go on by itself (`Company.trouble`)."""
        return self.rebuilding.trouble

    @property
    def addresses(self) -> list[str]:
        """The addresses to keep links to."""
        return [address for address in self._members.dialled if not is_placeholder(address)]

    # ── what operators ask for ────────────────────────────────────────────────

    @property
    def second(self) -> str:
        """Why all others refuse this node as a second one at its address (`Company.second`)."""
        since = self._now() - _ASKS_AGAIN * self._config.reconnect_delay_s_max
        told = {address: why for address, (why, at) in self._second.items() if at >= since}
        others = [state.address for state in self._members.all]
        return next(iter(told.values())) if others and all(address in told for address in others) else ""

    def members(self) -> MembersView:
        """The members as this node knows them (`Company.members`)."""
        return views.view(self._roster, self.changes, self._members.reached)

    async def change(self, request: ChangeMembers, /) -> MembersView:
        """Begin a change of the members, or take one back (`Company.change`)."""
        if request.change == "cancel":
            await self.changes.cancel()
        else:
            await self.changes.change(request.change, joins=request.joins, leaves=request.leaves)
        return self.members()

    async def rebuild(self, request: Rebuild, /) -> RebuildView:
        """The remains of a cluster that lost its majority; with a plan, go on with that (`Company.rebuild`)."""
        found = await self.rebuilding.look()
        unseen_ms = views.unseen_ms(found, self._config) if request.leases_after_ms < 0 else request.leases_after_ms
        if not request.plan:
            return views.left(found, unseen_ms=unseen_ms)
        return views.rebuilt(await self.rebuilding.rebuild(request.plan, unseen_ms=unseen_ms))

    # ── links ─────────────────────────────────────────────────────────────────

    def identity(self) -> Identity:
        """This node's own description, for the handshake (`Peer.identity`)."""
        own = self._roster.own
        if self.seeding is None or self.seeding.is_over:
            members = tuple(sorted({own, *self._members.addresses}))
        else:
            members = self.seeding.members
        return Identity(
            self._roster.directory,
            own,
            f"shoal {__version__}",
            members,
            self.run,
            self._roster.epoch,
            originals=self._roster.originals,
        )

    def compare(self, peer: Identity) -> None:
        """Log once if a peer's list of members differs; `GET /v1/cluster` shows that as long as it does."""
        found = self._members.compare(peer, own=self.identity(), now=self._now())
        if found:
            log(events.MEMBERS_DIFFER, difference=found)
        elif found is not None:
            log(events.MEMBERS_AGREE, peer=peer.name)

    def check(self, peer: Identity) -> None:
        """Check whether a link from this peer may begin.

        Raises:
            PeerRefused: it is not a member, or a copy of a node that is linked.
        """
        if self.seeding is not None and not self.seeding.is_over:
            raise PeerRefused(
                f"{self._roster.own} does not know the members of its cluster yet: {self.seeding.told}. Nothing was written.",
                reason="founding",
            )
        self._check_part()
        self.compare(peer)
        try:
            self._members.check(peer, own=self._roster.own)
        except PeerRefused as error:
            if error.detail.get("reason") == "member":
                self.changes.asked(peer.name)
            elif error.detail.get("reason") == "removed":
                self.changes.refused(peer.name, error.message)
            elif error.detail.get("reason") == "clone":
                self.rebuilding.refused(peer.node)
            raise

    def _check_part(self) -> None:
        """Check that this node was not removed: those that do not know it must not wait for its word.

        Raises:
            PeerRefused: it was.
        """
        if self._roster.is_removed:
            raise PeerRefused(
                f"{self._roster.own} was removed from its cluster, and takes no part in it. Nothing was written.",
                reason="outside",
            )

    def admitted(self, peer: Identity) -> bytes:
        """A link from this peer begins. Returns the node that was at its address before and is at none now, if there is one."""
        before = self._heard.get(peer.name, peer.node)
        is_gone = before not in (peer.node, *self._members.nodes)
        if is_gone:
            self._runs.pop(before, None)
        self._heard[peer.name], self._runs[peer.node] = peer.node, peer.opening
        return before if is_gone else b""

    def is_new_run(self, peer: Identity) -> bool:
        """Whether the run of a node that begins a link is another one than it had before."""
        return self._runs.get(peer.node, peer.opening) != peer.opening

    def is_running(self, peer: Identity) -> bool:
        """Whether the run of a node that sent a message is its last one, as far as this node knows."""
        return peer.opening == self._runs.get(peer.node, peer.opening)

    def is_heard(self, peer: Identity, epoch: int) -> bool:
        """Take note of the epoch in which a message was sent. Returns whether the message may be taken."""
        if self._farewell is None:
            self._check_part()
        own = self._roster.epoch
        if epoch == own:
            return True
        if epoch > own:
            self._roster.heard(peer.name, epoch)
        else:
            self.changes.behind(peer.node, self._now())
        return self._roster.record.state_of(peer.name) != "joining"

    def is_current(self, epoch: int) -> bool:
        """Whether a message that was sent in this epoch was sent in this node's."""
        return epoch == self._roster.epoch

    def heard(self, peer: Identity, notice: Notice | RebuildNotice) -> None:
        """Take a message about members."""
        match notice:
            case Membership(record):
                if not self.rebuilding.defers(record):
                    self.changes.told(peer.name, peer.node, record, self._now())
            case Standing():
                self.changes.heard(peer.name, peer.node, notice)
            case _:
                self.rebuilding.heard(peer.name, peer.node, notice)

    def refused(self, address: str, error: PeerRefused, peer: Identity | None) -> None:
        """The node at this address does not take links of this one; `peer` is that node, if it has proven it."""
        reason = error.detail.get("reason")
        self._second = {at: told for at, told in self._second.items() if at != address and at in self.addresses}
        if reason == "clone":
            self._second[address] = error.message.rstrip("."), self._now()
        if reason == "outside" and peer is not None:
            self.changes.left(peer.name)
        if reason in ("member", "removed"):
            epoch = 0 if peer is None else peer.epoch
            self._roster.refused(error.message.rstrip("."), is_removed=reason == "removed", by=peer)
            # A node of another cluster, to which this one's address means nothing, is no member here.
            is_ours = reason == "removed" or (peer is not None and peer.name in self._roster.record.electorate.members)
            if epoch > self._roster.epoch and is_ours and self._register.is_voting:
                log(events.VOTES_ENDED, epoch=epoch, reason=error.message)
                self._register.abdicate()
        if reason == "member" and peer is not None and self._roster.waits and self._members.meet(peer.members):
            self._dial(self.addresses)

    def linked(self, peer: Identity) -> None:
        """A link to a node begins."""
        if peer.epoch <= self._roster.epoch:  # Else this node has still to learn of the epoch in which it is taken.
            self._roster.accepted(peer.epoch)
        self.changes.linked(peer.node)

    def link_by(self, dial: Callable[[list[str]], None], reasons: Mapping[str, str] | None = None) -> None:
        """From now on `dial` is called with the addresses to keep links to, whenever they change.

        `reasons` tells why an address is not linked, as the dialler knows it.
        """
        self._dial = dial
        self._members.reasons = reasons or {}

    def _adopted(self, before: Record) -> None:
        record, now = self._roster.record, self._now()
        gone = [state.node for state in self._members.reform() if state.node and state.node not in self._members.nodes]
        self._register.reform(record.electorate)
        self._protocol.enter_epoch(is_joint=record.change is not None and record.change.is_joint)
        self.changes.adopted(list(self._outlets), now)
        self._farewell = now + _FAREWELL * MEMBERS_TELL_S
        self._dial(sorted({*self.addresses, *filterfalse(is_placeholder, before.everyone)} - {self._roster.own}))
        self._entered(gone)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self.changes.tick(now)
        self.rebuilding.tick(now)
        self._members.forget_strangers(now - _ASKS_AGAIN * self._config.reconnect_delay_s_max)
        if self._farewell is not None and now >= self._farewell:
            self._farewell = None
            self._dial(self.addresses if self._roster.is_member or self._roster.record.change is not None else [])
        self._found(now)

    def _found(self, now: float) -> None:
        """Found the register once all configured members are up for a while, so that it works when one of them is lost."""
        if self._register.is_voting or self._roster.epoch or self._members.disagreements_among:
            return
        if not all(state.outlet is not None and self._protocol.is_member(state.node) for state in self._members.all):
            self._all_linked = None
        elif self._all_linked is None:
            self._all_linked = now
        elif now >= self._all_linked + self._config.quorum_register_found_s:
            self._register.found()
