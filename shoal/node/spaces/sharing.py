"""How spaces share the loop: each step of a request is taken in its space's turn, and charged to that space.

Laws:
- Of the spaces whose requests wait, the one that has used the least time begins next (start-time fair queueing: Goyal, Vin
  and Cheng 1996). A space that was idle has saved nothing up, so it waits for one step of another at most, and owes nothing.
- In one turn of the loop the steps take about `TURN_SLICE_S`, so that sockets and syncs get theirs. One step is never cut.
- While a request of a quieter space is on its way to the disk or to peers, the others pause, for as long as they worked
  before: its sync and its answer need several turns of the loop.
- Requests of one space begin in the order in which they came, and those that have begun go before those that have not: if all
  took turns, all would be answered last. What peers send has begun elsewhere. One whose caller gives up while it waits never
  begins.
- Only a request that has not begun is refused: one that has may have written, and waits however many others do.
- A node that is not busy is not delayed: nothing waits until a slice is used up, or several while one space is alone.
- While requests of several spaces wait, other processes get the processor after each turn: on a machine with fewer processors
  than nodes a quiet request would wait at each for as long as the kernel lets a busy one compute, which is some milliseconds.
- Only the order of steps depends on what they took, so in a simulated run, where they take no time, spaces alternate.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from types import coroutine
from typing import Any, TypeVar

from shoal.errors import Overloaded

TURN_SLICE_S = 0.001  # For steps of requests in one turn of the loop; then sockets and the disk get theirs.
TURN_WAITING_MAX = 65_536  # Requests of one space that wait for their turn; beyond this: Overloaded.
TURN_SPACES_MAX = 4096  # Spaces whose use of the loop is remembered.

T = TypeVar("T")

_STEP_S_MIN = 10e-6  # A step that took no time, by the clock, counts as this.
_REST_S_MAX = 0.02  # A request that takes longer than this from its last step waits for something else than the disk.
_HOPS_MAX = 4  # Turns of the loop without a step, after long ones: so many take a message from its socket to an answer.
_ALONE_AFTER_S = 1.0  # A space has the node to itself once no other one has taken a step for this long.
_ALONE = 8  # Its slices: a queue would cost it more than it spares a first request of another.
_WEIGHT = 1 / 8  # Of the last step, in what the next one of its space is expected to take.


class Lane:
    """The requests of one space."""

    __slots__ = ("begun", "step_s", "stepped_at", "unbegun", "under_way", "used_s")

    def __init__(self) -> None:
        self.begun: deque[asyncio.Future[float]] = deque()  # They wait for a turn, and are given what it is expected to take.
        self.unbegun: deque[asyncio.Future[float]] = deque()
        self.under_way = 0  # Requests that came and are not answered, those that wait included.
        self.used_s = 0.0  # On the clock that all lanes share.
        self.step_s = _STEP_S_MIN  # What a step of this space is expected to take.
        self.stepped_at = 0.0

    @property
    def waits(self) -> bool:
        """Whether one of them waits for a turn."""
        return bool(self.begun or self.unbegun)


class Sharing:
    """Takes the steps of requests, space by space. `monotonic` measures them, in seconds; `give_way` lets others have the
    processor.
    """

    def __init__(self, monotonic: Callable[[], float], give_way: Callable[[], None] = lambda: None) -> None:
        self.now = monotonic
        self._give_way = give_way
        self._slice_s = TURN_SLICE_S
        self._waiting_max = TURN_WAITING_MAX
        self._known_max = TURN_SPACES_MAX
        self._lanes: dict[str, Lane] = {}
        self._under_way: dict[Lane, None] = {}
        self._queue: list[tuple[float, int, Lane]] = []  # A heap, by what a lane had used when it was put in.
        self._entries = count()  # Of two lanes that used the same, the first that came.
        self._used_s = 0.0  # Of the lane that had the last turn: no other that waits has used less.
        self._left_s = _ALONE * TURN_SLICE_S  # In this turn of the loop.
        self._credit_s = 0.0  # How long the others may still pause for a quieter space.
        self._hops = 0  # Turns of the loop that are left to others.
        self._timer: asyncio.Handle | None = None
        self._paused_at: float | None = None
        self._last: Lane | None = None  # That took a step last,
        self._changed_at = float("-inf")  # and when it was another one.
        self._is_alone = True

    def lane(self, space: str) -> Lane:
        """The lane of a space; the node's own requests are in that of the empty name."""
        lane = self._lanes.get(space)
        if lane is None:
            lane = self._lanes[space] = Lane()
            if len(self._lanes) > self._known_max:  # A lane that is forgotten begins anew, as if it had been idle.
                self._lanes.pop(next((name for name, each in self._lanes.items() if not each.under_way), space))
        return lane

    @property
    def waiting(self) -> int:
        """How many requests wait for a turn."""
        return sum(len(lane.begun) + len(lane.unbegun) for lane in self._under_way)

    @property
    def waits(self) -> dict[str, int]:
        """How many requests of each space wait for a turn; those of which none waits are left out."""
        found = {lane: len(lane.begun) + len(lane.unbegun) for lane in self._under_way if lane.waits}
        return {name: found[lane] for name, lane in self._lanes.items() if lane in found} if found else {}

    def is_free(self, lane: Lane) -> bool:
        """Whether a request of this space may take its next step now."""
        if not self._queue:
            return self._left_s > 0
        return not lane.waits and max(lane.used_s, self._used_s) <= self._queue[0][0]  # It would be the next one.

    def entered(self, lane: Lane) -> None:
        """A request has come."""
        lane.under_way += 1
        if lane not in self._under_way:
            self._under_way[lane] = None
            if len(self._under_way) == 2:  # The first is not alone any more.
                self._is_alone, self._left_s = False, min(self._left_s, self._slice_s)

    def left(self, lane: Lane) -> None:
        """A request is answered, or given up."""
        lane.under_way -= 1
        if not lane.under_way:
            del self._under_way[lane]
            if self._paused_at is not None:
                self._resume()

    def charge(self, lane: Lane, began: float, expected_s: float = 0.0) -> None:
        """A step that began then is done. `expected_s` of it was charged before."""
        now = lane.stepped_at = self.now()
        if lane is not self._last:
            self._last, self._changed_at = lane, now if self._last is not None else self._changed_at
        self._is_alone = len(self._under_way) < 2 and now - self._changed_at > _ALONE_AFTER_S
        spent_s = max(now - began, _STEP_S_MIN)
        lane.step_s = max(spent_s, lane.step_s + (spent_s - lane.step_s) * _WEIGHT)  # So two long ones are not let in at once.
        if not expected_s:
            lane.used_s = self._used_s = max(lane.used_s, self._used_s)
        lane.used_s += spent_s - expected_s
        self._left_s -= spent_s - expected_s
        self._credit_s = min(self._credit_s + spent_s, max(spent_s, _REST_S_MAX))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._turn)

    @coroutine
    def taken(self, lane: Lane, work: Coroutine[Any, Any, T], *, has_begun: bool = False) -> Generator[Any, Any, T]:
        """Await `work`, each step of it in a turn of its space. What has begun already is never refused.

        Raises:
            Overloaded: too many requests of the space wait; nothing was done.
        """
        thrown: BaseException | None = None
        goes_on = False  # From one step to the next, without having waited for anything.
        self.entered(lane)
        try:
            while True:
                expected_s = 0.0
                if thrown is None and ((goes_on and self._queue) or not self.is_free(lane)):
                    try:
                        expected_s = yield from self._wait(lane, goes_on=goes_on, has_begun=has_begun)
                    except BaseException as error:
                        thrown = error
                began, has_begun = self.now(), True
                try:
                    awaited = work.send(None) if thrown is None else work.throw(thrown)
                except StopIteration as done:
                    result: T = done.value
                    return result
                finally:
                    self.charge(lane, began, expected_s)
                thrown, goes_on = None, awaited is None
                if goes_on and self._queue:
                    continue  # It asks for its next turn now, before the next request of its space is given one.
                try:
                    yield awaited
                except BaseException as error:
                    thrown = error
        finally:
            self.left(lane)

    def _wait(self, lane: Lane, *, goes_on: bool, has_begun: bool) -> Generator[Any, Any, float]:
        if len(lane.unbegun) >= self._waiting_max and not has_begun:
            raise Overloaded(
                f"{len(lane.unbegun)} requests of this space wait for their turn at this node. Nothing was written. "
                "Send fewer at a time, or try again later.",
                retry_after_s=1.0,
            )
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[float] = loop.create_future()
        if not lane.waits:
            lane.used_s = max(lane.used_s, self._used_s)
            heapq.heappush(self._queue, (lane.used_s, next(self._entries), lane))
        if goes_on:
            lane.begun.appendleft(turn)
        else:
            (lane.begun if has_begun else lane.unbegun).append(turn)
        if self._paused_at is not None:
            self._resume()
        elif self._timer is None:
            self._timer = loop.call_soon(self._turn)
        try:
            return (yield from turn.__await__())
        except BaseException:
            if turn.done() and not turn.cancelled():  # Its caller gave up between its turn and its step, which it was charged.
                lane.used_s -= turn.result()
                self._left_s += turn.result()
            raise

    def _turn(self) -> None:
        """A turn of the loop begins: let requests take steps until a slice is used up."""
        self._timer, alone = None, self._is_alone
        if self._queue and not alone:
            self._give_way()
        if self._paused_at is not None:
            self._credit_s -= self.now() - self._paused_at
            self._paused_at = None
        elif self._hops:
            self._hops -= 1
        else:
            # More than a slice may be left, of a space that was alone until now.
            self._hops = 0 if alone else max(0, min(int((self._slice_s - self._left_s) / self._slice_s), _HOPS_MAX))
        self._left_s = _ALONE * self._slice_s if alone else self._slice_s
        if self._hops:
            self._timer = asyncio.get_running_loop().call_soon(self._turn)
            return
        while self._left_s > 0 and (lane := self._least()) is not None:
            if self._credit_s > 0 and self._is_quieter_under_way(lane):
                self._pause(lane)
                return
            turn = (lane.begun or lane.unbegun).popleft()
            self._used_s = max(self._used_s, lane.used_s)
            if not turn.done():  # Else its caller gave up.
                turn.set_result(lane.step_s)
                lane.used_s += lane.step_s
                self._left_s -= lane.step_s
            if lane.waits:
                heapq.heappush(self._queue, (lane.used_s, next(self._entries), lane))
        if self._queue:
            self._timer = asyncio.get_running_loop().call_soon(self._turn)

    def _least(self) -> Lane | None:
        """Take the lane that has used the least from the queue."""
        while self._queue:
            used_s, _, lane = heapq.heappop(self._queue)
            if lane.used_s <= used_s:
                return lane
            heapq.heappush(self._queue, (lane.used_s, next(self._entries), lane))
        return None

    def _is_quieter_under_way(self, lane: Lane) -> bool:
        """Whether a request of a space that asks for less is on its way to the disk, or to peers."""
        now = self.now()
        return any(
            not other.waits and other.under_way < lane.under_way and now - other.stepped_at < _REST_S_MAX
            for other in self._under_way
        )

    def _pause(self, lane: Lane) -> None:
        heapq.heappush(self._queue, (lane.used_s, next(self._entries), lane))
        self._paused_at = self.now()
        self._timer = asyncio.get_running_loop().call_later(min(self._credit_s, _REST_S_MAX), self._turn)

    def _resume(self) -> None:
        """Something has changed during a pause: look again at once."""
        assert self._timer is not None
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_soon(self._turn)
