"""Maps: registers, counters and sets by key. What a key holds of each type is a part of its entry."""

from __future__ import annotations

from msgspec import Struct, field

from shoal.errors import RegisterChanged, TooManySiblings
from shoal.protocol.fields import Value
from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import Cli, Http, operation
from shoal.protocol.requests.values.scalars import Sibling
from shoal.protocol.requests.values.sets import SetAltered

__all__ = [
    "AddEntry",
    "AlterEntry",
    "EntryAdded",
    "EntryPut",
    "EntryRemoved",
    "MapEntries",
    "MapEntry",
    "PutEntry",
    "ReadMap",
    "RemoveEntry",
]


@operation(
    batch=True,
    http=Http(
        "PUT",
        "/maps/{map}/{key}",
        "Set the register of a key",
        ops=("put-entry",),
        errors=(RegisterChanged, TooManySiblings),
        example={"value": "dark"},
    ),
    cli=[
        Cli(
            "map set",
            "Set a key of a map, and print its version.",
            """shoal map set plan goal '{"reach": "Mars"}' --data ./state""",
            shows="version",
            arguments=("key", "value"),
            options=("expect",),
        )
    ],
)
class PutEntry(ObjectWrite["EntryPut"], array_like=True, frozen=True, tag="put-entry"):
    """Set a key's register to a value, over all that the serving node shows of it."""

    map: str
    key: str
    value: Value
    expect: str | None = None  # The version its register must have; "": it must have no value.


class EntryPut(Reply, array_like=True, frozen=True, tag="entry-put"):
    version: str


@operation(batch=True)
class AddEntry(ObjectWrite["EntryAdded"], array_like=True, frozen=True, tag="add-entry"):
    """Add to a key's counter."""

    map: str
    key: str
    amount: int


class EntryAdded(Reply, array_like=True, frozen=True, tag="entry-added"):
    pass


@operation(batch=True)
class AlterEntry(ObjectWrite[SetAltered], array_like=True, frozen=True, tag="alter-entry"):
    """Remove elements from a key's set, and add some."""

    map: str
    key: str
    add: list[Value] = field(default_factory=list)
    remove: list[Value] = field(default_factory=list)


@operation(
    batch=True,
    http=Http("DELETE", "/maps/{map}/{key}", "Remove a key of a map", ops=("remove-entry",)),
    cli=[
        Cli(
            "map remove",
            "Remove a key of a map, and print whether it was there.",
            "shoal map remove plan goal --data ./state",
            shows="removed",
            arguments=("key",),
        )
    ],
)
class RemoveEntry(ObjectWrite["EntryRemoved"], array_like=True, frozen=True, tag="remove-entry"):
    """Remove what the serving node shows of a key."""

    map: str
    key: str


class EntryRemoved(Reply, array_like=True, frozen=True, tag="entry-removed"):
    removed: bool


@operation(multi_read=True)
class ReadMap(ObjectRead["MapEntries"], array_like=True, frozen=True, tag="read-map"):
    """Entries in the order of their keys."""

    map: str
    keys: list[str] | None = None  # Those of these keys; None: all, page by page.
    prefix: str = ""
    after: str | None = None
    limit: int = 1000


class MapEntry(Struct, array_like=True, frozen=True):
    key: str
    siblings: list[Sibling]  # Of its register, the latest first.
    version: str  # Of its register; empty where there is no value.
    count: int | None  # Of its counter; nil where nothing was added.
    members: list[Value]  # Of its set.


class MapEntries(Reply, array_like=True, frozen=True, tag="map-entries"):
    entries: list[MapEntry]
    size: int  # Keys of the whole map.
    more: bool  # Ask again with after=entries[-1].key.
