"""Exports: a thread, a space or a whole store as lines, and what tells two exports apart.

Laws:
- A line is yielded as soon as it is read. Writers are not stopped: each record shows what there was when it was read.
- Two objects have equal tallies if their records are equal but for what an import cannot keep (docs/EXPORT.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from hashlib import sha256
from typing import Any

import msgspec

from shoal import __version__
from shoal.names import RESERVED
from shoal.protocol import requests
from shoal.protocol.requests import ObjectKind
from shoal.records import NamedTuple
from shoal.workflows.connection import Connection
from shoal.workflows.spaces import check_exists, names
from shoal.workflows.transfer import records
from shoal.workflows.transfer.lines import Writer
from shoal.workflows.transfer.objects import KINDS, objects
from shoal.workflows.transfer.records import FORMAT, Record
from shoal.workflows.transfer.threads import ThreadExport


class Wanted(NamedTuple):
    """The subject of an export."""

    space: str | None = None  # None: all spaces.
    thread: str | None = None  # None: all objects of the space.
    reveal: bool = False  # Whether to show secret fields.
    changes: bool = False  # Whether a state is shown as a change of its parent's, which takes less.
    states: bool = True  # Whether checkpoints are shown with what they hold.


async def export(connection: Connection, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """The lines of an export.

    Raises:
        NotFound: there is no such thread.
    """
    if wanted.thread is not None:
        await check_exists(connection, wanted.space or "", wanted.thread)
    writer = Writer()
    yield writer.line(records.Header(FORMAT, __version__, wanted.space, wanted.thread))
    async with aclosing(_spaces(connection, wanted)) as spaces:
        async for space in spaces:
            yield writer.line(records.SpaceBegins(space))
            async for record in _of_space(connection, space, wanted):
                yield writer.line(record)
    yield writer.end()


async def _spaces(connection: Connection, wanted: Wanted) -> AsyncGenerator[str, None]:
    if wanted.space is not None:
        yield wanted.space
        return
    after, more = None, True
    while more:
        page = await connection.read(requests.ListSpaces(after))
        for space in page.names:
            if space != RESERVED:
                yield space
            after = space
        more = page.more


async def _of_space(connection: Connection, space: str, wanted: Wanted) -> AsyncIterator[Record]:
    kinds: tuple[ObjectKind, ...] = ("thread",) if wanted.thread is not None else ("thread", *KINDS)
    for kind in kinds:
        named = _one(wanted.thread) if wanted.thread is not None else names(connection, space, kind)
        async for name in named:
            async for record in of_object(connection, space, kind, name, wanted):
                yield record


async def _one(name: str) -> AsyncIterator[str]:
    yield name


def of_object(connection: Connection, space: str, kind: ObjectKind, name: str, wanted: Wanted) -> AsyncIterator[Record]:
    """The records of one object."""
    if kind == "thread":
        return ThreadExport(connection, space, name, *wanted[2:]).all()
    return objects(connection, space, kind, name)


class Tally:
    """The records of one object, as far as an import keeps them: how many of each type, and one sum of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self.hides = False  # Whether secret fields are hidden, so that ids and states differ.

    def add(self, record: Record) -> None:
        """Count a record."""
        self.hides |= isinstance(record, records.Checkpoint) and record.hidden
        for kind, part in _parts(record, self.counts):
            self.counts[kind] += 1
            digest = sha256(msgspec.json.encode(part)).digest()
            self._sums[kind] = (self._sums[kind] + int.from_bytes(digest[:16], "big")) % 2**128

    def differences(self, other: Tally) -> list[str]:
        """The types of records in which another tally differs, with both counts."""
        hidden = ("checkpoint", "branch", "label") if self.hides else ()
        return [
            f"{kind}: {self.counts[kind]} read, {other.counts[kind]} there"
            + ("" if self.counts[kind] != other.counts[kind] else ", not all equal")
            for kind in sorted(self.counts.keys() | other.counts.keys())
            if self.counts[kind] != other.counts[kind] or (self._sums[kind] != other._sums[kind] and kind not in hidden)
        ]


def _parts(record: Record, counts: Counter[str]) -> list[tuple[str, Any]]:
    """The parts of a record that an import keeps, each with its type. Names are those of the place, and are left out."""
    kind = str(record.__struct_config__.tag)
    match record:
        case records.Thread():
            return [(kind, (record.retain_older_than_ms, record.retain_bytes, record.retain_events))]
        case records.Chunk() | records.Content():  # A file says what it holds, and a checkpoint, by its id, what it refers to.
            return []
        case records.File():
            return [(kind, (record.name, record.sha256, record.size, record.media_type))]
        case records.Checkpoint():  # Its id says what it holds.
            return [(kind, (record.id, record.time, record.parents))]
        case records.Event():  # Ids are positions, and an event is late for those that have read what comes after it.
            return [(kind, (counts[kind], record.time, record.key, record.event, record.erased))]
        case records.Consumer():
            return [(kind, (record.consumer, record.events))]
        case records.Entry():
            finishes = [(each.by, each.time, each.result) for each in record.finishes[:1]]
            id = record.id if record.key is not None else ""
            return [
                (
                    kind,
                    (
                        record.worklist,
                        id,
                        record.key,
                        record.by,
                        record.time,
                        record.value,
                        finishes,
                        record.plan,
                        record.tried,
                    ),
                )
            ]
        case records.Step():
            made = [(each.id, each.state, each.holder, each.begun, each.ended, each.error) for each in record.attempts]
            named = (record.key, record.name, record.state, record.begun, record.ended, record.parent, record.compensation)
            return [(kind, (*named, made, record.arguments, record.result, record.result_by, record.failures))]
        case records.Set():
            return [(kind, None), *(("member", each) for each in record.members)]
        case records.List():
            before = counts["element"]
            return [(kind, None), *(("element", (before + nth, each)) for nth, each in enumerate(record.elements))]
        case records.Map():
            return [(kind, None), *(("entry", each) for each in record.entries)]
        case _:
            fields = [getattr(record, name) for name in record.__struct_fields__[1:]]
            return [(kind, fields)]
