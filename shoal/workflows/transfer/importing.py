"""Imports: the lines of an export become objects again, here or under another name. And exports in files.

Laws:
- An object that is there is not written to, unless the caller says how: it is gone on with, or deleted before.
- An import can be cut anywhere, and made again with `resume`: what is there is not written twice. Two at once do no harm.
- Each object is read again once it is written, and compared with what was read. What differs is reported.
- Lines may be anybody's: each is checked as a client's request is, and one that is wrong ends the import.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import IO, Literal, Protocol

from msgspec import Struct, field

from shoal.errors import GenerationEnded, InvalidInput, ShoalError, TooLarge, Unsupported
from shoal.names import RESERVED, check_name
from shoal.protocol.requests import Durability, ObjectKind
from shoal.raising import partly
from shoal.records import NamedTuple
from shoal.workflows.connection import Connection
from shoal.workflows.spaces import DELETIONS, exists
from shoal.workflows.transfer import records
from shoal.workflows.transfer.exporting import Tally, Wanted, export, of_object
from shoal.workflows.transfer.lines import Line, Sender, blocks_of, lines
from shoal.workflows.transfer.objects import KINDS, OF, Place, name_of
from shoal.workflows.transfer.records import FORMAT, Record
from shoal.workflows.transfer.threads import ThreadImport

Existing = Literal["refuse", "resume", "replace"]
"""The treatment of an object that is there: it is left as it is, gone on with, or deleted first."""

TOLD_MAX = 100  # Objects that a report names.
TYPES_MAX = 100  # Types of records that a report names; those after them are counted together,
OTHER_TYPES = "…"  # as this one.
TYPE_CHARACTERS_MAX = 40  # Of a type that a report names.


class Aim(NamedTuple):
    """Where an import goes."""

    space: str | None = None  # Where a thread goes, or a space under another name; None: as it was called.
    name: str | None = None  # Another name for the thread, or the space, of the export.
    existing: Existing = "refuse"
    durability: Durability | None = None  # Of each write; None: the store's.


class ImportReport(Struct):
    """The report of an import."""

    read: dict[str, int] = field(default_factory=dict)  # Type of record → how many were read.
    objects: dict[str, int] = field(default_factory=dict)  # Kind → how many are there now, as they were read.
    writes: int = 0
    there: list[str] = field(default_factory=list)  # Objects that were there, and were left as they are; at most 100.
    differs: list[str] = field(default_factory=list)  # Objects that are not as they were read, and in what; at most 100.
    unknown: dict[str, int] = field(default_factory=dict)  # Types of records that this version does not know.
    hidden: int = 0  # Checkpoints whose secret fields are not in the export: they are null, and the ids differ.
    left: int = 0  # Objects that are not as they were read, all of them counted.

    @property
    def whole(self) -> bool:
        """Whether all that was read is there now."""
        return not (self.left or self.unknown or self.hidden)


async def import_from(connection: Connection, blocks: AsyncIterable[bytes], aim: Aim) -> ImportReport:
    """Import an export, which comes as blocks of bytes.

    Raises:
        InvalidInput: it is no export, is cut, or was altered; what comes before is imported.
        Unsupported: a later version wrote it. Nothing was written.
        ShoalError: something cannot be written; what comes before is imported.
    """
    importing = _Importing(connection, aim)
    async with aclosing(lines(blocks)) as read:
        async for line in read:
            with partly(importing.has_written, f"the lines before line {line.number} are imported", _AGAIN):
                await importing.take(line)
    return importing.report


_AGAIN = 'Import it again with --resume (`existing="resume"`) to go on.'


class _Taker(Protocol):
    async def take(self, record: Record) -> None: ...

    async def end(self) -> None: ...


class _Others:
    """An object that is no thread, as its records are written."""

    def __init__(self, kind: ObjectKind, place: Place) -> None:
        self._take, self._place = KINDS[kind].take, place

    async def take(self, record: Record) -> None:
        await self._take(self._place, record)

    async def end(self) -> None:
        await self._place.send.flush()


class _Current:
    """The object whose records come."""

    def __init__(self, place: tuple[str, ObjectKind, str], name: str, taker: _Taker | None) -> None:
        self.place, self.name, self.taker = place, name, taker
        self.tally = Tally()


class _Importing:
    def __init__(self, connection: Connection, aim: Aim) -> None:
        self._connection, self._aim = connection, aim
        self._send = Sender(connection, aim.durability)
        self._header: records.Header | None = None
        self._from, self._space = "", ""  # The space of the records, there and here.
        self._current: _Current | None = None
        self.report = ImportReport()

    @property
    def has_written(self) -> bool:
        """Whether it has written anything."""
        return bool(self._send.writes)

    async def take(self, line: Line) -> None:
        """Import one line."""
        _count(self.report.read, line.type)
        record = line.record
        if self._header is None:
            self._begin(record)
        elif record is None:
            _count(self.report.unknown, line.type)
        elif isinstance(record, records.SpaceBegins):
            await self._ended()
            self._from = check_name("space", record.space)
            is_one = self._header.space is not None
            self._space = self._aim.space if is_one and self._aim.space is not None else self._from
            if self._space == RESERVED:
                raise InvalidInput(f"{RESERVED!r} is the space of the nodes themselves: nothing is imported into it.")
        elif isinstance(record, records.End):
            await self._ended()
        elif isinstance(record, records.Failure):
            raise InvalidInput(f"the export ended with an error: {record.code}: {record.detail[:500]}. Export it again.")
        elif isinstance(record, records.Header) or not self._space:
            raise InvalidInput(f"line {line.number} is at a place where no export has it. Nothing more was written.")
        else:
            await self._record(record, line.number)

    def _begin(self, record: Record | None) -> None:
        if not isinstance(record, records.Header):
            raise InvalidInput("it is no export: its first line is not of type 'export'. Nothing was written.")
        if record.format > FORMAT:
            raise Unsupported(
                f"the export has format {record.format}, and version {record.shoal[:40]} wrote it; this version reads format "
                f"{FORMAT}. Nothing was written. Import it with that version."
            )
        if record.format < FORMAT:
            raise Unsupported(
                f"the export has format {record.format}, which has too little of a thread to make it again. Nothing was "
                "written. Export it again with this version."
            )
        aim = self._aim
        if record.space is None and (aim.space, aim.name) != (None, None):
            raise InvalidInput("an export of a whole store keeps the names of its spaces. Nothing was written. Name no space.")
        if record.thread is None and aim.name is not None:
            if aim.space not in (None, aim.name):
                raise InvalidInput("a space gets one name, and two are given. Nothing was written. Give one.")
            self._aim = aim._replace(space=aim.name, name=None)
        self._header = record

    async def _record(self, record: Record, number: int) -> None:
        kind, name = OF.get(type(record), "thread"), name_of(record)
        if self._current is None or self._current.place != (self._from, kind, name):
            await self._ended()
            if kind == "thread" and not isinstance(record, records.Thread):
                raise InvalidInput(f"line {number} is of a thread that has not begun. Nothing more was written.")
            self._current = await self._begun(kind, name)
        current = self._current
        if current.taker is not None:
            current.tally.add(record)
            self.report.hidden += isinstance(record, records.Checkpoint) and record.hidden
            try:
                await current.taker.take(record)
            except GenerationEnded:
                self._deleted(current)
            except ShoalError as error:
                raise _at(error, number) from error

    async def _begun(self, kind: ObjectKind, name: str) -> _Current:
        """The object that begins, without a taker if it is left as it is."""
        assert self._header is not None
        check_name(kind, name)
        place, here = (self._from, kind, name), name
        if self._header.thread is not None:
            if kind != "thread" or name != self._header.thread:
                raise InvalidInput(
                    f"an export of thread {self._header.thread[:80]!r} holds another object. Nothing was written."
                )
            here = self._aim.name or name
        if self._aim.existing != "resume" and await exists(self._connection, self._space, kind, here):
            if self._aim.existing == "refuse":
                self.report.left += 1
                if len(self.report.there) < TOLD_MAX:
                    self.report.there.append(f"{kind} {here!r} of space {self._space!r}")
                return _Current(place, here, None)
            await self._connection.write(DELETIONS[kind](self._space, here), key=None, durability=self._aim.durability)
        source = (self._from, name)
        if kind == "thread":
            return _Current(place, here, ThreadImport(self._connection, self._space, here, source=source, send=self._send))
        return _Current(place, here, _Others(kind, Place(self._connection, self._space, source, self._send)))

    async def _ended(self) -> None:
        """The last record of an object has come: compare what is there with what was read."""
        current, self._current = self._current, None
        if current is None or current.taker is None:
            return
        try:
            await current.taker.end()
        except GenerationEnded:
            self._deleted(current)
            return
        self.report.writes = self._send.writes
        found, (_, kind, _) = Tally(), current.place
        wanted = Wanted(states=False)
        if await exists(self._connection, self._space, kind, current.name):
            async for record in of_object(self._connection, self._space, kind, current.name, wanted):
                found.add(record)
        if differences := current.tally.differences(found):
            self._differs(current, "; ".join(differences))
        else:
            self.report.objects[kind] = self.report.objects.get(kind, 0) + 1

    def _deleted(self, current: _Current) -> None:
        """A document's Yjs clients are known as those of one that was deleted: what they write is refused."""
        self._send.forget()
        self._differs(current, "it was deleted here: import it under another name")
        current.taker = None

    def _differs(self, current: _Current, how: str) -> None:
        self.report.left += 1
        if len(self.report.differs) < TOLD_MAX:
            self.report.differs.append(f"{current.place[1]} {current.name!r} of space {self._space!r}: {how}")


def _count(counts: dict[str, int], type: str) -> None:
    """Count a record. The types of a file may be anything, and as many as it has lines."""
    shown = type[:TYPE_CHARACTERS_MAX]
    if shown not in counts and len(counts) >= TYPES_MAX:
        shown = OTHER_TYPES
    counts[shown] = counts.get(shown, 0) + 1


def _at(error: ShoalError, number: int) -> ShoalError:
    error.message = f"up to line {number}: {error.message}"
    error.args = (error.message,)
    return error


PART = ".part"  # The name of a file that is being written ends so.

_SHOWN = 200  # Characters of a path that an error shows.


async def written(connection: Connection, wanted: Wanted, file: str | os.PathLike[str] | IO[bytes]) -> int:
    """Write an export. Returns how many lines.

    Raises:
        NotFound: there is no such thread.
        InvalidInput: the file exists, or cannot be written; or a thread is named without its space.
    """
    if wanted.thread is not None and wanted.space is None:
        raise InvalidInput("a thread is named without its space. Nothing was exported.")
    if not isinstance(file, str | os.PathLike):
        return await _copied(connection, wanted, file)
    path = _path(file)
    part = path.with_name(path.name + PART)
    try:
        _check_free(path)
        with _opened(part, "wb") as opened:
            count = await _copied(connection, wanted, opened)
            opened.flush()
            await asyncio.to_thread(os.fsync, opened.fileno())
        part.replace(path)
    except OSError as error:
        raise InvalidInput(f"{str(path)[:_SHOWN]} cannot be written: {error.strerror}.") from None
    finally:
        with suppress(OSError):
            part.unlink()
    return count


async def _copied(connection: Connection, wanted: Wanted, file: IO[bytes]) -> int:
    count = 0
    async with aclosing(export(connection, wanted)) as made:
        async for line in made:
            await asyncio.to_thread(file.write, line)
            count += 1
    return count


async def check(file: str | os.PathLike[str]) -> None:
    """Read an export as a whole, before anything is written.

    Raises:
        InvalidInput, TooLarge: it is no export, is cut or was altered, or cannot be read. Nothing was written.
    """
    path = _path(file)
    try:
        with _opened(path, "rb") as opened:
            async with aclosing(lines(blocks_of(opened))) as checked:
                async for _ in checked:
                    pass
    except OSError as error:
        raise _unreadable(path, error) from None
    except (InvalidInput, TooLarge) as error:
        raise type(error)(error.message.replace("Nothing more was written", "Nothing was written"), **error.detail) from None


async def read(
    connection: Connection, file: str | os.PathLike[str] | IO[bytes], aim: Aim, *, checked: bool = False
) -> ImportReport:
    """Import an export. A file is checked as a whole before anything is written, unless it was; a pipe as it comes.

    Raises:
        as `import_from` and `check`.
    """
    if not isinstance(file, str | os.PathLike):
        return await import_from(connection, blocks_of(file), aim)
    if not checked:
        await check(file)
    path = _path(file)
    try:
        with _opened(path, "rb") as opened:
            return await import_from(connection, blocks_of(opened), aim)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{str(path)[:_SHOWN]} cannot be read: {error.strerror}. Nothing was written.")


def _path(file: str | os.PathLike[str]) -> Path:
    """The path of a file.

    Raises:
        InvalidInput: no file can have it.
    """
    path = Path(file)
    if not path.name or "\0" in str(path):
        raise InvalidInput(f"{str(path)[:_SHOWN]!r} is no path of a file. Nothing was read or written.")
    return path


def _opened(path: Path, mode: str) -> IO[bytes]:
    return path.open(mode)


def _check_free(path: Path) -> None:
    if path.exists():
        raise InvalidInput(f"{path} exists. Nothing was exported. Remove it, or choose another name.")
