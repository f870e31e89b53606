"""A space, which makes all handles on its objects.

A kind of handle is imported when the first one is made, so that a program loads only what it uses.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import Place, StoreConnection
from shoal.kinds.document.state.yjs import CLIENT_ID_BITS
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.conformance import check_word
from shoal.protocol.requests import Durability, Hit, HitPlace, ObjectKind, ThreadState, ThreadStatus, ThreadSummary, WorkQueue
from shoal.raising import partly
from shoal.schemas import Schema
from shoal.values.filtering import packed_fields
from shoal.values.registry import FileRef
from shoal.workflows.spaces import names

DOCUMENT_CLIENT_IDS_MAX = 1024  # Yjs client ids of closed documents that a store keeps for later ones.
_FOREVER_S = 1e9  # Some thirty years.

if TYPE_CHECKING:
    from shoal.client.batch import Batch
    from shoal.client.reading import Reading
    from shoal.client.watching import Change, Reset, Subjects
    from shoal.kinds.budget.handle import Budget
    from shoal.kinds.counter.handle import Counter
    from shoal.kinds.document.handle.document import Document
    from shoal.kinds.file.handle import FileListing, FileStream, Source, ThreadFiles
    from shoal.kinds.items.handle.items import Items
    from shoal.kinds.lease.handle.leases import Leasing
    from shoal.kinds.list.handle import SharedList
    from shoal.kinds.map.handle import SharedMap
    from shoal.kinds.presence.handle import Presence
    from shoal.kinds.redaction.handle import SpaceRedaction
    from shoal.kinds.register.handle import Register
    from shoal.kinds.retention.handle import SpaceRetention
    from shoal.kinds.schema.handle import Schemas
    from shoal.kinds.set.handle import SharedSet
    from shoal.kinds.thread.flows.audit import AuditKind, Moment
    from shoal.kinds.thread.handle.thread import Thread
    from shoal.kinds.tiering.handle import SpaceTiering
    from shoal.kinds.worklist.handle.worklist import Worklist
    from shoal.workflows.spaces import SpaceDeleted


@named
class Space:
    """An isolated namespace: threads, documents, counters, registers, sets, maps and budgets by name, and items."""

    def __init__(self, connection: StoreConnection, name: str) -> None:
        self._connection = connection
        self.name = check_name("space", name)
        self._presence: Presence | None = None

    def __repr__(self) -> str:
        return f"Space({self.name!r})"

    def thread(
        self,
        name: str,
        *,
        author: str = "",
        configuration: Mapping[str, Any] | None = None,
        dependencies: Mapping[str, str] | None = None,
        schema: Schema | None = None,
    ) -> Thread:
        """A new handle on a thread, with its own position.

        `author`: the name that its checkpoints carry, together with a bookmark of what the author had read. Of a
        `configuration`, a hash is stored with the checkpoints; of `dependencies`, the versions by name. With a `schema`,
        its saves and loads are checked and migrated.
        """
        from shoal.kinds.thread.handle.thread import Thread

        return Thread(
            self._connection,
            self.name,
            name,
            author=author,
            configuration=configuration,
            dependencies=dependencies,
            schema=schema,
        )

    async def put_file(
        self, name: str, source: Source, *, type: str | None = None, durability: Durability | None = None
    ) -> FileRef:
        """Store a file of the space: see `Thread.put_file`. The thread `.files` holds those of the space."""
        return await self._files.put_file(name, source, type=type, durability=durability)

    def open_file(self, file: str | FileRef, *, stale: bool = False) -> FileStream:
        """Read a file of the space: see `Thread.open_file`."""
        return self._files.open_file(file, stale=stale)

    async def file(self, name: str, *, stale: bool = False) -> FileRef:
        """A reference to a file of the space: see `Thread.file`."""
        return await self._files.file(name, stale=stale)

    def files(self, *, stale: bool = False) -> FileListing:
        """The files of the space, by name: see `Thread.files`."""
        return self._files.files(stale=stale)

    async def delete_file(self, name: str, *, durability: Durability | None = None) -> bool:
        """Delete a file of the space: see `Thread.delete_file`."""
        return await self._files.delete_file(name, durability=durability)

    @property
    def _files(self) -> ThreadFiles:
        from shoal.kinds.file.handle import ThreadFiles

        return ThreadFiles(self._connection, self.name, requests.SPACE_FILES)

    def worklist(self, name: str) -> Worklist:
        """The worklist of this name of the thread of the same name: `thread(name).worklist(name)`."""
        from shoal.kinds.worklist.handle.worklist import Worklist

        return Worklist(self._connection, self.name, check_name("thread", name), name)

    def counter(self, name: str) -> Counter:
        """A handle on a counter."""
        from shoal.kinds.counter.handle import Counter

        return Counter(self._connection, self.name, name)

    def register(self, name: str) -> Register:
        """A handle on a register."""
        from shoal.kinds.register.handle import Register

        return Register(self._connection, self.name, name)

    def set(self, name: str) -> SharedSet:
        """A handle on a set."""
        from shoal.kinds.set.handle import SharedSet

        return SharedSet(self._connection, self.name, name)

    def list(self, name: str) -> SharedList:
        """A handle on a list."""
        from shoal.kinds.list.handle import SharedList

        return SharedList(self._connection, self.name, name)

    def map(self, name: str) -> SharedMap:
        """A handle on a map."""
        from shoal.kinds.map.handle import SharedMap

        return SharedMap(self._connection, self.name, name)

    def budget(self, name: str) -> Budget:
        """A handle on a budget."""
        from shoal.kinds.budget.handle import Budget

        return Budget(self._connection, self.name, name)

    @property
    def items(self) -> Items:
        """Memory items: values under namespaces and keys."""
        from shoal.kinds.items.handle.items import Items

        return Items(self._connection, self.name)

    @property
    def schemas(self) -> Schemas:
        """The schemas of this space."""
        from shoal.kinds.schema.handle import Schemas

        return Schemas(self._connection, self.name)

    @property
    def redaction(self) -> SpaceRedaction:
        """The rules by which parts of what is written to this space are replaced before they are stored."""
        from shoal.kinds.redaction.handle import SpaceRedaction

        return SpaceRedaction(self._connection, self.name)

    @property
    def retention(self) -> SpaceRetention:
        """The rules by which checkpoints, events and threads of this space go by themselves."""
        from shoal.kinds.retention.handle import SpaceRetention

        return SpaceRetention(self._connection, self.name)

    @property
    def tiering(self) -> SpaceTiering:
        """Where the bytes of this space's idle threads go."""
        from shoal.kinds.tiering.handle import SpaceTiering

        return SpaceTiering(self._connection, self.name)

    @property
    def subjects(self) -> Subjects:
        """The data subjects of this space: which objects carry data about whom."""
        from shoal.client.watching import Subjects

        return Subjects(self._connection, self.name)

    @property
    def presence(self) -> Presence:
        """The clients present in this space, and the state that each has announced with `set`."""
        if self._presence is None:
            from shoal.kinds.presence.handle import Presence

            connection = self._connection

            def on_set(presence: Presence) -> None:
                connection.closing[presence] = presence.close

            self._presence = Presence(
                connection.session, self.name, "", client_id=_client_id(connection), config=connection.config, on_set=on_set
            )
        return self._presence

    async def document(
        self, name: str, *, author: str = "", initial: Mapping[str, Any] | None = None, undo: int = 0
    ) -> Document:
        """Open a live local mirror of a document.

        `author`: the author of edits made here; other clients see it with each change. `initial`: the content of a new
        document; if several clients create it at once, it is there once. `undo`: how many own edits can be undone.

        Raises:
            Disconnected, Unavailable: its state could not be fetched.
            OutcomeUnknown: it may have been created with `initial`, and its state could not be fetched.
        """
        from shoal.kinds.document.handle.document import Document

        connection = self._connection
        place = Place(self.name, check_name("document", name), check_name("author", author) if author else "")
        if initial is not None:
            content = json.dumps(values.to_json(dict(initial)), ensure_ascii=False).encode()
            await connection.write(requests.Begin(self.name, name, content, author), key=None, durability=None)

        async def opened(client_id: int) -> Document:
            return await Document.open(
                connection.session,
                self.name,
                name,
                client_id=client_id,
                config=connection.config,
                durability=connection.durability,
                author=author,
                undo=undo,
            )

        with partly(initial is not None, f"document {name!r} is there with its initial content", "Open it again."):
            left = connection.client_ids.take(place, connection.session.connections)
            document = await opened(_client_id(connection) if left is None else left.client_id)
            if left is not None and document._ended != left:
                await document.abandon()
                document = await opened(_client_id(connection))
        # An edit leaves with the next tick of the loop, so the store may close before.
        connection.closing[document] = document.close_with_store
        document._forget = partial(connection.closing.pop, document, None)
        document._leave = partial(connection.client_ids.leave, place, ids_max=DOCUMENT_CLIENT_IDS_MAX)
        return document

    def lease(self, name: str, *, ttl: float = 30.0, wait: float = 0.0, holder: str | None = None) -> Leasing:
        """`async with space.lease("nightly"):` only one client at a time is in the block, on all nodes.

        The lease ends `ttl` seconds after its last renewal; the block renews it. If it is lost, the block is cancelled and
        raises `LeaseLost`. `wait`: how many seconds to wait for it; those that wait are served in order. `holder`: a name
        for people, and for `handover`; the default is the host and the process.

        Raises:
            LeaseHeld: somebody else holds it, and `wait` is over.
        """
        from shoal.kinds.lease.handle.leases import Leasing

        return Leasing(self._connection, self.name, name, thread=False, ttl=ttl, wait=wait, holder=holder)

    def lock(self, name: str, *, ttl: float = 30.0, wait: float = _FOREVER_S, holder: str | None = None) -> Leasing:
        """`async with space.lock("deploy"):` waits until nobody else is in the block: the lease of this name, waited for.

        As `lease`, but it waits for as long as it takes, unless you give a `wait`.
        """
        return self.lease(name, ttl=ttl, wait=wait, holder=holder)

    async def leases(self) -> builtins.list[requests.LeaseState]:
        """The leases of this space that are held, also those of threads."""
        return (await self._connection.read(requests.ListLeases(self.name))).items

    def batch(self, *, key: str | None = None, durability: Durability | None = None) -> Batch:
        """Collect writes to objects that share a `{tag}`, or to any of a colocated space, and commit them as one."""
        from shoal.client.batch import Batch

        return Batch(self._connection, self.name, key=key, durability=durability)

    def read(self, *, stale: bool = False) -> Reading:
        """Collect reads of objects that share a `{tag}`, or of a colocated space, and read them as of one moment.

        `async with space.read() as read:`; see `shoal.client.reading`. `stale`: see `Store`.
        """
        from shoal.client.reading import Reading

        return Reading(self._connection, self.name, stale=stale)

    def watch(
        self,
        *,
        kinds: Sequence[ObjectKind] = (),
        prefix: str = "",
        after: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Change | Reset, None]:
        """Yield every durable change in this space once, in causal order, from now on or after a change's `bookmark`.

        `kinds`: only changes of objects of these kinds. After a disconnect it continues by itself, with
        another node if there is one. A watcher that falls too far behind gets one `Reset` for the changes that are
        left out. With a `timeout` it ends when nothing has come for so many seconds. To stop early, close it
        (`contextlib.aclosing`), which ends its subscription at once.

        Raises:
            InvalidInput: there is no such kind of object.
            InvalidValue: `after` is not the bookmark of a watch.
            Disconnected: no node could be reached for `request_timeout_s`; continue after the last bookmark.
        """
        from shoal.client.watching import watched

        return watched(self._connection, self.name, kinds=kinds, prefix=prefix, after=after, timeout=timeout)

    def threads(
        self, prefix: str = "", *, status: ThreadStatus | None = None, filter: Mapping[str, Any] | None = None
    ) -> AsyncIterator[str]:
        """The names of the threads, in byte order.

        `status`: only threads with this status; a thread whose status was never set is running.
        `filter`: only threads whose head of `main` has metadata that meets these conditions, as in a search of items:
        `{"team": "red", "score": {"$gte": 3}}`.

        Raises:
            InvalidInput: the filter is not legal.
        """
        if status is None and filter in (None, {}):
            return names(self._connection, self.name, "thread", prefix)
        return self._found(prefix, status, filter)

    async def summaries(
        self,
        prefix: str = "",
        *,
        state: ThreadState | None = None,
        text: str = "",
        author: str = "",
        tag: str = "",
        stuck_after: float = 600.0,
    ) -> AsyncIterator[ThreadSummary]:
        """The threads at a glance: each with its state, and why, in a sentence.

        `state`: only threads that are stuck, wait for a person, are well, or whose rows are damaged ("unknown").
        `text`: part of a name, a reason, a label, an author, a tag, a driver or an open step. `tag`: a text in the list `tags`
        of the newest checkpoint's metadata. A step that is open for `stuck_after` seconds makes its thread stuck.

        Raises:
            InvalidInput: there is no such state.
        """
        if state is not None:
            check_word(state, get_args(ThreadState), "a state")
        age_ms, after, more = int(stuck_after * 1000), "", True
        while more:
            page = await self._connection.read(
                requests.ListSummaries(self.name, state or "", text, author, tag, prefix, age_ms, after)
            )
            for summary in page.items:
                yield summary
            after, more = page.cursor, page.more

    async def work(self, prefix: str = "") -> AsyncIterator[WorkQueue]:
        """The worklists and inboxes of the space's threads that hold or held something."""
        after, more = "", True
        while more:
            page = await self._connection.read(requests.ListWork(self.name, prefix, after))
            for queue in page.items:
                yield queue
            after, more = page.cursor, page.more

    def audit(self, prefix: str = "", *, kind: AuditKind | None = None, by: str = "", text: str = "") -> AsyncIterator[Moment]:
        """All that was done in the space's threads, the newest first, in one order of time: up to 50,000 threads. Of more than
        that, the first 50,000 by name are told, then the next. The first entry costs a request for each 500 threads.

        `kind`: "checkpoint", "step" or "event". `by`: only of this author. `text`: only with this text, in any case of letters.

        Raises:
            InvalidInput: there is no such kind.
        """
        from shoal.kinds.thread.flows.audit import AuditKind, moments

        if kind is not None:
            check_word(kind, get_args(AuditKind), "a kind")
        return moments(self._connection, requests.ReadSpaceAudit(self.name, prefix, kind or "", by, text))

    async def search(self, text: str, prefix: str = "", *, place: HitPlace | None = None) -> AsyncIterator[Hit]:
        """The places that have this text, in any case of letters: names of threads, labels, and the newest checkpoints' tags,
        metadata and states. There is no index: a store with many threads is read page by page, as far as you iterate.

        `place`: only a "name", "label", "tag", "metadata" or "state". Secret fields are left out.

        Raises:
            InvalidInput: the text is empty or too long, or there is no such place.
        """
        if place is not None:
            check_word(place, get_args(HitPlace), "a place")
        after, more = "", True
        while more:
            page = await self._connection.read(requests.Search(self.name, text, prefix, place or "", after))
            for hit in page.items:
                yield hit
            after, more = page.cursor, page.more

    async def _found(self, prefix: str, status: ThreadStatus | None, filter: Mapping[str, Any] | None) -> AsyncIterator[str]:
        if status is not None:
            check_word(status, get_args(ThreadStatus), "a status")
        wanted = packed_fields(filter)
        after: str | None = None
        while after != "":
            page = await self._connection.read(requests.ListThreads(self.name, status or "", prefix, wanted, after))
            for name in page.names:
                yield name
            after = page.after

    async def delete(self, *, durability: Durability | None = None) -> SpaceDeleted:
        """Delete everything in this space on every node: threads, documents, items, schemas and all other objects.

        Every object is deleted by an operation of its own, as its `delete` does: writes made without knowledge of that are
        deleted too, and what others write afterwards stays; `left` counts the objects that are there at the end. What
        only other nodes hold when this one lists its objects is not deleted. Deleting again deletes the rest.

        Raises:
            OutcomeUnknown: some objects are deleted; delete again to delete the rest.
        """
        from shoal.workflows.spaces import delete_space

        return await delete_space(self._connection, self.name, durability=durability)

    async def usage(self, *, since_ms: int = 0, limit: int = 20) -> requests.SpaceUsageView:
        """The size of this space at the node that serves: by kind, prefix and largest objects; and how it grew.

        `since_ms`: the history from then on, in milliseconds since 1970. `limit`: prefixes, and objects; at most 50. Bytes are
        as the rows were counted last, at `counted_ms`; asking begins a new count if there is something new to count.
        """
        return await self._connection.read(requests.ReadSpaceUsage(self.name, since_ms, limit))

    async def quota(self) -> requests.QuotaView:
        """The quota of this space at the node that serves: its limits, what the space uses, and what its record says."""
        return await self._connection.read(requests.ReadQuota(self.name))

    async def set_quota(
        self,
        *,
        bytes: int | None = None,
        objects: int | None = None,
        writes_per_s: float | None = None,
        watchers: int | None = None,
        documents: int | None = None,
        leases: int | None = None,
        presences: int | None = None,
        durability: Durability | None = None,
    ) -> requests.QuotaView:
        """Replace the quota of this space, on all nodes. None: as their configuration says; 0: no limit.

        It takes the right `admin` in the space of the nodes, `.shoal`, because the nodes decide by it. A space that holds as
        much as it may, or more, refuses writes with `Overloaded`, except those that remove.

        Raises:
            InvalidInput: a limit is not a number from 0 on. Nothing was written.
        """
        from shoal.workflows.spaces import set_quota

        return await set_quota(
            self._connection,
            self.name,
            bytes=bytes,
            objects=objects,
            writes_per_s=writes_per_s,
            watchers=watchers,
            documents=documents,
            leases=leases,
            presences=presences,
            durability=durability,
        )

    def documents(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of the documents, in byte order."""
        return names(self._connection, self.name, "document", prefix)

    def counters(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of the counters, in byte order."""
        return names(self._connection, self.name, "counter", prefix)

    def registers(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of the registers, in byte order."""
        return names(self._connection, self.name, "register", prefix)

    def sets(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of the sets, in byte order."""
        return names(self._connection, self.name, "set", prefix)

    def lists(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of the lists, in byte order."""
        return names(self._connection, self.name, "list", prefix)

    def maps(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of the maps, in byte order."""
        return names(self._connection, self.name, "map", prefix)

    def budgets(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of the budgets, in byte order."""
        return names(self._connection, self.name, "budget", prefix)


def _client_id(connection: StoreConnection) -> int:
    """A new Yjs client id. Two mirrors that share one diverge for good: see `shoal.client.connection`."""
    return int.from_bytes(connection.entropy(8), "big") >> (64 - CLIENT_ID_BITS)
