"""The differences between two checkpoints, over HTTP."""

from __future__ import annotations

from typing import Literal

from aiohttp import web
from msgspec import UNSET, Raw, Struct, UnsetType, field

from shoal import values
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.kinds.thread.flows.merging import difference
from shoal.values.difference import Change


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
    channels = {name: [_view(exchange, change) for change in changes] for name, changes in found.channels.items()}
    return await exchange.answer(DiffView(found.before, found.after, channels))


def _view(exchange: Exchange, change: Change) -> DifferenceView:
    return DifferenceView(
        change.op,
        change.path,
        UNSET if change.op == "add" else exchange.shown(values.encode(change.before)),
        UNSET if change.op == "remove" else exchange.shown(values.encode(change.after)),
    )
