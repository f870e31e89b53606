"""The replicated JSON Schemas of a space: `space.schemas`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.errors import InvalidSchema
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.connection import moment


class SchemaVersion(Struct, frozen=True):
    """A schema that the nodes enforce in a space, under one name and version."""

    name: str
    version: int
    json: dict[str, Any] | bool
    threads: str  # The threads that must satisfy it while it is the newest: a name, a prefix and `*`, or empty.
    wall_ms: int
    rivals: int  # How many other contents were put concurrently under this version; they do not count.

    @property
    def time(self) -> datetime:
        """When the version was put, by the clock of the node that did it."""
        return moment(self.wall_ms)


@named
class Schemas:
    """JSON Schemas that every node enforces at each save, for every client.

    A node enforces the schemas that have reached it. A save that another node accepts before a new
    schema reaches it stays, and `thread.violations()` lists it.
    """

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self._connection = connection
        self._space = space

    async def put(
        self,
        name: str,
        version: int,
        schema: Mapping[str, Any] | bool,
        *,
        threads: str = "",
        durability: Durability | None = None,
    ) -> SchemaVersion:
        """Put a version of the schema `name`. A version never changes.

        A save under this name must satisfy the version that it names. All saves of the given `threads`
        ("planner-1", "planner-*") must satisfy the newest version, under any schema; a newer
        version without `threads` ends that.

        Raises:
            InvalidSchema: it is not a JSON Schema, refers to anything outside it, or is too expensive to check.
            SchemaTaken: the version exists with another content.
        """
        text = _encoded(schema)
        reply = await self._connection.write(
            requests.PutSchema(self._space, name, version, text, threads), key=None, durability=durability
        )
        return _version(name, reply)

    async def versions(self, name: str, *, stale: bool = False) -> list[SchemaVersion]:
        """All versions of a schema, oldest first. `stale`: see `Store`.

        Raises:
            NotFound: there is no such schema.
        """
        reply = await self._connection.read(requests.ReadSchema(self._space, check_name("schema", name)), stale=stale)
        return [_version(name, version) for version in reply.versions]

    async def get(self, name: str, *, stale: bool = False) -> SchemaVersion:
        """The newest version.

        Raises:
            NotFound: there is no such schema.
        """
        return (await self.versions(name, stale=stale))[-1]

    async def delete(self, name: str, *, durability: Durability | None = None) -> bool:
        """Delete a schema with all its versions, so that it binds no thread any more. False if there was none.

        A save that names it is rejected until the schema is put again, which may have any content.
        """
        request = requests.DeleteSchema(self._space, check_name("schema", name))
        return (await self._connection.write(request, key=None, durability=durability)).existed

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of the schemas, in byte order."""
        after: str | None = None
        while True:
            page = await self._connection.read(requests.ListObjects(self._space, "schema", prefix, after))
            for name in page.names:
                yield name
            if not page.more:
                return
            after = page.names[-1]


def _encoded(schema: Mapping[str, Any] | bool) -> bytes:
    try:
        # With sorted keys, so that equal schemas are equal bytes.
        return json.dumps(dict(schema) if isinstance(schema, Mapping) else schema, sort_keys=True, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"a JSON Schema must consist of JSON values: {error}. Nothing was written.") from None


def _version(name: str, found: requests.SchemaVersion) -> SchemaVersion:
    return SchemaVersion(name, found.version, msgspec.json.decode(found.json), found.threads, found.wall_ms, found.rivals)
