"""Find and erase what carries data about a data subject.

Laws:
- An object is deleted by its own request, so that its erasure converges, survives a restart, and reaches nodes that were away
  and restored copies as every deletion does. Its tag is removed after that: an erasure that fails half-way is repeated.
- An object that cannot be erased is reported with the reason, and keeps its tag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from msgspec import Struct

from shoal.errors import Forbidden, ShoalError
from shoal.names import STREAMS
from shoal.protocol import requests
from shoal.protocol.declared import Http
from shoal.protocol.fields import Cursor
from shoal.protocol.requests import Durability
from shoal.workflows.connection import Connection, Flow
from shoal.workflows.spaces import DELETIONS
from shoal.workflows.subjects import tags
from shoal.workflows.subjects.tags import SubjectTag

_AT_ONCE = 16  # Deletions that are under way: they share the disk's fsyncs.
_OF_A_STREAM = "a record of a durable stream cannot be erased alone: delete the stream, and remove the tag"


class SubjectErased(Struct, frozen=True):
    """The outcome for one object, or for a part of one."""

    kind: str
    name: str
    part: str  # Empty: all of it.
    # `absent`: there was nothing. `kept`: it cannot be erased alone.
    outcome: Literal["erased", "absent", "kept", "failed", "tagged"]  # What was done, or in a dry run would be: `tagged`.
    reason: str = ""  # Why it was kept, or the error.


class SubjectReport(Struct, frozen=True):
    """The erasure of a subject's data in one space."""

    space: str
    subject: str
    objects: list[SubjectErased]
    left: int  # Tags that are there now: of what was kept or failed, or was tagged meanwhile. At most a page is counted.
    waits_for: list[str] | None  # Nodes that are not known to hold all deletions yet; None if the token may not know.

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the subject is left, as far as the node knows."""
        return not self.left


class SubjectErasure(SubjectReport, frozen=True):
    """A report of one request, which deletes a bounded number of objects."""

    after: Cursor = b""  # If not empty, the bound of one request was reached: ask again with it.


async def find(connection: Connection, space: str, subject: str) -> list[SubjectTag]:
    """The objects that are tagged with a subject.

    Raises:
        InvalidName: the subject is no name.
    """
    return [tag async for tag in tags.pages(connection, space, subject)]


async def erase(
    connection: Connection,
    space: str,
    subject: str,
    *,
    after: bytes = b"",
    objects_max: int | None = None,
    durability: Durability | None = None,
) -> tuple[SubjectReport, bytes]:
    """Delete what is tagged with a subject, and then the tags; at most about `objects_max` objects, if it is given.

    Returns the report, and the place after which to continue; empty if all tags were looked at.

    Raises:
        InvalidName: the subject is no name.
        Forbidden: the token may not remove tags. Nothing was deleted.
        ShoalError: the tags cannot be read or removed. Repeat it: what was erased is not tagged any more.
    """
    await tags.write(connection, space, subject, (), remove=True)
    objects: list[SubjectErased] = []
    while objects_max is None or len(objects) < objects_max:
        found = await tags.page(connection, space, subject, after)
        for start in range(0, len(found.tags), _AT_ONCE):
            some = found.tags[start : start + _AT_ONCE]
            objects += await _erase(connection, space, subject, some, durability)
        if not (after := found.after):
            break
    left = len((await tags.page(connection, space, subject)).tags)
    return SubjectReport(space, subject, objects, left, await _waits_for(connection)), after


class EraseSubject(Flow[SubjectErasure], frozen=True):
    """Delete what is tagged with a subject, a bounded number in one request, and then the tags."""

    http: ClassVar = (
        Http("DELETE", "/subjects/{subject}", "Delete all that is tagged with a data subject, or with `dry_run` list it"),
    )

    space: str
    subject: str
    after: Cursor = b""  # The `after` of the previous report.
    dry_run: bool = False  # Only list what would be deleted.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> SubjectErasure:
        """Delete as many objects as one request may; in a dry run, list a page of them."""
        if self.dry_run:
            found = await tags.page(connection, self.space, self.subject, self.after)
            told = [SubjectErased(tag.kind, tag.name, tag.part, "tagged") for tag in found.tags]
            return SubjectErasure(self.space, self.subject, told, len(told), await _waits_for(connection), found.after)
        objects_max = connection.config.space_deletes_max
        report, after = await erase(
            connection, self.space, self.subject, after=self.after, objects_max=objects_max, durability=durability
        )
        return SubjectErasure(report.space, report.subject, report.objects, report.left, report.waits_for, after)


async def _erase(
    connection: Connection, space: str, subject: str, some: Sequence[SubjectTag], durability: Durability | None
) -> list[SubjectErased]:
    outcomes = await asyncio.gather(*(_deleted(connection, space, tag, durability) for tag in some))
    gone = [tag for tag, outcome in zip(some, outcomes, strict=True) if outcome.outcome in ("erased", "absent")]
    if gone:
        await tags.write(connection, space, subject, gone, remove=True, durability=durability)
    return outcomes


async def _deleted(connection: Connection, space: str, tag: SubjectTag, durability: Durability | None) -> SubjectErased:
    if tag.kind == "event" and tag.name.startswith(STREAMS):
        return SubjectErased(tag.kind, tag.name, tag.part, "kept", _OF_A_STREAM)
    request = _deletion(space, tag)
    try:
        reply: Any = await connection.write(request, key=None, durability=durability)
    except ShoalError as error:
        return SubjectErased(tag.kind, tag.name, tag.part, "failed", error.message)
    return SubjectErased(tag.kind, tag.name, tag.part, "erased" if _existed(reply) else "absent")


def _deletion(space: str, tag: SubjectTag) -> requests.Request[Any]:
    """The request that deletes what a tag names."""
    if tag.kind == "event":
        return requests.EraseEvent(space, tag.name, tag.part)
    if tag.kind == "items":
        first, *rest = tag.name.split(".")
        return requests.DeleteItem(space, first, rest, tag.part) if tag.part else requests.DeleteItems(space, first, rest)
    if tag.kind == "map" and tag.part:
        return requests.RemoveEntry(space, tag.name, tag.part)
    if tag.kind == "set" and tag.part:
        return requests.AlterSet(space, tag.name, remove=[tags.member_of(tag)])
    return DELETIONS[tag.kind](space, tag.name)


def _existed(reply: Any) -> bool:
    match reply:
        case requests.Deleted(existed):
            return existed
        case requests.EventErased(erased):
            return erased
        case requests.EntryRemoved(removed) | requests.SetAltered(_, removed):
            return bool(removed)
        case _:
            return bool(reply.deleted)  # Of items.


async def _waits_for(connection: Connection) -> list[str] | None:
    try:
        return (await connection.read(requests.Status())).garbage_waits_for
    except Forbidden:
        return None
