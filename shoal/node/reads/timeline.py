"""All that was done in threads, the newest first: checkpoints, events and steps in one order of time.

Laws:
- An entry's place is (time, kind, id, thread), so that a page goes on exactly after the one before it, and shows nothing twice.
- A page looks at `AUDIT_THREADS_MAX` threads (twice as many, if some came meanwhile) and `ENTRIES_LOOKED_MAX` entries at most,
  a few in each step, and ends before `TIMELINE_BYTES_MAX` bytes, but for its first entry.
- Each page of a group tells where the next group begins, so that a reader can hold a page of each and merge them
  (`shoal.kinds.thread.flows.audit`): all threads of a space in one order, at a bounded cost for each request.
- A value that was erased is not shown, and neither is a checkpoint that was pruned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from shoal import values
from shoal.cluster import operation
from shoal.crdt.dot import COUNTER_BITS, Dot, wall_ms_of
from shoal.crdt.rows import POSITION_BYTES, Rows
from shoal.errors import InvalidInput, InvalidValue, StoreCorrupt
from shoal.kinds.journal.state import events
from shoal.kinds.label import state as labels
from shoal.kinds.step import state as steps
from shoal.kinds.thread.state import dag
from shoal.kinds.thread.state.channel import Recipe
from shoal.names import check_name
from shoal.node.database import Database
from shoal.node.handler import Answers, Target
from shoal.node.naming import check_text
from shoal.node.reads.cluster import Listings
from shoal.node.turns import Steps, in_turns
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import PastLease, ReadSpaceAudit, ReadTimeline, Replaced, Timeline, TimelineEntry, TimelineKind
from shoal.records import NamedTuple
from shoal.schemas import secret_fields
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

AUDIT_THREADS_MAX = 500  # Threads whose entries are put in one order; the first look at each takes 0.1 to 0.2 ms.
ENTRIES_LOOKED_MAX = 2000  # Entries that are looked at for one page, so that a search for a rare author ends.
TIMELINE_BYTES_MAX = 64_000  # Of a page, in MessagePack with `_FIELDS_BYTES` for each entry.
TIMELINE_STEP = 16  # Threads, or entries, that are looked at in one step.
DATA_BYTES_MAX = 2048  # Of the value of an entry that is shown with it.

_CHUNK = 16  # Places that are read of a thread at a time: with many threads, few are needed of each.
_BRANCHES_MAX, _CHANGED_MAX = 256, 64
_FIELDS_BYTES = 250
_KINDS: tuple[TimelineKind, ...] = ("step", "event", "checkpoint")  # Of one millisecond the last of these is the newest.
_END = (1 << (63 - COUNTER_BITS), -1, b"", "")  # Newer than every entry, and an HLC still.
_NIL = values.encode(None)
_encoder = msgspec.msgpack.Encoder()
_decode_cursor = msgspec.msgpack.Decoder(tuple[str, str, tuple[int, int, bytes, str]]).decode


class _Place(NamedTuple):
    """The place of an entry in the order of time."""

    ms: int
    kind: int  # In `_KINDS`.
    id: bytes  # A checkpoint's id, or the position of an event or of a step's first attempt.
    thread: str


class Timelines:
    """Answers `ReadTimeline` and `ReadSpaceAudit`. `storage` has the log."""

    def __init__(self, database: Database, listings: Listings, storage: Storage) -> None:
        self._database = database
        self._listings = listings
        self._storage = storage
        self.answers: Answers = {ReadTimeline: self._of_thread, ReadSpaceAudit: self._of_space}

    async def _of_thread(self, request: ReadTimeline, bookmark: Bookmark) -> Timeline:
        check_name("space", request.space)
        check_name("thread", request.thread)
        _, _, before = _parsed(request.after)
        await self._listings.reach_all(bookmark)
        items, place = await in_turns(self._page(request, [request.thread], before))
        rows = self._rows(request.space, request.thread)
        mark, terms = labels.marked(rows), [] if request.after else labels.tenures(rows)
        await self._listings.show(request.space, [request.thread], bookmark)
        held = mark is not None and not mark.over
        return Timeline(
            items,
            b"" if place is None else _encoder.encode(("", "", place)),
            threads=1,
            holder=mark.holder if held and mark is not None else "",
            fence=mark.fence if held and mark is not None else 0,
            reached_ms=0 if place is None else place.ms,
            terms=[PastLease(*term) for term in terms],
        )

    async def _of_space(self, request: ReadSpaceAudit, bookmark: Bookmark) -> Timeline:
        check_name("space", request.space)
        above, last, before = _parsed(request.after)
        await self._listings.reach_all(bookmark)
        # Threads that came into a group since its first page push none out of it; one that doubles loses its last ones.
        names = self._database.catalog.names(
            request.space, Kind.THREAD, prefix=request.prefix, after=above or None, limit=2 * AUDIT_THREADS_MAX + 1
        )
        ends = last.encode()
        fitting = [each for each in names if each.encode() <= ends] if last else names[:AUDIT_THREADS_MAX]
        looked = fitting[: 2 * AUDIT_THREADS_MAX]
        beyond = len(names) > len(looked)
        items, place = await in_turns(self._page(request, looked, before))
        await self._listings.show(request.space, looked, bookmark)
        end = looked[-1] if looked else last  # All that were in it may have been deleted meanwhile.
        others = _encoder.encode((end, "", _END)) if beyond else b""
        # Without a place this group of threads is told, and the next one begins.
        cursor = others if place is None else _encoder.encode((above, end, place))
        reached_ms = 0 if place is None else place.ms
        return Timeline(items, cursor, threads=len(looked), beyond=beyond, others=others, reached_ms=reached_ms)

    def _rows(self, space: str, thread: str) -> Rows:
        return self._database.document(Target(Kind.THREAD, space, thread)).rows

    def _page(
        self, request: ReadTimeline | ReadSpaceAudit, threads: list[str], before: _Place
    ) -> Steps[tuple[list[TimelineEntry], _Place | None]]:
        """The entries of a page, and the place after which the next one begins; None: there are no more."""
        check_text(request.text, "a text to look for")
        limit, wanted = self._listings.limit(request.limit), _Wanted(request)
        heap: list[tuple[int, int, tuple[int, ...], str, _Place, list[_Place]]] = []

        def push(thread: str, left: list[_Place], after: _Place) -> None:
            left = left or _places(self._rows(request.space, thread), thread, after, wanted.kinds, _CHUNK)
            if left and left[0].ms >= request.since_ms:
                heapq.heappush(heap, (*_falling(left[0]), left[0], left[1:]))

        for nth, thread in enumerate(threads, 1):
            push(thread, [], before)
            if nth % TIMELINE_STEP == 0:
                yield
        items: list[TimelineEntry] = []
        size, last = 0, before
        for looked in range(1, ENTRIES_LOOKED_MAX + 1):
            if not heap:
                return items, None
            *_, place, left = heapq.heappop(heap)
            entry = self._entry(request.space, place)
            if entry is not None and wanted.has(entry):
                size += len(_encoder.encode(entry)) + _FIELDS_BYTES
                if items and size > TIMELINE_BYTES_MAX:
                    return items, last
                items.append(entry)
            last = place
            push(place.thread, left, place)
            if len(items) == limit:
                return items, last if heap else None
            if looked % TIMELINE_STEP == 0:
                yield
        return items, last if heap else None

    def _entry(self, space: str, place: _Place) -> TimelineEntry | None:
        """The entry at a place; None if it is gone: it was pruned, trimmed or deleted meanwhile."""
        target = Target(Kind.THREAD, space, place.thread)
        rows = self._database.document(target).rows
        try:
            entry, dot = _MADE[_KINDS[place.kind]](rows, place)
        except StoreCorrupt as damage:
            return TimelineEntry(place.thread, _KINDS[place.kind], place.ms, place.id.hex(), f"unreadable: {damage.message}")
        if entry is None or dot is None:
            return entry
        logged = self._storage.get(keys.log(target.partition, dot))
        if logged is None:
            return entry
        told = operation.told_in(operation.LogEntry.unpack(logged).packed)
        if told is None:
            return entry
        return msgspec.structs.replace(entry, token=told.token, redacted=[Replaced(*each) for each in told.redacted])


class _Wanted:
    """The entries that a request asks for."""

    def __init__(self, request: ReadTimeline | ReadSpaceAudit) -> None:
        self._by = request.by
        self._text = request.text.casefold()
        self.kinds = range(len(_KINDS)) if not request.kind else (_KINDS.index(request.kind),)

    def has(self, entry: TimelineEntry) -> bool:
        if self._by and entry.by != self._by:
            return False
        if not self._text:
            return True
        texts = (entry.thread, entry.text, entry.by, entry.label, entry.id, entry.token, *entry.changed)
        told = entry.data.decode(errors="ignore")  # Texts are in a packed value as they are.
        return any(self._text in each.casefold() for each in (*texts, told))


def _parsed(cursor: bytes) -> tuple[str, str, _Place]:
    """The thread after which the group of a cursor begins, the one that ends it (empty: it is not known yet), and the place.

    Raises:
        InvalidInput: it is none.
    """
    try:
        above, last, place = _decode_cursor(cursor) if cursor else ("", "", _END)
        if not 0 <= place[0] <= _END[0] or not -1 <= place[1] < len(_KINDS) or len(place[2]) > POSITION_BYTES:
            raise ValueError("no place")
    except ValueError:  # msgspec's errors are ValueErrors, too.
        raise InvalidInput("`after` is not the cursor of an earlier page. Nothing was written.", field="after") from None
    return above, last, _Place(*place)


def _falling(place: _Place) -> tuple[int, int, tuple[int, ...], str]:
    """A key by which the newest place is the least."""
    return -place.ms, -place.kind, tuple([-octet for octet in place.id]), place.thread


def _places(rows: Rows, thread: str, before: _Place, kinds: Iterable[int], limit: int) -> list[_Place]:
    """The places of a thread's entries after `before`, which is newer, in the order of time."""
    streams = [_STREAMS[_KINDS[kind]](rows, _bound(kind, thread, before)) for kind in kinds]
    found = heapq.merge(*streams, key=lambda each: (each[0], each[1], each[2]), reverse=True)
    return [_Place(ms, kind, id, thread) for ms, kind, id in islice(found, limit)]


class _Bound(NamedTuple):
    """The places of one kind that come after another: older than `ms`, or of this millisecond, with a lesser id."""

    kind: int
    ms: int
    id: bytes


def _bound(kind: int, thread: str, before: _Place) -> _Bound:
    if kind < before.kind:
        return _Bound(kind, before.ms + 1, b"")
    if kind > before.kind:
        return _Bound(kind, before.ms, b"")
    # Of the same id in two threads, that in the lesser one comes first.
    return _Bound(kind, before.ms, before.id + b"\x00" if thread > before.thread else before.id)


_Stream = Iterator[tuple[int, int, bytes]]


def _saved(rows: Rows, bound: _Bound) -> _Stream:
    """The checkpoints of all branches by when they were saved: a branch has a row for each, in order."""
    streams = [_saved_on(rows, branch, bound) for branch in islice(_branches(rows), _BRANCHES_MAX)]
    return heapq.merge(*streams, reverse=True)


def _branches(rows: Rows) -> Iterator[bytes]:
    """The beginnings of the rows of each branch, deleted ones too."""
    after = None
    while (row := next((row for row, _ in rows.scan(dag.WHEN, after=after, limit=1)), None)) is not None:
        branch = row[: row.index(b"\x00", len(dag.WHEN)) + 1]
        yield branch
        after = branch + b"\xff" * (8 + dag.ID_BYTES + 1)


def _saved_on(rows: Rows, branch: bytes, bound: _Bound) -> _Stream:
    end = branch + bound.ms.to_bytes(8, "big") + bound.id
    at = len(branch)
    for row, _ in rows.scan(branch, after=end, reverse=True):
        # A move is told by its event. Its place counts as looked at, so that no step passes over thousands; no entry is there.
        yield int.from_bytes(row[at : at + 8], "big"), bound.kind, row[at + 8 :]


def _positions(table: bytes) -> Callable[[Rows, _Bound], _Stream]:
    """The places in a table whose rows are in the order of positions."""

    def places(rows: Rows, bound: _Bound) -> _Stream:
        end = bound.id or (bound.ms << COUNTER_BITS).to_bytes(8, "big")
        for row, _ in rows.scan(table, after=table + end, reverse=True):
            position = row[len(table) :]
            yield wall_ms_of(events.hlc_of(position)), bound.kind, position

    return places


_STREAMS: dict[TimelineKind, Callable[[Rows, _Bound], _Stream]] = {
    "checkpoint": _saved,
    "event": _positions(events.EVENT),
    "step": _positions(steps.ORDER),
}


def _checkpoint(rows: Rows, place: _Place) -> tuple[TimelineEntry | None, Dot | None]:
    found = dag.shown(rows, place.id)
    if found is None:
        return None, None
    record = found.record
    parent = dag.checkpoint(rows, record.parents[0]) if record.parents else None
    data, whole = _shown(record.metadata)
    return TimelineEntry(
        place.thread,
        "checkpoint",
        found.wall_ms,
        place.id.hex(),
        record.branch,
        record.author,
        label=record.label,
        parents=[each.hex() for each in record.parents],
        changed=changed(None if parent is None else parent.record, record),
        data=data,
        whole=whole,
    ), found.dot


def changed(before: dag.Record | None, after: dag.Record) -> list[str]:
    """The channels that were set, added or removed against the first parent. One with secret parts counts as set each time."""
    old = {} if before is None else before.channels
    names = [
        name
        for name, recipe in after.channels.items()
        if secret_fields.is_secret(after.secret, name) or _content(recipe) != _content(old.get(name))
    ]
    names += [name for name in old if name not in after.channels]
    return names[:_CHANGED_MAX]


def _content(recipe: Recipe | None) -> bytes | None:
    # A tiny value has no hash; its bytes stand for it.
    return None if recipe is None else recipe.hash or recipe.header + recipe.tail


def _event(rows: Rows, place: _Place) -> tuple[TimelineEntry | None, Dot | None]:
    found = events.find(rows, place.id)
    if found is None:
        return None, None
    data, whole = (_NIL, True) if found.is_erased else _shown(found.payload)
    told = _decoded(data)
    kind, by = (told.get("kind"), told.get("by")) if isinstance(told, dict) else (None, None)
    return TimelineEntry(
        place.thread,
        "event",
        found.wall_ms,
        place.id.hex(),
        kind if isinstance(kind, str) else "event",
        by if isinstance(by, str) else "",
        data=data,
        whole=whole,
        erased=found.is_erased,
    ), events.dot_of(place.id)


def _step(rows: Rows, place: _Place) -> tuple[TimelineEntry | None, Dot | None]:
    key = rows.get(steps.ORDER + place.id)
    entry = None if key is None else steps.find(rows, key.decode())
    if key is None or entry is None:
        return None, None
    last = max(entry.attempts, key=lambda attempt: attempt.position)
    ended = 0
    data, whole = _NIL, True
    if entry.results:
        result = entry.results[0]
        ended = result.wall_ms
        data, whole = _shown(steps.content(rows, key.decode(), result.digest))
    elif entry.failures:
        ended = entry.failures[-1].wall_ms
        data, whole = _shown(entry.failures[-1].detail or _NIL)
    elif entry.decisions:
        ended = max(decision.wall_ms for decision in entry.decisions)
    return TimelineEntry(
        place.thread,
        "step",
        entry.first.wall_ms,
        key.decode(),
        entry.first.name,
        last.holder,
        state=entry.state,
        ended_ms=0 if entry.state == "open" else ended,
        data=data,
        whole=whole,
    ), events.dot_of(place.id)


_MADE: dict[TimelineKind, Callable[[Rows, _Place], tuple[TimelineEntry | None, Dot | None]]] = {
    "checkpoint": _checkpoint,
    "event": _event,
    "step": _step,
}


def _shown(packed: bytes) -> tuple[bytes, bool]:
    """A value that is shown with its entry, and whether it is whole."""
    return (packed, True) if len(packed) <= DATA_BYTES_MAX else (_NIL, False)


def _decoded(packed: bytes) -> object:
    try:
        return values.decode(packed)
    except InvalidValue:
        return None
