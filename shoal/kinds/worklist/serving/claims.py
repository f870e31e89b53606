"""Exclusive claims of queue entries, and attempts that begin together.

Exclusive claims of queue entries: a claim is a lease of an entry.

Laws:
- An entry is granted by the quorum register, from those that this node knows to be pending. Then the node catches up with
  a quorum, as before each write under a claim, and notes the attempt, for a quorum. So it sees each completion that was
  acknowledged under an earlier claim; if the entry cannot be handed out any more, the claim is ended, and the next is tried.
- A write under a claim is accepted and acknowledged as one under a thread's lease is: while this node knows that the claim
  has not ended. It has durability `quorum`. So an entry has at most one completion that was acknowledged.
- A claim ends when its entry is completed or given back, or if its client gives up before the answer. Otherwise others get
  the entry when the claim is dead.

Attempts that begin together: one operation, and one wait for copies, for all claims of a thread that were just granted.

A tie is decided by a lease of the step: the nodes of tied attempts take it one after another, and all but the last give
way. Without it all could withdraw.

Law: the outcome of each is what it would be alone. If they cannot begin together, each begins alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from math import inf
from typing import Any

from shoal.cluster.operation import partition_of
from shoal.errors import LeaseLost, ShoalError, SlowConsumer
from shoal.kinds.lease.serving.shards import TOKEN_BYTES, UNDER_CLAIM, check_holder, check_token, term_of
from shoal.kinds.lease.state.table import Claim, Group, worklist_mark
from shoal.kinds.worklist import state as queue
from shoal.kinds.worklist.serving.handouts import Handouts, Worklist
from shoal.kinds.worklist.serving.queues import check_names, finished
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Answers, Target
from shoal.node.replicas import Replicas
from shoal.node.spaces.quotas import Quotas
from shoal.node.turns import Background
from shoal.node.writes.issuing import Located
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    AnyReply,
    AttemptBegun,
    Batch,
    BatchReply,
    BeginAttempt,
    ClaimExtended,
    ClaimItem,
    CompleteItem,
    Durability,
    ExtendClaim,
    FailItem,
    ItemClaimed,
    ObjectWrite,
    Push,
    Term,
    Watch,
)
from shoal.storage.keys import Kind

_TOGETHER_MAX = 256  # Fewer than a batch may hold.

Write = Callable[[BeginAttempt | Batch, Bookmark], Awaitable[AnyReply]]


class _Gathered:
    def __init__(self) -> None:
        self.requests: list[BeginAttempt] = []
        self.shown = Bookmark()
        self.told: asyncio.Future[list[AnyReply]] = asyncio.get_running_loop().create_future()


class Attempts:
    """Notes attempts; `write` makes a write under claims, for a quorum."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._open: dict[tuple[str, str], _Gathered] = {}  # By space and thread: those that another attempt can join.
        self._beginning = Background()

    async def begin(self, request: BeginAttempt, bookmark: Bookmark) -> AttemptBegun:
        """Note an attempt.

        Raises:
            LeaseLost: its claim has ended.
            NoQuorum, OutcomeUnknown: as a write for a quorum.
        """
        place = request.space, request.thread
        gathered = self._open.get(place)
        if gathered is None or len(gathered.requests) >= _TOGETHER_MAX:
            gathered = self._open[place] = _Gathered()
            self._beginning.start(self._begun(place, gathered))
        nth = len(gathered.requests)
        gathered.requests.append(request)
        replies = await asyncio.shield(gathered.told)
        if not replies:
            reply = await self._write(request, bookmark)
        else:
            reply, partition = replies[nth], partition_of(request.space, request.thread)
            bookmark.note(partition, gathered.shown.vector(partition))
        assert isinstance(reply, AttemptBegun)
        return reply

    async def close(self) -> None:
        """End the work that is under way."""
        await self._beginning.close()

    async def _begun(self, place: tuple[str, str], gathered: _Gathered) -> None:
        replies: list[AnyReply] = []  # None: each begins alone.
        try:
            await asyncio.sleep(0)  # Others that ask in the same turn join.
            if self._open.get(place) is gathered:
                del self._open[place]
            if len(gathered.requests) > 1:
                reply = await self._write(Batch(list(gathered.requests)), gathered.shown)
                assert isinstance(reply, BatchReply)
                replies = [*reply.replies]
        except ShoalError:
            pass
        finally:
            if not gathered.told.done():
                gathered.told.set_result(replies)


_GONE_MAX = 16  # Entries that turn out to be gone, one after another, until a request is answered.

_CROWDED_S = 1.0  # How long a claim waits if its group is full: the register does not say until when.

Watching = Callable[[Watch, Bookmark], AbstractAsyncContextManager[AsyncIterator[Push]]]


class Claims:
    """`answers` serves the requests; the rest serves writes. `begin` notes an attempt under its claim, for a quorum."""

    def __init__(
        self,
        context: NodeContext,
        handouts: Handouts,
        database: Database,
        *,
        replicas: Replicas,
        watch: Watching,
        begin: Write,
        quotas: Quotas,
    ) -> None:
        self._leases = handouts.leases
        self._quotas = quotas
        self._handouts = handouts
        self._database = database
        self._replicas = replicas
        self._watch = watch
        self._attempts = Attempts(begin)
        self._environment = context.environment
        self._ending = Background()  # If the end of a claim fails, it ends by itself.
        self.answers: Answers = {ClaimItem: self._claim, ExtendClaim: self._extend}

    async def _claim(self, request: ClaimItem, bookmark: Bookmark) -> ItemClaimed:
        check_names(request.thread, request.worklist)
        self._leases.check_ttl(request.ttl)
        check_holder(request.holder)
        token = check_token(request.token) if request.token else self._environment.entropy(TOKEN_BYTES)
        return await self._claimed(request, Claim(token, request.holder, request.ttl), bookmark)

    async def _claimed(self, request: ClaimItem, claim: Claim, bookmark: Bookmark) -> ItemClaimed:
        token, worklist = claim.token, self._worklist(request)
        ends_at = self._leases.ends_at(request.wait)
        watch = Watch(request.space, kind="thread", prefix=request.thread)
        partition = partition_of(request.space, request.thread)
        if not self._database.holds(partition, bookmark.vector(partition)):
            await self._replicas.wait_applied(partition, bookmark.vector(partition))
        asked = False
        async with self._watch(watch, Bookmark()) if request.wait else nullcontext() as pushes:
            while True:
                for _ in range(_GONE_MAX):
                    if asked and self._handouts.waits_s(worklist) != 0:
                        break  # Later hints say what has changed since the register was asked.
                    asked = True
                    self._quotas.admit(request.space, "leases", lambda: (self._leases.count(request.space, but=token), 1))
                    found = await self._handouts.hand_out(worklist, claim)
                    if found is None:
                        break
                    claimed = await self._begun(request, found.item.hex(), found.grant.fence, token.hex(), bookmark)
                    if claimed is not None:
                        return claimed
                if self._leases.left_s(ends_at) <= 0 or not await self._changed(request, worklist, pushes, ends_at):
                    return ItemClaimed(claimed=False, token=token.hex())

    async def _begun(self, request: ClaimItem, id: str, fence: int, token: str, bookmark: Bookmark) -> ItemClaimed | None:
        term = Term(request.space, request.thread, False, fence, token, request.worklist, id)
        begin = BeginAttempt(request.space, request.thread, request.worklist, id, fence, token, request.holder)
        try:
            begun = await self._attempts.begin(begin, bookmark)
        except LeaseLost:
            return None  # It took too long.
        except (ShoalError, asyncio.CancelledError):
            self._ending.attempt(partial(self._leases.give_back, term))
            raise
        if not begun.attempt:
            await self._leases.give_back(term)
            return None
        return ItemClaimed(True, id, begun.key, begun.by, begun.wall_ms, begun.value, begun.attempt, fence, token)

    async def _extend(self, request: ExtendClaim, _bookmark: Bookmark) -> ClaimExtended:
        check_names(request.thread, request.worklist)
        if request.ttl:
            self._leases.check_ttl(request.ttl)
        return ClaimExtended(await self._leases.extended(term_of(request), request.ttl))

    def _worklist(self, request: ClaimItem) -> Worklist:
        """The worklist, and the entries that may be handed out, in order, as this node knows them when it is asked."""
        target = Target(Kind.THREAD, request.space, request.thread)

        def items() -> Iterator[bytes]:
            return queue.ready(self._database.document(target).rows, request.worklist, self._environment.now_ms())

        def group_of(id: bytes) -> Group:
            entry = queue.entry(self._database.document(target).rows, request.worklist, id)
            return Group() if entry is None else Group(entry.plan.group, entry.plan.group_max)

        return Worklist(request.space, worklist_mark(request.thread, request.worklist), items, group_of)

    async def _changed(self, request: ClaimItem, worklist: Worklist, pushes: Any, ends_at: float) -> bool:
        """Wait until there may be something to hand out. Returns False if this node cannot tell any more."""
        now_ms = self._environment.now_ms()
        rows = self._database.document(Target(Kind.THREAD, request.space, request.thread)).rows
        at_ms = queue.next_ready_ms(rows, request.worklist, now_ms)
        dead_s = self._handouts.waits_s(worklist)
        most_s = inf if at_ms is None else max(at_ms - now_ms, 1) / 1000
        if dead_s is not None:
            most_s = min(most_s, dead_s or _CROWDED_S)

        async def stir() -> None:
            await self._handouts.stirred(worklist, min(most_s, self._leases.left_s(ends_at)))

        stirred = asyncio.ensure_future(stir())
        pushed: asyncio.Future[Push] = asyncio.ensure_future(anext(pushes))
        try:
            await asyncio.wait((stirred, pushed), return_when=asyncio.FIRST_COMPLETED)
            if pushed.done():
                pushed.result()
        except SlowConsumer:
            return False
        finally:
            stirred.cancel()
            pushed.cancel()
            await asyncio.gather(stirred, pushed, return_exceptions=True)
        return True

    # ── writes under claims ───────────────────────────────────────────────────

    def terms(self, writes: Sequence[ObjectWrite[Any]]) -> list[Term]:
        """The claims under which these writes are made."""
        return [term_of(write) for write in writes if type(write) in UNDER_CLAIM]

    def durability(self, asked: Durability) -> Durability:
        """The durability of a write under a claim: others must find it when they get the item."""
        return "all" if asked == "all" else "quorum"

    def refused(self, located: Located, error: LeaseLost) -> None:
        """Say more of a claim that has ended.

        Raises:
            Taken: its entry is finished.
        """
        for write, target in zip(located.writes, located.targets, strict=True):
            if isinstance(write, CompleteItem | FailItem) and write.fence == error.detail.get("fence"):
                entry = queue.entry(self._database.document(target).rows, write.worklist, bytes.fromhex(write.id))
                if entry is not None:
                    finished(entry, write)

    def settled(self, writes: Sequence[ObjectWrite[Any]]) -> None:
        """These writes are acknowledged: end the claims of entries that are completed or given back."""
        for write in writes:
            if isinstance(write, CompleteItem):
                self._handouts.end(term_of(write))
            elif isinstance(write, FailItem):
                self._ending.attempt(partial(self._leases.give_back, term_of(write)))

    async def close(self) -> None:
        """End the work that is under way."""
        await self._attempts.close()
        await self._ending.close()


def is_under_claim(writes: Sequence[ObjectWrite[Any]]) -> bool:
    """Whether one of these writes needs a claim."""
    return not UNDER_CLAIM.isdisjoint(map(type, writes))
