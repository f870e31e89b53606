"""The changes of a thread's state over HTTP: saves, merges, edits, the differences between checkpoints, the mutation log, the
audit; and exports as JSON lines.

Each is a flow of `shoal.workflows` over the request's own session, shared with the client library.
A request that is repeated with the same Idempotency-Key gets the first one's answer.

Laws:
- An export is sent as it is read, with one record in memory for a slow reader. If an export fails half-way,
  the connection is aborted, so that no reader takes it for complete.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from shoal import values
from shoal.api.derived import show, view_of
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.problems import internal
from shoal.errors import HeadMoved, InvalidInput, ShoalError
from shoal.kinds.thread.flows import audit as workflow
from shoal.kinds.thread.flows import merging
from shoal.kinds.thread.flows import merging as merges
from shoal.kinds.thread.flows.checkpoints import Checkpoint, ThreadCheckpoints
from shoal.kinds.thread.flows.merging import ABSENT, UNRESOLVED, difference, merged
from shoal.kinds.thread.flows.mutations import Mutation
from shoal.kinds.thread.flows.mutations import mutations as changed
from shoal.kinds.thread.flows.provenance import setting_of
from shoal.protocol.base import ChannelNames, Channels, Merged, Secrets
from shoal.protocol.requests import Save, Saved
from shoal.schemas.secret_fields import hidden
from shoal.values.difference import Change
from shoal.workflows.spaces import check_exists
from shoal.workflows.transfer.exporting import Wanted, export
from shoal.workflows.transfer.records import Failure

Limit = Annotated[int, Meta(ge=1)]


class MergeQuery(Struct, forbid_unknown_fields=True):
    """The heads of a merge that is only previewed."""

    branch: str = "main"
    heads: str = ""  # Ids with commas between them, in addition to the winning head; empty: all heads of the branch.
    reveal: bool = False  # Show secret values too.


class MergeConflictView(Struct):
    """A channel that the heads changed in conflicting ways."""

    base: Raw | UnsetType  # The value in the common ancestor. Left out if it had no such channel.
    sides: list[Raw]  # The heads' different values. A head that removed the channel is not among them.
    removed: bool  # Whether a head removed it.


class MergeView(Struct):
    """The result that a merge of these heads would have."""

    heads: list[str]  # The checkpoints that are merged, oldest first.
    base: str | None  # Their nearest common ancestor.
    state: dict[str, Raw]  # The channels without a conflict, merged.
    conflicts: dict[str, MergeConflictView]  # The channels in conflict: decide them in `resolve` or `remove`.
    secret: list[str]


class MergeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The heads to merge, and the caller's decisions on channels in conflict."""

    branch: str = "main"
    heads: Merged | None = None  # As the GET answered; if left out, all heads. Required with `resolve` or `remove`.
    resolve: Channels[Raw] = field(default_factory=dict)  # The values of channels in conflict.
    remove: ChannelNames = field(default_factory=list)  # Channels in conflict that are removed.
    metadata: dict[str, Raw] | None = None
    author: str = ""


class EditBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A change of the newest state by a person."""

    patch: Raw  # Channels and their new values, or a JSON Patch (RFC 6902) of the whole state.
    by: str = ""
    branch: str = "main"


class MutationsQuery(Struct, forbid_unknown_fields=True):
    """A page of the mutation log of a branch."""

    branch: str = "main"
    after: str | None = None  # The id of a mutation or a checkpoint; the log begins after it.
    limit: Limit = 100
    reveal: bool = False  # Show secret values too.


class MutationView(Struct):
    """One change of one place in the state."""

    id: str
    checkpoint: str
    channel: str
    op: Literal["add", "remove", "replace"]
    path: str  # A JSON pointer (RFC 6901) within the channel; empty for the channel itself.
    author: str
    time: datetime
    before: Raw | UnsetType = UNSET
    after: Raw | UnsetType = UNSET


class MutationsView(Struct):
    """A page of the mutation log, oldest first."""

    mutations: list[MutationView]
    more: bool  # Ask again with after=mutations[-1].id.


async def merge_preview(exchange: Exchange) -> web.Response:
    """Show the result and the conflicts of a merge; secret values are hidden unless `reveal` is given. Nothing is written."""
    query = exchange.query(MergeQuery)
    heads = [id for id in query.heads.split(",") if id] or None
    sides = await merges.sides(exchange.checkpoints(), heads, branch=query.branch)
    found: dict[str, MergeConflictView] = {}

    def shown(channel: str, value: Any) -> Raw:
        return exchange.of_value(value if query.reveal else hidden(sides.hides, channel, "", value))

    def left(channel: str, base: Any, made: Any) -> Any:
        found[channel] = MergeConflictView(
            UNSET if base is ABSENT else shown(channel, base),
            [shown(channel, side) for side in made if side is not ABSENT],
            any(side is ABSENT for side in made),
        )
        return ABSENT

    state = await merged(sides.base, sides.states, left)
    result = {name: shown(name, value) for name, value in state.items()}
    return await exchange.answer(MergeView(list(sides.ordered), sides.base_id, result, found, sides.secret))


async def merge(exchange: Exchange) -> web.Response:
    """Merge heads of a branch into one checkpoint.

    Raises:
        InvalidInput: a channel is both resolved and removed, or decisions are given without `heads`.
        HeadMoved: the branch has heads that the caller has not seen; nothing was written.
        MergeConflict: channels are in conflict and not decided; nothing was written.
    """
    body = await exchange.body(MergeBody)
    resolved: dict[str, Any] = {name: exchange.value(value) for name, value in body.resolve.items()}
    if both := sorted(resolved.keys() & set(body.remove)):
        raise InvalidInput(
            f"channels {', '.join(both)} are in both `resolve` and `remove`. Nothing was written.", field="remove"
        )
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
    return await exchange.answer(_view(exchange, joined))


async def _check_seen(checkpoints: ThreadCheckpoints, body: MergeBody) -> None:
    """Check that a caller who decides channels has seen all heads of the branch.

    Raises:
        InvalidInput: it names no heads.
        HeadMoved: a head is not among them.
    """
    if body.heads is None:
        raise InvalidInput(
            "`resolve` and `remove` need `heads`, the heads that you have seen. Nothing was written.", field="heads"
        )
    there = (await checkpoints.heads()).get(body.branch, [])
    unseen = [id for id in there if id not in body.heads]
    for id in unseen:
        if set(body.heads) <= set((await checkpoints.read(id, [])).parents):
            return  # It is the merge of these heads: the answer to an earlier call was lost.
    if unseen:
        raise HeadMoved(
            f"branch {body.branch!r} of thread {checkpoints.thread!r} is at {', '.join(unseen)} too, and the given heads do "
            "not say so. Nothing was written. Read the merge again and send your decisions with its heads.",
            heads=there,
        )


async def edit(exchange: Exchange) -> web.Response:
    """Save a checkpoint with the newest state, changed by `patch`.

    Raises:
        InvalidInput: `patch` is neither a map of channels nor a JSON Patch; nothing was written.
    """
    body = await exchange.body(EditBody)
    patch = exchange.value(body.patch)
    if not isinstance(patch, dict) and not (isinstance(patch, list) and all(isinstance(step, dict) for step in patch)):
        raise InvalidInput("`patch` must be a map of channels or a JSON Patch. Nothing was written.", field="patch")
    made = await merging.edit(
        exchange.checkpoints(), patch, by=body.by, branch=body.branch, key=exchange.key, durability=exchange.durability
    )
    return await exchange.answer(_view(exchange, made))


async def mutations(exchange: Exchange) -> web.Response:
    """Read the mutation log of a branch, a page at a time; it is computed from the states of its checkpoints."""
    query = exchange.query(MutationsQuery)
    checkpoints = exchange.checkpoints()
    limit = min(query.limit, exchange.config.page_items_max)
    head = await checkpoints.newest(query.branch)
    log = changed(checkpoints, head, after=query.after, limit=limit + 1, reveal=query.reveal)
    found = [each async for each in log]
    return await exchange.answer(MutationsView([_mutation(exchange, each) for each in found[:limit]], len(found) > limit))


def _view(exchange: Exchange, made: Checkpoint) -> Struct:
    return show(exchange, Saved(made.id, list(made.parents), made.branch, list(made.heads), made.wall_ms))


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


SavedView = view_of(Saved)


class SaveFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either `state`, or one or more of `update`, `append` and `remove`; other channels then keep the parent's values."""

    state: Channels[Raw] | None = None
    update: Channels[Raw] = field(default_factory=dict)
    append: Channels[list[Raw]] = field(default_factory=dict)  # For each channel, elements to add at its end.
    remove: ChannelNames = field(default_factory=list)
    metadata: dict[str, Raw] | None = None
    branch: str = "main"
    expect_head: str | None = None  # The only head that the branch may have; "" if it must not exist yet.
    parent: str | None = None  # "" for none. If left out, the branch's winning head on the node that is asked.
    schema: str = ""
    schema_version: int = 0
    readable_from: int = 0  # The oldest schema version whose readers understand the state; 0: only this one.
    secret: Secrets = field(default_factory=list)  # JSON pointers to values that commands, diffs and exports hide.
    on_conflict: Literal["refuse", "fork"] = "refuse"  # What to do if the branch has moved on from `parent`.
    merged: Merged = field(default_factory=list)  # Heads that it merges, in addition to its parent.
    author: str = ""
    label: str = ""  # A name for the checkpoint, unique within its thread.
    configuration: dict[str, Raw] | None = None  # The author's configuration; a hash of it is kept, for `resume` to compare.
    dependencies: dict[str, str] | None = None  # Versions by name; kept in the same way.


class SaveBody(SaveFields):
    """A save in the thread that the path names."""


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
    return await exchange.answer(show(exchange, reply), status=201)


def save_request(exchange: Exchange, space: str, thread: str, fields: SaveFields) -> Save:
    """The request of a save.

    Raises:
        InvalidInput: `fields` hold both a state and a change, or neither.
        InvalidValue: a value cannot be stored.
    """
    changes = bool(fields.update or fields.append or fields.remove)
    if changes == (fields.state is not None):
        raise InvalidInput(
            "give either `state` (a whole state) or some of `update`, `append` and `remove` (a change). Nothing was written.",
            field="state",
        )
    return Save(
        space,
        thread,
        {name: exchange.stored(value) for name, value in (fields.update if fields.state is None else fields.state).items()},
        metadata=exchange.stored_map(fields.metadata or {}),
        branch=fields.branch,
        parent=fields.parent,
        expect_head=fields.expect_head,
        schema=fields.schema,
        schema_version=fields.schema_version,
        delta=changes,
        appended={name: _stored_list(exchange, elements) for name, elements in fields.append.items()},
        removed=fields.remove,
        merged=fields.merged,
        fork=fields.on_conflict == "fork",
        author=fields.author,
        readable_from=fields.readable_from,
        secret=fields.secret,
        label=fields.label,
        setting=setting_of(
            None
            if fields.configuration is None
            else {name: exchange.value(part) for name, part in fields.configuration.items()},
            fields.dependencies,
        ),
    )


def _stored_list(exchange: Exchange, elements: list[Raw]) -> bytes:
    return msgspec.msgpack.encode([Raw(exchange.stored(element)) for element in elements])


class DiffQuery(ReadQuery, forbid_unknown_fields=True, kw_only=True):
    """The checkpoints to compare: each is an id, or the name of a branch."""

    before: str = field(name="from")
    after: str = field(name="to", default="main")
    reveal: bool = False  # Show secret values too.


class DifferenceView(Struct):
    """One difference within a channel."""

    op: Literal["add", "remove", "replace"]
    path: str  # A JSON pointer (RFC 6901) within the channel; empty for the channel itself.
    before: Raw | UnsetType = UNSET
    after: Raw | UnsetType = UNSET


class DiffView(Struct):
    """The differences between two checkpoints; both ids are as the node resolved them."""

    before: str
    after: str
    channels: dict[str, list[DifferenceView]]  # Only channels that differ.


async def diff(exchange: Exchange) -> web.Response:
    """Compare two checkpoints channel by channel; values at secret paths are hidden unless `reveal` is given.

    Raises:
        NotFound, Pruned: one of the checkpoints is not there.
    """
    query = exchange.query(DiffQuery)
    checkpoints = exchange.checkpoints()
    found = await difference(checkpoints, query.before, query.after, reveal=query.reveal, stale=query.stale)
    channels = {name: [_difference_view(exchange, change) for change in changes] for name, changes in found.channels.items()}
    return await exchange.answer(DiffView(found.before, found.after, channels))


def _difference_view(exchange: Exchange, change: Change) -> DifferenceView:
    return DifferenceView(
        change.op,
        change.path,
        UNSET if change.op == "add" else exchange.shown(values.encode(change.before)),
        UNSET if change.op == "remove" else exchange.shown(values.encode(change.after)),
    )


NDJSON = "application/x-ndjson"


class AuditEntryView(Struct):
    """One checkpoint, event or step of a thread."""

    time: datetime
    kind: Literal["checkpoint", "event", "step"]
    text: str
    by: str
    known: str  # The newest checkpoint before it; empty if there was none.
    id: str  # Of the checkpoint or the event; a step's key.
    data: Raw  # A checkpoint's metadata, the event, or a step's result or error.


class AuditView(Struct):
    """A thread's audit."""

    entries: list[AuditEntryView]  # Oldest first; of checkpoints, events and steps at most 10,000 each.


async def audit(exchange: Exchange) -> web.Response:
    """Merge a thread's checkpoints, events and steps into one time line.

    Raises:
        NotFound: there is no such thread.
    """
    checkpoints = exchange.checkpoints()
    await check_exists(checkpoints.connection, checkpoints.space, checkpoints.thread)
    entries = [
        AuditEntryView(each.time, each.kind, each.text, each.by, each.known, each.id, exchange.of_value(each.data))
        for each in await workflow.audit(checkpoints)
    ]
    return await exchange.answer(AuditView(entries))


class ExportQuery(Struct, forbid_unknown_fields=True):
    """The form of an export."""

    reveal: bool = False  # With secret fields, for a token that may see them. Without them checkpoints get other ids.
    changes: bool = False  # States as changes of their parents', which takes less.


async def export_thread(exchange: Exchange) -> web.StreamResponse:
    """Stream one thread as JSON lines."""
    return await _streamed(exchange, Wanted(exchange.name("space"), exchange.name("thread")))


async def export_space(exchange: Exchange) -> web.StreamResponse:
    """Stream all objects of a space as JSON lines."""
    return await _streamed(exchange, Wanted(exchange.name("space")))


async def export_store(exchange: Exchange) -> web.StreamResponse:
    """Stream all objects of all spaces as JSON lines."""
    return await _streamed(exchange, Wanted())


async def _streamed(exchange: Exchange, wanted: Wanted) -> web.StreamResponse:
    asked = exchange.query(ExportQuery)
    async with aclosing(export(exchange.connection, wanted._replace(reveal=asked.reveal, changes=asked.changes))) as lines:
        # An error here is still answered as a problem document. The first lines say what follows, the third is read.
        first = [await anext(lines), await anext(lines, b""), await anext(lines, b"")]
        response = web.StreamResponse(headers={"Content-Type": NDJSON, **exchange.bookmark_headers()})
        await response.prepare(exchange.request)
        if exchange.request.method == "HEAD":
            return response
        try:
            await _write(exchange, response, b"".join(first))
            async for line in lines:
                await _write(exchange, response, line)
        except (TimeoutError, ConnectionError):
            _cut(exchange)  # It reads nothing, or is gone.
        except Exception as reason:
            error = reason if isinstance(reason, ShoalError) else internal(reason, where="export")
            with suppress(TimeoutError, ConnectionError):
                await _write(exchange, response, msgspec.json.encode(Failure(error.code, error.message)) + b"\n")
            _cut(exchange)
    return response


async def _write(exchange: Exchange, response: web.StreamResponse, line: bytes) -> None:
    async with asyncio.timeout(exchange.config.heartbeat_s):
        await response.write(line)


def _cut(exchange: Exchange) -> None:
    if exchange.request.transport is not None:
        exchange.request.transport.abort()
