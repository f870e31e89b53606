"""Large parts of an integration's values, as files of the thread that they belong to.

Laws:
- A part is a file before the write that refers to it is sent. It has no name: references keep it, and it goes once the last one
  is gone.
- In a space with rules of redaction no part becomes a file: the rules look into values, and not into files.
- A reference may be anybody's: what is read for one has at most `CONTENT_BYTES_MAX`.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from shoal.client.connection import StoreConnection
from shoal.errors import Forbidden, InvalidValue, NotFound, TooLarge
from shoal.kinds.file.handle import Source, ThreadFiles
from shoal.protocol import requests
from shoal.values.registry import FileRef, mentioned

CONTENT_BYTES_MAX = 1024 * 1024 * 1024
_AT_ONCE_BYTES = 4 * 1024 * 1024  # Hashed on the loop; more would hold up who else is served by it.
_PREFIX = ".values/"  # Of the name that a part has until it is there.


class Contents:
    """The large parts of values in the threads of one space."""

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self._connection, self._space = connection, space

    async def are_taken(self) -> bool:
        """Whether parts may be files in this space."""
        try:
            rules = await self._connection.read(requests.ReadRedaction(self._space))
        except Forbidden:
            return False  # There may be rules.
        return not (rules.credentials or rules.cards or rules.patterns or rules.hooks or rules.trouble)

    async def put(self, thread: str, content: bytes, *, name: str = "", type: str = "application/octet-stream") -> FileRef:
        """Keep a part, and return the reference for a value of this thread, which shows this name.

        Raises:
            TooLarge: it has more than `CONTENT_BYTES_MAX` bytes. Nothing was written.
        """
        if len(content) > CONTENT_BYTES_MAX:
            raise TooLarge(
                f"a value has at most {CONTENT_BYTES_MAX} bytes; this one has {len(content)}. Nothing was written. Store it as "
                "a file, with put_file and a reference to that (docs/FILES.md)."
            )
        hash = (await to_thread(sha256, content) if len(content) > _AT_ONCE_BYTES else sha256(content)).hexdigest()
        await self._put(thread, hash, content, type)
        return FileRef(hash, len(content), name, type)

    async def get(self, thread: str, ref: FileRef) -> bytes:
        """The part that a reference stands for.

        Raises:
            NotFound: the thread has it no more.
            InvalidValue: it has more than `CONTENT_BYTES_MAX` bytes.
            StoreCorrupt: its bytes are not those of its hash.
        """
        async with ThreadFiles(self._connection, self._space, thread).open_file(ref) as stream:
            if stream.size > CONTENT_BYTES_MAX:
                raise InvalidValue(f"a part of a value has {stream.size} bytes, and at most {CONTENT_BYTES_MAX} are read.")
            return await stream.read()

    async def copy(self, source: str, target: str, packed: Iterable[bytes], done: set[bytes]) -> None:
        """Have all parts to which packed values refer in another thread, too. `done`: those that are there."""
        for hash in {hash for value in packed for hash in mentioned(value)} - done:
            try:
                async with ThreadFiles(self._connection, self._space, source).open_file(FileRef(hash.hex(), 0, "")) as stream:
                    await self._put(target, hash.hex(), stream, "application/octet-stream")
            except NotFound:
                continue  # It only looks like a reference, or is gone: the write will say.
            done.add(hash)

    async def _put(self, thread: str, hash: str, source: Source, type: str) -> None:
        name = _PREFIX + hash
        await ThreadFiles(self._connection, self._space, thread).put_file(name, source, type=type)
        remove: requests.ObjectWrite[Any] = requests.RemoveFile(self._space, thread, name)
        await self._connection.write(remove, key=None, durability=None)
