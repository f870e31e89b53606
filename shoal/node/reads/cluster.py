"""Reads of the node's status and of the cluster, its versions, open subscriptions, and a read that waits for a quorum.

The versions of protocols and formats that this program has, and whether it can work with those of a node.

Laws:
- A node that does not say what it has is not judged: silence is no consent.
- Of two nodes, the older one's newest version must be one that the newer one still speaks, and their documents' engines must
  share their major and minor version.
- A directory that a newer version can have written is not given to an older one.

Reads of the node's status and of the cluster, and a read that waits for what a quorum holds of a thread.

Whether a node serves, and says that it is ready: only on positive knowledge that it may.

Laws:
- A node that may lack all that its cluster holds, or that is no member, serves nothing but questions about itself: it would
  answer that there is nothing, and write beside what there is.
- One that waits for its peers tells what it waits for, and what its operator can do.
- A member that reaches nobody serves: its directory holds the proof that it is one (`shoal.node.incarnation`).

Lists of spaces, objects and threads.

Laws:
- A page of threads reads at most `LISTING_SCAN_MAX` threads, however few match, and says where
  the next page begins. So a search for rare metadata does not delay other requests.
- A search by status reads the threads that have it; the catalog leads to them, their own rows decide.
- An answer also shows which threads do not match: the bookmark notes their partitions too.

Open subscriptions: watches of a space, and followers of a document or of presence.

Law: a subscriber misses nothing. A follower of a document is subscribed before the document's state is read; a watch begins
once everything that was written before it is durable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, Literal

from shoal.cluster.handshake import PEER_PROTOCOL, PEER_PROTOCOL_OLDEST
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import CatchingUp, NoQuorum
from shoal.kinds.presence.handler import Presences
from shoal.kinds.step import state as status
from shoal.kinds.thread.state import dag
from shoal.names import check_name, is_colocated
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Answers, Target
from shoal.node.incarnation import Incarnation
from shoal.node.replicas import Company, Replicas
from shoal.node.watching.changelog import ResumableWatch
from shoal.node.watching.feed import Subscriber
from shoal.protocol.base import FILTER_TERMS_MAX
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.frames import PROTOCOL, PROTOCOL_OLDEST
from shoal.protocol.requests import (
    CatchUp,
    CaughtUp,
    ChangeMembers,
    Cluster,
    ClusterView,
    Follow,
    FollowPresence,
    ListObjects,
    ListSpaces,
    ListThreads,
    MembersView,
    Names,
    NodeStatus,
    Push,
    ReadMembers,
    Rebuild,
    RebuildView,
    Status,
    Subscription,
    ThreadNames,
    Watch,
)
from shoal.storage.commit import GroupCommit
from shoal.storage.keys import KINDS, Kind
from shoal.storage.layout import ENCRYPTED_NUMBER, OLDEST_NUMBER
from shoal.values.filtering import Filter

_ENGINE = 1000  # Times the engine's major version, plus its minor one.
_SPOKEN = {"peers": "the protocol among nodes", "sessions": "the protocol of clients"}


@cache
def speaks() -> dict[str, int]:
    """The newest and the oldest version of `peers`, `sessions` and `storage` (`…_oldest`), and the documents' `engine`."""
    # Imported here, because a store that is only opened need not load what reads the environment's packages.
    from importlib.metadata import version

    major, minor = version("pycrdt").split(".")[:2]
    return {
        "peers": PEER_PROTOCOL,
        "peers_oldest": PEER_PROTOCOL_OLDEST,
        "sessions": PROTOCOL,
        "sessions_oldest": PROTOCOL_OLDEST,
        "storage": ENCRYPTED_NUMBER,
        "storage_oldest": OLDEST_NUMBER,
        "engine": int(major) * _ENGINE + int(minor),
    }


def hindrances(own: Mapping[str, int], theirs: Mapping[str, int]) -> list[str]:
    """Why a node with the versions `own` cannot join, or take the place of, one with `theirs`; empty: it can."""
    if not theirs:
        return ["it does not say which protocols it has: it is older than this check, so compare the releases by hand"]
    found = [
        f"{what}: this version has {own[name + '_oldest']} to {own[name]}, it has {theirs[name + '_oldest']} to {theirs[name]}"
        for name, what in _SPOKEN.items()
        if min(own[name], theirs[name]) < max(own[f"{name}_oldest"], theirs[f"{name}_oldest"])
    ]
    if theirs["storage"] > own["storage"]:
        found.append(f"its directory may have format {theirs['storage']}; this version reads up to {own['storage']}")
    if theirs["storage"] < own["storage_oldest"]:
        found.append(f"its directory has format {theirs['storage']}; this version reads {own['storage_oldest']} and newer ones")
    if theirs["engine"] != own["engine"]:
        found.append(f"the engine of documents, pycrdt: this version has {_named(own)}, it has {_named(theirs)}")
    return found


def _named(versions: Mapping[str, int]) -> str:
    return f"{versions['engine'] // _ENGINE}.{versions['engine'] % _ENGINE}"


class ClusterReads:
    """Answers what is asked of the node and its cluster. `status` returns the node's status."""

    def __init__(self, database: Database, *, replicas: Replicas, company: Company, status: Callable[[], NodeStatus]) -> None:
        self._company = company
        self._database = database
        self._replicas = replicas
        self._node_status = status
        self.answers: Answers = {
            Status: self._status,
            Cluster: self._cluster,
            CatchUp: self._catch_up,
            ReadMembers: self._members,
            ChangeMembers: self._change_members,
            Rebuild: self._rebuild,
        }
        self.always = self.answers.keys() - {CatchUp}
        """The requests about the node and its cluster, which a node answers whatever it holds."""

    async def _status(self, _request: Status, _bookmark: Bookmark) -> NodeStatus:
        return self._node_status()

    async def _cluster(self, _request: Cluster, _bookmark: Bookmark) -> ClusterView:
        return self._replicas.view()

    async def _members(self, _request: ReadMembers, _bookmark: Bookmark) -> MembersView:
        return self._company.members()

    async def _change_members(self, request: ChangeMembers, _bookmark: Bookmark) -> MembersView:
        return await self._company.change(request)

    async def _rebuild(self, request: Rebuild, _bookmark: Bookmark) -> RebuildView:
        return await self._company.rebuild(request)

    async def _catch_up(self, request: CatchUp, bookmark: Bookmark) -> CaughtUp:
        """Fetch what a quorum holds of a thread's partition; without a quorum the reply says why, and nothing is raised."""
        check_name("space", request.space)
        partition = partition_of(request.space, check_name("thread", request.thread))
        size = self._replicas.view().size
        try:
            await self._replicas.catch_up(partition)
        except NoQuorum as error:
            return CaughtUp(quorum=False, size=size, reason=error.message)
        shown = self._database.vector_of(partition)
        await self._database.durable_of(partition)
        bookmark.note(partition, shown)
        return CaughtUp(quorum=True, size=size, reason="")


_REFILLING = "it is fetching the data that its peers hold"


class Readiness:
    """Of one node, as its directory, its peers and its disk have it."""

    def __init__(self, incarnation: Incarnation, commit: GroupCommit, *, replicas: Replicas) -> None:
        self._incarnation = incarnation
        self._commit = commit
        self._replicas = replicas

    @property
    def serves(self) -> bool:
        """Whether it answers more than questions about itself."""
        return not (self._incarnation.outside or self._incarnation.unproven)

    def check(self, *, stale: bool) -> None:
        """Check whether this node may show what it holds, and build on it. `stale`: the caller reads what is here, be it older.

        Raises:
            CatchingUp: it began with an empty directory, and does not hold yet what its cluster holds.
            NotAMember: it is no member of its cluster.
        """
        if stale or self.serves:
            return
        if self._incarnation.outside:
            self._incarnation.check()
        raise CatchingUp(
            f"this node serves nothing yet: {self._refilling}. Nothing was written. Ask another node, or try again later.",
            state="refilling",
        )

    def admit(self) -> None:
        """Check whether this node may accept a new session. One that met nobody yet, or is no member, tells each request that.

        Raises:
            CatchingUp: the node is still fetching the data that its peers hold.
        """
        if self._replicas.refilling and not self._incarnation.outside:
            raise CatchingUp(
                f"the node accepts no sessions: {self._refilling}. Nothing was written. Ask another node, or try again later."
            )

    @property
    def told(self) -> tuple[Literal["ready", "read-only", "refilling"], str]:
        """The state of the node, and the reason for people: why it is not ready, or counts in no quorum; else empty."""
        incarnation, replicas = self._incarnation, self._replicas
        barred = incarnation.barred and f"this node {incarnation.verb} nothing: {incarnation.barred}"
        if failed := self._commit.failed or replicas.clock_wrong or barred:
            return "read-only", failed
        learning = "; ".join(replicas.learning)
        learns = f"learning, so it counts in no quorum: {learning}" if learning else ""
        if incarnation.fence or replicas.refilling or incarnation.unproven:
            return "refilling", f"{self._refilling}; {learns}"
        return "ready", learns

    @property
    def _refilling(self) -> str:
        return self._incarnation.fence or self._replicas.awaited or _REFILLING


LISTING_SCAN_MAX = 1000  # Threads examined for one page of a listing by status or metadata.

_BRANCH = "main"


class Listings:
    """Answers lists. A list covers all partitions of a space, and waits for everything that the bookmark names."""

    def __init__(self, database: Database, *, replicas: Replicas, config: Config) -> None:
        self._database = database
        self._replicas = replicas
        self._config = config
        self.answers: Answers = {ListSpaces: self._spaces, ListObjects: self._objects, ListThreads: self._threads}

    async def _spaces(self, request: ListSpaces, bookmark: Bookmark) -> Names:
        if request.after:
            check_name("space", request.after)  # A key of the catalog has room for no longer one.
        await self.reach_all(bookmark)
        limit = self.limit(request.limit)
        spaces = self._database.catalog.spaces(after=request.after, limit=limit + 1)
        await self._database.all_durable()
        return Names(spaces[:limit], more=len(spaces) > limit)

    async def _objects(self, request: ListObjects, bookmark: Bookmark) -> Names:
        check_name("space", request.space)
        await self.reach_all(bookmark)
        limit = self.limit(request.limit)
        names = self._database.catalog.names(
            request.space, KINDS[request.kind], prefix=request.prefix, after=request.after, limit=limit + 1
        )
        await self.show(request.space, names, bookmark)
        return Names(names[:limit], more=len(names) > limit)

    async def _threads(self, request: ListThreads, bookmark: Bookmark) -> ThreadNames:
        check_name("space", request.space)
        filter = Filter.of_fields(request.filter, terms_max=FILTER_TERMS_MAX)
        await self.reach_all(bookmark)
        bound = LISTING_SCAN_MAX
        looked = self._database.catalog.threads(
            request.space, request.status, prefix=request.prefix, after=request.after, limit=bound + 1
        )
        more = len(looked) > bound
        names: list[str] = []
        seen: list[str] = []
        for name, may_match in looked[:bound]:
            if len(names) == self.limit(request.limit):
                more = True
                break
            seen.append(name)
            if may_match and _matches(self._database.document(Target(Kind.THREAD, request.space, name)).rows, request, filter):
                names.append(name)
        await self._show_all(self._partitions(request, seen), bookmark)
        return ThreadNames(names, seen[-1] if more and seen else "")

    async def show(self, space: str, names: Iterable[str], bookmark: Bookmark) -> None:
        """Wait until everything that an answer shows of these objects is durable, and note it in the bookmark."""
        await self._show_all({partition_of(space, name) for name in names}, bookmark)

    def _partitions(self, request: ListThreads, seen: list[str]) -> set[int]:
        """The partitions of the threads that an answer shows, or shows not to match."""
        if request.status in ("", "running"):
            return {partition_of(request.space, name) for name in seen}
        bound = LISTING_SCAN_MAX
        names = self._database.catalog.names(
            request.space, Kind.THREAD, prefix=request.prefix, after=request.after, limit=bound + 1
        )
        if len(names) <= bound or is_colocated(request.space):
            return {partition_of(request.space, name) for name in names}
        return set(self._database.changelog.vectors())

    async def _show_all(self, partitions: set[int], bookmark: Bookmark) -> None:
        shown = {number: self._database.vector_of(number) for number in partitions}
        await self._database.all_durable()
        for partition, vector in shown.items():
            bookmark.note(partition, vector)

    async def reach_all(self, bookmark: Bookmark) -> None:
        """Wait until this node holds everything that a bookmark names."""
        for number in self._database.partitions.closed:
            self._database.partitions.load(number).check_open()
        for partition, wanted in list(bookmark):
            if not self._database.holds(partition, wanted):
                await self._replicas.wait_applied(partition, wanted)

    def limit(self, asked: int) -> int:
        """The length of a page, of which a client may ask for less."""
        return min(max(1, asked), self._config.page_items_max)


def _matches(rows: Rows, request: ListThreads, filter: Filter) -> bool:
    if request.status:
        current = status.current(rows)
        if (current.status if current is not None else "running") != request.status:
            return False
    return not filter.wanted or _holds(rows, filter)


def _holds(rows: Rows, filter: Filter) -> bool:
    heads = dag.heads(rows, _BRANCH)
    head = dag.checkpoint(rows, heads[0].id) if heads else None
    return head is not None and filter.matches(head.record.metadata)


Pushes = AbstractAsyncContextManager[AsyncIterator[Push]]


class Subscriptions:
    """Opens the subscriptions of one node, by kind."""

    def __init__(self, context: NodeContext, database: Database, *, replicas: Replicas, presences: Presences) -> None:
        self._database = database
        self._commit = context.commit
        self._feed = context.feed
        self._replicas = replicas
        self._presences = presences
        self._config = context.config
        self._kinds: Mapping[type, Callable[[Any, Bookmark], Pushes]] = {
            Watch: self._watch,
            Follow: self._follow,
            FollowPresence: self._follow_presence,
        }

    def open(self, subscription: Subscription, bookmark: Bookmark) -> Pushes:
        """A context whose value iterates over the pushes. Entering it may wait; `bookmark` grows by the taken pushes.

        Raises:
            ShoalError: on entering, as the kinds of subscriptions say.
        """
        return self._kinds[type(subscription)](subscription, bookmark)

    @asynccontextmanager
    async def _watch(self, subscription: Watch, bookmark: Bookmark) -> AsyncIterator[AsyncIterator[Push]]:
        bytes_max = self._feed.bytes_max
        subscriber: Subscriber
        if subscription.after is None:
            subscriber = Subscriber(subscription, bookmark, bytes_max)
        else:
            changelog = self._database.changelog
            subscriber = ResumableWatch(subscription, bookmark, changelog, bytes_max, config=self._config)
        with self._feed.told(subscriber):
            if self._commit.failed is None or subscription.after is not None:
                # Changes written while nobody watched were not staged. Once they are durable, none can be missed. A
                # resumed watch reads them from the log; if they can never be durable here, the watch must go elsewhere.
                await self._database.all_durable()
            yield subscriber

    @asynccontextmanager
    async def _follow(self, subscription: Follow, bookmark: Bookmark) -> AsyncIterator[AsyncIterator[Push]]:
        subscriber = Subscriber(subscription, bookmark, self._feed.bytes_max)
        with self._feed.told(subscriber):
            target = Target(Kind.DOCUMENT, subscription.space, check_name("document", subscription.document))
            wanted = bookmark.vector(target.partition)
            if not subscription.stale and not self._database.holds(target.partition, wanted):
                await self._replicas.wait_applied(target.partition, wanted)
            await self._database.prepare([(subscription, target)])
            state = self._database.documents.follow(self._database.document(target), subscription)
            shown = self._database.vector(target)
            await self._database.durable(target)
            bookmark.note(target.partition, shown)  # Already now: the first answer to the subscriber carries it.
            subscriber.lead(state, target.partition, shown)
            yield subscriber

    @asynccontextmanager
    async def _follow_presence(self, subscription: FollowPresence, _bookmark: Bookmark) -> AsyncIterator[AsyncIterator[Push]]:
        with self._presences.follower(subscription) as follower:
            yield follower
