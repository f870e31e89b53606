"""Changes of the members: what operators ask for, and how a change that is under way goes on.

Laws:
- Every step is a compare-and-set of the record in the register, decided by the lists of the epoch before it. So of two
  operators who ask at once, one gets an error that names the other's change.
- The client that asked for a change is told of it by votes or by a record of the members, whichever comes first: no member
  answers a node that it drained.
- Any member can take the next step: all that is needed stands in the record. Of those that stay, the linked member with the
  least address does; the others follow in turn, if it does not. Of two that take the same step the second has no trouble.
- A change is joint only while enough of the new list are up, so that it cannot stop writes by itself.
- While a change is under way, each node tells how far it is (`Standing`); only what was said in this epoch counts.
- A record that a peer tells is adopted once enough members say the same (`notices.Voices`), and none by one member's word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Kind, Record
from shoal.cluster.membership.notices import Membership, Notice, RebuildNotice, Standing, Voices
from shoal.errors import ChangeUnderWay, InvalidInput, NoQuorum, NotAMember, RegisterChanged, ShoalError
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.consensus.quorum_register import QuorumRegister
from shoal.node.context import NodeContext
from shoal.node.membership.roster import Roster
from shoal.protocol.requests import ClusterView
from shoal.records import NamedTuple

MEMBERS_TELL_S = 1.0  # Between two reports of how far a node is with a change of the members.

_TURN = 5  # How long a member leaves a step to the one before it, in intervals of `MEMBERS_TELL_S`.
_NAMED_CHARS_MIN = 8  # Of a directory's id, in hex.
_WAITING_MAX = 16  # Nodes that ask to be let in, and are no members.


class Sight(NamedTuple):
    """The view of the node and its links that a change of the members, or a rebuild, needs."""

    linked: Callable[[], Mapping[str, bytes]]  # The nodes that take part and have a link, by address.
    asked: Callable[[], Mapping[str, bytes]]  # These, and members of a cluster that this node waits to be added to.
    counts: Callable[[bytes], bool]  # Whether a node is an owner that counts: no learner.
    directory_of: Callable[[str], bytes]  # The id that was last known at an address; empty: none.
    lost: Callable[[], Mapping[bytes, str]]  # The directories whose place another one took, and their addresses.
    is_caught_up: Callable[[], bool]  # Of this node; see `epochs.is_ready`.
    disagreements: Callable[[], list[str]]  # Between the configured lists.
    view: Callable[[], ClusterView]
    send: Callable[[bytes, Notice | RebuildNotice], None]


class Changes:
    """Carries out changes of the members. `heard`, `linked` and `tick` are called by the node's replicator."""

    def __init__(self, context: NodeContext, roster: Roster, register: QuorumRegister, sight: Sight) -> None:
        self._roster = roster
        self._register = register
        self._sight = sight
        self._config = context.config
        self._standings: dict[str, Standing] = {}  # By address.
        self._voices = Voices(roster.own, roster.directory)
        self._unaware: dict[str, bytes] = {}  # Nodes that said that they had no part in any epoch, by address.
        self._told: Standing | None = None  # The last one that was told.
        self._told_at: dict[bytes, float] = {}  # By node: when it may be told the record again.
        self._next_tell = 0.0
        self._since = 0.0  # When this node came into its epoch.
        self._stepping: asyncio.Task[None] | None = None
        self._refused: dict[str, str] = {}  # Why this node took no link of one that takes part, by address.
        self.waiting: dict[str, None] = {}
        """Nodes that are no members and asked for a link, the latest last."""
        self.trouble = ""
        """Why the last step of the change was not taken, for people."""

    # ── what operators ask for ────────────────────────────────────────────────

    async def change(self, kind: Kind, *, joins: str = "", leaves: str = "") -> Record:
        """Begin a change, or do nothing if the node has left so already. It goes on by itself: see `Roster.record`.

        Raises:
            ChangeUnderWay: another change is under way; nothing was written.
            InvalidInput: the change is impossible; nothing was written.
            NoQuorum: a majority of the members does not vote, or would not; nothing was written.
            OutcomeUnknown: the change may have begun. Ask for it again: it is made once.
            NotAMember: this node is no member; nothing was written.
        """
        if self._has_left(kind, leaves):
            return self._roster.record
        record = await self._newest()
        if epochs.is_done(record, kind, joins=joins, leaves=leaves):
            return record
        self._check_company(record)
        if kind == "forget" and not epochs.is_address(leaves):
            return await self._forget_directory(record, leaves)
        linked = {self._roster.own, *self._sight.linked()}
        if kind in ("drain", "forget") or (kind == "replace" and leaves in record.members):
            is_up = leaves in linked
            if kind == "drain" and leaves in record.members and not is_up:
                raise InvalidInput(
                    f"{leaves} cannot be reached, so it cannot hand over what it holds. Nothing was written. Start it, or "
                    f"remove it with `shoal cluster forget {leaves}`."
                )
            if kind == "forget" and leaves in record.members and is_up:
                raise InvalidInput(
                    f"{leaves} is up. Nothing was written. Remove it with `shoal cluster drain {leaves}`, which keeps "
                    "all that it holds, or stop it first."
                )
        else:
            is_up = False
        directories = self._directories(record)
        begun = epochs.begin(
            record, kind, joins=joins, leaves=leaves, hands_over=is_up and bool(leaves), directories=directories
        )
        if begun is record:
            return record
        self._check_target(begun)
        return await self._set(record, begun)

    def _has_left(self, kind: Kind, leaves: str) -> bool:
        """Whether this very directory left so, for good. Of others a node that left may not know that they came back."""
        removal = self._roster.record.removal_of(self._roster.directory)
        is_asked = leaves == self._roster.own and kind in ("drain", "forget")
        return is_asked and removal is not None and (removal.handed_over or kind == "forget")

    async def _forget_directory(self, record: Record, named: str) -> Record:
        """Refuse a lost directory from now on; `named` is the beginning of its id, in hex."""
        if named and any(removal.directory.hex().startswith(named) for removal in record.removed):
            return record
        lost = self._sight.lost()
        found = [node for node in lost if len(named) >= _NAMED_CHARS_MIN and node.hex().startswith(named.lower())]
        if len(found) != 1:
            known = ", ".join(f"{node.hex()[:8]} ({address})" for node, address in sorted(lost.items()))
            raise InvalidInput(
                f"{named[: epochs.ADDRESS_CHARS_MAX]!r} is neither the address of a member nor the id of a directory that was "
                f"lost. Nothing was written. {self._roster.own} knows these lost directories: {known or 'none'}."
            )
        [node] = found
        if node in {self._roster.directory, *self._sight.linked().values()}:
            raise InvalidInput(
                f"directory {named} is in use at {lost[node]}. Nothing was written. Stop that node before you forget "
                "its directory."
            )
        if away := sorted(set(record.members) - {self._roster.own, *self._sight.linked()}):
            raise InvalidInput(  # Else the record may not know that a copy of the directory is a member's by now.
                f"{', '.join(away)} cannot be reached, and all members must be up when a lost directory is forgotten. Nothing "
                "was written. Try again when they are back."
            )
        begun = epochs.forget_directory(record, node, lost[node], directories=self._directories(record))
        return await self._set(record, begun)

    async def cancel(self) -> Record:
        """Take back the change that is under way.

        Raises:
            as `change`.
        """
        record = await self._newest()
        return await self._set(record, epochs.cancel(record, directories=self._directories(record)))

    async def _newest(self) -> Record:
        """The record as the register has it; this node adopts it soon."""
        if not self._roster.is_member:
            raise NotAMember(f"{self._roster.own} is no member of the cluster. Nothing was written. Ask a member.")
        found = await self._register.read(epochs.KEY)
        if found.version <= self._roster.epoch:
            return self._roster.record
        return await self._entered(epochs.decode(found.content))

    async def _entered(self, record: Record) -> Record:
        """Adopt a record that was chosen."""
        self._roster.learn(record)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.quorum_timeout_s):
                await self._roster.reach(record.epoch)
        return record

    async def _set(self, record: Record, newer: Record) -> Record:
        if self._roster.epoch != record.epoch:
            raise NoQuorum(
                f"{self._roster.own} has not written down epoch {record.epoch} of the members yet. Nothing was "
                "written. Try again.",
                reachable=0,
                needed=1,
            )
        try:
            return await self._asked(record, newer)
        except RegisterChanged:
            found = await self._newest()
            if epochs.tells(found, newer):
                return found
            told = "another change" if found.change is None else f"`shoal cluster {found.change.told}`"
            raise ChangeUnderWay(
                f"{told} came first. Nothing was written. Look at `shoal cluster members`, and ask again once it is done.",
                change="" if found.change is None else found.change.told,
            ) from None

    async def _asked(self, record: Record, newer: Record) -> Record:
        """Set the record in the register, or learn from a record of the members that it was."""
        loop = asyncio.get_running_loop()
        told = loop.create_task(self._begun(newer))
        # Decided by the lists of this very epoch: in a later one it is refused.
        voted = loop.create_task(self._register.change(epochs.KEY, record.epoch, epochs.encode(newer)))
        try:
            await asyncio.wait((told, voted), return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                return told.result()
            voted.result()
        finally:
            told.cancel()
            voted.cancel()
            await asyncio.gather(told, voted, return_exceptions=True)
        return await self._entered(newer)

    async def _begun(self, asked: Record) -> Record:
        """Return the record of this node once it tells that this step was made."""
        while not epochs.tells(self._roster.record, asked):
            await self._roster.reach(self._roster.record.epoch + 1)
        return self._roster.record

    def _check_company(self, record: Record) -> None:
        differing = self._sight.disagreements()
        if record.epoch == 0 and differing:
            raise InvalidInput(
                f"the nodes are configured with different members, so there is no list to change: {differing[0]} Nothing was "
                "written."
            )

    def _check_target(self, begun: Record) -> None:
        """Check that the nodes of the new list that are up would be a majority of it."""
        up = {address for address, node in self._sight.linked().items() if self._sight.counts(node)} | {self._roster.own}
        change = begun.change
        assert change is not None
        staying = [address for address in begun.target if address != change.joins]
        needed = len(begun.target) // 2 + 1
        reached = len(up.intersection(staying)) + bool(change.joins)
        if reached < needed:
            away = ", ".join(sorted(set(staying) - up))
            raise NoQuorum(
                f"after `shoal cluster {change.told}` {needed} of {len(begun.target)} members would be a quorum, and "
                f"{reached} would be up: {away} cannot be reached or is catching up. Nothing was written. "
                "Try again when it is back.",
                reachable=reached,
                needed=needed,
            )

    def _directories(self, record: Record) -> dict[str, bytes]:
        others = {address: self._sight.directory_of(address) for address in record.everyone}
        return others | ({self._roster.own: self._roster.directory} if self._roster.own in others else {})

    @property
    def lost(self) -> dict[str, str]:
        """The directories whose place another one took, as far as this node knows: their ids in hex, and addresses."""
        return {node.hex(): address for node, address in self._sight.lost().items()}

    # ── going on ──────────────────────────────────────────────────────────────

    def told(self, address: str, node: bytes, record: Record, now: float) -> None:
        """The node at this address says that it is in the epoch of this record."""
        if self._is_asked(address, node):
            self._unaware.pop(address, None)
            self._voices.holds(address, node, record)
            self._believe(now)

    def heard(self, address: str, node: bytes, standing: Standing) -> None:
        """The node at this address tells how far it is, and for which record it has voted: the next tick weighs that."""
        self._standings[address] = standing
        if standing.is_unaware and self._is_asked(address, node):
            self._unaware[address] = node
        if standing.voted is not None and address in self._roster.record.everyone:
            self._voices.voted(address, node, standing.voted)

    def left(self, address: str) -> None:
        """The node at this address says that it was removed."""
        if address in self._roster.record.everyone:
            self._voices.left(address)

    def _is_asked(self, address: str, node: bytes) -> bool:
        return address in self._roster.record.everyone or self._sight.asked().get(address) == node

    def _believe(self, now: float) -> None:
        """Adopt a later record that enough members hold, or have voted for."""
        is_voting, linked = self._register.is_voting, self._sight.asked()
        found = self._voices.believed(
            self._roster.record,
            self._voted if is_voting else None,
            has_voice=is_voting,
            is_new=self._roster.is_new,
            linked=linked,
            # One that was admitted has a part by now, whatever it said before.
            unaware={at for at, node in linked.items() if self._unaware.get(at) == node and not self._sight.counts(node)},
            now=now,
            wait_s=self._config.quorum_timeout_s,
        )
        if found is not None:
            self._roster.learn(found)

    @property
    def _voted(self) -> Record | None:
        """The record of a later epoch that this node has voted for; it may never be chosen."""
        value = self._register.value_here(epochs.KEY)
        return (
            epochs.decode(value.content)
            if value.version > self._roster.epoch and self._roster.fits(epochs.KEY, value)
            else None
        )

    def asked(self, address: str) -> None:
        """A node that is no member asked for a link."""
        self.waiting.pop(address, None)
        self.waiting[address] = None
        if len(self.waiting) > _WAITING_MAX:
            del self.waiting[next(iter(self.waiting))]

    def refused(self, address: str, why: str) -> None:
        """This node took no link of the node at this address."""
        if address in self._roster.record.everyone:
            self._refused[address] = why

    def linked(self, node: bytes) -> None:
        """A link to a node begins: it learns the record, and how far this node is."""
        if self._roster.epoch:
            self._sight.send(node, Membership(self._roster.record))
        if self._told is not None:
            self._sight.send(node, self._standing())

    def behind(self, node: bytes, now: float) -> None:
        """A message of this node names an older epoch: tell it the record, now and then."""
        if now >= self._told_at.get(node, now):
            self._told_at[node] = now + MEMBERS_TELL_S
            self._sight.send(node, Membership(self._roster.record))

    def adopted(self, nodes: Iterable[bytes], now: float) -> None:
        """This node is in a new epoch; `nodes` are all that have a link, so also one that was removed."""
        self._standings.clear()
        self._refused.clear()
        self._told_at.clear()
        self._voices.entered(self._roster.record)
        self._unaware.clear()
        self._told, self._since, self.trouble = None, now, ""
        for address in self._roster.record.everyone:
            self.waiting.pop(address, None)
        for node in nodes:
            self._sight.send(node, Membership(self._roster.record))

    def tick(self, now: float) -> None:
        """Tell how far this node is, and take the next step if it is due."""
        record = self._roster.record
        self._believe(now)
        is_untold = self._voted is not None and self._roster.is_member
        if is_untold and self._stepping is None and now >= self._since + MEMBERS_TELL_S:
            # The node that made this step may be gone before it told anybody.
            self._since = now
            self._stepping = asyncio.get_running_loop().create_task(self._look())
        if record.change is None and not self._roster.problem and not is_untold and not self._roster.is_unaware:
            return
        standing = self._standing()
        told = msgspec.structs.replace(standing, keys=[])
        if told != self._told or now >= self._next_tell:
            self._told, self._next_tell = told, now + MEMBERS_TELL_S
            for node in self._sight.asked().values():
                self._sight.send(node, standing)
        if record.change is not None and not standing.is_voting:
            self._register.found()
        if record.change is not None and self._stepping is None and self._is_turn(now) and self.is_ready:
            self._stepping = asyncio.get_running_loop().create_task(self._step(record))

    async def stop(self) -> None:
        """Take no more steps. Stopping twice is allowed."""
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.gather(self._stepping, return_exceptions=True)

    @property
    def standings(self) -> dict[str, Standing]:
        """How far each node is that told so in this epoch, this one included."""
        said = {self._roster.own: self._standing(), **self._standings}
        return {address: standing for address, standing in said.items() if standing.epoch == self._roster.epoch}

    @property
    def problems(self) -> dict[str, str]:
        """Why nodes cannot take part, by address, for people."""
        told = {address: standing.problem for address, standing in self._standings.items() if standing.problem}
        return dict(sorted((self._refused | told).items()))

    @property
    def is_ready(self) -> bool:
        """Whether the change that is under way may go on."""
        standings = self.standings
        is_behind = not self._roster.is_settled or self._roster.ahead.intersection(self._sight.linked())
        return not is_behind and epochs.is_ready(
            self._roster.record,
            caught_up=[address for address, standing in standings.items() if standing.is_caught_up],
            voting=[address for address, standing in standings.items() if standing.is_voting],
        )

    def _standing(self) -> Standing:
        is_voting = self._register.is_voting
        keys = self._register.keys if is_voting else []
        voted = self._voted if is_voting else None
        return Standing(
            self._roster.epoch,
            self._sight.is_caught_up(),
            is_voting,
            keys,
            self._roster.problem,
            voted,
            self._roster.is_unaware,
        )

    def _is_turn(self, now: float) -> bool:
        """Whether this node takes the next step: at once if no lesser address is there, else a while later."""
        target = set(self._roster.record.target)
        there = target.intersection(address for address in self._sight.linked() if address in self.standings)
        before = sum(address < self._roster.own for address in there)
        return self._roster.own in target and now >= self._since + before * _TURN * MEMBERS_TELL_S

    async def _look(self) -> None:
        """Read the record, and adopt it."""
        try:
            with suppress(ShoalError):
                await self._newest()
        finally:
            self._stepping = None

    async def _step(self, record: Record) -> None:
        try:
            if record.change is not None and record.change.is_joint:
                # What the old list chose is chosen again by both, so that the new list alone finds it.
                keys = {key for standing in self.standings.values() for key in standing.keys}
                for key in sorted(keys - {epochs.KEY}):
                    await self._register.read(key)
            await self._set(record, epochs.advance(record, directories=self._directories(record)))
        except ShoalError as error:
            # Else another member was first, or it was cancelled.
            if self._roster.is_settled and self._roster.epoch == record.epoch:
                self.trouble = error.message
                log(events.CHANGE_STANDS, reason=error.message)
            await asyncio.sleep(MEMBERS_TELL_S)
        finally:
            self._stepping = None
