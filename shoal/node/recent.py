"""A bounded set that forgets its least recently used members first.

Law: the last `members_max / 2` members that were put or found are never forgotten. The set keeps two
halves and drops the older one as a whole once the newer one is full, so that a lookup costs no more
than in a plain set.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Recent(Generic[T]):
    """A set of at most `members_max` members, at least two. A lookup that finds a member renews it."""

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
        """Add or renew a member; this may drop the older half."""
        if len(self._newer) >= self._half and member not in self._newer:
            self._older, self._newer = self._newer, set()
        self._newer.add(member)

    def clear(self) -> None:
        """Remove all members."""
        self._newer.clear()
        self._older.clear()

    def drop(self, member: T) -> None:
        """Remove a member, if it is there."""
        self._newer.discard(member)
        self._older.discard(member)
