"""The disk of a node, what it holds and how it grew, in a bounded history; and when it will be full.

When a disk will be full, by how its free space went down.

Laws:
- It is pure: times are arguments.
- The slope is the median of those between all pairs of points, so that one restart, compaction or burst moves it little.
- A disk that was looked at for less than `SPAN_MS`, or that does not fill, has no forecast; and none reaches further than
  `REACH` times as far as the history: what another program copied within an hour would be an alert for days.

The disk of a node, what it holds and how it grew: a census each hour and when somebody asks, and a bounded history of them.

Laws:
- An answer never waits for a census, but for the first one of an opening, and for that not longer than `CENSUS_WAIT_S`.
- Nobody having asked, at most a fiftieth of the time is spent on censuses: each reads all that the disk holds.
- Censuses that people ask for rest at least `CENSUS_REST_S`, and as long as the last one took times `_REST`; nothing is
  counted again while nothing was written.
- The history is in the node's own directory, and of it alone. It thins as it ages, and has `POINTS_MAX` points at most.
- A point that cannot be read counts as none.
- The forecast reads no disk: what was free is kept in memory, for as long as it tells something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.kinds import Kind
from shoal.names import check_name
from shoal.node.catalog import is_empty
from shoal.node.context import NodeContext
from shoal.node.handler import Answers
from shoal.node.replicas import Replicas
from shoal.node.spaces.usage import LARGEST_MAX, Count, Held, SpaceCount, counted
from shoal.node.turns import Steps, in_turns
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    KindUse,
    LogHolder,
    ObjectUse,
    PrefixUse,
    ReadSpaceUsage,
    ReadUsage,
    SpaceUsageView,
    SpaceUse,
    UsagePoint,
    UsageView,
)
from shoal.storage import keys
from shoal.storage.cold import raw_of

SPAN_MS = 30 * 60_000
"""The shortest history from which anything follows."""

REACH = 24
"""How many times as long as the history a forecast may be: of an hour, a day."""

WINDOW_MS = 7 * 86_400_000
"""Older points say nothing about the present rate."""

FAR_MS = 3_650 * 86_400_000
"""Beyond ten years it is as good as never."""

_POINTS_MAX = 64  # They are compared pair by pair.


def full_at_ms(points: Sequence[tuple[int, int]], now_ms: int) -> int | None:
    """The time at which nothing is free any more, in milliseconds since 1970; None: that cannot be said, or is far away.

    `points`: times in milliseconds, and the bytes that were free then; less than zero: not known.
    """
    known = sorted((at_ms, free) for at_ms, free in points if free >= 0 and now_ms - WINDOW_MS <= at_ms <= now_ms)
    if not known or known[-1][0] - known[0][0] < SPAN_MS:
        return None
    step = -(-len(known) // _POINTS_MAX)
    chosen = known[::-step][::-1]
    slopes = sorted(
        (later - earlier) / (late_ms - early_ms)
        for index, (early_ms, earlier) in enumerate(chosen)
        for late_ms, later in chosen[index + 1 :]
        if late_ms > early_ms
    )
    slope = slopes[len(slopes) // 2]
    if slope >= 0:
        return None
    at_ms, free = known[-1]
    left_ms = free / -slope
    return None if left_ms > min(FAR_MS, REACH * (at_ms - known[0][0])) else max(now_ms, round(at_ms + left_ms))


_K = TypeVar("_K", str, int)
_U = TypeVar("_U", bound=Held)

CENSUS_EACH_S = 3600.0  # Between two censuses that nobody asked for.
CENSUS_FIRST_S = 300.0  # After a start.
CENSUS_REST_S = 15.0  # Between two that were asked for.
CENSUS_WAIT_S = 2.0  # For the first one.
POINTS_MAX = 500
SPACES_SHOWN_MAX = 100

_REST, _RARELY = 20, 50
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_TIERS = ((_DAY_MS, 10 * _MINUTE_MS), (7 * _DAY_MS, _HOUR_MS), (90 * _DAY_MS, _DAY_MS))
"""Up to which age points are how far apart, at least; older ones go."""
_SPACES_KEPT, _PREFIXES_KEPT = 64, 128  # In a point.
_HISTORIES = 8  # Of spaces in one answer, and of prefixes.
_POINT = keys.meta("usage/")  # Followed by the time in milliseconds₈.
_TURN_POINTS = 16  # Decoded in one step.
_TURN_LOGS = 32  # Partitions whose log is looked at in one step.


class Point(Struct, array_like=True, frozen=True):
    """One entry of the history. Those of later versions may have more fields."""

    at_ms: int
    disk: int
    free: int
    log: int
    stored: int
    spaces: dict[str, int] = field(default_factory=dict)  # The bytes of the largest ones.
    prefixes: dict[str, dict[str, int]] = field(default_factory=dict)  # Of spaces: those of the largest prefixes of all.


class Growth:
    """Counts, remembers and answers, for one node."""

    def __init__(self, context: NodeContext, replicas: Replicas) -> None:
        self._storage, self._commit, self._partitions = context.storage, context.commit, context.partitions
        self._replicas = replicas
        self._now_ms, self._monotonic = context.environment.now_ms, context.environment.monotonic
        self._pause = context.environment.pause
        self._upkeep = context.upkeep
        self._keep_ms = int(context.config.log_keep_s * 1000)
        self._log_bytes_max = context.config.log_bytes_max
        self._count = Count()
        self._counted_ms = self._counted_written = 0
        self._ended = self._took_s = 0.0  # By the monotonic clock.
        self._trouble = ""
        self._free: list[tuple[int, int]] = []  # When how many bytes were free.
        self._census: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.answers: Answers = {ReadUsage: self._usage, ReadSpaceUsage: self._space}
        self.always = frozenset((ReadUsage,))
        """The request that a node answers whatever it holds."""

    def start(self) -> None:
        """Begin to count from time to time, on the running loop."""
        self._task = self._upkeep.begin(self._run(), "count of what grows")

    async def stop(self) -> None:
        """End what is under way. Stopping twice is allowed."""
        tasks = [task for task in (self._task, self._census) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def full_at_ms(self, free: int) -> int | None:
        """The time at which the disk, of which so many bytes are free now, will be full, in milliseconds since 1970; None:
        nobody can say, or it is far away.
        """
        now_ms = self._now_ms()
        return full_at_ms([*self._free, (now_ms, free)], now_ms)

    async def _run(self) -> None:
        with suppress(ShoalError, ValueError):  # The census tells of it.
            self._free = _freed(await in_turns(self._points(self._now_ms() - WINDOW_MS)))
        await asyncio.sleep(CENSUS_FIRST_S)
        while True:
            if self._commit.failed is None:
                await asyncio.wait([self._begin()])
            await asyncio.sleep(max(CENSUS_EACH_S, self._took_s * _RARELY))

    # ── the census ────────────────────────────────────────────────────────────

    def _begin(self) -> asyncio.Task[None]:
        """The census that is under way; else a new one."""
        if self._census is None or self._census.done():
            self._census = asyncio.get_running_loop().create_task(self._look())
        return self._census

    async def _look(self) -> None:
        began, at_ms, written = self._monotonic(), self._now_ms(), self._commit.written
        try:
            if not self._counted_ms or written != self._counted_written:
                self._count = await in_turns(counted(raw_of(self._storage)), self._pause)
            self._counted_ms, self._trouble = at_ms, ""
            self._counted_written = written
            noted = await in_turns(self._note(), self._pause)
            if noted == written + 1:  # Nobody else wrote meanwhile.
                self._counted_written = noted
        except (ShoalError, ValueError) as error:  # Rows cannot be read, or are of a later version; or nothing can be written.
            self._trouble = str(error)
        self._ended = self._monotonic()
        self._took_s = self._ended - began

    def _is_due(self) -> bool:
        """Whether somebody who asks now begins a census."""
        if not self._counted_ms:
            return True
        return self._monotonic() - self._ended >= max(CENSUS_REST_S, self._took_s * _REST)

    def _note(self) -> Steps[int]:
        """Write a point, and let older ones go, unless the last one is too young. Returns the number of the write; 0: none."""
        points = yield from self._points(0)
        now_ms = self._now_ms()
        self._free = _freed(points)
        if (points and abs(now_ms - points[-1].at_ms) < _TIERS[0][1]) or self._commit.failed is not None:
            return 0
        rows: dict[bytes, bytes | None] = {_row(at_ms): None for at_ms in leaving([point.at_ms for point in points], now_ms)}
        log_bytes, _ = yield from self._logs()
        point = self._point(now_ms, log_bytes)
        self._free.append((now_ms, point.free))
        rows[_row(now_ms)] = msgspec.msgpack.encode(point)
        return self._commit.write(rows)

    def _point(self, at_ms: int, log_bytes: int) -> Point:
        count = self._count
        spaces = _largest(count.spaces.items(), _SPACES_KEPT)
        groups = ((name, prefix, use.bytes) for name, space in spaces for prefix, use in space.prefixes.items())
        prefixes: dict[str, dict[str, int]] = {}
        for name, prefix, size in sorted(groups, key=lambda group: -group[2])[:_PREFIXES_KEPT]:
            prefixes.setdefault(name, {})[prefix] = size
        sizes = {name: space.bytes for name, space in spaces}
        disk, free = self._storage.bytes_on_disk(), self._storage.bytes_free()
        return Point(at_ms, disk, free, log_bytes, count.bytes, sizes, prefixes)

    def _points(self, since_ms: int) -> Steps[list[Point]]:
        found: list[Point] = []
        stop, start = successor(_POINT), _row(since_ms)
        while True:
            rows = list(self._storage.scan(start, stop, limit=_TURN_POINTS))
            for _, packed in rows:
                with suppress(msgspec.MsgspecError):
                    found.append(msgspec.msgpack.decode(packed, type=Point))
            if len(rows) < _TURN_POINTS:
                return found
            start = rows[-1][0] + b"\x00"
            yield

    # ── answers ───────────────────────────────────────────────────────────────

    async def _ready(self) -> None:
        if self._is_due():
            census = self._begin()
            if not self._counted_ms:
                await asyncio.wait([census], timeout=CENSUS_WAIT_S)

    @property
    def _is_counting(self) -> bool:
        return self._census is not None and not self._census.done()

    async def _usage(self, request: ReadUsage, _bookmark: Bookmark) -> UsageView:
        await self._ready()
        points = await in_turns(self._points(request.since_ms))
        log_bytes, holders = await in_turns(self._logs())
        count = self._count
        spaces: list[SpaceUse] = []
        for name, space in _largest(count.spaces.items(), min(request.limit, SPACES_SHOWN_MAX)):
            history = _history(points, lambda point, name=name: point.spaces.get(name)) if len(spaces) < _HISTORIES else []  # type: ignore[misc]
            spaces.append(SpaceUse(name, space.bytes, space.objects, history))
        return UsageView(
            now_ms=self._now_ms(),
            counted_ms=self._counted_ms,
            is_counting=self._is_counting,
            trouble=self._trouble,
            disk_bytes=self._storage.bytes_on_disk(),
            free_bytes=self._storage.bytes_free(),
            stored_bytes=count.bytes,
            objects=count.objects,
            index_bytes=count.index_bytes,
            key_bytes=count.key_bytes,
            log_bytes=log_bytes,
            log_keep_ms=self._keep_ms,
            log_bytes_max=self._log_bytes_max,
            log_holders=holders,
            spaces=spaces,
            spaces_in_all=len(count.spaces),
            points=[UsagePoint(point.at_ms, point.disk, point.free, point.log, point.stored) for point in points],
        )

    async def _space(self, request: ReadSpaceUsage, _bookmark: Bookmark) -> SpaceUsageView:
        space = check_name("space", request.space)
        await self._ready()
        points = await in_turns(self._points(request.since_ms))
        count = self._count.spaces.get(space) or SpaceCount()
        limit = min(request.limit, LARGEST_MAX)
        prefixes: list[PrefixUse] = []
        for prefix, use in _largest(count.prefixes.items(), limit):
            history: list[int] = []
            if len(prefixes) < _HISTORIES:
                history = _history(points, lambda point, prefix=prefix: point.prefixes.get(space, {}).get(prefix))  # type: ignore[misc]
            prefixes.append(PrefixUse(prefix, use.bytes, use.objects, history))
        return SpaceUsageView(
            space=space,
            now_ms=self._now_ms(),
            counted_ms=self._counted_ms,
            is_counting=self._is_counting,
            trouble=self._trouble,
            bytes=count.bytes,
            objects=count.objects,
            kinds=[KindUse(Kind(kind).label, use.bytes, use.objects) for kind, use in _largest(count.kinds.items(), len(Kind))],
            prefixes=prefixes,
            prefixes_in_all=len(count.prefixes),
            largest=[
                ObjectUse(Kind(kind).label, name, size) for size, kind, name in sorted(count.largest, reverse=True)[:limit]
            ],
            times_ms=[point.at_ms for point in points],
            history=_history(points, lambda point: point.spaces.get(space)),
            is_empty=is_empty(self._storage, space),
        )

    def _logs(self) -> Steps[tuple[int, list[LogHolder]]]:
        """The bytes of all logs, and the members for which operations stay in them."""
        whole, held = 0, dict[str, tuple[int, bool]]()
        start, stop = keys.LOG, successor(keys.LOG)
        nth = 0
        while row := next(iter(self._storage.scan(start, stop, limit=1)), None):
            number = keys.split_log(row[0])[0]
            start = keys.rows_of(keys.LOG, number)[1]
            partition = self._partitions.load(number)
            whole += partition.log_bytes
            for name, holding in self._replicas.holdings(number).items():
                if not holding.vector.dominates(partition.vector):
                    held[name] = held.get(name, (0, False))[0] + partition.log_bytes, holding.is_linked
            nth += 1
            if nth % _TURN_LOGS == 0:
                yield
        found = [LogHolder(name, size, linked) for name, (size, linked) in held.items()]
        return whole, sorted(found, key=lambda holder: (-holder.bytes, holder.name))


def _largest(uses: Iterable[tuple[_K, _U]], limit: int) -> list[tuple[_K, _U]]:
    return sorted(uses, key=lambda entry: (-entry[1].bytes, entry[0]))[:limit]


def _history(points: Sequence[Point], of: Callable[[Point], int | None]) -> list[int]:
    return [-1 if (size := of(point)) is None else size for point in points]


def _freed(points: Sequence[Point]) -> list[tuple[int, int]]:
    return [(point.at_ms, point.free) for point in points]


def _row(at_ms: int) -> bytes:
    return _POINT + min(max(0, at_ms), 2**63 - 1).to_bytes(8, "big")


def leaving(times_ms: Sequence[int], now_ms: int) -> list[int]:
    """The times, of those in order, whose points go now: they are older than the last tier, or closer than theirs allows."""
    gone: list[int] = []
    kept: int | None = None
    for at_ms in times_ms:
        apart = next((apart for age, apart in _TIERS if now_ms - at_ms <= age), 0)
        # Points of the future are of a clock that was wrong. One more is about to be written.
        if not apart or at_ms > now_ms or (kept is not None and at_ms - kept < apart):
            gone.append(at_ms)
        else:
            kept = at_ms
    left = [at_ms for at_ms in times_ms if at_ms not in set(gone)]
    return gone + left[: max(0, len(left) + 1 - POINTS_MAX)]
