"""The beginning of a step over HTTP.

Law: only the client that is answered `"begun": true` causes the effect, and writes its result.
An intent that turns out to have a concurrent rival is withdrawn before the answer.
"""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.derived import show, view_of
from shoal.api.http.exchange import Exchange
from shoal.outcomes import partly
from shoal.protocol.requests import BeginStep, Durability, EndStep, Step

StepView = view_of(Step)


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
