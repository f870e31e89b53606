"""A thread as records, each a map of plain values. `shoal export` and `GET …/export` write one per line.

Laws:
- A record is yielded as soon as it is read. Of a thread of any size, only one page of
  checkpoints (`page_bytes_max`) and the ids of checkpoints are in memory.
- Secret fields are hidden. docs/EXPORT.md describes the records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from shoal.kinds.journal.flows.events import Event, events
from shoal.kinds.step.flows.steps import StepRecord, steps
from shoal.kinds.thread.flows.checkpoint import Checkpoint
from shoal.kinds.thread.flows.checkpoints import ThreadCheckpoints
from shoal.version import __version__
from shoal.workflows.connection import Connection
from shoal.workflows.spaces import check_exists, names

FORMAT = 1


async def export(connection: Connection, space: str, thread: str | None = None) -> AsyncGenerator[dict[str, Any], None]:
    """The records of a thread, or of all threads of a space.

    Raises:
        NotFound: there is no such thread.
    """
    if thread is not None:
        await check_exists(connection, space, thread)
    yield {"type": "export", "format": FORMAT, "shoal": __version__, "space": space}
    if thread is not None:
        async for record in _records(ThreadCheckpoints(connection, space, thread)):
            yield record
        return
    async for name in names(connection, space, "thread"):
        async for record in _records(ThreadCheckpoints(connection, space, name)):
            yield record


async def _records(checkpoints: ThreadCheckpoints) -> AsyncIterator[dict[str, Any]]:
    connection, space, thread = checkpoints.connection, checkpoints.space, checkpoints.thread
    for name, heads in (await checkpoints.heads()).items():
        yield {"type": "branch", "thread": thread, "name": name, "heads": heads}
    async for label, id in checkpoints.labels():
        yield {"type": "label", "thread": thread, "label": label, "checkpoint": id}
    async for checkpoint in checkpoints.reachable(states=True):
        yield _checkpoint_record(thread, checkpoint)
    async for event in events(connection, space, thread):
        yield {"type": "event", "thread": thread, **event_record(event)}
    async for record in steps(connection, space, thread):
        yield {"type": "step", "thread": thread, **step_record(record)}


def _checkpoint_record(thread: str, checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "type": "checkpoint",
        "thread": thread,
        "id": checkpoint.id,
        "parents": list(checkpoint.parents),
        "branch": checkpoint.branch,
        "time": checkpoint.time.isoformat(),
        "author": checkpoint.author,
        "label": checkpoint.label,
        "schema": checkpoint.schema,
        "schema_version": checkpoint.schema_version,
        "metadata": checkpoint.metadata,
        "state": checkpoint.redacted,
    }


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
