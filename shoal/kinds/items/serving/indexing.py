"""Builds indexes of items, and erases those that were dropped, in pieces.

Laws:
- A piece is read and written within one turn of the loop, so that no item changes in between.
  An item that changes later writes its own index rows, whether or not the index is built.
- Each piece is durable before the next one, and reads a bounded number of rows and bytes.
  While there is nothing to do, there is no task and no timer.
- Each piece records how far it came; the next incarnation continues there when the object is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container

from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.errors import Overloaded, ShoalError
from shoal.kinds.items.serving.indexes import (
    FORM,
    Indexes,
    IndexState,
    declared,
    packed,
    prefix_of,
    standing_row,
    standings,
    value_row,
    values_of,
)
from shoal.kinds.items.state import items
from shoal.node.target import Target
from shoal.node.transaction import ObjectRows, Transaction
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage

_DUE_MAX = 4096  # Objects that wait. One that is left out is noted again when it is next used.


class Indexer:
    """The background task that makes indexes match what is declared. `closed`: the partitions that are being replaced."""

    def __init__(
        self, storage: Storage, commit: GroupCommit, indexes: Indexes, config: Config, *, closed: Container[int]
    ) -> None:
        self._storage = storage
        self._commit = commit
        self._indexes = indexes
        self._closed = closed
        self._config = config
        self._due: dict[Target, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        indexes.on_due = self.stir

    def stir(self, target: Target) -> None:
        """Note that the indexes of an object must be built or erased, and start the task."""
        if len(self._due) < _DUE_MAX:
            self._due[target] = None
        elif target not in self._due:
            self._indexes.moved(target)
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Cancel the task; the next incarnation continues. Stopping twice is allowed."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._due and not self._stopped:
                target = next(iter(self._due))
                try:
                    number = self._advance(target)
                except Overloaded:
                    await asyncio.sleep(self._config.sync_interval_s)
                    continue
                if number is None:
                    del self._due[target]
                await self._commit.wait_durable(number or 0)
                await asyncio.sleep(0)
        except ShoalError:
            for target in self._due:  # Storage failed or cannot be read: the next use of an object notes it again.
                self._indexes.moved(target)
            self._due.clear()
        finally:
            self._task = None

    def _advance(self, target: Target) -> int | None:
        """Build or erase one piece; returns the number of its write, or None if there is nothing to do."""
        if target.partition in self._closed:
            return None  # It is replaced, without its indexes: their next use makes them due.
        transaction = Transaction(self._storage)
        prefix = prefix_of(transaction, target)
        wanted, found = declared(transaction, prefix), standings(transaction, prefix)
        for field, standing in found.items():
            if field not in wanted or standing.form != FORM:
                return self._erase(target, prefix, field)
        for field in sorted(wanted):
            standing = found.get(field, IndexState(FORM, built=False))
            if not standing.built:
                return self._build(ObjectRows(transaction, prefix), target, field, standing)
        return None

    def _erase(self, target: Target, prefix: bytes, field: str) -> int:
        start = values_of(prefix, field)
        stop = successor(start)
        assert stop is not None  # It begins with the table's byte.
        number = self._commit.write({standing_row(prefix, field): None}, [(start, stop)])
        self._indexes.moved(target)
        return number

    def _build(self, of_items: ObjectRows, target: Target, field: str, standing: IndexState) -> int:
        rows: dict[bytes, bytes | None] = {}
        prefix = of_items.key(b"")
        path, size, looked_at = standing.path, 0, 0
        for path, stored in items.stored_after(of_items, standing.path):
            if (row := value_row(prefix, field, path, stored)) is not None:
                rows[row] = b""
            looked_at, size = looked_at + 1, size + len(stored)
            if looked_at == self._config.index_build_rows_max or size >= self._config.page_bytes_max:
                break
        else:
            standing = IndexState(FORM, built=True)
        if not standing.built:
            standing = IndexState(FORM, built=False, path=path)
        rows[standing_row(prefix, field)] = packed(standing)
        number = self._commit.write(rows)
        self._indexes.moved(target)
        return number
