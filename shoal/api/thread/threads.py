"""Threads over HTTP: checkpoints and branches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal import values
from shoal.api.http.exchange import Exchange, ReadQuery, Seconds
from shoal.api.thread.saving import SaveFields, save_request
from shoal.errors import InvalidInput
from shoal.protocol.requests import (
    Branches,
    Checkpoint,
    DeleteThread,
    Heads,
    History,
    Load,
    Move,
    Prune,
    Saved,
)

Limit = Annotated[int, Meta(ge=1)]


class SaveBody(SaveFields):
    """A save in the thread that the path names."""


class SavedView(Struct):
    """The checkpoint that a save made."""

    id: str
    parents: list[str]
    branch: str
    heads: list[str]
    wall_ms: int

    @classmethod
    def of(cls, reply: Saved) -> SavedView:
        """The reply to a save as it is shown over HTTP."""
        return cls(reply.id, reply.parents, reply.branch, reply.heads, reply.wall_ms)


class PruneBody(Struct, forbid_unknown_fields=True):
    """The checkpoints to prune. `keep_last` or `older_than_s` is needed; with both, a checkpoint stays if either keeps it."""

    keep_last: int | None = None
    older_than_s: Seconds | None = None
    branch: str | None = None
    dry_run: bool = False


class PruneView(Struct):
    """The checkpoints that were pruned, or would be."""

    gone: list[str]  # At most 10,000 ids.
    count: int
    stays: dict[str, int]
    bytes: int
    dry_run: bool


class ErasedView(Struct):
    """The result of a deletion."""

    existed: bool


class CheckpointView(Struct, omit_defaults=True):
    """A checkpoint."""

    id: str
    parents: list[str]
    branch: str
    heads: list[str]
    wall_ms: int
    schema: str
    schema_version: int
    metadata: Raw
    author: str = ""
    hashes: dict[str, str] = field(default_factory=dict)
    state: dict[str, Raw] | None = None  # Left out of a history without `states`.
    readable_from: int = 0
    secret: list[str] = field(default_factory=list)  # JSON pointers to values that must not be shown to people.
    label: str = ""


class HistoryQuery(ReadQuery, forbid_unknown_fields=True):
    """A page of a branch's history."""

    branch: str = "main"
    before: str | None = None
    limit: Limit = 100
    filter: str = ""  # A JSON object: conditions that the metadata must meet.
    author: str | None = None
    states: bool = False  # Include the states; a page then holds fewer checkpoints.


class HistoryView(Struct):
    """A page of checkpoints, newest first."""

    checkpoints: list[CheckpointView]
    more: bool
    next: str  # If there are more, the `before` to continue with.


class LoadQuery(ReadQuery, forbid_unknown_fields=True):
    """The part of a checkpoint that is wanted, and how `latest` is resolved."""

    branch: str = "main"
    channels: str | None = None  # Only these, with commas between them, each percent-encoded. If left out, all.
    as_of: datetime | None = None  # With `latest`: the head that the branch had at this time; with a time zone.
    label: str | None = None  # With `latest`: the checkpoint that has this label, on any branch.


class HeadsView(Struct):
    """The heads of each branch, winner first."""

    heads: dict[str, list[str]]


class BranchView(Struct):
    """A branch."""

    name: str
    head: str
    forked: bool


class BranchesView(Struct):
    """All branches of a thread."""

    branches: list[BranchView]


class NewBranchBody(Struct, forbid_unknown_fields=True):
    """A branch to create."""

    name: str
    at: str


class RollbackBody(Struct, forbid_unknown_fields=True):
    """The checkpoint to put a branch on."""

    to: str
    reason: str = ""
    by: str = ""


class MovedView(Struct):
    """Where a branch was, and is."""

    branch: str
    to: str
    before: list[str]
    heads: list[str]


async def save(exchange: Exchange) -> web.Response:
    """Save a checkpoint. `If-Match` gives the head that the branch must have.

    Raises:
        InvalidInput: the body holds both a state and a change, or neither.
        HeadMoved: the branch has moved on; nothing was written.
    """
    body = await exchange.body(SaveBody)
    body.expect_head = exchange.expected(body.expect_head, "expect_head")
    reply = await exchange.call(save_request(exchange, exchange.name("space"), exchange.name("thread"), body))
    exchange.version = reply.id
    return exchange.answer(SavedView.of(reply), status=201)


async def prune(exchange: Exchange) -> web.Response:
    """Prune old checkpoints; with `dry_run`, only say which."""
    body = await exchange.body(PruneBody)
    age_ms = None if body.older_than_s is None else int(body.older_than_s * 1000)
    reply = await exchange.call(
        Prune(exchange.name("space"), exchange.name("thread"), body.keep_last, age_ms, body.branch, body.dry_run)
    )
    return exchange.answer(PruneView(reply.gone, reply.count, reply.stays, reply.bytes, reply.dry_run))


async def delete(exchange: Exchange) -> web.Response:
    """Delete a thread with all it holds, on every node. It is no error if there is none."""
    reply = await exchange.call(DeleteThread(exchange.name("space"), exchange.name("thread")))
    return exchange.answer(ErasedView(reply.existed))


async def history(exchange: Exchange) -> web.Response:
    """List checkpoints of a branch by their first parents, newest first."""
    query = exchange.query(HistoryQuery)
    asked = History(exchange.name("space"), exchange.name("thread"), query.branch, query.before, query.limit, query.states)
    reply = await exchange.call(
        msgspec.structs.replace(asked, filter=_wanted(query.filter), author=query.author), stale=query.stale
    )
    return exchange.answer(
        HistoryView([checkpoint_view(exchange, item, state=query.states) for item in reply.items], reply.more, reply.next)
    )


def _wanted(text: str) -> dict[str, bytes]:
    """
    Raises:
        InvalidInput: it is not a JSON object.
    """
    if not text:
        return {}
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise InvalidInput('filter must be a JSON object, as in ?filter={"source":"loop"}.', field="filter") from None
    return {name: values.encode(values.from_json(value)) for name, value in fields.items()}


async def load(exchange: Exchange) -> web.Response:
    """Load a checkpoint by its id.

    Raises:
        NotFound, Pruned: there is no such checkpoint.
        InvalidInput: `as_of` has no time zone.
    """
    return await _loaded(exchange, exchange.name("checkpoint"))


async def load_latest(exchange: Exchange) -> web.Response:
    """Load the head of a branch, or the checkpoint that it had at a time, or that has a label.

    Raises:
        NotFound, Pruned: there is no such checkpoint.
        InvalidInput: `as_of` has no time zone, or there is a label too.
    """
    return await _loaded(exchange, None)


async def _loaded(exchange: Exchange, id: str | None) -> web.Response:
    query = exchange.query(LoadQuery)
    reply = await exchange.call(
        Load(
            exchange.name("space"),
            exchange.name("thread"),
            id,
            query.branch,
            channels=_names(query.channels),
            as_of_ms=moment_ms(query.as_of, "as_of"),
            label=query.label,
        ),
        stale=query.stale,
    )
    exchange.version = reply.id
    return exchange.answer(checkpoint_view(exchange, reply, state=True))


def _names(listed: str | None) -> list[str] | None:
    """Split names at commas. A comma within a name is still `%2C` here, after the query was decoded."""
    return None if listed is None else [unquote(name) for name in listed.split(",") if name]


def moment_ms(time: datetime | None, field: str) -> int | None:
    """Milliseconds since 1970; `field` is for the error.

    Raises:
        InvalidInput: it has no time zone.
    """
    if time is None:
        return None
    if time.tzinfo is None:
        raise InvalidInput(f"{field} needs a time zone, as in 2026-01-01T12:00:00Z.", field=field)
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def checkpoint_view(exchange: Exchange, checkpoint: Checkpoint, *, state: bool) -> CheckpointView:
    """A checkpoint as it is shown over HTTP; its values are decoded only if `state`."""
    return CheckpointView(
        checkpoint.id,
        checkpoint.parents,
        checkpoint.branch,
        checkpoint.heads,
        checkpoint.wall_ms,
        checkpoint.schema,
        checkpoint.schema_version,
        exchange.shown(checkpoint.metadata),
        checkpoint.author,
        checkpoint.hashes,
        {name: exchange.shown(value, checkpoint.schema) for name, value in checkpoint.channels.items()} if state else None,
        checkpoint.readable_from,
        checkpoint.secret,
        checkpoint.label,
    )


async def heads(exchange: Exchange) -> web.Response:
    """List the heads of each branch."""
    return exchange.answer(HeadsView((await _branches(exchange)).branches))


async def branches(exchange: Exchange) -> web.Response:
    """List the branches."""
    found = (await _branches(exchange)).branches
    return exchange.answer(BranchesView([BranchView(name, heads[0], len(heads) > 1) for name, heads in found.items()]))


async def new_branch(exchange: Exchange) -> web.Response:
    """Create a branch.

    Raises:
        BranchTaken: there is one by that name; nothing was written.
    """
    body = await exchange.body(NewBranchBody)
    move = Move(exchange.name("space"), exchange.name("thread"), body.name, body.at, new=True)
    return await _moved(exchange, move, status=201)


async def rollback(exchange: Exchange) -> web.Response:
    """Put a branch on another checkpoint. Nothing is deleted: the old heads can still be loaded by id."""
    body = await exchange.body(RollbackBody)
    space, thread, branch = exchange.name("space"), exchange.name("thread"), exchange.name("branch")
    return await _moved(exchange, Move(space, thread, branch, body.to, reason=body.reason, by=body.by), status=200)


async def _moved(exchange: Exchange, move: Move, *, status: int) -> web.Response:
    reply = await exchange.call(move)
    return exchange.answer(MovedView(reply.branch, reply.to, reply.before, reply.heads), status=status)


async def _branches(exchange: Exchange) -> Branches:
    return await exchange.call(Heads(exchange.name("space"), exchange.name("thread")), stale=exchange.query(ReadQuery).stale)
