"""Truncates the logs of this node's partitions: the task that looks at one after another.

Laws:
- The rows that leave, the new base, and the answers to the keys of these operations are one write.
- Only durable operations leave, by the rule of `shoal.cluster.truncation`.
- One turn reads a bounded number of operations; then other tasks get theirs.
- A program that opens its store for a moment only truncates as well: one partition is looked at after each start, and
  those that were used before each stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice

from shoal.cluster import operation, truncation
from shoal.cluster.operation import PARTITIONS, LogEntry, Tip
from shoal.cluster.truncation import Holding, KeepBounds
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin, wall_ms_of
from shoal.crdt.rows import successor
from shoal.errors import InvalidValue, ShoalError
from shoal.node.collection import answers
from shoal.node.collection.answers import Expiry
from shoal.node.collection.garbage import Collector
from shoal.node.collection.retiring import Forgetting
from shoal.node.context import NodeContext
from shoal.node.partitions import Partition
from shoal.node.replicas import Replicas
from shoal.records import NamedTuple
from shoal.storage import keys

_LOOK_S_MAX = 60.0  # Between two looks at all partitions; less if operations stay for a shorter time.
_ROWS_MAX = 256  # Of the log, in one turn,
_BYTES_MAX = 1 << 20  # or so many bytes.
_YOUNG_MAX = 16  # Origins in one look whose last operation is too young, but whose first ones may not be.
_LISTED_MAX = 8  # Of one origin, that are deleted one by one: a range costs every later read a little.
_USED_MAX = 8  # Partitions that are looked at before a stop.
_RECLAIMED_BYTES = 256 * 1024  # Once so many bytes have left, their space is given back.


class _Leaving(NamedTuple):
    """Operations of one origin that leave the log."""

    base: Tip  # The last of them.
    operations: list[tuple[Dot, operation.Body | None]]


class Truncator:
    """The truncation of one node. `truncated` counts the operations that left the log in this opening."""

    def __init__(self, context: NodeContext, garbage: Collector) -> None:
        self._storage = context.storage
        self._upkeep = context.upkeep
        self._commit = context.commit
        self._partitions = context.partitions
        self._garbage = garbage
        self._expiry = Expiry(context.storage, context.config)
        self._forgetting = Forgetting(context.storage, context.config)
        self._now_ms = context.environment.now_ms
        self._pause = context.environment.pause
        self._keep_ms = int(context.config.log_keep_s * 1000)
        self._forget_ms = int(context.config.forget_after_s * 1000)
        self._bytes_max = context.config.log_bytes_max
        self._retired_max = context.config.retired_origins_max
        self._look_s = min(_LOOK_S_MAX, max(context.config.tick_s, context.config.log_keep_s / 4))
        self._replicas: Replicas | None = None
        self._task: asyncio.Task[None] | None = None
        self._sizes: dict[int, int] = {}  # By partition: the bytes of its log at the last look.
        self._young: dict[tuple[int, Origin], int] = {}  # When the first operation in an origin's log is old enough.
        self._unreclaimed = 0
        self._hurried: dict[int, int] = {}  # By partition: how long its operations stay, if that is less than usual.
        self.truncated = 0

    @property
    def log_bytes(self) -> int:
        """The bytes of all logs, as far as they were looked at."""
        return sum(self._sizes.values())

    def start(self, replicas: Replicas) -> None:
        """Begin to look, on the running loop. `replicas` knows what the other owners hold."""
        self._replicas = replicas
        self._task = self._upkeep.begin(self._run(), "truncation of logs")

    async def stop(self) -> None:
        """End the task, after one more look at the partitions that were used. Stopping twice is allowed."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        with suppress(ShoalError):  # Storage failed; the next opening truncates.
            for number in list(islice(self._partitions.vectors(), _USED_MAX)):
                await self._look(number)
            if cursor := self._expiry.left():
                self._commit.write(cursor)

    async def _run(self) -> None:
        # Any partition will do: the next opening begins with another one.
        first = self._now_ms() % PARTITIONS
        numbers: Iterator[int] = islice(chain(self._holding(first), self._holding(0)), 1)
        while self._commit.failed is None:
            with suppress(ShoalError):  # Storage rejects writes or cannot be read. A later look tries again.
                await self.look(numbers)
            await asyncio.sleep(self._look_s)
            numbers = self.due()

    def due(self) -> Iterator[int]:
        """The partitions to look at: all that have operations in the log, or keys; the largest first if it is too large."""
        return chain(self._largest(), self._holding(0))

    async def look(self, numbers: Iterable[int]) -> None:
        """Truncate the logs of these partitions as far as the rule permits, and let keys expire.

        Raises:
            ShoalError: storage rejects writes, or cannot be read.
        """
        for number in numbers:
            while await self._look(number):
                await self._pause()
            await self._pause()
        self._reclaim()

    async def hurry(self, numbers: Iterable[int], keep_ms: int) -> None:
        """Truncate the logs of these partitions now as if operations stayed there for so long only.

        Raises:
            ShoalError: storage rejects writes, or cannot be read.
        """
        self._hurried = {number: keep_ms for number in numbers if keep_ms < self._keep_ms}
        self._young = {place: old_ms for place, old_ms in self._young.items() if place[0] not in self._hurried}
        try:
            await self.look(list(self._hurried))
        finally:
            self._hurried = {}

    def _kept_ms(self, number: int) -> int:
        return self._hurried.get(number, self._keep_ms)

    def _largest(self) -> Iterator[int]:
        """If the log is too large: the partitions by the sizes of their logs, the largest first."""
        if self._is_over:
            yield from sorted(self._sizes, key=lambda number: -self._sizes[number])

    def _holding(self, first: int) -> Iterator[int]:
        """The partitions, from `first` on, that have operations in the log, or keys."""
        while first < PARTITIONS:
            found: list[int] = []
            for table in (keys.LOG, keys.KEY):
                rows = self._storage.scan(table + first.to_bytes(2, "big"), successor(table), limit=1)
                found += [int.from_bytes(key[1:3], "big") for key, _ in rows]
            if not found:
                return
            yield min(found)
            first = min(found) + 1

    @property
    def _is_over(self) -> bool:
        return self.log_bytes > self._bytes_max

    # ── one partition ─────────────────────────────────────────────────────────

    async def _look(self, number: int) -> bool:
        """Truncate a partition's log by what one turn may read, and let keys expire. True if more may leave now."""
        assert self._replicas is not None
        partition = self._partitions.load(number)
        vector = partition.vector
        await self._commit.wait_durable(partition.written)
        if partition.closed or self._replicas.clock_wrong:
            return False  # A snapshot replaces it; or nothing is known to be old.
        others = self._replicas.holdings(number).values()
        owners = [Holding(vector, vector), *others]
        more = self._truncate(partition, owners)
        self._truncate_retired(partition)
        if forgotten := self._forgetting.forget(partition, owners, self._now_ms()):
            self._commit.write(forgotten)
        expired = self._expiry.expired(number, owners, self._now_ms())
        if expired.rows:
            self._commit.write(expired.rows)
        return more or expired.more

    def _truncate(self, partition: Partition, owners: list[Holding]) -> bool:
        leaving, more = self._leaving(partition, owners)
        if leaving:
            rows: dict[bytes, bytes | None] = {}
            ranges: list[tuple[bytes, bytes]] = []
            for origin, run in leaving.items():
                self._delete(partition, origin, run, rows, ranges)
            before = partition.log_bytes
            self._commit.write(rows, ranges)
            partition.truncate({origin: run.base for origin, run in leaving.items()})
            self.truncated += sum(len(run.operations) for run in leaving.values())
            self._unreclaimed += before - partition.log_bytes
        self._sizes[partition.number] = partition.log_bytes
        return more

    def _truncate_retired(self, partition: Partition) -> None:
        """Truncate the logs of the origins that were retired first. All owners hold these."""
        now_ms, number = self._now_ms(), partition.number
        is_over = self._is_over or partition.retired.summary.remembered > self._retired_max
        terms = KeepBounds(self._kept_ms(number), self._forget_ms, is_over)
        prefix = keys.retired_log(number)
        for key, _ in list(self._storage.scan(prefix + b"\x00", successor(prefix), limit=_YOUNG_MAX)):
            origin = Origin(key[-ORIGIN_BYTES:])
            found = partition.retired.find(origin)
            if found is None or (wall_ms_of(found.tip.hlc) + terms.keep_ms > now_ms and not terms.is_over):
                return
            held = truncation.Reach(found.sequence, found.sequence, found.sequence)
            run = self._run_of(partition, origin, held, terms, now_ms=now_ms, room=_ROWS_MAX, size=_BYTES_MAX)
            if run is None:
                return
            rows: dict[bytes, bytes | None] = {}
            ranges: list[tuple[bytes, bytes]] = []
            self._delete(partition, origin, run, rows, ranges)
            if run.base.sequence == found.sequence:
                rows[keys.base(number, origin)] = rows[key] = None
                rows[keys.retired(number, origin)] = found._replace(is_logged=False).pack()
            self._commit.write(rows, ranges)
            self.truncated += len(run.operations)

    def _delete(
        self,
        partition: Partition,
        origin: Origin,
        run: _Leaving,
        rows: dict[bytes, bytes | None],
        ranges: list[tuple[bytes, bytes]],
    ) -> None:
        number = partition.number
        rows[keys.base(number, origin)] = run.base.pack()
        if len(run.operations) <= _LISTED_MAX:
            rows.update(dict.fromkeys(keys.log(number, dot) for dot, _ in run.operations))
        else:
            first, last = run.operations[0][0], run.operations[-1][0]
            ranges.append((keys.log(number, first), keys.log(number, Dot(origin, last.sequence + 1))))
        for dot, body in run.operations:
            if body is None or body.key is None:
                continue
            row = keys.request_key(number, body.key)
            if self._storage.get(row) == dot.pack():
                rows[row] = answers.truncated(dot, body)

    def _leaving(self, partition: Partition, owners: list[Holding]) -> tuple[dict[Origin, _Leaving], bool]:
        """The operations that leave now, by origin; and whether more would leave if more could be read."""
        terms = KeepBounds(self._kept_ms(partition.number), self._forget_ms, self._is_over)
        now_ms = self._now_ms()
        leaving: dict[Origin, _Leaving] = {}
        room, size = _ROWS_MAX, _BYTES_MAX
        for origin in self._candidates(partition, now_ms, is_over=terms.is_over):
            held = truncation.reach(origin, owners)
            if held.by_quorum <= partition.base[origin]:
                continue
            run = self._run_of(partition, origin, held, terms, now_ms=now_ms, room=room, size=size)
            if run is not None:
                leaving[origin] = run
                room -= len(run.operations)
                size -= run.base.logged - _logged(partition, origin)
                if room <= 0 or size <= 0:
                    return leaving, True
        return leaving, False

    def _candidates(self, partition: Partition, now_ms: int, *, is_over: bool) -> Iterator[Origin]:
        """The origins whose first operations in the log may leave, the oldest first."""
        young = 0
        number, base = partition.number, partition.base
        for origin, tip in sorted(partition.tips.items(), key=lambda entry: entry[1].hlc):
            if base[origin] >= tip.sequence or (not is_over and self._young.get((number, origin), 0) > now_ms):
                continue
            self._young.pop((number, origin), None)
            if wall_ms_of(tip.hlc) + self._kept_ms(number) > now_ms and not is_over:
                young += 1
                if young > _YOUNG_MAX:
                    return
            yield origin

    def _run_of(
        self,
        partition: Partition,
        origin: Origin,
        held: truncation.Reach,
        terms: KeepBounds,
        *,
        now_ms: int,
        room: int,
        size: int,
    ) -> _Leaving | None:
        number = partition.number
        bodies: list[tuple[Dot, operation.Body | None]] = []
        chains: list[bytes] = []
        logged = [_logged(partition, origin)]
        bytes_max = logged[0] + size
        first, last = Dot(origin, partition.base[origin] + 1), Dot(origin, held.by_quorum + 1)

        def read() -> Iterator[tuple[int, int]]:
            for key, stored in self._storage.scan(keys.log(number, first), keys.log(number, last), limit=room):
                if logged[-1] >= bytes_max:
                    return
                entry, dot = LogEntry.unpack(stored), keys.split_log(key)[1]
                try:
                    body = operation.decode(entry.packed)
                except InvalidValue:
                    return  # `shoal verify` reports it. The log keeps it, and what follows.
                bodies.append((dot, body))
                chains.append(entry.chain)
                logged.append(logged[-1] + operation.LOG_ROW_BYTES + len(entry.packed))
                yield dot.sequence, now_ms - wall_ms_of(body.hlc)

        leaves = truncation.last_leaving(read(), held, terms) - partition.base[origin]
        if leaves < len(bodies) and (body := bodies[max(leaves, 0)][1]) is not None:
            old_ms = wall_ms_of(body.hlc) + terms.keep_ms
            if old_ms > now_ms:
                self._young[number, origin] = old_ms
        if leaves <= 0:
            return None
        body = bodies[leaves - 1][1]
        assert body is not None
        base = Tip(first.sequence + leaves - 1, body.hlc, chains[leaves - 1], logged=logged[leaves])
        return _Leaving(base, bodies[:leaves])

    def _reclaim(self) -> None:
        if self._unreclaimed >= _RECLAIMED_BYTES:
            self._unreclaimed = 0
            self._garbage.reclaim_soon()


def _logged(partition: Partition, origin: Origin) -> int:
    base = partition.bases.get(origin)
    return 0 if base is None else base.logged
