"""Threads over HTTP, as far as it does not follow from declarations: saves, also in batches, intents of steps,
exports as JSON lines, and several reads in one.

A request that is repeated with the same Idempotency-Key gets the first one's answer.

Laws:
- An export is sent as it is read, with one record in memory for a slow reader. If an export fails half-way,
  the connection is aborted, so that no reader takes it for complete.
- Only the client that is answered `"begun": true` causes the effect, and writes its result.
  An intent that turns out to have a concurrent rival is withdrawn before the answer.

Several requests in one, on objects of one partition: writes, of which all are applied or none, or reads as of one moment.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.derived import OPERATIONS, show, view_of
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.problems import internal
from shoal.errors import InvalidInput, ShoalError
from shoal.kinds.thread.flows.checkpoints import setting_of
from shoal.protocol.base import TOGETHER_MAX, ChannelNames, Channels, Elements, Merged, Parts, Secrets
from shoal.protocol.conformance import check_together
from shoal.protocol.requests import (
    Batch,
    BeginStep,
    DocumentJson,
    Durability,
    EndStep,
    MultiRead,
    ReadDocumentJson,
    Refused,
    Save,
    Saved,
    Step,
)
from shoal.protocol.requests.families import PartAnswer, union
from shoal.raising import partly
from shoal.workflows.transfer.exporting import Wanted, export
from shoal.workflows.transfer.records import Failure

if TYPE_CHECKING:
    StepView = Struct
else:
    StepView = view_of(Step)
SavedView = view_of(Saved)


class SaveFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either `state`, or one or more of `update`, `append` and `remove`; other channels then keep the parent's values."""

    state: Channels[Raw] | None = None
    update: Channels[Raw] = field(default_factory=dict)
    append: Channels[list[Raw]] = field(default_factory=dict)  # For each channel, elements to add at its end.
    remove: ChannelNames = field(default_factory=list)
    metadata: dict[str, Raw] | None = None
    branch: str = "main"
    expect_head: str | None = None  # The only head that the branch may have; "" if it must not exist yet.
    parent: str | None = None  # "" for none. If left out, the branch's winning head on the node that is asked.
    schema: str = ""
    schema_version: int = 0
    readable_from: int = 0  # The oldest schema version whose readers understand the state; 0: only this one.
    secret: Secrets = field(default_factory=list)  # JSON pointers to values that commands, diffs and exports hide.
    on_conflict: Literal["refuse", "fork"] = "refuse"  # What to do if the branch has moved on from `parent`.
    merged: Merged = field(default_factory=list)  # Heads that it merges, in addition to its parent.
    author: str = ""
    label: str = ""  # A name for the checkpoint, unique within its thread.
    configuration: dict[str, Raw] | None = None  # The author's configuration; a hash of it is kept, for `resume` to compare.
    dependencies: dict[str, str] | None = None  # Versions by name; kept in the same way.


class SaveBody(SaveFields):
    """A save in the thread that the path names."""


async def save(exchange: Exchange) -> web.Response:
    """Save a checkpoint. `If-Match` gives the head that the branch must have.

    Raises:
        InvalidInput: the body holds both a state and a change, or neither.
        HeadMoved: the branch has moved on; nothing was written.
    """
    body = await exchange.body(SaveBody)
    body.expect_head = exchange.expected(body.expect_head, "expect_head")
    reply = await exchange.call(save_request(exchange, exchange.name("space"), exchange.name("thread"), body))
    exchange.version = reply.id
    return await exchange.answer(show(exchange, reply), status=201)


def save_request(exchange: Exchange, space: str, thread: str, fields: SaveFields) -> Save:
    """The request of a save.

    Raises:
        InvalidInput: `fields` hold both a state and a change, or neither.
        InvalidValue: a value cannot be stored.
    """
    changes = bool(fields.update or fields.append or fields.remove)
    if changes == (fields.state is not None):
        raise InvalidInput(
            "give either `state` (a whole state) or some of `update`, `append` and `remove` (a change). Nothing was written.",
            field="state",
        )
    return Save(
        space,
        thread,
        {name: exchange.stored(value) for name, value in (fields.update if fields.state is None else fields.state).items()},
        metadata=exchange.stored_map(fields.metadata or {}),
        branch=fields.branch,
        parent=fields.parent,
        expect_head=fields.expect_head,
        schema=fields.schema,
        schema_version=fields.schema_version,
        delta=changes,
        appended={name: _stored_list(exchange, elements) for name, elements in fields.append.items()},
        removed=fields.remove,
        merged=fields.merged,
        fork=fields.on_conflict == "fork",
        author=fields.author,
        readable_from=fields.readable_from,
        secret=fields.secret,
        label=fields.label,
        setting=setting_of(
            None
            if fields.configuration is None
            else {name: exchange.value(part) for name, part in fields.configuration.items()},
            fields.dependencies,
        ),
    )


def _stored_list(exchange: Exchange, elements: list[Raw]) -> bytes:
    return msgspec.msgpack.encode([Raw(exchange.stored(element)) for element in elements])


NDJSON = "application/x-ndjson"


class ExportQuery(Struct, forbid_unknown_fields=True):
    """The form of an export."""

    reveal: bool = False  # With secret fields, for a token that may see them. Without them checkpoints get other ids.
    changes: bool = False  # States as changes of their parents', which takes less.


async def export_thread(exchange: Exchange) -> web.StreamResponse:
    """Stream one thread as JSON lines."""
    return await _streamed(exchange, Wanted(exchange.name("space"), exchange.name("thread")))


async def export_space(exchange: Exchange) -> web.StreamResponse:
    """Stream all objects of a space as JSON lines."""
    return await _streamed(exchange, Wanted(exchange.name("space")))


async def export_store(exchange: Exchange) -> web.StreamResponse:
    """Stream all objects of all spaces as JSON lines."""
    return await _streamed(exchange, Wanted())


async def _streamed(exchange: Exchange, wanted: Wanted) -> web.StreamResponse:
    asked = exchange.query(ExportQuery)
    async with aclosing(export(exchange.connection, wanted._replace(reveal=asked.reveal, changes=asked.changes))) as lines:
        # An error here is still answered as a problem document. The first lines say what follows, the third is read.
        first = [await anext(lines), await anext(lines, b""), await anext(lines, b"")]
        response = web.StreamResponse(headers={"Content-Type": NDJSON, **exchange.bookmark_headers()})
        await response.prepare(exchange.request)
        if exchange.request.method == "HEAD":
            return response
        try:
            await _write(exchange, response, b"".join(first))
            async for line in lines:
                await _write(exchange, response, line)
        except (TimeoutError, ConnectionError):
            _cut(exchange)  # It reads nothing, or is gone.
        except Exception as reason:
            error = reason if isinstance(reason, ShoalError) else internal(reason, where="export")
            with suppress(TimeoutError, ConnectionError):
                await _write(exchange, response, msgspec.json.encode(Failure(error.code, error.message)) + b"\n")
            _cut(exchange)
    return response


async def _write(exchange: Exchange, response: web.StreamResponse, line: bytes) -> None:
    async with asyncio.timeout(exchange.config.heartbeat_s):
        await response.write(line)


def _cut(exchange: Exchange) -> None:
    if exchange.request.transport is not None:
        exchange.request.transport.abort()


class BeginQuery(Struct, forbid_unknown_fields=True):
    """The durability of an intent."""

    durability: Durability = "quorum"  # By default a quorum, so that a fail-over does not repeat the effect.


class BeginBody(Struct, forbid_unknown_fields=True):
    """An intent: the effect that the caller is about to cause."""

    name: str
    arguments: Raw = field(default_factory=Raw)
    attempt: str = ""  # A name unique to this attempt. If left out, the Idempotency-Key, or a new one.
    holder: str = ""
    parent: str = ""
    compensation: str = ""
    attempts: Annotated[int, Meta(ge=0)] = 0  # How many attempts may fail; 0: as many as the node allows.
    idempotent: bool = False  # Begin even if an earlier attempt is open and may have caused the effect.


async def begin(exchange: Exchange) -> web.Response:
    """Write a step's intent. 201: the caller causes the effect; 200: it must not, and the step says why.

    Raises:
        KeyReused: the key belongs to a step of another name or with other arguments; nothing was written.
        ThreadHeld: the thread is paused or waits; nothing was written.
    """
    body = await exchange.body(BeginBody)
    space, thread, key = exchange.name("space"), exchange.name("thread"), exchange.name("step")
    request = BeginStep(
        space,
        thread,
        key,
        body.name,
        body.attempt,
        body.holder,
        exchange.stored(body.arguments) if body.arguments else b"",
        body.parent,
        body.compensation,
        attempts=body.attempts,
        take_over=body.idempotent,
    )
    step = await exchange.call(request, durability=exchange.query(BeginQuery).durability)
    if step.begun and step.rivals and not body.idempotent:
        withdrawal = EndStep(space, thread, key, step.attempt, "withdrawn")
        with partly(True, "the step is begun, beside another attempt", "Begin it again with the same attempt."):
            step = await exchange.session.call(withdrawal)
    return await exchange.answer(show(exchange, step), status=201 if step.begun else 200)


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
    reply = await exchange.call(Batch([_written(exchange, space, op) for op in body.writes]))
    return await exchange.answer({"replies": [show(exchange, answer) for answer in reply.replies]})


def _written(exchange: Exchange, space: str, op: Struct) -> Any:
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
