"""What changes a thread's newest state, over HTTP: merges, undo and redo, edits; and what changed in it.

Each is a flow of `shoal.workflows` over the request's own session, as in the client library: there is one merge.
An Idempotency-Key makes a repetition the first one's answer.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from aiohttp import web
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from shoal.api.http.exchange import Exchange
from shoal.api.thread.threads import Limit, SavedView
from shoal.errors import HeadMoved, InvalidInput
from shoal.workflows import editing, merges
from shoal.workflows import undo as workflow
from shoal.workflows.checkpoint import Checkpoint
from shoal.workflows.checkpoints import ThreadCheckpoints
from shoal.workflows.merging import ABSENT, UNRESOLVED, merged
from shoal.workflows.mutations import Mutation
from shoal.workflows.mutations import mutations as changed


class MergeQuery(Struct, forbid_unknown_fields=True):
    branch: str = "main"
    heads: str = ""  # Ids with commas between them, besides the branch's winner; empty: all heads of the branch.


class MergeConflictView(Struct):
    base: Raw | UnsetType  # Left out: the common ancestor had no such channel.
    sides: list[Raw]  # What they made of it, each once; a side that removed it is not among them.
    removed: bool  # One did.


class MergeView(Struct):
    heads: list[str]  # What is joined, the oldest first.
    base: str | None  # Their nearest common ancestor.
    state: dict[str, Raw]  # What fits together.
    conflicts: dict[str, MergeConflictView]  # What does not: say in `resolve` or `remove` what shall be.
    secret: list[str]


class MergeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    branch: str = "main"
    heads: list[str] | None = None  # As the GET answered; left out, all heads of the branch. Needed to resolve anything.
    resolve: dict[str, Raw] = field(default_factory=dict)  # Channels that do not fit together: their values.
    remove: list[str] = field(default_factory=list)  # Or that they are to go.
    metadata: dict[str, Raw] | None = None
    author: str = ""


class UndoBody(Struct, forbid_unknown_fields=True, kw_only=True):
    branch: str = "main"
    count: Annotated[int, Meta(ge=1, le=100)] = 1  # The last so many, the newest first.
    checkpoint: str | None = None  # Or what this one changed.
    author: str = ""


class RedoBody(Struct, forbid_unknown_fields=True, kw_only=True):
    branch: str = "main"
    count: Annotated[int, Meta(ge=1, le=100)] = 1
    author: str = ""


class EditBody(Struct, forbid_unknown_fields=True, kw_only=True):
    patch: Raw  # Channels and their new values, or a JSON Patch (RFC 6902) of the whole state.
    by: str = ""
    branch: str = "main"


class MutationsQuery(Struct, forbid_unknown_fields=True):
    branch: str = "main"
    after: str | None = None  # A mutation's id, or a checkpoint's: all up to it is left out.
    limit: Limit = 100
    reveal: bool = False  # Show what is secret.


class MutationView(Struct):
    id: str
    checkpoint: str
    channel: str
    op: Literal["add", "remove", "replace"]
    path: str  # RFC 6901, within the channel; empty: the channel itself.
    author: str
    time: datetime
    before: Raw | UnsetType = UNSET
    after: Raw | UnsetType = UNSET


class MutationsView(Struct):
    mutations: list[MutationView]
    more: bool  # Ask again with after=mutations[-1].id.


async def merge_preview(exchange: Exchange) -> web.Response:
    query = exchange.query(MergeQuery)
    heads = [id for id in query.heads.split(",") if id] or None
    sides = await merges.sides(exchange.checkpoints(), heads, branch=query.branch)
    found: dict[str, MergeConflictView] = {}

    def left(channel: str, base: Any, made: Any) -> Any:
        found[channel] = MergeConflictView(
            UNSET if base is ABSENT else exchange.of_value(base),
            [exchange.of_value(side) for side in made if side is not ABSENT],
            any(side is ABSENT for side in made),
        )
        return ABSENT

    state = await merged(sides.base, sides.states, left)
    shown = {name: exchange.of_value(value) for name, value in state.items()}
    return exchange.answer(MergeView(list(sides.ordered), sides.base_id, shown, found, sides.secret))


async def merge(exchange: Exchange) -> web.Response:
    body = await exchange.body(MergeBody)
    resolved: dict[str, Any] = {name: exchange.value(value) for name, value in body.resolve.items()}
    if both := sorted(resolved.keys() & set(body.remove)):
        raise InvalidInput(f"channels {', '.join(both)} are to be resolved and removed. Nothing was written.", field="remove")
    resolved |= dict.fromkeys(body.remove, ABSENT)
    checkpoints = exchange.checkpoints(author=body.author)
    if resolved:
        await _check_seen(checkpoints, body)
    joined = await merges.merge(
        checkpoints,
        body.heads,
        lambda channel, _base, _sides: resolved.get(channel, UNRESOLVED),
        branch=body.branch,
        metadata={name: exchange.value(value) for name, value in (body.metadata or {}).items()},
        key=exchange.key,
        durability=exchange.durability,
    )
    return exchange.answer(_view(joined))


async def _check_seen(checkpoints: ThreadCheckpoints, body: MergeBody) -> None:
    """A merge that decides channels must name the heads that the caller has seen.

    Raises:
        InvalidInput: it does not say what it has seen.
        HeadMoved: there is more by now.
    """
    if body.heads is None:
        raise InvalidInput("`resolve` and `remove` need `heads`: what you have seen. Nothing was written.", field="heads")
    there = (await checkpoints.heads()).get(body.branch, [])
    if not there or there[0] in body.heads:
        return
    if not set(body.heads) <= set((await checkpoints.read(there[0], [])).parents):
        raise HeadMoved(
            f"branch {body.branch!r} of thread {checkpoints.thread!r} is at {there[0]}, which is not among the given heads. "
            "Nothing was written. Look at what there is to merge, and send what you decide then.",
            heads=there,
        )


async def undo(exchange: Exchange) -> web.Response:
    body = await exchange.body(UndoBody)
    if body.checkpoint is not None and body.count != 1:
        raise InvalidInput("give `count` or `checkpoint`, and not both. Nothing was written.", field="count")
    made = await workflow.undo(
        exchange.checkpoints(author=body.author),
        body.count,
        branch=body.branch,
        checkpoint=body.checkpoint,
        key=exchange.key,
        durability=exchange.durability,
    )
    return exchange.answer(_view(made))


async def redo(exchange: Exchange) -> web.Response:
    body = await exchange.body(RedoBody)
    made = await workflow.redo(
        exchange.checkpoints(author=body.author),
        body.count,
        branch=body.branch,
        key=exchange.key,
        durability=exchange.durability,
    )
    return exchange.answer(_view(made))


async def edit(exchange: Exchange) -> web.Response:
    body = await exchange.body(EditBody)
    patch = exchange.value(body.patch)
    if not isinstance(patch, dict) and not (isinstance(patch, list) and all(isinstance(step, dict) for step in patch)):
        raise InvalidInput("`patch` is a map of channels, or a JSON Patch. Nothing was written.", field="patch")
    made = await editing.edit(
        exchange.checkpoints(), patch, by=body.by, branch=body.branch, key=exchange.key, durability=exchange.durability
    )
    return exchange.answer(_view(made))


async def mutations(exchange: Exchange) -> web.Response:
    query = exchange.query(MutationsQuery)
    checkpoints = exchange.checkpoints()
    limit = min(query.limit, exchange.config.page_items_max)
    head = await checkpoints.newest(query.branch)
    log = changed(checkpoints, head, after=query.after, limit=limit + 1, reveal=query.reveal)
    found = [each async for each in log]
    return exchange.answer(MutationsView([_mutation(exchange, each) for each in found[:limit]], len(found) > limit))


def _view(made: Checkpoint) -> SavedView:
    return SavedView(made.id, list(made.parents), made.branch, list(made.heads), made.wall_ms)


def _mutation(exchange: Exchange, found: Mutation) -> MutationView:
    return MutationView(
        found.id,
        found.checkpoint,
        found.channel,
        found.op,
        found.path,
        found.author,
        found.time,
        UNSET if found.op == "add" else exchange.of_value(found.before),
        UNSET if found.op == "remove" else exchange.of_value(found.after),
    )
