"""Several reads in one HTTP request, of one partition and as of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from aiohttp import web
from msgspec import Meta, Struct, field

from shoal.api.derived import OPERATIONS, show
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.opaque import opaque, shown_opaque
from shoal.api.items import items
from shoal.api.thread import queues
from shoal.api.thread.journals import EventsView, event_views
from shoal.api.thread.steps import StandingView, StepsView, step_view
from shoal.api.thread.threads import HeadsView, checkpoint_view
from shoal.api.values import maps, registers, sets
from shoal.protocol.fields import ChannelNames, Keys, Labels, Parts
from shoal.protocol.requests import (
    Branches,
    Checkpoint,
    DocumentJson,
    Events,
    GetItems,
    Heads,
    ItemsFound,
    ListSteps,
    Load,
    MapEntries,
    MultiRead,
    QueueEntries,
    ReadDocumentJson,
    ReadJournal,
    ReadMap,
    ReadQueue,
    ReadRegister,
    ReadSet,
    ReadStanding,
    Refused,
    SetMembers,
    Siblings,
    Standing,
    Steps,
)
from shoal.protocol.requests.families import union
from shoal.protocol.requests.multireads import PartAnswer

Limit = Annotated[int, Meta(ge=1)]


class LoadOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="load"):
    """Load a checkpoint: by its id, by a label, or the head of a branch."""

    thread: str
    checkpoint: str | None = None  # Its id. If left out, the winning head of the branch.
    branch: str = "main"
    label: str | None = None
    channels: ChannelNames | None = None


class HeadsOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="heads"):
    """Read the heads of each branch."""

    thread: str


class EventsOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="events"):
    """Read a thread's journal."""

    thread: str
    after: str = ""
    limit: Limit = 1000


class StepsOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="steps"):
    """List a thread's steps."""

    thread: str
    open: bool = False
    limit: Limit = 1000


class StatusOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="status"):
    """Read a thread's status."""

    thread: str


class InboxOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="inbox"):
    """Read the messages that wait in a thread's inbox."""

    thread: str
    limit: Limit = 100


class WorklistOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="worklist"):
    """Read the items of a worklist that are to be done."""

    thread: str
    worklist: str
    limit: Limit = 100


class RegisterOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="register"):
    """Read a register and its siblings."""

    register: str


class ReadSetOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="set"):
    """Read a page of a set."""

    set: str
    after: str = ""
    limit: Limit = 1000


class MapOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="map"):
    """Read entries of a map."""

    map: str
    keys: Keys | None = None  # Only these keys. If left out, the first `limit`.
    limit: Limit = 1000


class DocumentOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="document"):
    """Read a document as JSON."""

    document: str


class ItemOp(Struct, forbid_unknown_fields=True, tag_field="op", tag="item"):
    """Read a memory item."""

    namespace: Labels
    key: str


_DERIVED = {op: derived for derived in OPERATIONS.values() if derived.is_read for op in derived.ops()}

if TYPE_CHECKING:
    Op = Struct
else:
    Op = union(
        [
            *_DERIVED,
            LoadOp,
            HeadsOp,
            EventsOp,
            StepsOp,
            StatusOp,
            InboxOp,
            WorklistOp,
            RegisterOp,
            ReadSetOp,
            MapOp,
            DocumentOp,
            ItemOp,
        ]
    )


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
    return exchange.answer(ReadView([_view(exchange, answer) for answer in reply.replies]))


def _read(exchange: Exchange, space: str, op: Struct) -> Any:
    derived = _DERIVED.get(type(op))
    if derived is not None:
        return derived.asked(exchange, space, op)
    match op:
        case LoadOp():
            return Load(space, op.thread, op.checkpoint, op.branch, op.channels, label=op.label)
        case HeadsOp():
            return Heads(space, op.thread)
        case EventsOp():
            return ReadJournal(space, op.thread, opaque(op.after, "after"), op.limit)
        case StepsOp():
            return ListSteps(space, op.thread, op.open, limit=op.limit)
        case StatusOp():
            return ReadStanding(space, op.thread)
        case InboxOp():
            return ReadQueue(space, op.thread, queues.INBOX, limit=op.limit)
        case WorklistOp():
            return ReadQueue(space, op.thread, op.worklist, limit=op.limit)
        case RegisterOp():
            return ReadRegister(space, op.register)
        case ReadSetOp():
            return ReadSet(space, op.set, opaque(op.after, "after"), op.limit)
        case MapOp():
            return ReadMap(space, op.map, op.keys, limit=op.limit)
        case DocumentOp():
            return ReadDocumentJson(space, op.document)
        case ItemOp():
            first, rest = items.split(op.namespace)
            return GetItems(space, first, [(rest, op.key)])


def _view(exchange: Exchange, answer: PartAnswer) -> Any:
    match answer:
        case Refused():
            return FailedView(ErrorView(answer.code, answer.message))
        case Checkpoint():
            return checkpoint_view(exchange, answer, state=True)
        case Branches():
            return HeadsView(answer.branches)
        case Events():
            return EventsView(event_views(exchange, answer), shown_opaque(answer.cursor), answer.more)
        case Steps():
            return StepsView([step_view(exchange, step) for step in answer.items], answer.more)
        case Standing():
            return StandingView.of(answer)
        case QueueEntries():
            return queues.page_view(exchange, answer)
        case Siblings():
            return registers.register_view(exchange, answer)
        case SetMembers():
            return sets.members_view(exchange, answer, "")
        case MapEntries():
            return maps.entries_view(exchange, answer)
        case DocumentJson():
            return exchange.of_json(answer.json)
        case ItemsFound():
            return None if answer.items[0] is None else items.view(exchange, answer.items[0])
        case _:
            return show(exchange, answer)
