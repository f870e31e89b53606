"""Shortened ids on the command line: any beginning that only one id has.

Laws:
- A whole id is used without a look-up; the command itself reports if it does not exist.
- An ambiguous or unknown beginning is rejected before anything is written, and the error lists existing ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from shoal.errors import InvalidInput, NotFound
from shoal.kinds.thread.flows.checkpoints import is_id

if TYPE_CHECKING:
    from shoal.client.store import Space, Store
    from shoal.kinds.thread.handle.thread import Thread

SHORT = 12  # Characters of an id that are shown to people.
_SHOWN_MAX = 5


async def checkpoint_id(store: Store, thread: Thread, given: str) -> str:
    """The id of the thread's checkpoint with the label `given`, or of the only one whose id begins with it.

    Raises:
        InvalidInput: there are several.
        NotFound: there is none.
    """
    if is_id(given):
        return given
    async for label, id in thread.labels(given):
        if label == given:
            return id
        break  # The label itself is the first of those that begin with it.
    return await _only(given, _checkpoints(store, thread), f"checkpoint of thread {thread.name!r}")


async def checkpoint_or_branch(store: Store, thread: Thread, given: str) -> str:
    """`given` if it is a branch's name, else the id of a checkpoint.

    Raises:
        InvalidInput, NotFound: as `checkpoint_id`.
    """
    if is_id(given) or given in (heads := await thread.heads()):
        return given
    try:
        return await checkpoint_id(store, thread, given)
    except NotFound as missing:
        raise NotFound(f"{missing.message} Nor is it a branch: it has {', '.join(heads) or 'none'}.") from None


async def mutation_id(store: Store, thread: Thread, given: str) -> str:
    """The id of a mutation, which is a checkpoint's id, "/" and a number; or of a checkpoint.

    Raises:
        InvalidInput, NotFound: as `checkpoint_id`.
    """
    checkpoint, slash, number = given.partition("/")
    return await checkpoint_id(store, thread, checkpoint) + slash + number


async def event_id(thread: Thread, given: str) -> str:
    """The id of the only event in the thread's journal whose id begins with `given`.

    Raises:
        InvalidInput, NotFound: as `checkpoint_id`.
    """
    events = (event.id async for event in thread.journal.read())
    return await _only(given, events, f"event of thread {thread.name!r}")


async def holder_origin(space: Space, budget: str, given: str) -> str:
    """The origin of the budget's only holder that begins with `given`.

    Raises:
        InvalidInput, NotFound: as `checkpoint_id`.
    """

    async def origins() -> AsyncIterator[str]:
        for holder in (await space.budget(budget).rights()).holders:
            yield holder.origin

    return await _only(given, origins(), f"holder of budget {budget!r}")


async def _checkpoints(store: Store, thread: Thread) -> AsyncIterator[str]:
    from shoal.kinds.thread.flows.checkpoints import ThreadCheckpoints

    async for checkpoint in ThreadCheckpoints(store.connection, thread.space, thread.name).reachable():
        yield checkpoint.id


async def _only(given: str, ids: AsyncIterator[str], what: str) -> str:
    found: list[str] = []
    others: list[str] = []
    async for id in ids:
        if id == given:
            return id
        if given and id.startswith(given):
            found.append(id)
        elif len(others) < _SHOWN_MAX:
            others.append(id)
        if len(found) > _SHOWN_MAX:
            break
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidInput(
            f"more than one {what} begins with {given!r}: {_shown(found)}. Nothing was written. Give more characters."
        )
    there = f"There are {_shown(others)}." if others else "There are none."
    raise NotFound(f"no {what} begins with {given!r}. Nothing was written. {there}")


def _shown(ids: list[str]) -> str:
    """The ids, shortened to as many characters as distinguish them."""
    length = SHORT
    while len({id[:length] for id in ids}) < len(ids):
        length += 1
    return ", ".join(id[:length] for id in ids[:_SHOWN_MAX]) + (", …" if len(ids) >= _SHOWN_MAX else "")
