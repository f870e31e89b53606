"""The moments in which a crash costs most, each with a name.

Law: passing a point costs nothing but a count, until a crash is armed for it. Then
the node crashes there, and whoever passed it sees `Fenced`, and nothing more.

The points are in what the node is given, not in the node: "appended" and "synced"
before and after its storage syncs, "snapshot" before and after its storage takes a
document's snapshot, "answered" after its session has an answer for a client,
"putting" and "put" before and after each change that it makes to the bucket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.protocol.requests import (
    AnyReply,
    AnyRequest,
    Durability,
    R,
    Request,
)
from shoal.protocol.session import Prompt, Told, Wrapper
from simulation.plan import CrashPoint, ShippingPoint
from simulation.world.incarnation import Fenced

Point = CrashPoint | ShippingPoint


@dataclass(slots=True)
class _Armed:
    point: Point
    left: int
    crash: Callable[[], None]


class CrashPoints:
    """Of one node, through all its lives. `counts` says how often each was passed."""

    def __init__(self) -> None:
        self.counts: Counter[Point] = Counter()
        self._armed: list[_Armed] = []

    def arm(self, point: Point, nth: int, crash: Callable[[], None]) -> None:
        """The `nth` time from now on that the node passes `point`, call `crash`, once."""
        self._armed.append(_Armed(point, nth, crash))

    def disarm(self) -> None:
        self._armed.clear()

    def passed(self, point: Point) -> None:
        """
        Raises:
            Fenced: the node crashed here.
        """
        self.counts[point] += 1
        if self._armed:
            self._strike(point)

    def _strike(self, point: Point) -> None:
        for armed in [armed for armed in self._armed if armed.point == point]:
            armed.left -= 1
            if armed.left <= 0:
                self._armed.remove(armed)
                armed.crash()
                raise Fenced(f"crashed at {point}")


class AnsweringSession(Wrapper):
    """A node's session for one client, which passes "answered" before an answer leaves."""

    __slots__ = ("_points", "_prompt")

    def __init__(self, session: Prompt, points: CrashPoints) -> None:
        super().__init__(session)
        self._prompt = session
        self._points = points

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        reply = await self._session.call(request, key=key, durability=durability, stale=stale)
        self._points.passed("answered")
        return reply

    def begin(
        self,
        request: AnyRequest,
        told: Told,
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
    ) -> bool:
        def answered(answer: AnyReply | ShoalError) -> None:
            if not isinstance(answer, ShoalError):
                self._points.passed("answered")
            told(answer)

        return self._prompt.begin(request, answered, key=key, durability=durability, stale=stale)
