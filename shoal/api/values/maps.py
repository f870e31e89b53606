"""Maps over HTTP. A key is one part of the path; what it holds of each type is a part of its entry."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.derived import show
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.errors import InvalidInput, NotFound
from shoal.protocol.requests import (
    AddEntry,
    AlterEntry,
    MapEntries,
    MapEntry,
    ReadMap,
    Reply,
)


class ChangeEntryBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either what is added to the key's counter, or what its set is to include and exclude."""

    add: int | None = None
    include: list[Raw] = field(default_factory=list)
    exclude: list[Raw] = field(default_factory=list)


class EntryView(Struct):
    key: str
    siblings: list[Raw]  # Of its register, the latest first.
    version: str  # Of its register; "" where there is no value.
    count: int | None  # Of its counter; null where nothing was added.
    members: list[Raw]  # Of its set.


class EntriesQuery(ReadQuery, forbid_unknown_fields=True):
    prefix: str = ""
    after: str | None = None
    limit: Annotated[int, Meta(ge=1)] = 1000


class EntriesView(Struct):
    entries: list[EntryView]
    size: int  # Keys of the whole map.
    more: bool  # Ask again with after=entries[-1].key.


async def read(exchange: Exchange) -> web.Response:
    query = exchange.query(EntriesQuery)
    request = ReadMap(exchange.name("space"), exchange.name("map"), None, query.prefix, query.after, query.limit)
    reply = await exchange.call(request, stale=query.stale)
    return exchange.answer(entries_view(exchange, reply))


def entries_view(exchange: Exchange, reply: MapEntries) -> EntriesView:
    return EntriesView([_view(exchange, entry) for entry in reply.entries], reply.size, reply.more)


async def read_entry(exchange: Exchange) -> web.Response:
    key = exchange.name("key")
    request = ReadMap(exchange.name("space"), exchange.name("map"), [key])
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    if not reply.entries:
        raise NotFound(f"there is no key {key!r} in map {exchange.name('map')!r}.")
    exchange.version = reply.entries[0].version
    return exchange.answer(_view(exchange, reply.entries[0]))


async def change_entry(exchange: Exchange) -> web.Response:
    body = await exchange.body(ChangeEntryBody)
    reply: Reply = await exchange.call(change_request(exchange, *_place(exchange), body))
    return exchange.answer(show(exchange, reply))


def change_request(exchange: Exchange, space: str, name: str, key: str, body: ChangeEntryBody) -> AddEntry | AlterEntry:
    if body.add is None:
        include, exclude = (list(map(exchange.stored, part)) for part in (body.include, body.exclude))
        return AlterEntry(space, name, key, include, exclude)
    if body.include or body.exclude:
        raise InvalidInput(
            "one request changes a key's counter, or its set. Nothing was written. A batch changes both.", field="add"
        )
    return AddEntry(space, name, key, body.add)


def _place(exchange: Exchange) -> tuple[str, str, str]:
    return exchange.name("space"), exchange.name("map"), exchange.name("key")


def _view(exchange: Exchange, entry: MapEntry) -> EntryView:
    siblings = [exchange.shown(sibling.value) for sibling in entry.siblings]
    return EntryView(entry.key, siblings, entry.version, entry.count, list(map(exchange.shown, entry.members)))
