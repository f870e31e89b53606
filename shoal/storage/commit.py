"""Group commit: one fsync for all writes that wait.

Laws:
- `wait_durable(n)` returns only once a sync that began after write n has returned.
- One sync is under way at a time. A write made while it runs belongs to the next.
  The waiters that it covers wake after `on_durable`, a few at each turn of the loop:
  most of them write again at once, and if all did so in one turn, other tasks and
  the disk would wait. Lanes (spaces) take turns, each with the first of its waiters.
- A failed sync is never repeated: the kernel may have dropped the pages and
  would report success. Its waiters get an error that says that the outcome is
  unknown, and every later write is rejected.
- Only writes start cycles. There is no timer on the write path.
- Within `laying`, what was laid down is durable: a write that names it cannot be durable before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from shoal.errors import Overloaded, ReadOnly, ShuttingDown, StorageFull
from shoal.storage.interface import LARGE_BYTES_MIN, DigestOf, Laid, Storage

T = TypeVar("T")
Waiter = Callable[[StorageFull | None], None]
"""Is called with None when its write is durable, or with the error if that is not known."""

RETRY_AFTER_S_MIN = 0.01
WOKEN_PER_TURN = 16
LAID_BYTES = 8 * 1024 * 1024  # Of the large values that one sync covers; the last of them may exceed it.
WITNESS_INTERVAL_S = 0.25  # Between two renewals of the witness, the record of the newest durable write.


class RunBlocking(Protocol):
    """Runs a call where it may block: in the loop's executor, or in a simulated one."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Start `call`, once; await its result, or the exception that it raised."""
        ...


class Counting(Protocol):
    """Counts what writes change."""

    def noting(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]], /) -> list[Any]:
        """The changes that a write will make. It is not made yet."""
        ...

    def noted(self, changes: list[Any], /) -> None:
        """The write was made."""
        ...


class LoggedStorage(Storage, Protocol):
    """A storage with a log and a witness of it, both of which need maintenance between two writes."""

    @property
    def failed(self) -> str | None:
        """Why it rejects writes, since it was opened or later; None if it does not."""
        ...

    def rotate_if_due(self) -> bool:
        """Begin a new log if the old one is long; True if all writes are now durable.

        Blocks for a sync. Called where `write` is called.

        Raises:
            StorageFull: as `sync`.
        """
        ...

    def reclaim(self) -> None:
        """Begin to give back the space of deleted rows. Blocks for a sync. Called where `write` is called.

        Raises:
            StorageFull: as `sync`.
        """
        ...

    def begin_erasing(self) -> None:
        """Begin to remove the bytes of deleted rows from the disk. Blocks for a sync. Called where `write` is called.

        Raises:
            StorageFull: as `sync`.
        """
        ...

    def erase(self, age_s: float) -> bool:
        """Carry on what began `age_s` seconds ago; True when nothing of what was deleted before is left.

        Called about once a second, where a sync runs.

        Raises:
            StorageFull: the store rejects further writes.
        """
        ...

    def write_witness(self) -> bool:
        """Record outside the log what is durable; False if the record is already up to date. Blocks for an fsync.

        Raises:
            StorageFull: the store rejects further writes.
        """
        ...


class Watch:
    """Notices whether rows of one partition were written: `crossed`."""

    def __init__(self, partition: int) -> None:
        self.crossed = False
        self._number = partition.to_bytes(2, "big")

    def meet(self, rows: Iterable[bytes], ranges: Iterable[tuple[bytes, bytes]]) -> None:
        """A write was made. Rows of no partition may count, too, and so may a range beside it."""
        number = self._number  # Of all tables: it follows the table's byte (`shoal.storage.keys`).
        self.crossed = (
            self.crossed
            or any(key[1:3] == number for key in rows)
            or any(start[:1] != stop[:1] or start[1:3] <= number <= stop[1:3] for start, stop in ranges)
        )


class _Laying:
    """Values that are laid down together. It ends once they are, and all who asked for some have left."""

    def __init__(self, done: asyncio.Future[None], digest_of: DigestOf) -> None:
        self.done, self.digest_of = done, digest_of
        self.values: list[bytes] = []
        self.size = 0
        self._users = 0
        self._end: Laid | None = None

    def join(self, values: Sequence[bytes]) -> None:
        self.values += values
        self.size += sum(map(len, values))
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        self._end_if_over()

    def laid(self, end: Laid | None) -> None:
        self._end = end
        self.done.set_result(None)
        self._end_if_over()

    def failed(self, error: BaseException) -> None:
        self.done.set_exception(
            error if isinstance(error, Exception) else ShuttingDown("The store is closing. Nothing was written.")
        )
        self.done.exception()  # Whoever asked may have left.

    def _end_if_over(self) -> None:
        if not self._users and self._end is not None:
            end, self._end = self._end, None
            end()


class GroupCommit:
    """Decides when to sync. Everything except what `run_blocking` runs is called on one event loop.

    `written` and `durable` are the numbers of the last write made and of the last one known durable; `failed` says why
    writes are rejected, or is None; `cycles` counts the syncs that succeeded. `on_durable` must not raise;
    nor must `on_failed`, which is called once, as soon as storage fails, with the reason why writes are rejected from then on.
    """

    def __init__(
        self,
        storage: LoggedStorage,
        *,
        run_blocking: RunBlocking,
        writes_pending_max: int,
        on_durable: Callable[[int], None] | None,
        now: Callable[[], float],
        witness_interval_s: float | None = None,
        on_failed: Callable[[str], None] | None = None,
    ) -> None:
        self.written = 0
        self.durable = 0
        self.cycles = 0
        self.failed = storage.failed
        self.counting: Counting | None = None
        """Counts what is written; None: nobody does."""
        self._storage = storage
        self._run_blocking = run_blocking
        self._run_laying = run_blocking
        self._layings: deque[_Laying] = deque()  # Groups that wait; as many values as there are requests under way.
        self._layer: asyncio.Task[None] | None = None
        self._writes_pending_max = writes_pending_max
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._on_begun: Callable[[int], None] | None = None
        self._now = now
        self._watches: list[Watch] = []  # One for each write that is decided in steps.
        self._waiting: list[tuple[int, Waiter, str]] = []
        self._woken: dict[str, deque[Waiter]] = {}  # Whose write is durable, by lane; the first lane has the next turn.
        self._is_waking = False
        self._pending_since = 0.0  # No pending write is older.
        self._cycle_s = 0.0  # How long the last sync took: the retry-after of a rejected write.
        self._slowest_s = 0.0  # The longest since somebody asked.
        self._error: BaseException | None = None
        self._runner: asyncio.Task[None] | None = None
        self._witness_interval_s = WITNESS_INTERVAL_S if witness_interval_s is None else witness_interval_s
        self._witness_timer: asyncio.TimerHandle | None = None
        self._witness_task: asyncio.Task[None] | None = None
        self._witnessed_at = now()  # Opening the storage wrote it.
        self._closed = False

    @property
    def lag_s(self) -> float:
        """An upper bound of how long the oldest write that is not durable has waited; 0 if all are durable."""
        return self._now() - self._pending_since if self.written > self.durable else 0.0

    def take_slowest_s(self) -> float:
        """How long the longest sync took since this was called last, in seconds; 0 if there was none."""
        taken, self._slowest_s = self._slowest_s, 0.0
        return taken

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a write to become durable."""
        return bool(self._waiting)

    def write(
        self,
        rows: Mapping[bytes, bytes | None],
        ranges: Sequence[tuple[bytes, bytes]] = (),
        begun: Callable[[], int] | None = None,
        /,
    ) -> int:
        """Write to the storage and schedule a sync; return the write's number. `begun` is the second step of its write.

        Raises:
            Overloaded: too many writes wait for a sync; nothing was written.
            ReadOnly: storage failed before; nothing was written.
            ShuttingDown: `close` was called; nothing was written.
            StorageFull: storage failed now; no part of the write is visible.
        """
        if self.failed is not None or self._closed or self.written - self.durable >= self._writes_pending_max:
            raise self._refusal()
        if self.written == self.durable:
            self._pending_since = self._now()
        changes = self.counting.noting(rows, ranges) if self.counting is not None else None
        try:
            self.written = self._storage.write(rows, ranges) if begun is None else begun()
        except StorageFull as error:
            self._fail(error)
            raise
        if changes:
            self.counting.noted(changes)  # type: ignore[union-attr]
        for watch in self._watches:
            watch.meet(rows, ranges)
        if self._runner is None:
            # A task begins at the loop's next turn, so that one tick's writes share a sync.
            self._runner = asyncio.get_running_loop().create_task(self._run())
        return self.written

    def begin_write(self, rows: Mapping[bytes, bytes | None], /) -> Callable[[], int]:
        """`write` in two steps (`Storage.begin_write`). `rows` must stay as they are."""
        return partial(self.write, rows, (), self._storage.begin_write(rows))

    def lay_by(self, run: RunBlocking) -> None:
        """From now on, lay large values down by `run`, in place of `run_blocking`."""
        self._run_laying = run

    @asynccontextmanager
    async def laying(self, values: Iterable[bytes], digest_of: DigestOf) -> AsyncIterator[None]:
        """Within, large ones of these values are durable, and a write of these very objects is a small one. `digest_of` makes
        the SHA-256 of each, in another thread.

        Raises:
            ReadOnly, ShuttingDown: nothing was written.
            StorageFull: storage failed now; nothing that can be seen was written.
        """
        large = [value for value in values if len(value) >= LARGE_BYTES_MIN]
        if not large:
            yield
            return
        if self.failed is not None or self._closed:
            raise self._refusal()
        if not self._layings or self._layings[-1].size >= LAID_BYTES:
            self._layings.append(_Laying(asyncio.get_running_loop().create_future(), digest_of))
        laying = self._layings[-1]
        laying.join(large)
        if self._layer is None:
            self._layer = asyncio.get_running_loop().create_task(self._lay())
        try:
            await asyncio.shield(laying.done)
            yield
        finally:
            laying.leave()

    async def _lay(self) -> None:
        """Lay down what waits, group by group: one sync covers a group."""
        try:
            while self._layings:
                laying = self._layings.popleft()
                try:
                    lay = self._storage.begin_laying(laying.values, laying.digest_of)
                    laying.laid(None if lay is None else await self._run_laying(lay))
                except BaseException as error:
                    self._fail(error)
                    laying.failed(error)
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._layer = None

    @contextmanager
    def watching(self, partition: int) -> Iterator[Watch]:
        """Within, notice writes of rows of this partition."""
        watch = Watch(partition)
        self._watches.append(watch)
        try:
            yield watch
        finally:
            self._watches.remove(watch)

    async def wait_durable(self, number: int, lane: str = "") -> None:
        """Return once write `number` is durable. Lanes take turns when their waiters wake.

        Raises:
            StorageFull: the sync that should have covered it failed; the write may or may not be on disk.
            ValueError: there is no such write yet.
        """
        if number <= self.durable:
            return
        settled = asyncio.get_running_loop().create_future()
        self.when_durable(number, partial(_settle, settled), lane)
        await settled

    def when_begun(self, begun: Callable[[int], None]) -> None:
        """Call `begun` from now on whenever a sync is under way, with the number of the last write that it covers. It must not
        raise.
        """
        self._on_begun = begun

    def when_durable(self, number: int, waiter: Waiter, lane: str = "", /) -> None:
        """As `wait_durable`, with a callback: call `waiter` once, now if the outcome is known, else at a later turn.

        Raises:
            ValueError: there is no such write yet.
        """
        if number <= self.durable:
            waiter(None)
        elif number > self.written:
            raise ValueError(f"write {number} was not made yet; the last is {self.written}")
        elif self.failed is not None:
            waiter(self._outcome_unknown())
        else:
            self._waiting.append((number, waiter, lane))

    async def close(self) -> None:
        """Reject further writes and wait for the last cycle; the storage stays open. Closing twice is allowed."""
        self._closed = True
        for task in (self._layer, self._runner):
            if task is not None:
                await asyncio.wait([task])
        if self._witness_timer is not None:
            self._witness_timer.cancel()
        if self._witness_task is not None:
            await asyncio.wait([self._witness_task])

    async def _run(self) -> None:
        """Sync until nothing is pending."""
        try:
            while self.durable < self.written and self.failed is None:
                started = self._now()
                syncing = self._run_blocking(self._storage.begin_sync())
                if self._on_begun is not None:
                    self._on_begun(self.written)
                number = await syncing
                self._cycle_s = self._now() - started
                self._slowest_s = max(self._slowest_s, self._cycle_s)
                self._pending_since = started  # What is left was written after the sync had begun.
                self._settle(number)
                # Between two syncs little is unsynced, so that the sync in here is short.
                if self._storage.rotate_if_due():
                    self._settle(self.written)
                self._schedule_witness()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._runner = None

    def _settle(self, number: int) -> None:
        """Wake the waiters that the sync up to `number` covers."""
        self.durable = number
        self.cycles += 1
        if self._on_durable is not None:
            self._on_durable(number)
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            wanted, waiter, lane = entry
            if wanted > number:
                self._waiting.append(entry)
                continue
            woken = self._woken.get(lane)
            if woken is None:
                woken = self._woken[lane] = deque()
            woken.append(waiter)
        if not self._is_waking:
            self._wake()

    def _wake(self) -> None:
        """Wake the first few, one of each lane in turn, and the rest at the loop's next turns."""
        self._is_waking = True
        for _ in range(WOKEN_PER_TURN):
            if not self._woken:
                break
            lane = next(iter(self._woken))
            woken = self._woken.pop(lane)
            waiter = woken.popleft()
            if woken:
                self._woken[lane] = woken  # Behind the other lanes.
            waiter(None)
        self._is_waking = bool(self._woken)
        if self._is_waking:
            asyncio.get_running_loop().call_soon(self._wake)

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed, self._error = str(error) or type(error).__name__, error
            if self._on_failed is not None and isinstance(error, Exception):  # A node that is cancelled is about to end.
                self._on_failed(self.failed)
        waiting, self._waiting = self._waiting, []
        for _, waiter, _ in waiting:
            waiter(self._outcome_unknown())

    def _outcome_unknown(self) -> StorageFull:
        why = (self.failed or "").rstrip(".")
        error = StorageFull(
            f"The write is not known to be durable: {why}. It may or may not be on disk. "
            "Open the store again, then send the request again with the same idempotency key."
        )
        error.__cause__ = self._error
        return error

    def _refusal(self) -> Overloaded | ReadOnly | ShuttingDown:
        if self.failed is not None:
            refusal = ReadOnly(
                f"Storage failed, so writes are rejected: {self.failed.rstrip('.')}. Nothing was written. Reads still work. "
                "Check the disk, then restart the node."
            )
            refusal.__cause__ = self._error
            return refusal
        if self._closed:
            return ShuttingDown("The store is closing. Nothing was written. Send the request again once it is open.")
        retry_after_s = max(self._cycle_s, RETRY_AFTER_S_MIN)
        return Overloaded(
            f"{self.written - self.durable} writes wait for the disk. Nothing was written. Try again in {retry_after_s:.2f} s.",
            retry_after_s=retry_after_s,
        )

    def _schedule_witness(self) -> None:
        if self._witness_timer is None and self._witness_task is None and not self._closed:
            delay_s = max(0.0, self._witnessed_at + self._witness_interval_s - self._now())
            self._witness_timer = asyncio.get_running_loop().call_later(delay_s, self._start_witness)

    def _start_witness(self) -> None:
        self._witness_timer = None
        self._witnessed_at = self._now()
        self._witness_task = asyncio.get_running_loop().create_task(self._write_witness())

    async def _write_witness(self) -> None:
        try:
            await self._run_blocking(self._storage.write_witness)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._witness_task = None


def _settle(settled: asyncio.Future[None], error: StorageFull | None) -> None:
    if settled.done():
        return  # The waiting task was cancelled.
    if error is None:
        settled.set_result(None)
    else:
        settled.set_exception(error)
