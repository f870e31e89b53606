"""Requests of flows and handles, over a session, with the store's defaults and the client's leases; and times and durations.

Laws:
- Every write to a thread whose lease the client holds carries its fencing number, also in a batch.
- Once a lease is lost, such writes raise `LeaseLost`, and are not sent, until its block is left or it is released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import floor, isfinite, isnan
from typing import Any, ClassVar, Generic, cast

from msgspec import Struct

from shoal.config import Config
from shoal.errors import InvalidInput, LeaseLost
from shoal.protocol.base import Http
from shoal.protocol.requests import Batch, Durability, Fenced, ObjectWrite, R, Request, Term
from shoal.protocol.session import Session
from shoal.records import NamedTuple

_END_MS = 2**53  # Later than any clock.


def moment(wall_ms: int) -> datetime:
    """A time of the protocol as a datetime in UTC."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def as_wall_ms(time: datetime | float | None) -> int | None:
    """Milliseconds since 1970. A number is seconds since 1970, as from `time.time()`.

    Raises:
        InvalidInput: it has no time zone, or is not a time.
    """
    if time is None:
        return None
    if isinstance(time, int | float) and not isinstance(time, bool) and isfinite(time):
        return floor(max(0, min(time * 1000, _END_MS)))
    if not isinstance(time, datetime):
        raise InvalidInput(f"a time must be a datetime with a time zone, or seconds since 1970; got {time!r:.80}.")
    if time.tzinfo is None:
        raise InvalidInput("a time needs a time zone: datetime(…, tzinfo=UTC), or datetime.now(UTC).")
    # Floats would lose the last millisecond.
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def as_timeout_s(timeout: float | None) -> float | None:
    """A timeout in seconds, unchanged; None means no limit.

    Raises:
        InvalidInput: it is not a number.
    """
    if timeout is None or (isinstance(timeout, int | float) and not isinstance(timeout, bool) and not isnan(timeout)):
        return timeout
    raise InvalidInput(
        f"timeout must be a number of seconds, or None; got {timeout!r:.80}. Nothing was written.", field="timeout"
    )


def as_duration_ms(duration: timedelta | float | None, *, what: str) -> int | None:
    """Whole milliseconds. A number is seconds; `what` is for the error.

    Raises:
        InvalidInput: it is not a duration.
    """
    if duration is None:
        return None
    if isinstance(duration, timedelta):
        return int(duration / timedelta(milliseconds=1))
    if isinstance(duration, int | float) and not isinstance(duration, bool) and abs(duration) * 1000 < _END_MS:
        return int(duration * 1000)
    raise InvalidInput(f"{what} must be a timedelta or seconds; got {duration!r:.80}. Nothing was written.")


def _untold(_: Request[Any]) -> None:
    """Nobody is told of a write."""


class HeldLease(NamedTuple):
    """A thread's lease. `check` raises LeaseLost once it is lost; `lost` is called if a node says that it is.

    `written` is called with each write that was acknowledged under it. If it does not fence, it was given back for a while: the
    client may write still, as long as `check` passes, but as everybody else does.
    """

    term: Term
    check: Callable[[], None]
    lost: Callable[[], None]
    written: Callable[[Request[Any]], None] = _untold
    fences: bool = True


def threads_of(request: Request[Any]) -> list[tuple[str, str]]:
    """The threads that a request writes, each once: space and name."""
    writes = request.writes if isinstance(request, Batch) else (request,) if isinstance(request, ObjectWrite) else ()
    return list(dict.fromkeys((write.space, write.thread) for write in writes if hasattr(write, "thread")))


class HeldLeases:
    """The leases of threads that one client holds."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], HeldLease] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def of(self, request: Request[Any]) -> Sequence[HeldLease]:
        """The leases of the threads that a request writes."""
        return [held for place in threads_of(request) if (held := self._held.get(place)) is not None]

    def put(self, held: HeldLease) -> None:
        """From now on, writes to the thread carry this lease."""
        self._held[held.term.space, held.term.lease] = held

    def drop(self, held: HeldLease) -> None:
        """Writes to the thread do not carry this lease any more."""
        place = held.term.space, held.term.lease
        if self._held.get(place) is held:
            del self._held[place]


@dataclass(frozen=True, slots=True)
class Connection:
    """A session, and the defaults of its requests."""

    session: Session
    config: Config
    durability: Durability  # The default of writes.
    held: HeldLeases = field(default_factory=HeldLeases, kw_only=True)
    stale: bool = field(default=False, kw_only=True)  # Whether all that is read may be older than the session's bookmark.

    async def write(self, request: Request[R], *, key: str | None, durability: Durability | None) -> R:
        """Send a write; without a durability, it has the store's, or at least `quorum` if its thread is under a lease.

        Raises:
            LeaseLost: this client's lease of the thread has ended.
        """
        if self.held and (leases := self.held.of(request)):
            for lease in leases:
                lease.check()
            default: Durability = "all" if self.durability == "all" else "quorum"
            try:
                reply = await self._under([lease.term for lease in leases if lease.fences], request, key, durability or default)
            except LeaseLost as error:
                for lease in leases:
                    if lease.term.fence == error.detail.get("fence"):
                        lease.lost()
                raise
            for lease in leases:
                lease.written(request)
            return reply
        return await self.session.call(request, key=key, durability=durability or self.durability)

    async def _under(self, terms: list[Term], request: Request[R], key: str | None, durability: Durability) -> R:
        if not terms:
            return await self.session.call(request, key=key, durability=durability)
        write: Any = request
        return cast("R", (await self.session.call(Fenced(terms, write), key=key, durability=durability)).reply)

    async def read(self, request: Request[R], *, stale: bool = False) -> R:
        """Send a read; if `stale`, the node's state may be older than the session's bookmark."""
        return await self.session.call(request, stale=stale or self.stale)


class Flow(Struct, Generic[R], frozen=True):
    """A request that is carried out as several, such as an undo. What HTTP serves of it follows from its fields, from the
    type that `run` returns, and from its places, as it does for a request of the protocol.
    """

    http: ClassVar[tuple[Http, ...]]
    unpacks: ClassVar[bool] = False  # Whether it unpacks states: a node bounds what it unpacks for others.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> R:
        """Carry it out. `key` is the caller's for the whole of it."""
        raise NotImplementedError
