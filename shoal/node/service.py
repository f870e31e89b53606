"""Answers every request: the node's side of `shoal.protocol.session.Session`. `reads` answers the reads.

Laws:
- A write builds on at least what its session's bookmark names, or gets a typed error; the
  bookmark includes what an answer shows before the answer is given.
- The types of a request's fields, its names, keys and packed values are checked here, before
  anything else; the code behind relies on that. Only the channels of a save are checked later, where
  they are compared with the checkpoint that they build on, so that unchanged ones are not checked again.
- A write is answered once it is as durable as was asked. A rejection is sent once everything that
  it shows is durable.
- An error affects only its own request. When storage fails, the node still reads, and rejects
  writes with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, get_args

from shoal.config import Config
from shoal.errors import (
    BudgetExhausted,
    CatchingUp,
    Conflict,
    DeletedMeanwhile,
    InvalidInput,
    NoQuorum,
    OutcomeUnknown,
    RightsElsewhere,
    SchemaViolation,
    ShoalError,
    ShuttingDown,
    StorageFull,
    StoreCorrupt,
)
from shoal.names import check_key, check_name
from shoal.node.database import Database
from shoal.node.environment import Environment
from shoal.node.incarnation import Incarnation
from shoal.node.peers.rights import Rights
from shoal.node.peers.spreading import Spreading
from shoal.node.reads.reads import Reads, in_turns
from shoal.node.replicas import ReadRepair, Replicas
from shoal.node.target import Target, target_of
from shoal.node.watching.awareness import Presences
from shoal.node.watching.feed import Feed, Subscriber
from shoal.node.watching.resumable import ResumableWatch
from shoal.node.writes.issuing import Issued, Located
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.conformance import check_manner, conforming
from shoal.protocol.requests import (
    AnyReply,
    AnyRequest,
    AnyWrite,
    Durability,
    Push,
    R,
    Request,
    Subscription,
)
from shoal.protocol.session import Told
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind
from shoal.version import __version__

_PROMPT = frozenset(get_args(AnyWrite)) - {requests.DrawRights}
"""Writes that may wait only for the disk."""
_DURABILITIES = ("memory", "local", "quorum", "all")
_PRUNED_LISTED_MAX = 10_000
_REFILLING = "it began with an empty directory, and is fetching the data that its peers hold"
_COUNTED_MAX = 1000  # A status must stay cheap: every probe asks for it.


class Service:
    """The service of one node, for all its sessions. `presences` serves what is never stored."""

    def __init__(
        self,
        database: Database,
        *,
        storage: Storage,
        commit: GroupCommit,
        incarnation: Incarnation,
        feed: Feed,
        replicas: Replicas,
        presences: Presences,
        environment: Environment,
        config: Config,
    ) -> None:
        self._database = database
        self.presences = presences
        self._replicas = replicas
        self._storage = storage
        self._commit = commit
        self._incarnation = incarnation
        self._feed = feed
        self._config = config
        self._reads = Reads(database, replicas=replicas, presences=presences, status=self._status, config=config)
        self._rights = Rights(database, commit, replicas=replicas)
        self._spreading = Spreading(database, self._rights, replicas=replicas, config=config)
        self._started_ms = environment.now_ms()
        self._stopping = False

    def start(self) -> None:
        """Start its background tasks on the running loop."""
        self._spreading.start()

    def session(self, bookmark: Bookmark | None = None) -> ServiceSession:
        """A new session, which continues from `bookmark`. Each consumer needs its own."""
        return ServiceSession(self, Bookmark() if bookmark is None else bookmark)

    async def call(
        self,
        request: AnyRequest,
        bookmark: Bookmark,
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
    ) -> AnyReply:
        """See `Session.call`. `bookmark` is the session's, and grows by what the answer shows."""
        if isinstance(request, requests.Prune):
            return await self._prune(request, bookmark, durability, stale=stale)
        if isinstance(request, requests.Trim):
            return await self._trim(request, bookmark, durability, stale=stale)
        if isinstance(request, requests.DrawRights):
            return await self._draw(request, bookmark, stale=stale)
        if isinstance(request, requests.ObjectWrite | requests.Batch):
            return await self._write(request, bookmark, key, durability, stale=stale)
        assert isinstance(request, requests.Read)
        return await self._reads.answer(request, bookmark, stale=stale)

    # ── writes ────────────────────────────────────────────────────────────────

    async def _write(
        self, request: AnyWrite, bookmark: Bookmark, key: str | None, durability: Durability, *, stale: bool
    ) -> AnyReply:
        self._refuse_if_stopping()
        if durability not in _DURABILITIES:
            raise InvalidInput(
                f"durability must be one of {', '.join(_DURABILITIES)}; got {durability!r}. Nothing was written."
            )
        located = self._located(request, key)
        if durability == "memory" and _spends(request):
            durability = "local"  # A crash could take the spend back, and the amount would be spent twice.
        partition = located.partition
        if not stale and not self._database.holds(partition, bookmark.vector(partition)):
            await self._replicas.wait_applied(partition, bookmark.vector(partition))
        if durability in ("quorum", "all"):
            await self._replicas.reachable(durability)
            if isinstance(request, requests.BeginStep):
                # A quorum may have acknowledged another intent, or the result, that has not arrived here.
                await self._replicas.catch_up(partition)
        self._refuse_if_stopping()  # It may have begun to stop meanwhile.
        try:
            issued = await self._issued(located, key)
        except (Conflict, RightsElsewhere):
            # A rejection names what is stored. Like an answer, it must not show what a crash could still take back.
            shown = self._database.vector_of(partition)
            await self._database.durable_of(partition)
            bookmark.note(partition, shown)
            raise
        except SchemaViolation:
            await self._database.all_durable()  # The schema may be of another partition.
            raise
        self._database.do_chores()
        if durability == "memory":
            await asyncio.sleep(0)  # Others, and the sync, get their turn between two writes of one caller.
        else:
            await self._commit.wait_durable(issued.number)
            if durability != "local":
                await self._replicas.wait_replicated(partition, issued.copied, durability)
                await self._refuse_dead(located, issued, bookmark, durability)
        bookmark.note(partition, issued.vector)
        if isinstance(request, requests.BeginStep) and durability in ("quorum", "all"):
            return await self._looked_again(request, issued.reply, partition, bookmark)
        return issued.reply

    def begin(self, request: AnyWrite, bookmark: Bookmark, told: Told, /, *, key: str | None, stale: bool) -> bool:
        """Start a write of `local` durability now, if nothing has to be awaited before it is issued; see `Prompt.begin`.

        Returns False if something has to be; then nothing was written, and the caller uses `call`.
        """
        self._refuse_if_stopping()
        located = self._located(request, key)
        partition = located.partition
        if not stale and not self._database.holds(partition, bookmark.vector(partition)):
            return False
        try:
            issued = self._database.issuer.issue(located, key)
        except (Conflict, RightsElsewhere, SchemaViolation, StoreCorrupt):
            return False  # Before this is answered, something must become durable, be fetched or be repaired.
        self._database.do_chores()

        def durable(error: StorageFull | None) -> None:
            if error is None:
                bookmark.note(partition, issued.vector)
            told(issued.reply if error is None else error)

        self._commit.when_durable(issued.number, durable)
        return True

    def _located(self, request: AnyWrite, key: str | None) -> Located:
        if key is not None:
            check_key("idempotency key", key)
        self._database.issuer.check(request)
        return self._database.issuer.locate(request)

    async def _issued(self, located: Located, key: str | None) -> Issued:
        repair: ReadRepair | None = None
        provided = False
        while True:
            try:
                return self._database.issuer.issue(located, key)
            except (BudgetExhausted, RightsElsewhere) as error:
                if provided:
                    raise self._rights.explained(error, located.targets) from None
                await self._rights.provide(located.request)
                self._refuse_if_stopping()
                provided = True
            except StoreCorrupt as error:
                if isinstance(located.request, requests.Batch):
                    raise  # The error does not say which object is damaged.
                repair = repair or self._replicas.read_repair(located.targets[0])
                await repair.repair(error)

    async def _refuse_dead(self, located: Located, issued: Issued, bookmark: Bookmark, durability: Durability) -> None:
        """
        Raises:
            DeletedMeanwhile: an object was deleted, so the write has no effect there.
            OutcomeUnknown: it is not known whether the write has an effect.
        """
        if issued.dot is None:
            return
        partition = located.partition
        if issued.again:
            # The owners acknowledged it to the node that issued it. This node may lack deletions that they know.
            try:
                await self._replicas.catch_up(partition, durability)
            except NoQuorum as error:
                raise OutcomeUnknown(
                    f"the write is recorded, but it is not known whether its object was deleted meanwhile: {error.message} "
                    "Send it again with the same key."
                ) from None
        dead = self._database.dead(partition, issued.dot)
        if not dead:
            return
        shown = self._database.vector_of(partition)
        await self._database.durable_of(partition)
        bookmark.note(partition, shown)
        objects = [f"{target.kind.label} {target.name!r} of space {target.space!r}" for target in dead]
        rest = " The rest of the batch counts." if len(dead) < len(set(located.targets)) else ""
        raise DeletedMeanwhile(
            f"{', '.join(objects)} was deleted by a client that had not seen this write. The write is recorded "
            "but has no effect "
            f"there, because it was deleted with the object.{rest} Load again, and write with a new key if the "
            "write is still needed.",
            objects=objects,
        )

    async def _looked_again(self, request: requests.BeginStep, reply: AnyReply, partition: int, bookmark: Bookmark) -> AnyReply:
        """The step once a quorum holds the intent. If two callers begin it at once, at least one sees the other."""
        assert isinstance(reply, requests.Step)
        if not reply.begun:
            return reply
        try:
            await self._replicas.catch_up(partition)
        except NoQuorum as error:
            unknown = OutcomeUnknown(
                f"the intent of step {request.step!r} is written, but it is not known whether another attempt began at the "
                f"same time: {error.message} Begin it again with the same attempt."
            )
            raise unknown from None
        seen = self._database.step(request, reply.attempt)
        await self._database.durable_of(partition)
        bookmark.note(partition, self._database.vector_of(partition))
        return seen

    async def _draw(self, request: requests.DrawRights, bookmark: Bookmark, *, stale: bool) -> requests.Rights:
        self._refuse_if_stopping()
        await self._reach_for_plan(request, bookmark, stale=stale)
        reply = await self._rights.draw(request)
        partition = target_of(request).partition
        await self._database.durable_of(partition)
        bookmark.note(partition, self._database.vector_of(partition))
        return reply

    async def _prune(
        self, request: requests.Prune, bookmark: Bookmark, durability: Durability, *, stale: bool
    ) -> requests.PruneReport:
        """Plan step by step, then discard the planned ids piece by piece. It needs no key: a repeat plans only what is left."""
        await self._reach_for_plan(request, bookmark, stale=stale)
        plan = await in_turns(self._database.planned(request))
        ids = [id.hex() for id in plan.gone]
        if not request.dry_run:
            size = self._config.prune_ids_max
            for start in range(0, len(ids), size):
                piece = requests.Discard(request.space, request.thread, ids[start : start + size])
                with _partly(start, "checkpoints are pruned"):
                    await self._write(piece, bookmark, None, durability, stale=stale)
        return requests.PruneReport(ids[:_PRUNED_LISTED_MAX], len(ids), plan.stays, plan.bytes, request.dry_run)

    async def _trim(
        self, request: requests.Trim, bookmark: Bookmark, durability: Durability, *, stale: bool
    ) -> requests.TrimReport:
        """As a prune: plan, then trim piece by piece. Each piece takes the events that are there by then."""
        await self._reach_for_plan(request, bookmark, stale=stale)
        plan = await in_turns(self._database.planned_trim(request))
        if request.dry_run or not plan.events:
            return requests.TrimReport(plan.events, plan.bytes, request.dry_run)
        events = size = 0
        piece = requests.TrimEvents(request.space, request.thread, plan.before, request.cursor)
        while True:
            with _partly(events, "events are trimmed"):
                done = await self._write(piece, bookmark, None, durability, stale=stale)
            assert isinstance(done, requests.EventsTrimmed)
            events, size = events + done.events, size + done.bytes
            if not done.more:
                return requests.TrimReport(events, size, False)

    async def _reach_for_plan(
        self, request: requests.Prune | requests.Trim | requests.DrawRights, bookmark: Bookmark, *, stale: bool
    ) -> None:
        check_name("space", request.space)
        self._database.issuer.check(request)
        partition = target_of(request).partition
        wanted = bookmark.vector(partition)
        if not stale and not self._database.holds(partition, wanted):
            await self._replicas.wait_applied(partition, wanted)

    def _refuse_if_stopping(self) -> None:
        if self._stopping:
            raise ShuttingDown(
                "the node is stopping. Nothing was written. Send the request again, here later or on another node."
            )

    def admit(self) -> None:
        """Check whether this node may accept a new session.

        Raises:
            CatchingUp: the node is still fetching the data that its peers hold.
        """
        if self._replicas.refilling:
            raise CatchingUp(
                f"the node accepts no sessions: {self._incarnation.fence or _REFILLING}. Nothing was written. "
                "Ask another node, or try again later."
            )

    def _status(self) -> requests.NodeStatus:
        failed = self._commit.failed
        fence = self._incarnation.fence
        refilling = not failed and bool(fence or self._replicas.refilling)
        learning = "; ".join(self._replicas.learning)
        learns = f"learning, so it counts in no quorum: {learning}" if learning else ""
        return requests.NodeStatus(
            version=__version__,
            node=self._incarnation.node.hex(),
            origin=(self._incarnation.current or b"").hex(),
            state="stopping" if self._stopping else "read-only" if failed else "refilling" if refilling else "ready",
            reason=failed or (f"{fence or _REFILLING}; {learns}" if refilling else learns),
            started_ms=self._started_ms,
            bytes_on_disk=self._storage.bytes_on_disk(),
            operations=self._database.issuer.operations,
            commits=self._commit.cycles,
            connections=len(self._feed),
            spaces=len(self._database.catalog.spaces(after=None, limit=_COUNTED_MAX)),
            garbage=self._database.garbage.count(_COUNTED_MAX),
            garbage_waits_for=self._database.garbage.waits_for,
            died=self._database.garbage.died,
            repaired=self._replicas.mended.rows,
            repairs_failed=self._replicas.mended.failed,
        )

    # ── subscriptions ─────────────────────────────────────────────────────────

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, bookmark: Bookmark, /) -> AsyncIterator[AsyncIterator[Push]]:
        """See `Session.subscribe`. `bookmark` is the session's, and grows by what the pushes show."""
        check_name("space", subscription.space)
        if self._stopping:
            raise ShuttingDown("the node is stopping. Subscribe again, here later or on another node.")
        if isinstance(subscription, requests.FollowPresence):
            with self.presences.follower(subscription) as follower:
                yield follower
            return
        subscriber: Subscriber
        if isinstance(subscription, requests.Watch) and subscription.after is not None:
            subscriber = ResumableWatch(
                subscription, bookmark, self._database.changelog, self._feed.bytes_max, config=self._config
            )
        else:
            subscriber = Subscriber(subscription, bookmark, self._feed.bytes_max)
        with self._feed.told(subscriber):
            if isinstance(subscription, requests.Follow):
                # Subscribe first, then read in the same step, so that no update falls between.
                target = Target(Kind.DOCUMENT, subscription.space, check_name("document", subscription.document))
                wanted = bookmark.vector(target.partition)
                if not subscription.stale and not self._database.holds(target.partition, wanted):
                    await self._replicas.wait_applied(target.partition, wanted)
                state = self._database.documents.follow(self._database.document(target), subscription)
                shown = self._database.vector(target)
                await self._database.durable(target)
                bookmark.note(target.partition, shown)  # Already now: the first answer to the subscriber carries it.
                subscriber.lead(state, target.partition, shown)
            elif self._commit.failed is None or isinstance(subscriber, ResumableWatch):
                # Changes written while nobody watched were not staged. Once they are durable, none can be missed. A
                # resumed watch reads them from the log; if they can never be durable here, the watch must go elsewhere.
                await self._database.all_durable()
            yield subscriber

    async def close(self) -> None:
        """Reject new requests, end the subscriptions, and wait until pending writes are durable."""
        self._stopping = True
        await self._spreading.stop()
        self.presences.stop()
        self._feed.close()
        if self._commit.failed is None:
            await self._commit.wait_durable(self._commit.written)


@contextmanager
def _partly(done: int, what: str) -> Iterator[None]:
    """Turn an error of a later piece into `OutcomeUnknown`, because earlier pieces were written."""
    try:
        yield
    except ShoalError as error:
        if not done:
            raise
        raise OutcomeUnknown(
            f"{done} {what}, and the next part failed: {error.message} Repeat the request to do the rest.",
            **error.detail,
        ) from None


def _spends(request: AnyWrite) -> bool:
    writes = request.writes if isinstance(request, requests.Batch) else [request]
    return any(isinstance(write, requests.Spend) for write in writes)


class ServiceSession:
    """A `Prompt` session of this node: its service, and one consumer's bookmark. Closing it does not stop the node."""

    __slots__ = ("_service", "bookmark")

    def __init__(self, service: Service, bookmark: Bookmark) -> None:
        self._service = service
        self.bookmark = bookmark

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """See `Session.call`."""
        check_manner(key, durability, stale)
        request = conforming(request)
        reply: Any
        if isinstance(request, requests.Announce):
            reply = self._service.presences.announce(self, request)
        else:
            reply = await self._service.call(request, self.bookmark, key=key, durability=durability, stale=stale)
        found: R = reply
        return found

    def begin(
        self,
        request: AnyRequest,
        told: Told,
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
    ) -> bool:
        """See `Prompt.begin`."""
        if durability != "local" or type(request) not in _PROMPT:
            return False
        check_manner(key, durability, stale)
        return self._service.begin(conforming(request), self.bookmark, told, key=key, stale=stale)  # type: ignore[arg-type]

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        """See `Session.subscribe`."""
        return self._service.subscribe(conforming(subscription), self.bookmark)

    async def close(self) -> None:
        """End the presences that this session announced."""
        self._service.presences.leave(self)
