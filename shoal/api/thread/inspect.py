"""The context of a checkpoint, labels, and the verification of stored checkpoints, over HTTP."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.opaque import shown_opaque
from shoal.api.thread.journals import EventView, event_view
from shoal.api.thread.threads import CheckpointView, checkpoint_view
from shoal.protocol.requests import Explain, ReadLabels, Unlabel, VerifyCheckpoints

Limit = Annotated[int, Meta(ge=1)]


class WhyQuery(ReadQuery, forbid_unknown_fields=True):
    """How far back an explanation goes."""

    limit: Limit = 20  # Of earlier checkpoints, and of events.


class WhyView(Struct):
    """A checkpoint, and the state and events that its author could see."""

    checkpoint: CheckpointView
    setting: Raw  # The author's configuration and dependencies; null if they were not given.
    seen: str  # The author's bookmark when it saved.
    earlier: list[CheckpointView]  # Its chain of first parents, newest first.
    events: list[EventView]  # The events before it in the journal, newest first.


class VerifyQuery(ReadQuery, forbid_unknown_fields=True):
    """The checkpoints to verify."""

    checkpoint: str | None = None  # Only this one. If left out, the branch's chain of first parents.
    branch: str = "main"
    start: str = ""  # The `next` of the previous answer.
    limit: Limit = 100


class DamageView(Struct):
    """One stored part of a checkpoint that is damaged."""

    checkpoint: str
    channel: str  # The damaged channel; empty if the checkpoint's own record is damaged.
    what: str


class VerifiedView(Struct):
    """The result of a verification; an empty `damage` means that all checked checkpoints are intact."""

    checked: int
    damage: list[DamageView]
    next: str  # Ask again with start=next; empty at the end.


class LabelsQuery(ReadQuery, forbid_unknown_fields=True):
    """A page of a thread's labels."""

    prefix: str = ""
    after: str | None = None
    limit: Limit = 100


class LabelView(Struct):
    """One label."""

    label: str
    checkpoint: str


class LabelsView(Struct):
    """A page of a thread's labels, in byte order."""

    labels: list[LabelView] = field(default_factory=list)
    more: bool = False  # Ask again with after=labels[-1].label.


class UnlabelledView(Struct):
    """The result of removing a label."""

    existed: bool


async def why(exchange: Exchange) -> web.Response:
    """Show the context in which a checkpoint was saved.

    Raises:
        NotFound, Pruned: the checkpoint is not there.
    """
    query = exchange.query(WhyQuery)
    request = Explain(exchange.name("space"), exchange.name("thread"), exchange.name("checkpoint"), query.limit)
    found = await exchange.call(request, stale=query.stale)
    return exchange.answer(
        WhyView(
            checkpoint_view(exchange, found.checkpoint, state=False),
            exchange.shown(found.setting) if found.setting else exchange.shown(b"\xc0"),
            shown_opaque(found.seen),
            [checkpoint_view(exchange, earlier, state=False) for earlier in found.earlier],
            [event_view(exchange, event) for event in found.events],
        )
    )


async def verify(exchange: Exchange) -> web.Response:
    """Recompute the hashes of stored checkpoints, a page at a time."""
    query = exchange.query(VerifyQuery)
    space, thread = exchange.name("space"), exchange.name("thread")
    request = VerifyCheckpoints(space, thread, query.checkpoint, query.branch, query.start, query.limit)
    found = await exchange.call(request, stale=query.stale)
    damage = [DamageView(each.checkpoint, each.channel, each.what) for each in found.damage]
    return exchange.answer(VerifiedView(found.checked, damage, found.next))


async def labels(exchange: Exchange) -> web.Response:
    """List a thread's labels."""
    query = exchange.query(LabelsQuery)
    space, thread = exchange.name("space"), exchange.name("thread")
    request = ReadLabels(space, thread, prefix=query.prefix, after=query.after, limit=query.limit)
    found = await exchange.call(request, stale=query.stale)
    return exchange.answer(LabelsView([LabelView(each.label, each.checkpoint.id) for each in found.items], found.more))


async def unlabel(exchange: Exchange) -> web.Response:
    """Remove one label; the checkpoint stays."""
    reply = await exchange.call(Unlabel(exchange.name("space"), exchange.name("thread"), [exchange.name("label")]))
    return exchange.answer(UnlabelledView(reply.count > 0))
