"""The tools of what agents share: documents, memory items, small values, and the one that lists the names of everything."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, field

from shoal import values
from shoal.errors import InvalidInput, NotFound
from shoal.integrations.mcp.views import Answer, Arguments, Call, Limit, Writing, reads, writes
from shoal.kinds.items.handle.item import Item
from shoal.kinds.list.requests import ElementsRemoved, InsertElements, MoveElement, ReadList, RemoveElements
from shoal.kinds.map.handle import Entry
from shoal.kinds.set.handle import packed_elements
from shoal.protocol import requests
from shoal.protocol.requests import ObjectWrite, document_version

Kind = Literal["counter", "register", "set", "list", "map"]
Name = Annotated[str, Meta(description="The value's name.")]


class ListNames(Arguments):
    """Which names."""

    kind: Annotated[Literal["thread", "document", "counter", "register", "set", "list", "map"], Meta(description="Of what.")]
    prefix: Annotated[str, Meta(description="Only names that begin with this.")] = ""
    after: Annotated[str, Meta(description="Continue after this name.")] = ""
    limit: Limit = 100


@reads
async def list_names(call: Call, given: ListNames) -> Answer:
    """List the names of what is stored: threads, documents, counters, registers, sets, lists or maps."""
    request = requests.ListObjects(call.space.name, given.kind, given.prefix, given.after or None, given.limit)
    reply = await call.connection.read(request)
    return {"names": reply.names, "more": reply.more}


class ReadValue(Arguments):
    """Which value."""

    kind: Kind
    name: Name
    prefix: Annotated[str, Meta(description="Of a map: only keys that begin with this.")] = ""
    limit: Annotated[Limit, Meta(description="Of a set, list or map: the most elements or keys to return.")] = 1000
    index: Annotated[int, Meta(description="Of a list: where to begin; below 0 it counts from the end.")] = 0


@reads
async def read_value(call: Call, given: ReadValue) -> Answer:
    """Read a shared value: a counter's number, a register's value, a set's members, a list's elements, or a map's entries."""
    match given.kind:
        case "counter":
            return {"value": await call.space.counter(given.name).value()}
        case "register":
            state = await call.space.register(given.name).read()
            return {"value": values.to_json(state.value), "siblings": _shown(state.siblings), "version": state.version}
        case "set":
            page = await call.connection.read(requests.ReadSet(call.space.name, given.name, b"", given.limit))
            return {"members": _shown(map(values.decode, page.members)), "size": page.size}
        case "list":
            shown = await call.connection.read(ReadList(call.space.name, given.name, given.index, b"", given.limit))
            elements = [{"id": each.id, "value": values.to_json(values.decode(each.value))} for each in shown.elements]
            return {"elements": elements, "size": shown.size}
        case "map":
            read = requests.ReadMap(call.space.name, given.name, None, given.prefix, None, given.limit)
            entries = await call.connection.read(read)
            return {"entries": {each.key: _entry(Entry.of(each)) for each in entries.entries}, "more": entries.more}


class WriteValue(Writing):
    """One change of a value: an amount, a value, elements, or the removal of a key."""

    kind: Kind
    name: Name
    key: Annotated[str | None, Meta(description="Of a map: the key to change.")] = None
    add: Annotated[int | None, Meta(description="Of a counter, or below a map's key: the amount to add.")] = None
    set: Annotated[Any, Meta(description="Of a register, or below a map's key: the new value.")] = UNSET
    include: Annotated[list[Any], Meta(description="Of a set, a list, or below a map's key: elements to add.")] = field(
        default_factory=list
    )
    exclude: Annotated[
        list[Any], Meta(description="Of a set, or below a map's key: elements to remove; of a list: their ids.")
    ] = field(default_factory=list)
    move: Annotated[str | None, Meta(description="Of a list: the id of the element to move.")] = None
    index: Annotated[int | None, Meta(description="Of a list: where to add or move; without a place it is the end.")] = None
    before: Annotated[str, Meta(description="The same: the id of the element to put it before.")] = ""
    after: Annotated[str, Meta(description="The same: the id of the element to put it after.")] = ""
    remove: Annotated[bool, Meta(description="Of a map: remove all that the key holds.")] = False
    expect_version: Annotated[str | None, Meta(description="With `set`: only if this is its version.")] = None


@writes(destructive=True)
async def write_value(call: Call, given: WriteValue) -> Answer:
    """Change a shared value: add to a counter, set a register, add and remove elements of a set, add, move and remove
    elements of a list, or change one key of a map. Changes that others make at the same time are kept.
    """
    reply = await call.connection.write(_request(call.space.name, given), key=call.key, durability=None)
    if isinstance(reply, ElementsRemoved):
        return {"removed": len(reply.values), "size": reply.size}
    return {name: getattr(reply, name) for name in _ANSWERED if hasattr(reply, name)}


_ANSWERED = ("value", "version", "added", "removed", "elements", "moved")

Change = Literal["add", "set", "include or exclude", "move", "remove"]


def _change(given: WriteValue) -> Change:
    found: list[Change] = []
    found += ["add"] if given.add is not None else []
    found += ["set"] if given.set is not UNSET else []
    found += ["include or exclude"] if given.include or given.exclude else []
    found += ["move"] if given.move is not None else []
    found += ["remove"] if given.remove else []
    if len(found) != 1:
        raise InvalidInput(
            f"a call changes one thing; got {', '.join(found) or 'nothing to change'}. Nothing was written. "
            "Give one of `add`, `set`, `include` and `exclude`, `move`, or `remove`."
        )
    return found[0]


def _request(space: str, given: WriteValue) -> ObjectWrite[Any]:
    change, at = _change(given), (space, given.name)
    expect = given.expect_version
    if (given.key is None) == (given.kind == "map"):
        raise InvalidInput("`key` belongs to the kind map, and a map needs it. Nothing was written.")
    if given.kind != "list" and not (given.index is None and not given.before and not given.after):
        raise InvalidInput("`index`, `before` and `after` are places in a list. Nothing was written.")
    match given.kind, change:
        case "counter", "add":
            return requests.Add(*at, _amount(given))
        case "register", "set":
            return requests.Assign(*at, _packed(given.set), None, expect)
        case "set", "include or exclude":
            return requests.AlterSet(*at, _elements(given.include), _elements(given.exclude))
        case "list", "include or exclude" if not (given.include and given.exclude):
            if given.exclude:
                return RemoveElements(*at, [str(id) for id in given.exclude])
            return InsertElements(*at, _elements(given.include), given.index, given.before, given.after)
        case "list", "move":
            return MoveElement(*at, given.move or "", given.index, given.before, given.after)
        case "map", "add":
            return requests.AddEntry(*at, _key(given), _amount(given))
        case "map", "set":
            return requests.PutEntry(*at, _key(given), _packed(given.set), expect)
        case "map", "include or exclude":
            return requests.AlterEntry(*at, _key(given), _elements(given.include), _elements(given.exclude))
        case "map", "remove":
            return requests.RemoveEntry(*at, _key(given))
    raise InvalidInput(
        f"a {given.kind} does not take {change}. Nothing was written. A counter takes `add`, a register `set`, "
        "a set `include` and `exclude`, a list one of these or `move`, a map any of these below a `key`, or `remove`."
    )


def _key(given: WriteValue) -> str:
    assert given.key is not None
    return given.key


def _amount(given: WriteValue) -> int:
    assert given.add is not None
    return given.add


def _packed(given: Any) -> bytes:
    return values.encode(values.from_json(given), where="set")


def _elements(given: list[Any]) -> list[bytes]:
    return packed_elements(map(values.from_json, given))


def _entry(entry: Entry) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if entry.siblings:
        shown |= {"value": values.to_json(entry.siblings[0]), "version": entry.version}
    if entry.count is not None:
        shown["count"] = entry.count
    if entry.members:
        shown["members"] = _shown(entry.members)
    return shown


def _shown(found: Iterable[Any]) -> list[Any]:
    return [values.to_json(each) for each in found]


Namespace = Annotated[list[str], Meta(min_length=1, description='Labels, the general one first: ["memory", "user-1"].')]
Key = Annotated[str, Meta(description="The item's key in its namespace.")]
Expect = Annotated[str | None, Meta(description='Only if this is its `version`; "" if it must not exist.')]


class PutItem(Writing):
    """An item."""

    namespace: Namespace
    key: Key
    value: Annotated[Any, Meta(description="What to remember: any JSON.")]
    ttl_s: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="It expires after so many seconds; left out: never.")
    ] = None
    expect_version: Expect = None


@writes(destructive=True)
async def put_item(call: Call, given: PutItem) -> Answer:
    """Remember a value under a namespace and a key, in place of the one that was there."""
    version = await call.space.items.put(
        given.namespace,
        given.key,
        values.from_json(given.value),
        ttl=given.ttl_s,
        expect=given.expect_version,
        idempotency_key=call.key,
    )
    return {"version": version}


class GetItem(Arguments):
    """Which item."""

    namespace: Namespace
    key: Key


@reads
async def get_item(call: Call, given: GetItem) -> Answer:
    """Get one remembered item; `item` is null if there is none."""
    found = await call.space.items.get(given.namespace, given.key)
    return {"item": None if found is None else _shown_item(found)}


class SearchItems(Arguments):
    """Which items."""

    namespace: Annotated[list[str], Meta(description="Labels: items there and below; left out: all.")] = field(
        default_factory=list
    )
    filter: Annotated[
        dict[str, Any], Meta(description='Fields that must match: {"user.age": {"$gte": 18}}; $eq $ne $gt $gte $lt $lte.')
    ] = field(default_factory=dict)
    limit: Limit = 50
    offset: Annotated[int, Meta(ge=0, description="Leave out so many.")] = 0


@reads
async def search_items(call: Call, given: SearchItems) -> Answer:
    """List remembered items of a namespace, all or those whose fields match a filter."""
    found = await call.space.items.search(
        given.namespace,
        filter=values.from_json(given.filter) or None,
        limit=given.limit,
        offset=given.offset,
    )
    return {"items": [_shown_item(each) for each in found]}


class DeleteItem(Writing):
    """Which item."""

    namespace: Namespace
    key: Key
    expect_version: Expect = None


@writes(destructive=True)
async def delete_item(call: Call, given: DeleteItem) -> Answer:
    """Forget an item. It is no error if there is none."""
    deleted = await call.space.items.delete(
        given.namespace,
        given.key,
        expect=given.expect_version,
        idempotency_key=call.key,
    )
    return {"deleted": deleted}


def _shown_item(item: Item) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": values.to_json(item.value),
        "version": item.version,
        "updated": item.updated.isoformat(),
    }


DocumentName = Annotated[str, Meta(description="The document's name.")]


class ReadDocument(Arguments):
    """Which document, and which part of it."""

    document: DocumentName
    root: Annotated[str, Meta(description="Only this part, for example a text; left out: all.")] = ""


@reads
async def read_document(call: Call, given: ReadDocument) -> Answer:
    """Read a shared document as JSON: its texts are strings, its maps objects, its lists arrays. A new one is empty."""
    reply = await call.connection.read(requests.ReadDocumentJson(call.space.name, given.document))
    content = json.loads(reply.json)
    if given.root:
        if given.root not in content:
            raise NotFound(f"document {given.document!r} has no root {given.root!r}. It has: {', '.join(content) or 'none'}.")
        content = content[given.root]
    return {"content": content, "version": document_version(reply.json)}


class EditDocument(Writing):
    """A new content, or a patch."""

    document: DocumentName
    content: Annotated[dict[str, Any] | None, Meta(description="The whole new content; only what differs is changed.")] = None
    patch: Annotated[
        list[dict[str, Any]] | None, Meta(description="A JSON Patch (RFC 6902), which changes the places that it names.")
    ] = None
    expect_version: Annotated[str | None, Meta(description='Only if this is its `version`; "" if it must not exist.')] = None


@writes(destructive=True)
async def edit_document(call: Call, given: EditDocument) -> Answer:
    """Edit a shared document in place, by a patch or a new content. Edits that others make at the same time are kept."""
    expect = given.expect_version
    place = call.space.name, given.document
    request: requests.Patch | requests.Replace
    if (given.content is None) == (given.patch is None):
        raise InvalidInput("give either `content` or `patch`. Nothing was written.")
    if given.patch is not None:
        request = requests.Patch(*place, _document_json(given.patch), call.author, expect)
    else:
        request = requests.Replace(*place, _document_json(given.content), call.author, expect)
    reply = await call.connection.write(request, key=call.key, durability=None)
    return {"content": json.loads(reply.json), "version": document_version(reply.json)}


def _document_json(given: object) -> bytes:
    return json.dumps(given).encode()


TOOLS = (
    *(read_document, edit_document),
    *(put_item, get_item, search_items, delete_item),
    *(list_names, read_value, write_value),
)
