"""Resuming over HTTP: the state that an agent resumes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from shoal import values
from shoal.api.derived import show, view_of
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.errors import InvalidInput, NotFound
from shoal.kinds.step.flows import catch_up, drift
from shoal.kinds.thread.flows.provenance import setting_of
from shoal.protocol.requests import Checkpoint, Event, ListSteps, Load, ReadJournal, Step

_LISTED_MAX = 1000
if TYPE_CHECKING:
    from msgspec import Struct as CheckpointView
    from msgspec import Struct as EventView
    from msgspec import Struct as StepView
else:
    CheckpointView, EventView, StepView = map(view_of, (Checkpoint, Event, Step))


class ResumeQuery(ReadQuery, forbid_unknown_fields=True):
    """The branch to resume, and the settings of the agent that resumes it."""

    branch: str = "main"
    configuration: str = ""  # A JSON object: the agent's configuration, compared with the recorded one.
    dependencies: str = ""  # A JSON object: versions by name, compared with the recorded ones.
    on_drift: Literal["warn", "refuse"] = "warn"  # What to do if the configuration or a dependency differs.


class ReasonView(Struct):
    """How the answer was found, and what it leaves out."""

    branch: str
    head: str | None
    other_heads: list[str]
    skipped: list[str]  # The keys of steps that are done.
    unresolved: list[str]  # The keys of steps that were begun and have not ended.
    more_steps: bool
    more_events: bool
    quorum: bool  # Whether a majority of the owners was asked, so that the answer holds at least what they hold.
    staleness: str  # If `quorum` is false: what may be missing, and why.
    differences: list[str]  # Differences between the given configuration and dependencies and the recorded ones.


class ResumeView(Struct):
    """Everything that an agent needs to continue after a crash."""

    checkpoint: CheckpointView | None
    open: list[StepView]
    events: list[EventView]  # The events since about the time of the checkpoint.
    reason: ReasonView


async def resume(exchange: Exchange) -> web.Response:
    """Read a thread's newest state, open steps and later events, after catching up with a quorum if that is possible.

    Raises:
        InvalidInput: `configuration` or `dependencies` is not a JSON object.
        DriftRefused: the settings differ from those recorded, and `on_drift` is "refuse".
    """
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
    shown = None if checkpoint is None else show(exchange, checkpoint)
    return await exchange.answer(
        ResumeView(
            shown, [show(exchange, step) for step in still.items], [show(exchange, event) for event in events.events], reason
        )
    )


def _setting(query: ResumeQuery) -> bytes:
    """
    Raises:
        InvalidInput: the configuration or the dependencies are not a JSON object.
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


def _object(text: str, field: str) -> dict[str, Any]:
    """
    Raises:
        InvalidInput: it is not a JSON object.
    """
    try:
        found = msgspec.json.decode(text, type=dict[str, object])
    except (ValueError, RecursionError) as reason:  # msgspec's own are ValueErrors.
        raise InvalidInput(f"{field} is not a JSON object: {reason}. Nothing was written.", field=field) from None
    return {name: values.from_json(value) for name, value in found.items()}
