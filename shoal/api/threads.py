"""Threads over HTTP: checkpoints, branches, the journal."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.exchange import Exchange, ReadQuery
from shoal.errors import InvalidInput
from shoal.protocol.requests import (
    Append,
    Appended,
    Branches,
    Checkpoint,
    Checkpoints,
    Events,
    Heads,
    History,
    Load,
    ReadJournal,
    Save,
    Saved,
)

Limit = Annotated[int, Meta(ge=1)]
LATEST = "latest"


class SaveBody(Struct, forbid_unknown_fields=True):
    state: dict[str, Raw]
    metadata: dict[str, Raw] | None = None
    branch: str = "main"
    expect_head: str | None = None  # "" expects that the branch does not exist yet.
    parent: str | None = None  # "" for none. Left out, it is the branch's winner on the node that is asked.
    schema: str = ""
    schema_version: int = 0


class SavedView(Struct):
    id: str
    parents: list[str]
    branch: str
    heads: list[str]
    wall_ms: int

    @classmethod
    def of(cls, reply: Saved) -> SavedView:
        return cls(reply.id, reply.parents, reply.branch, reply.heads, reply.wall_ms)


class CheckpointView(Struct, omit_defaults=True):
    id: str
    parents: list[str]
    branch: str
    heads: list[str]
    wall_ms: int
    schema: str
    schema_version: int
    metadata: Raw
    state: dict[str, Raw] | None = None  # Left out of a history.


class HistoryQuery(ReadQuery, forbid_unknown_fields=True):
    branch: str = "main"
    before: str | None = None
    limit: Limit = 100


class HistoryView(Struct):
    checkpoints: list[CheckpointView]
    more: bool


class BranchQuery(ReadQuery, forbid_unknown_fields=True):
    branch: str = "main"


class HeadsView(Struct):
    heads: dict[str, list[str]]


class BranchView(Struct):
    name: str
    head: str
    forked: bool


class BranchesView(Struct):
    branches: list[BranchView]


class EventBody(Struct, forbid_unknown_fields=True):
    event: Raw
    key: str | None = None


class AppendedView(Struct):
    id: str
    appended: bool


class EventsQuery(ReadQuery, forbid_unknown_fields=True):
    after: str = ""
    limit: Limit = 1000


class EventView(Struct):
    id: str
    key: str | None
    wall_ms: int
    event: Raw
    late: bool
    cursor: str  # To go on right after this event.


class EventsView(Struct):
    events: list[EventView] = field(default_factory=list)
    cursor: str = ""
    more: bool = False


async def save(exchange: Exchange) -> web.Response:
    body = await exchange.body(SaveBody)
    reply = await exchange.call(
        Save(
            exchange.name("space"),
            exchange.name("thread"),
            {name: exchange.stored(value) for name, value in body.state.items()},
            metadata=exchange.stored_map(body.metadata or {}),
            branch=body.branch,
            parent=body.parent,
            expect_head=body.expect_head,
            schema=body.schema,
            schema_version=body.schema_version,
        )
    )
    assert isinstance(reply, Saved)
    return exchange.answer(SavedView.of(reply), status=201)


async def history(exchange: Exchange) -> web.Response:
    query = exchange.query(HistoryQuery)
    reply = await exchange.call(
        History(exchange.name("space"), exchange.name("thread"), query.branch, query.before, query.limit),
        stale=query.stale,
    )
    assert isinstance(reply, Checkpoints)
    return exchange.answer(HistoryView([_view(exchange, item, state=False) for item in reply.items], reply.more))


async def load(exchange: Exchange) -> web.Response:
    query, id = exchange.query(BranchQuery), exchange.name("checkpoint")
    reply = await exchange.call(
        Load(exchange.name("space"), exchange.name("thread"), None if id == LATEST else id, query.branch),
        stale=query.stale,
    )
    assert isinstance(reply, Checkpoint)
    return exchange.answer(_view(exchange, reply, state=True))


def _view(exchange: Exchange, checkpoint: Checkpoint, *, state: bool) -> CheckpointView:
    return CheckpointView(
        checkpoint.id,
        checkpoint.parents,
        checkpoint.branch,
        checkpoint.heads,
        checkpoint.wall_ms,
        checkpoint.schema,
        checkpoint.schema_version,
        exchange.shown(checkpoint.metadata),
        {name: exchange.shown(value) for name, value in checkpoint.channels.items()} if state else None,
    )


async def heads(exchange: Exchange) -> web.Response:
    return exchange.answer(HeadsView((await _branches(exchange)).branches))


async def branches(exchange: Exchange) -> web.Response:
    found = (await _branches(exchange)).branches
    return exchange.answer(BranchesView([BranchView(name, heads[0], len(heads) > 1) for name, heads in found.items()]))


async def _branches(exchange: Exchange) -> Branches:
    reply = await exchange.call(Heads(exchange.name("space"), exchange.name("thread")), stale=exchange.query(ReadQuery).stale)
    assert isinstance(reply, Branches)
    return reply


async def append(exchange: Exchange) -> web.Response:
    body = await exchange.body(EventBody)
    reply = await exchange.call(
        Append(exchange.name("space"), exchange.name("thread"), exchange.stored(body.event), key=body.key)
    )
    assert isinstance(reply, Appended)
    return exchange.answer(AppendedView(reply.id, reply.appended), status=201 if reply.appended else 200)


async def events(exchange: Exchange) -> web.Response:
    query = exchange.query(EventsQuery)
    after = opaque(query.after, "after")
    reply = await exchange.call(
        ReadJournal(exchange.name("space"), exchange.name("thread"), after, query.limit), stale=query.stale
    )
    assert isinstance(reply, Events)
    views = [EventView(e.id, e.key, e.wall_ms, exchange.shown(e.event), e.late, shown_opaque(e.cursor)) for e in reply.events]
    return exchange.answer(EventsView(views, shown_opaque(reply.cursor), reply.more))


def shown_opaque(token: bytes) -> str:
    """Opaque bytes as text that is safe in a URL."""
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def opaque(text: str, field: str) -> bytes:
    """The bytes behind `shown_opaque`.

    Raises:
        InvalidInput: it is no such text.
    """
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise InvalidInput(
            f"{field} is not what an earlier answer gave. Nothing was written. Give it back unchanged.", field=field
        ) from None
