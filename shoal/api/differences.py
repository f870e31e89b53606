"""What changed between two checkpoints, over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from aiohttp import web
from msgspec import UNSET, Raw, Struct, UnsetType, field

from shoal import values
from shoal.api.exchange import Exchange, ReadQuery
from shoal.protocol.requests import Checkpoint, Load
from shoal.values.difference import Change, channel_differences


class DiffQuery(ReadQuery, forbid_unknown_fields=True, kw_only=True):
    """Both are ids, or names of branches."""

    before: str = field(name="from")
    after: str = field(name="to", default="main")


class DifferenceView(Struct):
    op: Literal["add", "remove", "replace"]
    path: str  # RFC 6901, within the channel; empty: the channel itself.
    before: Raw | UnsetType = UNSET
    after: Raw | UnsetType = UNSET


class DiffView(Struct):
    before: str
    after: str
    channels: dict[str, list[DifferenceView]]  # Those that differ.


async def diff(exchange: Exchange) -> web.Response:
    query = exchange.query(DiffQuery)
    first = await _load(exchange, query.before, [], stale=query.stale)
    second = await _load(exchange, query.after, [], stale=query.stale)
    differ = {name for name in {**first.hashes, **second.hashes} if first.hashes.get(name) != second.hashes.get(name)}
    sides = [await _channels(exchange, found, differ, stale=query.stale) for found in (first, second)]
    channels = {name: [_view(exchange, change) for change in changes] for name, changes in channel_differences(*sides).items()}
    return exchange.answer(DiffView(first.id, second.id, channels))


async def _load(exchange: Exchange, place: str, names: list[str], *, stale: bool) -> Checkpoint:
    is_id = len(place) == 64 and not place.strip("0123456789abcdef")
    space, thread = exchange.name("space"), exchange.name("thread")
    request = Load(space, thread, place, channels=names) if is_id else Load(space, thread, branch=place, channels=names)
    return await exchange.call(request, stale=stale)


async def _channels(exchange: Exchange, found: Checkpoint, differ: set[str], *, stale: bool) -> dict[str, Any]:
    names = [name for name in found.hashes if name in differ]
    whole = await _load(exchange, found.id, names, stale=stale) if names else found
    return {name: values.decode_channel(packed, whole.schema) for name, packed in whole.channels.items()}


def _view(exchange: Exchange, change: Change) -> DifferenceView:
    return DifferenceView(
        change.op,
        change.path,
        UNSET if change.op == "add" else exchange.shown(values.encode(change.before)),
        UNSET if change.op == "remove" else exchange.shown(values.encode(change.after)),
    )
