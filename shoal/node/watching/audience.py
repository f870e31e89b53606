"""The subscribers of one space, found by the objects that they subscribed to.

A change that 20,000 watchers see was told to all of them before its writer was answered, which took 850 ms.

Law: finding the subscribers that a change may concern takes time in proportion to their number,
and one lookup for each length of a prefix in use. Subscribers to other objects cost nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Generic, TypeVar

from shoal.protocol.requests import Follow, ObjectKind, Watch

T = TypeVar("T", bound=Hashable)


class Audience(Generic[T]):
    """Members are kept, and found, in the order in which they came."""

    def __init__(self) -> None:
        self._watching: dict[str, dict[T, None]] = {}  # By prefix.
        self._lengths: dict[int, int] = {}  # Of a prefix → how many prefixes have it.
        self._following: dict[str, dict[T, None]] = {}  # By document.

    def __bool__(self) -> bool:
        return bool(self._watching or self._following)

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable([*self._watching.values(), *self._following.values()])

    def add(self, member: T, subscription: Watch | Follow) -> None:
        """Add a member with its subscription. A member is added only once."""
        if isinstance(subscription, Follow):
            self._following.setdefault(subscription.document, {})[member] = None
            return
        prefix = subscription.prefix
        if prefix not in self._watching:
            self._watching[prefix] = {}
            self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
        self._watching[prefix][member] = None

    def discard(self, member: T, subscription: Watch | Follow) -> None:
        """Remove a member, given the subscription with which it was added."""
        if isinstance(subscription, Follow):
            _discard(self._following, subscription.document, member)
            return
        length = len(subscription.prefix)
        if _discard(self._watching, subscription.prefix, member):
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def of(self, kind: ObjectKind, name: str) -> list[T]:
        """The members that watch a prefix of this name, whatever kinds they want, and the followers of this document."""
        found: list[T] = []
        for length in self._lengths:
            if length <= len(name):
                found += self._watching.get(name[:length], ())
        if kind == "document":
            found += self._following.get(name, ())
        return found


def _discard(groups: dict[str, dict[T, None]], name: str, member: T) -> bool:
    """Remove a member from a group; True if it was the last one, and the group was removed."""
    group = groups[name]
    del group[member]
    if not group:
        del groups[name]
    return not group
