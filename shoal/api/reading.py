"""Several reads in one HTTP request, of one partition and as of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec import Struct, field

from shoal.api.derived import OPERATIONS
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.protocol.declared import Parts
from shoal.protocol.requests import DocumentJson, MultiRead, ReadDocumentJson, Refused
from shoal.protocol.requests.families import union
from shoal.protocol.requests.multireads import PartAnswer


class DocumentOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="document"):
    """Read a document as JSON."""

    document: str


_DERIVED = {op: derived for derived in OPERATIONS if derived.is_read for op in derived.ops()}

if TYPE_CHECKING:
    Op = Struct
else:
    Op = union([*_DERIVED, DocumentOp])


class ReadBody(Struct, forbid_unknown_fields=True):
    """The reads of one request; all their objects must be in one partition."""

    reads: Parts[Op]


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
    return _DERIVED[type(op)].asked(exchange, space, op)


def _view(exchange: Exchange, op: Struct, answer: PartAnswer) -> Any:
    if isinstance(answer, Refused):
        return FailedView(ErrorView(answer.code, answer.message))
    if isinstance(answer, DocumentJson):
        return exchange.of_json(answer.json)
    return _DERIVED[type(op)].shown(exchange, answer)
