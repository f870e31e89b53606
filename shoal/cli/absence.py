"""Notes for people when nothing is found, since the space may be misspelt, or the default one by mistake."""

from __future__ import annotations

from collections.abc import AsyncIterator

from shoal.cli.mistakes import near
from shoal.cli.output import emit, line, note
from shoal.client.store import Store
from shoal.errors import NotFound
from shoal.protocol.requests import ObjectKind
from shoal.workflows.spaces import check_exists, exists, names

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
            break
    if not there:
        return " Nothing was written to this store yet."
    more = ", …" if len(there) > _SPACES_SHOWN_MAX else ""
    return f" There is no such space; there is {', '.join(there[:_SPACES_SHOWN_MAX])}{more}. Name it with --space."
