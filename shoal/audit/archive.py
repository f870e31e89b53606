"""An archive: the operations of a node's logs as JSON Lines, with what proves them.

    {"statement": {…}}                                      the node's statement on all that follows
    {"log": [partition, origin], "base": 3, "chain": "…"}   one log begins: its last operation that is not in the archive
    {"operation": 4, "chain": "…", "time": "…", "key": "…", "packed": "…"}

Laws:
- Bytes are hex digits, but `packed`, an operation as docs/STORAGE.md says, which is base64.
- Only `packed` is proved. Time and key are what it says, for people and their tools.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from shoal.audit import statements
from shoal.audit.chains import LogName
from shoal.cluster import operation
from shoal.errors import InvalidInput
from shoal.protocol.requests import LoggedOperation, LogPage, ReadLog, SignHeads, Statement

_PAGE = 1000

Call = Callable[[Any], Awaitable[Any]]
"""A session's `call`."""


async def lines(call: Call, *, since: Statement | None = None) -> AsyncIterator[str]:
    """The lines of an archive of all that a node holds, or of what it got after a statement."""
    begun = {} if since is None else {(head.partition, head.origin): head for head in since.heads}
    statement: Statement = await call(SignHeads())
    yield f'{{"statement":{statements.to_text(statement)}}}'
    for head in statement.heads:
        before = begun.get((head.partition, head.origin))
        after = 0 if before is None else before.sequence
        if after >= head.sequence:
            continue
        page: LogPage = await call(ReadLog(head.partition, head.origin, after, _PAGE))
        base, chain = (page.base, page.base_chain) if page.base > after else (after, operation.CHAIN_START)
        if before is not None and base == after:
            chain = before.chain
        yield json.dumps({"log": [head.partition, head.origin.hex()], "base": base, "chain": chain.hex()})
        while page.operations and after < head.sequence:
            for entry in page.operations:
                after = entry.sequence
                if after <= head.sequence:
                    yield _line(entry)
            page = await call(ReadLog(head.partition, head.origin, after, _PAGE))


def _line(entry: LoggedOperation) -> str:
    body = operation.decode(entry.packed)
    when = datetime.fromtimestamp(body.wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    packed = base64.b64encode(entry.packed).decode()
    return json.dumps(
        {"operation": entry.sequence, "chain": entry.chain.hex(), "time": when, "key": body.key, "packed": packed}
    )


class Archive:
    """An archive in a file. Its logs are read where they are asked for."""

    def __init__(self, file: Path) -> None:
        """Index the file.

        Raises:
            InvalidInput: it cannot be read, or is no archive.
        """
        self._file = file
        self._begins: dict[LogName, int] = {}  # The place in the file.
        self.statement: Statement
        try:
            with file.open("rb") as opened:
                self._index(opened)
        except OSError as error:
            raise InvalidInput(f"{file} cannot be read: {error.strerror}. Nothing was checked.") from None

    @property
    def logs(self) -> list[LogName]:
        """The logs of which it holds operations."""
        return list(self._begins)

    def page(self, name: LogName) -> LogPage | None:
        """All of one log that is here; None if nothing is.

        Raises:
            InvalidInput: a line is not what it should be.
        """
        if name not in self._begins:
            return None
        with self._file.open("rb") as opened:
            opened.seek(self._begins[name])
            first = self._parsed(opened.readline())
            found = list(self._operations(opened))
        base, chain = int(first["base"]), self._bytes(first["chain"])
        tip, tip_chain = (found[-1].sequence, found[-1].chain) if found else (base, chain)
        return LogPage(base, chain, tip, tip_chain, operations=found)

    def _index(self, opened: IO[bytes]) -> None:
        first = self._parsed(opened.readline())
        self.statement = statements.from_text(json.dumps(first.get("statement")))
        place = opened.tell()
        while line := opened.readline():
            if line.startswith(b'{"log"'):
                partition, origin = self._parsed(line)["log"]
                self._begins[LogName(partition, self._bytes(origin))] = place
            place = opened.tell()

    def _operations(self, opened: IO[bytes]) -> Iterator[LoggedOperation]:
        while (line := opened.readline()) and not line.startswith(b'{"log"'):
            found = self._parsed(line)
            try:
                packed = base64.b64decode(found["packed"], validate=True)
                yield LoggedOperation(int(found["operation"]), self._bytes(found["chain"]), packed)
            except (LookupError, TypeError, binascii.Error):
                raise self._wrong() from None

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            raise self._wrong() from None
        if not isinstance(found, dict):
            raise self._wrong()
        return found

    def _bytes(self, text: Any) -> bytes:
        try:
            return bytes.fromhex(text)
        except (ValueError, TypeError):
            raise self._wrong() from None

    def _wrong(self) -> InvalidInput:
        return InvalidInput(f"{self._file} is no archive: `shoal audit export` writes one. Nothing was checked.")
