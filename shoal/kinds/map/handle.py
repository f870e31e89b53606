"""The handle of a map."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from typing import Any

from shoal import values
from shoal.client.arguments import Deletable, named
from shoal.client.connection import StoreConnection
from shoal.kinds.set.handle import packed_elements
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability, MapEntry, R

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """The values of a key, of each type."""

    key: str
    siblings: tuple[Any, ...]  # The values of its register, the latest first.
    version: str  # The version of its register; empty if it has no value.
    count: int | None  # The value of its counter; None if nothing was added.
    members: tuple[Any, ...]  # The members of its set.

    @property
    def value(self) -> Any:
        """The latest value of its register; without one its count; without that its members."""
        if self.siblings:
            return self.siblings[0]
        return list(self.members) if self.count is None else self.count

    @classmethod
    def of(cls, entry: MapEntry) -> Entry:
        """An entry as handles show it."""
        siblings = tuple(values.decode(sibling.value) for sibling in entry.siblings)
        return cls(entry.key, siblings, entry.version, entry.count, tuple(map(values.decode, entry.members)))


@named
class SharedMap(Deletable):
    """Registers, counters and sets by key. Changes of different keys never conflict; of a concurrent removal and update
    of one key the update wins.
    """

    _deletion = requests.DeleteMap

    def __init__(self, connection: StoreConnection, space: str, name: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.name = check_name("map", name)

    def __repr__(self) -> str:
        return f"SharedMap({self.space!r}, {self.name!r})"

    async def set(
        self,
        key: str,
        value: Any,
        *,
        expect: Entry | str | None = None,
        durability: Durability | None = None,
    ) -> str:
        """Set the register of a key, replacing the values that the node shows, and return its version.

        `expect` is the entry that was read, its version, or "" for none: as in `Register.set`.

        Raises:
            RegisterChanged: it has another version than `expect`.
            TooManySiblings, TooLarge: the register, or the map, would exceed its bound.
        """
        reply = await self._write(set_request(self.space, self.name, key, value, expect=expect), durability)
        return reply.version

    async def add(self, key: str, amount: int = 1, *, durability: Durability | None = None) -> None:
        """Add to a key's counter."""
        await self._write(add_request(self.space, self.name, key, amount), durability)

    async def include(self, key: str, *elements: Any, durability: Durability | None = None) -> int:
        """Add elements to the set of a key, and return how many were not members before."""
        return (await self._write(include_request(self.space, self.name, key, *elements), durability)).added

    async def exclude(self, key: str, *elements: Any, durability: Durability | None = None) -> int:
        """Remove elements from a key's set, and return how many were members."""
        return (await self._write(exclude_request(self.space, self.name, key, *elements), durability)).removed

    async def remove(self, key: str, *, durability: Durability | None = None) -> bool:
        """Remove all that the node shows of a key, of each type; False if there was nothing."""
        reply = await self._write(remove_request(self.space, self.name, key), durability)
        return reply.removed

    async def get(self, key: str, default: Any = None, *, stale: bool = False) -> Any:
        """The value of its entry: see `Entry.value`."""
        entry = await self.entry(key, stale=stale)
        return default if entry is None else entry.value

    async def entry(self, key: str, *, stale: bool = False) -> Entry | None:
        """All values of a key; None if it has none. `stale`: see `Store`."""
        page = await self._read(requests.ReadMap(self.space, self.name, [key]), stale=stale)
        return Entry.of(page.entries[0]) if page.entries else None

    def entries(self, prefix: str = "", *, stale: bool = False) -> Entries:
        """The entries in the order of their keys: `await` it for a list, or use `async for` to read page by page."""
        return Entries(self, prefix, stale=stale)

    async def len(self, *, stale: bool = False) -> int:
        """The number of keys."""
        return (await self._read(requests.ReadMap(self.space, self.name, []), stale=stale)).size

    async def _write(self, request: requests.Write[R], durability: Durability | None) -> R:
        return await self._connection.write(request, key=None, durability=durability)

    async def _read(self, request: requests.ReadMap, *, stale: bool) -> requests.MapEntries:
        return await self._connection.read(request, stale=stale)


class Entries:
    """The entries of a map. Each page shows one moment; different pages may show different ones."""

    def __init__(self, of: SharedMap, prefix: str, *, stale: bool) -> None:
        self._of = of
        self._prefix = prefix
        self._stale = stale

    def __await__(self) -> Generator[Any, None, list[Entry]]:
        return self._listed().__await__()

    async def __aiter__(self) -> AsyncIterator[Entry]:
        after: str | None = None
        more = True
        while more:
            request = requests.ReadMap(self._of.space, self._of.name, None, self._prefix, after, _PAGE)
            page = await self._of._read(request, stale=self._stale)
            for entry in page.entries:
                yield Entry.of(entry)
                after = entry.key
            more = page.more

    async def _listed(self) -> list[Entry]:
        return [entry async for entry in self]


def set_request(space: str, name: str, key: str, value: Any, *, expect: Entry | str | None = None) -> requests.PutEntry:
    """The request that sets a key's register."""
    expected = expect.version if isinstance(expect, Entry) else expect
    return requests.PutEntry(space, name, key, values.encode(value, where="value"), expected)


def add_request(space: str, name: str, key: str, amount: int = 1) -> requests.AddEntry:
    """The request that adds to the counter of a key."""
    return requests.AddEntry(space, name, key, amount)


def include_request(space: str, name: str, key: str, *elements: Any) -> requests.AlterEntry:
    """The request that adds elements to the set of a key."""
    return requests.AlterEntry(space, name, key, packed_elements(elements), [])


def exclude_request(space: str, name: str, key: str, *elements: Any) -> requests.AlterEntry:
    """The request that removes elements from the set of a key."""
    return requests.AlterEntry(space, name, key, [], packed_elements(elements))


def remove_request(space: str, name: str, key: str) -> requests.RemoveEntry:
    """The request that removes what the node shows of a key."""
    return requests.RemoveEntry(space, name, key)
