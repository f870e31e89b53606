"""`ShoalMemoryStore`: the harness's `MemoryStore` on Shoal, with metadata.

Laws:
- A file is an item; the directories of its path are labels of its namespace. All files of a space are in one partition.
- A write or deletion expects the version that it was given, and is one write with the receipt of its operation. So an operation
  that is repeated gives the answer of the first time, and changes nothing.
- A receipt is kept for `RECEIPT_TTL_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic_ai_harness.memory import (
    MemoryConflictError,
    MemoryFile,
    MemoryMutation,
    MemoryOperation,
    MemoryOperationConflictError,
)

from shoal.client.connection import contended
from shoal.errors import InvalidInput, InvalidValue, ItemChanged
from shoal.integrations import contents
from shoal.integrations.base import InSpace
from shoal.integrations.contents import escaped, name_of, unescaped, unsafe
from shoal.integrations.harness.plans import FORM, NAME
from shoal.kinds.items.handle.item import Item, delete_request, put_request
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM

T = TypeVar("T")
RECEIPT_TTL_S = 7 * 24 * 3600.0
_LABEL = "{memory}"
_FILES, _RECEIPTS = (_LABEL, "files"), (_LABEL, "receipts")
_IN_LABEL = unsafe(".")
_PLAIN = unsafe()


class ShoalMemoryStore(InSpace):
    """Keeps the files of agents' memories in one space. Failures raise the harness's errors, or `ShoalError`s."""

    SPACE = "harness"

    async def read(self, path: str, *, max_chars: int) -> MemoryFile | None:
        """The first `max_chars` characters of a file; None if there is none.

        Raises:
            ValueError: the path is not legal, or `max_chars` is less than 1.
        """
        if max_chars <= 0:
            raise ValueError(f"max_chars must be positive; got {max_chars}.")
        namespace, key = _place(path)
        found = await self._bridge.awaited(lambda: self._file(namespace, key))
        return None if found is None else _shown(found[1], max_chars)

    async def get_operation(self, operation: MemoryOperation) -> MemoryMutation | None:
        """The changes of an operation; None if it is not known.

        Raises:
            MemoryOperationConflictError: its id was used with another fingerprint.
        """
        return await self._bridge.awaited(lambda: self._receipt(operation))

    async def write(
        self, path: str, content: str, *, expected_version: str | None, operation: MemoryOperation | None = None
    ) -> MemoryMutation:
        """Write a file that has this version, or that does not exist; once for an operation.

        Raises:
            MemoryConflictError: it has another version; nothing was written.
            MemoryOperationConflictError: the operation's id was used with another fingerprint; nothing was written.
            ValueError: the path is not legal; nothing was written.
        """
        return await self.write_with_metadata(
            path, content, expected_version=expected_version, metadata=None, operation=operation
        )

    async def write_with_metadata(
        self,
        path: str,
        content: str,
        *,
        expected_version: str | None,
        metadata: Mapping[str, str] | None,
        operation: MemoryOperation | None = None,
    ) -> MemoryMutation:
        """As `write`; `metadata` replaces what the write before has recorded.

        Raises:
            TypeError: the metadata are no texts; nothing was written.
        """
        namespace, key = _place(path)
        if not all(isinstance(each, str) for pair in (metadata or {}).items() for each in pair):
            raise TypeError("memory metadata keys and values must be strings. Nothing was written.")
        if not isinstance(content, str):
            raise InvalidValue(f"the content of {path!r:.100} must be text; got {type(content).__name__}. Nothing was written.")
        value = {"content": contents.stored(content, path), "metadata": contents.stored(dict(metadata or {}), "metadata")}
        return await self._bridge.awaited(
            lambda: self._retried(lambda: self._changed(namespace, key, value, expected_version, operation), path)
        )

    async def delete(
        self, path: str, *, expected_version: str | None, operation: MemoryOperation | None = None
    ) -> MemoryMutation:
        """Delete a file that has this version; once for an operation. Raises as `write`."""
        namespace, key = _place(path)
        return await self._bridge.awaited(
            lambda: self._retried(lambda: self._changed(namespace, key, None, expected_version, operation), path)
        )

    async def list_paths(self, prefix: str = "", *, limit: int) -> list[str]:
        """The first `limit` paths that begin with `prefix`, sorted. The node reads all files of the directory.

        Raises:
            ValueError: the prefix is not legal, or `limit` is less than 1.
        """
        if limit <= 0:
            raise ValueError(f"limit must be positive; got {limit}.")
        if prefix:
            _place(prefix.removesuffix("/"))
        directory = [] if "/" not in prefix else [escaped(each, _IN_LABEL) for each in prefix.split("/")[:-1]]
        return (await self._bridge.awaited(lambda: self._paths((*_FILES, *directory), prefix)))[:limit]

    # ── on the store's loop ───────────────────────────────────────────────────

    async def _file(self, namespace: Sequence[str], key: str) -> tuple[str, Mapping[str, Any]] | None:
        """The version of a file's item, and its record."""
        await self._caught_up(_LABEL)
        item = await self._space.items.get(namespace, key)
        return None if item is None else (item.version, _record(item))

    async def _receipt(self, operation: MemoryOperation) -> MemoryMutation | None:
        await self._caught_up(_LABEL)
        item = await self._space.items.get(_RECEIPTS, name_of(operation.id, _PLAIN))
        if item is None:
            return None
        record = _record(item)
        if record["fingerprint"] != operation.fingerprint:
            raise MemoryOperationConflictError(
                f"operation {operation.id!r:.100} was used with other arguments. Nothing was written. Use a new id."
            )
        return MemoryMutation(version=record["version"], replayed=True, existed=record["existed"])

    async def _changed(
        self,
        namespace: Sequence[str],
        key: str,
        value: dict[str, Any] | None,
        expected: str | None,
        operation: MemoryOperation | None,
    ) -> MemoryMutation:
        if operation is not None and (before := await self._receipt(operation)) is not None:
            return before
        found = await self._file(namespace, key)
        if (None if found is None else found[1]["version"]) != expected:
            raise MemoryConflictError(
                f"memory path {unescaped(key)!r:.100} has another version. Nothing was written. Read it again, then write."
            )
        space, at = self._space.name, NO_ITEM if found is None else found[0]
        version = None if value is None else self._connection.entropy(16).hex()
        by = None if operation is None else operation.id
        writes: list[requests.BatchWrite] = []
        if value is not None:
            file = {NAME: FORM, "version": version, "operation": by, **value}
            writes.append(put_request(space, namespace, key, file, expect=at))
        elif found is not None:
            writes.append(delete_request(space, namespace, key, expect=at))
        if operation is not None:
            receipt = {
                NAME: FORM,
                "fingerprint": operation.fingerprint,
                "version": version,
                "existed": found is not None,
            }
            place = name_of(operation.id, _PLAIN)
            writes.append(put_request(space, _RECEIPTS, place, receipt, ttl=RECEIPT_TTL_S, expect=NO_ITEM))
        if writes:
            await self._connection.write(requests.Batch(writes), key=None, durability=None)
        return MemoryMutation(version=version, replayed=False, existed=found is not None)

    async def _paths(self, namespace: Sequence[str], prefix: str) -> list[str]:
        await self._caught_up(_LABEL)
        found = [_path(item) async for item in self._space.items.scan(namespace)]
        return sorted(path for path in found if path.startswith(prefix))

    async def _retried(self, call: Callable[[], Awaitable[T]], path: str) -> T:
        """Call it again as long as somebody changed the file between its read and its write."""
        pauses = contended(self._connection)
        while True:
            try:
                return await call()
            except ItemChanged:
                if (pause := next(pauses, None)) is None:
                    raise MemoryConflictError(f"memory path {path!r:.100} changes all the time. Nothing was written.") from None
                await asyncio.sleep(pause)


def _record(item: Item) -> Mapping[str, Any]:
    record = contents.of_form(item.value, NAME, FORM)
    if record is None:
        raise InvalidValue(
            f"item {item.key!r:.100} was not written by this integration. Nothing was written. Use another space."
        )
    return record


def _shown(record: Mapping[str, Any], max_chars: int) -> MemoryFile:
    content = contents.shown(record["content"])
    return MemoryFile(
        content=content[:max_chars],
        version=record["version"],
        operation_id=record["operation"],
        truncated=len(content) > max_chars,
        metadata=contents.shown(record["metadata"]) or None,
    )


def _place(path: str) -> tuple[tuple[str, ...], str]:
    """The namespace and key of a path.

    Raises:
        ValueError: a segment is empty, `.`, or holds `..`, as in the harness's own stores.
    """
    segments = path.split("/") if isinstance(path, str) else [""]
    if any(not each or each == "." or ".." in each for each in segments):
        raise ValueError(f"invalid memory path: {path!r:.200}. Nothing was written.")
    *directory, name = segments
    try:
        return (*_FILES, *(escaped(each, _IN_LABEL) for each in directory)), escaped(name, _PLAIN)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


def _path(item: Item) -> str:
    return "/".join([*map(unescaped, item.namespace[len(_FILES) :]), unescaped(item.key)])
