"""Answers every request: the node's side of `shoal.protocol.session.Session`. `reads` answers the reads.

No single request is named here: its peculiarities are declared at its class, or in a table of the part that serves it.

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

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any, get_args

from msgspec.structs import replace

from shoal import __version__
from shoal.errors import (
    BudgetExhausted,
    Conflict,
    InvalidInput,
    OutcomeUnknown,
    RightsElsewhere,
    SchemaViolation,
    ShoalError,
    ShuttingDown,
    StorageFull,
    StoreCorrupt,
    Unavailable,
)
from shoal.kinds.budget.peers import Rights, Spreading
from shoal.kinds.file.proven import digest_of
from shoal.kinds.file.serving.files import LAYING, Unsure, laid_by
from shoal.kinds.lease.serving.alone import Alone
from shoal.kinds.lease.serving.requests import LeaseRequests
from shoal.kinds.presence.handler import OfSessions, Presences
from shoal.kinds.redaction.serving.redactor import under_way
from shoal.kinds.retention.serving.keeper import Keeper
from shoal.kinds.thread.serving.ownership import UnderClaim, UnderLease
from shoal.kinds.tiering.serving.keeper import TieringKeeper
from shoal.kinds.worklist.serving.claims import is_under_claim
from shoal.kinds.worklist.serving.handouts import Handouts
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import check_key, check_name
from shoal.node.collection.sealing import KeyKeeper
from shoal.node.conditions.of_node import Signals
from shoal.node.conditions.watcher import Watcher
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Answers, Contest, Flow, target_of
from shoal.node.reads.cluster import ClusterReads, Listings, Readiness, Subscriptions, speaks
from shoal.node.reads.reads import Reads
from shoal.node.reads.search import Searches
from shoal.node.reads.summaries import Glances
from shoal.node.reads.timeline import Timelines
from shoal.node.replicas import Cluster, ReadRepair
from shoal.node.session import ServiceSession
from shoal.node.spaces.growth import Growth
from shoal.node.spaces.quotas import Quotas
from shoal.node.statements import AuditReads, Recorder, Signer, StateRoots
from shoal.node.turns import Background, Resting
from shoal.node.writes.acknowledging import Acknowledging
from shoal.node.writes.issuing import Issued, Located
from shoal.protocol import requests
from shoal.protocol.base import declaration_of
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    AnyReply,
    AnyRequest,
    AnyWrite,
    Durability,
    Push,
    Subscription,
)
from shoal.protocol.requests.families import operations
from shoal.protocol.session import Told
from shoal.protocol.tracing import stages
from shoal.raising import after, partly
from shoal.records import NamedTuple

_DURABLE = frozenset(kind for kind in operations(requests.ObjectWrite) if declaration_of(kind).durable)
_DURABILITIES = ("memory", "local", "quorum", "all")
_AGAIN = "Send it again with the same idempotency key: it is applied once."
_REST = "Repeat the request to do the rest."
_COUNTED_MAX = 1000  # A status must stay cheap: every probe asks for it.


class Credentials(NamedTuple):
    """The credentials that the node shows to others and asks of them, as `NodeStatus` says it."""

    tls_ends_ms: int = 0
    tls_trouble: str = ""
    tokens_end_ms: int = 0
    tokens_ending: Sequence[str] = ()
    tokens_refused: Mapping[str, int] = MappingProxyType({})
    cluster_keys: Sequence[str] = ()
    cluster_key_file: bool = False
    cluster_key_trouble: str = ""


class Service:
    """The service of one node, for all its sessions. `presences` serves what is never stored.

    `keys` looks after the keys of an encrypted directory; None: it is not encrypted.
    """

    def __init__(
        self,
        context: NodeContext,
        database: Database,
        *,
        cluster: Cluster,
        presences: Presences,
        handouts: Handouts,
        quotas: Quotas,
        keys: KeyKeeper | None,
    ) -> None:
        environment, config = context.environment, context.config
        self._cluster, self._database = cluster, database
        replicas = self._replicas = cluster.quorum
        self.presences, self._quotas, self._keys = presences, quotas, keys
        self.of_sessions: OfSessions = dict.fromkeys(presences.of_sessions, self._announced)
        self._storage, self._commit, self._incarnation = context.storage, context.commit, context.incarnation
        self._feed, self._config = context.feed, config
        self._credentials: Callable[[], Credentials] = Credentials
        self._backup: Callable[[], requests.BackupView | None] = lambda: None
        self._standing: Callable[[], list[requests.StandingCondition]] = list
        self._signals: Callable[[], Signals] = Signals
        self.readiness = Readiness(context.incarnation, context.commit, replicas=replicas)
        """Whether this node serves: its sessions, and each request."""
        self.sharing = context.sharing
        """How its sessions take turns."""
        self._subscriptions = Subscriptions(context, database, replicas=replicas, presences=presences)
        self._holding = LeaseRequests(
            context,
            handouts,
            database,
            replicas=replicas,
            write=self._write,
            watch=self._subscriptions.open,
            quotas=quotas,
        )
        self._alone = Alone(context, handouts, replicas=replicas, write=self._write)
        signer = Signer(context, StateRoots(context, lacking=replicas.incomplete))
        self._recorder = Recorder(context, signer, self._write)
        self.keeper = Keeper(context, database, replicas=replicas, call=self.call)
        """Carries out the rules of retention."""
        self.tiering = TieringKeeper(context, database, replicas=replicas, restored_ms=self.keeper.restored_ms)
        """Carries out the rules of tiering."""
        about_itself = ClusterReads(database, replicas=replicas, company=cluster.memberships, status=self.status)
        self.growth = Growth(context, replicas)
        """Counts what its disk holds, and forecasts when it will be full."""
        self._always = about_itself.always | self.growth.always
        listings = Listings(database, replicas=replicas, config=config)
        answers = self._answers = {
            **AuditReads(signer, context.storage, context.partitions, config=config).answers,
            **self._holding.answers,
            **about_itself.answers,
            **listings.answers,
            **Glances(
                database,
                listings,
                now_ms=environment.now_ms,
                leases=self._holding,
                written=lambda: context.commit.written,
            ).answers,
            **Timelines(database, listings, context.storage).answers,
            **Searches(database, listings).answers,
            **presences.answers,
            **quotas.answers,
            **self.keeper.answers,
            **self.growth.answers,
            **self.tiering.answers,
            **database.redactor.answers,
        }
        self.redactor = database.redactor
        """Replaces in what clients write: their sessions ask it before anything else."""
        self._reads = Reads(database, replicas=replicas, answers=answers, config=config)
        self._acknowledging = Acknowledging(database, context.commit, replicas=replicas, traced=context.traced)
        self._rights = Rights(context, database, replicas=replicas)
        self._flows = self._rights.flows
        self.prompt = frozenset(get_args(AnyWrite)) - self._flows.keys() - self._alone.answers.keys()
        """Writes that may wait only for the disk."""
        self._spreading = Spreading(database, self._rights, replicas=replicas)
        self._environment = environment
        self._monotonic = environment.monotonic
        self._started_ms = environment.now_ms()
        self._stopping = False
        self._telling = Background()  # Answers to writes: in `quorum_timeout_s`, also while it closes.

    def present(self, credentials: Callable[[], Credentials]) -> None:
        """From now on the node's status shows these credentials."""
        self._credentials = credentials

    def back_up(self, answers: Answers, view: Callable[[], requests.BackupView]) -> None:
        """From now on these requests about the cluster's backup are answered, and the node's status shows it."""
        self._answers.update(answers)
        self._backup = view

    def watch(self, watcher: Watcher) -> None:
        """From now on what this finds is answered, whatever the node holds, and shown in the node's status."""
        self._answers |= watcher.answers
        self._always |= watcher.answers.keys()
        self._standing = lambda: watcher.standing
        self._signals = lambda: watcher.signals

    def start(self) -> None:
        """Start its background tasks on the running loop."""
        self._spreading.start()
        self._recorder.start()
        self.keeper.start()
        self.growth.start()
        self.tiering.start()
        self._database.retiring.start(self._replicas, self._rights.gather)
        self._database.orphans.start(self._replicas)

    def session(self, bookmark: Bookmark | None = None) -> ServiceSession:
        """A new session, which continues from `bookmark`. Each consumer needs its own."""
        made = Bookmark(self._monotonic) if bookmark is None else bookmark
        return ServiceSession(self, made, forget_after_s=self._config.forget_after_s)

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
        """Answer `request` (`Session.call`). `bookmark` is the session's, and grows by what the answer shows."""
        if (traced := stages.get()) is not None:
            traced.begun()
        if type(request) not in self._always:
            self.readiness.check(stale=stale and isinstance(request, requests.Read))
        if isinstance(request, requests.Maintenance):
            return await self._maintain(request, bookmark, durability, stale=stale)
        flow = self._flows.get(type(request))
        if flow is not None:
            return await self._follow_through(flow, request, bookmark, stale=stale)
        if type(request) is self._holding.wrapper:
            return await self._holding.written(request, bookmark, key, durability, stale=stale)
        if isinstance(request, requests.ObjectWrite | requests.Batch | requests.Import):
            alone = self._alone.answers.get(type(request))
            if alone is not None:
                self._refuse_if_stopping()
                self._located(request, key, bookmark.token)
                return await alone(request, bookmark, key, durability, stale=stale)
            return await self._write(request, bookmark, key, durability, stale=stale)
        assert isinstance(request, requests.Read)
        return await self._reads.answer(request, bookmark, stale=stale)

    # ── writes ────────────────────────────────────────────────────────────────

    async def _write(
        self,
        request: AnyWrite,
        bookmark: Bookmark,
        key: str | None,
        durability: Durability,
        *,
        stale: bool,
        terms: Sequence[requests.Term] = (),
    ) -> AnyReply:
        if self._stopping:  # Of each write of an embedded store: a call less.
            self._refuse_if_stopping()
        if durability not in _DURABILITIES:
            raise InvalidInput(
                f"durability must be one of {', '.join(_DURABILITIES)}; got {durability!r}. Nothing was written."
            )
        located = self._holding.fenced(self._located(request, key, bookmark.token), terms)
        if durability == "memory" and not _DURABLE.isdisjoint(map(type, located.writes)):
            durability = "local"
        if is_claimed := is_under_claim(located.writes):
            terms = (*terms, *self._holding.claims.terms(located.writes))
            durability = self._holding.claims.durability(durability)
        partition = located.partition
        contest: Contest | None = None
        if not stale and not self._database.holds(partition, bookmark.vector(partition)):
            await self._replicas.wait_applied(partition, bookmark.vector(partition))
        if durability in ("quorum", "all"):
            self._incarnation.check()
            await self._replicas.reachable(durability)
            contest = self._database.contest_of(request)
            if contest is not None or is_claimed:
                # A quorum may have acknowledged another caller's write that has not arrived here.
                await self._replicas.catch_up(partition)
        if not self._database.prepared.isdisjoint(map(type, located.writes)):
            await self._database.prepare(zip(located.writes, located.targets, strict=True))
        self._refuse_if_stopping()  # It may have begun to stop meanwhile.
        await self._quotas.ready(located)
        self._quotas.check(located, lambda: self._database.issuer.knows(located, key))
        try:
            issues = self._issued if type(located.writes[0]) not in LAYING else self._issued_beside
            issued = await issues(located, key, terms)
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
        if (traced := stages.get()) is not None:
            self._acknowledging.issued(traced, located, issued, durability)
        try:
            await self._acknowledging.made_durable(located, issued, bookmark, durability)
            await self._holding.acknowledged(located, terms)
            bookmark.note(partition, issued.vector)
            if contest is None:
                return issued.reply
            reply = await self._acknowledging.looked_again(contest, located, issued.reply, bookmark)
            if not contest.tied(located.request, reply):
                return reply

            async def gives_way() -> AnyReply:
                return await self._write(
                    contest.gives_way(located.request, reply), bookmark, None, durability, stale=stale, terms=terms
                )

            return await self._alone.untied(
                contest,
                located,
                look=lambda: self._acknowledging.looked_again(contest, located, issued.reply, bookmark),
                give_way=gives_way,
            )
        except ShoalError as error:
            if error.written != "no":
                raise
            raise after(error, "the write is recorded on this node", _AGAIN) from error

    def begin(
        self, request: AnyWrite, bookmark: Bookmark, told: Told, /, *, key: str | None, durability: Durability, stale: bool
    ) -> bool:
        """Start a durable write now, if nothing has to be awaited before it is issued; see `Prompt.begin`.

        Returns False if something has to be, or if it was made before; the caller uses `call`.
        """
        if self._stopping:
            self._refuse_if_stopping()
        traced = stages.get()
        if traced is not None:
            traced.begun()
        self.readiness.check(stale=False)
        located = self._located(request, key, bookmark.token)
        partition, is_copied = located.partition, durability != "local"
        if (not stale and not self._database.holds(partition, bookmark.vector(partition))) or is_under_claim(located.writes):
            return False
        if is_copied and (self._database.contest_of(request) is not None or not self._replicas.reaches(durability)):
            return False
        is_prepared = self._database.prepared.isdisjoint(map(type, located.writes))
        if not is_prepared and self._database.preparations(zip(located.writes, located.targets, strict=True)):
            return False
        is_limited = self._quotas.concerns(located)
        if is_limited and not self._quotas.is_ready(located):
            return False
        if self._database.issuer.is_late(located) or type(located.writes[0]) in LAYING:
            return False
        if is_limited:
            self._quotas.check(located, lambda: self._database.issuer.knows(located, key))
        try:
            issued = self._database.issuer.issue(located, key)
        except (Conflict, RightsElsewhere, SchemaViolation, StoreCorrupt, UnderClaim, UnderLease, Unsure):
            self._quotas.give_back(located)
            return False  # Before this is answered, something must become durable, be fetched or be repaired.
        if is_copied and issued.again:
            self._quotas.give_back(located)
            return False  # This node may lack deletions that its owners know, which must be fetched.
        self._database.do_chores()
        if traced is not None:
            self._acknowledging.issued(traced, located, issued, durability)

        def replicated(error: ShoalError | None) -> None:
            if error is None and is_copied and traced is not None:
                traced.copied()
            if error is not None:
                told(error)
            elif is_copied and self._database.partitions.load(partition).endings is not issued.endings:
                self._telling.start(self._tell(located, issued, bookmark, durability, told))
            else:
                bookmark.note(partition, issued.vector)
                told(issued.reply)

        def durable(error: StorageFull | None) -> None:
            if error is None and is_copied:
                self._replicas.when_replicated(partition, issued.copied, durability, replicated)
            else:
                replicated(error)

        self._commit.when_durable(issued.number, durable, located.targets[0].space)
        return True

    async def _tell(self, located: Located, issued: Issued, bookmark: Bookmark, durability: Durability, told: Told) -> None:
        """Answer a write that owners hold, after something was deleted in its partition."""
        try:
            await self._acknowledging.refuse_dead(located, issued, bookmark, durability)
            bookmark.note(located.partition, issued.vector)
        except ShoalError as error:
            told(error if error.written != "no" else after(error, "the write is recorded on this node", _AGAIN))
        except Exception as bug:
            log(events.BUG, where="what follows a write", bug=bug)
            text = "the write is recorded on this node, which then met an unexpected error; see its log. "
            told(OutcomeUnknown(text + _AGAIN))
        else:
            told(issued.reply)

    def _located(self, request: AnyWrite, key: str | None, token: str) -> Located:
        if key is not None:
            check_key("idempotency key", key)
        self._database.issuer.check(request)
        located = self._database.issuer.locate(request, token)
        seen = under_way()
        return located if seen is None else replace(located, redacted=seen.replaced, asked=seen.asked)

    async def _issued_beside(self, located: Located, key: str | None, terms: Sequence[requests.Term]) -> Issued:
        """As `_issued`, once the chunks that the write brings are on the disk."""
        with laid_by(located.writes[0]) as chunks:
            async with self._commit.laying(chunks, digest_of):
                self._refuse_if_stopping()
                return await self._issued(located, key, terms)

    async def _issued(self, located: Located, key: str | None, terms: Sequence[requests.Term]) -> Issued:
        repair: ReadRepair | None = None
        provided = False
        while True:
            try:
                if terms:
                    await self._holding.admit(located, key, terms)
                elif self._database.issuer.is_late(located):
                    return await self._database.issuer.issue_late(located, key, self._refuse_if_stopping)
                return self._database.issuer.issue(located, key)
            except UnderLease as marked:
                located = await self._holding.freed(located, marked)
            except UnderClaim as claimed:
                located = await self._holding.unclaimed(located, claimed)
            except Unsure as unsure:
                located = replace(located, referring={**located.referring, **await self._database.referring(unsure)})
                self._refuse_if_stopping()
            except (BudgetExhausted, RightsElsewhere) as error:
                if provided:
                    raise self._rights.explained(error, located.targets) from None
                await self._rights.provide(located.request)
                self._refuse_if_stopping()
                provided = True
            except StoreCorrupt as error:
                if isinstance(located.request, requests.Batch | requests.Import):
                    for target in dict.fromkeys(located.targets):
                        if await self._database.chunks.bring_back(target, error.lost):
                            break
                    else:
                        raise  # The error does not say which object is damaged.
                    self._refuse_if_stopping()
                    continue
                repair = repair or self._database.chunks.repairing(located.targets[0], self._replicas.read_repair)
                await repair.repair(error)

    def _announced(self, owner: object, request: Any) -> AnyReply:
        """Announce what a session owns, if the quota of its space has room for it."""
        self._quotas.admit(request.space, "presences", lambda: self.presences.joining(request))
        return self.presences.of_sessions[type(request)](owner, request)

    async def _follow_through(self, flow: Flow, request: Any, bookmark: Bookmark, *, stale: bool) -> AnyReply:
        """Answer a write that takes more than one operation, or asks other nodes."""
        self._refuse_if_stopping()
        await self._reach(request, bookmark, stale=stale)
        self._quotas.check(self._database.issuer.locate(request))
        reply = await flow(request)
        partition = target_of(request).partition
        await self._database.durable_of(partition)
        bookmark.note(partition, self._database.vector_of(partition))
        return reply

    async def _maintain(
        self, request: requests.Maintenance[Any], bookmark: Bookmark, durability: Durability, *, stale: bool
    ) -> AnyReply:
        """Take its steps in turn with other requests, and its writes one by one. If it meets chunks that are away, or damaged,
        it begins anew once they are here: what it did is done then.
        """
        await self._reach(request, bookmark, stale=stale)
        repair: ReadRepair | None = None
        while True:
            try:
                return await self._maintained(request, bookmark, durability, stale=stale)
            except StoreCorrupt as error:
                repair = repair or self._database.chunks.repairing(target_of(request), self._replicas.read_repair)
                try:
                    await repair.repair(error)
                except Unavailable:  # Of a peer that cannot be asked yet. Who has the bytes can send them again.
                    raise error from None

    async def _maintained(
        self, request: requests.Maintenance[Any], bookmark: Bookmark, durability: Durability, *, stale: bool
    ) -> AnyReply:
        upkeep = self._database.maintained(request)
        reply: AnyReply | None = None
        resting = Resting(self._environment, lambda: self.sharing.waiting)
        with self._database.garbage.held(target_of(request)):
            while True:
                try:
                    piece = upkeep.send(reply)
                except StopIteration as done:
                    finished: AnyReply = done.value
                    await self._database.durable_of(target_of(request).partition)
                    return finished
                reply = None
                if piece is not None:
                    with partly(piece.done, piece.done, _REST):
                        reply = await self._write(piece.write, bookmark, None, durability, stale=stale)
                await (resting.rest() if request.rests else self._environment.pause())

    async def _reach(
        self, request: requests.ObjectWrite[Any] | requests.Maintenance[Any], bookmark: Bookmark, *, stale: bool
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

    def status(self) -> requests.NodeStatus:
        """The state of the node now."""
        state, reason = self.readiness.told
        credentials, keys, backup, signals = self._credentials(), self._keys, self._backup(), self._signals()
        return requests.NodeStatus(
            version=__version__,
            node=self._incarnation.node.hex(),
            origin=(self._incarnation.current or b"").hex(),
            state="stopping" if self._stopping else state,
            reason=reason,
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
            tls_ends_ms=credentials.tls_ends_ms,
            tls_trouble=credentials.tls_trouble,
            master_key="" if keys is None else keys.master,
            data_keys=0 if keys is None else keys.data_keys,
            keys_wait_for=[] if keys is None else keys.waiting,
            register=self._register_condition(),
            register_founded=self._cluster.register.is_founded,
            serves=self.readiness.serves,
            quotas_reached=self._quotas.reached,
            quota_refusals=self._quotas.refusals,
            tokens_end_ms=credentials.tokens_end_ms,
            tokens_ending=list(credentials.tokens_ending),
            tokens_refused=dict(credentials.tokens_refused),
            cluster_keys=list(credentials.cluster_keys),
            cluster_key_file=credentials.cluster_key_file,
            cluster_key_trouble=credentials.cluster_key_trouble,
            backup="" if backup is None or backup.state == "none" else backup.state,
            backup_trouble="" if backup is None else backup.trouble,
            backup_lag_ms=0 if backup is None else backup.lag_ms,
            backup_bytes=0 if backup is None else backup.bytes,
            backup_begun_ms=0 if backup is None else backup.begun_ms,
            backup_verified_ms=0 if backup is None else backup.verified_ms,
            speaks=speaks(),
            together=self._database.issuer.spoken,
            conditions=self._standing(),
            redaction_replaced=self.redactor.replaced,
            redaction_refused=self.redactor.refused,
            disk_free_bytes=-1 if signals.volume is None else signals.volume.free,
            disk_full_ms=signals.full_ms or 0,
            **self.keeper.figures,
            **self.tiering.figures,
        )

    def _register_condition(self) -> str:
        """Why the quorum register has no quorum, for people; empty if it has one."""
        condition, trouble = self._cluster.register.condition, self._cluster.memberships.trouble
        return f"{condition}. It does not go on by itself: {trouble}" if condition and trouble else condition

    # ── subscriptions ─────────────────────────────────────────────────────────

    def subscribe(self, subscription: Subscription, bookmark: Bookmark, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        """Deliver pushes until the context is left (`Session.subscribe`). `bookmark` is the session's, and grows by what the
        pushes show.
        """
        check_name("space", subscription.space)
        if self._stopping:
            raise ShuttingDown("the node is stopping. Subscribe again, here later or on another node.")
        self.readiness.check(stale=False)
        return self._quotas.counted(subscription, self._subscriptions.open(subscription, bookmark))

    async def close(self) -> None:
        """Reject new requests, end the subscriptions, and wait until pending writes are durable."""
        self._stopping = True
        await self._spreading.stop()
        await self._recorder.stop()
        await self.keeper.stop()
        await self.growth.stop()
        self._database.budgets.courses.stop()
        await self._holding.claims.close()
        await self._alone.close()
        self.presences.stop()
        self._feed.close()
        if self._commit.failed is None:
            await self._commit.wait_durable(self._commit.written)
