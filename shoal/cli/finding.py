"""Ids by their beginnings, and names that are not there, since people shorten the ones and misspell the others. If nothing is
found, a note or the error names the existing spaces, or similar names.

Laws:
- A whole id is used without a look-up; the command itself reports if it does not exist.
- An ambiguous or unknown beginning is rejected before anything is written, and the error lists existing ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from shoal.cli.execution import near
from shoal.cli.output import emit, line, note, plain
from shoal.client.store import Store
from shoal.errors import InvalidInput, NotFound, ShoalError
from shoal.kinds.thread.flows.checkpoints import is_id
from shoal.protocol.requests import ListSummaries, ObjectKind
from shoal.workflows.spaces import check_exists, exists, names

if TYPE_CHECKING:
    from shoal.client.store import Space, Store
    from shoal.kinds.thread.handle.thread import Thread

SHORT = 12  # Characters of an id that are shown to people.
_SHOWN_MAX = 5
_OF_GRAPH = "/"  # Labels of the checkpoints begin with it that a graph of LangGraph continues from.


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


_SPACES_SHOWN_MAX = 5
_SPACES_LOOKED_AT_MAX = 1000
_NAMES_LOOKED_AT_MAX = 1000


async def print_names(found: AsyncIterator[str], store: Store, space: str, *, what: str, json: bool) -> None:
    """Print names, one per line. If there are none, a note on standard error says so."""
    empty = True
    async for name in found:
        emit(name) if json else line(name)
        empty = False
    if empty and not json:
        await note_absence(store, space, what=what)


async def note_absence(store: Store, space: str, *, what: str) -> None:
    """Note that there are none, and name the existing spaces if this one does not exist."""
    note(f"no {what} in space {space!r}.{await other_spaces(store, space)}")


async def check_thread(store: Store, space: str, thread: str) -> None:
    """Check that a thread exists.

    Raises:
        NotFound: nothing was ever written to it.
    """
    try:
        await check_exists(store.connection, space, thread)
    except NotFound as missing:
        if elsewhere := await other_spaces(store, space):
            raise NotFound(missing.message + elsewhere) from None
        raise NotFound(missing.message + await similar(thread, store.space(space).threads())) from None


async def note_graph(store: Store, space: str, thread: str, *, what: str) -> None:
    """Note of a thread of LangGraph that its graph does not read `what` was done, and what it still asks."""
    try:
        page = await store.connection.read(ListSummaries(space, prefix=thread, limit=1))
    except ShoalError:
        return  # What was asked for is done.
    for each in page.items:
        if each.name != thread or not (each.questions or each.label.startswith(_OF_GRAPH)):
            continue
        asks = f" It still asks: {plain(each.questions[0].says)}" if each.questions else ""
        note(
            f"{plain(thread)} is a graph of LangGraph, which does not read {what}: only its own program lets it go on, "
            f"from LangGraph's checkpoints.{asks} docs/LANGGRAPH.md#waiting-for-an-answer shows how."
        )


async def check_there(store: Store, space: str, kind: ObjectKind, name: str) -> None:
    """Check that an object exists. One that was never written reads as empty, or as 0: that is right for agents, but for a
    person it would hide a misspelt name.

    Raises:
        NotFound: there is none of this kind.
    """
    if kind == "thread":
        await check_thread(store, space, name)
    elif not await exists(store.connection, space, kind, name):
        command = "doc" if kind == "document" else kind
        elsewhere = await other_spaces(store, space) or await similar(name, names(store.connection, space, kind))
        raise NotFound(
            f"there is no {kind} {name!r} in space {space!r}. `shoal {command} list` lists the existing ones.{elsewhere}"
        )


async def _first(names: AsyncIterator[str]) -> AsyncIterator[str]:
    looked_at = 0
    async for name in names:
        yield name
        looked_at += 1
        if looked_at == _NAMES_LOOKED_AT_MAX:
            return


async def similar(name: str, names: AsyncIterator[str]) -> str:
    """A sentence, after a space, with those of the first `names` that are similar to this one; empty if none is."""
    return near(name, [each async for each in _first(names)])


async def other_spaces(store: Store, space: str) -> str:
    """A sentence, after a space, that lists the existing spaces; empty if this is one of them."""
    there: list[str] = []
    async for name in store.spaces():
        if name == space:
            return ""
        there.append(name)
        if len(there) == _SPACES_LOOKED_AT_MAX:
            if (len(name), name) < (len(space), space):
                return ""  # It may be one of the others.
            break
    if not there:
        return " Nothing was written to this store yet."
    more = ", …" if len(there) > _SPACES_SHOWN_MAX else ""
    return f" There is no such space; there is {', '.join(there[:_SPACES_SHOWN_MAX])}{more}. Name it with --space."
