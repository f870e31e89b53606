"""What led to a checkpoint, what is labelled, and whether what is stored is sound, over HTTP."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.opaque import shown_opaque
from shoal.api.thread.journals import EventView
from shoal.api.thread.threads import CheckpointView, checkpoint_view
from shoal.protocol.requests import Explain, ReadLabels, Unlabel, VerifyCheckpoints

Limit = Annotated[int, Meta(ge=1)]


class WhyQuery(ReadQuery, forbid_unknown_fields=True):
    limit: Limit = 20  # Of earlier checkpoints, and of events.


class WhyView(Struct):
    checkpoint: CheckpointView
    setting: Raw  # What its author ran with; null: not said.
    seen: str  # The bookmark of what its author had read.
    earlier: list[CheckpointView]  # First parents, the newest first.
    events: list[EventView]  # Before it in the journal, the newest first.


class VerifyQuery(ReadQuery, forbid_unknown_fields=True):
    checkpoint: str | None = None  # This one; left out, all of the branch by first parents.
    branch: str = "main"
    start: str = ""  # The `next` of an earlier answer.
    limit: Limit = 100


class DamageView(Struct):
    checkpoint: str
    channel: str  # Empty: its record.
    what: str


class VerifiedView(Struct):
    checked: int
    damage: list[DamageView]
    next: str  # Ask again with start=next; empty: that was all.


class LabelsQuery(ReadQuery, forbid_unknown_fields=True):
    prefix: str = ""
    after: str | None = None
    limit: Limit = 100


class LabelView(Struct):
    label: str
    checkpoint: str


class LabelsView(Struct):
    labels: list[LabelView] = field(default_factory=list)
    more: bool = False  # Ask again with after=labels[-1].label.


class UnlabelledView(Struct):
    existed: bool


async def why(exchange: Exchange) -> web.Response:
    query = exchange.query(WhyQuery)
    request = Explain(exchange.name("space"), exchange.name("thread"), exchange.name("checkpoint"), query.limit)
    found = await exchange.call(request, stale=query.stale)
    return exchange.answer(
        WhyView(
            checkpoint_view(exchange, found.checkpoint, state=False),
            exchange.shown(found.setting) if found.setting else exchange.shown(b"\xc0"),
            shown_opaque(found.seen),
            [checkpoint_view(exchange, earlier, state=False) for earlier in found.earlier],
            [EventView(e.id, e.key, e.wall_ms, exchange.shown(e.event), e.late, shown_opaque(e.cursor)) for e in found.events],
        )
    )


async def verify(exchange: Exchange) -> web.Response:
    query = exchange.query(VerifyQuery)
    space, thread = exchange.name("space"), exchange.name("thread")
    request = VerifyCheckpoints(space, thread, query.checkpoint, query.branch, query.start, query.limit)
    found = await exchange.call(request, stale=query.stale)
    damage = [DamageView(each.checkpoint, each.channel, each.what) for each in found.damage]
    return exchange.answer(VerifiedView(found.checked, damage, found.next))


async def labels(exchange: Exchange) -> web.Response:
    query = exchange.query(LabelsQuery)
    space, thread = exchange.name("space"), exchange.name("thread")
    request = ReadLabels(space, thread, prefix=query.prefix, after=query.after, limit=query.limit)
    found = await exchange.call(request, stale=query.stale)
    return exchange.answer(LabelsView([LabelView(each.label, each.checkpoint.id) for each in found.items], found.more))


async def unlabel(exchange: Exchange) -> web.Response:
    reply = await exchange.call(Unlabel(exchange.name("space"), exchange.name("thread"), [exchange.name("label")]))
    return exchange.answer(UnlabelledView(reply.count > 0))
