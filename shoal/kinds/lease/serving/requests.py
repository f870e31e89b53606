"""How a node serves the requests for leases, and the writes under them; `Leases` decides.

Laws:
- When a thread's lease has been acquired, this node holds all that a quorum acknowledged of the thread before, and a quorum
  holds the mark that the thread is under a lease.
- A write under a lease is acknowledged only if its term has not ended by then. So the next holder finds every write
  that was acknowledged with `quorum` before.
- A thread that is marked takes a write without a lease only if the quorum register says that nobody holds the lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from shoal import values
from shoal.cluster.operation import partition_of
from shoal.errors import LeaseHeld, LeaseLost, NoQuorum, OutcomeUnknown, ShoalError, Unavailable, Written
from shoal.kinds.lease.serving.shards import check_token, nobody_waits
from shoal.kinds.lease.state.table import LeaseName, item_name, worklist_mark
from shoal.kinds.thread.serving.ownership import UnderClaim, UnderLease
from shoal.kinds.worklist.serving.claims import Claims, Watching
from shoal.kinds.worklist.serving.handouts import Handouts
from shoal.kinds.worklist.serving.queues import described
from shoal.names import RESERVED
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Answers, Target
from shoal.node.replicas import Replicas
from shoal.node.spaces.quotas import Quotas
from shoal.node.writes.issuing import Located
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    AcquireLease,
    AnyReply,
    AnyWrite,
    Append,
    Durability,
    EndLease,
    Fenced,
    FencedReply,
    LeaseGranted,
    LeaseList,
    LeaseReleased,
    LeasesRenewed,
    LeaseState,
    ListLeases,
    MarkedLease,
    MarkLease,
    ReadLease,
    ReleaseLease,
    RenewLease,
    RenewLeases,
    Term,
)
from shoal.raising import why
from shoal.storage.keys import Kind

_DRIVEN = (
    "Only the holder changes the thread meanwhile. Pause it, or ask for approval, so that an agent of a crew gives the lease "
    "back, and try again; or wait for the lease (`thread.lease(wait=…)`, `shoal crew status` tells what an agent does)."
)


ENDED = "leases"
"""The thread of the space `RESERVED` whose journal says which leases, but those of threads, operators ended."""


class Write(Protocol):
    """Makes a write under leases."""

    def __call__(
        self,
        request: AnyWrite,
        bookmark: Bookmark,
        key: str | None,
        durability: Durability,
        /,
        *,
        stale: bool,
        terms: Sequence[Term],
    ) -> Awaitable[AnyReply]:
        """Serve a request (`Service.call`)."""
        ...


class LeaseRequests:
    """`answers` serves the requests; the rest serves writes. `write` makes a write under leases, `watch` opens a watch."""

    wrapper = Fenced
    """The request that is a write under leases."""

    def __init__(
        self,
        context: NodeContext,
        handouts: Handouts,
        database: Database,
        *,
        replicas: Replicas,
        write: Write,
        watch: Watching,
        quotas: Quotas,
    ) -> None:
        self.claims = Claims(
            context,
            handouts,
            database,
            replicas=replicas,
            watch=watch,
            begin=lambda request, bookmark: write(request, bookmark, None, "quorum", stale=False, terms=()),
            quotas=quotas,
        )
        self._leases = handouts.leases
        self._quotas = quotas
        self._database = database
        self._replicas = replicas
        self._write = write
        self.answers: Answers = {
            AcquireLease: self._acquire,
            RenewLease: self._renew,
            RenewLeases: self._renew_all,
            ReleaseLease: self._release,
            EndLease: self._end,
            ReadLease: self._read,
            ListLeases: self._list,
            **self.claims.answers,
        }

    # ── requests ──────────────────────────────────────────────────────────────

    async def _acquire(self, request: AcquireLease, bookmark: Bookmark) -> LeaseGranted:
        token = check_token(request.token) if request.token else b""
        self._quotas.admit(request.space, "leases", lambda: (self._leases.count(request.space, but=token), 1))
        granted = await self._leases.acquire(request)
        if not (granted.granted and request.thread):
            return granted
        term = Term(request.space, request.lease, True, granted.fence, granted.token)
        try:
            await self._replicas.catch_up(partition_of(request.space, request.lease))
            marked = await self._marked(term, request.holder, bookmark)
            if not marked.counts:
                term = await self._leases.counted(term, marked.fence)
                await self._marked(term, request.holder, bookmark)
        except ShoalError as error:
            with suppress(ShoalError):
                await self._leases.release(ReleaseLease(request.space, request.lease, term.fence, granted.token, thread=True))
            if isinstance(error, LeaseLost):
                raise Unavailable(
                    f"the lease of thread {request.lease!r} was granted, and ended before this node had caught up with a "
                    "quorum. Try again, or with a longer ttl."
                ) from None
            raise
        return msgspec.structs.replace(granted, fence=term.fence)

    async def _marked(self, term: Term, holder: str, bookmark: Bookmark) -> MarkedLease:
        """Mark the thread as under this lease. Returns the mark that counts."""
        mark = MarkLease(term.space, term.lease, term.fence, holder)
        reply = await self._write(mark, bookmark, None, "quorum", stale=False, terms=[term])
        assert isinstance(reply, MarkedLease)
        return reply

    async def _renew(self, request: RenewLease, _bookmark: Bookmark) -> LeaseGranted:
        term = Term(request.space, request.lease, request.thread, request.fence, request.token)
        holder = await self._leases.renewed(term)
        return LeaseGranted(granted=True, fence=request.fence, token=request.token, holder=holder)

    async def _renew_all(self, request: RenewLeases, _bookmark: Bookmark) -> LeasesRenewed:
        return await self._leases.renew(request.terms)

    async def _release(self, request: ReleaseLease, _bookmark: Bookmark) -> LeaseReleased:
        fence = await self._leases.release(request)
        if fence and request.thread:
            self._mark_over(request.space, request.lease, fence)
        return LeaseReleased(fence > 0)

    async def _end(self, request: EndLease, bookmark: Bookmark) -> LeaseReleased:
        held = await self._leases.read(ReadLease(request.space, request.lease, request.thread))
        if held.fence != request.fence:
            return LeaseReleased(False)
        if request.to and request.to not in held.waiting:
            name = LeaseName(request.space, request.lease, request.thread)
            raise nobody_waits(request.to, name)
        # The event comes first: no lease ends in this way without one.
        told = {"kind": "lease-ended", "holder": held.holder, "fence": held.fence, "to": request.to}
        told |= {"by": request.by, "reason": request.reason}
        space, thread = (request.space, request.lease) if request.thread else (RESERVED, ENDED)
        if not request.thread:
            told |= {"space": request.space, "lease": request.lease}
        event = Append(space, thread, values.encode(told), key=f"lease-ended/{request.space}/{request.lease}/{held.fence}")
        await self._write(event, bookmark, None, "local", stale=False, terms=())
        fence = await self._leases.ended(request)
        if fence and request.thread:
            self._mark_over(request.space, request.lease, fence)
        return LeaseReleased(fence > 0)

    async def _read(self, request: ReadLease, _bookmark: Bookmark) -> LeaseState:
        return await self._leases.read(request)

    async def _list(self, request: ListLeases, _bookmark: Bookmark) -> LeaseList:
        return LeaseList(await self._leases.listed(request.space))

    def glimpsed(self, space: str, thread: str) -> LeaseState | None:
        """The lease of a thread, as this node was told last, without asking others; None: it was told nothing."""
        return self._leases.glimpsed(space, thread)

    async def known(self, space: str) -> list[LeaseState]:
        """The leases of a space that are held, as this node was told last; it asks only for what it was never told."""
        return await self._leases.known(space)

    async def written(
        self, request: Fenced, bookmark: Bookmark, key: str | None, durability: Durability, *, stale: bool
    ) -> FencedReply:
        """Make a write under leases."""
        return FencedReply(await self._write(request.write, bookmark, key, durability, stale=stale, terms=request.terms))

    # ── writes ────────────────────────────────────────────────────────────────

    def fenced(self, located: Located, terms: Sequence[Term]) -> Located:
        """The write with the fencing numbers of its threads; the same if it has no leases."""
        if not terms:
            return located
        fences = {Target(Kind.THREAD, term.space, term.lease): term.fence for term in terms if term.thread}
        return msgspec.structs.replace(located, fences=fences)

    async def admit(self, located: Located, key: str | None, terms: Sequence[Term]) -> None:
        """Return once this node knows that none of these terms has ended; the caller issues the write at once.

        Raises:
            LeaseLost: one has ended.
            Taken: the item of a claim that has ended is completed.
            NoQuorum: that cannot be known.
        """
        while not self._leases.admits(terms):
            try:
                await self._leases.confirm(terms)
            except LeaseLost as error:
                if self._database.issuer.knows(located, key):
                    raise _unacknowledged(error) from None
                self.claims.refused(located, error)
                raise
            except OutcomeUnknown as error:  # Of the renewal.
                raise _unknowable("whether the lease of this write has ended", error) from None

    async def acknowledged(self, located: Located, terms: Sequence[Term]) -> None:
        """Return if a write may be acknowledged; claims whose items it settles end then.

        Raises:
            as `still`.
        """
        if terms:
            await self.still(terms)
            self.claims.settled(located.writes)

    async def still(self, terms: Sequence[Term]) -> None:
        """Return if none of these terms has ended since the write was issued.

        Raises:
            LeaseLost: one has ended, and the write is recorded.
            NoQuorum, OutcomeUnknown: that cannot be known.
        """
        while not self._leases.admits(terms):
            try:
                await self._leases.confirm(terms)
            except LeaseLost as error:
                raise _unacknowledged(error) from None

    async def freed(self, located: Located, marked: UnderLease) -> Located:
        """The write, if nobody holds the lease of the thread that is marked.

        Raises:
            LeaseHeld: somebody does.
            NoQuorum: that cannot be known.
        """
        target, fence = marked.target, marked.mark.fence
        name = LeaseName(target.space, target.name, True)
        try:
            state = await self._leases.holder(name)
        except OutcomeUnknown as error:
            raise _unknowable(f"whether thread {target.name!r} is still under a lease", error) from None
        if state.held:
            raise self._leases.held(name, state, _DRIVEN)
        self._mark_over(target.space, target.name, fence)
        return msgspec.structs.replace(located, ended={**located.ended, target: fence})

    async def unclaimed(self, located: Located, claimed: UnderClaim) -> Located:
        """The write, if nobody has claimed the entry that it finishes.

        Raises:
            LeaseHeld: somebody has.
            NoQuorum: that cannot be known.
        """
        target = claimed.target
        name = item_name(target.space, worklist_mark(target.name, claimed.queue), claimed.id)
        try:
            state = await self._leases.holder(name)
        except OutcomeUnknown as error:
            raise _unknowable("whether the entry is still claimed", error) from None
        if state.held:
            by = repr(state.holder) if state.holder else "another worker"
            raise LeaseHeld(
                f"{by} has claimed entry {claimed.id.hex()} of {described(target.name, claimed.queue)} (fencing number "
                f"{state.fence}). Nothing was written. Complete it under its claim (job.complete), or wait until the claim has "
                "ended.",
                holder=state.holder,
                fence=state.fence,
                until_ms=state.until_ms,
            )
        return msgspec.structs.replace(located, unclaimed=located.unclaimed | {claimed.id})

    def _mark_over(self, space: str, thread: str, fence: int) -> None:
        """Spare others the question. If it fails, they ask."""
        with suppress(ShoalError):
            self._database.issue(MarkLease(space, thread, fence, "", over=True), None)


def _unknowable(what: str, error: OutcomeUnknown) -> NoQuorum:
    return NoQuorum(f"it is not known {what}: {why(error)}. Nothing was written. Try again when a quorum can be reached.")


def _unacknowledged(error: LeaseLost) -> LeaseLost:
    written: Written = "unknown"
    found = LeaseLost(
        f"{error.message.split(' Nothing was written.')[0]} The write is recorded, but it is not acknowledged: the next "
        "holder may have begun without it, and it may appear beside that one's writes. Stop, or acquire the lease again and "
        "load the current state.",
        **error.detail,
    )
    found.written = written
    return found
