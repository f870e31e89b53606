"""Going on over HTTP: what an agent resumes from, and which threads there are to go on with."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from shoal import values
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.spaces import ObjectsQuery
from shoal.api.thread.journals import EventView, event_views
from shoal.api.thread.steps import StepView, step_view
from shoal.api.thread.threads import CheckpointView, checkpoint_view
from shoal.errors import InvalidInput, NotFound
from shoal.protocol.requests import (
    Checkpoint,
    ListObjects,
    ListSteps,
    ListThreads,
    Load,
    ReadJournal,
    ThreadStatus,
)
from shoal.workflows.resume import catch_up, drift
from shoal.workflows.settings import setting_of

_LISTED_MAX = 1000


class ResumeQuery(ReadQuery, forbid_unknown_fields=True):
    branch: str = "main"
    configuration: str = ""  # A JSON object: what the agent runs with, to be compared with what was recorded.
    dependencies: str = ""  # A JSON object: versions by name; the same.
    on_drift: Literal["warn", "refuse"] = "warn"  # Where one differs.


class ReasonView(Struct):
    branch: str
    head: str | None
    other_heads: list[str]
    skipped: list[str]  # Keys of steps that are done.
    unresolved: list[str]  # Keys of steps that have an intent and no end.
    more_steps: bool
    more_events: bool
    quorum: bool  # A majority of the owners was asked, and this shows no less than they hold.
    staleness: str  # Why not.
    differences: list[str]  # Between what the agent runs with and what was recorded.


class ResumeView(Struct):
    checkpoint: CheckpointView | None
    open: list[StepView]
    events: list[EventView]  # Since about the time of the checkpoint.
    reason: ReasonView


class ThreadsQuery(ObjectsQuery, forbid_unknown_fields=True):
    status: ThreadStatus | None = None
    filter: str = ""  # A JSON object: what the metadata of the head of `main` must hold.


class ThreadsView(Struct, omit_defaults=True):
    names: list[str]  # In byte order; by status or metadata, it may be none though there are more.
    more: bool
    after: str | None = None  # Ask again with this, or else with names[-1].


async def resume(exchange: Exchange) -> web.Response:
    query = exchange.query(ResumeQuery)
    space, thread = exchange.name("space"), exchange.name("thread")
    setting, refuse = _setting(query), query.on_drift == "refuse"
    staleness = await catch_up(exchange.connection, space, thread)
    checkpoint = await _newest(exchange, Load(space, thread, branch=query.branch), stale=query.stale)
    steps = await exchange.call(ListSteps(space, thread, limit=_LISTED_MAX), stale=query.stale)
    still = await exchange.call(ListSteps(space, thread, only_open=True, limit=_LISTED_MAX), stale=query.stale)
    differences: tuple[str, ...] = ()
    if checkpoint is not None:
        differences = await drift(exchange.checkpoints(), query.branch, setting, refuse=refuse, stale=query.stale)
    since_ms = 0 if checkpoint is None else checkpoint.wall_ms
    events = await exchange.call(ReadJournal(space, thread, limit=_LISTED_MAX, since_ms=since_ms), stale=query.stale)
    reason = ReasonView(
        query.branch,
        None if checkpoint is None else checkpoint.id,
        [] if checkpoint is None else [head for head in checkpoint.heads if head != checkpoint.id],
        [step.key for step in steps.items if step.state == "done"],
        [step.key for step in still.items],
        steps.more or still.more,
        events.more,
        not staleness,
        staleness,
        list(differences),
    )
    shown = None if checkpoint is None else checkpoint_view(exchange, checkpoint, state=True)
    return exchange.answer(
        ResumeView(shown, [step_view(exchange, step) for step in still.items], event_views(exchange, events), reason)
    )


def _setting(query: ResumeQuery) -> bytes:
    """
    Raises:
        InvalidInput: the configuration, or the dependencies, are no JSON object.
    """
    configuration = _object(query.configuration, "configuration") if query.configuration else None
    dependencies = _object(query.dependencies, "dependencies") if query.dependencies else None
    return setting_of(configuration, dependencies)


async def _newest(exchange: Exchange, request: Load, *, stale: bool) -> Checkpoint | None:
    try:
        reply = await exchange.call(request, stale=stale)
    except NotFound:
        return None
    return reply


async def threads(exchange: Exchange) -> web.Response:
    query, space = exchange.query(ThreadsQuery), exchange.name("space")
    if query.status is None and not query.filter:
        listed = await exchange.call(ListObjects(space, "thread", query.prefix, query.after, query.limit))
        return exchange.answer(ThreadsView(listed.names, listed.more))
    request = ListThreads(space, query.status or "", query.prefix, _filter(query.filter), query.after, query.limit)
    found = await exchange.call(request)
    return exchange.answer(ThreadsView(found.names, bool(found.after), found.after or None))


def _filter(text: str) -> dict[str, bytes]:
    return {name: values.encode(value) for name, value in _object(text, "filter").items()} if text else {}


def _object(text: str, field: str) -> dict[str, Any]:
    """
    Raises:
        InvalidInput: it is no JSON object.
    """
    try:
        found = msgspec.json.decode(text, type=dict[str, object])
    except (ValueError, RecursionError) as reason:  # msgspec's own are ValueErrors.
        raise InvalidInput(f"{field} is no JSON object: {reason}. Nothing was written.", field=field) from None
    return {name: values.from_json(value) for name, value in found.items()}
