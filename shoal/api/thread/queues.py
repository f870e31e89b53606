"""Inboxes and worklists over HTTP."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct
from msgspec.structs import astuple

from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.thread.journals import waited
from shoal.api.thread.threads import moment_ms
from shoal.errors import InvalidInput, NotFound
from shoal.protocol.fields import Elements
from shoal.protocol.requests import (
    Dequeue,
    Enqueue,
    ListWorklists,
    QueueEntries,
    QueueEntry,
    QueueItem,
    QueuePlan,
    ReadQueue,
    ReadQueueEntry,
)
from shoal.workflows.queues import item_id, purge

INBOX = ""  # The inbox's name as a queue.


class SendBody(Struct, forbid_unknown_fields=True):
    """A message to a thread."""

    message: Raw
    key: str | None = None
    by: str = ""


class SentView(Struct):
    """The message's id, and whether it is new."""

    id: str
    sent: bool  # False if its key was sent before.


class TakeBody(Struct, forbid_unknown_fields=True):
    """The client that takes a message."""

    by: str = ""


class TakenView(Struct):
    """The message that the client took."""

    id: str
    by: str


class ForgetBody(Struct, forbid_unknown_fields=True):
    """The age of finished entries to forget."""

    before: datetime  # With a time zone: forget entries that were taken or done before it.


class ForgottenView(Struct):
    """The number of entries that were forgotten."""

    count: int


class QueueQuery(ReadQuery, forbid_unknown_fields=True):
    """A page of a queue."""

    after: str = ""  # The `place` of the last entry of the previous answer.
    limit: Annotated[int, Meta(ge=1)] = 100
    finished: bool = False  # List entries that were taken or done, instead of those that wait.
    dead: bool = False  # List dead letters, instead of entries that wait.


class FinishView(Struct):
    """One finish of an entry."""

    by: str
    wall_ms: int
    result: Raw


class TryView(Struct):
    """The last time that an entry was claimed, or given back."""

    attempt: int  # How often it was claimed by then.
    state: str  # "claimed", "waiting" or "dead". If a claim has ended by itself, it still says "claimed".
    by: str  # The worker's name.
    wall_ms: int
    fence: int  # The claim's fencing number.
    reason: str  # Why it was given back, or is a dead letter.
    not_before_ms: int  # Nobody gets it earlier.


class InboxQuery(QueueQuery, forbid_unknown_fields=True):
    """A page of the inbox, and how long to wait for its first message."""

    wait: Annotated[float, Meta(ge=0)] = 0  # Seconds to wait for a message if there is none yet.


class QueueEntryView(Struct):
    """One entry of a queue."""

    id: str
    place: str
    key: str | None
    by: str
    wall_ms: int
    value: Raw
    finishes: list[FinishView]  # The first one counts; there are several if it was finished concurrently.
    others: list[Raw]  # Other values that were put under its key concurrently.
    tried: TryView | None  # Null if nobody has claimed it.


class QueueView(Struct):
    """A page of a queue, in order."""

    entries: list[QueueEntryView]
    more: bool
    pending: int  # In the whole queue.
    finished: int
    dead: int  # Dead letters, in the whole queue.


class WorklistView(Struct):
    """A worklist and the number of its items."""

    name: str
    pending: int
    finished: int
    dead: int  # Dead letters.


class WorklistsView(Struct):
    """All worklists of a thread."""

    worklists: list[WorklistView]


class AddItem(Struct, forbid_unknown_fields=True):
    """One item to add to a worklist."""

    key: str
    value: Raw


class AddItemsBody(Struct, forbid_unknown_fields=True):
    """Items to add to a worklist."""

    items: Elements[AddItem]
    by: str = ""
    priority: int = 0  # To 9: items with a greater one are claimed first.
    delay: Annotated[float, Meta(ge=0)] = 0  # Seconds for which nobody gets them.
    group: str = ""  # The group that the items count in.
    group_max: int = 0  # How many items of the group may be claimed at once.
    attempts_max: int = 0  # After so many claims they are dead letters; 0: as the node is configured.


class ItemsAddedView(Struct):
    """The items that are new."""

    added: list[str]  # The keys of new items; the others were added before.


class DoneBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The item, by its `id` or its `key`, and its result."""

    id: str | None = None
    key: str | None = None
    result: Raw
    by: str = ""


class DoneView(Struct):
    """The result that counts for an item."""

    first: bool  # False if it was done before; `by` and `result` are then those of the first time.
    by: str
    result: Raw


async def send(exchange: Exchange) -> web.Response:
    """Send a message: 201 if it is new, 200 if its key was sent before."""
    body = await exchange.body(SendBody)
    item = QueueItem(body.key, exchange.stored(body.message))
    reply = await exchange.call(Enqueue(exchange.name("space"), exchange.name("thread"), INBOX, [item], body.by))
    return exchange.answer(SentView(reply.ids[0], reply.added[0]), status=201 if reply.added[0] else 200)


async def inbox(exchange: Exchange) -> web.Response:
    """Read the messages that wait. With `wait`, an empty page is answered only after that time."""
    query = exchange.query(InboxQuery)
    found = await _entries(exchange, INBOX, query)
    if not found.entries and query.wait and not query.finished:
        read = partial(_entries, exchange, INBOX, query)
        found = await waited(exchange, "enqueue", query.wait, read, lambda entries: bool(entries.entries))
    return exchange.answer(page_view(exchange, found))


async def forget_messages(exchange: Exchange) -> web.Response:
    """Forget messages that were taken before a time. Their keys are forgotten too, and can be sent again."""
    return await _forgotten(exchange, INBOX)


async def forget_items(exchange: Exchange) -> web.Response:
    """Forget items that were done before a time. Their keys are forgotten too, and can be added again."""
    return await _forgotten(exchange, exchange.name("worklist"))


async def _forgotten(exchange: Exchange, queue: str) -> web.Response:
    body = await exchange.body(ForgetBody)
    moment_ms(body.before, "before")
    space, thread = exchange.name("space"), exchange.name("thread")
    count = await purge(exchange.connection, space, thread, queue, body.before, durability=exchange.durability)
    return exchange.answer(ForgottenView(count))


async def take(exchange: Exchange) -> web.Response:
    """Take a message.

    Raises:
        NotFound: there is no such message.
        Taken: somebody took it before; nothing was written.
    """
    body, id = await exchange.body(TakeBody), exchange.name("message")
    reply = await exchange.call(Dequeue(exchange.name("space"), exchange.name("thread"), INBOX, id, body.by, once=True))
    return exchange.answer(TakenView(id, reply.by))


async def message(exchange: Exchange) -> web.Response:
    """Read one message, whether it waits or was taken.

    Raises:
        NotFound: there is no such message, or it was forgotten.
    """
    id = exchange.name("message")
    request = ReadQueueEntry(exchange.name("space"), exchange.name("thread"), INBOX, id)
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    if not reply.entries:
        raise NotFound(f"there is no message {id}: it was never sent, or was taken and forgotten.")
    return exchange.answer(_view(exchange, reply.entries[0]))


async def worklists(exchange: Exchange) -> web.Response:
    """List the worklists of a thread with the number of their items."""
    request = ListWorklists(exchange.name("space"), exchange.name("thread"))
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    return exchange.answer(
        WorklistsView([WorklistView(item.name, item.pending, item.finished, item.dead) for item in reply.items])
    )


async def worklist(exchange: Exchange) -> web.Response:
    """Read the items of a worklist that wait, or those that are done."""
    found = await _entries(exchange, exchange.name("worklist"), exchange.query(QueueQuery))
    return exchange.answer(page_view(exchange, found))


async def item(exchange: Exchange) -> web.Response:
    """Read one item of a worklist, whether it waits or is done.

    Raises:
        NotFound: there is no such item, or it was forgotten.
    """
    name, key = exchange.name("worklist"), exchange.name("item")
    request = ReadQueueEntry(exchange.name("space"), exchange.name("thread"), name, item_id(key))
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    if not reply.entries:
        raise NotFound(f"worklist {name!r} has no item {key!r}: it was never added, or was done and forgotten.")
    return exchange.answer(_view(exchange, reply.entries[0]))


async def add(exchange: Exchange) -> web.Response:
    """Add items to a worklist; an item whose key was added before changes nothing."""
    body = await exchange.body(AddItemsBody)
    items = [QueueItem(item.key, exchange.stored(item.value)) for item in body.items]
    plan = QueuePlan(body.priority, int(body.delay * 1000), body.group, body.group_max, body.attempts_max)
    request = Enqueue(
        exchange.name("space"),
        exchange.name("thread"),
        exchange.name("worklist"),
        items,
        body.by,
        None if plan == QueuePlan() else plan,
    )
    reply = await exchange.call(request)
    return exchange.answer(ItemsAddedView([item.key for item, new in zip(items, reply.added, strict=True) if new and item.key]))


async def done(exchange: Exchange) -> web.Response:
    """Mark an item as done. If it was done before, the answer shows the first result, which counts.

    Raises:
        InvalidInput: both or neither of `id` and `key` are given.
        NotFound: there is no such item.
    """
    body = await exchange.body(DoneBody)
    space, thread, name = exchange.name("space"), exchange.name("thread"), exchange.name("worklist")
    reply = await exchange.call(done_request(exchange, space, thread, name, body))
    return exchange.answer(DoneView(reply.first, reply.by, exchange.shown(reply.result)))


def done_request(exchange: Exchange, space: str, thread: str, worklist: str, body: DoneBody) -> Dequeue:
    """The request of a `DoneBody`.

    Raises:
        InvalidInput: both or neither of `id` and `key` are given.
    """
    if (body.id is None) == (body.key is None):
        raise InvalidInput("give either the item's `id` or its `key`, not both. Nothing was written.", field="id")
    id = item_id(body.key) if body.key is not None else body.id
    assert id is not None
    return Dequeue(space, thread, worklist, id, body.by, exchange.stored(body.result))


async def _entries(exchange: Exchange, queue: str, query: QueueQuery) -> QueueEntries:
    return await exchange.call(
        ReadQueue(exchange.name("space"), exchange.name("thread"), queue, query.after, query.limit, query.finished, query.dead),
        stale=query.stale,
    )


def page_view(exchange: Exchange, found: QueueEntries) -> QueueView:
    """A page of a queue as it is shown over HTTP."""
    views = [_view(exchange, entry) for entry in found.entries]
    return QueueView(views, found.more, found.pending, found.finished, found.dead)


def _view(exchange: Exchange, entry: QueueEntry) -> QueueEntryView:
    finishes = [FinishView(finish.by, finish.wall_ms, exchange.shown(finish.result)) for finish in entry.finishes]
    others = [exchange.shown(other) for other in entry.others]
    value = exchange.shown(entry.value)
    tried = None if entry.tried is None else TryView(*astuple(entry.tried))
    return QueueEntryView(entry.id, entry.place, entry.key, entry.by, entry.wall_ms, value, finishes, others, tried)
