"""The courses of budgets: how much was left of each over time, as this node saw it, in some hundred points.

Laws:
- A budget gets a point after it changed, at most each `COURSE_EACH_S`, and a step writes `COURSE_STEP` of them. While no budget
  is due there is no timer.
- A course has `COURSE_POINTS_MAX` points: when it is full, every second one of its older half goes. The oldest one stays.
- It is in the node's own directory, and of it alone. It names no budget, and goes with the budget.
- If a point cannot be written, it is dropped: the next change makes one. One that cannot be read counts as none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from itertools import islice

import msgspec

from shoal.crdt.rows import Rows
from shoal.errors import ShoalError
from shoal.kinds.budget import state as budget
from shoal.kinds.budget.requests import BudgetPoint
from shoal.kinds.counter import state as counter
from shoal.node.context import NodeContext
from shoal.node.handler import Target
from shoal.node.transaction import Transaction
from shoal.storage import keys

COURSE_EACH_S = 60.0  # Between two points of a budget, at least.
COURSE_STEP = 64  # Budgets that get one in one step.
COURSE_DUE_MAX = 65_536  # Budgets that wait for one; beyond this, a budget gets one after its next change.
COURSE_POINTS_MAX = 240

_ROW = keys.meta("course/")  # Followed by the SHA-256 of the space and the name.
_points = msgspec.msgpack.Decoder(list[BudgetPoint])


class Courses:
    """Notes and tells the courses of one node's budgets. `rows` are those of a budget now."""

    def __init__(self, context: NodeContext, rows: Callable[[Target], Rows]) -> None:
        self._storage, self._commit = context.storage, context.commit
        self._now_ms = context.environment.now_ms
        self._rows = rows
        self._due: dict[Target, None] = {}  # In the order in which they changed.
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Note nothing any more. Stopping twice is allowed."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def changed(self, target: Target) -> None:
        """A change of this budget was written."""
        if not self._is_stopped and len(self._due) < COURSE_DUE_MAX:
            self._due[target] = None
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(COURSE_EACH_S, self._note)

    def ended(self, transaction: Transaction, target: Target) -> None:
        """This transaction deletes a budget, and its course with it."""
        self._due.pop(target, None)
        if transaction.get(_row(target)) is not None:
            transaction.delete(_row(target))

    def of(self, target: Target, rows: Rows) -> list[BudgetPoint]:
        """The points that were noted of a budget, the oldest first, and the present one."""
        return [*self._noted(_row(target)), self._present(rows)]

    def _note(self) -> None:
        self._timer = None
        noted: dict[bytes, bytes | None] = {}
        for target in list(islice(self._due, COURSE_STEP)):
            del self._due[target]
            with suppress(ShoalError):  # A request for a damaged budget reports it.
                row, point = _row(target), self._present(self._rows(target))
                gone = point.granted == point.spent == 0
                noted[row] = None if gone else msgspec.msgpack.encode(thinned([*self._noted(row), point]))
        if noted and self._commit.failed is None:
            with suppress(ShoalError):
                self._commit.write(noted)
        if self._due:
            self._timer = asyncio.get_running_loop().call_later(COURSE_EACH_S, self._note)

    def _noted(self, row: bytes) -> list[BudgetPoint]:
        with suppress(msgspec.MsgspecError):
            return _points.decode(self._storage.get(row) or b"\x90")
        return []

    def _present(self, rows: Rows) -> BudgetPoint:
        granted, spent = counter.value(budget.grants(rows)), counter.value(budget.spends(rows))
        return BudgetPoint(self._now_ms(), counter.shown(granted), counter.shown(spent))


def thinned(points: list[BudgetPoint]) -> list[BudgetPoint]:
    """The points, without every second one of the older half if there are too many."""
    if len(points) <= COURSE_POINTS_MAX:
        return points
    half = COURSE_POINTS_MAX // 2
    return points[:half:2] + points[half:]


def _row(target: Target) -> bytes:
    return _ROW + sha256(f"{target.space}\0{target.name}".encode()).digest()
