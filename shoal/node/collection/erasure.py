"""Erasure: within `erase_within_s`, no file of the directory holds what was deleted, pruned, trimmed or compacted.

Storage keeps the bytes of deleted rows in its files until a pass over them (`LoggedStorage.begin_erasing`). A pass may write
the whole store again, so one pass serves all deletions of a period: it begins half of `erase_within_s` after the first.

Laws:
- A row of the store itself, the *mark*, says that a pass is due. It is written in the batch that deletes, and removed
  after a pass that began later. So a pass that a crash cuts short is repeated.
- While the log holds operations from before the last deletion, the mark stays: they may hold the deleted values. Once they
  have left the log, another pass follows.
- While there is no mark, there is no task and no timer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import msgspec
from msgspec.structs import replace

from shoal.cluster import operation
from shoal.crdt.dot import COUNTER_BITS
from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.node.context import NodeContext
from shoal.node.transaction import Transaction
from shoal.node.turns import lasting
from shoal.storage import keys

_LOOK_INTERVAL_S = 1.0  # How often storage is asked whether a pass is over.
_AHEAD = 1000 << COUNTER_BITS  # The mark covers the deletions of the next second, so that they need not write it again.
ROW = keys.meta("erasing")


class ErasureDue(msgspec.Struct, array_like=True, frozen=True):
    """The value of the mark."""

    since_ms: int  # When the first deletion was made: the wall clock of this node, in milliseconds since 1970.
    until: int  # The mark covers deletions whose hybrid logical time is at most this.
    passed: bool = False  # Whether a pass has begun since the last deletion, so that only the log may hold what it deleted.


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ErasureDue)


class Erasure:
    """The mark of one directory, and the task that has storage erase. `passes` counts those of this incarnation."""

    def __init__(self, context: NodeContext) -> None:
        self._storage = context.storage
        self._commit = context.commit
        self._clock = context.clock
        self._within_ms = int(context.config.erase_within_s * 1000)
        self._now_ms = context.environment.now_ms
        self._monotonic = context.environment.monotonic
        self._pause = context.environment.pause
        self._run_blocking = context.environment.run_blocking
        self._mark: ErasureDue | None = None
        self._notes = 0  # Deletions, in this incarnation.
        self._task: asyncio.Task[None] | None = None
        self._is_running = False
        self.passes = 0

    @property
    def mark(self) -> ErasureDue | None:
        """The erasure that is due: another object once it changes."""
        return self._mark

    @property
    def is_due(self) -> bool:
        """Whether files, or the log, may hold something that was deleted."""
        return self._mark is not None

    def start(self) -> None:
        """Go on where the last incarnation ended."""
        self._is_running = True
        packed = self._storage.get(ROW)
        if packed is not None:
            self._mark = self._read(packed)
            self._stir()

    def _read(self, packed: bytes) -> ErasureDue:
        """The mark in the row; if it cannot be decoded, one that covers all that can have been deleted by now."""
        with suppress(ValueError):
            return _decoder.decode(packed)
        now_ms = self._now_ms()
        return ErasureDue(now_ms, max(self._clock.last, now_ms << COUNTER_BITS) + _AHEAD)

    async def stop(self) -> None:
        """Cancel the task; the next opening begins its pass again. Stopping twice is allowed."""
        self._is_running = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def note(self, transaction: Transaction) -> None:
        """Note that this transaction deletes something."""
        mark, covered = self._mark, self._clock.last
        if mark is None or mark.passed or mark.until < covered:
            since_ms = self._now_ms() if mark is None or mark.passed else mark.since_ms
            mark = ErasureDue(since_ms, covered + _AHEAD)
            transaction.put(ROW, _encoder.encode(mark))
        transaction.when_written(partial(self._noted, mark))

    def _noted(self, mark: ErasureDue) -> None:
        self._mark = mark
        self._notes += 1
        self._stir()

    def _stir(self) -> None:
        if self._task is None and self._is_running:
            self._task = lasting(self._run(), "erasure of deleted bytes")

    async def _run(self) -> None:
        try:
            while (mark := self._mark) is not None:
                due_ms = min(mark.since_ms + self._within_ms // 2 - self._now_ms(), self._within_ms // 2)
                await asyncio.sleep(max(due_ms / 1000, _LOOK_INTERVAL_S))
                await self._advance()
        except ShoalError:
            return  # Storage rejects writes or cannot be read. The next incarnation starts this again.
        finally:
            self._task = None

    async def _advance(self) -> None:
        """Make a pass if one is due, and note what is left to do."""
        mark, notes, began_ms = self._mark, self._notes, self._now_ms()
        assert mark is not None
        # Before the pass: what leaves the log while it is under way needs another one.
        is_logged = await self._is_logged(mark.until)
        if mark.passed and is_logged:
            self._mark = replace(mark, since_ms=began_ms)
            return
        await self._pass()
        left = self._mark
        assert left is not None
        if notes != self._notes:
            left = replace(left, since_ms=began_ms)
        else:
            left = replace(left, since_ms=began_ms, passed=True) if is_logged else None
        self._commit.write({ROW: None if left is None else _encoder.encode(left)})
        self._mark = left

    async def _pass(self) -> None:
        self._storage.begin_erasing()
        began = self._monotonic()
        is_over = False
        while not is_over:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            is_over = await self._run_blocking(lambda: self._storage.erase(self._monotonic() - began))
        self.passes += 1

    async def _is_logged(self, until: int) -> bool:
        """Whether the log holds an operation up to a hybrid logical time: one that may hold what was deleted."""
        start, stop = keys.LOG, successor(keys.LOG)
        while (row := next(iter(self._storage.scan(start, stop, limit=1)), None)) is not None:
            if operation.decode(operation.LogEntry.unpack(row[1]).packed).hlc <= until:
                return True
            partition, dot = keys.split_log(row[0])
            after = successor(keys.log_of(partition, dot.origin))
            assert after is not None  # It begins with the table's byte.
            start = after
            await self._pause()
        return False
