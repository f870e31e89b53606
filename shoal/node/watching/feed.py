"""The feed, which pushes durable changes to subscribers.

Laws:
- A change is staged when it is written, and published when the group commit that
  covers it is done: no subscriber sees what a power cut could still take back.
- A change goes to those who subscribed before it was published, in the order of the writes.
  The first few get it at once and the rest a few at each turn of the loop, so that the
  writer's answer, and other work, does not wait for them. Spaces take turns.
- The pushes that must still be made are bounded. Past the bound `publish` makes room itself.
- A subscriber that takes a push has seen the operation that it shows, and all that was
  there before it: its bookmark includes that with the push, not earlier.
- A subscriber has a buffer of bounded bytes. Past the bound the buffer is dropped and
  the subscriber gets SlowConsumer, then nothing: it must read again. A `ResumableWatch`
  (shoal.node.watching.changelog) gets one Reset instead, and continues.

The subscribers of one space, found by the objects that they subscribed to.

A change that 20,000 watchers see was told to all of them before its writer was answered, which took 850 ms.

Law: finding the subscribers that a change may concern takes time in proportion to their number,
and one lookup for each length of a prefix in use. Subscribers to other objects cost nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import Generic, TypeVar

from shoal.cluster.operation import partition_of
from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import GenerationEnded, Overloaded, ShoalError, ShuttingDown, SlowConsumer
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Change, DocumentState, Edit, Follow, ObjectKind, Push, Reset, Watch, Watching
from shoal.records import NamedTuple

T = TypeVar("T", bound=Hashable)


class Audience(Generic[T]):
    """Members are kept, and found, in the order in which they came."""

    def __init__(self) -> None:
        self._watching: dict[str, dict[T, None]] = {}  # By prefix.
        self._lengths: dict[int, int] = {}  # Of a prefix → how many prefixes have it.
        self._following: dict[str, dict[T, None]] = {}  # By document.

    def __bool__(self) -> bool:
        return bool(self._watching or self._following)

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable([*self._watching.values(), *self._following.values()])

    def add(self, member: T, subscription: Watch | Follow) -> None:
        """Add a member with its subscription. A member is added only once."""
        if isinstance(subscription, Follow):
            self._following.setdefault(subscription.document, {})[member] = None
            return
        prefix = subscription.prefix
        if prefix not in self._watching:
            self._watching[prefix] = {}
            self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
        self._watching[prefix][member] = None

    def discard(self, member: T, subscription: Watch | Follow) -> None:
        """Remove a member, given the subscription with which it was added."""
        if isinstance(subscription, Follow):
            _discard(self._following, subscription.document, member)
            return
        length = len(subscription.prefix)
        if _discard(self._watching, subscription.prefix, member):
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def of(self, kind: ObjectKind, name: str) -> list[T]:
        """The members that watch a prefix of this name, whatever kinds they want, and the followers of this document."""
        found: list[T] = []
        for length in self._lengths:
            if length <= len(name):
                found += self._watching.get(name[:length], ())
        if kind == "document":
            found += self._following.get(name, ())
        return found


def _discard(groups: dict[str, dict[T, None]], name: str, member: T) -> bool:
    """Remove a member from a group; True if it was the last one, and the group was removed."""
    group = groups[name]
    del group[member]
    if not group:
        del groups[name]
    return not group


_GONE = "the document was deleted. The client keeps its edits; open the document again to begin from the current content."
_OVERHEAD_BYTES = 200  # Of a push as a Python object.
SLOW_SPACES_MAX = 64  # Whose slow subscribers are counted apart.
TOLD_PER_TURN = 16  # As many as the waiters that a group commit wakes: over a connection each costs about 0.1 ms.


class Staged(NamedTuple):
    """One mutation: the push to watchers of its space (`change`), and that to followers of its document (`edit`)."""

    partition: int
    change: Change
    stamp: Stamp  # Its context is the partition's vector here, as it was before the operation.
    edit: Edit | None = None
    began: int = 0  # Of a deletion: the generation that it began.


class _Waiting(NamedTuple):
    push: Push
    size: int
    partition: int
    seen: VersionVector  # Of the partition: what a subscriber has seen that takes the push.


class Subscriber:
    """An asynchronous iterator over pushes; it ends with an error, or never."""

    def __init__(self, subscription: Watch | Follow, bookmark: Bookmark, bytes_max: int) -> None:
        self.subscription = subscription
        self._bookmark = bookmark
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: deque[_Waiting] = deque()
        self._ended: ShoalError | None = None
        self._wake = asyncio.Event()
        self.is_slow = False
        """Whether it was ended because it read too slowly."""

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
        """Queue a push; past the bound the queue is dropped and the subscriber ends with `SlowConsumer`."""
        if self._ended is not None:
            return
        size = _size(push)
        self._bytes += size
        # One push alone is always taken: an initial state may be larger than the bound.
        if self._bytes > self._bytes_max and self._waiting:
            self._waiting.clear()
            self.end(
                SlowConsumer(
                    f"more than {self._bytes_max} bytes waited for this subscriber and were dropped. "
                    "Read the current state, and subscribe again."
                )
            )
            self.is_slow = True
            return
        self._waiting.append(_Waiting(push, size, partition, seen))
        self._wake.set()

    def lead(self, push: Push, partition: int, seen: VersionVector) -> None:
        """Put the initial state before the pushes that were offered meanwhile."""
        self._bytes += (size := _size(push))
        self._waiting.appendleft(_Waiting(push, size, partition, seen))
        self._wake.set()

    def replaced(self, number: int, vector: VersionVector) -> None:
        """A peer's snapshot has replaced a partition, which is at `vector` now. Its changes cannot be told one by one."""
        wanted = self.subscription
        if isinstance(wanted, Watch) or partition_of(wanted.space, wanted.document) == number:
            self._waiting.clear()
            self._bytes = 0
            self.end(
                SlowConsumer(
                    f"this node was too far behind the others, and has replaced partition {number} by a peer's snapshot. "
                    "Read the current state, and subscribe again."
                )
            )

    def end(self, error: ShoalError) -> None:
        """Raise `error` once all waiting pushes were taken."""
        self._ended = error
        self._wake.set()

    def tell(self, staged: Staged, seen: VersionVector, *, ends: bool) -> None:
        """Offer a durable change, if the subscription is about it.

        `seen` is the partition's vector after its write; `ends` says that it is the last change of its operation.
        """
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
        """Whether the followed document was deleted."""
        change, wanted = staged.change, self.subscription
        return (
            staged.began > 0
            and isinstance(wanted, Follow)
            and (change.space, change.kind, change.name) == (wanted.space, "document", wanted.document)
        )


def matches(watch: Watch, space: str, kind: ObjectKind, name: str) -> bool:
    """Whether a watch is about an object."""
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
    """One change, and the subscribers that must still get it."""

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
        """Push to at most `limit` of them; returns to how many."""
        some = self._audience[self._told : self._told + limit]
        self._told += len(some)
        for subscriber in some:
            subscriber.tell(self._staged, self._seen, ends=self._ends)
        return len(some)


def _count(counts: dict[str, int], space: str) -> None:
    name = space if space in counts or len(counts) < SLOW_SPACES_MAX else "(other)"
    counts[name] = counts.get(name, 0) + 1


class Feed:
    """All subscribers of one node; its length is their number. At most `tells_max` pushes wait for a turn of the loop."""

    def __init__(self, *, subscribers_max: int, bytes_max: int, tells_max: int) -> None:
        self._subscribers_max = subscribers_max
        self._bytes_max = bytes_max
        self._tells_max = tells_max
        self._audiences: dict[str, Audience[Subscriber]] = {}  # By space.
        self.wanted = self._audiences.__contains__
        """Whether a space has subscribers; if not, staging is skipped."""
        self._staged: deque[tuple[int, list[Staged], Mapping[int, VersionVector]]] = deque()  # Bounded by writes_pending_max.
        self._count = 0
        self._tellings: dict[str, deque[_Telling]] = {}  # By space, the one whose turn it is first; none is empty.
        self._tells = 0  # Pushes that these must still make.
        self._turn: asyncio.Handle | None = None
        self._slow: dict[str, int] = {}  # By space, those that are gone: the first spaces, and "(other)".

    def __len__(self) -> int:
        return self._count

    def stage(self, number: int, staged: list[Staged], vectors: Mapping[int, VersionVector]) -> None:
        """Stage the changes of write `number`, with the vectors of its partitions after it."""
        self._staged.append((number, staged, vectors))

    def publish(self, durable: int) -> None:
        """Push the changes of all writes up to the number `durable`: to the first few subscribers now, to others soon."""
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
        """Push to at most `limit` subscribers; if some are left, continue at the loop's next turn."""
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

    def replaced(self, number: int, spaces: Iterable[str], vector: VersionVector) -> None:
        """Tell subscribers of these spaces, which have objects in a partition that was replaced, to start again."""
        for space in spaces:
            for subscriber in list(self._audiences.get(space, ())):
                subscriber.replaced(number, vector)

    @property
    def bytes_max(self) -> int:
        """The bound of the bytes that wait for one subscriber."""
        return self._bytes_max

    @contextmanager
    def told(self, subscriber: Subscriber) -> Iterator[None]:
        """Publish to a subscriber for as long as the context is entered.

        Raises:
            Overloaded: this node has `subscribers_max` subscribers.
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
            if subscriber.is_slow:
                _count(self._slow, subscription.space)
            if not audience:
                self._audiences.pop(subscription.space, None)

    @property
    def slow(self) -> dict[str, int]:
        """How many subscribers were ended because they read too slowly, by space; the first spaces, and "(other)"."""
        counts = dict(self._slow)
        for space, audience in self._audiences.items():
            for _ in filter(lambda subscriber: subscriber.is_slow, audience):
                _count(counts, space)
        return counts

    def close(self) -> None:
        """End all subscribers with `ShuttingDown`. Changes that some did not get are in the log, for a watch elsewhere."""
        self._tellings.clear()
        self._tells = 0
        for audience in list(self._audiences.values()):
            for subscriber in audience:
                subscriber.end(ShuttingDown("the node is stopping. Subscribe again, here later or on another node."))
