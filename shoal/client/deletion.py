"""Deletion, which the handles of counters, registers, sets, maps and budgets have in common."""

from __future__ import annotations

from typing import ClassVar

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.protocol import requests
from shoal.protocol.requests import Durability

Deletion = requests.DeleteCounter | requests.DeleteRegister | requests.DeleteSet | requests.DeleteMap | requests.DeleteBudget


@named
class Deletable:
    """A handle of an object that can be deleted as a whole, by the request `_deletion`."""

    _connection: StoreConnection
    _deletion: ClassVar[type[Deletion]]
    space: str
    name: str

    async def delete(self, *, key: str | None = None, durability: Durability | None = None) -> bool:
        """Delete the object on every node. False if there was none.

        Writes made without knowing of the deletion are deleted too, even if they arrive later. The first write made with
        knowledge of it creates the object again, empty.
        """
        request = self._deletion(self.space, self.name)
        return (await self._connection.write(request, key=key, durability=durability)).existed
