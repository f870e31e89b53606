"""The differences between two values: per path, aware of lists.

Laws:
- If the changes are applied to the first value in their order, the result is the second (`applied`).
- Values are equal if they are stored alike: 1, 1.0 and True are three values. The order of a
  map's keys does not count.
- Paths are JSON pointers (RFC 6901), each as of the moment at which its change is applied. For a list, only
  the elements that were added or removed, at its end or within it, are changes.

Lists are compared by the hashes of their elements, after Ratcliff and Obershelp
(`difflib`), once the parts that they share at both ends are set aside. With more than
`ELEMENTS_MAX` elements between those ends, or more steps than a request may take (`shoal.values.work`), they are
compared place by place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from shoal.errors import InvalidInput
from shoal.values.codec import encode
from shoal.values.work import Allowance

ELEMENTS_MAX = 2000


class Change(Struct, frozen=True):
    """A change at one place of a value; `before` is None if `op` is "add", `after` if it is "remove"."""

    op: Literal["add", "remove", "replace"]
    path: str
    before: Any = None
    after: Any = None


def differences(before: Any, after: Any, *, path: str = "") -> list[Change]:
    """The changes that turn `before` into `after`; `path` is where the two are."""
    return list(_differences(path, before, after, Allowance()))


def channel_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Change]]:
    """The changes of each channel that differs. A channel itself is at the empty path."""
    found: dict[str, list[Change]] = {}
    allowance = Allowance()
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            found[name] = [Change("remove", "", before=before[name])]
        elif name not in before:
            found[name] = [Change("add", "", after=after[name])]
        elif changes := list(_differences("", before[name], after[name], allowance)):
            found[name] = changes
    return found


def pointer(path: str, step: object) -> str:
    """`path` with one more step."""
    return f"{path}/{str(step).replace('~', '~0').replace('/', '~1')}"


def _differences(path: str, before: Any, after: Any, allowance: Allowance) -> Iterator[Change]:
    if type(before) is type(after) and isinstance(before, dict):
        yield from _of_maps(path, before, after, allowance)
    elif type(before) is type(after) and isinstance(before, (list, tuple)):
        yield from _of_lists(path, before, after, allowance)
    elif encode(before) != encode(after):
        yield Change("replace", path, before, after)


def _of_maps(path: str, before: dict[Any, Any], after: dict[Any, Any], allowance: Allowance) -> Iterator[Change]:
    if any(type(key) is not str for key in (*before, *after)):
        # A pointer cannot tell 1 from "1".
        if encode(before) != encode(after):
            yield Change("replace", path, before, after)
        return
    for key, value in before.items():
        if key not in after:
            yield Change("remove", pointer(path, key), before=value)
        else:
            yield from _differences(pointer(path, key), value, after[key], allowance)
    for key, value in after.items():
        if key not in before:
            yield Change("add", pointer(path, key), after=value)


def _of_lists(
    path: str, before: list[Any] | tuple[Any, ...], after: list[Any] | tuple[Any, ...], allowance: Allowance
) -> Iterator[Change]:
    old, new = [encode(element) for element in before], [encode(element) for element in after]
    at = 0  # The place in the list as changed so far: the elements before it are those of `after`.
    for same, first, last, low, high in _blocks(old, new, allowance):
        paired = 0 if same else min(last - first, high - low)
        for nth in range(paired):
            yield from _differences(pointer(path, at + nth), before[first + nth], after[low + nth], allowance)
        at += paired if not same else last - first
        if same:
            continue
        for element in before[first + paired : last]:
            yield Change("remove", pointer(path, at), before=element)
        for element in after[low + paired : high]:
            yield Change("add", pointer(path, at), after=element)
            at += 1


def _blocks(old: list[bytes], new: list[bytes], allowance: Allowance) -> Iterator[tuple[bool, int, int, int, int]]:
    """(equal?, old from, old to, new from, new to), in order, so that they cover both lists."""
    least = min(len(old), len(new))
    head = next((n for n in range(least) if old[n] != new[n]), least)
    tail = next((n for n in range(least - head) if old[-1 - n] != new[-1 - n]), least - head)
    old_end, new_end = len(old) - tail, len(new) - tail
    yield True, 0, head, 0, head
    if max(old_end, new_end) - head > ELEMENTS_MAX:
        yield False, head, old_end, head, new_end
    else:
        for tag, first, last, low, high in allowance.opcodes(old[head:old_end], new[head:new_end]):
            yield tag == "equal", head + first, head + last, head + low, head + high
    yield True, old_end, len(old), new_end, len(new)


# ── applying them ─────────────────────────────────────────────────────────────


Owned = dict[int, Any]
"""Containers that were copied for a result, by their ids: nobody else holds them, so they can be changed in place."""


def applied(value: Any, changes: list[Change], owned: Owned | None = None) -> Any:
    """A copy of `value` with the changes made, in their order. Each container is copied once, also over several calls with
    one `owned`, of which each gets the result of the one before.

    Raises:
        InvalidInput: a path leads nowhere. Discard the value, if `owned` was given.
    """
    owned = {} if owned is None else owned
    for change in changes:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in change.path.split("/")[1:]]
        try:
            value = _made(value, steps, change, owned)
        except (KeyError, IndexError, ValueError, TypeError):
            raise InvalidInput(f"the value has no {change.path!r} to change.") from None
    return value


def _made(value: Any, steps: list[str], change: Change, owned: Owned) -> Any:
    if not steps:
        return change.after
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict):
        entries = _own(value, owned)
        if change.op == "remove" and not rest:
            entries.pop(step, None)
        else:
            inner = None if change.op == "add" and not rest else entries[step]
            entries[step] = _made(inner, rest, change, owned)
        return entries
    listed, index = list(value) if isinstance(value, tuple) else _own(value, owned), int(step)
    if rest or change.op == "replace":
        listed[index] = _made(listed[index], rest, change, owned)
    elif change.op == "add":
        listed.insert(index, change.after)
    else:
        del listed[index]
    return tuple(listed) if isinstance(value, tuple) else listed


def _own(container: Any, owned: Owned) -> Any:
    if id(container) not in owned:
        container = dict(container) if isinstance(container, dict) else list(container)
        owned[id(container)] = container
    return container
