"""The data subjects of a space, over HTTP."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from shoal.api.http.exchange import Exchange, ReadQuery, WriteQuery
from shoal.api.http.opaque import opaque, shown_opaque
from shoal.workflows.subjects import erasure, tags
from shoal.workflows.subjects.erasure import SubjectErased
from shoal.workflows.subjects.tags import SubjectTag


class TagsBody(Struct, forbid_unknown_fields=True):
    """What carries data about a subject."""

    tags: Annotated[list[SubjectTag], Meta(min_length=1, max_length=1000)]  # Objects, or parts of them.


class TaggedView(Struct):
    """The result of tagging, or of removing tags."""

    changed: int  # How many tags were not there before, or were removed.


class TagsQuery(ReadQuery, forbid_unknown_fields=True):
    """A page of tags."""

    after: str = ""  # The `after` of the previous page.


class TagsView(Struct):
    """A page of what is tagged with a subject."""

    tags: list[SubjectTag]  # In the order of their bytes.
    after: str  # Ask again with it; empty: there are no more.


class EraseQuery(WriteQuery, forbid_unknown_fields=True):
    """The place at which an erasure continues."""

    after: str = ""  # The `after` of the previous report.


class SubjectReportView(Struct):
    """The erasure of a subject's data."""

    space: str
    subject: str
    objects: list[SubjectErased]  # What became of each.
    left: int  # Tags that are there now: of what was kept or failed, or was tagged meanwhile. At most a page is counted.
    waits_for: list[str] | None  # Nodes that are not known to hold all deletions yet; null if the token may not know.
    after: str  # If not empty, the bound of one request was reached: ask again with it.


async def tag(exchange: Exchange) -> web.Response:
    """Tag objects with a subject."""
    return await _written(exchange, exchange.name("subject"), (await exchange.body(TagsBody)).tags, remove=False)


async def untag(exchange: Exchange) -> web.Response:
    """Remove tags; the objects stay."""
    return await _written(exchange, exchange.name("subject"), (await exchange.body(TagsBody)).tags, remove=True)


async def _written(exchange: Exchange, subject: str, found: list[SubjectTag], *, remove: bool) -> web.Response:
    changed = await tags.write(exchange.connection, exchange.name("space"), subject, found, remove=remove)
    return exchange.answer(TaggedView(changed))


async def find(exchange: Exchange) -> web.Response:
    """A page of what is tagged with a subject."""
    after = opaque(exchange.query(TagsQuery).after, "after")
    found = await tags.page(exchange.connection, exchange.name("space"), exchange.name("subject"), after)
    return exchange.answer(TagsView(found.tags, shown_opaque(found.after)))


async def erase(exchange: Exchange) -> web.Response:
    """Delete what is tagged with a subject, a bounded number in one request, and then the tags."""
    report, after = await erasure.erase(
        exchange.connection,
        exchange.name("space"),
        exchange.name("subject"),
        after=opaque(exchange.query(EraseQuery).after, "after"),
        objects_max=exchange.config.space_deletes_max,
    )
    return exchange.answer(
        SubjectReportView(report.space, report.subject, report.objects, report.left, report.waits_for, shown_opaque(after))
    )
