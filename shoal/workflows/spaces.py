"""A space as a whole: the names and kinds of its objects, its quota, and the deletion of all of them.

The record of a quota is an entry of a map that all nodes have. It is replaced as a whole; a limit that it lacks is that of each
node's configuration.

Laws of a deletion:
- An object is deleted as its own request deletes it. What is written with knowledge of that begins a new object, which stays:
  `left` counts the objects that are there at the end.
- If it fails half-way it can be repeated: it lists what is left.
- It holds one page of names at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, ClassVar, get_args

from msgspec import Meta, Struct

from shoal import values
from shoal.errors import InvalidInput, NotFound
from shoal.kinds import LABELS
from shoal.names import RESERVED, check_name
from shoal.protocol import requests
from shoal.protocol.base import Http, Natural, declaration_of
from shoal.protocol.requests import (
    QUOTAS,
    Durability,
    ObjectKind,
    ObjectWrite,
    PutEntry,
    QuotaView,
    ReadQuota,
    RemoveEntry,
)
from shoal.protocol.requests.families import operations
from shoal.raising import partly
from shoal.workflows.connection import Connection, Flow

SPACE_DELETES_MAX = 10_000  # Objects that one HTTP request to delete a space looks at; then it answers `more`.

_AT_ONCE = 16  # Deletions that are under way: they share the disk's fsyncs.

_DELETES: dict[str, Any] = {
    each.__struct_fields__[1]: each
    for each in (*operations(ObjectWrite), *operations(requests.Maintenance))
    if requests.reply_of(each) is requests.Deleted
}
_DELETES["items"] = lambda space, label: requests.DeleteItems(space, label, [])
DELETIONS: Mapping[ObjectKind, Callable[[str, str], requests.Request[Any]]] = {
    # A schema is last: until then it binds the threads that are written meanwhile.
    kind: _DELETES[kind]
    for kind in sorted(LABELS.values(), key=lambda kind: kind == "schema")
}
"""The request that deletes an object of a kind, in the order in which a space is deleted."""


class SpaceDeleted(Struct, frozen=True):
    """The result of deleting a space."""

    deleted: dict[str, int]  # Kind → how many objects were deleted; of items, how many items. Kinds without any are left out.
    left: int  # Objects that are there now, because they were written meanwhile, or because there is `more` to delete.
    more: bool = False  # Whether the bound of one request was reached: delete again.

    @property
    def total(self) -> int:
        """The number of objects that were deleted, each item counted as one."""
        return sum(self.deleted.values())


async def names(
    connection: Connection, space: str, kind: ObjectKind, prefix: str = "", *, after: str | None = None
) -> AsyncIterator[str]:
    """The names of the objects of one kind, above `after`, in byte order."""
    while True:
        page = await connection.read(requests.ListObjects(space, kind, prefix, after))
        for name in page.names:
            yield name
        if not page.more:
            return
        after = page.names[-1]


async def exists(connection: Connection, space: str, kind: ObjectKind, name: str) -> bool:
    """Whether an object is there, as the serving node lists it."""
    page = await connection.read(requests.ListObjects(space, kind, name, None, 1))
    return page.names == [name]  # Of the names with this prefix, it is the first in byte order.


async def would(connection: Connection, request: Any) -> Any:
    """The reply that a request which removes something would get, as the serving node shows it; nothing is written."""
    found = declaration_of(type(request)).would
    if found is None:  # It deletes a whole object, which its second field names.
        kind: Any = request.__struct_fields__[1]
        return requests.Deleted(await exists(connection, request.space, kind, getattr(request, kind)))
    reply = None
    for first in found.reads(request):
        read: Any = first
        while read is not None:
            page = await connection.read(read)
            reply = found.reply(request, reply, page)
            read = found.next(read, page)
    return reply


async def check_exists(connection: Connection, space: str, thread: str) -> None:
    """Check that a thread exists.

    Raises:
        NotFound: nothing was ever written to a thread of this name, or it was deleted.
    """
    if not await exists(connection, space, "thread", thread):
        raise NotFound(
            f"there is no thread {thread!r} in space {space!r}. List the threads of the space to see the existing ones."
        )


def check_kinds(kinds: Sequence[str]) -> None:
    """Check the kinds of a watch.

    Raises:
        InvalidInput: one of them is not a kind of object.
    """
    known = get_args(ObjectKind)
    if isinstance(kinds, str) or not set(kinds) <= set(known):
        raise InvalidInput(f"kinds must be a list of some of {', '.join(known)}; got {kinds!r}.")


async def set_quota(
    connection: Connection,
    space: str,
    *,
    bytes: int | None,
    objects: int | None,
    writes_per_s: float | None,
    watchers: int | None,
    documents: int | None,
    leases: int | None,
    presences: int | None,
    durability: Durability | None = None,
) -> QuotaView:
    """Replace the record. None: as the nodes' configuration says; 0: no limit. Returns the quota as this node applies it.

    Raises:
        InvalidInput: a limit is not a number from 0 on. Nothing was written.
    """
    check_name("space", space)
    if space == RESERVED:
        raise InvalidInput(f"{RESERVED!r} is the space of the nodes themselves, which has no quota. Nothing was written.")
    whole = {"bytes": bytes, "objects": objects, "watchers": watchers, "documents": documents}
    whole |= {"leases": leases, "presences": presences}
    record = {name: limit for name, limit in (whole | {"writes_per_s": writes_per_s}).items() if limit is not None}
    for name, limit in record.items():
        kinds = int | float if name == "writes_per_s" else int
        if not isinstance(limit, kinds) or isinstance(limit, bool) or not isfinite(limit) or not 0 <= limit < 2**63:
            kind = "number" if name == "writes_per_s" else "whole number"
            raise InvalidInput(
                f"{name} must be a {kind}, 0 (no limit) or more; it is {limit!r}. Nothing was written.", field=name
            )
    if record:
        await connection.write(PutEntry(RESERVED, QUOTAS, space, values.encode(record)), key=None, durability=durability)
    else:
        await connection.write(RemoveEntry(RESERVED, QUOTAS, space), key=None, durability=durability)
    return await connection.read(ReadQuota(space))


class SetQuota(Flow[QuotaView], frozen=True):
    """Replace the quota of a space, on all nodes. Of a limit, null: as each node's configuration says; 0: none."""

    http: ClassVar = (
        Http(
            "PUT", "/quota", "Replace a space's quota", example={"bytes": 10_737_418_240, "writes_per_s": 200, "watchers": 64}
        ),
    )

    space: str
    bytes: Natural | None = None  # Of its rows.
    objects: Natural | None = None
    writes_per_s: Annotated[float, Meta(ge=0)] | None = None  # At each node.
    watchers: Natural | None = None  # At each node.
    documents: Natural | None = None  # Open at each node.
    leases: Natural | None = None  # Held or waited for, claims of work included.
    presences: Natural | None = None  # Clients that are present.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> QuotaView:
        """Replace the record, and read the quota as this node applies it then."""
        return await set_quota(
            connection,
            self.space,
            bytes=self.bytes,
            objects=self.objects,
            writes_per_s=self.writes_per_s,
            watchers=self.watchers,
            documents=self.documents,
            leases=self.leases,
            presences=self.presences,
            durability=durability,
        )


async def delete_space(
    connection: Connection, space: str, *, durability: Durability | None = None, objects_max: int | None = None
) -> SpaceDeleted:
    """Delete all objects of a space, as the serving node lists them; at most about `objects_max`, if it is given.

    Raises:
        OutcomeUnknown: some objects are deleted; delete the space again to delete the rest.
    """
    check_name("space", space)
    deleted: dict[str, int] = {}
    looked_at = 0
    for kind in DELETIONS:
        after: str | None = None
        more = True
        while more:
            if objects_max is not None and looked_at >= objects_max:
                return SpaceDeleted(deleted, await _left(connection, space), more=True)
            with _telling(deleted):
                page = await connection.read(requests.ListObjects(space, kind, "", after))
                for start in range(0, len(page.names), _AT_ONCE):
                    await _delete(connection, space, kind, page.names[start : start + _AT_ONCE], deleted, durability)
            looked_at += len(page.names)
            more, after = page.more, page.names[-1] if page.names else None
    with _telling(deleted):
        return SpaceDeleted(deleted, await _left(connection, space))


class DeleteSpace(Flow[SpaceDeleted], frozen=True):
    """Delete the objects of a space, a bounded number in one request."""

    http: ClassVar = (Http("DELETE", "", "Delete everything in a space, or with `dry_run` count what there is"),)

    space: str
    dry_run: bool = False  # Only say what would be deleted: of each kind at most a page is counted, and of items first labels.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> SpaceDeleted:
        """Delete as many objects as one request may."""
        if self.dry_run:
            counts = await _counts(connection, self.space)
            return SpaceDeleted({kind: count for kind, count in counts.items() if count}, sum(counts.values()))
        objects_max = SPACE_DELETES_MAX
        return await delete_space(connection, self.space, durability=durability, objects_max=objects_max)


def _telling(deleted: Mapping[str, int]) -> Any:
    count = sum(deleted.values())
    return partly(count, f"{count} objects of the space are deleted", "Delete the space again to delete the rest.")


async def _delete(
    connection: Connection,
    space: str,
    kind: ObjectKind,
    names: Sequence[str],
    deleted: dict[str, int],
    durability: Durability | None,
) -> None:
    """Delete these objects, and count them. If some cannot be deleted, the first error is raised once all have ended."""

    async def delete(name: str) -> int:
        reply: Any = await connection.write(DELETIONS[kind](space, name), key=None, durability=durability)
        return int(reply.deleted if isinstance(reply, requests.ItemsDeleted) else reply.existed)

    outcomes = await asyncio.gather(*map(delete, names), return_exceptions=True)
    if count := sum(outcome for outcome in outcomes if isinstance(outcome, int)):
        deleted[kind] = deleted.get(kind, 0) + count
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _left(connection: Connection, space: str) -> int:
    """The number of objects that are there; of each kind at most a page is counted."""
    return sum((await _counts(connection, space)).values())


async def _counts(connection: Connection, space: str) -> dict[ObjectKind, int]:
    return {kind: len((await connection.read(requests.ListObjects(space, kind))).names) for kind in DELETIONS}
