"""Answers under requests' keys, in table `K`; and erasure: when no file of the directory holds what was deleted.

The rows of table `K`: the operation that a request's key stands for and, once it has left the log, its answer.

Laws:
- While the operation is in the log, the row is its dot, and the answer is read from the log. The batch that truncates the
  log extends the row by all that a repeated request needs.
- Of two operations with one key the least dot counts, on every replica. But a key is known for `key_window_s` only: an
  operation issued later than that takes the key over.

Which keys of requests expire: those whose window is over, and of which no second operation can still arrive.

Laws:
- A key expires only after its operation has left the log.
- It is at least `key_window_s` old, and its operation is stable in two steps (`shoal.cluster.truncation`), so that no owner
  can still have issued an operation with the same key. After `forget_after_s` it goes in any case.
- One call looks at a bounded number of rows. A partition's keys are all looked at several times in each window.

Erasure: within `erase_within_s`, no file of the directory holds what was deleted, pruned, trimmed or compacted.

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
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import msgspec
from msgspec.structs import replace

from shoal.cluster import operation
from shoal.cluster.operation import Body
from shoal.cluster.truncation import Cut, Holding, advanced_cut
from shoal.config import Config
from shoal.crdt.dot import COUNTER_BITS, DOT_BYTES, Dot
from shoal.crdt.rows import successor
from shoal.errors import ShoalError, StoreCorrupt
from shoal.node import mutation
from shoal.node.context import NodeContext
from shoal.node.handler import Target
from shoal.node.mutation import Mutation
from shoal.node.transaction import Transaction
from shoal.node.turns import lasting
from shoal.protocol.session import first_key
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind


class Changed(msgspec.Struct, array_like=True, frozen=True):
    """An object that an operation changed, and the generation that it changed."""

    kind: int
    space: str
    name: str
    generation: int

    @property
    def target(self) -> Target:
        """The object."""
        return Target(Kind(self.kind), self.space, self.name)


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """The part of an operation that is kept for its key after it has left the log."""

    receipt: bytes  # Empty: it was erased.
    changed: list[Changed]


class KeyRow(NamedTuple):
    """A row, decoded. The last two are None while the operation is in the log."""

    dot: Dot
    wall_ms: int | None
    kept: Kept | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


def changed_by(mutations: Iterable[Mutation]) -> list[Changed]:
    """The objects that these mutations change, each once; those that they only delete are left out."""
    found = [Changed(m.kind, m.space, m.name, m.generation) for m in mutations if not mutation.ends(m.change)]
    return list(dict.fromkeys(found)) if len(found) > 1 else found


def truncated(dot: Dot, body: Body) -> bytes:
    """The row of an operation's key once it leaves the log.

    If the operation cannot be decoded, the row names no objects.
    """
    try:
        changed = changed_by(mutation.decode(body.payload))
    except ShoalError:
        changed = []
    return dot.pack() + body.wall_ms.to_bytes(8, "big") + _encoder.encode(Kept(body.receipt, changed))


def without_answer(stored: bytes, kept: Kept) -> bytes:
    """A truncated row whose answer is erased: what the request wrote is gone, and its key must not be used again."""
    return stored[: DOT_BYTES + 8] + _encoder.encode(Kept(b"", kept.changed))


def unpack_answer(stored: bytes) -> KeyRow:
    """The row in these bytes.

    Raises:
        StoreCorrupt: these bytes are no such row.
    """
    dot = Dot.unpack(stored[:DOT_BYTES])
    if len(stored) == DOT_BYTES:
        return KeyRow(dot, None, None)
    try:
        return KeyRow(dot, int.from_bytes(stored[DOT_BYTES : DOT_BYTES + 8], "big"), _decoder.decode(stored[DOT_BYTES + 8 :]))
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise StoreCorrupt(f"the row of an idempotency key cannot be decoded: {error}.") from None


def counts(dot: Dot, wall_ms: int, other: Dot, other_ms: int, *, window_ms: int) -> bool:
    """Whether the key stands for the operation `dot` and not for `other`: when each was issued decides, or their dots."""
    if abs(wall_ms - other_ms) > window_ms:
        return wall_ms > other_ms
    return dot < other


_CURSOR = keys.meta("expiring")  # For programs that open their store for a moment only.
_ROWS_MAX = 256
_PASSES = 16  # Through all keys of a partition, in each window.


class Expired(NamedTuple):
    """The rows to delete, and whether the same call, once more, may find others."""

    rows: dict[bytes, bytes | None]
    more: bool


class _Pass(NamedTuple):
    """How far the keys of a partition were looked at."""

    after: bytes  # The row of the last one; empty: none yet.
    next_ms: int = 0  # The next pass begins then.
    is_held_up: bool = False  # Whether it met keys that are not stable yet.


class Expiry:
    """Finds the keys that expire. It writes nothing."""

    def __init__(self, storage: Storage, config: Config) -> None:
        self._storage = storage
        self._window_ms = config.key_window_s * 1000
        self._forget_ms = max(self._window_ms, int(config.forget_after_s * 1000))
        self._began_after = storage.get(_CURSOR) or b""
        self._passes = {int.from_bytes(self._began_after[1:3], "big"): _Pass(self._began_after)} if self._began_after else {}
        self._cuts: dict[int, Cut] = {}

    def expired(self, number: int, owners: list[Holding], now_ms: int) -> Expired:
        """The keys of a partition that expire now, as far as one call looks. `owners` are all of them, this node first."""
        under_way = self._passes.get(number, _Pass(b""))
        if not under_way.after and now_ms < under_way.next_ms:
            return Expired({}, more=False)
        cut = self._cuts[number] = advanced_cut(self._cuts.get(number, Cut()), owners)
        gone: dict[bytes, bytes | None] = {}
        looked, held_up = 0, under_way.is_held_up
        for start, stop in self._ranges(number, under_way.after, now_ms):
            for key, stored in self._storage.scan(start, stop, limit=_ROWS_MAX - looked):
                looked += 1
                under_way = _Pass(key, is_held_up=held_up)
                try:
                    row = unpack_answer(stored)
                except StoreCorrupt:
                    continue  # `shoal verify` reports it.
                if row.wall_ms is None or now_ms - row.wall_ms <= self._window_ms:
                    continue
                if cut.stable.covers(row.dot) or now_ms - row.wall_ms > self._forget_ms:
                    gone[key] = None
                else:
                    held_up = True
        if looked >= _ROWS_MAX:
            self._passes[number] = under_way._replace(is_held_up=held_up)
            return Expired(gone, more=True)
        self._passes[number] = _Pass(b"", 0 if held_up else now_ms + self._window_ms // _PASSES)
        return Expired(gone, more=False)

    def left(self) -> dict[bytes, bytes | None]:
        """The row with which the next opening continues where this one ends; none if it has not changed."""
        after = next((under_way.after for under_way in self._passes.values() if under_way.after), b"")
        return {} if after == self._began_after else {_CURSOR: after or None}

    def _ranges(self, number: int, after: bytes, now_ms: int) -> list[tuple[bytes, bytes | None]]:
        """The keys to look at: all but those that clients made too lately, which sort by their times."""
        prefix = keys.request_key(number, "")
        start = after + b"\x00" if after else prefix
        young = keys.request_key(number, first_key(now_ms - self._window_ms))
        later = keys.request_key(number, first_key(now_ms + self._window_ms))
        return [
            (max(start, low), high)
            for low, high in ((prefix, young), (later, successor(prefix)))
            if high is None or start < high
        ]


_LOOK_INTERVAL_S = 1.0  # How often storage is asked whether a pass is over.
_AHEAD = 1000 << COUNTER_BITS  # The mark covers the deletions of the next second, so that they need not write it again.
ROW = keys.meta("erasing")


class ErasureDue(msgspec.Struct, array_like=True, frozen=True):
    """The value of the mark."""

    since_ms: int  # When the first deletion was made: the wall clock of this node, in milliseconds since 1970.
    until: int  # The mark covers deletions whose hybrid logical time is at most this.
    passed: bool = False  # Whether a pass has begun since the last deletion, so that only the log may hold what it deleted.


_progress_decoder = msgspec.msgpack.Decoder(ErasureDue)


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
            return _progress_decoder.decode(packed)
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
