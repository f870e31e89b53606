"""Several writes in one HTTP request, in one partition: all are applied, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec import Struct

from shoal.api.derived import OPERATIONS, show
from shoal.api.http.exchange import Exchange
from shoal.api.thread.saving import SaveFields, save_request
from shoal.protocol.conformance import check_together
from shoal.protocol.declared import TOGETHER_MAX, Elements
from shoal.protocol.requests import Batch
from shoal.protocol.requests.families import union


class SaveOp(SaveFields, tag_field="op", tag="save"):
    """Save a checkpoint of a thread."""

    thread: str


_DERIVED = {op: derived for derived in OPERATIONS if not derived.is_read for op in derived.ops()}

if TYPE_CHECKING:
    Op = Struct
else:
    Op = union([*_DERIVED, SaveOp])


class BatchBody(Struct, forbid_unknown_fields=True):
    """The writes of one request; all their objects must be in one partition."""

    writes: Elements[Op]


class BatchView(Struct):
    """The replies to a batch."""

    replies: list[dict[str, Any]]  # One per write: as its own route would answer.


async def batch(exchange: Exchange) -> web.Response:
    """Apply several writes in one operation: all of them or none.

    Raises:
        SpansPartitions: the objects are not all in one partition.
        TooLarge: the lists and maps of its writes have more elements together than a batch may.
        ShoalError: the error of the first rejected write; then none is applied.
    """
    body = await exchange.body(BatchBody)
    check_together(body.writes, TOGETHER_MAX, "writes")
    space = exchange.name("space")
    reply = await exchange.call(Batch([_write(exchange, space, op) for op in body.writes]))
    return await exchange.answer({"replies": [show(exchange, answer) for answer in reply.replies]})


def _write(exchange: Exchange, space: str, op: Struct) -> Any:
    if isinstance(op, SaveOp):
        return save_request(exchange, space, op.thread, op)
    return _DERIVED[type(op)].asked(exchange, space, op)
