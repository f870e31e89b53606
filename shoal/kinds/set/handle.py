"""The handle of a set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable
from typing import Any

from shoal import values
from shoal.client.arguments import Deletable, named
from shoal.client.connection import StoreConnection
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.raising import partly


@named
class SharedSet(Deletable):
    """A set of members. Of a concurrent add and removal of one element the add wins.

    An element is any value that Shoal stores. Values are the same element if they are equal and of equal types: 1, 1.0 and
    True are three elements.
    """

    _deletion = requests.DeleteSet

    def __init__(self, connection: StoreConnection, space: str, name: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.name = check_name("set", name)

    def __repr__(self) -> str:
        return f"SharedSet({self.space!r}, {self.name!r})"

    async def add(self, *elements: Any, key: str | None = None, durability: Durability | None = None) -> int:
        """Add elements in one operation, and return how many were not members before.

        Raises:
            InvalidValue: an element cannot be serialised.
            TooLarge: an element, or the set, exceeds its bound.
        """
        request = add_request(self.space, self.name, *elements)
        return (await self._connection.write(request, key=key, durability=durability)).added

    async def remove(self, *elements: Any, key: str | None = None, durability: Durability | None = None) -> int:
        """Remove elements in one operation and return how many were members. Concurrently added elements stay."""
        request = remove_request(self.space, self.name, *elements)
        return (await self._connection.write(request, key=key, durability=durability)).removed

    async def alter(
        self,
        *,
        add: Iterable[Any] = (),
        remove: Iterable[Any] = (),
        key: str | None = None,
        durability: Durability | None = None,
    ) -> requests.SetAltered:
        """Remove and add elements in one operation."""
        request = requests.AlterSet(self.space, self.name, packed_elements(add), packed_elements(remove))
        return await self._connection.write(request, key=key, durability=durability)

    async def clear(self, *, durability: Durability | None = None) -> int:
        """Remove all members that the node shows, and return their number. Elements added concurrently stay.

        A large set is cleared in several operations: if one fails, those before it stay done.
        """
        removed, more = 0, True
        while more:
            with partly(removed, f"{removed} members are removed", "Clear the set again to remove the rest."):
                reply = await self._connection.write(requests.ClearSet(self.space, self.name), key=None, durability=durability)
            removed, more = removed + reply.removed, reply.more
        return removed

    async def pop(self, count: int = 1, *, key: str | None = None, durability: Durability | None = None) -> list[Any]:
        """Remove up to `count` members, the first in the order of their bytes, and return them; an empty list if it has none.

        A member is returned once on each node, and once to each session, unless it is added again; of a concurrent add and
        pop the add wins. Nodes that have not heard of each other's pops may return the same member, whatever the durability.
        If each entry must go to one agent alone, use a `Worklist`.

        After `OutcomeUnknown`, call again with the same `key`: a node that has the first call answers with its members. Any
        other removes the first members that it shows itself; if they are others, those of the first call are returned to
        nobody.
        """
        reply = await self._connection.write(pop_request(self.space, self.name, count), key=key, durability=durability)
        return [values.decode(element) for element in reply.members]

    async def contains(self, element: Any, *, stale: bool = False) -> bool:
        """Whether it is a member. `stale`: see `Store`."""
        packed = values.encode(element, where="element")
        reply = await self._connection.read(requests.ContainsMembers(self.space, self.name, [packed]), stale=stale)
        return reply.contained[0]

    async def len(self, *, stale: bool = False) -> int:
        """The number of members; 0 if nothing was added."""
        return (await self._page(b"", 1, stale=stale)).size

    def members(self, *, stale: bool = False) -> Members:
        """The members: `await` it for a list, or use `async for` to read page by page."""
        return Members(self, stale=stale)

    async def _page(self, after: bytes, limit: int, *, stale: bool) -> requests.SetMembers:
        return await self._connection.read(requests.ReadSet(self.space, self.name, after, limit), stale=stale)


class Members:
    """The members of a set, in the order of their bytes. Each page shows one moment, which may differ between pages."""

    def __init__(self, of: SharedSet, *, stale: bool) -> None:
        self._of = of
        self._stale = stale

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._listed().__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        after, more = b"", True
        while more:
            page = await self._of._page(after, _PAGE, stale=self._stale)
            for element in page.members:
                yield values.decode(element)
            after, more = (page.members or [b""])[-1], page.more

    async def _listed(self) -> list[Any]:
        return [element async for element in self]


_PAGE = 1000


def add_request(space: str, name: str, *elements: Any) -> requests.AlterSet:
    """The request that adds elements to a set."""
    return requests.AlterSet(space, name, packed_elements(elements), [])


def remove_request(space: str, name: str, *elements: Any) -> requests.AlterSet:
    """The request that removes elements from a set."""
    return requests.AlterSet(space, name, [], packed_elements(elements))


def pop_request(space: str, name: str, count: int = 1) -> requests.PopSet:
    """The request that removes members of a set and returns them."""
    return requests.PopSet(space, name, count)


def packed_elements(elements: Iterable[Any]) -> list[bytes]:
    """The elements of a set as requests carry them."""
    return [values.encode(element, where="element") for element in elements]
