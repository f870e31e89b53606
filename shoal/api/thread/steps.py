"""A thread's steps and its status over HTTP.

Law: only the client that is answered `"begun": true` causes the effect, and writes its result.
An intent that turns out to have a concurrent rival is withdrawn before the answer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from shoal import values
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.errors import InvalidInput
from shoal.outcomes import partly
from shoal.protocol.requests import (
    BeginStep,
    Durability,
    EndStep,
    ListSteps,
    MoveThread,
    ProgressStep,
    ReadStanding,
    ReadStep,
    ResolveStep,
    Standing,
    Step,
    StepAttempt,
    StepState,
    ThreadStatus,
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


class EndFields(Struct, forbid_unknown_fields=True):
    """Either `result` or `error`."""

    result: Raw = field(default_factory=Raw)
    error: str | dict[str, str] | UnsetType = UNSET
    attempt: str = ""  # If left out, the only open attempt.


class EndBody(EndFields, forbid_unknown_fields=True):
    """Exactly one of `result`, `error` and `progress`."""

    progress: Raw = field(default_factory=Raw)


class ResolveBody(Struct, forbid_unknown_fields=True):
    """A person's decision on a step whose outcome is unknown."""

    how: Literal["result", "retry", "abandon"]
    value: Raw = field(default_factory=Raw)
    by: str = ""
    reason: str = ""


class AttemptView(Struct):
    """One attempt at a step."""

    id: str
    state: str
    holder: str
    begun_ms: int
    ended_ms: int
    error: Raw
    progress: Raw
    by: str


class StepView(Struct):
    """A step with all its attempts."""

    key: str
    name: str
    state: StepState
    begun: bool  # Whether the caller causes the effect.
    attempt: str  # The caller's attempt, if `begun`.
    begun_ms: int
    ended_ms: int
    arguments: Raw
    result: Raw  # Null unless `state` is "done".
    result_by: str
    parent: str
    compensation: str
    failures: int
    attempts: list[AttemptView]
    conflicts: list[Raw]  # Different results of other attempts, which do not count.
    position: str


class StepsQuery(ReadQuery, forbid_unknown_fields=True):
    """A page of a thread's steps."""

    open: bool = False
    after: str = ""
    limit: Annotated[int, Meta(ge=1)] = 1000


class StepsView(Struct):
    """A page of a thread's steps."""

    steps: list[StepView]
    more: bool  # Ask again with after=steps[-1].position.


class MoveBody(Struct, forbid_unknown_fields=True):
    """Why the status changes, and on whose behalf."""

    reason: str = ""
    by: str = ""


class StatusBody(MoveBody, forbid_unknown_fields=True, kw_only=True):
    """The status to set."""

    status: ThreadStatus


class StandingView(Struct):
    """A thread's status, and who set it."""

    status: ThreadStatus
    reason: str
    by: str
    wall_ms: int  # When it was set, in milliseconds since 1970; 0 if it was never set.

    @classmethod
    def of(cls, reply: Standing) -> StandingView:
        """The status as it is shown over HTTP."""
        return cls(reply.status, reply.reason, reply.by, reply.wall_ms)


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
    step = await _asked(exchange, request, exchange.query(BeginQuery).durability)
    if step.begun and step.rivals and not body.idempotent:
        withdrawal = EndStep(space, thread, key, step.attempt, "withdrawn")
        with partly(True, "the step is begun, beside another attempt", "Begin it again with the same attempt."):
            step = _answered(await exchange.session.call(withdrawal))
    return exchange.answer(step_view(exchange, step), status=201 if step.begun else 200)


async def end(exchange: Exchange) -> web.Response:
    """Write a step's result, error or progress.

    Raises:
        InvalidInput: the body does not hold exactly one of them.
        NotFound: the step or the attempt was never begun.
        StepSettled: `attempt` is left out, and not exactly one is open; nothing was written.
    """
    body = await exchange.body(EndBody)
    space, thread, key = exchange.name("space"), exchange.name("thread"), exchange.name("step")
    if [bool(body.result), body.error is not UNSET, bool(body.progress)].count(True) != 1:
        raise InvalidInput("the body must have exactly one of `result`, `error` and `progress`. Nothing was written.")
    request: ProgressStep | EndStep
    if body.progress:
        request = ProgressStep(space, thread, key, body.attempt, exchange.stored(body.progress))
    else:
        request = end_request(exchange, space, thread, key, body)
    return exchange.answer(step_view(exchange, await _asked(exchange, request)))


def end_request(exchange: Exchange, space: str, thread: str, key: str, fields: EndFields) -> EndStep:
    """The request that ends an attempt.

    Raises:
        InvalidInput: `fields` hold both a result and an error, or neither.
        InvalidValue: the result cannot be stored.
    """
    if bool(fields.result) == (fields.error is not UNSET):
        raise InvalidInput("a step ends with either `result` or `error`. Nothing was written.")
    if fields.result:
        return EndStep(space, thread, key, fields.attempt, "result", exchange.stored(fields.result))
    told = fields.error if isinstance(fields.error, dict) else {"message": str(fields.error)}
    return EndStep(space, thread, key, fields.attempt, "error", values.encode(told))


async def resolve(exchange: Exchange) -> web.Response:
    """Settle a step whose outcome is unknown: with a result, by another attempt, or by abandoning it."""
    body = await exchange.body(ResolveBody)
    value = b"" if body.how != "result" else exchange.stored(body.value) if body.value else values.encode(None)
    request = ResolveStep(
        exchange.name("space"), exchange.name("thread"), exchange.name("step"), body.how, value, body.by, body.reason
    )
    return exchange.answer(step_view(exchange, await _asked(exchange, request)))


async def read(exchange: Exchange) -> web.Response:
    """Read one step.

    Raises:
        NotFound: it was never begun.
    """
    request = ReadStep(exchange.name("space"), exchange.name("thread"), exchange.name("step"))
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    return exchange.answer(step_view(exchange, _answered(reply)))


async def listing(exchange: Exchange) -> web.Response:
    """List a thread's steps in the order of their first intents."""
    query = exchange.query(StepsQuery)
    request = ListSteps(exchange.name("space"), exchange.name("thread"), query.open, query.after, query.limit)
    reply = await exchange.call(request, stale=query.stale)
    return exchange.answer(StepsView([step_view(exchange, step) for step in reply.items], reply.more))


async def pause(exchange: Exchange) -> web.Response:
    """Set the status to "paused": no step begins until it is approved."""
    body = await exchange.body(MoveBody)
    return await _moved(exchange, "paused", body)


async def approve(exchange: Exchange) -> web.Response:
    """Set the status to "running", so that steps begin again."""
    body = await exchange.body(MoveBody)
    return await _moved(exchange, "running", body)


async def set_status(exchange: Exchange) -> web.Response:
    """Set the status."""
    body = await exchange.body(StatusBody)
    return await _moved(exchange, body.status, body)


async def status(exchange: Exchange) -> web.Response:
    """Read the status; "running" with `wall_ms` 0 if it was never set."""
    request = ReadStanding(exchange.name("space"), exchange.name("thread"))
    return _standing(exchange, await exchange.call(request, stale=exchange.query(ReadQuery).stale))


async def _moved(exchange: Exchange, status: ThreadStatus, body: MoveBody) -> web.Response:
    request = MoveThread(exchange.name("space"), exchange.name("thread"), status, body.reason, body.by)
    return _standing(exchange, await exchange.call(request))


def _standing(exchange: Exchange, reply: object) -> web.Response:
    assert isinstance(reply, Standing)
    return exchange.answer(StandingView.of(reply))


async def _asked(
    exchange: Exchange, request: BeginStep | ProgressStep | EndStep | ResolveStep, durability: Durability | None = None
) -> Step:
    return _answered(await exchange.call(request, durability=durability))


def _answered(reply: object) -> Step:
    assert isinstance(reply, Step)
    return reply


def step_view(exchange: Exchange, step: Step) -> StepView:
    """A step as it is shown over HTTP."""
    return StepView(
        step.key,
        step.name,
        step.state,
        step.begun,
        step.attempt,
        step.begun_ms,
        step.ended_ms,
        _shown(exchange, step.arguments),
        _shown(exchange, step.result),
        step.result_by,
        step.parent,
        step.compensation,
        step.failures,
        [_attempt(exchange, attempt) for attempt in step.attempts],
        [exchange.shown(conflict.value) for conflict in step.conflicts],
        step.position,
    )


def _attempt(exchange: Exchange, attempt: StepAttempt) -> AttemptView:
    return AttemptView(
        attempt.id,
        attempt.state,
        attempt.holder,
        attempt.begun_ms,
        attempt.ended_ms,
        _shown(exchange, attempt.error),
        _shown(exchange, attempt.progress),
        attempt.by,
    )


def _shown(exchange: Exchange, packed: bytes) -> Raw:
    return exchange.shown(packed or b"\xc0")
