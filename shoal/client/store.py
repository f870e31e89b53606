"""The store: its spaces, its nodes, its backup, and its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Literal, NoReturn

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.client.space import Space as Space
from shoal.errors import InvalidInput, ShoalError
from shoal.names import check_name, is_colocated
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    Durability,
)
from shoal.workflows.connection import as_duration_ms

if TYPE_CHECKING:
    from shoal.workflows.transfer.importing import ImportReport

METRICS_EVERY_MS_MIN = 100  # Between two looks: each asks the node three times.


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric of docs/METRICS.md at one moment."""

    name: str  # A counter's ends in "_total".
    labels: Mapping[str, str]  # Such as {"condition": "read-only"}; mostly empty.
    value: float


@named
class Store:
    """A store, made by `shoal.open` or `shoal.connect`; `async with` closes it.

    The bookmark of a store records what it has written and seen, so that no read, on any node,
    shows an older state. If a node lacks that state, a read raises `SessionBehind` or
    `BookmarkLost`. With `stale=True` a read shows the node's state, and the bookmark goes
    back to that. If all nodes can be reached, and none knows what the store saw of objects that it has not touched
    for most of `forget_after_s` (a week), they have forgotten it, and the store goes on.
    """

    def __init__(
        self, connection: StoreConnection, *, close: Callable[[], Awaitable[None]], abandon: Callable[[], None] = lambda: None
    ) -> None:
        """`close` closes what is open on its loop, and `abandon` once that has ended."""
        self._connection = connection
        self._close = close
        self._abandon = abandon

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    if not TYPE_CHECKING:  # A checker is to refuse these names.

        def __getattr__(self, name: str) -> NoReturn:
            hint = f' Objects are in a space: store.space("crew").{name}(…).' if hasattr(Space, name) else ""
            raise AttributeError(f"a store has no {name!r}.{hint}", name=name, obj=self)

    @property
    def connection(self) -> StoreConnection:
        """The connection that the handles share, for integrations that send requests of their own."""
        return self._connection

    @property
    def bookmark(self) -> str:
        """The bookmark: what this store has written and seen, as text to pass to `observe` of another store."""
        return self._connection.session.bookmark.text()

    def observe(self, bookmark: str) -> None:
        """From now on, show at least what the store of this bookmark has written and seen.

        Raises:
            InvalidValue: it is not a bookmark.
        """
        self._connection.session.bookmark.join(Bookmark.parse(bookmark))

    def space(self, name: str, *, colocated: bool | None = None) -> Space:
        """A space. A colocated one has all its objects in one partition, so that any of them can be in one batch.

        The name decides this: `space("crew", colocated=True)` is the space `{crew}`, for all clients.
        It suits a small crew, because a partition is the unit of replication.

        Raises:
            InvalidName: `name` is not legal.
            InvalidInput: `colocated=False`, but the name is that of a colocated space.
        """
        check_name("space", name)
        if colocated and not is_colocated(name):
            name = f"{{{name}}}"
        elif colocated is False and is_colocated(name):
            raise InvalidInput(
                f"space {name!r} is colocated, because its whole name is in braces. Nothing was written. "
                f"Open {name[1:-1]!r}, which is another space, or omit `colocated`."
            )
        return Space(self._connection, name)

    async def spaces(self) -> AsyncIterator[str]:
        """The names of all spaces, in the order of their lengths, then bytes."""
        after: str | None = None
        while True:
            page = await self._connection.read(requests.ListSpaces(after))
            for name in page.names:
                yield name
            if not page.more:
                return
            after = page.names[-1]

    async def status(self) -> requests.NodeStatus:
        """The state of the serving node: its health, its peers and what it holds."""
        return await self._connection.read(requests.Status())

    async def cluster(self) -> requests.ClusterView:
        """The owners as the serving node sees them, itself first."""
        return await self._connection.read(requests.Cluster())

    async def metrics(self) -> str:
        """The metrics of the serving node in Prometheus's text format, docs/METRICS.md; of requests only a server has some.

        For a store in this process: serve the text. `watch_metrics` gives the same as values.
        """
        from shoal.workflows import measured  # It loads a library that few programs need.

        told = await self.status(), await self.cluster(), await self.conditions()
        return measured.text(measured.families(*told, None))

    async def watch_metrics(self, *, every: timedelta | float = 15.0) -> AsyncIterator[list[MetricSample]]:
        """The metrics of the serving node as values, now and again and again, to be sent on; ends when the store closes.

        `every`: the pause between two looks, in seconds or a timedelta, 0.1 s at least. The list has what `metrics` has.

        Raises:
            InvalidInput: `every` is no such time.
        """
        from shoal.workflows import measured  # It loads a library that few programs need.

        pause_ms = as_duration_ms(every, what="every") or 0
        if pause_ms < METRICS_EVERY_MS_MIN:
            raise InvalidInput(f"every must be 0.1 seconds or more; got {every!r:.80}. Nothing was written.", field="every")
        closed = self._connection.closed
        while not closed.is_set():
            self._connection.check_home()
            told = await self.status(), await self.cluster(), await self.conditions()
            found = measured.families(*told, None)
            yield [MetricSample(each.name, each.labels, each.value) for family in found for each in family.samples]
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await closed.wait()

    async def usage(self, *, since_ms: int = 0, limit: int = 20) -> requests.UsageView:
        """The bytes on the disk of the serving node: the largest spaces, what keeps the log, and how both grew.

        `since_ms`: the history from then on, in milliseconds since 1970. `limit`: spaces, at most 100. Bytes are as the rows
        were counted last, at `counted_ms`; asking begins a new count if there is something new to count.
        """
        return await self._connection.read(requests.ReadUsage(since_ms, limit))

    async def conditions(self) -> requests.ConditionsView:
        """The troubles of the serving node and its cluster now, the worst first, each with the command that mends it."""
        return await self._connection.read(requests.ReadConditions())

    async def members(self) -> requests.MembersView:
        """The members of the cluster, and how far a change of them is, as the serving node knows."""
        return await self._connection.read(requests.ReadMembers())

    async def sign_heads(self) -> requests.Statement:
        """A statement, signed by the serving node, of all that it holds durably: docs/AUDIT.md."""
        return await self._connection.read(requests.SignHeads())

    async def add_member(self, address: str) -> requests.MembersView:
        """Add the node at this address ("host:port"), which has an empty directory. The change goes on by itself.

        Raises:
            ChangeUnderWay: another change is under way.
            NoQuorum: too few members are up.
            InvalidInput: it is a member already, or no address.
        """
        return await self._change("add", joins=address)

    async def drain_member(self, address: str) -> requests.MembersView:
        """Remove a member that is up, once the others hold all that it holds. It writes nothing from then on.

        The call can be repeated, also at the node that left: a member that was drained already stays as it is. So can
        `replace_member` and `forget_member`.

        Raises:
            as `add_member`.
        """
        return await self._change("drain", leaves=address)

    async def replace_member(self, old: str, new: str) -> requests.MembersView:
        """Put the node at `new`, which has an empty directory, in the place of `old`, which may be down.

        Raises:
            as `add_member`.
        """
        return await self._change("replace", leaves=old, joins=new)

    async def forget_member(self, address: str) -> requests.MembersView:
        """Remove a member that is down. Its directory is refused from then on; what only it held is lost to the cluster.

        `address` may also be the id of a directory, in hex, whose place another one took; then the members stay.

        Raises:
            as `add_member`.
        """
        return await self._change("forget", leaves=address)

    async def cancel_change(self) -> requests.MembersView:
        """Take back the change of the members that is under way.

        Raises:
            as `add_member`.
        """
        return await self._change("cancel")

    async def rebuild_cluster(self, plan: str = "", *, leases_after: float | None = None) -> requests.RebuildView:
        """Look at what is left of a cluster whose register lost its majority; with the `plan` that this names, go on with it.

        All members that do not answer are refused from then on. `leases_after` is for how long (in seconds) clients of lost
        members may still hold leases; by default as long as any lease may last.

        Raises:
            InvalidInput: the register has a quorum, or what is left has changed since the plan was told; nothing was written.
            Unavailable: a survivor did not answer; nothing was founded.
            OutcomeUnknown: not all survivors said that they go on. Look again.
        """
        after_ms = -1 if leases_after is None else max(0, round(leases_after * 1000))
        return await self._connection.read(requests.Rebuild(plan, after_ms))

    async def export_to(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        *,
        space: str | None = None,
        thread: str | None = None,
        reveal: bool = False,
        changes: bool = False,
    ) -> int:
        """Write a thread, a space or, without these, all spaces as lines (docs/EXPORT.md). Returns how many.

        A path must not exist yet. `reveal`: with secret fields; without them checkpoints that have some get other ids where
        they are imported. `changes`: states as changes of their parents', which takes less.

        Raises:
            NotFound: there is no such thread.
            InvalidInput: the file exists, or cannot be written; or a thread is named without its space.
        """
        from shoal.workflows.transfer.exporting import Wanted
        from shoal.workflows.transfer.importing import written

        return await written(self._connection, Wanted(space, thread, reveal, changes), file)

    async def import_from(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        *,
        space: str | None = None,
        name: str | None = None,
        existing: Literal["refuse", "resume", "replace"] = "refuse",
        durability: Durability | None = None,
    ) -> ImportReport:
        """Read back what `export_to` or `shoal export` wrote, and compare what is there afterwards (docs/EXPORT.md).

        `name`: another name for the thread, or the space, of the export. `space`: where a thread goes. An object that is
        there is left as it is; with `existing="resume"` it is gone on with, as after an import that was cut, and with
        "replace" it is deleted first.

        Raises:
            InvalidInput: it is no export, is cut, or was altered. A file is checked before anything is written.
            Unsupported: a later version wrote it. Nothing was written.
            OutcomeUnknown: a part of it could not be written; import it again with "resume".
        """
        from shoal.workflows.transfer.importing import Aim, read

        return await read(self._connection, file, Aim(space, name, existing, durability))

    async def _change(
        self, change: Literal["add", "drain", "replace", "forget", "cancel"], *, joins: str = "", leaves: str = ""
    ) -> requests.MembersView:
        return await self._connection.read(requests.ChangeMembers(change, joins, leaves))

    @property
    def backup(self) -> Backup:
        """The backup of the whole store, or of its cluster, to a bucket or a directory: docs/BACKUP.md."""
        return Backup(self._connection)

    async def close(self) -> None:
        """Finish pending requests, write the edits of open documents, and release all resources. Closing twice is allowed.

        In a forked child it does nothing, because the store is its parent's. If the loop that the store was opened on has
        ended, it is released without that loop.

        Raises:
            WrongLoop: it was opened on another loop, which has not ended; nothing was closed.
            ShoalError: edits of a document could not be written. The store is closed all the same.
        """
        home = self._connection.home
        if home is not None:
            if home.is_inherited:
                return
            if home.has_ended:
                self._abandon()
                return
            home.check()
        self._connection.closed.set()
        closing = list(self._connection.closing.values())
        self._connection.closing.clear()
        failed: list[ShoalError] = []
        for close in closing:
            try:
                await close()
            except ShoalError as error:
                failed.append(error)
        await self._close()
        if failed:
            raise failed[0]


class Backup:
    """Where a store is backed up, and how far."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def init(self, url: str, *, keep: timedelta | float | None = None) -> requests.BackupView:
        """Have all nodes ship to this place from now on: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR.

        `keep`: for how long each moment can be restored, in seconds or a timedelta, a day at least; 0: for ever. Without
        it that stays as it is.

        Raises:
            BackupConflict: it holds the backup of another cluster; nothing was declared.
            BackupUnreachable: it cannot be read or written from the serving node; nothing was declared.
            InvalidInput: it is no address, or `keep` is less than a day.
        """
        return await self._connection.read(requests.DeclareBackup(url, as_duration_ms(keep, what="keep")))

    async def off(self) -> requests.BackupView:
        """Have no node ship any more. What is in the bucket stays."""
        return await self._connection.read(requests.DeclareBackup(""))

    async def status(self) -> requests.BackupView:
        """Where the store is backed up, and how far, as the serving node knows."""
        return await self._connection.read(requests.ReadBackup())
