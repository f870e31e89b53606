"""Tries of queue entries: handed out, completed, given back, put back.

Law: these writes are accepted only while the node knows that their claim has not ended (`shoal.node.leases`), except for
`ReviveItem`. Here it is decided whether the entry is still the claim's: the last try has its fencing number.
"""

from __future__ import annotations

from shoal import values
from shoal.config import Config
from shoal.crdt.clock import END_MS
from shoal.errors import InvalidInput, LeaseLost, NotFound, Taken
from shoal.kinds.worklist import state as queue
from shoal.kinds.worklist.serving.queues import DELAY_MS_MAX, Queues, check_by, check_names, described, unhexed
from shoal.kinds.worklist.state import DEAD, RUNNING, WAITING, RankedEntry
from shoal.node.checks import check_size, check_text
from shoal.node.handler import Checks, Readers, WriteContext, Writers
from shoal.node.implied_keys import users_key
from shoal.protocol.requests import (
    AttemptBegun,
    BeginAttempt,
    CompleteItem,
    FailItem,
    ItemCompleted,
    ItemFailed,
    ItemRevived,
    ReviveItem,
)

UnderClaim = BeginAttempt | CompleteItem | FailItem


class Tries:
    """The handler of tries."""

    checks: Checks
    writers: Writers
    readers: Readers

    def __init__(self, config: Config, queues: Queues) -> None:
        self._config = config
        self._queues = queues
        self.checks = {
            BeginAttempt: _check_item,
            CompleteItem: self._check_complete,
            FailItem: self._check_fail,
            ReviveItem: _check_item,
        }
        self.writers = {
            BeginAttempt: self._begin,
            CompleteItem: self._complete,
            FailItem: self._fail,
            ReviveItem: self._revive,
        }
        self.readers = {}

    def _check_complete(self, request: CompleteItem) -> None:
        _check_item(request)
        values.check(request.result)
        check_size(self._config, len(request.result), "a result")

    def _check_fail(self, request: FailItem) -> None:
        _check_item(request)
        check_text(self._config, request.reason, "a reason")
        if not 0 <= request.retry_in <= DELAY_MS_MAX:
            raise InvalidInput(
                f"retry_in is 0 to {DELAY_MS_MAX // 1000} seconds; got {request.retry_in / 1000:g}. Nothing was written.",
                field="retry_in",
            )

    def _begin(self, context: WriteContext, request: BeginAttempt) -> AttemptBegun:
        """Count an attempt. After too many the entry becomes a dead letter instead."""
        id = unhexed(request.id)
        entry = queue.entry(context.rows, request.worklist, id)
        if entry is None or not entry.is_pending or entry.not_before_ms > context.stamp.wall_ms:
            return AttemptBegun(0)
        last, put = entry.last, entry.puts[0]
        attempt = 0 if last is None else last.attempt
        if last is None or last.fence != request.fence or last.state != RUNNING:
            if last is not None and last.state == RUNNING and attempt >= self._attempts_max(entry):
                why = f"attempt {attempt}, by {last.by or 'a worker'!r}, ended without an outcome"
                _try(context, request, entry, attempt, DEAD, by=last.by, reason=why)
                return AttemptBegun(0)
            attempt += 1
            _try(context, request, entry, attempt, RUNNING, by=request.by)
        return AttemptBegun(attempt, users_key(entry.key), put.by, put.wall_ms, put.value)

    def _complete(self, context: WriteContext, request: CompleteItem) -> ItemCompleted:
        """Finish an entry.

        Raises:
            NotFound, Taken, LeaseLost: as `_claimed`.
        """
        _claimed(context, request)
        id, name = unhexed(request.id), request.worklist
        context.apply(queue.Dequeue(name, id, request.by, context.implied_key, request.result, request.fence))
        self._queues.tidy(context, name)
        return ItemCompleted(request.id)

    def _fail(self, context: WriteContext, request: FailItem) -> ItemFailed:
        """Give an entry back, or make it a dead letter.

        Raises:
            NotFound, Taken, LeaseLost: as `_claimed`.
        """
        entry = _claimed(context, request)
        assert entry.last is not None
        attempt = entry.last.attempt
        dead = attempt >= self._attempts_max(entry)
        from_ms = min(context.stamp.wall_ms + request.retry_in, END_MS - 1) if request.retry_in and not dead else 0
        _try(
            context,
            request,
            entry,
            attempt,
            DEAD if dead else WAITING,
            by=request.by or entry.last.by,
            reason=request.reason,
            not_before_ms=from_ms,
        )
        return ItemFailed(dead, attempt)

    def _revive(self, context: WriteContext, request: ReviveItem) -> ItemRevived:
        """Put a dead letter back.

        Raises:
            NotFound: it is none.
        """
        entry = queue.entry(context.rows, request.worklist, unhexed(request.id))
        if entry is None or not entry.is_dead:
            raise NotFound(
                f"{described(request.thread, request.worklist)} has no dead letter {request.id}. Nothing was written. "
                "It was never one, or was put back."
            )
        _try(context, request, entry, 0, WAITING, by=request.by)
        return ItemRevived(request.id)

    def _attempts_max(self, entry: RankedEntry) -> int:
        return entry.plan.attempts_max or self._config.worklist_attempts_max


def _check_item(request: UnderClaim | ReviveItem) -> None:
    check_names(request.thread, request.worklist)
    unhexed(request.id)
    check_by(request.by)


def _try(
    context: WriteContext,
    request: UnderClaim | ReviveItem,
    entry: RankedEntry,
    attempt: int,
    state: int,
    *,
    by: str,
    reason: str = "",
    not_before_ms: int = 0,
) -> None:
    last = entry.last
    nth = 1 if last is None else last.nth + 1
    before = 0 if last is None else last.fence
    fence = before if isinstance(request, ReviveItem) else request.fence
    id = unhexed(request.id)
    replaces = queue.replaced_by(context.stamp, entry)
    context.apply(queue.Attempt(request.worklist, id, nth, fence, attempt, state, by, not_before_ms, reason, replaces))


def _claimed(context: WriteContext, request: CompleteItem | FailItem) -> RankedEntry:
    """The entry, if it is still the claim's.

    Raises:
        NotFound: it is forgotten.
        Taken: it is finished.
        LeaseLost: the claim gave it back.
    """
    entry = queue.entry(context.rows, request.worklist, unhexed(request.id))
    if entry is None or not (entry.puts or entry.finishes):
        raise NotFound(
            f"{described(request.thread, request.worklist)} has no entry {request.id}. Nothing was written. "
            "It was never put here, or was finished and forgotten."
        )
    finished(entry, request)
    if entry.last is None or entry.last.fence != request.fence or entry.last.state != RUNNING:
        raise LeaseLost(
            f"this claim (fencing number {request.fence}) gave the item back. Nothing was written. Claim the next one.",
            fence=request.fence,
            holder="",
        )
    return entry


def finished(entry: RankedEntry, request: CompleteItem | FailItem) -> None:
    """Return if an entry is not finished.

    Raises:
        Taken: it is.
    """
    if entry.finishes:
        first = entry.finishes[0]
        whose = "under this claim" if first.fence == request.fence else f"by {first.by or 'somebody'!r}"
        raise Taken(
            f"entry {request.id} of {described(request.thread, request.worklist)} was already completed {whose}. "
            "Nothing was written. Claim the next one.",
            by=[finish.by for finish in entry.takers()],
        )
