"""Several writes at once over HTTP: all or none, in one partition."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from msgspec import Raw, Struct

from shoal.api import queues
from shoal.api.budgets import AmountBody, GrantedView, SpentView
from shoal.api.exchange import Exchange
from shoal.api.items import DeletedView, PutBody, PutView, delete_request, put_request
from shoal.api.journals import AppendedView, ConsumerView
from shoal.api.maps import ChangeEntryBody, EntryPutView, EntryRemovedView, change_request
from shoal.api.objects import AddedView, AssignedView
from shoal.api.opaque import opaque, shown_opaque
from shoal.api.saving import SaveFields, save_request
from shoal.api.sets import AlterBody, AlteredView, alter_request
from shoal.api.steps import EndFields, end_request, step_view
from shoal.api.threads import SavedView
from shoal.protocol.requests import (
    Ack,
    Add,
    Added,
    Append,
    Appended,
    Assign,
    Assigned,
    Batch,
    BatchAnswer,
    BatchWrite,
    ConsumerState,
    Dequeue,
    Dequeued,
    Enqueue,
    Enqueued,
    EntryPut,
    EntryRemoved,
    Grant,
    Granted,
    ItemDeleted,
    ItemPut,
    PutEntry,
    QueueItem,
    RemoveEntry,
    Saved,
    SetAltered,
    Spend,
    Spent,
    Step,
)


class SaveOp(SaveFields, tag_field="op", tag="save"):
    thread: str


class AppendOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="append"):
    thread: str
    event: Raw
    key: str | None = None


class AckOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="ack"):
    thread: str
    consumer: str
    cursor: str
    generation: int | None = None
    reset: bool = False


class SendOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="send"):
    thread: str
    message: Raw
    key: str | None = None
    by: str = ""


class TakeOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="take"):
    thread: str
    id: str
    by: str = ""


class EndStepOp(EndFields, forbid_unknown_fields=True, tag_field="op", tag="end-step", kw_only=True):
    thread: str
    step: str


class DoneOp(queues.DoneBody, forbid_unknown_fields=True, tag_field="op", tag="done", kw_only=True):
    thread: str
    worklist: str


class AddOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="add"):
    counter: str
    add: int
    key: str | None = None


class AssignOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="assign"):
    register: str
    value: Raw
    context: str | None = None
    expect: str | None = None


class SetOp(AssignOp, forbid_unknown_fields=True, tag_field="op", tag="set"):
    """The same as `assign`, by the name that the client gives it."""


class AlterSetOp(AlterBody, forbid_unknown_fields=True, tag_field="op", tag="alter-set", kw_only=True):
    set: str


class GrantOp(AmountBody, forbid_unknown_fields=True, tag_field="op", tag="grant", kw_only=True):
    budget: str


class SpendOp(AmountBody, forbid_unknown_fields=True, tag_field="op", tag="spend", kw_only=True):
    budget: str


class PutEntryOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="put-entry"):
    map: str
    key: str
    value: Raw
    expect: str | None = None


class ChangeEntryOp(ChangeEntryBody, forbid_unknown_fields=True, tag_field="op", tag="change-entry", kw_only=True):
    map: str
    key: str


class RemoveEntryOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="remove-entry"):
    map: str
    key: str


class PutItemOp(PutBody, forbid_unknown_fields=True, tag_field="op", tag="put-item", kw_only=True):
    namespace: list[str]
    key: str


class DeleteItemOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="delete-item"):
    namespace: list[str]
    key: str
    expect: str | None = None


Op = (
    SaveOp
    | AppendOp
    | AckOp
    | AddOp
    | AssignOp
    | SetOp
    | AlterSetOp
    | GrantOp
    | SpendOp
    | PutEntryOp
    | ChangeEntryOp
    | RemoveEntryOp
    | PutItemOp
    | DeleteItemOp
    | SendOp
    | TakeOp
    | EndStepOp
    | DoneOp
)


class BatchBody(Struct, forbid_unknown_fields=True):
    writes: list[Op]


class BatchView(Struct):
    replies: list[dict[str, Any]]  # One per write, as its own route would answer.


async def batch(exchange: Exchange) -> web.Response:
    body = await exchange.body(BatchBody)
    space = exchange.name("space")
    reply = await exchange.call(Batch([_write(exchange, space, op) for op in body.writes]))
    answers = zip(body.writes, reply.replies, strict=True)
    return exchange.answer({"replies": [_view(exchange, op, answer) for op, answer in answers]})


def _write(exchange: Exchange, space: str, op: Op) -> BatchWrite:
    match op:
        case SaveOp():
            return save_request(exchange, space, op.thread, op)
        case AppendOp():
            return Append(space, op.thread, exchange.stored(op.event), key=op.key)
        case AckOp():
            return Ack(space, op.thread, op.consumer, opaque(op.cursor, "cursor"), op.generation, op.reset)
        case SendOp():
            item = QueueItem(op.key, exchange.stored(op.message))
            return Enqueue(space, op.thread, queues.INBOX, [item], op.by)
        case TakeOp():
            return Dequeue(space, op.thread, queues.INBOX, op.id, op.by, once=True)
        case EndStepOp():
            return end_request(exchange, space, op.thread, op.step, op)
        case DoneOp():
            return queues.done_request(exchange, space, op.thread, op.worklist, op)
        case AddOp():
            return Add(space, op.counter, op.add, op.key)
        case AssignOp():
            context = None if op.context is None else opaque(op.context, "context")
            return Assign(space, op.register, exchange.stored(op.value), context, op.expect)
        case AlterSetOp():
            return alter_request(exchange, space, op.set, op)
        case GrantOp():
            return Grant(space, op.budget, op.amount, op.key)
        case SpendOp():
            return Spend(space, op.budget, op.amount, op.key)
        case PutEntryOp():
            return PutEntry(space, op.map, op.key, exchange.stored(op.value), op.expect)
        case ChangeEntryOp():
            return change_request(exchange, space, op.map, op.key, op)
        case RemoveEntryOp():
            return RemoveEntry(space, op.map, op.key)
        case PutItemOp():
            return put_request(exchange, space, op.namespace, op.key, op)
        case DeleteItemOp():
            return delete_request(space, op.namespace, op.key, op.expect)


def _view(exchange: Exchange, op: Op, reply: BatchAnswer) -> Struct | dict[str, Any]:
    match reply:
        case Saved():
            return SavedView.of(reply)
        case Appended():
            return AppendedView(reply.id, reply.appended)
        case ConsumerState():
            return ConsumerView.of(reply)
        case Enqueued():
            return queues.SentView(reply.ids[0], reply.added[0])
        case Step():
            return step_view(exchange, reply)
        case Dequeued() if isinstance(op, TakeOp):
            return queues.TakenView(op.id, reply.by)
        case Dequeued():
            return queues.DoneView(reply.first, reply.by, exchange.shown(reply.result))
        case Added():
            return AddedView(reply.value, reply.added)
        case Assigned():
            return AssignedView(reply.siblings, shown_opaque(reply.context), reply.version)
        case SetAltered():
            return AlteredView(reply.added, reply.removed, reply.size)
        case Granted():
            return GrantedView(reply.remaining, reply.granted)
        case Spent():
            return SpentView(reply.remaining, reply.rights, reply.spent)
        case EntryPut():
            return EntryPutView(reply.version)
        case EntryRemoved():
            return EntryRemovedView(reply.removed)
        case ItemPut():
            return PutView(reply.version)
        case ItemDeleted():
            return DeletedView(reply.deleted)
        case _:  # What this route takes no request for.
            return {}
