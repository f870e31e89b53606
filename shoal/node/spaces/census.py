"""A census of the rows of a store: how many bytes and objects each space holds, by kind, by prefix, and its largest objects.

Laws:
- One pass over the rows, in steps of a bounded number of rows and bytes. Each row is counted as it was when it was passed.
- What is told apart is bounded: so many spaces, prefixes and large objects. What is beyond is counted together, never left out.
- Bytes and objects of a space are those that its quota counts.
"""

from __future__ import annotations

from heapq import heappush, heappushpop

from shoal.cluster.operation import PARTITIONS
from shoal.crdt.rows import successor
from shoal.node.transaction import Readable
from shoal.node.turns import Steps
from shoal.storage import keys

CENSUS_SPACES_MAX = 4096  # Told apart; the others are one without a name.
CENSUS_PREFIXES_MAX = 1024  # Of one space,
CENSUS_PREFIXES_ALL_MAX = 16_384  # and of all. Names beyond are one group without a prefix.
LARGEST_MAX = 50  # Objects of one space that are named,
LARGEST_ALL_MAX = 16_384  # and of all: a name has up to 1 KiB. Spaces beyond name none.

_STEP_ROWS = 256
_STEP_BYTES = 1024 * 1024  # Of values that are read in one step; the last one may exceed it.
_ENDS = frozenset("/:.-_")


class Use:
    """Bytes and objects of whatever they are counted for."""

    __slots__ = ("bytes", "objects")

    def __init__(self) -> None:
        self.bytes = self.objects = 0


class SpaceCount(Use):
    """The count of one space."""

    __slots__ = ("kinds", "largest", "prefixes")

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, Use] = {}  # By their numbers.
        self.prefixes: dict[str, Use] = {}
        self.largest: list[tuple[int, int, str]] = []  # A heap of bytes, kind and name.


class Count(Use):
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
        for use in (self, found, found.kinds.setdefault(kind, Use()), self._prefix(found, name)):
            use.bytes += bytes
            use.objects += objects
        if bytes:
            entry = (bytes, kind, name)
            if len(found.largest) < LARGEST_MAX and self.named < LARGEST_ALL_MAX:
                heappush(found.largest, entry)
                self.named += 1
            elif found.largest:
                heappushpop(found.largest, entry)

    def _prefix(self, space: SpaceCount, name: str) -> Use:
        prefix = prefix_of(name)
        found = space.prefixes.get(prefix)
        if found is None:
            if prefix and (len(space.prefixes) >= CENSUS_PREFIXES_MAX or self.prefixes >= CENSUS_PREFIXES_ALL_MAX):
                return self._prefix(space, "")
            found = space.prefixes[prefix] = Use()
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
            if seen > _STEP_BYTES:
                break
        if rows < _STEP_ROWS and seen <= _STEP_BYTES:
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
            if seen > _STEP_BYTES:
                break
        size += seen
        if rows < _STEP_ROWS and seen <= _STEP_BYTES:
            return size
        start = key + b"\x00"
        yield
