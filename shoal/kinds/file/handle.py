"""The files of a thread, as its handle offers them."""

from __future__ import annotations

import io
import mimetypes
import os
from asyncio import to_thread
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable
from contextlib import aclosing
from typing import IO, Any

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.errors import Cold, FileIncomplete, InvalidInput, StoreCorrupt
from shoal.kinds.file.flows import PIECE_BYTES, Download, Upload, found_file
from shoal.names import check_path
from shoal.protocol import requests
from shoal.protocol.requests import Durability, FileInfo
from shoal.values.registry import FileRef

Source = str | os.PathLike[str] | bytes | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]
"""The bytes of a file: a path to a file of this machine, the bytes themselves, or a stream of them."""

_ATTEMPTS_MAX = 3  # To put a file whose chunks go meanwhile, if its source can be read again.


@named
class FileStream:
    """A file that is being read: `async with thread.open_file("page.png") as stream:`. `async for` gives it piece by piece."""

    def __init__(self, connection: StoreConnection, space: str, thread: str, file: str | FileRef, *, stale: bool) -> None:
        self._connection, self._space, self._thread = connection, space, thread
        self._file, self._stale = file, stale
        self._download: Download | None = None
        self._source: AsyncGenerator[bytes, None] | None = None
        self._piece = b""
        self._at = 0

    def __repr__(self) -> str:
        return f"FileStream({self._space!r}, {self._thread!r}, {self._file!r})"

    async def __aenter__(self) -> FileStream:
        name, hash = ("", self._file.sha256) if isinstance(self._file, FileRef) else (self._file, "")
        self._download = await found_file(
            self._connection, self._space, self._thread, name=name, sha256=hash, stale=self._stale
        )
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._leave()
        self._download = None

    @property
    def _open(self) -> Download:
        if self._download is None:
            raise InvalidInput("a file is read within its block: `async with thread.open_file(name) as stream:`.")
        return self._download

    @property
    def ref(self) -> FileRef:
        """A reference to the file, for states."""
        if isinstance(self._file, FileRef):
            return self._file
        file = self._open.file
        return FileRef(file.sha256, file.size, file.name, file.media_type)

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self._open.file.size

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    async def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Have the next read begin at `offset` bytes: from the start, from here (1), or from the end (2). Returns the place.

        Raises:
            InvalidInput: that is before the start.
        """
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}.get(whence)
        if base is None or base + offset < 0:
            raise InvalidInput(f"a file has no place {offset} from {whence}. Nothing was read.")
        if base + offset != self._at:
            await self._leave()
            self._at = base + offset
        return self._at

    async def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, or fewer if the file ends; all that is left if `size` is below 0.

        Raises:
            StoreCorrupt: its bytes are not those of its hash.
            NotFound: it was deleted meanwhile.
        """
        parts: list[bytes] = []
        left = self.size - self._at if size < 0 else size
        while left > 0 and (piece := self._piece or await self._next()):
            part, self._piece = piece[:left], piece[left:]
            parts.append(part)
            left -= len(part)
            self._at += len(part)
        return b"".join(parts)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := self._piece or await self._next():
            self._piece = b""
            self._at += len(piece)
            yield piece

    async def _next(self) -> bytes:
        source = self._source = self._source or self._open.read(self._at)
        return await anext(source, b"")

    async def _leave(self) -> None:
        source, self._source, self._piece = self._source, None, b""
        if source is not None:
            await source.aclose()


class FileListing:
    """Files by name: `await` it for a list, or use `async for` to read page by page."""

    def __init__(self, connection: StoreConnection, space: str, thread: str, *, stale: bool) -> None:
        self._connection, self._space, self._thread, self._stale = connection, space, thread, stale

    def __await__(self) -> Generator[Any, None, list[FileInfo]]:
        return self._listed().__await__()

    async def __aiter__(self) -> AsyncIterator[FileInfo]:
        after, more = "", True
        while more:
            page = await self._connection.read(requests.ListFiles(self._space, self._thread, after), stale=self._stale)
            for file in page.files:
                yield file
            after, more = page.files[-1].name if page.files else "", page.more

    async def _listed(self) -> list[FileInfo]:
        return [file async for file in self]


@named
class ThreadFiles:
    """The part of a thread's handle, and of a space's, that is about files."""

    def __init__(self, connection: StoreConnection, space: str, thread: str) -> None:
        self._connection, self._space, self._thread = connection, space, thread

    async def put_file(
        self, name: str, source: Source, *, type: str | None = None, durability: Durability | None = None
    ) -> FileRef:
        """Store a file: see `Thread.put_file`."""
        check_path(name)  # Before anything of it is read and sent.
        kind = type or mimetypes.guess_type(name)[0] or "application/octet-stream"
        is_repeatable = isinstance(source, str | os.PathLike | bytes)
        whole = False
        for attempt in range(_ATTEMPTS_MAX):
            is_blocking = isinstance(source, str | os.PathLike) or (
                hasattr(source, "read") and not isinstance(source, AsyncIterable)
            )
            aside = to_thread if is_blocking else None
            upload = Upload(
                self._connection,
                self._space,
                self._thread,
                durability=durability,
                aside=aside,
                whole=whole,
                source="again" if is_repeatable else "once",
            )
            try:
                async with aclosing(_pieces(source)) as pieces:
                    async for piece in pieces:
                        await upload.feed(piece)
                file = await upload.finish(name, kind)
            except (FileIncomplete, Cold, StoreCorrupt) as error:
                if not is_repeatable or attempt == _ATTEMPTS_MAX - 1:
                    raise
                # Chunks of other files are damaged, or in an object store that is away.
                whole = whole or not isinstance(error, FileIncomplete)
            else:
                return FileRef(file.sha256, file.size, file.name, file.media_type)
            finally:
                await upload.abandon()
        raise AssertionError("the last attempt returns or raises")

    def open_file(self, file: str | FileRef, *, stale: bool = False) -> FileStream:
        """Read a file: see `Thread.open_file`."""
        return FileStream(self._connection, self._space, self._thread, file, stale=stale)

    async def file(self, name: str, *, stale: bool = False) -> FileRef:
        """A reference to a file: see `Thread.file`."""
        found = (await found_file(self._connection, self._space, self._thread, name=name, stale=stale)).file
        return FileRef(found.sha256, found.size, found.name, found.media_type)

    def files(self, *, stale: bool = False) -> FileListing:
        """The files, by name: see `Thread.files`."""
        return FileListing(self._connection, self._space, self._thread, stale=stale)

    async def delete_file(self, name: str, *, durability: Durability | None = None) -> bool:
        """Delete a file: see `Thread.delete_file`."""
        request = requests.DeleteFile(self._space, self._thread, name)
        return (await self._connection.write(request, key=None, durability=durability)).existed


async def _pieces(source: Source) -> AsyncGenerator[bytes, None]:
    """The bytes of a source, piece by piece."""
    if isinstance(source, str | os.PathLike):
        try:
            with await to_thread(open, source, "rb") as file:
                while piece := await to_thread(file.read, PIECE_BYTES):
                    yield piece
        except (OSError, ValueError) as error:  # A path with a 0 byte is a ValueError.
            raise InvalidInput(f"{str(source)[:200]!r} cannot be read: {error}. The file was not stored.") from error
    elif isinstance(source, bytes | bytearray | memoryview):
        for start in range(0, len(source), PIECE_BYTES):
            yield bytes(source[start : start + PIECE_BYTES])
    elif isinstance(source, AsyncIterable):  # Before what has `read`: a file of the store that is read has both.
        async for piece in source:
            yield _bytes(piece)
    elif hasattr(source, "read"):
        while piece := await to_thread(source.read, PIECE_BYTES):
            yield _bytes(piece)
    elif isinstance(source, Iterable):
        for piece in source:
            yield _bytes(piece)
    else:
        raise InvalidInput(
            f"a file is made of a path, bytes, or a stream of bytes; got {type(source).__name__}. Nothing was written."
        )


def _bytes(piece: Any) -> bytes:
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise InvalidInput(f"a file is a stream of bytes; it gave {type(piece).__name__}. The file was not stored.")
    return bytes(piece)
