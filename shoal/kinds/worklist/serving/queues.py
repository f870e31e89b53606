"""Queues over storage: putting, finishing and forgetting entries, and pages of entries.

Tries of queue entries: handed out, completed, given back, put back.

Law: these writes are accepted only while the node knows that their claim has not ended (`shoal.node.leases`), except for
`ReviveItem`, and `RecallTry`, which is a part of imports. Here it is decided whether the entry is still the claim's: the last
try has its fencing number.
"""

from __future__ import annotations

from itertools import islice

from shoal import values
from shoal.config import Config
from shoal.crdt.deletion import users_key
from shoal.crdt.dot import END_MS
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, KeyReused, LeaseLost, NotFound, Overloaded, Taken, TooLarge
from shoal.kinds.thread.serving.ownership import UnderClaim
from shoal.kinds.worklist import state as queue
from shoal.kinds.worklist.state import DEAD, INBOX, RUNNING, WAITING, Item, RankedEntry
from shoal.names import check_key, check_name
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.naming import PAGE_BYTES_MAX, check_size, check_text, of_hex
from shoal.protocol import requests
from shoal.protocol.requests import (
    AttemptBegun,
    BeginAttempt,
    CompleteItem,
    Dequeue,
    Dequeued,
    Enqueue,
    Enqueued,
    FailItem,
    ItemCompleted,
    ItemFailed,
    ItemRevived,
    ListWorklists,
    Purge,
    Purged,
    QueueEntries,
    QueueEntry,
    QueuePlan,
    QueueTry,
    ReadQueue,
    ReadQueueEntry,
    RecallTry,
    ReviveItem,
    TryRecalled,
    Worklist,
    Worklists,
)

WORKLISTS_MAX = 256  # Worklists of one thread.
WORKLIST_ATTEMPTS_MAX = 5  # Claims of one item that nobody completes; then it is a dead letter.

ATTEMPTS_RECALLED_MAX = 2**31
DELAY_MS_MAX = 400 * 24 * 3600 * 1000
_STATES = ("claimed", "waiting", "dead")
_PURGED_BESIDE = 4  # Old entries that each finish in an inbox forgets: more than it adds.


class Queues:
    """The handler of a thread's inbox and worklists."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {Enqueue: self._check_put, Dequeue: self._check_finish, Purge: self._check_purge}
        self.writers: Writers = {Enqueue: self._put, Dequeue: self._finish, Purge: self._purge}
        self.readers: Readers = {ReadQueue: self._read, ReadQueueEntry: self._entry, ListWorklists: self._worklists}

    # ── writes ────────────────────────────────────────────────────────────────

    def _check_put(self, request: Enqueue) -> None:
        check_names(request.thread, request.queue)
        if len(request.items) > self._config.page_items_max:
            raise TooLarge(
                f"at most {self._config.page_items_max} entries can be put at once. Nothing was written. Put them in "
                "several requests."
            )
        for item in request.items:
            if item.key is not None:
                check_key("queue key", item.key)
            values.check(item.value)
        check_by(request.by)
        if request.plan is not None:
            _check_plan(request.plan)
        check_size(self._config, sum(len(item.value) for item in request.items), "the entries of one request")

    def _put(self, context: WriteContext, request: Enqueue) -> Enqueued:
        """Put entries; those whose key is already there are not added again.

        Raises:
            KeyReused: a key belongs to an entry with another value.
            Overloaded: `queue_pending_max` entries would be exceeded.
            TooLarge: the thread has `WORKLISTS_MAX` worklists.
        """
        rows, stamp, name = context.rows, context.stamp, request.queue
        start = stamp.pack_position()
        items: dict[bytes, Item] = {}
        ids, added = [], []
        implied = context.implied_key
        for number, item in enumerate(request.items):
            key = item.key or (None if implied is None else f"{implied}\x00{number}")
            id = queue.identify(key) if key is not None else queue.identify_position(start, len(items))
            known = _value_of(rows, name, id) if id not in items else items[id].value
            if known is not None and known != item.value and item.key is not None:
                raise KeyReused(
                    f"key {item.key!r} is already in {described(request.thread, name)} with another value. "
                    "Nothing was written. Use a new key for a new entry."
                )
            if known is None:
                items[id] = Item(key, item.value)
            ids.append(id.hex())
            added.append(known is None)
        if not items:
            return Enqueued(ids, added)
        self._bound(rows, request, len(items))
        plan = None if request.plan is None else _plan(request.plan, stamp.wall_ms)
        change = queue.Enqueue(name, request.by, list(items.values()), plan)
        context.apply(change)
        return Enqueued(ids, added)

    def _bound(self, rows: Rows, request: Enqueue, count: int) -> None:
        counts = queue.counts(rows, request.queue)
        if counts.pending + count > self._config.queue_pending_max:
            raise Overloaded(
                f"{described(request.thread, request.queue)} has {counts.pending} pending entries; "
                f"{self._config.queue_pending_max} are allowed. Nothing was written. Finish some first.",
                retry_after_s=1.0,
            )
        if request.queue != INBOX and counts == queue.Counts():
            listed = len(list(islice(queue.worklists(rows), WORKLISTS_MAX)))
            if listed == WORKLISTS_MAX:
                raise TooLarge(
                    f"thread {request.thread!r} has {listed} worklists, which is the maximum. Nothing was written. "
                    "Forget the finished entries of some of them."
                )

    def _check_finish(self, request: Dequeue) -> None:
        check_names(request.thread, request.queue)
        unhexed(request.id)
        check_by(request.by)
        values.check(request.result)
        check_size(self._config, len(request.result), "a result")

    def _finish(self, context: WriteContext, request: Dequeue) -> Dequeued:
        """Finish an entry; the reply names who finished it first.

        Raises:
            UnderClaim: it is handed out, as far as this node knows.
            NotFound: there is no such entry here.
            Taken: the request says `once`, and the entry is finished already.
        """
        rows, name = context.rows, request.queue
        id = unhexed(request.id)
        found = queue.entry(rows, name, id)
        if found is None or not (found.puts or found.finishes):
            raise NotFound(
                f"{described(request.thread, name)} has no entry {request.id}. Nothing was written. "
                "It was never put here, or was finished and forgotten."
            )
        if found.finishes:
            first = found.finishes[0]
            if request.once:
                raise Taken(
                    f"entry {request.id} of {described(request.thread, name)} was already taken by {first.by or 'somebody'!r}. "
                    "Nothing was written. Continue with the next one.",
                    by=[finish.by for finish in found.takers()],
                )
            return Dequeued(False, first.by, first.result)
        is_claimed = found.last is not None and found.last.state == queue.RUNNING and id not in context.unclaimed
        if is_claimed and context.imported is None:
            raise UnderClaim(context.target, name, id)
        change = queue.Dequeue(name, id, request.by, context.implied_key, request.result)
        context.apply(change)
        self.tidy(context, name)
        return Dequeued(True, request.by, request.result)

    def tidy(self, context: WriteContext, name: str) -> None:
        """Beside a message that is taken, forget some old ones. A worklist remembers what is done for as long as it is used."""
        if name == INBOX:
            old = self._old(context.rows, name, context.stamp.wall_ms - self._config.inbox_taken_s * 1000, _PURGED_BESIDE)
            self._purge_ids(context, name, old)

    def _check_purge(self, request: Purge) -> None:
        check_names(request.thread, request.queue)

    def _purge(self, context: WriteContext, request: Purge) -> Purged:
        limit = min(max(1, request.limit), self._config.page_items_max)
        old = self._old(context.rows, request.queue, request.before_ms, limit + 1)
        self._purge_ids(context, request.queue, old[:limit])
        return Purged(len(old[:limit]), len(old) > limit)

    def _old(self, rows: Rows, name: str, before_ms: int, limit: int) -> list[bytes]:
        """The entries that were finished before a time, up to the first that was not."""
        old: list[bytes] = []
        for _, id in queue.finished(rows, name):
            found = queue.entry(rows, name, id)
            if len(old) == limit or found is None or found.finishes[0].wall_ms >= before_ms:
                break
            old.append(id)
        return old

    def _purge_ids(self, context: WriteContext, name: str, ids: list[bytes]) -> None:
        if ids:
            context.apply(queue.Purge(name, ids, queue.context_of(context.rows, context.stamp, name, ids)))

    # ── reads ─────────────────────────────────────────────────────────────────

    def _read(self, view: View, request: ReadQueue) -> QueueEntries:
        rows, name = view.rows, request.queue
        check_names(request.thread, name)
        after = _place(request.after)
        limit = min(max(1, request.limit), self._config.page_items_max)
        listed = queue.finished if request.finished else queue.dead if request.dead else queue.pending
        entries: list[QueueEntry] = []
        size = 0
        for place, id in listed(rows, name, after=after):
            if len(entries) == limit or size > PAGE_BYTES_MAX:
                return self._page(rows, name, entries, more=True)
            entry = queue.entry(rows, name, id)
            assert entry is not None  # The index names only stored entries.
            entries.append(_shown(id, place, entry))
            size += len(entries[-1].value) + sum(len(finish.result) for finish in entries[-1].finishes) + 200
        return self._page(rows, name, entries, more=False)

    def _entry(self, view: View, request: ReadQueueEntry) -> QueueEntries:
        check_names(request.thread, request.queue)
        id = unhexed(request.id)
        entry = queue.entry(view.rows, request.queue, id)
        return self._page(view.rows, request.queue, [] if entry is None else [_shown(id, b"", entry)], more=False)

    def _page(self, rows: Rows, name: str, entries: list[QueueEntry], *, more: bool) -> QueueEntries:
        counts = queue.counts(rows, name)
        return QueueEntries(entries, more, *counts)

    def _worklists(self, view: View, _request: ListWorklists) -> Worklists:
        return Worklists([Worklist(name, *counts) for name, counts in queue.worklists(view.rows)])


def _shown(id: bytes, place: bytes, entry: RankedEntry) -> QueueEntry:
    put = entry.puts[0] if entry.puts else queue.Put(b"", 0, "", requests.NIL)
    finishes = [requests.Finish(finish.by, finish.wall_ms, finish.result) for finish in entry.takers()]
    others = list(dict.fromkeys(other.value for other in entry.puts[1:] if other.value != put.value))
    tried = None if entry.last is None else _tried(entry.last)
    plan = None if put.plan is None else _shown_plan(put)
    key = users_key(entry.key)
    return QueueEntry(id.hex(), place.hex(), key, put.by, put.wall_ms, put.value, finishes, others, tried, plan)


def _tried(last: queue.Try) -> QueueTry:
    state = _STATES[last.state]
    return QueueTry(last.attempt, state, last.by, last.wall_ms, last.fence, last.reason, last.not_before_ms)


def _plan(plan: QueuePlan, now_ms: int) -> queue.Plan:
    from_ms = min(now_ms + plan.delay_ms, END_MS - 1) if plan.delay_ms else 0
    return queue.Plan(plan.priority, from_ms, plan.group, plan.group_max, plan.attempts_max)


def _shown_plan(put: queue.Put) -> QueuePlan:
    plan = put.plan or queue.Plan()
    delay_ms = max(0, plan.not_before_ms - put.wall_ms) if plan.not_before_ms else 0
    return QueuePlan(plan.priority, delay_ms, plan.group, plan.group_max, plan.attempts_max)


def _check_plan(plan: QueuePlan) -> None:
    if not 0 <= plan.priority <= queue.PRIORITY_MAX:
        raise InvalidInput(
            f"a priority is 0 to {queue.PRIORITY_MAX}; got {plan.priority}. Nothing was written.", field="priority"
        )
    if not 0 <= plan.delay_ms <= DELAY_MS_MAX:
        raise InvalidInput(
            f"a delay is 0 to {DELAY_MS_MAX // 1000} seconds; got {plan.delay_ms / 1000:g}. Nothing was written.", field="delay"
        )
    if plan.group:
        check_key("group", plan.group)
    if plan.group_max < 0 or plan.attempts_max < 0 or bool(plan.group) != bool(plan.group_max):
        raise InvalidInput(
            "a group needs a group_max of at least 1, and attempts_max is at least 1. Nothing was written.", field="group_max"
        )


def _value_of(rows: Rows, name: str, id: bytes) -> bytes | None:
    found = queue.entry(rows, name, id)
    return found.puts[0].value if found is not None and found.puts else None


def check_names(thread: str, name: str) -> None:
    """Check the names of a thread and of one of its queues."""
    check_name("thread", thread)
    if name != INBOX:
        check_name("worklist", name)


def check_by(by: str) -> None:
    """Check an author's name, which may be empty."""
    if by:
        check_name("author", by)


def described(thread: str, name: str) -> str:
    """A queue, for people."""
    return f"the inbox of {thread!r}" if name == INBOX else f"worklist {name!r} of {thread!r}"


def unhexed(id: str) -> bytes:
    """An entry's id in bytes."""
    return of_hex(id, queue.ID_BYTES, "an entry's id is")


def _place(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidInput("this is not a place in a queue. Use a place from an earlier answer unchanged.") from None


_UnderClaim = BeginAttempt | CompleteItem | FailItem


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
            RecallTry: _check_recalled,
            ReviveItem: _check_item,
        }
        self.writers = {
            BeginAttempt: self._begin,
            CompleteItem: self._complete,
            FailItem: self._fail,
            RecallTry: _recall,
            ReviveItem: self._revive,
        }
        self.readers = {}

    def _check_complete(self, request: CompleteItem) -> None:
        _check_item(request)
        values.check(request.result)
        check_size(self._config, len(request.result), "a result")

    def _check_fail(self, request: FailItem) -> None:
        _check_item(request)
        check_text(request.reason, "a reason")
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
        return entry.plan.attempts_max or WORKLIST_ATTEMPTS_MAX


def _check_item(request: _UnderClaim | ReviveItem) -> None:
    check_names(request.thread, request.worklist)
    unhexed(request.id)
    check_by(request.by)


def _check_recalled(request: RecallTry) -> None:
    check_names(request.thread, request.worklist)
    unhexed(request.id)
    check_by(request.by)
    check_text(request.reason, "a reason")
    for name, most in (("attempt", ATTEMPTS_RECALLED_MAX), ("not_before_ms", END_MS)):
        if not 0 <= getattr(request, name) < most:
            raise InvalidInput(f"{name} is 0 to {most - 1}; got {getattr(request, name)}. Nothing was written.", field=name)
    if request.state not in _STATES:
        told = f"state is one of {', '.join(_STATES)}; got {request.state[:40]!r}. Nothing was written."
        raise InvalidInput(told, field="state")


def _recall(context: WriteContext, request: RecallTry) -> TryRecalled:
    """Note the tries of an entry that is imported.

    Raises:
        InvalidInput: it is no part of an import.
        NotFound: there is no such entry.
    """
    if context.imported is None:
        raise InvalidInput("recall-try is a part of an import. Nothing was written. Claim the item instead.")
    id = unhexed(request.id)
    entry = queue.entry(context.rows, request.worklist, id)
    if entry is None or not entry.puts:
        raise NotFound(f"{described(request.thread, request.worklist)} has no entry {request.id}. Nothing was written.")
    if entry.tries or entry.finishes:
        return TryRecalled(False)
    state = _STATES.index(request.state)
    context.apply(
        queue.Attempt(request.worklist, id, 1, 0, request.attempt, state, request.by, request.not_before_ms, request.reason)
    )
    return TryRecalled(True)


def _try(
    context: WriteContext,
    request: _UnderClaim | ReviveItem,
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
