"""The lines of an export: writing them, reading lines that anybody may have written, and sending the writes that they become.

Laws:
- A reader holds one line at a time, of at most `LINE_BYTES_MAX`, and one block of `BLOCK_BYTES`.
- The last line names the number and the SHA-256 of those before it. An export that has none is cut, and one whose sum differs
  was altered: both are told from one that is whole.
- A value is written as tagged JSON if that gives the same bytes again; else as its bytes. So nothing of it is lost.

Writes of an import, sent together.

Laws:
- Writes are of one partition at a time, and are carried out in their order.
- Those that wait are at most `WRITES_MAX`, with `BYTES_MAX` bytes and one write more.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator
from contextlib import suppress
from hashlib import sha256
from typing import IO, Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from shoal.errors import InvalidInput, InvalidValue, ShoalError, TooLarge
from shoal.protocol import requests
from shoal.protocol.requests import Imported
from shoal.records import NamedTuple
from shoal.values.stepped import packed_in_steps, text_in_steps
from shoal.workflows.connection import Connection
from shoal.workflows.transfer import records
from shoal.workflows.transfer.records import End, Record

LINE_BYTES_MAX = 128 * 1024 * 1024  # A document of the largest size, as base64.
BLOCK_BYTES = 1024 * 1024

_CONTROL = re.compile(rb"\x7f|\xc2[\x80-\x9f]")  # Within strings; JSON does not escape these, and a terminal obeys them.
_PACKED = re.compile(rb'\s*\{\s*"\$type"\s*:\s*"packed"')
_PIECE_VALUES = 64  # Small values that are converted before others get a turn.

T = TypeVar("T")


class Packed(Struct, tag_field="$type", tag="packed", omit_defaults=True):
    """A value as its bytes, if JSON cannot say it; `shown` is for people."""

    value: bytes
    shown: Raw = records.ABSENT


async def done(steps: Generator[None, None, T]) -> T:
    """The result of steps, between which others get a turn."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


async def text_of(packed: bytes, schema: str = "") -> Raw:
    """The JSON text of a value, from which `packed_of` makes the same bytes. No bytes are `ABSENT`."""
    if not packed:
        return records.ABSENT
    with suppress(ShoalError, msgspec.MsgspecError, UnicodeError, RecursionError):
        text = await done(text_in_steps(packed))
        if await done(packed_in_steps(text)) == packed:
            return Raw(text)
    shown = records.ABSENT
    with suppress(ShoalError):
        shown = Raw(await done(text_in_steps(packed, schema)))
    return Raw(msgspec.json.encode(Packed(packed, shown)))


async def packed_of(text: Raw) -> bytes:
    """The value of JSON text.

    Raises:
        InvalidValue: it is none.
        TooLarge: a part of it that cannot be divided has too many values inside.
    """
    given = bytes(text)
    if not given:
        return b""
    try:
        if _PACKED.match(given):
            return b64decode(msgspec.json.decode(given, type=_Bytes).value, validate=True)
        return await done(packed_in_steps(given))
    except (msgspec.MsgspecError, UnicodeError, RecursionError, NoBase64) as reason:
        raise InvalidValue(f"{given[:60]!r} is no value: {reason}. Nothing was written.") from None


class _Bytes(Struct):
    value: str


class Writer:
    """Makes the lines of one export."""

    def __init__(self) -> None:
        self._sum = sha256()
        self._count = 0

    def line(self, record: Record) -> bytes:
        """The line of a record."""
        text = _CONTROL.sub(lambda met: b"\\u%04x" % ord(met[0].decode()), msgspec.json.encode(record)) + b"\n"
        self._sum.update(text)
        self._count += 1
        return text

    def end(self) -> bytes:
        """The last line."""
        return msgspec.json.encode(End(self._count, self._sum.hexdigest())) + b"\n"


class Line(NamedTuple):
    """One line, decoded."""

    number: int  # From 1.
    record: Record | None  # None if this version does not know its type.
    type: str


class _Type(Struct):
    type: str = ""


async def blocks_of(file: IO[bytes]) -> AsyncIterator[bytes]:
    """The content of a file or a pipe, which is read beside the event loop."""
    while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
        yield block


async def texts(blocks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The lines of some blocks, without their ends.

    Raises:
        TooLarge: a line is longer than `LINE_BYTES_MAX`.
    """
    waiting: list[bytes] = []  # The beginning of a line.
    size = 0
    async for block in blocks:
        *whole, rest = block.split(b"\n")
        for text in whole:
            if size + len(text) > LINE_BYTES_MAX:
                raise _too_long()
            yield b"".join((*waiting, text)) if waiting else text
            waiting, size = [], 0
        if rest:
            waiting.append(rest)
            size += len(rest)
            if size > LINE_BYTES_MAX:
                raise _too_long()
    if waiting:
        yield b"".join(waiting)


def _too_long() -> TooLarge:
    return TooLarge(
        f"a line of the export has more than {LINE_BYTES_MAX} bytes, which no export has. Nothing more was written. "
        "Is it an export?"
    )


async def lines(blocks: AsyncIterable[bytes]) -> AsyncGenerator[Line, None]:
    """The lines of an export, decoded; the last one is its end.

    Raises:
        InvalidInput: it is no export, is cut, or was altered.
        TooLarge: as `texts`.
    """
    summed, count = sha256(), 0
    async for text in texts(blocks):
        try:
            line = decoded(text, count + 1)
        except InvalidInput as error:
            if count and text and _TRUNCATED in error.message:
                raise _cut(count) from None
            raise
        if isinstance(line.record, End):
            if (line.record.records, line.record.sha256) != (count, summed.hexdigest()):
                raise InvalidInput(
                    "the export was altered: its last line does not match the lines before it. Nothing more was written. "
                    "Export it again."
                )
            yield line
            return
        count += 1
        summed.update(text + b"\n")
        yield line
    raise _cut(count)


_TRUNCATED = "was truncated"  # What msgspec says of a line whose end is missing.


def _cut(count: int) -> InvalidInput:
    return InvalidInput(
        f"the export is cut after {count} lines: it has no last line of type 'end'. Nothing more was written. Get the whole of "
        "it, and import that with --resume."
    )


def decoded(text: bytes, number: int) -> Line:
    """One line.

    Raises:
        InvalidInput: it is no record.
    """
    try:
        kind = msgspec.json.decode(text, type=_Type).type
        return Line(number, records.decoder().decode(text) if kind in records.TYPES else None, kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, ValueError) as reason:
        raise InvalidInput(f"line {number} is no record of an export: {reason}. Nothing more was written.") from None


WRITES_MAX = 256
BYTES_MAX = 1024 * 1024

_encoder = msgspec.msgpack.Encoder()


class Sender:
    """Sends writes; `writes` counts them. `durability` is that of each; None: the store's."""

    def __init__(self, connection: Connection, durability: requests.Durability | None) -> None:
        self._connection, self.durability = connection, durability
        self._waiting: list[Imported] = []
        self._bytes = 0
        self._replies: list[Any] = []
        self.writes = 0

    async def put(self, write: Imported) -> None:
        """Send a write, at the latest when `flush` is called.

        Raises:
            ShoalError: it, or one of those that wait, cannot be written. None of these is.
        """
        self._waiting.append(write)
        self._bytes += len(_encoder.encode(write.write))
        if len(self._waiting) >= WRITES_MAX or self._bytes >= BYTES_MAX:
            await self.flush()

    async def flush(self) -> list[Any]:
        """Send what waits, and return the replies to what was sent last. Raises as `put`."""
        if self._waiting:
            waiting, self._waiting, self._bytes = self._waiting, [], 0
            write: Any = requests.Import(waiting)
            self._replies = (await self._connection.write(write, key=None, durability=self.durability)).replies
            self.writes += len(waiting)
        return self._replies

    def forget(self) -> None:
        """Drop what waits: it cannot be written."""
        self._waiting, self._bytes = [], 0


def key_of(*named: str) -> str:
    """The key of a write, of the object that it comes from and its place there."""
    return f"import:{sha256(chr(0).join(named).encode()).hexdigest()[:40]}"
