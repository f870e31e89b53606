"""The tools of threads and their journals.

Laws:
- A whole state is saved only on the head that the caller names, so that no agent replaces work that it has not seen.
- Secret fields are hidden. A thread that has some is not written here, because what was hidden would be lost.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import aclosing
from typing import Annotated, Any

from msgspec import Meta, field

from shoal import values
from shoal.errors import InvalidInput, InvalidValue, NotFound
from shoal.integrations.mcp.views import Answer, Arguments, Call, Limit, Writing, reads, writes
from shoal.kinds.journal.handle import append_request
from shoal.kinds.thread.flows.checkpoints import Checkpoint

Name = Annotated[str, Meta(description="The thread's name.")]
Branch = Annotated[str, Meta(description="The thread's branch.")]
Metadata = Annotated[dict[str, Any], Meta(description="Small values about this checkpoint, shown in the history.")]


class LoadThread(Arguments):
    """Which state to load."""

    thread: Name
    branch: Branch = "main"
    checkpoint: Annotated[str, Meta(description="The id of an older checkpoint; left out: the newest.")] = ""
    channels: Annotated[list[str] | None, Meta(description="Only these parts of the state.")] = None


@reads
async def load_thread(call: Call, given: LoadThread) -> Answer:
    """Load the state of a thread: an agent's work so far. The answer's `id` is the `expect_head` of a later save."""
    found = await call.space.thread(given.thread).load(
        given.checkpoint or None,
        branch=given.branch if not given.checkpoint else None,
        channels=given.channels,
    )
    return {**_described(found), "heads": list(found.heads), "state": values.to_json(found.redacted)}


class SaveThread(Writing):
    """A whole state."""

    thread: Name
    state: Annotated[dict[str, Any], Meta(description="The whole state: named channels, each any JSON.")]
    expect_head: Annotated[
        str,
        Meta(description='The `id` that load_thread or the last save answered; "" for a thread that does not exist yet.'),
    ]
    branch: Branch = "main"
    metadata: Metadata = field(default_factory=dict)


@writes(destructive=True, idempotent=True)
async def save_thread(call: Call, given: SaveThread) -> Answer:
    """Save a thread's whole state as a new checkpoint. It is refused with HeadMoved if somebody saved meanwhile: load again."""
    await _check_nothing_hidden(call, given.thread, given.branch)
    saved = await call.space.thread(given.thread, author=call.author).save(
        _value(given.state),
        metadata=_value(given.metadata),
        branch=given.branch,
        expect_head=given.expect_head,
        key=call.key,
    )
    return _described(saved)


class EditThread(Writing):
    """Changes of parts of a state."""

    thread: Name
    set: Annotated[dict[str, Any], Meta(description="Channels to replace, with their new values.")] = field(
        default_factory=dict
    )
    append: Annotated[dict[str, list[Any]], Meta(description="Channels that are lists, with elements to add at the end.")] = (
        field(default_factory=dict)
    )
    remove: Annotated[list[str], Meta(description="Channels to remove.")] = field(default_factory=list)
    expect_head: Annotated[
        str | None, Meta(description="Only if this is the branch's head; left out: whatever the head is.")
    ] = None
    branch: Branch = "main"
    metadata: Metadata = field(default_factory=dict)


@writes(destructive=True)
async def edit_thread(call: Call, given: EditThread) -> Answer:
    """Change parts of a thread's state as a new checkpoint, and leave everything else as it is. Nobody's save is lost by it."""
    saved = await call.space.thread(given.thread, author=call.author).update(
        _value(given.set),
        append=_value(given.append),
        remove=given.remove,
        metadata=_value(given.metadata),
        branch=given.branch,
        expect_head=given.expect_head,
        key=call.key,
    )
    return _described(saved)


class ThreadHistory(Arguments):
    """Which checkpoints to list."""

    thread: Name
    branch: Branch = "main"
    before: Annotated[str, Meta(description="Continue before this checkpoint's id.")] = ""
    limit: Limit = 20


@reads
async def thread_history(call: Call, given: ThreadHistory) -> Answer:
    """List a thread's checkpoints, the newest first: their ids, times, authors and metadata."""
    found = call.space.thread(given.thread).history(branch=given.branch, before=given.before or None, limit=given.limit)
    return {"checkpoints": [{**_described(each), "time": each.time.isoformat(), "author": each.author} async for each in found]}


class AppendJournal(Writing):
    """An event."""

    thread: Name
    event: Annotated[Any, Meta(description="What happened: any JSON.")]


@writes()
async def append_journal(call: Call, given: AppendJournal) -> Answer:
    """Append an event to a thread's journal, which keeps events in order and never changes them."""
    # A key that the caller chose is the event's own, and is known as long as the event.
    own = given.idempotency_key or None
    request = append_request(call.space.name, given.thread, _value(given.event), key=own)
    reply = await call.connection.write(request, key=None if own else call.key, durability=None)
    return {"id": reply.id, "appended": reply.appended}


class ReadJournal(Arguments):
    """Which events to read."""

    thread: Name
    after: Annotated[str, Meta(description="The `cursor` of the last answer: only events that it does not cover.")] = ""
    limit: Limit = 100


@reads
async def read_journal(call: Call, given: ReadJournal) -> Answer:
    """Read the events of a thread's journal in order, from the first or after a cursor."""
    journal = call.space.thread(given.thread).journal
    found = []
    cursor = given.after
    async with aclosing(journal.read(after=_cursor(given.after), limit=given.limit)) as events:
        async for each in events:
            told = {"id": each.id, "time": each.time.isoformat(), "event": values.to_json(each.event)}
            found.append(told | {"erased": True} if each.erased else told)
            cursor = base64.urlsafe_b64encode(each.cursor).decode()
    return {"events": found, "cursor": cursor}


TOOLS = (load_thread, save_thread, edit_thread, thread_history, append_journal, read_journal)


async def _check_nothing_hidden(call: Call, thread: str, branch: str) -> None:
    """Refuse to write a whole state over one with secret fields: what a client was not shown, it cannot save again."""
    try:
        head = await call.space.thread(thread).load(branch=branch, channels=[])
    except NotFound:
        return
    if head.secret:
        raise InvalidInput(
            f"thread {thread!r} has secret fields ({', '.join(head.secret)}), which this server hides. Nothing was written. "
            "Change other channels with edit_thread."
        )


def _described(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "id": checkpoint.id,
        "parents": list(checkpoint.parents),
        "branch": checkpoint.branch,
        "metadata": values.to_json(checkpoint.metadata),
    }


def _cursor(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True) or None
    except (binascii.Error, ValueError):
        raise InvalidValue(
            f"{text[:80]!r} is no cursor of a journal. Nothing was read. Give the `cursor` of an earlier answer, or none."
        ) from None


def _value(given: Any) -> Any:
    return values.from_json(given)
