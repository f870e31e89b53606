"""Updates that arrived before the updates that they build on: held in memory until those are there.

Laws:
- Each waits for one clock of one Yjs client; it cannot be ready before.
- Above `bytes_max` no update is held. Each counts somewhat more than its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from shoal.records import NamedTuple

T = TypeVar("T")

UPDATE_OVERHEAD_BYTES = 256
"""The memory that Python needs for each update that waits."""


class _Held(NamedTuple, Generic[T]):
    clock: int
    number: int  # Unique, so that items are never compared.
    size: int
    item: T


class EarlyUpdates(Generic[T]):
    """Updates of any type `T`, by the Yjs client and clock that each waits for."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._numbers = count()
        self._waiting: dict[int, list[_Held[T]]] = {}  # A heap for each Yjs client.

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def hold(self, item: T, size: int, *, client: int, clock: int) -> bool:
        """Hold `item` until `client` has reached `clock`; False if there is no room for it."""
        size += UPDATE_OVERHEAD_BYTES
        if self._bytes + size > self._bytes_max:
            return False
        self._bytes += size
        heappush(self._waiting.setdefault(client, []), _Held(clock, next(self._numbers), size, item))
        return True

    def take(self, reached: Mapping[int, int]) -> list[T]:
        """Return, and forget, the items that waited for clocks that these clients have reached."""
        due: list[T] = []
        for client in self._waiting.keys() & reached.keys():
            heap = self._waiting[client]
            while heap and heap[0].clock <= reached[client]:
                held = heappop(heap)
                self._bytes -= held.size
                due.append(held.item)
            if not heap:
                del self._waiting[client]
        return due

    def drop(self, goes: Callable[[T], bool]) -> None:
        """Forget the updates for which `goes` is true."""
        for client, heap in list(self._waiting.items()):
            kept = [held for held in heap if not goes(held.item)]
            self._bytes -= sum(held.size for held in heap) - sum(held.size for held in kept)
            heapify(kept)
            self._waiting[client] = kept
            if not kept:
                del self._waiting[client]
