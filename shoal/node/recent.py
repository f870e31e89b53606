"""A bounded set that forgets those members first that were asked for least recently.

Law: of the last half of `members_max` members that were put or found none is forgotten. It keeps two
halves, of which the older one is dropped as a whole once the newer one is full: to find a member costs
no more than to look it up.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Recent(Generic[T]):
    def __init__(self, members_max: int) -> None:
        self._half = max(1, members_max // 2)
        self._newer: set[T] = set()
        self._older: set[T] = set()

    def __contains__(self, member: T) -> bool:
        if member in self._newer:
            return True
        if member in self._older:
            self.put(member)
            return True
        return False

    def __len__(self) -> int:
        return len(self._newer | self._older)

    def put(self, member: T) -> None:
        if len(self._newer) >= self._half and member not in self._newer:
            self._older, self._newer = self._newer, set()
        self._newer.add(member)

    def drop(self, member: T) -> None:
        self._newer.discard(member)
        self._older.discard(member)
