"""Finds what no file of a thread needs any more, and has it dropped.

Laws:
- A thread that may hold such things has a row of the store itself, written in the batch that changed its files. So what one
  opening leaves the next one finds. The row goes once every upload is over and every content has a name.
- An upload is dropped `UPLOAD_KEPT_S` after it was made. A content that lost its name to another put is dropped after
  `NAMELESS_KEPT_S`, since its reference may be on its way into a checkpoint; one of a deleted name at once, by the deletion.
- A content to which a value refers stays. It is looked at again once checkpoints or events of the thread go.
- While a drop of the thread's files is being swept, no other one is issued. Owners that issue the same drop do no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.kinds.file import state as files
from shoal.node.context import NodeContext
from shoal.node.handler import Upkeep
from shoal.node.snapshots.switching import listed
from shoal.node.target import Target
from shoal.node.transaction import ObjectRows, Transaction
from shoal.protocol.requests import AnyReply, ObjectWrite, SweepFiles
from shoal.storage import keys
from shoal.storage.keys import Kind

UPLOAD_KEPT_S = 86_400.0
NAMELESS_KEPT_S = 3600.0
LOOK_S = 5.0  # After a change, so that one look serves several; and until one that could not be taken is taken again.
_CONTENTS_MAX = 1024  # That are read at once, and swept together.
_SINCE_MAX = 16_384  # Contents without a name of which it is remembered since when; others begin anew.
_ROW = "files/"


class FileKeeper:
    """The task of one node. `rows` gives those of a thread, `maintained` carries out a sweep, `issue` writes its parts."""

    def __init__(
        self,
        context: NodeContext,
        *,
        rows: Callable[[Target], ObjectRows],
        maintained: Callable[[SweepFiles], Upkeep],
        issue: Callable[[ObjectWrite[Any]], AnyReply],
        is_swept: Callable[[Target], bool],
    ) -> None:
        self._storage, self._commit = context.storage, context.commit
        self._partitions = context.partitions
        self._now_ms, self._pause = context.environment.now_ms, context.environment.pause
        self._rows, self._maintained, self._issue, self._is_swept = rows, maintained, issue, is_swept
        self._due: dict[Target, float] = {}  # Threads with a row, and when to look at them: never, until something goes there.
        self._since: dict[tuple[Target, bytes], float] = {}
        self._task: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._is_running = False

    def start(self) -> None:
        """Go on where the last opening ended."""
        self._is_running = True
        for key, _ in self._storage.scan(keys.meta(_ROW), successor(keys.meta(_ROW))):
            self._look_at(Target(*keys.split_object(keys.OBJECT + key[len(keys.meta(_ROW)) :])[1:4]))

    async def stop(self) -> None:
        """Cancel the task; the next opening continues it. Stopping twice is allowed."""
        self._is_running = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def changed(self, transaction: Transaction, target: Target) -> None:
        """This transaction changes the files of a thread."""
        if target not in self._due:
            transaction.put(_row_of(target), b"")
        transaction.when_written(partial(self._look_at, target))

    def freed(self, transaction: Transaction, target: Target) -> None:
        """Checkpoints or events of a thread go: a file may be needed no more."""
        if target in self._due:
            transaction.when_written(partial(self._look_at, target))

    def replaced(self, number: int) -> None:
        """The rows of a partition were replaced."""
        rows: dict[bytes, bytes | None] = {}
        for target in listed(self._storage, number, Kind.THREAD):
            if files.has_files(self._rows(target)):
                rows[_row_of(target)] = b""
                self._look_at(target)
        if rows:
            self._commit.write(rows)

    def _look_at(self, target: Target) -> None:
        self._due[target] = min(self._due.get(target, float("inf")), _now() + LOOK_S)
        self._stirred.set()
        if self._task is None and self._is_running:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while (at := min(self._due.values(), default=float("inf"))) != float("inf"):
                self._stirred.clear()
                if (wait_s := at - _now()) > 0:
                    try:
                        async with asyncio.timeout(wait_s):
                            await self._stirred.wait()
                    except TimeoutError:
                        pass
                    continue
                await self._look(next(target for target, due in self._due.items() if due == at))
        finally:
            self._task = None

    async def _look(self, target: Target) -> None:
        self._due[target] = float("inf")
        try:
            again_at = await self._swept(target)
        except ShoalError:  # Storage rejects writes, the partition is being replaced, or a row is damaged.
            again_at = _now() + LOOK_S
        if target in self._due:
            self._due[target] = min(self._due[target], again_at)

    async def _swept(self, target: Target) -> float:
        """Have dropped what is over; when to look again."""
        rows, now, now_ms = self._rows(target), _now(), self._now_ms()
        uploads = files.uploads(rows)
        if not uploads and not files.nameless(rows, limit=1):
            self._commit.write({_row_of(target): None})
            del self._due[target]
            return float("inf")
        before_ms = now_ms - int(UPLOAD_KEPT_S * 1000)
        again_at = min(
            (now + (each.wall_ms - before_ms) / 1000 for each in uploads if each.wall_ms >= before_ms), default=float("inf")
        )
        has_old_uploads = any(each.wall_ms < before_ms for each in uploads)
        after = b""
        while (nameless := files.nameless(self._rows(target), after=after, limit=_CONTENTS_MAX)) or has_old_uploads:
            old: list[bytes] = []
            for content in nameless:
                over_at = self._nameless_since(target, content, now) + NAMELESS_KEPT_S
                if over_at <= now:
                    old.append(content)
                else:
                    again_at = min(again_at, over_at)
            if old or has_old_uploads:
                if self._is_swept(target):
                    return now + LOOK_S
                await self._sweep(SweepFiles(target.space, target.name, old, max(0, before_ms)))
                has_old_uploads = False
            if len(nameless) < _CONTENTS_MAX:
                break
            after = nameless[-1]
        return again_at

    async def _sweep(self, request: SweepFiles) -> None:
        upkeep = self._maintained(request)
        reply: AnyReply | None = None
        while True:
            try:
                piece = upkeep.send(reply)
            except StopIteration:
                return
            reply = None if piece is None else self._issue(piece.write)
            await self._pause()

    def _nameless_since(self, target: Target, content: bytes, now: float) -> float:
        while len(self._since) >= _SINCE_MAX:
            del self._since[next(iter(self._since))]
        return self._since.setdefault((target, content), now)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _row_of(target: Target) -> bytes:
    return keys.meta(_ROW) + keys.object_rows(target.partition, *target)[1:]
