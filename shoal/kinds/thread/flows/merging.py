"""Three-way merges of states: several sides and their common base.

Laws:
- A merge depends only on the base and the sides in their order: merging the same heads makes the same state on every node.
- Per channel, sides that left the value unchanged do not count, and equal values count once.
- If every side that changed a list appended to it, the result is the base's elements and then each side's new ones,
  in the order of the sides.
- The resolver decides all other channels. Without one, or if it returns UNRESOLVED, the channel is in conflict.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from shoal import values
from shoal.errors import MergeConflict


class Absent:
    """Stands for a channel that a side does not have; a resolver that returns it removes the channel."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


class Unresolved:
    """A resolver returns this for a channel that it does not decide."""

    def __repr__(self) -> str:
        return "UNRESOLVED"


UNRESOLVED = Unresolved()

Resolver = Callable[[str, Any, Sequence[Any]], Any | Awaitable[Any]]
"""(channel, base, the sides' different values) → the merged value. It may be asynchronous."""


async def merged(
    base: Mapping[str, Any], sides: Sequence[Mapping[str, Any]], resolver: Resolver | None = None
) -> dict[str, Any]:
    """Merge several states into one.

    Raises:
        MergeConflict: channels are in conflict, and no resolver decides them; the error names them.
    """
    state: dict[str, Any] = {}
    conflicts: list[str] = []
    for name in dict.fromkeys(name for one in (base, *sides) for name in one):
        began, made = base.get(name, ABSENT), _changed(base.get(name, ABSENT), [side.get(name, ABSENT) for side in sides])
        await asyncio.sleep(0)  # Each channel was packed once for each side; others get a turn.
        if not made:
            value = began
        elif len(made) == 1:
            value = made[0]
        elif (grown := _grown(began, made)) is not None:
            value = grown
        elif resolver is not None:
            value = resolver(name, began, made)
            value = await value if inspect.isawaitable(value) else value
        else:
            value = UNRESOLVED
        if value is UNRESOLVED:
            conflicts.append(name)
        elif value is not ABSENT:
            state[name] = value
    if conflicts:
        raise MergeConflict(
            f"channels {', '.join(map(repr, conflicts))} were changed in conflicting ways. Nothing was written. "
            "Pass a resolver(channel, base, sides) -> value; over HTTP and in the shell, give the values themselves.",
            channels=conflicts,
        )
    return state


def _changed(began: Any, sides: list[Any]) -> list[Any]:
    """The distinct values of the sides, without those that left the value unchanged."""
    made: dict[bytes, Any] = {}
    for side in sides:
        made.setdefault(_packed(side), side)
    made.pop(_packed(began), None)
    return list(made.values())


def _grown(began: Any, made: list[Any]) -> list[Any] | None:
    """The base's elements and then all elements that the sides appended; None if a side did anything else."""
    first = [] if began is ABSENT else began
    if not isinstance(first, list) or not all(isinstance(side, list) and len(side) >= len(first) for side in made):
        return None
    prefix = [_packed(element) for element in first]
    if any([_packed(element) for element in side[: len(first)]] != prefix for side in made):
        return None
    return first + [element for side in made for element in side[len(first) :]]


def _packed(value: Any) -> bytes:
    # A packed value is never empty.
    return b"" if value is ABSENT else values.encode(value)
