"""How many bytes and objects a space has at this node: counted as its rows are written, and by a census of all rows.

Laws:
- A space is counted from its rows, in steps, when it is first asked for: after a start nothing that was remembered can be
  wrong. Writes wait for the first count, up to `QUOTA_COUNT_S`; then what is counted so far is told.
- From then on each write changes the counts by what it changes in the rows, whoever issued it, and for whatever reason it
  is made: a request, a peer's operation, a sweep, a repair. So equal rows have equal counts, on every node.
- While it is counted, rows below the cursor are counted already, and a write there changes the count; those above will be.
- A range that is deleted is looked through up to a bound. Beyond it, and when a partition is replaced, its spaces are counted
  anew; until that is done the former counts are told.
- A space that nobody asked for costs a write nothing.

A census of the rows of a store: how many bytes and objects each space holds, by kind, by prefix, and its largest objects.

Laws:
- One pass over the rows, in steps of a bounded number of rows and bytes. Each row is counted as it was when it was passed.
- What is told apart is bounded: so many spaces, prefixes and large objects. What is beyond is counted together, never left out.
- Bytes and objects of a space are those that its quota counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappush, heappushpop

from shoal.cluster.operation import PARTITIONS
from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.node.transaction import Readable
from shoal.node.turns import Background, Steps, in_turns
from shoal.storage import keys
from shoal.storage.cold import size_of

_STEP_ROWS = 256
_STEP_BYTES = 4 * 1024 * 1024  # Of values that are read in one step; the last one may exceed it.
_STEP_SCANS = 32
_RANGE_ROWS_MAX = 4096
_COUNTED_MAX = 4096  # Spaces whose counts are kept; the one that was asked for first is forgotten first.
_END = b"\xff"  # After all keys.


class Use:
    """The counts of one space."""

    __slots__ = ("again", "bytes", "cursor", "fresh", "objects", "patience", "space")

    def __init__(self, space: str) -> None:
        self.space = space
        self.bytes = 0
        self.objects = 0
        self.cursor = b""  # All rows below it are in the counts, or in `fresh`.
        self.fresh: list[int] | None = None  # Bytes and objects of a new count, which replaces the counts when it is done.
        self.patience: asyncio.Task[None] | None = None  # Ends once the first count is done, or takes too long to wait for.
        self.again = False  # Rows went that were not looked at: count again.

    @property
    def is_counted(self) -> bool:
        """Whether the counts are those of all rows."""
        return self.cursor == _END and not self.again

    def change(self, key: bytes, before: int | None, after: int | None) -> None:
        """A row changes: the sizes of its value, or None where there is none."""
        if key >= self.cursor:
            return
        if key[:1] == keys.CATALOG:
            self.add(0, (after is not None) - (before is not None))
        else:
            sized = len(key)
            self.add((0 if after is None else sized + after) - (0 if before is None else sized + before), 0)

    def add(self, bytes: int, objects: int) -> None:
        """Change the counts that are in the making."""
        if self.fresh is None:
            self.bytes += bytes
            self.objects += objects
        else:
            self.fresh[0] += bytes
            self.fresh[1] += objects


class Usage:
    """Counts the spaces that are asked for. `noting` and `noted` are called around each write."""

    def __init__(self, storage: Readable, pause: Callable[[], Awaitable[None]], *, wait_s: float) -> None:
        self._wait_s = wait_s
        self._storage = storage
        self._pause = pause
        self._uses: dict[bytes, Use] = {}  # By the space, as it stands in keys.
        self._counting = Background()

    def of(self, space: str) -> Use:
        """The counts of a space. The first time, they begin to be counted."""
        place = keys.catalog_of(space)[1:]
        use = self._uses.get(place)
        if use is None:
            if len(self._uses) >= _COUNTED_MAX:
                del self._uses[next(iter(self._uses))]
            use = self._uses[place] = Use(space)
            self._counting.start(self._count(place, use))
            use.patience = asyncio.get_running_loop().create_task(self._patience(use))
        return use

    async def _patience(self, use: Use) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                while use.cursor != _END:
                    await self._pause()

    def is_awaited(self, space: str) -> bool:
        """Whether the counts of a space may be complete soon."""
        patience = self.of(space).patience
        return patience is not None and not patience.done()

    async def ready(self, space: str) -> None:
        """Wait until a space is counted; not longer than `QUOTA_COUNT_S` after the count began."""
        patience = self.of(space).patience
        if patience is not None and not patience.done():
            await asyncio.wait([patience])

    def noting(
        self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]]
    ) -> list[tuple[Use, bytes, int | None, int | None]]:
        """The changes of this write to the counts, given to `noted` once it is made."""
        found: list[tuple[Use, bytes, int | None, int | None]] = []
        if not self._uses:
            return found
        for key, value in rows.items():
            use = self._use_of(key)
            if use is not None and key < use.cursor:
                before = self._storage.get(key)
                sizes = None if before is None else size_of(key, before), None if value is None else size_of(key, value)
                found.append((use, key, *sizes))
        for start, stop in ranges:
            if start[:1] == keys.OBJECT:
                found += self._in_range(start, stop, rows)
        return found

    def noted(self, changes: Iterable[tuple[Use, bytes, int | None, int | None]]) -> None:
        """The write was made."""
        for use, key, before, after in changes:
            use.change(key, before, after)

    def _in_range(
        self, start: bytes, stop: bytes, rows: Mapping[bytes, bytes | None]
    ) -> Iterator[tuple[Use, bytes, int | None, int | None]]:
        looked_at = 0
        for key, value in self._storage.scan(start, stop, limit=_RANGE_ROWS_MAX + 1):
            looked_at += 1
            use = self._use_of(key)
            if use is not None and key not in rows:  # Those were noted.
                yield use, key, size_of(key, value), None
        if looked_at > _RANGE_ROWS_MAX:
            self.recount()

    def _use_of(self, key: bytes) -> Use | None:
        table = key[:1]
        if table == keys.OBJECT:
            return self._uses.get(key[4 : 6 + int.from_bytes(key[4:6], "big")])
        if table == keys.CATALOG:
            return self._uses.get(key[1 : 3 + int.from_bytes(key[1:3], "big")])
        return None

    def recount(self) -> None:
        """Rows of unknown spaces have changed by another way: count all spaces again."""
        for place, use in self._uses.items():
            if use.cursor == _END and not use.again:
                self._counting.start(self._count(place, use))
            use.again = True

    async def _count(self, place: bytes, use: Use) -> None:
        while self._uses.get(place) is use and (use.again or use.cursor != _END):
            use.fresh = [0, 0] if use.again else None
            use.again, use.cursor = False, b""
            if use.fresh is None:
                use.bytes = use.objects = 0
            try:
                await in_turns(self._counted(place, use), self._pause)
            except ShoalError:  # Rows cannot be read. What is counted so far goes on to be told as that.
                return
            if use.fresh is not None and not use.again:
                use.bytes, use.objects = use.fresh
                use.fresh = None

    def _counted(self, place: bytes, use: Use) -> Steps[None]:
        """Count all rows of a space, in steps: a scan finds the next kind of objects that a partition holds at all."""
        yield from self._rows(keys.CATALOG + place, use)
        scans = 0
        for partition in range(PARTITIONS):
            start = keys.OBJECT + partition.to_bytes(2, "big")
            use.cursor = start
            while (row := next(iter(self._storage.scan(use.cursor, successor(start), limit=1)), None)) is not None:
                kind = row[0][3]
                yield from self._rows(start + bytes([kind]) + place, use)
                use.cursor = start + bytes([kind + 1])
                scans += 2
            scans += 1
            if scans >= _STEP_SCANS:
                scans = 0
                yield
        use.cursor = _END

    def _rows(self, prefix: bytes, use: Use) -> Steps[None]:
        stop = successor(prefix)
        assert stop is not None  # It begins with the table's byte.
        use.cursor = prefix
        while use.cursor < stop:
            rows = size = 0
            last = b""
            for key, value in self._storage.scan(use.cursor, stop, limit=_STEP_ROWS):
                rows, size, last = rows + 1, size + len(key) + size_of(key, value), key
                if size > _STEP_BYTES:
                    break
            if prefix[:1] == keys.CATALOG:
                use.add(0, rows)
            else:
                use.add(size, 0)
            if rows < _STEP_ROWS and size <= _STEP_BYTES:
                use.cursor = stop
                break
            use.cursor = last + b"\x00"
            yield

    async def close(self) -> None:
        """Stop counting."""
        await self._counting.close()
        waits = [use.patience for use in self._uses.values() if use.patience is not None]
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


CENSUS_SPACES_MAX = 4096  # Told apart; the others are one without a name.
CENSUS_PREFIXES_MAX = 1024  # Of one space,
CENSUS_PREFIXES_ALL_MAX = 16_384  # and of all. Names beyond are one group without a prefix.
LARGEST_MAX = 50  # Objects of one space that are named,
LARGEST_ALL_MAX = 16_384  # and of all: a name has up to 1 KiB. Spaces beyond name none.
_CENSUS_STEP_BYTES = 1024 * 1024  # Of values that are read in one step; the last one may exceed it.
_ENDS = frozenset("/:.-_")


class Held:
    """Bytes and objects of whatever they are counted for."""

    __slots__ = ("bytes", "objects")

    def __init__(self) -> None:
        self.bytes = self.objects = 0


class SpaceCount(Held):
    """The count of one space."""

    __slots__ = ("kinds", "largest", "prefixes")

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, Held] = {}  # By their numbers.
        self.prefixes: dict[str, Held] = {}
        self.largest: list[tuple[int, int, str]] = []  # A heap of bytes, kind and name.


class Count(Held):
    """The count of a whole store. `spaces` are those told apart, and "" for all others."""

    __slots__ = ("index_bytes", "key_bytes", "named", "prefixes", "spaces")

    def __init__(self) -> None:
        super().__init__()
        self.spaces: dict[str, SpaceCount] = {}
        self.index_bytes = self.key_bytes = self.prefixes = self.named = 0

    def of(self, space: str) -> SpaceCount:
        """The count of a space, or of all others beyond the bound."""
        found = self.spaces.get(space)
        if found is None:
            if len(self.spaces) >= CENSUS_SPACES_MAX and space:
                return self.of("")
            found = self.spaces[space] = SpaceCount()
        return found

    def add(self, space: str, kind: int, name: str, *, bytes: int = 0, objects: int = 0) -> None:
        """Count an object, or its rows."""
        found = self.of(space)
        for use in (self, found, found.kinds.setdefault(kind, Held()), self._prefix(found, name)):
            use.bytes += bytes
            use.objects += objects
        if bytes:
            entry = (bytes, kind, name)
            if len(found.largest) < LARGEST_MAX and self.named < LARGEST_ALL_MAX:
                heappush(found.largest, entry)
                self.named += 1
            elif found.largest:
                heappushpop(found.largest, entry)

    def _prefix(self, space: SpaceCount, name: str) -> Held:
        prefix = prefix_of(name)
        found = space.prefixes.get(prefix)
        if found is None:
            if prefix and (len(space.prefixes) >= CENSUS_PREFIXES_MAX or self.prefixes >= CENSUS_PREFIXES_ALL_MAX):
                return self._prefix(space, "")
            found = space.prefixes[prefix] = Held()
            self.prefixes += 1
        return found


def prefix_of(name: str) -> str:
    """The beginning of a name, up to the first character that parts names; the tag of a name is not cut. Else empty."""
    start = name.find("}") + 1 if name[:1] == "{" else 1
    for place in range(max(start, 1), len(name)):
        if name[place] in _ENDS:
            return name[: place + 1]
    return ""


def counted(storage: Readable) -> Steps[Count]:
    """Count all rows, in steps.

    Raises:
        StoreCorrupt: rows cannot be read.
    """
    count = Count()
    yield from _objects(storage, count)
    yield from _rows(storage, count)
    for partition in range(PARTITIONS):
        for table in (*keys.DERIVED_TABLES, keys.KEY):
            size = yield from _size(storage, table + partition.to_bytes(2, "big"))
            if table == keys.KEY:
                count.key_bytes += size
            else:
                count.index_bytes += size
        if partition % 32 == 0:
            yield
    return count


def _objects(storage: Readable, count: Count) -> Steps[None]:
    start, stop = keys.CATALOG, successor(keys.CATALOG)
    while True:
        found = list(storage.scan(start, stop, limit=_STEP_ROWS))
        for key, _ in found:
            space, kind, name = keys.split_catalog(key)
            count.add(space, kind, name, objects=1)
        if len(found) < _STEP_ROWS:
            return
        start = found[-1][0] + b"\x00"
        yield


def _rows(storage: Readable, count: Count) -> Steps[None]:
    start, stop = keys.OBJECT, successor(keys.OBJECT)
    current, size = b"", 0  # The object whose rows are passed: they stand together.

    def end() -> None:
        if current:
            _, kind, space, name, _ = keys.split_object(current)
            count.add(space, kind, name, bytes=size)

    while True:
        rows = seen = 0
        key = b""
        for key, value in storage.scan(start, stop, limit=_STEP_ROWS):
            if not current or not key.startswith(current):
                end()
                current, size = keys.object_of(key), 0
            taken = len(key) + len(value)
            size += taken
            rows, seen = rows + 1, seen + taken
            if seen > _CENSUS_STEP_BYTES:
                break
        if rows < _STEP_ROWS and seen <= _CENSUS_STEP_BYTES:
            end()
            return
        start = key + b"\x00"
        yield


def _size(storage: Readable, prefix: bytes) -> Steps[int]:
    """The bytes of the rows below a prefix."""
    start, stop, size = prefix, successor(prefix), 0
    while True:
        rows = seen = 0
        key = b""
        for key, value in storage.scan(start, stop, limit=_STEP_ROWS):
            rows, seen = rows + 1, seen + len(key) + len(value)
            if seen > _CENSUS_STEP_BYTES:
                break
        size += seen
        if rows < _STEP_ROWS and seen <= _CENSUS_STEP_BYTES:
            return size
        start = key + b"\x00"
        yield
