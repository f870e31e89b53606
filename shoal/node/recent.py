"""A bounded set that forgets its oldest members."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Recent(Generic[T]):
    def __init__(self, members_max: int) -> None:
        self._members_max = members_max
        self._members: dict[T, None] = {}  # In the order in which they came.

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __len__(self) -> int:
        return len(self._members)

    def put(self, member: T) -> None:
        self._members[member] = None
        if len(self._members) > self._members_max:
            del self._members[next(iter(self._members))]

    def drop(self, member: T) -> None:
        self._members.pop(member, None)
