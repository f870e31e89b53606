"""Several writes in one HTTP request, in one partition: all are applied, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.derived import OPERATIONS, show
from shoal.api.http.exchange import Exchange
from shoal.api.items.items import PutBody, delete_request, put_request
from shoal.api.thread import queues
from shoal.api.thread.saving import SaveFields, save_request
from shoal.api.thread.steps import EndFields, end_request, step_view
from shoal.api.thread.threads import SavedView
from shoal.api.values.maps import ChangeEntryBody, change_request
from shoal.protocol.conformance import check_together
from shoal.protocol.fields import TOGETHER_MAX, Elements, Labels
from shoal.protocol.requests import Batch, Dequeue, Dequeued, Enqueue, Enqueued, QueueItem, Reply, Saved, Step
from shoal.protocol.requests.families import union


class SaveOp(SaveFields, tag_field="op", tag="save"):
    """Save a checkpoint of a thread."""

    thread: str


class SendOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="send"):
    """Send a message to a thread's inbox."""

    thread: str
    message: Raw
    key: str | None = None
    by: str = ""


class TakeOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="take"):
    """Take a message of a thread's inbox."""

    thread: str
    id: str
    by: str = ""


class EndStepOp(EndFields, forbid_unknown_fields=True, tag_field="op", tag="end-step", kw_only=True):
    """Write a step's result or error."""

    thread: str
    step: str


class DoneOp(queues.DoneBody, forbid_unknown_fields=True, tag_field="op", tag="done", kw_only=True):
    """Mark an item of a worklist as done."""

    thread: str
    worklist: str


class ChangeEntryOp(ChangeEntryBody, forbid_unknown_fields=True, tag_field="op", tag="change-entry", kw_only=True):
    """Add to the counter of a map's key, or change its set."""

    map: str
    key: str


class PutItemOp(PutBody, forbid_unknown_fields=True, tag_field="op", tag="put-item", kw_only=True):
    """Put a memory item."""

    namespace: Labels
    key: str


class DeleteItemOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="delete-item"):
    """Delete a memory item."""

    namespace: Labels
    key: str
    expect: str | None = None


_DERIVED = {op: derived for derived in OPERATIONS.values() if not derived.is_read for op in derived.ops()}

if TYPE_CHECKING:
    Op = Struct
else:
    Op = union([*_DERIVED, SaveOp, ChangeEntryOp, PutItemOp, DeleteItemOp, SendOp, TakeOp, EndStepOp, DoneOp])


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
    answers = zip(body.writes, reply.replies, strict=True)
    return exchange.answer({"replies": [_view(exchange, op, answer) for op, answer in answers]})


def _write(exchange: Exchange, space: str, op: Struct) -> Any:
    derived = _DERIVED.get(type(op))
    if derived is not None:
        return derived.asked(exchange, space, op)
    match op:
        case SaveOp():
            return save_request(exchange, space, op.thread, op)
        case SendOp():
            item = QueueItem(op.key, exchange.stored(op.message))
            return Enqueue(space, op.thread, queues.INBOX, [item], op.by)
        case TakeOp():
            return Dequeue(space, op.thread, queues.INBOX, op.id, op.by, once=True)
        case EndStepOp():
            return end_request(exchange, space, op.thread, op.step, op)
        case DoneOp():
            return queues.done_request(exchange, space, op.thread, op.worklist, op)
        case ChangeEntryOp():
            return change_request(exchange, space, op.map, op.key, op)
        case PutItemOp():
            return put_request(exchange, space, op.namespace, op.key, op)
        case DeleteItemOp():
            return delete_request(space, op.namespace, op.key, op.expect)


def _view(exchange: Exchange, op: Struct, reply: Reply) -> Struct:
    match reply:
        case Saved():
            return SavedView.of(reply)
        case Enqueued():
            return queues.SentView(reply.ids[0], reply.added[0])
        case Step():
            return step_view(exchange, reply)
        case Dequeued() if isinstance(op, TakeOp):
            return queues.TakenView(op.id, reply.by)
        case Dequeued():
            return queues.DoneView(reply.first, reply.by, exchange.shown(reply.result))
        case _:
            return show(exchange, reply)
