"""The handle of a counter."""

from __future__ import annotations

from shoal.client.arguments import Deletable, named
from shoal.client.connection import StoreConnection
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability


def add_request(space: str, name: str, amount: int = 1, *, key: str | None = None) -> requests.Add:
    """The request that adds to a counter."""
    return requests.Add(space, name, amount, key)


@named
class Counter(Deletable):
    """A counter that all nodes can add to."""

    _deletion = requests.DeleteCounter

    def __init__(self, connection: StoreConnection, space: str, name: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.name = check_name("counter", name)

    def __repr__(self) -> str:
        return f"Counter({self.space!r}, {self.name!r})"

    async def add(self, amount: int = 1, *, key: str | None = None, durability: Durability | None = None) -> int:
        """Add `amount` (negative subtracts), once for each `key` as long as the counter exists, and return the value.

        Without a `key`, the client makes one for the request, so that a retry counts once. Nodes remember it for
        `key_window_s`; a later retry raises `KeyExpired`.

        Raises:
            KeyReused: `key` was used with another amount.
        """
        request = add_request(self.space, self.name, amount, key=key)
        reply = await self._connection.write(request, key=None, durability=durability)
        return reply.value

    async def value(self, *, stale: bool = False) -> int:
        """The value; 0 for a counter that was never added to. `stale`: see `Store`."""
        reply = await self._connection.read(requests.ReadCounter(self.space, self.name), stale=stale)
        return reply.value
