"""A thread as records, each a map of plain values: what `shoal export` and `GET …/export` write, one a line.

Laws:
- A record is given as soon as it is read: whatever a thread holds, one page of its
  checkpoints is in memory at a time (`page_bytes_max`), and their ids.
- Secret fields are hidden. docs/EXPORT.md describes the records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from shoal.client.store import Space
from shoal.client.thread.thread import Thread
from shoal.errors import NotFound, Pruned
from shoal.version import __version__
from shoal.workflows.checkpoint import Checkpoint
from shoal.workflows.events import Event
from shoal.workflows.steps import StepRecord

FORMAT = 1


async def export(space: Space, thread: str | None = None) -> AsyncGenerator[dict[str, Any], None]:
    """The records of a thread, or of all threads of a space.

    Raises:
        NotFound: there is no such thread.
    """
    if thread is not None:
        await check_exists(space, thread)
    yield {"type": "export", "format": FORMAT, "shoal": __version__, "space": space.name}
    if thread is not None:
        async for record in _records(space.thread(thread)):
            yield record
        return
    async for name in space.threads():
        async for record in _records(space.thread(name)):
            yield record


async def check_exists(space: Space, thread: str) -> None:
    """
    Raises:
        NotFound: nothing was ever written to a thread of this name, or it was deleted.
    """
    async for name in space.threads(thread):
        if name == thread:  # In byte order the name itself is the first.
            return
        break
    raise NotFound(
        f"there is no thread {thread!r} in space {space.name!r}. List the threads of the space to see those there are."
    )


async def _records(thread: Thread) -> AsyncIterator[dict[str, Any]]:
    branches = await thread.heads()
    for name, heads in branches.items():
        yield {"type": "branch", "thread": thread.name, "name": name, "heads": heads}
    async for label, id in thread.labels():
        yield {"type": "label", "thread": thread.name, "label": label, "checkpoint": id}
    async for checkpoint in checkpoints(thread, states=True):
        yield _checkpoint_record(thread.name, checkpoint)
    async for event in thread.journal.read():
        yield {"type": "event", "thread": thread.name, **event_record(event)}
    async for step in thread.steps():
        yield {"type": "step", "thread": thread.name, **step_record(step)}


async def checkpoints(thread: Thread, *, states: bool = False, limit: int | None = None) -> AsyncIterator[Checkpoint]:
    """All that lead to a thread's heads and labels, each once; a child before its parents, where they are on one line.

    With `limit` not more than the newest so many of each line.
    """
    starts = [head for heads in (await thread.heads()).values() for head in heads]
    starts += [id async for _, id in thread.labels()]
    seen: set[str] = set()
    while starts:
        start = starts.pop()
        if start in seen:
            continue
        try:
            found = await thread.load(start, channels=None if states else [])
        except Pruned:
            continue
        seen.add(start)
        starts.extend(found.parents[1:])
        yield found
        async for older in thread.history(before=start, states=states, limit=None if limit is None else limit - 1):
            if older.id in seen:
                break
            seen.add(older.id)
            starts.extend(older.parents[1:])
            yield older


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
    return {"id": event.id, "key": event.key, "time": event.time.isoformat(), "late": event.late, "event": event.event}


def step_record(record: StepRecord) -> dict[str, Any]:
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
