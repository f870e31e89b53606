"""Files as streams: cut into chunks and sent on their way in, put together and proved on their way out.

Laws:
- Neither way is a file ever whole in memory: at most `SENDING_MAX` batches of chunks on the way in (`LAYING_MAX` within a
  node's process), and two on the way out, of which the second is asked for while the first is handed over.
- Chunks that the thread has are not sent, unless they could not be read for the proof. So a file that was cut off is put again,
  and goes on where it was.
- A stream is proved as it is read: each chunk by its digest, and all of it by the file's own hash if it was read in order.

Cut a stream of bytes into chunks whose ends its content decides, so that versions of a file share most of theirs.

Laws:
- A cut depends only on the bytes between it and the cut before: what is inserted, removed or changed moves the cuts near it.
- Each chunk has `FILE_CHUNK_BYTES_MIN` to `FILE_CHUNK_BYTES_MAX` bytes, but for the last one, which may have fewer.
- However a stream is handed over, in whatever pieces, its chunks are the same.

The cuts are those of FastCDC (Xia and others, 2016), by the package fastcdc if its compiled form is installed. Else one follows
a place where the rolling hash of states (`shoal.kinds.thread.state.chunking`) matches a pattern over neighbouring hashes, which
follows from the usual size.
Both pass over the bytes below the least size. Whoever cuts otherwise stores the same file, and shares fewer chunks.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from itertools import accumulate
from typing import Any, Literal

from shoal.errors import InvalidInput, StoreCorrupt
from shoal.kinds.file.proven import saying
from shoal.kinds.file.state import CHUNKS_MAX, FILE_BATCH_BYTES, FILE_CHUNK_BYTES_MAX, Chunk, pack_manifest, unpack_manifest
from shoal.kinds.thread.state.chunking import HASHED_BYTES, rolling
from shoal.protocol import requests
from shoal.protocol.requests import Durability, FileInfo, FileShown
from shoal.records import NamedTuple
from shoal.workflows.connection import Connection

FILE_CHUNK_BYTES_MIN = 512 * 1024
FILE_CHUNK_BYTES_USUAL = 1024 * 1024
SENDING_MAX = 3  # Batches that are on their way to another process,
LAYING_MAX = 8  # and to a node of this one: what one sync covers, and what the next one will.
SMALL_BYTES = 64 * 1024  # A file of so many bytes is one request, and the node is asked nothing before.
PIECE_BYTES = 1024 * 1024  # Of a stream, that are taken at once.
# At most in memory: batches on their way, the next, what is to be cut, and what is being cut.
UPLOAD_BYTES = (LAYING_MAX + 2) * FILE_BATCH_BYTES + PIECE_BYTES
_HELD_BYTES = 4 * 1024 * 1024  # Of a stream that is cut; more only while a chunk may be larger.
_BLOCK = 64 * 1024  # Positions that are hashed at once.


@cache
def compiled_cut() -> Any:
    """The package's function, imported once a file is cut; None if it is not installed.

    The package's form in plain Python is not used: it takes a hundred times as long.
    """
    with suppress(ImportError):
        from fastcdc.fastcdc_cy import fastcdc_cy  # type: ignore[import-not-found,import-untyped,unused-ignore]

        return fastcdc_cy
    return None


class Chunker:
    """Takes the pieces of one stream, and gives its chunks. `compiled`: by the package; None: if it is installed."""

    def __init__(self, *, compiled: bool | None = None) -> None:
        self._held = bytearray(
            _HELD_BYTES
        )  # Its part from `_starts` to `_ends`. One that grew and shrank would be copied each time.
        self._starts = self._ends = 0
        self._find = _compiled_cut if compiled or (compiled is None and compiled_cut()) else _plain_cut
        self._sizes = _Sizes(FILE_CHUNK_BYTES_MIN, FILE_CHUNK_BYTES_USUAL, FILE_CHUNK_BYTES_MAX)

    def limit(self, bytes_max: int) -> None:
        """Make chunks of at most so many bytes. It must be told before the least chunk can be complete."""
        while self._sizes.most > bytes_max:
            self._sizes = _Sizes(*(size // 2 for size in self._sizes))

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Take the next bytes; the chunks that they complete."""
        for at in range(0, len(piece), PIECE_BYTES):
            self._hold(piece[at : at + PIECE_BYTES])
            # With less, the end of what is held could be taken for that of the stream.
            while self._ends - self._starts >= self._sizes.most:
                yield self._take()

    def finish(self) -> Iterator[bytes]:
        """The stream has ended: the rest of its chunks."""
        while self._starts < self._ends:
            yield self._take()

    def _hold(self, piece: bytes) -> None:
        ends = self._ends + len(piece)
        if ends > len(self._held):
            left = self._held[self._starts : self._ends]
            self._held = self._held if len(left) + len(piece) <= len(self._held) else bytearray(len(left) + len(piece))
            self._held[: len(left)] = left
            self._starts, self._ends, ends = 0, len(left), len(left) + len(piece)
        self._held[self._ends : ends] = piece
        self._ends = ends

    def _take(self) -> bytes:
        with memoryview(self._held) as held, held[self._starts : self._ends] as rest:
            cut = self._find(rest, self._sizes)
            chunk = bytes(rest[:cut])
        self._starts += cut
        return chunk


class _Sizes(NamedTuple):
    least: int
    usual: int
    most: int


def _compiled_cut(held: memoryview, sizes: _Sizes) -> int:
    with held[: sizes.most] as looked:
        return int(next(compiled_cut()(looked, *sizes)).length)


@cache
def _pattern(usual: int) -> tuple[re.Pattern[bytes], int]:
    """Neighbouring hashes that are found after `usual` bytes or fewer, and how many bytes a match has read."""
    bits = max(1, usual.bit_length() - 1)  # It decides where cuts fall: if it changes, files share nothing with older ones.
    whole, rest = divmod(bits - 1, 8)
    return re.compile(rb"\x00{%d}[\x00-\x%02x]" % (whole, (1 << 7 - rest) - 1), re.DOTALL), HASHED_BYTES + whole


def _plain_cut(held: memoryview, sizes: _Sizes) -> int:
    size = min(len(held), sizes.most)
    pattern, window = _pattern(sizes.usual - sizes.least)
    for looked in range(sizes.least, size, _BLOCK):
        # A match that ends at `looked` began one window before.
        begins, ends = looked - window, min(looked + _BLOCK, size)
        hashes = rolling(bytes(held[begins:ends]))
        match = pattern.search(hashes, 0, max(0, ends - begins - HASHED_BYTES + 1))
        if match is not None:
            return begins + match.start() + window
    return size


Chunked = tuple[bytes, bytes]
"""A chunk, after its digest."""


class Upload:
    """One file on its way into a thread.

    `aside` runs what takes long on another thread; None: it is done at once. `whole`: chunks that the thread has are sent, too.
    `source`: "again" if who is told `FileIncomplete` can put the file again; "here" if the node is in this process.
    """

    def __init__(
        self,
        connection: Connection,
        space: str,
        thread: str,
        *,
        durability: Durability | None = None,
        aside: Callable[[Callable[[], list[Chunked]]], Awaitable[list[Chunked]]] | None = None,
        whole: bool = False,
        source: Literal["once", "again", "here"] = "once",
    ) -> None:
        self._aside, self._whole = aside, whole
        self._sending_max = LAYING_MAX if source == "here" else SENDING_MAX
        self._is_synced_last = source != "once"
        self._connection = connection
        self._space, self._thread = space, thread
        self._durability = durability
        self._chunker, self._hash = Chunker(), sha256()
        self._entries: list[Chunk] = []
        self._batch: dict[bytes, bytes] = {}
        self._batch_bytes, self._batch_bytes_max = 0, FILE_BATCH_BYTES
        self._pieces: list[
            bytes
        ] = []  # That are to be cut together: bodies arrive in small pieces, and `aside` costs a switch.
        self._pieces_bytes = 0
        self._is_asked = False
        self._sending: deque[asyncio.Task[None]] = deque()
        self._shares = False  # Whether chunks were not sent, because the thread has them.
        self._cutting: asyncio.Future[list[Chunked]] | None = None  # Of the pieces before, while the next ones arrive.

    async def feed(self, piece: bytes) -> None:
        """Take the next bytes of the file; waits while enough of it is on its way.

        Raises:
            TooLarge, InvalidInput: the file has too many chunks.
        """
        for start in range(0, len(piece), PIECE_BYTES):
            part = piece[start : start + PIECE_BYTES]
            self._pieces.append(part)
            self._pieces_bytes += len(part)
            if self._pieces_bytes >= PIECE_BYTES:
                await self._cut_pieces()

    async def _cut_pieces(self) -> None:
        if not self._is_asked and self._pieces_bytes > SMALL_BYTES:
            await self._ask()
        await self._take_cut()
        cutting = partial(self._cut, self._pieces)
        self._pieces, self._pieces_bytes = [], 0
        if self._aside is None:
            for chunked in cutting():
                await self._take(*chunked)
        else:
            self._cutting = asyncio.ensure_future(self._aside(cutting))

    async def _take_cut(self) -> None:
        cutting, self._cutting = self._cutting, None
        for chunked in await cutting if cutting is not None else ():
            await self._take(*chunked)

    async def finish(self, name: str, type: str, *, expected: str = "") -> FileInfo:
        """The file has ended: give it its name. `expected`: the SHA-256 that it must have, in hex.

        Raises:
            InvalidInput: it has another hash. Nothing of it is shown.
            FileIncomplete: chunks that were there before went meanwhile. Put the file again.
        """
        await self._cut_pieces()
        await self._take_cut()
        for chunk in self._chunker.finish():
            await self._take(sha256(chunk).digest(), chunk)
        found = self._hash.hexdigest()
        if expected not in ("", found):
            raise InvalidInput(
                f"file {name!r} has SHA-256 {found}, and {expected[:80]} was expected. It was not stored. Send it again."
            )
        while self._sending:
            await self._sending.popleft()
        size = sum(entry.size for entry in self._entries)
        manifest = pack_manifest(self._entries)
        last = list(self._batch.values())
        request = requests.PutFile(self._space, self._thread, name, found, size, type, manifest, last)
        with saying(self._batch if self._shares else {**self._batch, self._hash.digest(): manifest}):
            stored = await self._connection.write(request, key=None, durability=self._durability)
        return stored.file

    async def abandon(self) -> None:
        """Stop sending. The chunks that are there wait for a day, for the file to be put again."""
        for task in self._sending:
            task.cancel()
        cutting, self._cutting = self._cutting, None
        await asyncio.gather(*self._sending, *([] if cutting is None else [cutting]), return_exceptions=True)
        self._sending.clear()

    async def _ask(self) -> None:
        """Find out how much the node takes at once: before any chunk is cut."""
        self._is_asked = True
        found = await self._connection.read(requests.FindChunks(self._space, self._thread, []))
        self._batch_bytes_max = min(FILE_BATCH_BYTES, found.bytes_max // 2)  # The other half is for what is beside them.
        self._chunker.limit(self._batch_bytes_max)

    def _cut(self, pieces: list[bytes]) -> list[Chunked]:
        for piece in pieces:
            self._hash.update(piece)
        return [(sha256(chunk).digest(), chunk) for piece in pieces for chunk in self._chunker.feed(piece)]

    async def _take(self, digest: bytes, chunk: bytes) -> None:
        if len(self._entries) == CHUNKS_MAX:
            raise InvalidInput(f"a file has at most {CHUNKS_MAX} chunks. It was not stored. Store it as several files.")
        if self._batch and self._batch_bytes + len(chunk) > self._batch_bytes_max:
            await self._send()
        self._entries.append(Chunk(digest, len(chunk)))
        if digest not in self._batch:
            self._batch[digest] = chunk
            self._batch_bytes += len(chunk)

    async def _send(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, {}, 0
        while len(self._sending) >= self._sending_max:
            await self._sending.popleft()
        self._sending.append(asyncio.get_running_loop().create_task(self._sent(batch)))

    async def _sent(self, batch: dict[bytes, bytes]) -> None:
        digests = list(batch)
        missing = list(batch.values())
        if not self._whole:
            found = await self._connection.read(requests.FindChunks(self._space, self._thread, digests))
            missing = [batch[digests[at]] for at in found.missing]
        self._shares = self._shares or len(missing) < len(batch)
        if missing:
            request = requests.KeepChunks(self._space, self._thread, missing)
            with saying(batch):
                await self._connection.write(request, key=None, durability=self._of_chunks())

    def _of_chunks(self) -> Durability | None:
        """Of a batch. The put's own sync is theirs, too, because it is a later write of the same log. A crash of another
        process may take them before: then the put says that they are missing, and who can sends the file again.
        """
        wanted = self._durability or self._connection.durability
        return "memory" if self._is_synced_last and wanted == "local" else self._durability


class Download:
    """One file of a thread, read in ranges. It stays readable as it was found, whatever its name holds by then.

    `proves`: compare what arrives with its hashes. Who is served by a node of this process need not: it has compared them.
    """

    def __init__(self, connection: Connection, space: str, thread: str, shown: FileShown, *, proves: bool = True) -> None:
        self._connection = connection
        self._space, self._thread = space, thread
        self._proves = proves
        self.file = shown.file
        self._chunks = unpack_manifest(shown.manifest)
        self._starts = list(accumulate((chunk.size for chunk in self._chunks), initial=0))

    async def read(self, start: int = 0, stop: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` up to `stop`, piece by piece.

        Raises:
            NotFound: the file was deleted meanwhile, and swept.
            StoreCorrupt: its bytes are not those of its hash.
        """
        stop = self.file.size if stop is None else min(stop, self.file.size)
        whole = sha256() if self._proves and start == 0 and stop == self.file.size else None
        at = bisect_right(self._starts, start) - 1
        batch = asyncio.create_task(self._batch(at, stop)) if start < stop else None
        try:
            while batch is not None:
                chunks = await batch
                more = at + len(chunks)
                batch = asyncio.create_task(self._batch(more, stop)) if self._starts[more] < stop else None
                for chunk in chunks:
                    begins = self._starts[at]
                    at += 1
                    if whole is not None:
                        whole.update(chunk)
                        if at == len(self._chunks) and whole.hexdigest() != self.file.sha256:
                            raise self._corrupt()
                    yield chunk if start == begins and begins + len(chunk) <= stop else chunk[start - begins : stop - begins]
                    start = min(stop, begins + len(chunk))
        finally:
            if batch is not None:
                batch.cancel()
                await asyncio.gather(batch, return_exceptions=True)

    async def _batch(self, at: int, stop: int) -> list[bytes]:
        wanted: list[Chunk] = []
        size = 0
        for place in range(at, len(self._chunks)):
            if wanted and (size + self._chunks[place].size > FILE_BATCH_BYTES or self._starts[place] >= stop):
                break
            wanted.append(self._chunks[place])
            size += self._chunks[place].size
        request = requests.ReadChunks(self._space, self._thread, [chunk.digest for chunk in wanted])
        found = (await self._connection.read(request)).chunks
        for chunk, entry in zip(found, wanted, strict=False):
            if self._proves and sha256(chunk).digest() != entry.digest:
                raise self._corrupt()
        if not 0 < len(found) <= len(wanted):
            raise self._corrupt()
        return found

    def _corrupt(self) -> StoreCorrupt:
        return StoreCorrupt(
            f"the bytes of file {self.file.name!r} of thread {self._thread!r} do not have its hash. Run `shoal verify`."
        )


async def found_file(
    connection: Connection,
    space: str,
    thread: str,
    *,
    name: str = "",
    sha256: str = "",
    stale: bool = False,
    proves: bool = True,
) -> Download:
    """A file by its name, or by the hash of its content.

    Raises:
        NotFound: the thread has no such file.
    """
    shown = await connection.read(requests.ReadFile(space, thread, name, sha256), stale=stale)
    return Download(connection, space, thread, shown, proves=proves)
