"""Let go of one thread what a rule lets go: the rule decides, and prunes, trims and deletions do it.

Laws:
- A whole thread goes only if it held a checkpoint, an event or a step and its newest sign of life is old, nothing in it waits
  (an open step, an entry of a queue, an approval, a graph's question), and it was not written between that look and its
  deletion.
- What is read in steps is checked once more in the step that deletes.
- Nothing that is not known to be old goes: what has no time keeps its thread.
- Done items of a worklist go in the order in which they were done, up to the first that is not old.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, cast

from shoal.crdt.dot import made_ms, wall_ms_of
from shoal.crdt.rows import POSITION_BYTES, Rows
from shoal.errors import InvalidInput
from shoal.kinds.file import state as files
from shoal.kinds.journal.state.events import EVENT, hlc_of
from shoal.kinds.journal.state.trimming import too_old
from shoal.kinds.label import state as labels
from shoal.kinds.label.asks import is_asking
from shoal.kinds.step import state as steps
from shoal.kinds.thread.serving import pruning
from shoal.kinds.thread.serving.ownership import UnderLease
from shoal.kinds.thread.state import dag
from shoal.kinds.worklist import state as queues
from shoal.names import check_name
from shoal.node.handler import Checks, Maintainers, Piece, Readers, Upkeep, Writers, target_of
from shoal.node.transaction import ObjectRows
from shoal.node.turns import Steps, at_once
from shoal.protocol.requests import (
    DeleteThread,
    ObjectWrite,
    Prune,
    PruneReport,
    Purge,
    Purged,
    RetainThread,
    ThreadRetained,
    Trim,
    TrimReport,
)
from shoal.records import NamedTuple

_SLICE = 256  # Rows that are read before others get a turn.
_LOOKED_AT_ONCE_MAX = 2048  # Rows of a thread that was written meanwhile, and is looked at again in one step.


class Held(NamedTuple):
    """The contents of a thread, as rows."""

    checkpoints: int
    events: int
    rows: int
    bytes: int


class ThreadRetention:
    """The handler of `RetainThread`. `maintenance` carries out prunes and trims; `delete` issues a deletion at once.

    `written` is the number of the last write of a partition.
    """

    def __init__(
        self,
        maintenance: Maintainers,
        *,
        now_ms: Callable[[], int],
        delete: Callable[[ObjectWrite[object]], object],
        written: Callable[[int], int],
    ) -> None:
        self._prune, self._trim = maintenance[Prune], maintenance[Trim]
        self._now_ms = now_ms
        self._delete = delete
        self._written = written
        self.checks: Checks = {RetainThread: self._check}
        self.writers: Writers = {}
        self.readers: Readers = {}
        self.maintenance: Maintainers = {RetainThread: self._retain}

    def _check(self, request: RetainThread) -> None:
        check_name("thread", request.thread)
        if request.keep_last is not None and request.keep_last < 1:
            raise InvalidInput("keep_last must be at least 1, because a branch's head is never pruned. Nothing was written.")
        ages = {"older_than": request.older_than_ms, "thread_older_than": request.thread_older_than_ms}
        ages |= {"finished_older_than": request.finished_older_than_ms}
        for name, age_ms in (ages | {"events_older_than": request.events_older_than_ms}).items():
            if age_ms is not None and age_ms < 0:
                raise InvalidInput(f"{name} must not be negative. Nothing was written.")

    def _retain(self, rows: Callable[[], ObjectRows], request: RetainThread) -> Upkeep:
        """The whole thread if it goes, else its checkpoints, its events, its done items. A repeat finds only what is left."""
        whole = yield from self._whole(rows, request)
        if whole is not None:
            return whole
        pruned = PruneReport([], 0, {}, 0, request.dry_run)
        if _prunes(request):
            pruned = cast(PruneReport, (yield from self._prune(rows, _prune_of(request))))
        elif request.dry_run:
            held = yield from _held(rows)
            pruned = PruneReport([], 0, {"no bound": held.checkpoints} if held.checkpoints else {}, 0, True)
        trimmed = TrimReport(0, 0, request.dry_run)
        if request.events_older_than_ms is not None:
            trimmed = cast(TrimReport, (yield from self._trim(rows, _trim_of(request))))
        finished, bytes_finished = yield from self._finished(rows, request)
        size = pruned.bytes + trimmed.bytes + bytes_finished
        return ThreadRetained(False, pruned.count, trimmed.events, size, pruned.stays, request.dry_run, finished)

    def _finished(self, rows: Callable[[], ObjectRows], request: RetainThread) -> Generator[Piece | None, Any, tuple[int, int]]:
        """Forget done items of worklists, the oldest first. Returns how many, and their bytes."""
        count = size = 0
        if request.finished_older_than_ms is None:
            return count, size
        now_ms = self._now_ms()
        before_ms = now_ms - request.finished_older_than_ms
        for name, _ in list(queues.worklists(rows())):
            after = b""
            while True:
                page = _done(rows(), name, after, before_ms, now_ms)
                if page.items and not request.dry_run:
                    purge = Purge(request.space, request.thread, name, before_ms, page.items)
                    gone: Purged = yield Piece(purge, f"{count} done items are forgotten" if count else "")
                    count += gone.count
                    if gone.count < page.items:
                        break  # Others wrote meanwhile. The next look goes on.
                else:
                    count += page.items
                size += page.size
                if page.items < _SLICE:
                    break
                after = page.last if request.dry_run else b""
                yield None
        return count, size

    def due(self, rows: Callable[[], Rows], request: Any) -> Steps[int]:
        """How many checkpoints and events may go now; of a thread that goes whole, 1."""
        now_ms = self._now_ms()
        if (yield from is_idle(rows, request, now_ms)):
            return 1
        count = 0
        if _prunes(request):
            count += len((yield from pruning.planned(rows, _prune_of(request), now_ms, sized=False)).gone)
        if request.events_older_than_ms is not None:
            old = too_old(now_ms, request.events_older_than_ms)
            count += sum(1 for row, _ in rows().scan(EVENT, limit=1) if row[1:] < old)
        if request.finished_older_than_ms is not None:
            before_ms = now_ms - request.finished_older_than_ms
            count += sum(_done(rows(), name, b"", before_ms, now_ms).items for name, _ in list(queues.worklists(rows())))
        return count

    def _whole(
        self, rows: Callable[[], ObjectRows], request: RetainThread
    ) -> Generator[Piece | None, Any, ThreadRetained | None]:
        """Delete the thread if it may go; None if it stays."""
        now_ms, partition = self._now_ms(), target_of(request).partition
        held = yield from _held(rows)
        written = self._written(partition)
        if not (yield from is_idle(rows, request, now_ms)):
            return None
        report = ThreadRetained(True, held.checkpoints, held.events, held.bytes, {}, request.dry_run)
        if request.dry_run:
            return report
        if self._written(partition) != written and not (
            held.rows <= _LOOKED_AT_ONCE_MAX and at_once(is_idle(rows, request, now_ms))
        ):
            return None
        delete = DeleteThread(request.space, request.thread)
        try:
            self._delete(delete)
        except UnderLease:  # The quorum register knows whether it still is.
            yield Piece(delete)
        return report


class _Done(NamedTuple):
    """The first done items of a worklist that are old."""

    items: int
    size: int  # Of their values and results, in bytes.
    last: bytes  # The place of the last one.


def _done(rows: Rows, name: str, after: bytes, before_ms: int, now_ms: int) -> _Done:
    """A slice of the items that were done before a time, up to the first that was not: as `Purge` forgets them."""
    items = size = 0
    for place, id in queues.finished(rows, name, after=after):
        found = queues.entry(rows, name, id)
        if items == _SLICE or found is None:
            break
        first = found.finishes[0]
        if max(first.wall_ms, made_ms(hlc_of(first.position), first.wall_ms, now_ms)) >= before_ms:
            break
        items, after = items + 1, place
        size += (
            len(found.key or "") + sum(len(put.value) for put in found.puts) + sum(len(each.result) for each in found.finishes)
        )
    return _Done(items, size, after)


def _prunes(request: RetainThread) -> bool:
    return request.keep_last is not None or request.older_than_ms is not None


def _prune_of(request: RetainThread) -> Prune:
    return Prune(request.space, request.thread, request.keep_last, request.older_than_ms, None, request.dry_run)


def _trim_of(request: RetainThread) -> Trim:
    return Trim(request.space, request.thread, older_than_ms=request.events_older_than_ms, dry_run=request.dry_run)


def is_idle(rows: Callable[[], Rows], request: RetainThread, now_ms: int) -> Steps[bool]:
    """Whether a thread may go as a whole."""
    if request.thread_older_than_ms is None or _waits(rows()):
        return False
    young_ms = now_ms - request.thread_older_than_ms
    is_known = False
    for made in (_of_checkpoints, _of_notes, _of_others):
        after: bytes | None = None
        while True:
            page = made(rows(), after, now_ms)
            for sign in page.signs:
                if sign.made_ms > young_ms or (sign.is_labelled and request.keep_labelled):
                    return False
                is_known = True
            if page.after is None:
                break
            after = page.after
            yield
    return is_known


def _waits(rows: Rows) -> bool:
    """Whether something in a thread waits for somebody."""
    if next(iter(steps.listing(rows, only_open=True)), None) is not None:
        return True
    standing = steps.current(rows)
    if standing is not None and standing.status in ("waiting", "paused"):
        return True
    if (standing is None or standing.status == "running") and is_asking(rows):
        return True
    counts = [queues.counts(rows, queues.INBOX), *(found for _, found in queues.worklists(rows))]
    return any(found.pending or found.dead for found in counts)


class _Sign(NamedTuple):
    """A sign of life."""

    made_ms: int
    is_labelled: bool = False


class _Page(NamedTuple):
    """Some signs of life, and the row after which the next ones are; None: there are no more."""

    signs: list[_Sign]
    after: bytes | None = None


def _of_checkpoints(rows: Rows, after: bytes | None, now_ms: int) -> _Page:
    found = list(dag.leads(rows, after=after, limit=_SLICE))
    signs = [_Sign(made_ms(lead.hlc, lead.wall_ms, now_ms), bool(lead.label)) for lead in found]
    return _Page(signs, found[-1].id if len(found) == _SLICE else None)


def _of_notes(rows: Rows, after: bytes | None, _now_ms: int) -> _Page:
    """Those of the notes beside labels. They have logical times alone."""
    found = list(rows.scan(labels.NOTES, after=after, limit=_SLICE))
    ends = [row[3 + int.from_bytes(row[1:3], "big") :] for row, _ in found]
    signs = [_Sign(wall_ms_of(hlc_of(end))) for end in ends if len(end) == POSITION_BYTES]
    return _Page(signs, found[-1][0] if len(found) == _SLICE else None)


def _of_others(rows: Rows, after: bytes | None, now_ms: int) -> _Page:
    """Those of events, moves of branches, the status, files, steps and finished entries; of lists in order, the last one."""
    found = [hlc_of(row[1:]) for row, _ in rows.scan(EVENT, reverse=True, limit=1)]
    signs = [_Sign(made_ms(hlc, wall_ms_of(hlc), now_ms)) for hlc in found]
    signs += [_Sign(made_ms(move.hlc, move.wall_ms, now_ms)) for move in dag.moves(rows)]
    if (standing := steps.current(rows)) is not None:
        signs.append(_Sign(standing.wall_ms))
    signs += [_Sign(made_ms(hlc_of(file.position), file.wall_ms, now_ms)) for _, file in files.names(rows)]
    signs += [_Sign(upload.wall_ms) for upload in files.uploads(rows)]
    for _, key in steps.listing(rows, only_open=False):
        signs += _last(_positions(rows, key))
    for name in (queues.INBOX, *(name for name, _ in queues.worklists(rows))):
        signs += _last(position for position, _ in queues.finished(rows, name))
    return _Page(signs)


def _positions(rows: Rows, step: str) -> Iterator[bytes]:
    entry = steps.find(rows, step)
    if entry is not None:
        for each in (entry.attempts, entry.ends, entry.results, entry.progress, entry.decisions):
            yield from (one.position for one in each)


def _last(positions: Iterable[bytes]) -> list[_Sign]:
    return [_Sign(wall_ms_of(hlc_of(last))) for last in [max(positions, default=b"")] if last]


def _held(rows: Callable[[], ObjectRows]) -> Steps[Held]:
    """Count the contents of a thread."""
    checkpoints = events = count = size = 0
    after: bytes | None = None
    while True:
        some = list(islice(rows().sizes(after=after, limit=_SLICE), _SLICE))
        for row, value_bytes in some:
            checkpoints += row[:1] == dag.CHECKPOINT
            events += row[:1] == EVENT
            size += len(row) + value_bytes
        count += len(some)
        if len(some) < _SLICE:
            return Held(checkpoints, events, count, size)
        after = some[-1][0]
        yield
