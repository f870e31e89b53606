"""Threads at a glance, each with a state and the reason for it as a sentence; and the work of a space: its queues and leases.

Laws:
- A thread that is stuck is found however many others run: those with an open step come by its age, the oldest first.
- A page looks at `LISTING_SCAN_MAX` threads at most, a few in each step, and ends before `SUMMARIES_BYTES_MAX` bytes, but
  for its first element.
- A page that was made is shown again while nothing was written here; if time or a lease alone may change it, for
  `SUMMARIES_KEPT_MS` at most: ten people who look at one idle node cost it as much as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec

from shoal import values
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, InvalidValue, StoreCorrupt
from shoal.kinds.label.asks import Ask, open_asks
from shoal.kinds.label.handler import questions
from shoal.kinds.label.state import marked
from shoal.kinds.step import state as status
from shoal.kinds.thread.state import dag
from shoal.kinds.worklist import state as queues
from shoal.names import check_name
from shoal.node.catalog import ASKING, STATUS_CODES
from shoal.node.database import Database
from shoal.node.handler import Answers, Target
from shoal.node.naming import check_text
from shoal.node.reads.cluster import LISTING_SCAN_MAX, Listings
from shoal.node.reads.timeline import changed
from shoal.node.turns import Steps, in_turns
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    LeaseState,
    ListSummaries,
    ListWork,
    OpenStep,
    Question,
    Summaries,
    ThreadState,
    ThreadSummary,
    Work,
    WorkQueue,
)
from shoal.records import NamedTuple
from shoal.storage.keys import Kind

SUMMARIES_BYTES_MAX = 64_000  # Of a page of summaries, in MessagePack with `_FIELDS_BYTES` for each.
SUMMARIES_STEP = 16  # Threads that are looked at in one step; each takes 0.1 to 0.3 ms.
TOTAL_MAX = 1000  # Threads of one status that are counted.

_ALL, _OPEN = "", "open"
_SOURCES = {"stuck": (_ALL, "failed", _OPEN), "waits": (_ALL, "waiting", "paused", ASKING)}
"""Where the threads that may be in a state are looked for: the catalog finds those of a status, those that ask, and those
with an open step, without looking at others. Until it knows them, and in any other state, all threads are looked at."""
_PLACE_CHARS, _HEXADECIMAL = 8, frozenset("0123456789abcdef")  # Of an open step in the cursor, before the name.
LEASES_MAX = 1000  # Of a space that are told with its work.
SUMMARIES_KEPT = 64  # Pages of summaries that are kept for whoever asks the same.
SUMMARIES_KEPT_MS = 10_000  # How long at most: time alone makes an open step old, and ends a lease.

_QUIET = "It asks nothing, and no step is open."
"""Whether its program still runs, or a graph has come to its end, nobody tells a node."""
_QUEUE_BYTES = 100  # The names of a queue's fields in JSON.
_TEXT_CHARS_MAX = 300  # Of a text that a person wrote, in a summary.
_METADATA_BYTES_MAX = 16 * 1024  # Of a checkpoint whose metadata are shown.
_SAID_MAX, _LINE_CHARS_MAX = 6, 120  # Of its metadata, and of the line that they make.
_TAGS_MAX, _BRANCHES_MAX, _STEPS_SHOWN, _STEPS_COUNTED = 16, 32, 3, 100
_FIELDS_BYTES = 500  # The names of a summary's fields in JSON.
_encoder = msgspec.msgpack.Encoder()


class Leases(Protocol):
    """The leases that this node knows."""

    def glimpsed(self, space: str, thread: str) -> LeaseState | None:
        """The lease of a thread, as this node was told last, without asking others; None: it was told nothing."""
        ...

    async def known(self, space: str) -> list[LeaseState]:
        """The leases of a space that are held, as this node was told last; it asks only for what it was never told."""
        ...


class _Kept(NamedTuple):
    """A page that was made when so many writes were made."""

    written: int
    reply: Summaries
    seen: list[str]  # The threads that were looked at.
    is_lasting: bool  # Whether only a write changes it: none of these threads has an open step, or is driven under a lease.


class Glances:
    """Answers `ListSummaries` and `ListWork`."""

    def __init__(
        self,
        database: Database,
        listings: Listings,
        *,
        now_ms: Callable[[], int],
        leases: Leases,
        written: Callable[[], int],
    ) -> None:
        """`written` counts the writes of this node, those of peers included."""
        self._written = written
        self._kept: dict[ListSummaries, _Kept] = {}
        self._database = database
        self._listings = listings
        self._now_ms = now_ms
        self._leases = leases
        self.answers: Answers = {ListSummaries: self._summaries, ListWork: self._work}

    async def _work(self, request: ListWork, bookmark: Bookmark) -> Work:
        check_name("space", request.space)
        await self._listings.reach_all(bookmark)
        seen: list[str] = []
        items, cursor = await in_turns(self._queues(request, seen))
        leases = [] if request.after else await self._leases.known(request.space)
        await self._listings.show(request.space, seen, bookmark)
        return Work(items, cursor, len(seen), leases[:LEASES_MAX], len(leases) > LEASES_MAX, self._now_ms())

    def _queues(self, request: ListWork, seen: list[str]) -> Steps[tuple[list[WorkQueue], str]]:
        """The queues of a page, whole threads of them, and the thread after which the next page begins."""
        names = self._database.catalog.names(
            request.space, Kind.THREAD, prefix=request.prefix, after=request.after or None, limit=LISTING_SCAN_MAX + 1
        )
        items: list[WorkQueue] = []
        size = 0
        for name in names[:LISTING_SCAN_MAX]:
            found = list(_queues_of(name, self._database.document(Target(Kind.THREAD, request.space, name)).rows))
            size += sum(len(_encoder.encode(each)) + _QUEUE_BYTES for each in found)
            is_full = len(items) + len(found) > self._listings.limit(request.limit) or size > SUMMARIES_BYTES_MAX
            if items and is_full:
                return items, seen[-1]
            seen.append(name)
            items += found
            if len(seen) % SUMMARIES_STEP == 0:
                yield
        return items, seen[-1] if len(names) > LISTING_SCAN_MAX else ""

    async def _summaries(self, request: ListSummaries, bookmark: Bookmark) -> Summaries:
        check_name("space", request.space)
        check_text(request.text, "a text to look for")
        await self._listings.reach_all(bookmark)
        now_ms, written = self._now_ms(), self._written()
        kept = self._kept.get(request)
        is_young = kept is not None and 0 <= now_ms - kept.reply.now_ms <= SUMMARIES_KEPT_MS
        if kept is None or kept.written != written or not (kept.is_lasting or is_young):
            seen: list[str] = []
            judging = _Judging(request, now_ms, self._leases.glimpsed)
            items, cursor = await in_turns(self._summarised(judging, seen))
            totals = {} if request.after else self._totals(request)
            kept = _Kept(written, Summaries(items, cursor, now_ms, totals), seen, not judging.is_timed)
            self._kept.pop(request, None)
            self._kept[request] = kept
            if len(self._kept) > SUMMARIES_KEPT:
                del self._kept[next(iter(self._kept))]
        await self._listings.show(request.space, kept.seen, bookmark)
        return kept.reply if is_young or kept.reply.now_ms == now_ms else msgspec.structs.replace(kept.reply, now_ms=now_ms)

    def _summarised(self, judging: _Judging, seen: list[str]) -> Steps[tuple[list[ThreadSummary], str]]:
        """A page, and the place after which the next one begins. `seen` gets the names of the threads that were looked at."""
        items: list[ThreadSummary] = []
        request, size, last = judging.request, 0, ""
        for place, name in self._candidates(request):
            if len(seen) == LISTING_SCAN_MAX:
                return items, last
            seen.append(name)
            summary = self._summary(judging, name)
            if summary is not None:
                size += len(_encoder.encode(summary)) + _FIELDS_BYTES
                if items and size > SUMMARIES_BYTES_MAX:
                    return items, last
                items.append(summary)
                if len(items) == self._listings.limit(request.limit):
                    return items, place
            last = place
            if len(seen) % SUMMARIES_STEP == 0:
                yield
        return items, ""

    def _summary(self, judging: _Judging, name: str) -> ThreadSummary | None:
        if not name.startswith(judging.request.prefix):
            return None
        try:
            target = Target(Kind.THREAD, judging.request.space, name)
            rows = self._database.document(target).rows
            return judging.summary(name, rows, open_asks(rows) if self._database.catalog.may_ask(target) else [])
        except StoreCorrupt as damage:
            return judging.damaged(name, damage)

    def _candidates(self, request: ListSummaries) -> Iterator[tuple[str, str]]:
        """The places and names of threads to look at: by status, if the wanted state has some, else all."""
        sources = _SOURCES.get(request.state, (_ALL,))
        number, after = _parsed(request.after, sources)
        if number > 0 and not self._database.catalog.is_indexed:  # It is the first page, or the one before is another node's.
            number, after = 0, None
        for nth in range(number, len(sources) if number > 0 else 1):
            found = self._opened(request, after) if sources[nth] == _OPEN else self._of_status(request, sources[nth], after)
            for place, name in found:
                yield f"{nth}/{place}", name
            after = None

    def _of_status(self, request: ListSummaries, status: str, after: str | None) -> Iterator[tuple[str, str]]:
        more = True
        while more:
            page = self._database.catalog.threads(
                request.space, status, prefix=request.prefix, after=after, limit=SUMMARIES_STEP
            )
            for name, may_match in page:
                after = name
                if may_match:
                    yield name, name
            more = len(page) == SUMMARIES_STEP

    def _opened(self, request: ListSummaries, after: str | None) -> Iterator[tuple[str, str]]:
        """Threads with an open step, the oldest first, whatever their names begin with."""
        place = b"" if after is None else bytes.fromhex(after[:_PLACE_CHARS]) + after[_PLACE_CHARS:].encode()
        more = True
        while more:
            page = self._database.catalog.opened(request.space, after=place, limit=SUMMARIES_STEP)
            for place, name in page:
                yield place[: -len(name.encode())].hex() + name, name
            more = len(page) == SUMMARIES_STEP

    def _totals(self, request: ListSummaries) -> dict[str, int]:
        """Threads by status, as far as the catalog lists them under one; `all` is all threads."""
        space, catalog = request.space, self._database.catalog
        counted = (
            {"all": catalog.names(space, Kind.THREAD, prefix="", after=None, limit=TOTAL_MAX)}
            | {each: catalog.threads(space, each, prefix="", after=None, limit=TOTAL_MAX) for each in STATUS_CODES}
            if catalog.is_indexed
            else {}
        )
        return {each: len(found) for each, found in counted.items()}


def _parsed(cursor: str, sources: Sequence[str]) -> tuple[int, str | None]:
    """The source and the place in the cursor of a page of summaries.

    Raises:
        InvalidInput: it is none.
    """
    if not cursor:
        return min(1, len(sources) - 1), None
    number, slash, place = cursor.partition("/")
    is_one = bool(slash) and number.isdecimal() and len(number) == 1 and int(number) < len(sources)
    begins = _PLACE_CHARS if is_one and sources[int(number)] == _OPEN else 0
    if not is_one or not set(place[:begins]) <= _HEXADECIMAL:
        raise InvalidInput("`after` is not the cursor of an earlier page. Nothing was written.", field="after")
    check_name("thread", place[begins:])
    return int(number), place


class _Verdict(NamedTuple):
    """The state of a thread, with the reason."""

    state: ThreadState
    says: str
    since_ms: int


class _Judging:
    """Makes the summaries of one request, at one time."""

    def __init__(self, request: ListSummaries, now_ms: int, lease: Callable[[str, str], LeaseState | None]) -> None:
        self.request = request
        self._now_ms = now_ms
        self._lease = lease
        self._text = request.text.casefold()
        self.is_timed = False
        """Whether one that was looked at may be judged otherwise although nothing is written."""

    def summary(self, name: str, rows: Rows, asks: Sequence[Ask]) -> ThreadSummary | None:
        """The summary of a thread with these questions; None if it is not asked for.

        Raises:
            StoreCorrupt: a row cannot be decoded.
        """
        request = self.request
        standing = status.current(rows) or status.StatusRecord("running")
        keys = [step for _, step in islice(status.listing(rows, only_open=True), _STEPS_COUNTED)]
        mark = marked(rows)
        lease = self._lease(request.space, name) if mark is not None else None
        driven = mark is not None and not mark.over and (lease is None or lease.until_ms > self._now_ms)
        steps = [_open_step(rows, step) for step in keys[:_STEPS_SHOWN]]
        self.is_timed |= bool(keys) or (mark is not None and not mark.over)
        asked = questions(asks) if standing.status == "running" else []
        verdict = self._judged(standing, steps, asked, mark is not None, driven)
        if request.state not in ("", verdict.state):
            return None
        branches = {row[1:].decode(): heads for row, heads in rows.scan(dag.BRANCH, limit=_BRANCHES_MAX)}
        newest = max((dag.heads(rows, branch)[0] for branch in branches), default=None)
        found = None if newest is None else dag.checkpoint(rows, newest.id)
        told = {} if found is None else _told(found.record.metadata)
        summary = ThreadSummary(
            name,
            verdict.state,
            verdict.says,
            standing.status,
            verdict.since_ms or (0 if found is None else found.wall_ms),
            _cut(standing.by),
            _cut(asked[0].says) if asked else _cut(standing.reason) if standing.status == "waiting" else "",
            _cut(mark.holder) if driven and mark is not None else "",
            driven,
            "" if found is None else found.id.hex(),
            0 if found is None else found.wall_ms,
            "" if found is None else found.record.branch,
            "" if found is None else _cut(found.record.author),
            "" if found is None else found.record.label,
            _tags(told),
            list(branches),
            steps,
            len(keys),
            "" if found is None else _line(told) or _changes(rows, found.record),
            asked,
        )
        return summary if self._matches(summary) else None

    def damaged(self, name: str, damage: StoreCorrupt) -> ThreadSummary | None:
        """The summary of a thread whose rows cannot be read."""
        says = f"It is not known: {_cut(damage.message)}"
        summary = ThreadSummary(name, "unknown", says, "running")
        return summary if self.request.state in ("", "unknown") and self._matches(summary) else None

    def _judged(
        self,
        standing: status.StatusRecord,
        steps: Sequence[OpenStep],
        asked: Sequence[Question],
        was_driven: bool,
        driven: bool,
    ) -> _Verdict:
        reason = f": {_cut(standing.reason)}" if standing.reason else ""
        by = f" by {_cut(standing.by)}" if standing.by else ""
        match standing.status:
            case "failed":
                return _Verdict("stuck", f"It failed{reason}", standing.wall_ms)
            case "waiting":
                return _Verdict("waits", f"It asks{reason or ' for an approval'}", standing.wall_ms)
            case "paused":
                return _Verdict("waits", f"It was paused{by}{reason}", standing.wall_ms)
            case "done":
                return _Verdict("well", "It is done.", standing.wall_ms)
        oldest = steps[0] if steps else None
        if oldest is not None and was_driven and not driven:
            says = f"Step {oldest.name!r} is open, and nobody holds the lease of the thread any more."
            return _Verdict("stuck", says, oldest.begun_ms)
        if oldest is not None and self._now_ms - oldest.begun_ms >= self.request.stuck_after_ms:
            return _Verdict("stuck", f"Step {oldest.name!r} is open for long: its outcome is not known.", oldest.begun_ms)
        if asked:
            return _Verdict("waits", _asks(asked), asked[0].asked_ms)
        if oldest is None:
            return _Verdict("well", "It runs." if driven else _QUIET, 0)
        return _Verdict("well", f"Step {oldest.name!r} is under way.", oldest.begun_ms)

    def _matches(self, summary: ThreadSummary) -> bool:
        request = self.request
        if request.author and request.author not in (summary.author, summary.by):
            return False
        if request.tag and request.tag not in summary.tags:
            return False
        if not self._text:
            return True
        texts = (summary.name, summary.says, summary.asks, summary.label, summary.author, summary.by, summary.driver)
        named = (text for step in summary.steps for text in (step.name, step.key, step.holder))
        return any(self._text in text.casefold() for text in (*texts, *summary.tags, *named))


def _asks(asked: Sequence[Question]) -> str:
    more = f" And {len(asked) - 1} more." if len(asked) > 1 else ""
    if all(each.answered for each in asked):
        return f"It was answered, and the step that asked has not ended: {_cut(asked[0].says)}{more}"
    return f"It asks: {_cut(asked[0].says)}{more}"


def _queues_of(thread: str, rows: Rows) -> Iterator[WorkQueue]:
    """The queues of a thread that hold or held something."""
    waiting = queues.counts(rows, queues.INBOX)
    if waiting != queues.Counts():
        yield WorkQueue(thread, "", *waiting)
    for name, counts in queues.worklists(rows):
        yield WorkQueue(thread, name, *counts)


def _open_step(rows: Rows, key: str) -> OpenStep:
    entry = status.find(rows, key)
    if entry is None:
        raise StoreCorrupt(f"step {key!r} is missing from the step log. Run `shoal verify`.")
    last = max(entry.open_attempts, key=lambda attempt: attempt.position, default=entry.first)
    return OpenStep(key, entry.first.name, entry.first.wall_ms, _cut(last.holder))


def _told(metadata: bytes) -> dict[Any, Any]:
    """Metadata; nothing if it is large, so that a page costs little."""
    if len(metadata) > _METADATA_BYTES_MAX:
        return {}
    try:
        told = values.decode(metadata)
    except InvalidValue:
        return {}
    return told if isinstance(told, dict) else {}


def _line(told: dict[Any, Any]) -> str:
    """The texts and numbers of metadata, in a line, but for those that Shoal itself needs."""
    said = (
        f"{name} {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in told.items()
        if isinstance(value, str | int | float) and value != "" and not str(name).startswith("shoal.")
    )
    return _cut(", ".join(islice(said, _SAID_MAX)), _LINE_CHARS_MAX)


def _changes(rows: Rows, record: dag.Record) -> str:
    """The channels that a checkpoint changed, in a line."""
    parent = dag.checkpoint(rows, record.parents[0]) if record.parents else None
    names = changed(None if parent is None else parent.record, record)
    return _cut(f"changed {', '.join(names)}", _LINE_CHARS_MAX) if names else ""


def _tags(told: dict[Any, Any]) -> list[str]:
    """The texts in the list `tags` of metadata."""
    tags = told.get("tags")
    return [_cut(tag) for tag in islice(tags, _TAGS_MAX) if isinstance(tag, str)] if isinstance(tags, list) else []


def _cut(text: str, most: int = _TEXT_CHARS_MAX) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
