"""The objects of a space: their names and kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import get_args

from shoal.errors import InvalidInput, NotFound
from shoal.protocol import requests
from shoal.protocol.requests import ObjectKind
from shoal.workflows.connection import Connection


async def names(connection: Connection, space: str, kind: ObjectKind, prefix: str = "") -> AsyncIterator[str]:
    """The names of the objects of one kind, in byte order."""
    after: str | None = None
    while True:
        page = await connection.read(requests.ListObjects(space, kind, prefix, after))
        for name in page.names:
            yield name
        if not page.more:
            return
        after = page.names[-1]


async def check_exists(connection: Connection, space: str, thread: str) -> None:
    """Check that a thread exists.

    Raises:
        NotFound: nothing was ever written to a thread of this name, or it was deleted.
    """
    async for name in names(connection, space, "thread", thread):
        if name == thread:  # Of the names with this prefix, it is the first in byte order.
            return
        break
    raise NotFound(f"there is no thread {thread!r} in space {space!r}. List the threads of the space to see the existing ones.")


def check_kinds(kinds: Sequence[str]) -> None:
    """Check the kinds of a watch.

    Raises:
        InvalidInput: one of them is not a kind of object.
    """
    known = get_args(ObjectKind)
    if isinstance(kinds, str) or not set(kinds) <= set(known):
        raise InvalidInput(f"kinds must be a list of some of {', '.join(known)}; got {kinds!r}.")
