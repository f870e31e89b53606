"""Maps over HTTP. A key is one part of the path; its register, counter and set are parts of its entry."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.derived import show
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.errors import InvalidInput, NotFound
from shoal.protocol.fields import Elements
from shoal.protocol.requests import (
    AddEntry,
    AlterEntry,
    MapEntries,
    MapEntry,
    ReadMap,
    Reply,
)


class ChangeEntryBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either `add`, for the key's counter, or `include` and `exclude`, for its set."""

    add: int | None = None
    include: Elements[Raw] = field(default_factory=list)
    exclude: Elements[Raw] = field(default_factory=list)


class EntryView(Struct):
    """All that a key of a map holds."""

    key: str
    siblings: list[Raw]  # The values of its register, the latest first.
    version: str  # The version of its register; "" if it has no value.
    count: int | None  # The value of its counter; null if nothing was added.
    members: list[Raw]  # The members of its set.


class EntriesQuery(ReadQuery, forbid_unknown_fields=True):
    """A page of a map."""

    prefix: str = ""
    after: str | None = None
    limit: Annotated[int, Meta(ge=1)] = 1000


class EntriesView(Struct):
    """A page of a map's entries, in the order of their keys."""

    entries: list[EntryView]
    size: int  # The number of keys in the whole map.
    more: bool  # Ask again with after=entries[-1].key.


async def read(exchange: Exchange) -> web.Response:
    """Read a page of a map."""
    query = exchange.query(EntriesQuery)
    request = ReadMap(exchange.name("space"), exchange.name("map"), None, query.prefix, query.after, query.limit)
    reply = await exchange.call(request, stale=query.stale)
    return exchange.answer(entries_view(exchange, reply))


def entries_view(exchange: Exchange, reply: MapEntries) -> EntriesView:
    """Entries as they are shown over HTTP."""
    return EntriesView([_view(exchange, entry) for entry in reply.entries], reply.size, reply.more)


async def read_entry(exchange: Exchange) -> web.Response:
    """Read what one key holds.

    Raises:
        NotFound: the key holds nothing.
    """
    key = exchange.name("key")
    request = ReadMap(exchange.name("space"), exchange.name("map"), [key])
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    if not reply.entries:
        raise NotFound(f"there is no key {key!r} in map {exchange.name('map')!r}.")
    exchange.version = reply.entries[0].version
    return exchange.answer(_view(exchange, reply.entries[0]))


async def change_entry(exchange: Exchange) -> web.Response:
    """Add to a key's counter, or add to and remove from its set.

    Raises:
        InvalidInput: the body does both.
    """
    body = await exchange.body(ChangeEntryBody)
    reply: Reply = await exchange.call(change_request(exchange, *_place(exchange), body))
    return exchange.answer(show(exchange, reply))


def change_request(exchange: Exchange, space: str, name: str, key: str, body: ChangeEntryBody) -> AddEntry | AlterEntry:
    """The request of a `ChangeEntryBody`.

    Raises:
        InvalidInput: the body changes both the counter and the set.
    """
    if body.add is None:
        include, exclude = (list(map(exchange.stored, part)) for part in (body.include, body.exclude))
        return AlterEntry(space, name, key, include, exclude)
    if body.include or body.exclude:
        raise InvalidInput(
            "one request changes either a key's counter or its set. Nothing was written. Use a batch to change both.",
            field="add",
        )
    return AddEntry(space, name, key, body.add)


def _place(exchange: Exchange) -> tuple[str, str, str]:
    return exchange.name("space"), exchange.name("map"), exchange.name("key")


def _view(exchange: Exchange, entry: MapEntry) -> EntryView:
    siblings = [exchange.shown(sibling.value) for sibling in entry.siblings]
    return EntryView(entry.key, siblings, entry.version, entry.count, list(map(exchange.shown, entry.members)))
