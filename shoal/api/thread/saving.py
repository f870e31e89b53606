"""Saves over HTTP: a whole state, or a change of the parent's."""

from __future__ import annotations

from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Raw, Struct, field

from shoal.api.derived import show, view_of
from shoal.api.http.exchange import Exchange
from shoal.errors import InvalidInput
from shoal.kinds.thread.flows.provenance import setting_of
from shoal.protocol.declared import ChannelNames, Channels, Merged, Secrets
from shoal.protocol.requests import Save, Saved

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
