"""All that an agent needs after a crash, over HTTP: the state to resume from, its steps, and replays of its journal.

A replay is the latest snapshot of a reducer, and the events since. A function cannot be sent over HTTP, so the caller
reduces: it folds the events in order into the snapshot's value, continues with `GET …/events?after=` while there are more,
and keeps the result as the next snapshot.

Laws:
- Only the client that is answered `"begun": true` causes the effect, and writes its result.
  An intent that turns out to have a concurrent rival is withdrawn before the answer.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal import values
from shoal.api.derived import moment_ms, show, view_of
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.headers import shown_opaque
from shoal.errors import InvalidInput, NotFound
from shoal.kinds.journal.flows import check_whole
from shoal.kinds.step.flows import catch_up, drift
from shoal.kinds.thread.flows.provenance import setting_of
from shoal.protocol.requests import (
    BeginStep,
    Checkpoint,
    Durability,
    EndStep,
    Event,
    ListSteps,
    Load,
    ReadJournal,
    ReadSnapshot,
    Snapshot,
    Step,
)
from shoal.raising import partly

_LISTED_MAX = 1000
if TYPE_CHECKING:
    CheckpointView = Struct
    EventView = Struct
    StepView = Struct
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


Version = Annotated[int, Meta(ge=0)]
Limit = Annotated[int, Meta(ge=1)]


class ReplayQuery(ReadQuery, forbid_unknown_fields=True):
    """The reducer, and where a replay ends."""

    reducer: str | None = None  # The name of its snapshots. If left out, the replay begins at the first event.
    version: Version = 0
    until: str | None = None  # An event's id: use no snapshot that includes later events.
    until_time: datetime | None = None  # A time with a time zone: use no snapshot that includes later events.
    limit: Limit = 1000  # At most so many events.


class ReplayView(Struct):
    """The snapshot to begin with, and the events to fold into it."""

    snapshot: Raw | None  # The reducer's value after all events up to `at`; null with `at` empty if there is none.
    at: str  # The id of the last event in the snapshot.
    events: list[EventView]  # The events after it, in order. An event marked `late` belongs before earlier ones.
    cursor: str  # The cursor to continue with: `GET …/events?after=`.
    more: bool  # Whether there are more events.


async def replay(exchange: Exchange) -> web.Response:
    """Read the newest usable snapshot of a reducer, and the first page of events after it.

    Raises:
        InvalidInput: `until` or `until_time` is given without a reducer.
        JournalTrimmed: there is no snapshot, and the journal's beginning was trimmed.
    """
    query = exchange.query(ReplayQuery)
    space, thread = exchange.name("space"), exchange.name("thread")
    start = Snapshot(None, "", b"")
    if query.reducer is not None:
        until_ms = None if query.until_time is None else moment_ms(query.until_time, "until_time")
        request = ReadSnapshot(space, thread, query.reducer, query.version, query.until, until_ms)
        found = await exchange.call(request, stale=query.stale)
        start = found
    elif query.until is not None or query.until_time is not None:
        raise InvalidInput("`until` and `until_time` choose a snapshot of a reducer. Give `reducer` too.", field="until")
    events = await exchange.call(ReadJournal(space, thread, start.cursor, query.limit), stale=query.stale)
    if start.value is None:
        await check_whole(exchange.connection, space, thread)
    snapshot = None if start.value is None else exchange.shown(start.value)
    return await exchange.answer(
        ReplayView(
            snapshot,
            start.event,
            [show(exchange, event) for event in events.events],
            shown_opaque(events.cursor),
            events.more,
        )
    )


class BeginQuery(Struct, forbid_unknown_fields=True):
    """The durability of an intent."""

    durability: Durability = "quorum"  # By default a quorum, so that a fail-over does not repeat the effect.


class BeginBody(Struct, forbid_unknown_fields=True):
    """An intent: the effect that the caller is about to cause."""

    name: str
    arguments: Raw = field(default_factory=Raw)
    attempt: str = ""  # A name unique to this attempt. If left out, the Idempotency-Key, or a new one.
    holder: str = ""
    parent: str = ""
    compensation: str = ""
    attempts: Annotated[int, Meta(ge=0)] = 0  # How many attempts may fail; 0: as many as the node allows.
    idempotent: bool = False  # Begin even if an earlier attempt is open and may have caused the effect.


async def begin(exchange: Exchange) -> web.Response:
    """Write a step's intent. 201: the caller causes the effect; 200: it must not, and the step says why.

    Raises:
        KeyReused: the key belongs to a step of another name or with other arguments; nothing was written.
        ThreadHeld: the thread is paused or waits; nothing was written.
    """
    body = await exchange.body(BeginBody)
    space, thread, key = exchange.name("space"), exchange.name("thread"), exchange.name("step")
    request = BeginStep(
        space,
        thread,
        key,
        body.name,
        body.attempt,
        body.holder,
        exchange.stored(body.arguments) if body.arguments else b"",
        body.parent,
        body.compensation,
        attempts=body.attempts,
        take_over=body.idempotent,
    )
    step = await exchange.call(request, durability=exchange.query(BeginQuery).durability)
    if step.begun and step.rivals and not body.idempotent:
        withdrawal = EndStep(space, thread, key, step.attempt, "withdrawn")
        with partly(True, "the step is begun, beside another attempt", "Begin it again with the same attempt."):
            step = await exchange.session.call(withdrawal)
    return await exchange.answer(show(exchange, step), status=201 if step.begun else 200)
