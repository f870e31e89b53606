"""Threads over HTTP: checkpoints and branches."""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.exchange import Exchange, ReadQuery
from shoal.protocol.requests import (
    Branches,
    Checkpoint,
    Checkpoints,
    Heads,
    History,
    Load,
    Move,
    Moved,
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
    on_conflict: Literal["refuse", "fork"] = "refuse"  # Where the branch has moved on from `parent`.
    merged: list[str] = field(default_factory=list)  # Heads that it joins, besides its parent.
    author: str = ""


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


class NewBranchBody(Struct, forbid_unknown_fields=True):
    name: str
    at: str


class MoveBody(Struct, forbid_unknown_fields=True):
    to: str
    reason: str = ""
    by: str = ""


class MovedView(Struct):
    branch: str
    to: str
    before: list[str]
    heads: list[str]


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
            merged=body.merged,
            fork=body.on_conflict == "fork",
            author=body.author,
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


async def new_branch(exchange: Exchange) -> web.Response:
    body = await exchange.body(NewBranchBody)
    move = Move(exchange.name("space"), exchange.name("thread"), body.name, body.at, new=True)
    return await _moved(exchange, move, status=201)


async def rollback(exchange: Exchange) -> web.Response:
    body = await exchange.body(MoveBody)
    space, thread, branch = exchange.name("space"), exchange.name("thread"), exchange.name("branch")
    return await _moved(exchange, Move(space, thread, branch, body.to, reason=body.reason, by=body.by), status=200)


async def _moved(exchange: Exchange, move: Move, *, status: int) -> web.Response:
    reply = await exchange.call(move)
    assert isinstance(reply, Moved)
    return exchange.answer(MovedView(reply.branch, reply.to, reply.before, reply.heads), status=status)


async def _branches(exchange: Exchange) -> Branches:
    reply = await exchange.call(Heads(exchange.name("space"), exchange.name("thread")), stale=exchange.query(ReadQuery).stale)
    assert isinstance(reply, Branches)
    return reply
