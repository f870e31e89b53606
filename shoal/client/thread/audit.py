"""One time line of a thread: what was known, done and decided, and by whom.

Law: entries are in the order of the nodes' clocks, whose differences show; within a
millisecond what was known comes before what was done. Each entry names the newest
checkpoint before it: what whoever acted could know of this thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from shoal.client.arguments import named
from shoal.client.thread.journal import Journal
from shoal.client.thread.steps import ThreadSteps
from shoal.errors import NotFound
from shoal.protocol import requests
from shoal.workflows.checkpoint import Checkpoint, is_id, shown_checkpoint
from shoal.workflows.events import Event
from shoal.workflows.steps import StepRecord

AuditKind = Literal["checkpoint", "event", "step"]
_RANKS: dict[AuditKind, int] = {"checkpoint": 0, "event": 1, "step": 2}
LISTED_MAX = 10_000
"""Of each: checkpoints of a branch, events, steps."""


class AuditEntry(Struct, frozen=True):
    time: datetime
    kind: AuditKind
    text: str
    by: str
    known: str  # The newest checkpoint before it; empty: there was none.
    id: str  # Of the checkpoint or the event; a step's key.
    data: Any  # A checkpoint's metadata, the event, or a step's result or error.


@named
class ThreadAudit(ThreadSteps):
    """What a `Thread` offers to who wants to know how it came about."""

    journal: Journal

    def history(
        self, *, branch: str = "main", before: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Checkpoint]:
        """See `Thread.history`."""
        raise NotImplementedError

    def labels(self) -> AsyncIterator[tuple[str, str]]:
        """See `Thread.labels`."""
        raise NotImplementedError

    async def audit(self) -> list[AuditEntry]:
        """Checkpoints, the journal's events (moves and decisions among them) and steps, oldest first.

        Checkpoints are those that lead to a head, to what is labelled, or to what a rollback left behind.
        """
        found = await self._connection.read(requests.Heads(self.space, self.name))
        events = [event async for event in self.journal.read(limit=LISTED_MAX)]
        starts = [head for heads in found.branches.values() for head in heads]
        starts += [id for event in events for id in _left_behind(event)]
        starts += [id async for _, id in self.labels()]
        entries = [_of_checkpoint(checkpoint) for checkpoint in await self._leading_to(starts)]
        entries += [_of_event(event) for event in events]
        steps = 0
        async for record in self.steps():
            entries += _of_step(record)
            steps += 1
            if steps == LISTED_MAX:
                break
        entries.sort(key=lambda entry: (entry.time, _RANKS[entry.kind]))
        return list(_with_known(entries))

    async def _leading_to(self, starts: list[str]) -> list[Checkpoint]:
        """Each once, and not more than LISTED_MAX; of what was pruned, nothing."""
        found: dict[str, Checkpoint] = {}
        while starts and len(found) < LISTED_MAX:
            start = starts.pop()
            if start in found:
                continue
            try:
                first = await self._connection.read(requests.Load(self.space, self.name, start, channels=[]))
            except NotFound:
                continue
            assert isinstance(first, requests.Checkpoint)
            found[start] = shown_checkpoint(first, channels=False)
            starts.extend(first.parents[1:])
            async for older in self.history(before=start, limit=LISTED_MAX - len(found)):
                if older.id in found:
                    break
                found[older.id] = older
                starts.extend(older.parents[1:])
        return list(found.values())


def _left_behind(event: Event) -> Iterator[str]:
    """The heads that a move took from a branch, if it tells of one; anybody may append an event that only looks so."""
    told = event.event
    if isinstance(told, dict) and told.get("kind") == "rollback" and isinstance(told.get("from"), list):
        yield from (id for id in told["from"] if isinstance(id, str) and is_id(id))


def _of_checkpoint(checkpoint: Checkpoint) -> AuditEntry:
    text = f"saved on {checkpoint.branch}" + (f", joining {len(checkpoint.parents)}" if len(checkpoint.parents) > 1 else "")
    return AuditEntry(checkpoint.time, "checkpoint", text, checkpoint.author, "", checkpoint.id, checkpoint.metadata)


def _of_event(event: Event) -> AuditEntry:
    held = event.event
    kind, by = (held.get("kind"), held.get("by")) if isinstance(held, dict) else (None, None)
    text = kind if isinstance(kind, str) else "event"
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
