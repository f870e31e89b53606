"""Inboxes and worklists over HTTP."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct

from shoal.api.exchange import Exchange, ReadQuery
from shoal.errors import NotFound
from shoal.protocol.requests import (
    Dequeue,
    Dequeued,
    Enqueue,
    Enqueued,
    ListWorklists,
    QueueEntries,
    QueueEntry,
    QueueItem,
    ReadQueue,
    ReadQueueEntry,
    Worklists,
)

INBOX = ""  # As a queue's name.


class SendBody(Struct, forbid_unknown_fields=True):
    message: Raw
    key: str | None = None
    by: str = ""


class SentView(Struct):
    id: str
    sent: bool  # False: its key was there already.


class TakeBody(Struct, forbid_unknown_fields=True):
    by: str = ""


class TakenView(Struct):
    id: str
    by: str


class QueueQuery(ReadQuery, forbid_unknown_fields=True):
    after: str = ""  # The `place` of the last one of an earlier answer.
    limit: Annotated[int, Meta(ge=1)] = 100
    finished: bool = False  # Those that were taken or are done, rather than those that wait.


class FinishView(Struct):
    by: str
    wall_ms: int
    result: Raw


class EntryView(Struct):
    id: str
    place: str
    key: str | None
    by: str
    wall_ms: int
    value: Raw
    finishes: list[FinishView]  # The first counts; more than one: they did not know of each other.
    others: list[Raw]  # Other values that were put under its key at the same time.


class QueueView(Struct):
    entries: list[EntryView]
    more: bool
    pending: int  # In the whole queue.
    finished: int


class WorklistView(Struct):
    name: str
    pending: int
    finished: int


class WorklistsView(Struct):
    worklists: list[WorklistView]


class AddItem(Struct, forbid_unknown_fields=True):
    key: str
    value: Raw


class AddItemsBody(Struct, forbid_unknown_fields=True):
    items: list[AddItem]
    by: str = ""


class ItemsAddedView(Struct):
    added: list[str]  # Keys; the others were there.


class DoneBody(Struct, forbid_unknown_fields=True):
    id: str
    result: Raw
    by: str = ""


class DoneView(Struct):
    first: bool  # False: it was done already, and this is by whom and with what result.
    by: str
    result: Raw


async def send(exchange: Exchange) -> web.Response:
    body = await exchange.body(SendBody)
    item = QueueItem(body.key, exchange.stored(body.message))
    reply = await exchange.call(Enqueue(exchange.name("space"), exchange.name("thread"), INBOX, [item], body.by))
    assert isinstance(reply, Enqueued)
    return exchange.answer(SentView(reply.ids[0], reply.added[0]), status=201 if reply.added[0] else 200)


async def inbox(exchange: Exchange) -> web.Response:
    return await _page(exchange, INBOX)


async def take(exchange: Exchange) -> web.Response:
    body, id = await exchange.body(TakeBody), exchange.name("message")
    reply = await exchange.call(Dequeue(exchange.name("space"), exchange.name("thread"), INBOX, id, body.by, once=True))
    assert isinstance(reply, Dequeued)
    return exchange.answer(TakenView(id, reply.by))


async def message(exchange: Exchange) -> web.Response:
    id = exchange.name("message")
    request = ReadQueueEntry(exchange.name("space"), exchange.name("thread"), INBOX, id)
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    assert isinstance(reply, QueueEntries)
    if not reply.entries:
        raise NotFound(f"there is no message {id}: it was never sent, or is taken and forgotten.")
    return exchange.answer(_view(exchange, reply.entries[0]))


async def worklists(exchange: Exchange) -> web.Response:
    request = ListWorklists(exchange.name("space"), exchange.name("thread"))
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    assert isinstance(reply, Worklists)
    return exchange.answer(WorklistsView([WorklistView(item.name, item.pending, item.finished) for item in reply.items]))


async def worklist(exchange: Exchange) -> web.Response:
    return await _page(exchange, exchange.name("worklist"))


async def add(exchange: Exchange) -> web.Response:
    body = await exchange.body(AddItemsBody)
    items = [QueueItem(item.key, exchange.stored(item.value)) for item in body.items]
    reply = await exchange.call(
        Enqueue(exchange.name("space"), exchange.name("thread"), exchange.name("worklist"), items, body.by)
    )
    assert isinstance(reply, Enqueued)
    return exchange.answer(ItemsAddedView([item.key for item, new in zip(items, reply.added, strict=True) if new and item.key]))


async def done(exchange: Exchange) -> web.Response:
    body = await exchange.body(DoneBody)
    space, thread, name = exchange.name("space"), exchange.name("thread"), exchange.name("worklist")
    reply = await exchange.call(Dequeue(space, thread, name, body.id, body.by, exchange.stored(body.result)))
    assert isinstance(reply, Dequeued)
    return exchange.answer(DoneView(reply.first, reply.by, exchange.shown(reply.result)))


async def _page(exchange: Exchange, queue: str) -> web.Response:
    query = exchange.query(QueueQuery)
    reply = await exchange.call(
        ReadQueue(exchange.name("space"), exchange.name("thread"), queue, query.after, query.limit, query.finished),
        stale=query.stale,
    )
    assert isinstance(reply, QueueEntries)
    views = [_view(exchange, entry) for entry in reply.entries]
    return exchange.answer(QueueView(views, reply.more, reply.pending, reply.finished))


def _view(exchange: Exchange, entry: QueueEntry) -> EntryView:
    finishes = [FinishView(finish.by, finish.wall_ms, exchange.shown(finish.result)) for finish in entry.finishes]
    others = [exchange.shown(other) for other in entry.others]
    value = exchange.shown(entry.value)
    return EntryView(entry.id, entry.place, entry.key, entry.by, entry.wall_ms, value, finishes, others)
