"""The `Replicas` of a node with peers: it counts copies, waits for them, and shows the state of the cluster.

Laws:
- Copies are counted over the lists of the present epoch, by what each owner reports that it holds
  durably; this node counts once its own fsync is done. A learner does not count
  (`shoal.cluster.fetching`), and while this node is one, nothing becomes stable.
- Those that ask a quorum at the same time share one question, which is sent after they asked.
- Every wait is bounded. The error then says what is missing and who has acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

from shoal.cluster.replication import Replication
from shoal.cluster.truncation import Holding
from shoal.crdt.dot import DIRECTORY_BYTES, NOTHING_SEEN, Origin, VersionVector
from shoal.errors import BookmarkLost, NoQuorum, OutcomeUnknown, SessionBehind
from shoal.kinds.budget.peers import RIGHTS_WAIT_S, RightsRequests
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Target
from shoal.node.peers.cluster_state import ClusterState
from shoal.node.peers.read_repair import ObjectRepair, ReadRepairer
from shoal.node.replicas import Estate, Repairs
from shoal.node.verification.majority import Owners
from shoal.protocol.requests import ClusterView, Durability
from shoal.protocol.tracing import ASK_QUORUM, FOLLOW, during

_PATIENCE_S = 0.05  # The next shared run begins then, even if the last one still waits for what may never come.


class _Waiter:
    """A condition that something waits for, in one of the lists below; `ended` is called once, with whether it came true."""

    __slots__ = ("_deadlines", "_ended", "_others", "condition")

    def __init__(
        self, others: list[_Waiter], condition: Callable[[], bool], deadlines: _Deadlines, ended: Callable[[bool], None]
    ) -> None:
        self.condition = condition
        self._ended = ended
        self._others = others
        self._deadlines = deadlines
        deadlines.add(self)
        others.append(self)

    def wake(self) -> None:
        """The condition is true."""
        self.leave()
        self._ended(True)

    def leave(self) -> None:
        """Wait no more."""
        self._deadlines.drop(self)
        if self in self._others:
            self._others.remove(self)

    def expire(self) -> None:
        """The time is over."""
        self.leave()
        self._ended(self.condition())


class _Deadlines:
    """Those that wait equally long, in the order in which they began: one timer for them all, not one for each write."""

    __slots__ = ("_seconds", "_timer", "_waiting")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[_Waiter, float] = {}  # Until when.
        self._timer: asyncio.TimerHandle | None = None  # For the first of them, or for one before it.

    def add(self, waiter: _Waiter) -> None:
        """Let it expire in so many seconds."""
        loop = asyncio.get_running_loop()
        self._waiting[waiter] = until = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(until, self._look)

    def drop(self, waiter: _Waiter) -> None:
        """It waits no more."""
        self._waiting.pop(waiter, None)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiter, until in self._waiting.items():
            if until > now:
                self._timer = loop.call_at(until, self._look)
                break
            loop.call_soon(self._expire, waiter)

    def _expire(self, waiter: _Waiter) -> None:
        if waiter in self._waiting:  # Else the end of one before it has woken it.
            waiter.expire()


class _Run:
    """One run, and how many wait for it."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.waiting = 0


class Sharing:
    """`work` is run once for all that ask before it begins; those that ask while it is under way share the next run."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._last: _Run | None = None  # Under way, or done.
        self._next: _Run | None = None  # Not begun.

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._next is None and (self._last is None or self._last.task.done())

    async def run(self) -> None:
        """Return once the work was done; it raises what the work raises. It is cancelled if nobody waits for it any more."""
        run = self._next
        if run is None:
            run = self._next = _Run(asyncio.get_running_loop().create_task(self._begin(self._last)))
        run.waiting += 1
        try:
            await asyncio.shield(run.task)
        finally:
            run.waiting -= 1
            if not run.waiting and not run.task.done():
                run.task.cancel()
                if self._next is run:
                    self._next = None

    async def _begin(self, before: _Run | None) -> None:
        await (asyncio.sleep(0) if before is None else asyncio.wait((before.task,), timeout=_PATIENCE_S))
        self._last, self._next = self._next, None
        await self._work()


_FOR_GOOD = "If so many are lost for good that the others are no quorum: `shoal cluster rebuild`."


class Quorum:
    """The `Replicas` of a cluster. `hurry` asks all peers what they hold of a partition, and returns the question's number."""

    def __init__(
        self,
        context: NodeContext,
        protocol: Replication,
        state: ClusterState,
        *,
        database: Database,
        hurry: Callable[[int], int],
        mender: ReadRepairer,
        seeker: RightsRequests,
    ) -> None:
        self.members = state.members
        self._seeker = seeker
        self._state = state
        self._mender = mender
        self._protocol = protocol
        self._database = database
        self._incarnation = context.incarnation
        self._config = context.config
        self._hurry = hurry
        self._spreading: defaultdict[int, list[_Waiter]] = defaultdict(list)  # By partition; bounded by the requests under way.
        self._reaching: defaultdict[int, list[_Waiter]] = defaultdict(list)
        self._asking: defaultdict[int, list[_Waiter]] = defaultdict(list)
        self._sharing: dict[tuple[int, Durability], Sharing] = {}  # Of questions to a quorum; idle ones leave it.
        self._linking: list[_Waiter] = []
        self._deadlines: dict[float, _Deadlines] = {}  # By how long they wait: a few settings and constants.

    @property
    def refilling(self) -> bool:
        """Whether this node is a learner that has not yet fetched everything that an owner reported (`Replicas.refilling`)."""
        learning = self._protocol.learning
        # A quarantined operation may never be applied.
        return learning is not None and learning.lacks(self._linked()) and not self._protocol.quarantined()

    @property
    def awaited(self) -> str:
        """If this node began with an empty directory and was not admitted: what it waits for, and what to do; else empty
        (`Replicas.awaited`).
        """
        return self._state.awaited if self._incarnation.unproven else ""

    # ── waiting ───────────────────────────────────────────────────────────────

    async def wait_applied(self, partition: int, wanted: VersionVector, /) -> None:
        """Return once this replica has applied all operations that `wanted` covers, within `session_wait_s`
        (`Replicas.wait_applied`).
        """
        question = self._hurry(partition)
        with during(FOLLOW):
            reached = await self._true(
                self._reaching[partition], lambda: self._database.holds(partition, wanted), self._config.session_wait_s
            )
        if reached:
            return
        if self._is_lost(partition, wanted, question):
            raise BookmarkLost(
                "all nodes of the cluster are reachable, but none knows the operations that the bookmark names: the nodes that "
                "acknowledged them have lost them, or the bookmark is so old that the openings it names are retired and "
                "forgotten (forget_after_s, retired_origins_max). Nothing was written. Read with stale=True to continue from "
                "the existing state.",
                partition=partition,
            )
        unreachable = [member.address for member in self.members.all if member.outlet is None]
        raise SessionBehind(
            f"this node did not catch up with the bookmark within {self._config.session_wait_s:g} s"
            + (f"; {', '.join(unreachable)} cannot be reached" if unreachable else "")
            + ". Nothing was written. Try again, here or on another node, or read with stale=True to continue from "
            "the state here.",
            unreachable=unreachable,
        )

    async def reachable(self, durability: Durability, /) -> None:
        """Return once enough owners are linked, within `quorum_timeout_s` (`Replicas.reachable`)."""
        if await self._true(self._linking, lambda: self.reaches(durability), self._config.quorum_timeout_s):
            return
        needed, counted = self.members.needed(durability), 0 if self.is_learner else len(self._countable()) + 1
        raise NoQuorum(
            f"durability {durability} needs {needed} of {self.members.size} replicas, but {counted} can be reached"
            f"{self._uncounted()}. Nothing was written. Try again when more of them are back, or write with durability local. "
            f"{_FOR_GOOD}",
            reachable=counted,
            needed=needed,
        )

    def reaches(self, durability: Durability, /) -> bool:
        """Whether enough owners are linked now (`Replicas.reaches`)."""
        return not self.is_learner and self.members.decides(self._countable(), durability)

    def when_replicated(
        self, partition: int, wanted: VersionVector, durability: Durability, told: Callable[[OutcomeUnknown | None], None], /
    ) -> Callable[[], None]:
        """Call `told` once enough owners hold what `wanted` covers, now or within `quorum_timeout_s`
        (`Replicas.when_replicated`).
        """

        def copied() -> bool:
            return self._protocol.learning is None and self.members.decides(self._holders(partition, wanted), durability)

        def ended(came_true: bool) -> None:
            told(None if came_true else self._late(partition, wanted, durability))

        if copied():
            told(None)
            return _nothing
        return _Waiter(self._spreading[partition], copied, self._within(self._config.quorum_timeout_s), ended).leave

    def when_each_holds(self, partition: int, wanted: VersionVector, told: Callable[[str, bool], None], /) -> list[str]:
        """Call `told` once for each other owner, with whether it is known to hold what `wanted` covers
        (`Replicas.when_each_holds`).
        """
        addresses = [owner.address for owner in self.members.owners if owner.node != self._incarnation.node]
        for address in addresses:
            holds, ended = partial(self._does_hold, address, partition, wanted), partial(told, address)
            if holds():
                ended(True)
            else:
                _Waiter(self._spreading[partition], holds, self._within(self._config.quorum_timeout_s), ended)
        return addresses

    def _does_hold(self, address: str, partition: int, wanted: VersionVector) -> bool:
        return address in self._holders(partition, wanted)

    def _late(self, partition: int, wanted: VersionVector, durability: Durability) -> OutcomeUnknown:
        """The error for a write that too few owners are known to hold once the time is over."""
        needed = self.members.needed(durability)
        holders = [self._config.advertise, *self._holders(partition, wanted)]
        return OutcomeUnknown(
            f"durability {durability} needs {needed} copies, but {len(holders)} are known after "
            f"{self._config.quorum_timeout_s:g} s: {', '.join(holders)}{self._unlearnt()}. The write is durable there, and may "
            "be on others; it will reach all of them when they are back. Send it again with the same key to wait for more.",
            acknowledged=holders,
            needed=needed,
        )

    @property
    def size(self) -> int:
        """The number of owners, this node included (`Replicas.size`)."""
        return self.members.size

    async def catch_up(self, partition: int, durability: Durability = "quorum", /) -> None:
        """Return once this replica has applied everything that a quorum (or all) held of a partition when this was called
        (`Replicas.catch_up`). Any two majorities share a node, so one of these knows what another acknowledged.

        Those that ask while a question is on its way share the next one.
        """
        place = partition, durability
        sharing = self._sharing.get(place)
        if sharing is None:
            sharing = self._sharing[place] = Sharing(partial(self._catch_up, partition, durability))
        try:
            with during(ASK_QUORUM):
                await sharing.run()
        finally:
            if sharing.is_idle and self._sharing.get(place) is sharing:
                del self._sharing[place]

    async def _catch_up(self, partition: int, durability: Durability) -> None:
        await self.reachable(durability)
        question = self._hurry(partition)
        timeout_s = self._config.quorum_timeout_s

        def enough() -> bool:
            return not self.is_learner and self.members.decides(self._answered(partition, question), durability)

        told = await self._told(enough, partition, timeout_s) and await self._caught_up(partition, question, timeout_s)
        if told and not self.is_learner:  # A peer may have reported meanwhile that this node was set back.
            return
        needed, answered = self.members.needed(durability), len(self._answered(partition, question)) + 1
        holders = "all owners hold" if durability == "all" else "a quorum holds"
        raise NoQuorum(
            f"this node could not fetch within {timeout_s:g} s everything that {holders}: {answered} of {self.members.size} "
            f"owners reported what they hold ({needed} are needed), or the operations did not arrive{self._unlearnt()}. Try "
            f"again when more of them are back. {_FOR_GOOD}",
            reachable=answered,
            needed=needed,
        )

    async def heard(self, partition: int, /) -> None:
        """Ask the linked owners; return once this replica has applied what they held of a partition when this was called
        (`Replicas.heard`).
        """
        timeout_s = RIGHTS_WAIT_S
        question = self._hurry(partition)
        linked = self._linked()
        await self._told(lambda: linked <= self._told_by(partition, question), partition, timeout_s)
        await self._caught_up(partition, question, timeout_s)

    async def _caught_up(self, partition: int, question: int, timeout_s: float) -> bool:
        """Wait until this replica holds everything that those who answered hold."""
        wanted = NOTHING_SEEN
        for node in self._told_by(partition, question):
            wanted = wanted.join(self._protocol.known(node).vector(partition))
        return await self._true(self._reaching[partition], lambda: self._database.holds(partition, wanted), timeout_s)

    @property
    def linked(self) -> frozenset[bytes]:
        """The ids of the other owners that have a link to this node now (`Replicas.linked`)."""
        return frozenset(self.members.linked_nodes - {self._incarnation.node})

    async def seek(self, target: Target, amount: int, known: Mapping[bytes, int], /, *, spare: bool = False) -> None:
        """Ask the others for rights of a budget, until `amount` more have arrived or all were asked (`Replicas.seek`)."""
        if self.is_learner:
            return
        linked = [member.node for member in self.members.all if member.outlet is not None]
        asked = [node for node in linked if not spare or node in known]
        for node in sorted(asked, key=lambda node: known.get(node, 0), reverse=True):
            given = await self._seeker.ask(node, target, amount, spare=spare)
            if given is None or given.amount <= 0:
                continue
            with suppress(SessionBehind, BookmarkLost):  # The transfer is made, and will arrive.
                await self.wait_applied(target.partition, VersionVector({Origin(given.origin): given.sequence}))
                amount -= given.amount
            if amount <= 0:
                return

    async def _told(self, enough: Callable[[], bool], partition: int, seconds: float) -> bool:
        """Wait for enough answers, and ask again meanwhile."""
        slice_s = min(seconds, self._config.sync_interval_s)
        for _ in range(max(1, round(seconds / slice_s))):
            if await self._true(self._asking[partition], enough, slice_s):
                return True
            self._hurry(partition)  # A lost link may have taken the question with it; an answer to a later one is enough.
        return False

    async def _true(self, waiters: list[_Waiter], condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until `condition` is true, or for so many seconds. Code that can make it true calls `_wake`."""
        if condition():
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(waiters, condition, self._within(seconds), partial(_end, future))
        try:
            return await future
        finally:
            waiter.leave()

    def _within(self, seconds: float) -> _Deadlines:
        found = self._deadlines.get(seconds)
        if found is None:
            found = self._deadlines[seconds] = _Deadlines(seconds)
        return found

    # ── what happened ─────────────────────────────────────────────────────────

    def stir(self) -> None:
        """Wake requests that wait for links: an owner was linked, or began to count."""
        _wake(self._linking)

    def recount(self) -> None:
        """Look again at all that is waited for: the lists have changed."""
        _wake(self._linking)
        for waiting in (self._spreading, self._reaching, self._asking):
            for waiters in list(waiting.values()):
                _wake(waiters)

    def applied(self, partitions: Iterable[int]) -> None:
        """Wake requests that wait for operations: some were applied in these partitions."""
        for partition in partitions:
            if partition in self._reaching:
                _wake(self._reaching[partition])
                if not self._reaching[partition]:
                    del self._reaching[partition]

    def settle(self, node: bytes) -> None:
        """Wake requests that wait for copies or answers: a message of a peer was taken."""
        known = self._protocol.known(node)
        for partition in known.advanced & self._spreading.keys():
            _wake(self._spreading[partition])
            if not self._spreading[partition]:
                del self._spreading[partition]
        known.advanced.clear()
        for partition in list(self._asking):
            _wake(self._asking[partition])
            if not self._asking[partition]:
                del self._asking[partition]

    def holdings(self, partition: int, /) -> dict[str, Holding]:
        """The operations of a partition that each of the other owners, by its address, is known to hold (`Replicas.holdings`).
        Nothing is known of an owner that was never reached, nor of a learner.

        If two addresses led to one node, nothing is known of the owner that belongs at the second one.
        """
        found: dict[str, Holding] = {}
        nodes: set[bytes] = set()
        for member in self.members.all:
            linked = member.outlet is not None
            found[member.address] = Holding(VersionVector(), None, linked)
            if not self.is_learner and member.node not in nodes and self._protocol.is_member(member.node):
                nodes.add(member.node)
                known = self._protocol.known(member.node)
                # While nobody knows what this directory has issued, nothing is whole, as nothing of its own is.
                whole = known.whole(partition) if self._protocol.ends is None else None
                found[member.address] = Holding(known.vector(partition), whole, linked)
        return found

    def incomplete(self, partition: int, /) -> Collection[bytes]:
        """The threads of a partition that lack data which a save builds on, as row prefixes (`Replicas.incomplete`)."""
        return self._state.incomplete(partition)

    @property
    def estate(self) -> Estate:
        """The removed directories whose origins this node retires (`Replicas.estate`). The member with the least address is the
        one; an id that is in use again is left out.
        """
        record, own = self.members.roster.record, self.members.roster.own
        present = [
            node[:DIRECTORY_BYTES] for node in (self._incarnation.node, *record.directories.values(), *self.members.nodes)
        ]
        gone = {removal.directory for removal in record.removed if removal.directory[:DIRECTORY_BYTES] not in present}
        if own != record.members[0] or not gone:
            return Estate()
        is_open = record.change is None and self.members.roster.is_current and not self.is_learner
        is_open = is_open and len(self.owners.linked) + 1 == self.size
        return Estate(record.epoch, tuple(sorted(gone)), is_open)

    @property
    def owners(self) -> Owners:
        """The other owners that have a link and count, and the number of all."""
        return Owners([node for node in sorted(self.linked) if self.counts(node)], self.size)

    def read_repair(self, target: Target, /) -> ObjectRepair:
        """A read repair for one request about an object (`Replicas.read_repair`)."""
        return ObjectRepair(self._mender, target)

    @property
    def mended(self) -> Repairs:
        """The counts of this incarnation's read repairs (`Replicas.mended`)."""
        return self._mender.mended

    def view(self) -> ClusterView:
        """The cluster as this node sees it, for `shoal status` and the API (`Replicas.view`)."""
        return self._state.view()

    @property
    def digest(self) -> bytes:
        """A hash over this node's durable vectors: those of a `view`, without its other parts."""
        return self._protocol.digest()

    @property
    def learning(self) -> list[str]:
        """If this node is a learner: the reason, and its progress with each of the others; else empty (`Replicas.learning`)."""
        return self._state.learning

    @property
    def clock_wrong(self) -> str:
        """If a majority of the owners contradict this node's clock: by how much, and what to do; else empty
        (`Replicas.clock_wrong`).
        """
        return self._state.clock_wrong

    # ── counting ──────────────────────────────────────────────────────────────

    @property
    def is_learner(self) -> bool:
        """Whether this node is a learner."""
        return self._protocol.learning is not None

    def counts(self, node: bytes) -> bool:
        """Whether this owner counts, as far as this node knows."""
        return self._protocol.is_member(node)

    def _countable(self) -> list[str]:
        """The addresses of the other owners that are linked and no learners."""
        own, counts = self._incarnation.node, self._protocol.is_member
        found: dict[bytes, str] = {}
        for owner in self.members.owners:
            if owner.outlet is not None and owner.node != own and counts(owner.node):
                found[owner.node] = owner.address
        return list(found.values())

    def _linked(self) -> set[bytes]:
        """The other owners that have a link."""
        return self.members.linked_nodes - {self._incarnation.node}

    def _uncounted(self) -> str:
        """For people: the owners that do not count, and why."""
        if self.is_learner:
            return self._unlearnt()
        if not self.members.roster.is_current:
            return "; this node has heard that the members change, and counts none until it knows how"
        away = [member.address for member in self.members.owners if member.outlet is None]
        learners = [m.address for m in self.members.owners if m.outlet is not None and not self.counts(m.node)]
        return (f"; {', '.join(away)} cannot be reached" if away else "") + (
            f"; {', '.join(learners)} can, but does not count until it has fetched what the others hold" if learners else ""
        )

    def _unlearnt(self) -> str:
        return "; this node does not count until it has fetched what the others hold" if self.is_learner else ""

    def _answered(self, partition: int, question: int) -> list[str]:
        """The other owners that reported what they hold after this question; a report by a learner does not count."""
        counts, known = self._protocol.is_member, self._protocol.known
        owners = [m for m in self.members.owners if counts(m.node) and known(m.node).confirmed(partition, question)]
        return list({m.node: m.address for m in owners}.values())

    def _told_by(self, partition: int, question: int) -> set[bytes]:
        """All members that reported what they hold after this question, learners included."""
        return {
            member.node
            for member in self.members.all
            if member.node and self._protocol.known(member.node).answered(partition, question)
        }

    def _holders(self, partition: int, wanted: VersionVector) -> list[str]:
        holds = self._protocol.holds
        held = {m.node: m.address for m in self.members.owners if holds(m.node, partition, wanted)}
        return list(held.values())

    def _is_lost(self, partition: int, wanted: VersionVector, question: int) -> bool:
        everything = self._database.vector_of(partition)
        for member in self.members.all:
            known = self._protocol.known(member.node)
            if member.outlet is None or not known.answered(partition, question):
                return False  # It may hold more than is known.
            everything = everything.join(known.vector(partition))
        return not everything.dominates(wanted)


def _wake(waiters: list[_Waiter]) -> None:
    for waiter in list(waiters):
        if waiter.condition():
            waiter.wake()


def _nothing() -> None:
    """Nobody waits."""


def _end(future: asyncio.Future[bool], came_true: bool) -> None:
    if not future.done():
        future.set_result(came_true)
