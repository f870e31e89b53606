"""The handle of a list."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from typing import Any

from shoal import values
from shoal.client.arguments import Deletable, named
from shoal.client.connection import StoreConnection
from shoal.kinds.list import requests
from shoal.names import check_name
from shoal.protocol.requests import Durability

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class ListItem:
    """An element of a list: its id, which it keeps wherever it is moved, and its value."""

    id: str
    value: Any


@named
class SharedList(Deletable):
    """Values in an order that is the same on every node. What two nodes insert at one place is all there, and what one of
    them inserted one after the other stands together.

    An index is of the list as the serving node shows it. If others write too, name elements by their ids, which stay.
    """

    _deletion = requests.DeleteList

    def __init__(self, connection: StoreConnection, space: str, name: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.name = check_name("list", name)

    def __repr__(self) -> str:
        return f"SharedList({self.space!r}, {self.name!r})"

    async def push(self, *elements: Any, key: str | None = None, durability: Durability | None = None) -> list[str]:
        """Add values at the end in one operation, and return the ids of their elements.

        Raises:
            InvalidValue: a value cannot be serialised.
            TooLarge: a value, or the list, exceeds its bound.
        """
        request = push_request(self.space, self.name, *elements)
        return (await self._connection.write(request, key=key, durability=durability)).elements

    async def insert(
        self,
        *elements: Any,
        index: int | None = None,
        before: str = "",
        after: str = "",
        key: str | None = None,
        durability: Durability | None = None,
    ) -> list[str]:
        """Insert values in one operation, before an index, or before or after the element with an id; otherwise at the end.

        Returns the ids of the new elements. As in Python, an index below 0 counts from the end, and one beyond it is the end.

        Raises:
            InvalidInput: there is no value, or more than one place.
            NotFound: the node does not show the element to insert before or after.
        """
        request = insert_request(self.space, self.name, *elements, index=index, before=before, after=after)
        return (await self._connection.write(request, key=key, durability=durability)).elements

    async def remove(self, *ids: str, key: str | None = None, durability: Durability | None = None) -> list[Any]:
        """Remove elements, wherever they stand by now, and return their values; those that are not there are passed over."""
        request = remove_request(self.space, self.name, *ids)
        reply = await self._connection.write(request, key=key, durability=durability)
        return [values.decode(value) for value in reply.values]

    async def move(
        self,
        id: str,
        *,
        index: int | None = None,
        before: str = "",
        after: str = "",
        key: str | None = None,
        durability: Durability | None = None,
    ) -> bool:
        """Move an element: to an index, which it has afterwards (-1: the last), before or after another, or else to the end.

        False if the node does not show it. If two nodes move it at once, it is at one of the two places, everywhere the same.
        If one moves it and one removes it, it is removed.

        Raises:
            InvalidInput: there is more than one place.
            NotFound: the node does not show the other element.
        """
        request = move_request(self.space, self.name, id, index=index, before=before, after=after)
        return (await self._connection.write(request, key=key, durability=durability)).moved

    async def get(self, index: int, *, stale: bool = False) -> Any:
        """The value at an index, which may count from the end; None if the list is shorter. `stale`: see `Store`."""
        page = await self._page(index, b"", 1, stale=stale)
        within = -page.size <= index < page.size
        return values.decode(page.elements[0].value) if within and page.elements else None

    async def slice(self, start: int = 0, stop: int | None = None, *, stale: bool = False) -> list[ListItem]:
        """The elements from index `start` up to `stop`, exclusive, or up to the end. Either may count from the end.

        It is read page by page. Each page shows one moment, which may differ between pages.
        """
        found: list[ListItem] = []
        left: int | None = None
        after, more = b"", True
        while more and left != 0:
            page = await self._page(start, after, _PAGE if left is None else min(left, _PAGE), stale=stale)
            if left is None:
                begin, end, _ = _slice(start, stop).indices(page.size)
                left = max(0, end - begin)
            found += [shown_element(element) for element in page.elements[:left]]
            left -= min(left, len(page.elements))
            after, more = page.cursor, page.more
        return found

    async def len(self, *, stale: bool = False) -> int:
        """The number of elements; 0 if nothing was inserted."""
        return (await self._page(0, b"", 1, stale=stale)).size

    def items(self, *, stale: bool = False) -> ListItems:
        """The elements: `await` it for a list, or use `async for` to read page by page."""
        return ListItems(self, stale=stale)

    async def _page(self, index: int, after: bytes, limit: int, *, stale: bool) -> requests.ListPage:
        request = requests.ReadList(self.space, self.name, index, after, max(1, limit))
        return await self._connection.read(request, stale=stale)


class ListItems:
    """The elements of a list, in their order. Each page shows one moment, which may differ between pages."""

    def __init__(self, of: SharedList, *, stale: bool) -> None:
        self._of = of
        self._stale = stale

    def __await__(self) -> Generator[Any, None, list[ListItem]]:
        return self._listed().__await__()

    async def __aiter__(self) -> AsyncIterator[ListItem]:
        after, more = b"", True
        while more:
            page = await self._of._page(0, after, _PAGE, stale=self._stale)
            for element in page.elements:
                yield shown_element(element)
            after, more = page.cursor, page.more

    async def _listed(self) -> list[ListItem]:
        return [element async for element in self]


_slice = slice


def shown_element(element: requests.ListElement) -> ListItem:
    """An element as handles show it."""
    return ListItem(element.id, values.decode(element.value))


def push_request(space: str, name: str, *elements: Any) -> requests.InsertElements:
    """The request that adds values at the end of a list."""
    return insert_request(space, name, *elements)


def insert_request(
    space: str, name: str, *elements: Any, index: int | None = None, before: str = "", after: str = ""
) -> requests.InsertElements:
    """The request that inserts values into a list."""
    packed = [values.encode(element, where="element") for element in elements]
    return requests.InsertElements(space, name, packed, index, before, after)


def remove_request(space: str, name: str, *ids: str) -> requests.RemoveElements:
    """The request that removes elements of a list."""
    return requests.RemoveElements(space, name, list(ids))


def move_request(
    space: str, name: str, id: str, *, index: int | None = None, before: str = "", after: str = ""
) -> requests.MoveElement:
    """The request that moves an element of a list."""
    return requests.MoveElement(space, name, id, index, before, after)
