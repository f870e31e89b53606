"""Finds what no file of a thread needs any more, and has it dropped.

Laws:
- A thread that may hold such things has a row of the store itself, written in the batch that changed its files. So what one
  opening leaves the next one finds. The row goes once every upload is over and every content has a name.
- An upload is dropped `UPLOAD_KEPT_S` after it was made. A content that lost its name to another put is dropped after
  `NAMELESS_KEPT_S`, since its reference may be on its way into a checkpoint; one of a deleted name at once, by the deletion.
- A content to which a value refers stays. It is looked at again once checkpoints or events of the thread go.
- Contents without a name wait in rounds, all of a thread together, at most `ROUND_MAX` of them; after each come the next, in
  the order of their hashes. So none is passed over, however many there are, and a content that is put meanwhile waits anew.
- While a drop of the thread's files is being swept, no other one is issued. Owners that issue the same drop do no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.kinds.file import state as files
from shoal.node.context import NodeContext
from shoal.node.handler import Target, Upkeep
from shoal.node.snapshots.switching import listed
from shoal.node.transaction import ObjectRows, Transaction
from shoal.node.turns import lasting
from shoal.protocol.requests import AnyReply, ObjectWrite, SweepFiles
from shoal.storage import keys
from shoal.storage.keys import Kind

UPLOAD_KEPT_S = 86_400.0
NAMELESS_KEPT_S = 3600.0
LOOK_S = 5.0  # After a change, so that one look serves several; and until one that could not be taken is taken again.
_CONTENTS_MAX = 1024  # That are read at once, and swept together.
ROUND_MAX = 4096  # Contents of one thread that wait at a time,
ROUNDS_CONTENTS_MAX = 16_384  # and of all threads; the rounds of others begin later.
_ROW = "files/"


class _Round:
    """Contents of one thread that wait together."""

    __slots__ = ("changed", "contents", "over_at", "through")

    def __init__(self, contents: dict[bytes, bytes], over_at: float, through: bytes, *, changed: bool) -> None:
        self.contents = contents  # Each with the hash of what is known of its puts.
        self.over_at = over_at
        self.through = through  # Its last content, if there are more behind it; else no bytes.
        self.changed = changed  # Whether the thread did since the first of the rounds that followed each other.


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
        self._rounds: dict[Target, _Round] = {}
        self._waiting = 0  # Contents in them.
        self._ended: dict[Target, _Round] = {}  # Of threads that have more than a round: the last one.
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
        for rounds in (self._rounds, self._ended):
            if target in rounds:
                rounds[target].changed = True
        self._stirred.set()
        if self._task is None and self._is_running:
            self._task = lasting(self._run(), "sweeping of files")

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
            self._end(target)
            self._ended.pop(target, None)
            return float("inf")
        before_ms = now_ms - int(UPLOAD_KEPT_S * 1000)
        again_at = min(
            (now + (each.wall_ms - before_ms) / 1000 for each in uploads if each.wall_ms >= before_ms), default=float("inf")
        )
        has_old_uploads = any(each.wall_ms < before_ms for each in uploads)
        waiting = self._rounds.get(target)
        old = [] if waiting is None or waiting.over_at > now else list(waiting.contents)
        if old or has_old_uploads:
            if self._is_swept(target):
                return now + LOOK_S
            for start in range(0, max(1, len(old)), _CONTENTS_MAX):
                here, some = self._rows(target), old[start : start + _CONTENTS_MAX]
                gone = [each for each in some if waiting is not None and _puts_of(here, each) == waiting.contents[each]]
                await self._sweep(SweepFiles(target.space, target.name, gone, max(0, before_ms)))
        if old and waiting is not None:
            self._end(target)
            if waiting.through:
                self._ended[target] = waiting
            return min(again_at, now + LOOK_S if waiting.through or waiting.changed else float("inf"))
        return min(again_at, self._begun(target, now) if waiting is None else waiting.over_at)

    def _begun(self, target: Target, now: float) -> float:
        """Begin a round; when to look again."""
        room = min(ROUND_MAX, ROUNDS_CONTENTS_MAX - self._waiting)
        if room <= 0:
            return now + LOOK_S
        rows, ended = self._rows(target), self._ended.pop(target, None)
        found = files.nameless(rows, after=b"" if ended is None else ended.through, limit=room + 1)
        changed = ended is not None and ended.changed
        if not found:
            return now + LOOK_S if changed else float("inf")
        contents = {content: _puts_of(rows, content) for content in found[:room]}
        through = found[room - 1] if len(found) > room else b""
        self._rounds[target] = _Round(contents, now + NAMELESS_KEPT_S, through, changed=changed)
        self._waiting += len(contents)
        return now + NAMELESS_KEPT_S

    def _end(self, target: Target) -> None:
        if (ended := self._rounds.pop(target, None)) is not None:
            self._waiting -= len(ended.contents)

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


def _puts_of(rows: ObjectRows, content: bytes) -> bytes:
    return sha256(files.standing(rows, content)).digest()[:8]


def _now() -> float:
    return asyncio.get_running_loop().time()


def _row_of(target: Target) -> bytes:
    return keys.meta(_ROW) + keys.object_rows(target.partition, *target)[1:]
