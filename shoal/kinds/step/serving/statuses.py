"""Lists the threads of a directory that an older version wrote under their statuses, in pieces.

Laws:
- A piece is read and written within one turn of the loop, so that no status changes in between. A status that is set
  later is listed by the write that sets it.
- Until all are listed, a search by status reads every thread. If the node stops before, the next incarnation begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from contextlib import suppress
from itertools import islice

from shoal.errors import Overloaded, ShoalError, StoreCorrupt
from shoal.kinds.step.state import status
from shoal.node.catalog import Catalog
from shoal.node.collection.generations import Generations
from shoal.node.target import Target
from shoal.node.transaction import Transaction
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

_PIECE = 64  # Threads; each takes about 0.1 ms.
_PAUSE_S = 0.5  # If too many writes wait for the disk.


class StatusLister:
    """The background task that lists the threads of an old directory under their statuses.

    `closed`: the partitions that are being replaced.
    """

    def __init__(
        self, storage: Storage, commit: GroupCommit, *, catalog: Catalog, generations: Generations, closed: Container[int]
    ) -> None:
        self._storage = storage
        self._commit = commit
        self._catalog = catalog
        self._generations = generations
        self._closed = closed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, on the running loop, if there is anything to do."""
        if self._catalog.is_due:
            self._task = asyncio.get_running_loop().create_task(self._run())

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
        current = status.current(self._generations.current(transaction, target).rows)
        if current is not None:
            self._catalog.set_status(transaction, target, current.status)
