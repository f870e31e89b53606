"""Messages of peers are applied in steps, one write each, and the spaces whose operations these are take turns.

A save needs about eight turns of the loop, so a node that catches up would delay each by what it applies in eight turns.

Laws:
- A step is taken in the turn of its space (`shoal.node.spaces.sharing`), and charged to it: the operations of a busy space hold
  up no other's, whether these are requests here or came later from a peer. It has a bound of operations and of bytes. Longer
  turns of others follow it while a request waits for the disk.
- An operation is taken with those of its partition that the same peer sent before it, so within a partition order is kept.
- Messages that bring nothing are taken after all those that came before them on their link. Nothing but a bound holds up the
  link meanwhile: behind them stand acknowledgements, for which other spaces wait.
- A message that is one step of one space is taken as it comes, if its space's turn is free and nothing of its peer waits. It is
  charged all the same, so a link that brings one after another waits for turns like any other.
- What a peer pushed before it began anew, and what has not been taken by then, is not taken any more.
- The next message is read while at most `PEER_AHEAD_BYTES_MAX` of those before it wait for their turn, and not while too many
  writes wait for the disk. What waits counts by the memory that it takes, also without bytes. Little of it is held decoded.
- Of messages that waited, at most `PEER_HELD_IN_A_ROW_MAX` are taken without a turn for others.
- Until an operation is durable its space counts as one that waits for the disk, for which busier ones pause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import count, groupby

from msgspec import Raw

from shoal.cluster import messages, operation
from shoal.cluster.delivery import OVERHEAD_BYTES, Arrival, Refused
from shoal.cluster.messages import Shipment
from shoal.errors import BadOperation, InvalidValue
from shoal.names import check_name
from shoal.node import mutation
from shoal.node.context import NodeContext
from shoal.node.mutation import Mutation
from shoal.node.peers import incoming as vetting
from shoal.node.spaces.sharing import Lane
from shoal.node.turns import Background, Steps, document_pace, in_turns

PEER_AHEAD_BYTES_MAX = 8 * 1024 * 1024  # Messages of one peer that wait for a turn; beyond this, its next ones are not read.
PEER_DECODED_BYTES_MAX = 1024 * 1024  # Of those, what is held decoded: ten times as large. The rest is decoded again.
PEER_HELD_IN_A_ROW_MAX = 64  # Messages that waited, in one turn of the loop.
PEER_STEP_OPERATIONS_MAX = 16  # Of a peer's message, applied in one write; other work runs between two of them.
PEER_LOOK_OPERATIONS_MAX = 256  # Of a message, decoded in one step.
PEER_LOOK_BYTES_MAX = 64 * 1024  # After a longer one others have a turn before it is applied.
PEER_STEP_BYTES_MAX = 128 * 1024  # The same. One operation may exceed it.

Take = Callable[[], Awaitable[None]]
"""Takes a message."""


Operation = Shipment | Arrival | Refused
"""An operation of a message, decoded if it could be, or with what is wrong with it."""


class _Waiting:
    """An operation that came, until it is taken."""

    __slots__ = ("bytes", "is_large", "is_long", "is_slow", "is_taken", "memory", "operation", "shipment", "space")

    def __init__(self, shipment: Shipment) -> None:
        self.shipment = shipment
        self.operation: Operation = shipment
        self.bytes = len(shipment.packed) + len(shipment.attached)
        self.memory = self.bytes + OVERHEAD_BYTES  # The bytes that it takes while it waits, about.
        self.is_taken = self.is_large = self.is_long = False
        self.is_slow = False  # Whether it is taken in more than one step.
        self.space = ""  # The node's own, if it names none: what is wrong with it is said when it is taken.

    def look(self) -> None:
        """Decode it, if it can be."""
        with suppress(Exception):
            body = operation.decode_sent(self.shipment.packed)
            self._decoded(body, mutation.decode_sent(body.payload))

    def looking(self) -> Steps[None]:
        """As `look`, in steps. Of one that holds too much, which is not counted again, this says what is wrong."""
        try:
            body = yield from operation.decoding_sent(self.shipment.packed)
            changes = yield from mutation.decoding_sent(body.payload)
        except (InvalidValue, BadOperation) as error:
            self.operation = Refused(self.shipment, vetting.refusal(self.shipment, error))
            return
        except Exception:
            return
        yield
        with suppress(Exception):
            self._decoded(body, changes)

    def _decoded(self, body: operation.Body, changes: Sequence[Mutation]) -> None:
        self.space = check_name("space", changes[0].space)
        self.operation = Arrival(self.shipment, body, self.shipment.dot, changes)
        self.is_large = vetting.is_large(self.shipment, changes)
        self.is_long = vetting.is_long(self.shipment, changes)
        self.is_slow = self.is_large or self.is_long


class _Ahead:
    """The messages of one peer that are not done."""

    __slots__ = ("bytes", "error", "held", "messages")

    def __init__(self) -> None:
        self.bytes = 0
        self.messages: dict[int, None] = {}  # Their numbers, as they came.
        self.held: deque[tuple[int, int, Take]] = deque()  # Those that wait for all before them: number, size, and how.
        self.error: Exception | None = None  # Of one of them, for the link, at its next message.

    def is_first(self, number: int) -> bool:
        """Whether all that came before this message is done."""
        return next(iter(self.messages)) == number


class Deliveries:
    """The messages of peers; `take(peer, shipments)` applies the operations of one step.

    `drafting` gives the steps that draft a long one (`shoal.node.peers.incoming.Incoming.drafting`).
    """

    def __init__(
        self,
        context: NodeContext,
        take: Callable[[bytes, Sequence[Operation]], None],
        drafting: Callable[[Arrival], AbstractContextManager[Steps[None]]],
    ) -> None:
        self._commit = context.commit
        self._take = take
        self._drafting = drafting
        self._sharing = context.sharing
        self._environment = context.environment
        self._config = context.config
        self._pace = document_pace()
        self._waiting: dict[tuple[bytes, int], deque[_Waiting]] = {}  # By peer and partition, as they came.
        self._ahead: dict[bytes, _Ahead] = {}  # By peer.
        self._numbers = count()  # Of messages.
        self._moved = asyncio.Event()  # Some are taken.
        self._pushed = Background()
        self._unsynced: deque[tuple[int, Lane]] = deque()  # The numbers of their writes.

    async def push(self, peer: bytes, operations: Iterable[Shipment | Raw], is_heard: Callable[[], bool]) -> None:
        """Take the operations of one message, now or later: those that `is_heard` denies by then are dropped.

        Raises:
            ReadOnly, StorageFull: storage failed before, or now.
            ShoalError: so did what the peer sent before.
        """
        self._raise(peer)
        await self._disk()
        came = await self._came(peer, operations)
        if not is_heard():  # No more: its sender may have died while this waited.
            return
        if peer not in self._ahead and self._taken_at_once(peer, came):
            return
        spaces = self._enqueued(peer, came)
        for lane, mine in list(spaces.items()):
            if not self._is_short(mine) or not self._sharing.is_free(lane):
                break
            del spaces[lane]
            self._take_now(peer, lane, mine)
        if spaces:
            self._pushed.start(self._later(peer, self._began(peer), spaces, is_heard))
            await self._room(peer)

    async def supply(self, peer: bytes, operations: Iterable[Shipment | Raw]) -> None:
        """Take the operations of one message, all before this returns.

        Raises:
            ReadOnly, StorageFull: storage failed before, or now.
        """
        await self._in_lanes(peer, self._enqueued(peer, await self._came(peer, operations)), lambda: True)

    def forget(self, peer: bytes) -> None:
        """Drop what the peer sent and what waits for its turn: its directory was opened again since."""
        for (node, _), waiting in self._waiting.items():
            if node == peer:
                for each in waiting:
                    each.is_taken = True

    async def in_order(self, peer: bytes, size: int, take: Take, *, is_long: bool = False) -> None:
        """Take a message of so many bytes once all that the peer sent before is done: now, if it is, and this `is_long` not.

        Raises:
            ShoalError: this failed now, or what the peer sent before did.
        """
        self._raise(peer)
        if not is_long and not self.is_ahead(peer):
            await take()
            return
        size += OVERHEAD_BYTES
        number = self._began(peer, size)
        ahead = self._ahead[peer]
        ahead.held.append((number, size, take))
        if len(ahead.held) == 1:
            self._pushed.start(self._in_their_order(peer, ahead))
        await self._room(peer)

    def is_ahead(self, peer: bytes) -> bool:
        """Whether something that the peer sent before is not done."""
        return peer in self._ahead and bool(self._ahead[peer].messages)

    def durable(self, number: int) -> None:
        """All writes up to this number are."""
        while self._unsynced and self._unsynced[0][0] <= number:
            self._sharing.left(self._unsynced.popleft()[1])

    async def close(self) -> None:
        """Drop what waits: it is fetched again, if the node lives."""
        await self._pushed.close()

    # ── in their turns ────────────────────────────────────────────────────────

    async def _later(self, peer: bytes, number: int, spaces: dict[Lane, list[_Waiting]], is_heard: Callable[[], bool]) -> None:
        try:
            await self._in_lanes(peer, spaces, is_heard)
        except Exception as error:
            self._ahead[peer].error = error
        finally:
            self._ended(peer, number)

    async def _in_their_order(self, peer: bytes, ahead: _Ahead) -> None:
        nth = 0
        while ahead.held:
            number, size, take = ahead.held[0]
            await self._until(partial(ahead.is_first, number))
            try:
                await take()
            except Exception as error:
                ahead.error = error
            finally:
                ahead.held.popleft()
                self._ended(peer, number, size)
            nth += 1
            if ahead.held and nth % PEER_HELD_IN_A_ROW_MAX == 0:
                await self._environment.pause()

    async def _in_lanes(self, peer: bytes, spaces: dict[Lane, list[_Waiting]], is_heard: Callable[[], bool]) -> None:
        async def one(lane: Lane, mine: list[_Waiting]) -> None:
            try:
                await self._sharing.taken(lane, self._in_steps(peer, lane, mine, is_heard), has_begun=True)
            finally:
                self._done(peer, mine)

        if len(spaces) == 1:
            await one(*spaces.popitem())
            return
        ends = await asyncio.gather(*(one(lane, mine) for lane, mine in spaces.items()), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end

    async def _in_steps(self, peer: bytes, lane: Lane, mine: Sequence[_Waiting], is_heard: Callable[[], bool]) -> None:
        for some in self._steps(mine):
            for each in some:
                if not each.is_taken and each.is_large:
                    await in_turns(vetting.vet(each.shipment, self._pace), self._environment.pause)
            for group in _with_long_ones_alone(some):
                if group[0].is_long and not group[0].is_taken and group[0].operation is group[0].shipment:
                    await in_turns(group[0].looking(), self._environment.pause)  # It was not held decoded.
                with self._drafted(group) as steps:
                    await in_turns(steps, self._environment.pause)
                    await self._disk()
                    for part in self._steps(self._due(peer, group)):
                        if is_heard():
                            self._apply(peer, lane, [each.operation for each in part])
                        # A request that waits for the disk needs several turns, and the thread that syncs needs them too.
                        await (self._environment.pause() if self._commit.is_awaited else asyncio.sleep(0))

    @contextmanager
    def _drafted(self, group: Sequence[_Waiting]) -> Iterator[Steps[None]]:
        """The steps by which a long operation is drafted; none for others. It is taken within, after the last of them."""
        first = group[0]
        if not first.is_long or first.is_taken or not isinstance(first.operation, Arrival):
            yield _no_steps()
            return
        with self._drafting(first.operation) as steps:
            yield steps

    def _is_short(self, mine: Sequence[_Waiting]) -> bool:
        """Whether these are one step."""
        return len(list(self._steps(mine))) < 2 and not any(each.is_slow for each in mine)

    def _steps(self, operations: Sequence[_Waiting]) -> Iterator[Sequence[_Waiting]]:
        for some in messages.batches(operations, _size, bytes_max=PEER_STEP_BYTES_MAX):
            yield from messages.slices(some, PEER_STEP_OPERATIONS_MAX)

    def _taken_at_once(self, peer: bytes, came: Sequence[_Waiting]) -> bool:
        """Take these, if they are one step of one space, whose turn is free. Nothing of the peer may wait.

        `_take_now` would do the same, and take a third longer for what needs no queue.
        """
        if not 0 < len(came) <= PEER_STEP_OPERATIONS_MAX:
            return False
        space, size = came[0].space, 0
        for each in came:
            size += each.bytes
            if each.space != space or each.is_slow:
                return False
        lane = self._sharing.lane(space)
        if (size > PEER_STEP_BYTES_MAX and len(came) > 1) or not self._sharing.is_free(lane):
            return False
        self._in_turn(peer, lane, [each.operation for each in came])
        return True

    def _take_now(self, peer: bytes, lane: Lane, mine: Sequence[_Waiting]) -> None:
        """Take these in a turn of their space that is free."""
        try:
            self._in_turn(peer, lane, [each.operation for each in self._due(peer, mine)])
        finally:
            self._done(peer, mine)

    def _in_turn(self, peer: bytes, lane: Lane, some: Sequence[Operation]) -> None:
        began = self._sharing.now()
        self._sharing.entered(lane)
        try:
            self._apply(peer, lane, some)
        finally:
            self._sharing.charge(lane, began)
            self._sharing.left(lane)

    def _apply(self, peer: bytes, lane: Lane, some: Sequence[Operation]) -> None:
        before = self._commit.written
        self._take(peer, some)
        if self._commit.written > before:
            self._sharing.entered(lane)
            self._unsynced.append((self._commit.written, lane))

    # ── what waits ────────────────────────────────────────────────────────────

    async def _came(self, peer: bytes, operations: Iterable[Shipment | Raw]) -> list[_Waiting]:
        held = self._ahead[peer].bytes if peer in self._ahead else 0
        came: list[_Waiting] = []
        for each in operations:
            if isinstance(each, Shipment):
                if came and len(came) % PEER_LOOK_OPERATIONS_MAX == 0:
                    await self._environment.pause()
                came.append(waiting := _Waiting(each))
                if len(each.packed) > PEER_LOOK_BYTES_MAX:
                    await in_turns(waiting.looking(), self._environment.pause)
                    await self._environment.pause()
                else:
                    waiting.look()
                held += waiting.memory
                if held > PEER_DECODED_BYTES_MAX and isinstance(waiting.operation, Arrival):
                    waiting.operation = each
        return came

    def _enqueued(self, peer: bytes, came: Iterable[_Waiting]) -> dict[Lane, list[_Waiting]]:
        """All of them wait from now on. Returns them by their spaces."""
        spaces: dict[Lane, list[_Waiting]] = {}
        for waiting in came:
            self._waiting.setdefault((peer, waiting.shipment.partition), deque()).append(waiting)
            self._ahead.setdefault(peer, _Ahead()).bytes += waiting.memory
            spaces.setdefault(self._sharing.lane(waiting.space), []).append(waiting)
        return spaces

    def _due(self, peer: bytes, some: Iterable[_Waiting]) -> list[_Waiting]:
        """These, each after those of its partition that wait before it; all of them are taken by that."""
        found: list[_Waiting] = []
        for each in some:
            while not each.is_taken:
                first = self._waiting[peer, each.shipment.partition].popleft()
                if not first.is_taken:
                    first.is_taken = True
                    found.append(first)
        return found

    def _done(self, peer: bytes, mine: Iterable[_Waiting]) -> None:
        """These wait no more, whether they were taken or not."""
        for each in mine:
            each.is_taken = True
            place = peer, each.shipment.partition
            waiting = self._waiting.get(place)
            while waiting and waiting[0].is_taken:
                waiting.popleft()
            if not waiting:
                self._waiting.pop(place, None)
            self._ahead[peer].bytes -= each.memory
        self._settle(peer)

    # ── messages ──────────────────────────────────────────────────────────────

    def _began(self, peer: bytes, size: int = 0) -> int:
        """A message waits from now on. Returns its number."""
        ahead = self._ahead.setdefault(peer, _Ahead())
        ahead.messages[number := next(self._numbers)] = None
        ahead.bytes += size
        return number

    def _ended(self, peer: bytes, number: int, size: int = 0) -> None:
        del self._ahead[peer].messages[number]
        self._ahead[peer].bytes -= size
        self._settle(peer)

    def _settle(self, peer: bytes) -> None:
        """Something of a peer is done: forget the peer if all is."""
        ahead = self._ahead[peer]
        if not ahead.bytes and not ahead.messages and ahead.error is None:
            del self._ahead[peer]
        self._moved.set()

    def _raise(self, peer: bytes) -> None:
        ahead = self._ahead.get(peer)
        if ahead is not None and ahead.error is not None:
            error, ahead.error = ahead.error, None
            self._settle(peer)
            raise error

    async def _room(self, peer: bytes) -> None:
        await self._until(lambda: peer not in self._ahead or self._ahead[peer].bytes <= PEER_AHEAD_BYTES_MAX)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._moved.clear()
            await self._moved.wait()

    async def _disk(self) -> None:
        while self._commit.written - self._commit.durable > self._config.writes_pending_max // 2:
            await self._commit.wait_durable(self._commit.written)


def _with_long_ones_alone(operations: Sequence[_Waiting]) -> Iterator[Sequence[_Waiting]]:
    """Runs of operations, in order; each long one by itself."""
    for is_long, found in groupby(operations, lambda each: each.is_long):
        if is_long:
            yield from ([each] for each in found)
        else:
            yield list(found)


def _no_steps() -> Steps[None]:
    yield from ()


def _size(waiting: _Waiting) -> int:
    return waiting.bytes
