"""`shoal watch`, and the shared objects: `doc`, `counter`, `register`, `set`, `map`, `budget`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Any, cast

import msgspec
import typer

from shoal.cli.absence import other_spaces, print_names, similar
from shoal.cli.command import Run, Work, in_store
from shoal.cli.commands import documents
from shoal.cli.derived import add_derived
from shoal.cli.options import PANEL, LimitOrAll, Prefix, Yes
from shoal.cli.output import emit, moment, plain, to_text
from shoal.cli.terminal import show_value
from shoal.client.store import Space, Store
from shoal.client.watching import Change, Reset
from shoal.errors import NotFound
from shoal.records import NamedTuple

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


class _Kind(NamedTuple):
    """A kind of shared object: its command, its name, and how it is listed and read."""

    command: str
    noun: str
    names: Callable[[Space, str], AsyncIterator[str]]  # The names that begin with the text, in byte order.
    read: Callable[[Space, str], Awaitable[Any]]
    by_hand: tuple[Callable[..., None], ...] = ()  # Commands in addition to the derived ones.


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(watch)
    for kind in _KINDS:
        group = _group(kind)
        if kind.command == "doc":
            documents.extend(group)
        app.add_typer(group, name=kind.command, rich_help_panel=PANEL)


@in_store
def watch(
    run: Run,
    prefix: Prefix = "",
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="Only objects of this kind; may be repeated.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="BOOKMARK", help="Only changes after this bookmark; --json shows bookmarks."),
    ] = None,
    limit: LimitOrAll = None,
) -> Work:
    """Print every change in a space, from now on or after a bookmark, until Ctrl-C.

    Example: shoal watch --url http://127.0.0.1:7400 --space crew
    """
    kinds = kind or []

    async def work(store: Store) -> None:
        shown = 0
        watching = store.space(run.space).watch(prefix=prefix, kinds=cast("Any", kinds), after=after)
        async with aclosing(watching) as changes:
            async for change in changes:
                run.show(_fields(change), _change(change))
                shown += 1
                if shown == limit:
                    return

    return work


def _fields(change: Change | Reset) -> dict[str, Any]:
    if isinstance(change, Reset):
        return {"what": "reset", "reason": change.reason, "bookmark": change.bookmark}
    told = {field: getattr(change, field) for field in ("space", "kind", "name", "what", "id", "hlc", "wall_ms")}
    return {**told, "bookmark": change.bookmark}


def _change(change: Change | Reset) -> str:
    if isinstance(change, Reset):
        return f"some changes were left out: {change.reason}. Read again what you follow."
    return f"{moment(change.wall_ms)}  {change.kind} {change.name}  {change.what}  {change.id}".rstrip()


def _group(kind: _Kind) -> typer.Typer:
    """The commands of one kind of object: `get NAME`, `list`, and those that change one."""
    group = typer.Typer(no_args_is_help=True, help=f"Look at the {kind.noun}s that a space's agents share.")
    add_derived(group, kind.command)
    for command in kind.by_hand:
        group.command()(command)

    @group.command(name="get", help=f"Print a {kind.noun} as JSON.")
    @in_store
    def get(run: Run, name: Name) -> Work:
        return lambda store: _get(store, run, name, kind)

    @group.command(name="list", help=f"List a space's {kind.noun}s, one name a line.")
    @in_store
    def list_names(run: Run) -> Work:
        return lambda store: print_names(
            kind.names(store.space(run.space), ""), store, run.space, what=f"{kind.noun}s", json=run.json
        )

    return group


async def _get(store: Store, run: Run, name: str, kind: _Kind) -> None:
    space = store.space(run.space)
    # An object that was never written reads as empty, or as 0. That is
    # right for agents, but for a person it would hide a misspelt name.
    if not await _exists(kind.names(space, name), name):
        raise NotFound(
            f"there is no {kind.noun} {name!r} in space {run.space!r}. `shoal {kind.command} list` lists the "
            "existing ones." + (await other_spaces(store, run.space) or await similar(name, kind.names(space, "")))
        )
    value = await kind.read(space, name)
    emit(value) if run.json else show_value(value)


@in_store
def clear(
    run: Run,
    name: Name,
    yes: Yes = False,
) -> Work:
    """Remove all elements of a set, and print their number.

    Example: shoal set clear urls --yes --data ./state
    """
    if not yes:
        typer.confirm(f"Remove all elements of set {name} of space {run.space}, for good?", abort=True, err=True)

    async def work(store: Store) -> None:
        removed = await store.space(run.space).set(name).clear()
        run.show({"removed": removed}, str(removed))

    return work


@in_store
def history(run: Run, name: Name) -> Work:
    """Print the values that a register was set to last, the latest first: when, by whom, and the value.

    Example: shoal register history goal --data ./state
    """

    async def work(store: Store) -> None:
        for past in await store.space(run.space).register(name).history():
            value = to_text(past.value) if past.is_kept else f"({past.size} bytes)"
            text = f"{past.time:%Y-%m-%d %H:%M:%SZ}  {past.by or '-'}  {value}"
            run.show({**asdict(past), "time": past.time.isoformat()}, plain(text))

    return work


async def _exists(names: AsyncIterator[str], name: str) -> bool:
    """Whether `name` is among `names`, which begin with it and are in order, so that it would be the first."""
    async for found in names:
        return found == name
    return False


async def _read_document(space: Space, name: str) -> Any:
    async with await space.document(name) as document:
        return document.to_py()


async def _read_counter(space: Space, name: str) -> Any:
    return await space.counter(name).value()


async def _read_register(space: Space, name: str) -> Any:
    return await space.register(name).get()


async def _read_set(space: Space, name: str) -> Any:
    return await space.set(name).members()


async def _read_map(space: Space, name: str) -> Any:
    return {entry.key: entry.value for entry in await space.map(name).entries()}


async def _read_budget(space: Space, name: str) -> Any:
    found = asdict(await space.budget(name).rights())
    parts = {part: [msgspec.structs.asdict(each) for each in found[part]] for part in ("holders", "conflicts")}
    return {**found, **parts}


_KINDS = (
    _Kind("doc", "document", Space.documents, _read_document),
    _Kind("counter", "counter", Space.counters, _read_counter),
    _Kind("register", "register", Space.registers, _read_register, (history,)),
    _Kind("set", "set", Space.sets, _read_set, (clear,)),
    _Kind("map", "map", Space.maps, _read_map),
    _Kind("budget", "budget", Space.budgets, _read_budget),
)
