"""Several requests in one, on objects of one partition: writes, of which all are applied or none, or reads as of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec import Struct, field

from shoal.api.derived import OPERATIONS, show
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.threads import SaveFields, save_request
from shoal.protocol.base import TOGETHER_MAX, Elements, Parts
from shoal.protocol.conformance import check_together
from shoal.protocol.requests import Batch, DocumentJson, MultiRead, ReadDocumentJson, Refused
from shoal.protocol.requests.families import PartAnswer, union


class SaveOp(SaveFields, tag_field="op", tag="save"):
    """Save a checkpoint of a thread."""

    thread: str


_WRITES = {op: derived for derived in OPERATIONS if not derived.is_read for op in derived.ops()}

if TYPE_CHECKING:
    WriteOp = Struct
else:
    WriteOp = union([*_WRITES, SaveOp])


class BatchBody(Struct, forbid_unknown_fields=True):
    """The writes of one request; all their objects must be in one partition."""

    writes: Elements[WriteOp]


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
    return _WRITES[type(op)].asked(exchange, space, op)


class DocumentOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="document"):
    """Read a document as JSON."""

    document: str


_READS = {op: derived for derived in OPERATIONS if derived.is_read for op in derived.ops()}

if TYPE_CHECKING:
    ReadOp = Struct
else:
    ReadOp = union([*_READS, DocumentOp])


class ReadBody(Struct, forbid_unknown_fields=True):
    """The reads of one request; all their objects must be in one partition."""

    reads: Parts[ReadOp]


class ReadView(Struct):
    """The replies to several reads."""

    replies: list[Any] = field(default_factory=list)  # One per read: as its own route would answer, or {"error": …}.


class ErrorView(Struct):
    """The error of one read; the other reads are answered."""

    code: str
    detail: str


class FailedView(Struct):
    """The reply in the place of a read that failed."""

    error: ErrorView


async def read(exchange: Exchange) -> web.Response:
    """Answer several reads as of one moment. A read that fails is answered with its error and does not fail the others.

    Raises:
        SpansPartitions: the objects are not all in one partition.
    """
    body, space = await exchange.body(ReadBody), exchange.name("space")
    request = MultiRead([_read(exchange, space, op) for op in body.reads])
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    return await exchange.answer(
        ReadView([_view(exchange, op, answer) for op, answer in zip(body.reads, reply.replies, strict=True)])
    )


def _read(exchange: Exchange, space: str, op: Struct) -> Any:
    if isinstance(op, DocumentOp):
        return ReadDocumentJson(space, op.document)
    return _READS[type(op)].asked(exchange, space, op)


def _view(exchange: Exchange, op: Struct, answer: PartAnswer) -> Any:
    if isinstance(answer, Refused):
        return FailedView(ErrorView(answer.code, answer.message))
    if isinstance(answer, DocumentJson):
        return exchange.of_json(answer.json)
    return _READS[type(op)].shown(exchange, answer)
