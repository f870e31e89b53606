"""Updates that came before what they build on: held in memory until it is there.

Laws:
- Each waits for one clock of one Yjs client, before which it cannot be ready.
- Bounded: past `bytes_max`, where each counts somewhat more than its bytes, none is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

_OVERHEAD_BYTES = 256  # What Python takes for one of them.


class _Held(NamedTuple, Generic[T]):
    clock: int
    number: int  # No two are equal, so that what is held is never compared.
    size: int
    item: T


class EarlyUpdates(Generic[T]):
    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._numbers = count()
        self._waiting: dict[int, list[_Held[T]]] = {}  # A heap for each Yjs client.

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def hold(self, item: T, size: int, *, client: int, clock: int) -> bool:
        """Hold `item` until `client` has reached `clock`; False: there is no room for it."""
        size += _OVERHEAD_BYTES
        if self._bytes + size > self._bytes_max:
            return False
        self._bytes += size
        heappush(self._waiting.setdefault(client, []), _Held(clock, next(self._numbers), size, item))
        return True

    def take(self, reached: Mapping[int, int]) -> list[T]:
        """Those that waited for what these clients have reached now; they are held no more."""
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
        for client, heap in list(self._waiting.items()):
            kept = [held for held in heap if not goes(held.item)]
            self._bytes -= sum(held.size for held in heap) - sum(held.size for held in kept)
            heapify(kept)
            self._waiting[client] = kept
            if not kept:
                del self._waiting[client]
