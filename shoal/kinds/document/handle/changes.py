"""The changes of a document, and the readers that wait for them.

Laws:
- The changes are the mirror's own history, in order: the old value of each is what the one
  before it left. Readers receive them once they are durable; changes that come meanwhile wait behind them.
- The bytes that wait are bounded. Beyond the bound they are dropped, and the readers get an error
  instead of a stream with a gap.

Compaction of a document, in as many requests as are needed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from shoal import values
from shoal.client.connection import waiting
from shoal.client.home import Home
from shoal.errors import Disconnected, ShoalError, SlowConsumer
from shoal.protocol.requests import Compact, Compacted, Overwritten
from shoal.records import NamedTuple
from shoal.workflows.connection import as_duration_ms, as_timeout_s, moment

ChangeKind = Literal["add", "set", "delete", "insert", "conflict"]


@dataclass(frozen=True, slots=True)
class DocumentConflict:
    """A value of a map key that was overwritten by a writer that had not seen it."""

    path: tuple[str, ...]  # From the root on; "*" is some element of an array.
    lost: Any
    lost_by: str  # The author of the lost value; "" if none was given.
    stands: Any  # The current value; None also if it was deleted.
    stands_by: str  # The author of the current value.
    time: datetime  # The time of the later write, by its writer's clock.


def shown_conflict(lost: Overwritten) -> DocumentConflict:
    """A conflict as handles show it."""
    return DocumentConflict(
        tuple(lost.path),
        values.decode(lost.lost),
        lost.lost_by,
        values.decode(lost.stands),
        lost.stands_by,
        moment(lost.wall_ms),
    )


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """A durable change.

    `kind`: of a map's key "add", "set" or "delete", with its `old` and `new` value; of an array
    or a text "insert" or "delete" at the index that ends the path, with a list or a string.
    In a text an index counts characters, an embedded object as one. Done one after the other, changes give the content.

    A "conflict" changes nothing: a map's key was assigned two values concurrently, of which `old` by `lost_by`
    was overwritten, and `new` by `author` stands.
    """

    origin: Literal["local", "remote"]
    author: str  # "" if no author was given, or if several edits arrived as one.
    kind: ChangeKind
    path: tuple[str | int, ...]  # The root's name, then keys and indices.
    old: Any
    new: Any
    lost_by: str = ""


class _Waiting(NamedTuple):
    edit: int  # The local edit that must be durable first; 0 for changes that came from the node.
    changes: Sequence[DocumentChange]
    size: int


class Feed:
    """The changes of one mirror and their readers; `edit` numbers local edits."""

    def __init__(self, bytes_max: int, home: Home) -> None:
        self.home = home
        self.served = False  # Whether a node currently sends changes of the document.
        self._bytes_max = bytes_max
        self._readers: list[Changes] = []
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._written = 0

    @property
    def is_read(self) -> bool:
        """Whether there is a reader."""
        return bool(self._readers)

    def reader(self, timeout_s: float | None = None) -> Changes:
        """A new reader of the changes from now on; see `Changes`."""
        reader = Changes(self, self._bytes_max, timeout_s)
        self._readers.append(reader)
        return reader

    def edited(self, edit: int, changes: Sequence[DocumentChange], size: int) -> None:
        """Keep local changes until they are durable."""
        self._wait(_Waiting(edit, changes, size))

    def arrived(self, changes: Sequence[DocumentChange], size: int) -> None:
        """Deliver changes that came from the node, after the local ones that wait."""
        self._wait(_Waiting(0, changes, size))
        self._tell()

    def written(self, edit: int) -> None:
        """Deliver the local changes up to this edit, because they are durable."""
        self._written = edit
        self._tell()

    def end(self, error: ShoalError | None) -> None:
        """End all readers."""
        for reader in self._readers:
            reader.end(error)
        self._readers = []
        self._waiting.clear()
        self._bytes = 0

    def _wait(self, waiting: _Waiting) -> None:
        if not self._readers or not waiting.changes:
            return
        self._waiting.append(waiting)
        self._bytes += waiting.size
        if self._bytes > self._bytes_max and len(self._waiting) > 1:
            self.end(_slow(self._bytes_max))

    def _tell(self) -> None:
        while self._waiting and self._waiting[0].edit <= self._written:
            _, changes, size = self._waiting.popleft()
            self._bytes -= size
            self._readers = [reader for reader in self._readers if reader.put(changes, size)]


class Changes(AsyncIterator[DocumentChange]):
    """One reader's changes; beyond the bound they are dropped, and the reader gets an error.

    It ends after `timeout_s` without a change.
    """

    def __init__(self, feed: Feed, bytes_max: int, timeout_s: float | None) -> None:
        self._feed = feed
        self._bytes_max = bytes_max
        self._timeout_s = as_timeout_s(timeout_s)
        self._waiting: deque[tuple[DocumentChange, int]] = deque()
        self._bytes = 0
        self._ended = False
        self._error: ShoalError | None = None
        self._ready = asyncio.Event()

    def put(self, changes: Sequence[DocumentChange], size: int) -> bool:
        """Queue changes for the reader; False if it has ended, because too much waits."""
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._waiting.clear()
            self.end(_slow(self._bytes_max))
            return False
        last = len(changes) - 1
        self._waiting.extend((change, size if index == last else 0) for index, change in enumerate(changes))
        self._ready.set()
        return True

    def end(self, error: ShoalError | None) -> None:
        """End the iterator after the changes that wait, with this error if there is one."""
        self._ended, self._error = True, error
        self._ready.set()

    async def __anext__(self) -> DocumentChange:
        self._feed.home.check()
        try:
            async with waiting(), asyncio.timeout(self._timeout_s):
                await self._stirred()
        except TimeoutError:
            if not self._feed.served:
                raise Disconnected(
                    "no node could deliver changes of the document within the timeout. Local edits are kept. Call "
                    "changes() again."
                ) from None
            raise StopAsyncIteration from None
        change, size = self._waiting.popleft()
        self._bytes -= size
        return change

    async def _stirred(self) -> None:
        while not self._waiting:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()


def _slow(bytes_max: int) -> SlowConsumer:
    return SlowConsumer(
        f"more than {bytes_max} bytes of changes waited for this reader. Nothing is lost: "
        "the document itself is current. Read it and call changes() again."
    )


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of compacting a document."""

    updates: int  # How many updates were replaced by one.
    bytes: int  # The size of that one; 0 if there was nothing to do.


async def compact(
    write: Callable[[Compact], Awaitable[Compacted]], space: str, document: str, older_than: timedelta | float | None
) -> Compaction:
    """Compact a document until nothing is left to compact.

    Raises:
        NotFound: there is no such document.
        CatchingUp: a part of it has not reached the node yet; try again.
        TooLarge: as one update it would exceed the node's `request_bytes_max`.
    """
    age_ms = as_duration_ms(older_than, what="older_than") or 0
    updates = 0
    while True:
        done = await write(Compact(space, document, age_ms))
        updates += done.updates
        if not done.more:
            return Compaction(updates, done.bytes)
