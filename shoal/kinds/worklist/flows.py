"""Queues of a thread: the inbox, and the worklists by name."""

from __future__ import annotations

from datetime import datetime

from shoal.kinds.worklist.state import identify
from shoal.outcomes import partly
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.connection import Connection


def item_id(key: str) -> str:
    """The id of a worklist's item with this key."""
    return identify(key).hex()


async def purge(
    connection: Connection, space: str, thread: str, queue: str, before: datetime, *, durability: Durability | None
) -> int:
    """Forget entries that were finished before a time, in one request per page, and return their number."""
    before_ms, count, more = int(before.timestamp() * 1000), 0, True
    while more:
        request = requests.Purge(space, thread, queue, before_ms)
        with partly(count, f"{count} entries are forgotten", "Repeat the request to forget the rest."):
            reply = await connection.write(request, key=None, durability=durability)
        count, more = count + reply.count, reply.more
    return count
