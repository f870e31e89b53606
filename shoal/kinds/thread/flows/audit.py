"""A thread as one time line: its checkpoints, events and steps, with their authors.

Law: entries are in the order of the nodes' clocks, so that differences of the clocks are visible; within a
millisecond checkpoints come before events, and events before steps, and a checkpoint's parents come before it.
Each entry names the newest checkpoint before it, the most that its author could know of this thread.

Law: what was done in a space is told in one order of time, the newest first, of all its threads. A page is held of each group
of threads, of `GROUPS_MAX` groups at most, so that memory is bounded: a larger space is told in parts, in byte order of names.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from datetime import datetime
from graphlib import TopologicalSorter
from typing import Any, Literal, TypeVar

from msgspec import Struct, structs

from shoal import values
from shoal.kinds.journal.flows import Event, events
from shoal.kinds.step.flows import StepRecord, steps
from shoal.kinds.thread.flows.checkpoints import Checkpoint, ThreadCheckpoints, is_id
from shoal.protocol import requests
from shoal.workflows.connection import Connection, moment

T = TypeVar("T")

AuditKind = Literal["checkpoint", "event", "step"]
_RANKS: dict[AuditKind, int] = {"checkpoint": 0, "event": 1, "step": 2}
LISTED_MAX = 10_000
"""The bound for each of them: checkpoints, events, steps."""
GROUPS_MAX = 100
"""Groups of threads whose entries are merged, a page of each in memory: 50,000 threads, as nodes group them."""


class AuditEntry(Struct, frozen=True):
    """An entry of a thread's audit."""

    time: datetime
    kind: AuditKind
    text: str
    by: str
    known: str  # The newest checkpoint before it; empty if there was none.
    id: str  # The id of the checkpoint or the event, or the key of the step.
    data: Any  # A checkpoint's metadata, an event's value, or a step's arguments, result or error.


async def audit(checkpoints: ThreadCheckpoints) -> list[AuditEntry]:
    """Checkpoints, the journal's events (moves and decisions among them) and steps, oldest first.

    Checkpoints are those that lead to a head, to a labelled one, or to one that a rollback or a deleted branch left behind.
    """
    connection, space, thread = checkpoints.connection, checkpoints.space, checkpoints.thread
    starts = [head for heads in (await checkpoints.heads()).values() for head in heads]
    told = [event async for event in events(connection, space, thread, limit=LISTED_MAX)]
    starts += [id for event in told for id in _left_behind(event)]
    starts += [id async for _, id in checkpoints.labels()]
    saved = {each.id: each async for each in _first(checkpoints.reachable(starts))}
    causally = TopologicalSorter({id: each.parents for id, each in saved.items()}).static_order()
    entries = [_of_checkpoint(saved[id]) for id in causally if id in saved]
    entries += [_of_event(event) for event in told]
    async for record in _first(steps(connection, space, thread)):
        entries += _of_step(record)
    entries.sort(key=lambda entry: (entry.time, _RANKS[entry.kind]))
    return list(_with_known(entries))


async def _first(source: AsyncIterator[T]) -> AsyncIterator[T]:
    """At most LISTED_MAX items."""
    count = 0
    async for each in source:
        yield each
        count += 1
        if count == LISTED_MAX:
            return


def _left_behind(event: Event) -> Iterator[str]:
    """The heads that a branch lost by a rollback or its deletion, if the event describes one. A user's may look like one."""
    told = event.event
    if isinstance(told, dict) and told.get("kind") in ("rollback", "delete-branch") and isinstance(told.get("from"), list):
        yield from (id for id in told["from"] if isinstance(id, str) and is_id(id))


def _of_checkpoint(checkpoint: Checkpoint) -> AuditEntry:
    text = f"saved on {checkpoint.branch}" + (f", joining {len(checkpoint.parents)}" if len(checkpoint.parents) > 1 else "")
    return AuditEntry(checkpoint.time, "checkpoint", text, checkpoint.author, "", checkpoint.id, checkpoint.metadata)


def _of_event(event: Event) -> AuditEntry:
    held = event.event
    kind, by = (held.get("kind"), held.get("by")) if isinstance(held, dict) else (None, None)
    text = kind if isinstance(kind, str) else "event, its value erased" if event.erased else "event"
    return AuditEntry(event.time, "event", text, by if isinstance(by, str) else "", "", event.id, held)


def _of_step(record: StepRecord) -> Iterator[AuditEntry]:
    for attempt in record.attempts:
        yield AuditEntry(attempt.begun, "step", f"{record.name} begun", attempt.holder, "", record.key, record.arguments)
        if attempt.error is not None and attempt.ended is not None:
            yield AuditEntry(
                attempt.ended, "step", f"{record.name} failed", attempt.holder, "", record.key, dict(attempt.error)
            )
    if record.ended is not None:
        yield AuditEntry(record.ended, "step", f"{record.name} done", record.result_by, "", record.key, record.result)


def _with_known(entries: list[AuditEntry]) -> Iterator[AuditEntry]:
    known = ""
    for entry in entries:
        yield AuditEntry(entry.time, entry.kind, entry.text, entry.by, known, entry.id, entry.data)
        known = entry.id if entry.kind == "checkpoint" else known


class Moment(Struct, frozen=True):
    """Something that was done in a thread."""

    time: datetime
    thread: str
    kind: AuditKind
    id: str  # The id of the checkpoint or the event, or the key of the step.
    text: str  # The branch that a checkpoint was saved on, the kind of an event, or the name of a step.
    by: str  # Of a step, the holder of its last attempt; empty if nobody was named.
    token: str  # The id of the token under which it was written; empty: there was none, or its operation has left the log.
    state: str  # Of a step, as in its record; else empty.
    ended: datetime | None  # Of a step.
    label: str  # Of a checkpoint.
    parents: list[str]  # Of a checkpoint.
    changed: list[str]  # Channels of a checkpoint that differ from its first parent's.
    data: Any  # A checkpoint's metadata, an event's value, or a step's result or error; None if it is large, or erased.
    whole: bool  # False: the data is too large to be told here.
    erased: bool  # Whether the value of the event was erased.
    redacted: list[requests.Replaced]  # What was replaced before it was stored, by rules of redaction.


async def moments(connection: Connection, request: requests.ReadTimeline | requests.ReadSpaceAudit) -> AsyncIterator[Moment]:
    """All that was done, the newest first."""
    async with aclosing(entries_of(connection, request)) as entries:
        async for entry in entries:
            yield Moment(
                moment(entry.wall_ms),
                entry.thread,
                entry.kind,
                entry.id,
                entry.text,
                entry.by,
                entry.token,
                entry.state,
                moment(entry.ended_ms) if entry.ended_ms else None,
                entry.label,
                entry.parents,
                entry.changed,
                values.decode(entry.data),
                entry.whole,
                entry.erased,
                entry.redacted,
            )


async def entries_of(
    connection: Connection, request: requests.ReadTimeline | requests.ReadSpaceAudit
) -> AsyncGenerator[requests.TimelineEntry]:
    """All that was done, as nodes tell it, the newest first: of a space in one order of all its threads."""
    after = request.after
    while True:
        groups: list[_Group] = []
        while len(groups) < GROUPS_MAX:
            page = await connection.read(structs.replace(request, after=after))
            groups.append(_Group(len(groups), connection, request, page))
            after = page.others
            if not after:
                break
        heap = [(*group.place, group) for group in groups if await group.is_filled()]
        heapq.heapify(heap)
        while heap:
            group = heap[0][-1]
            yield group.taken()
            if await group.is_filled():
                heapq.heapreplace(heap, (*group.place, group))
            else:
                heapq.heappop(heap)
        if not after:
            return


class _Group:
    """Some hundred threads, and a page of the things that were done in them."""

    def __init__(
        self,
        number: int,
        connection: Connection,
        request: requests.ReadTimeline | requests.ReadSpaceAudit,
        page: requests.Timeline,
    ) -> None:
        self._number = number
        self._connection = connection
        self._request = request
        self._page = page
        self._next = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """The place of the entry that comes next: the newest is the least. No two groups have the same."""
        entry = self._page.items[self._next]
        return -entry.wall_ms, _RANKS[entry.kind], self._number

    async def is_filled(self) -> bool:
        """Whether there is an entry that comes next. A page may be empty although more come."""
        while self._next == len(self._page.items):
            if self._page.cursor == self._page.others:  # Then the next group would follow, or nothing.
                return False
            self._page, self._next = await self._connection.read(structs.replace(self._request, after=self._page.cursor)), 0
        return True

    def taken(self) -> requests.TimelineEntry:
        """The entry that comes next, which is passed over then."""
        self._next += 1
        return self._page.items[self._next - 1]


def event_record(event: Event) -> dict[str, Any]:
    """The record of an event, without its type and thread."""
    record = {"id": event.id, "key": event.key, "time": event.time.isoformat(), "late": event.late, "event": event.event}
    return record | {"erased": True} if event.erased else record


def step_record(record: StepRecord) -> dict[str, Any]:
    """The record of a step, without its type and thread."""
    return {
        "key": record.key,
        "name": record.name,
        "state": record.state,
        "begun": record.begun.isoformat(),
        "ended": record.ended.isoformat() if record.ended else None,
        "holder": record.holder,
        "since": record.since.isoformat(),
        "parent": record.parent,
        "compensation": record.compensation,
        "failures": record.failures,
        "attempts": [
            {"id": attempt.id, "state": attempt.state, "holder": attempt.holder, "begun": attempt.begun.isoformat()}
            for attempt in record.attempts
        ],
        "arguments": record.arguments,
        "progress": record.progress,
        "error": dict(record.error) if record.error else None,
        "result": record.result,
        "result_by": record.result_by,
        "conflicts": record.conflicts,
    }
