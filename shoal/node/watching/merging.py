"""The changes of several partitions, read from their logs, as one sequence in causal order.

Laws:
- Changes come in the order of their HLC, then of their dots. A node's clock passes everything that the node has applied, in
  whatever partition, before it issues anything: so a change comes after all changes that its node had applied.
- A change is given only once each partition whose log is not read to its end has its next change here, or has none.
- A slice that is read has at most `SLICE_MAX` operations, and all slices together about `WAITING_MAX`; with more than
  `bytes_max` bytes of changes here, a slice is one operation.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from shoal.crdt.dot import Dot, VersionVector
from shoal.protocol.requests import Change
from shoal.records import NamedTuple

SLICE_MAX = 100
WAITING_MAX = 8192
"""Operations of all partitions that wait to be merged."""
_SLICE_MIN = 4  # Reading one operation costs little more than finding where it begins.
_CHANGE_BYTES = 500  # The cost of a waiting change with its vectors, beside its names.


class Told(NamedTuple):
    """A change, and what a watcher that takes it has seen of the partition.

    `part` names the place within the operation, as `pack_part`; it is empty after the operation's last change.
    """

    change: Change
    dot: Dot
    seen: VersionVector
    part: bytes

    @property
    def size(self) -> int:
        """About the bytes that it needs while it waits."""
        return _CHANGE_BYTES + len(self.change.name) + len(self.change.id)


class _Run:
    """One partition: what was read of its log and not given yet, in order."""

    __slots__ = ("ended", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Told] = deque()
        self.ended = False


class Merge:
    """Ask `hungry` which partition must be read next, `feed` what was read, and `take` once none must be."""

    def __init__(self, numbers: Iterable[int], *, bytes_max: int) -> None:
        self._runs = {number: _Run() for number in numbers}
        self._hungry = deque(self._runs)
        self._next: list[tuple[int, Dot, int]] = []  # A heap of the first waiting change of each partition.
        self._bytes_max = bytes_max
        self._bytes = 0

    @property
    def hungry(self) -> int | None:
        """A partition that must be read on before anything can be taken; None if there is none."""
        return self._hungry[0] if self._hungry else None

    @property
    def slice(self) -> int:
        """How many operations to read of it."""
        if self._bytes > self._bytes_max:
            return 1
        return max(_SLICE_MIN, min(SLICE_MAX, WAITING_MAX // max(1, len(self._runs))))

    def feed(self, told: Sequence[Told], *, ends: bool) -> None:
        """Add the changes that were read of the partition that is `hungry`; `ends` says that there are no more."""
        number = self._hungry[0]
        run = self._runs[number]
        run.waiting.extend(told)
        run.ended = ends
        self._bytes += sum(each.size for each in told)
        if told or ends:
            self._hungry.popleft()
        self._show(number)

    def take(self) -> Told | None:
        """The next change; None if all were taken. No partition may be hungry."""
        assert not self._hungry
        if not self._next:
            return None
        _, _, number = heapq.heappop(self._next)
        told = self._runs[number].waiting.popleft()
        self._bytes -= told.size
        self._show(number)
        return told

    def _show(self, number: int) -> None:
        run = self._runs[number]
        if run.waiting:
            first = run.waiting[0]
            heapq.heappush(self._next, (first.change.hlc, first.dot, number))
        elif run.ended:
            del self._runs[number]
        elif not self._hungry or self._hungry[0] != number:
            self._hungry.append(number)

    def left(self) -> Iterator[Told]:
        """All changes that wait here."""
        for run in self._runs.values():
            yield from run.waiting

    def unread(self) -> Iterator[int]:
        """The partitions whose log was not read to its end."""
        return (number for number, run in self._runs.items() if not run.ended)
