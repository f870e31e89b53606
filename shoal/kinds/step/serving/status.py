"""A thread's status over storage.

Lists the threads of a directory that an older version wrote under their standings, in pieces.

Laws:
- A piece is read and written within one turn of the loop, so that no standing changes in between. One that changes
  later is listed by the write that changes it.
- Until all are listed, a search by status reads every thread. If the node stops before, the next incarnation begins anew.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import get_args

from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, Overloaded, ShoalError, StoreCorrupt
from shoal.kinds.journal.serving.journals import tell
from shoal.kinds.step import state as status
from shoal.names import check_name
from shoal.node.catalog import Catalog, is_asking, standing_of
from shoal.node.collection.entries import Generations
from shoal.node.context import NodeContext
from shoal.node.handler import Checks, Readers, Target, View, WriteContext, Writers
from shoal.node.naming import check_text
from shoal.node.transaction import Transaction
from shoal.protocol.requests import MoveThread, ReadStanding, Standing, ThreadStatus
from shoal.storage.keys import Kind

_STATUSES: tuple[str, ...] = get_args(ThreadStatus)


class StatusHandler:
    """The handler of a thread's status. A move also appends an event to the journal."""

    def __init__(self) -> None:
        self.checks: Checks = {MoveThread: self._check}
        self.writers: Writers = {MoveThread: self._move}
        self.readers: Readers = {ReadStanding: self._read}

    def _check(self, request: MoveThread) -> None:
        check_name("thread", request.thread)
        if request.status not in _STATUSES:
            raise InvalidInput(
                f"status must be one of {', '.join(_STATUSES)}; got {request.status!r}. Nothing was written.", field="status"
            )
        check_text(request.reason, "a reason")
        check_text(request.by, "an author")

    def _move(self, context: WriteContext, request: MoveThread) -> Standing:
        change = status.Move(request.status, request.reason, request.by, context.implied_key)
        context.apply(change)
        tell(context, "status", {"status": request.status, "by": request.by, "reason": request.reason})
        return shown(context.rows)

    def _read(self, view: View, _request: ReadStanding) -> Standing:
        return shown(view.rows)


def shown(rows: Rows) -> Standing:
    """The status of a thread as clients get it; `running` if nobody has set one."""
    current = status.current(rows)
    if current is None:
        return Standing("running", "", "", 0)
    return Standing(current.status, current.reason, current.by, current.wall_ms)


_PIECE = 64  # Threads; each takes about 0.1 ms.
_PAUSE_S = 0.5  # If too many writes wait for the disk.


class StatusLister:
    """The background task that lists the threads of an old directory under their standings.

    `closed`: the partitions that are being replaced.
    """

    def __init__(self, context: NodeContext, catalog: Catalog, generations: Generations) -> None:
        self._storage = context.storage
        self._upkeep = context.upkeep
        self._commit = context.commit
        self._catalog = catalog
        self._generations = generations
        self._closed = context.partitions.closed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, on the running loop, if there is anything to do."""
        if self._catalog.is_due:
            self._task = self._upkeep.begin(self._run(), "upkeep of statuses")

    async def stop(self) -> None:
        """Cancel the task. Stopping twice is allowed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        threads = self._catalog.all_of(Kind.THREAD)
        with suppress(ShoalError):  # Storage failed or stops.
            while piece := list(islice(threads, _PIECE)):
                await self._written(piece)
            await self._written(None)

    async def _written(self, piece: list[Target] | None) -> None:
        """List these threads; None: all are listed."""
        while True:
            transaction = Transaction(self._storage)
            if piece is None:
                self._catalog.mark_indexed(transaction)
            for target in piece or ():
                if target.partition in self._closed:
                    continue  # It is being replaced, and its threads are listed with that.
                with suppress(StoreCorrupt):  # It is listed once it has been rebuilt.
                    self._list(transaction, target)
            if not transaction.rows:
                await asyncio.sleep(0)
                return
            try:
                number = self._commit.write(transaction.rows)
            except Overloaded:
                await asyncio.sleep(_PAUSE_S)
                continue
            transaction.written()
            await self._commit.wait_durable(number)
            return

    def _list(self, transaction: Transaction, target: Target) -> None:
        rows = self._generations.current(transaction, target).rows
        self._catalog.set_standing(transaction, target, standing_of(rows))
        self._catalog.set_asking(transaction, target, is_asking(rows))
