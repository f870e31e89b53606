"""Tags: which objects of a space carry data about which data subject.

Filtering by a field finds only what has the field in the expected form, and a key for each person's data finds nothing. A
register of where whose data is must be kept anyway (GDPR, article 30).

Laws:
- The tags of a space are members of ordinary sets, in one of them by a hash of the subject, so that they are replicated,
  kept, encrypted and deleted like everything else. A tag is [subject, kind, name, part].
- A tag of a node that did not know of an erasure stays, because a removal only affects the tags that the erasing node shows.
- All tags of a subject are beside each other in the order of their bytes, and are read without those of others.

Find and erase what carries data about a data subject.

Laws:
- An object is deleted by its own request, so that its erasure converges, survives a restart, and reaches nodes that were away
  and restored copies as every deletion does. Its tag is removed after that: an erasure that fails half-way is repeated.
- An object that cannot be erased is reported with the reason, and keeps its tag.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from msgspec import Meta, Struct

from shoal import values
from shoal.errors import Forbidden, InvalidInput, ShoalError
from shoal.names import STREAMS, check_label, check_name
from shoal.protocol import requests
from shoal.protocol.base import Cursor, Http
from shoal.protocol.requests import Durability, ObjectKind
from shoal.workflows.connection import Connection, Flow
from shoal.workflows.spaces import DELETIONS, SPACE_DELETES_MAX

if TYPE_CHECKING:
    SubjectKind = ObjectKind | Literal["event"]
else:
    SubjectKind = Literal[(*(kind for kind in get_args(ObjectKind) if kind != "schema"), "event")]
"""The kinds of what can be tagged: all but schemas. Of `items`, `map`, `set` and `event` a part can be."""
KINDS: tuple[SubjectKind, ...] = get_args(SubjectKind)
_WITH_PARTS = ("items", "map", "set", "event")
_SETS = 256
_PAGE = 500


class SubjectTag(Struct, frozen=True, forbid_unknown_fields=True):
    """An object, or a part of one, that carries data about a subject."""

    kind: SubjectKind
    name: str  # Of the object. Of items, the labels of their namespace, joined by periods; of an event, its thread.
    part: str = ""  # The key of an item or of an entry of a map, a member of a set as JSON, or an event's id; empty: all of it.


class TagPage(Struct, frozen=True):
    """A page of a subject's tags."""

    tags: list[SubjectTag]  # In the order of their bytes.
    after: Cursor  # Ask again with this; empty: there are no more.


def check_tag(tag: SubjectTag) -> SubjectTag:
    """Return a tag if it is legal.

    Raises:
        InvalidInput: there is no such kind, or its kind has no parts.
        InvalidName: a name is not legal.
    """
    if tag.kind not in KINDS:
        raise InvalidInput(f"a kind is one of {', '.join(KINDS)}; got {tag.kind!r:.80}. Nothing was written.")
    if tag.part and tag.kind not in _WITH_PARTS:
        raise InvalidInput(f"a {tag.kind} is tagged as a whole, and has no part {tag.part!r:.80}. Nothing was written.")
    if tag.kind == "event" and not tag.part:
        raise InvalidInput("an event is tagged by its id; for all events of a thread tag the thread. Nothing was written.")
    check_name(tag.kind, tag.name)
    if tag.kind == "items":
        for label in tag.name.split("."):
            check_label(label)
    if tag.kind == "set" and tag.part:
        member_of(tag)
    if tag.part:
        check_name("part", tag.part)
    return tag


def member_of(tag: SubjectTag) -> bytes:
    """The member of a set that a tag names, packed.

    Raises:
        InvalidInput: it is not JSON.
    """
    try:
        return values.encode(values.from_json(json.loads(tag.part)), where="part")
    except (ValueError, ShoalError):
        raise InvalidInput(
            f"a member of a set is given as JSON, a text in quotation marks; got {tag.part!r:.80}. Nothing was written."
        ) from None


async def write_tag(
    connection: Connection,
    space: str,
    subject: str,
    tags: Sequence[SubjectTag],
    *,
    remove: bool = False,
    durability: Durability | None = None,
) -> int:
    """Add tags of a subject, or remove them, and return how many changed.

    Raises:
        InvalidInput, InvalidName: one of them is not legal.
    """
    check_name("subject", subject)
    packed = [_packed(subject, check_tag(tag)) for tag in tags]
    changed = 0
    for start in range(0, max(1, len(packed)), _PAGE):  # Also of none, so that it says whether it may be done.
        some = packed[start : start + _PAGE]
        change = requests.AlterSet(space, set_of(subject), **{"remove" if remove else "add": some})
        reply = await connection.write(change, key=None, durability=durability)
        changed += reply.removed if remove else reply.added
    return changed


async def page_of_tags(connection: Connection, space: str, subject: str, after: bytes = b"", limit: int = _PAGE) -> TagPage:
    """A page of the tags of a subject, in the order of their bytes.

    Raises:
        InvalidName: the subject is no name.
        SessionBehind, BookmarkLost: the node lacks operations that this session has written or seen.
    """
    check_name("subject", subject)
    start = after or values.encode([subject, "", "", ""])
    reply = await connection.read(requests.ReadSet(space, set_of(subject), start, min(limit, _PAGE)))
    found = [values.decode(member) for member in reply.members]
    own = [_tag(member) for member in found if _is_of(member, subject)]
    is_last = not reply.more or not found or not _is_of(found[-1], subject)
    return TagPage(own, b"" if is_last else reply.members[-1])


async def pages_of_tags(connection: Connection, space: str, subject: str) -> AsyncIterator[SubjectTag]:
    """All tags of a subject, in the order of their bytes."""
    after = b""
    while True:
        found = await page_of_tags(connection, space, subject, after)
        for tag in found.tags:
            yield tag
        if not (after := found.after):
            return


_EXAMPLE = {"tags": [{"kind": "thread", "name": "planner"}, {"kind": "items", "name": "memory.user-1"}]}
_Tags = Annotated[list[SubjectTag], Meta(min_length=1, max_length=1000)]


class TagsChanged(Struct, frozen=True):
    """The result of tagging, or of removing tags."""

    changed: int  # How many tags were not there before, or were removed.


class FindTags(Flow[TagPage], frozen=True):
    """A page of what is tagged with a subject."""

    http: ClassVar = (Http("GET", "/subjects/{subject}", "What is tagged with a data subject"),)

    space: str
    subject: str
    after: Cursor = b""  # The `after` of the previous page.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> TagPage:
        """Read the page."""
        return await page_of_tags(connection, self.space, self.subject, self.after)


class WriteTags(Flow[TagsChanged], frozen=True):
    """Tag objects, or parts of them, that carry data about a subject."""

    http: ClassVar = (Http("PUT", "/subjects/{subject}", "Tag objects with a data subject", example=_EXAMPLE),)

    space: str
    subject: str
    tags: _Tags  # Objects, or parts of them.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> TagsChanged:
        """Add the tags."""
        return TagsChanged(await write_tag(connection, self.space, self.subject, self.tags, durability=durability))


class RemoveTags(Flow[TagsChanged], frozen=True):
    """Remove tags of a subject; the objects stay."""

    http: ClassVar = (
        Http("POST", "/subjects/{subject}/untag", "Remove tags of a data subject; the objects stay", example=_EXAMPLE),
    )

    space: str
    subject: str
    tags: _Tags  # Objects, or parts of them.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> TagsChanged:
        """Remove the tags."""
        return TagsChanged(await write_tag(connection, self.space, self.subject, self.tags, remove=True, durability=durability))


def set_of(subject: str) -> str:
    """The set that holds a subject's tags. Its name tells eight bits of a hash of the subject."""
    return f"shoal.subjects/{int.from_bytes(sha256(subject.encode()).digest()[:2], 'big') % _SETS:02x}"


def _packed(subject: str, tag: SubjectTag) -> bytes:
    return values.encode([subject, tag.kind, tag.name, tag.part])


def _is_of(member: Any, subject: str) -> bool:
    return isinstance(member, list) and len(member) == 4 and member[0] == subject and member[1] in KINDS


def _tag(member: Any) -> SubjectTag:
    return SubjectTag(member[1], str(member[2]), str(member[3]))


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
    return [tag async for tag in pages_of_tags(connection, space, subject)]


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
    await write_tag(connection, space, subject, (), remove=True)
    objects: list[SubjectErased] = []
    while objects_max is None or len(objects) < objects_max:
        found = await page_of_tags(connection, space, subject, after)
        for start in range(0, len(found.tags), _AT_ONCE):
            some = found.tags[start : start + _AT_ONCE]
            objects += await _erase(connection, space, subject, some, durability)
        if not (after := found.after):
            break
    left = len((await page_of_tags(connection, space, subject)).tags)
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
            found = await page_of_tags(connection, self.space, self.subject, self.after)
            told = [SubjectErased(tag.kind, tag.name, tag.part, "tagged") for tag in found.tags]
            return SubjectErasure(self.space, self.subject, told, len(told), await _waits_for(connection), found.after)
        objects_max = SPACE_DELETES_MAX
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
        await write_tag(connection, space, subject, gone, remove=True, durability=durability)
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
        return requests.AlterSet(space, tag.name, remove=[member_of(tag)])
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
