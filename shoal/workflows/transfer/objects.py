"""The objects of a space that are no threads, as records, and records as objects.

Law: a kind is an entry of `KINDS`, with its two directions. What it has no place for is said on docs/EXPORT.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast

from msgspec import Raw

from shoal.errors import InvalidInput
from shoal.kinds.document.state.readiness import NOTHING, in_operations
from shoal.kinds.document.state.yjs import STRUCTS_MAX
from shoal.kinds.list.requests import InsertElements, ListPage, ReadList
from shoal.protocol import requests
from shoal.protocol.requests import Imported, ObjectKind, ObjectWrite
from shoal.records import NamedTuple
from shoal.workflows.connection import Connection, as_wall_ms, moment
from shoal.workflows.transfer import records
from shoal.workflows.transfer.lines import Sender, key_of, packed_of, text_of
from shoal.workflows.transfer.records import Record

_ADD_MAX = 2**63 - 1
ADDS_MAX = 1024  # Adds of which one counter is made.


class Place(NamedTuple):
    """Where an object is imported."""

    connection: Connection
    space: str
    source: tuple[str, str]  # The space and the name that it had: the keys of its writes are made of them.
    send: Sender

    async def put(self, write: ObjectWrite[Any], key: str, time: Any = None) -> None:
        """Send a write of it."""
        await self.send.put(Imported(write, as_wall_ms(time) or 0, key_of(*self.source, key)))


Export = Callable[[Connection, str, str], AsyncGenerator[Record, None]]
"""The records of an object, by its space and its name."""
Import = Callable[[Place, Any], Awaitable[None]]
"""Writes one record of an object."""


class Kind(NamedTuple):
    """How objects of one kind become records, and how these become objects."""

    export: Export
    types: tuple[type[Record], ...]
    take: Import


async def _document(connection: Connection, space: str, name: str) -> AsyncGenerator[Record, None]:
    found = await connection.read(requests.ReadDocument(space, name))
    yield records.Document(name, found.update, dict(found.roots), found.authors)


async def _take_document(place: Place, record: records.Document) -> None:
    roots = cast("Any", record.roots)
    for nth, piece in enumerate(in_operations(record.update, structs_max=STRUCTS_MAX)):
        if piece != NOTHING:
            update = requests.Update(place.space, record.document, piece, roots, record.authors)
            await place.put(update, f"document {nth}" if nth else "document")


async def _counter(connection: Connection, space: str, name: str) -> AsyncGenerator[Record, None]:
    yield records.Counter(name, (await connection.read(requests.ReadCounter(space, name))).value)


async def _take_counter(place: Place, record: records.Counter) -> None:
    for nth, amount in enumerate(_parts(record.value)):
        await place.put(requests.Add(place.space, record.counter, amount), f"counter {nth}")


def _parts(value: int) -> list[int]:
    """Amounts that one add may have.

    Raises:
        InvalidInput: it takes too many of them.
    """
    if abs(value) > ADDS_MAX * _ADD_MAX:
        raise InvalidInput(f"a counter of {value.bit_length()} bits is beyond all that can be added up. Nothing was written.")
    found = []
    while abs(value) > _ADD_MAX:
        part = _ADD_MAX if value > 0 else -_ADD_MAX
        found.append(part)
        value -= part
    return [*found, value]


async def _siblings(found: list[requests.Sibling]) -> list[records.Sibling]:
    return [records.Sibling(await text_of(each.value), moment(each.wall_ms)) for each in found]


async def _register(connection: Connection, space: str, name: str) -> AsyncGenerator[Record, None]:
    found = await connection.read(requests.ReadRegister(space, name))
    yield records.Register(name, await _siblings(found.siblings))


async def _take_register(place: Place, record: records.Register) -> None:
    for nth, sibling in reversed(list(enumerate(record.siblings))):
        write = requests.Assign(place.space, record.register, await packed_of(sibling.value))
        await place.put(write, f"register {nth}", sibling.time)


async def _set(connection: Connection, space: str, name: str) -> AsyncGenerator[Record, None]:
    after, more = b"", True
    while more:
        page = await connection.read(requests.ReadSet(space, name, after))
        yield records.Set(name, [await text_of(each) for each in page.members])
        after, more = page.cursor, page.more


async def _take_set(place: Place, record: records.Set) -> None:
    await place.put(requests.AlterSet(place.space, record.set, [await packed_of(each) for each in record.members]), "")


async def _list(connection: Connection, space: str, name: str) -> AsyncGenerator[Record, None]:
    after, more = b"", True
    while more:
        page = await connection.read(ReadList(space, name, after=after))
        yield records.List(name, [await text_of(each.value) for each in page.elements], _first(page))
        after, more = page.cursor, page.more


def _first(page: ListPage) -> str:
    return page.elements[0].id if page.elements else ""


async def _take_list(place: Place, record: records.List) -> None:
    if record.elements:
        elements = [await packed_of(each) for each in record.elements]
        await place.put(InsertElements(place.space, record.list, elements), f"list {record.first}")


async def _map(connection: Connection, space: str, name: str) -> AsyncGenerator[Record, None]:
    after, more = None, True
    while more:
        page = await connection.read(requests.ReadMap(space, name, after=after))
        entries = [
            records.MapEntry(
                each.key, await _siblings(each.siblings), each.count, [await text_of(member) for member in each.members]
            )
            for each in page.entries
        ]
        yield records.Map(name, entries)
        after, more = page.entries[-1].key if page.entries else None, page.more


async def _take_map(place: Place, record: records.Map) -> None:
    for entry in record.entries:
        for nth, sibling in reversed(list(enumerate(entry.siblings))):
            put = requests.PutEntry(place.space, record.map, entry.key, await packed_of(sibling.value))
            await place.put(put, f"entry {nth} {entry.key}", sibling.time)
        if entry.count is not None:
            for nth, amount in enumerate(_parts(entry.count)):
                await place.put(requests.AddEntry(place.space, record.map, entry.key, amount), f"count {nth} {entry.key}")
        for at in range(0, len(entry.members), 1000):
            members = [await packed_of(each) for each in entry.members[at : at + 1000]]
            await place.put(requests.AlterEntry(place.space, record.map, entry.key, members), f"members {at} {entry.key}")


async def _budget(connection: Connection, space: str, name: str) -> AsyncGenerator[Record, None]:
    found = await connection.read(requests.ReadBudget(space, name))
    yield records.Budget(name, found.granted, found.spent)


async def _take_budget(place: Place, record: records.Budget) -> None:
    """A budget's requests have keys of their own, and a spend may have to ask other nodes for rights."""
    await place.send.flush()
    for kind, amount in ((requests.Grant, record.granted), (requests.Spend, record.spent)):
        if amount:
            write: Any = kind(place.space, record.budget, amount, key_of(*place.source, kind.__name__))
            await place.connection.write(write, key=None, durability=place.send.durability)


async def _items(connection: Connection, space: str, name: str) -> AsyncGenerator[Record, None]:
    indexes = (await connection.read(requests.ListItemIndexes(space, name))).indexes
    yield records.Index(name, [each.field for each in indexes])
    after, more = b"", True
    while more:
        page = await connection.read(requests.SearchItems(space, name, [], limit=1000, after=after, vectors=True))
        for each in page.items:
            yield records.Item(
                name,
                each.key,
                await text_of(each.value),
                moment(each.created_ms),
                moment(each.updated_ms),
                each.namespace[1:],
                None if each.expires_ms is None else moment(each.expires_ms),
                [records.Sibling(await text_of(one.value), moment(one.wall_ms)) for one in each.siblings],
                each.vectors,
            )
        after, more = page.cursor, page.more


async def _take_items(place: Place, record: records.Index | records.Item) -> None:
    if isinstance(record, records.Index):
        if record.fields:
            await place.put(requests.IndexItems(place.space, record.items, record.fields), "index")
        return
    name = ".".join((*record.rest, record.key))
    created_ms = as_wall_ms(record.created) or 0
    for nth, sibling in reversed([(0, records.Sibling(record.value, record.updated)), *enumerate(record.siblings, 1)]):
        ttl_ms = None
        if record.expires is not None:
            ttl_ms = max(1, (as_wall_ms(record.expires) or 0) - (as_wall_ms(sibling.time) or 0))
        value, vectors = await packed_of(sibling.value), record.vectors if not nth else []
        put = requests.PutItem(
            *(place.space, record.items, record.rest, record.key, value),
            ttl_ms=ttl_ms,
            vectors=vectors,
            created_ms=created_ms,
        )
        await place.put(put, f"item {nth} {len(record.rest)} {name}", sibling.time)


async def _schema(connection: Connection, space: str, name: str) -> AsyncGenerator[Record, None]:
    for each in (await connection.read(requests.ReadSchema(space, name))).versions:
        yield records.Schema(name, each.version, Raw(each.json), each.threads, moment(each.wall_ms))


async def _take_schema(place: Place, record: records.Schema) -> None:
    put = requests.PutSchema(place.space, record.schema, record.version, bytes(record.json), record.threads)
    await place.put(put, f"schema {record.version}", record.time)


KINDS: Mapping[ObjectKind, Kind] = {
    "document": Kind(_document, (records.Document,), _take_document),
    "counter": Kind(_counter, (records.Counter,), _take_counter),
    "register": Kind(_register, (records.Register,), _take_register),
    "set": Kind(_set, (records.Set,), _take_set),
    "list": Kind(_list, (records.List,), _take_list),
    "map": Kind(_map, (records.Map,), _take_map),
    "budget": Kind(_budget, (records.Budget,), _take_budget),
    "items": Kind(_items, (records.Index, records.Item), _take_items),
    "schema": Kind(_schema, (records.Schema,), _take_schema),  # Last: it would refuse older states of the threads before it.
}
"""The kinds of objects beside threads, in the order of an export."""

OF: Mapping[type[Record], ObjectKind] = {record: kind for kind, each in KINDS.items() for record in each.types}
"""The kind of the object that a record is of."""


def name_of(record: Record) -> str:
    """The name of the object that a record is of."""
    name: str = getattr(record, record.__struct_fields__[0])
    return name


async def objects(connection: Connection, space: str, kind: ObjectKind, name: str) -> AsyncIterator[Record]:
    """The records of an object."""
    async for record in KINDS[kind].export(connection, space, name):
        yield record
