"""Tell subscribers which changes became durable.

Laws:
- A change is staged when it is written and published when the group commit that
  covers it is done: no subscriber is shown what a power cut could still take back.
- A change goes to those who subscribed before it was published, in the order of the writes.
  The first few are told at once and the rest a few at each turn of the loop, so that the
  writer's answer, and other work, does not wait for them. Spaces take turns.
- The tells that are still to come are bounded. Past the bound `publish` makes room itself.
- Whoever takes a push has seen the operation that it shows, and all that was there
  before it: the subscriber's bookmark takes that in with the push, not earlier.
- A subscriber has a buffer of bounded bytes. Past it the buffer is dropped and
  the subscriber gets SlowConsumer, then nothing: it has to read again. A `ResumableWatch`
  (shoal.node.watching.resumable) gets one Reset in its place, and goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import GenerationEnded, Overloaded, ShoalError, ShuttingDown, SlowConsumer
from shoal.node.watching.audience import Audience
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Change, DocumentState, Edit, Follow, ObjectKind, Push, Reset, Watch, Watching
from shoal.storage.keys import Kind

LABELS: dict[Kind, ObjectKind] = {
    Kind.THREAD: "thread",
    Kind.DOCUMENT: "document",
    Kind.COUNTER: "counter",
    Kind.REGISTER: "register",
    Kind.ITEMS: "items",
    Kind.SCHEMA: "schema",
    Kind.SET: "set",
    Kind.BUDGET: "budget",
    Kind.MAP: "map",
}

_GONE = (
    "the document was deleted. What was edited stays in the client; open the document again to begin from what there is now."
)
_OVERHEAD_BYTES = 200  # Of a push as a Python object.
TOLD_PER_TURN = 16  # As many as the waiters that a group commit wakes: over a connection each costs about 0.1 ms.


class Staged(NamedTuple):
    """One mutation: what watchers of its space see, and what followers of its document get."""

    partition: int
    change: Change
    stamp: Stamp  # Its context is the partition's vector here, as it was before the operation.
    edit: Edit | None = None
    began: int = 0  # Of a deletion: the generation that it began.


class _Waiting(NamedTuple):
    push: Push
    size: int
    partition: int
    seen: VersionVector  # Of the partition, by whoever is shown the push.


class Subscriber:
    """An asynchronous iterator over pushes; ends with an error, or never."""

    def __init__(self, subscription: Watch | Follow, bookmark: Bookmark, bytes_max: int) -> None:
        self.subscription = subscription
        self._bookmark = bookmark
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: deque[_Waiting] = deque()
        self._ended: ShoalError | None = None
        self._wake = asyncio.Event()

    def __aiter__(self) -> Subscriber:
        return self

    async def __anext__(self) -> Push:
        while not self._waiting:
            if self._ended is not None:
                raise self._ended
            self._wake.clear()
            await self._wake.wait()
        push, size, partition, seen = self._waiting.popleft()
        self._bytes -= size
        self._bookmark.note(partition, seen)
        return push

    def offer(self, push: Push, partition: int, seen: VersionVector) -> None:
        if self._ended is not None:
            return
        size = _size(push)
        self._bytes += size
        # One push alone is always taken: an initial state may be larger than the bound.
        if self._bytes > self._bytes_max and self._waiting:
            self._waiting.clear()
            self.end(
                SlowConsumer(
                    f"more than {self._bytes_max} bytes waited for this subscriber, and were dropped. "
                    "Read the current state, and subscribe again."
                )
            )
            return
        self._waiting.append(_Waiting(push, size, partition, seen))
        self._wake.set()

    def lead(self, push: Push, partition: int, seen: VersionVector) -> None:
        """Put the initial state ahead of what was offered meanwhile."""
        self._bytes += (size := _size(push))
        self._waiting.appendleft(_Waiting(push, size, partition, seen))
        self._wake.set()

    def end(self, error: ShoalError) -> None:
        self._ended = error
        self._wake.set()

    def tell(self, staged: Staged, seen: VersionVector, *, ends: bool) -> None:
        """A change became durable. `seen`: the partition's vector after its write; `ends`: its operation has no more."""
        push = self._wanted(staged)
        if push is not None:
            self.offer(push, staged.partition, seen)
        elif self._loses(staged):
            self.end(GenerationEnded(_GONE, generation=staged.began))

    def _wanted(self, staged: Staged) -> Push | None:
        change, wanted = staged.change, self.subscription
        if isinstance(wanted, Follow):
            mine = change.space == wanted.space and change.name == wanted.document
            return staged.edit if mine else None
        return change if matches(wanted, change.space, change.kind, change.name) else None

    def _loses(self, staged: Staged) -> bool:
        """Whether what it follows was deleted."""
        change, wanted = staged.change, self.subscription
        return (
            staged.began > 0
            and isinstance(wanted, Follow)
            and (change.space, change.kind, change.name) == (wanted.space, "document", wanted.document)
        )


def matches(watch: Watch, space: str, kind: ObjectKind, name: str) -> bool:
    if space != watch.space or not name.startswith(watch.prefix) or (watch.kind is not None and watch.kind != kind):
        return False
    return not watch.kinds or kind in watch.kinds


def _size(push: Push) -> int:
    match push:
        case DocumentState() | Edit():
            return _OVERHEAD_BYTES + len(push.update)
        case Change():
            return _OVERHEAD_BYTES + len(push.name)
        case Watching() | Reset():
            return _OVERHEAD_BYTES + len(push.position)
        case _:
            return _OVERHEAD_BYTES


class _Telling:
    """One change, and the subscribers that are still to be told of it."""

    __slots__ = ("_audience", "_ends", "_seen", "_staged", "_told")

    def __init__(self, staged: Staged, seen: VersionVector, *, ends: bool, audience: list[Subscriber]) -> None:
        self._staged = staged
        self._seen = seen
        self._ends = ends
        self._audience = audience
        self._told = 0

    def __len__(self) -> int:
        return len(self._audience) - self._told

    def tell(self, limit: int) -> int:
        """Tell the next `limit` at most; returns how many that were."""
        some = self._audience[self._told : self._told + limit]
        self._told += len(some)
        for subscriber in some:
            subscriber.tell(self._staged, self._seen, ends=self._ends)
        return len(some)


class Feed:
    def __init__(self, *, subscribers_max: int, bytes_max: int, tells_max: int) -> None:
        self._subscribers_max = subscribers_max
        self._bytes_max = bytes_max
        self._tells_max = tells_max
        self._audiences: dict[str, Audience[Subscriber]] = {}  # By space.
        self._staged: deque[tuple[int, list[Staged], Mapping[int, VersionVector]]] = deque()  # Bounded by writes_pending_max.
        self._count = 0
        self._tellings: dict[str, deque[_Telling]] = {}  # By space, the one whose turn it is first; none is empty.
        self._tells = 0  # That these still have to make.
        self._turn: asyncio.Handle | None = None

    def __len__(self) -> int:
        return self._count

    def wanted(self, space: str) -> bool:
        """Whether anybody listens to a space: if not, staging is skipped."""
        return space in self._audiences

    def stage(self, number: int, staged: list[Staged], vectors: Mapping[int, VersionVector]) -> None:
        """What write `number` changes, and the vectors of its partitions after it."""
        self._staged.append((number, staged, vectors))

    def publish(self, durable: int) -> None:
        """The writes up to `durable` became durable: tell the first few of their subscribers, and soon the others."""
        while self._staged and self._staged[0][0] <= durable:
            _, changes, vectors = self._staged.popleft()
            for staged, following in pairwise([*changes, None]):
                assert staged is not None
                ends = following is None or following.stamp.dot != staged.stamp.dot
                self._spread(staged, vectors[staged.partition], ends=ends)
        self._tell(TOLD_PER_TURN)

    def _spread(self, staged: Staged, seen: VersionVector, *, ends: bool) -> None:
        change = staged.change
        audience = self._audiences.get(change.space)
        concerned = audience.of(change.kind, change.name) if audience is not None else []
        if not concerned:
            return
        self._tellings.setdefault(change.space, deque()).append(_Telling(staged, seen, ends=ends, audience=concerned))
        self._tells += len(concerned)
        if self._tells > self._tells_max:
            self._tell(self._tells - self._tells_max)

    def _tell(self, limit: int) -> None:
        """Tell `limit` subscribers; if some are left, go on at the loop's next turn."""
        while limit > 0 and self._tellings:
            space = next(iter(self._tellings))
            waiting = self._tellings.pop(space)
            told = waiting[0].tell(limit)
            limit -= told
            self._tells -= told
            if not waiting[0]:
                waiting.popleft()
            if waiting:
                self._tellings[space] = waiting  # Behind the other spaces.
        if self._tellings and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._turn = None
        self._tell(TOLD_PER_TURN)

    @property
    def bytes_max(self) -> int:
        """Of what waits for one subscriber."""
        return self._bytes_max

    @contextmanager
    def told(self, subscriber: Subscriber) -> Iterator[None]:
        """While this is entered, the subscriber is told.

        Raises:
            Overloaded: the node has as many subscribers as it may.
        """
        if self._count >= self._subscribers_max:
            raise Overloaded(
                f"this node has {self._count} subscribers, which is the maximum. Try again later.", retry_after_s=1.0
            )
        subscription = subscriber.subscription
        audience = self._audiences.setdefault(subscription.space, Audience())
        audience.add(subscriber, subscription)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            audience.discard(subscriber, subscription)
            if not audience:
                self._audiences.pop(subscription.space, None)

    def close(self) -> None:
        """End all subscriptions. A change that not all were told of is in the log: the next node tells it."""
        self._tellings.clear()
        self._tells = 0
        for audience in list(self._audiences.values()):
            for subscriber in audience:
                subscriber.end(ShuttingDown("the node is stopping. Subscribe again, here later or on another node."))
