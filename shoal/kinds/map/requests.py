"""Maps: registers, counters and sets by key. All of a key are parts of its entry."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from shoal.errors import RegisterChanged, TooManySiblings
from shoal.kinds.register.requests import Sibling
from shoal.kinds.set.requests import SetAltered
from shoal.protocol.base import (
    Cli,
    Deleted,
    Elements,
    Http,
    Keys,
    Named,
    ObjectRead,
    ObjectWrite,
    Part,
    Positive,
    Reply,
    Value,
    Would,
    always,
    deletion,
    operation,
)

__all__ = [
    "AddEntry",
    "AlterEntry",
    "DeleteMap",
    "EntryAdded",
    "EntryFolded",
    "EntryPut",
    "EntryRemoved",
    "FoldEntry",
    "MapEntries",
    "MapEntry",
    "PutEntry",
    "ReadMap",
    "RemoveEntry",
]


@operation(
    weighs=lambda request: len(request.value),
    batch=True,
    http=Http(
        "PUT",
        "/maps/{map}/{key}",
        "Set the register of a key",
        ops=("put-entry",),
        errors=(RegisterChanged, TooManySiblings),
        example={"value": "dark"},
    ),
    cli=Cli("map set", """shoal map set plan goal '{"reach": "Mars"}' --data ./state""", shows="version"),
)
class PutEntry(ObjectWrite["EntryPut"], array_like=True, frozen=True, tag="put-entry"):
    """Set a key's register, replacing all values that the serving node shows of it."""

    map: str
    key: str
    value: Value
    expect: str | None = None  # The version that its register must have; "" if it must have no value.


class EntryPut(Reply, array_like=True, frozen=True, tag="entry-put"):
    """The register's new version."""

    version: str


@operation(
    action="append",
    batch=True,
    weighs=lambda _: 16 * 1024,  # It looks through the adds of its key, which are many if a batch holds many.
    http=Http("POST", "/maps/{map}/{key}/counter", "Add to the counter of a key", ops=("add-entry",), example={"add": 1}),
    cli=Cli("map add", "shoal map add votes blue --data ./state", defaults={"amount": 1}),
)
class AddEntry(ObjectWrite["EntryAdded"], array_like=True, frozen=True, tag="add-entry"):
    """Add to a key's counter."""

    map: str
    key: str
    amount: Annotated[int, Named("add")]


class EntryAdded(Reply, array_like=True, frozen=True, tag="entry-added"):
    """The amount was added."""


class FoldEntry(ObjectWrite["EntryFolded"], array_like=True, frozen=True, tag="fold-entry"):
    """Merge adds to a key's counter that nothing can contest any more. The value stays."""

    map: str
    key: str
    least: int = 0  # Merge nothing if there are fewer; 0: `ADDS_FOLDED_MIN`.
    inherited: bool = False  # Also those of removed directories whose heir this node is, if it may now.


class EntryFolded(Reply, array_like=True, frozen=True, tag="entry-folded"):
    """How many adds were merged, and how many of this node are left; of each kind at most as many as are merged at once."""

    folded: int
    left: int


@operation(
    discloses=True,
    batch=True,
    removes=lambda request: bool(request.remove),
    http=Http(
        "POST",
        "/maps/{map}/{key}/set",
        "Remove elements of the set of a key, and add others",
        ops=("alter-entry",),
        example={"add": ["tea"]},
    ),
)
class AlterEntry(ObjectWrite[SetAltered], array_like=True, frozen=True, tag="alter-entry"):
    """Remove elements from a key's set, and add others."""

    map: str
    key: str
    add: Elements[Value] = field(default_factory=list)
    remove: Elements[Value] = field(default_factory=list)


@operation(
    frees=True,
    removes=always,
    batch=True,
    http=Http("DELETE", "/maps/{map}/{key}", "Remove a key of a map", ops=("remove-entry",)),
    would=Would(
        lambda request: (ReadMap(request.space, request.map, [request.key]),),
        lambda _, __, found: EntryRemoved(bool(found.entries)),
    ),
    cli=Cli(
        "map remove",
        "shoal map remove plan goal --yes --data ./state",
        shows="removed",
        help="Remove a key of a map, and print whether it was there.",
        destroys="Remove key {key} of map {map}",
    ),
)
class RemoveEntry(ObjectWrite["EntryRemoved"], array_like=True, frozen=True, tag="remove-entry"):
    """Remove all that the serving node shows of a key."""

    map: str
    key: str


class EntryRemoved(Reply, array_like=True, frozen=True, tag="entry-removed"):
    """Whether the key held anything."""

    removed: bool


@operation(
    multi_read=True,
    http=(
        Http("GET", "/maps/{map}", "Entries of a map", ops=("map",)),
        Http(
            "GET",
            "/maps/{map}/{key}",
            "An entry of a map",
            parts=(Part({"key": str}, ("keys",), lambda key: ([key],)),),
            one="entries",
        ),
    ),
    cli=Cli(
        "map get",
        "shoal map get plan --data ./state",
        rows="entries",
        place="key",
        columns=("key", "siblings.value", "count", "members"),
        hides=("keys",),
    ),
)
class ReadMap(ObjectRead["MapEntries"], array_like=True, frozen=True, tag="read-map"):
    """Read entries in the order of their keys."""

    map: str
    keys: Keys | None = None  # Only these keys; None: all, page by page.
    prefix: str = ""
    after: str | None = None
    limit: Positive = 1000


class MapEntry(Struct, array_like=True, frozen=True):
    """All that a key holds."""

    key: str
    siblings: list[Sibling]  # The values of its register, the latest first.
    version: str  # The version of its register; empty if it has no value.
    count: int | None  # The value of its counter; nil if nothing was added.
    members: list[Value]  # The members of its set.


class MapEntries(Reply, array_like=True, frozen=True, tag="map-entries"):
    """A page of a map."""

    entries: list[MapEntry]
    size: int  # The number of keys in the whole map.
    more: bool  # Ask again with after=entries[-1].key.


@deletion("map", "settings")
class DeleteMap(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-map"):
    """Delete a map with all its entries."""

    map: str
