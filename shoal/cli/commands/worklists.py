"""`shoal worklist`: the worklists of a thread."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from shoal.cli.absence import check_thread
from shoal.cli.arguments import json_of
from shoal.cli.execution import execute
from shoal.cli.options import PANEL, By, Result, ThreadName
from shoal.cli.output import emit, line, to_text
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.terminal import Listing, ago
from shoal.client.thread.worklist import WorklistItem

worklist = typer.Typer(no_args_is_help=True, help="A thread's worklists: list items, add some, mark one as done.")

Name = Annotated[str, typer.Argument(metavar="WORKLIST", help="The worklist's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.add_typer(worklist, name="worklist", rich_help_panel=PANEL)


@worklist.command(name="list")
def list_items(
    thread: ThreadName,
    name: Name,
    done: Annotated[bool, typer.Option("--done", help="List done items, instead of pending ones.")] = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """List pending items in the order in which they were added.

    Example: shoal worklist list researcher-1 files --data ./state --space crew
    """
    execute(_list(chosen(data, url, environment=os.environ), space, thread, name, done=done, json=json))


async def _list(target: Target, space: str, thread: str, name: str, *, done: bool, json: bool) -> None:
    async with opened(target) as store:
        await check_thread(store, space, thread)
        work = store.space(space).thread(thread).worklist(name)
        found: AsyncIterator[WorklistItem] = work.finished() if done else work.pending()
        none = f"nothing {'was done' if done else 'is to be done'} in worklist {name!r} of thread {thread!r}."
        with Listing("age", "key", "value", "done by", "result", json=json, none=none) as rows:
            async for item in found:
                value = "" if item.value is None else to_text(item.value)
                results = "".join(f"  done by {to_text(end.by)}: {to_text(end.result)}" for end in item.done)
                rows.add(
                    _described(item),
                    f"{item.time:%Y-%m-%d %H:%M:%S}Z  [{to_text(item.key)[1:-1]}]{value and f'  {value}'}{results}",
                    *(ago(item.time), item.key, value),
                    *(", ".join(end.by for end in item.done), ", ".join(to_text(end.result) for end in item.done)),
                )


def _described(item: WorklistItem) -> dict[str, Any]:
    return {
        "key": item.key,
        "time": item.time.isoformat(),
        "value": item.value,
        "done": [{"by": end.by, "time": end.time.isoformat(), "result": end.result} for end in item.done],
    }


@worklist.command(name="add")
def add(
    thread: ThreadName,
    name: Name,
    keys: Annotated[list[str], typer.Argument(metavar="KEY…", help="The keys of the items to add.", show_default=False)],
    by: By = "",
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Add keys to a worklist. A key that was added before is not added again.

    Example: shoal worklist add researcher-1 files a.txt b.txt --data ./state --space crew
    """
    execute(_add(chosen(data, url, environment=os.environ), space, thread, name, keys, by, json=json))


async def _add(target: Target, space: str, thread: str, name: str, keys: list[str], by: str, *, json: bool) -> None:
    async with opened(target) as store:
        added = await store.space(space).thread(thread).worklist(name).add(keys, by=by)
    emit({"added": added}) if json else line(f"{added} added")


@worklist.command(name="done")
def done(
    thread: ThreadName,
    name: Name,
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False)],
    result: Result = "null",
    by: By = "",
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Mark an item as done. If it was done before, nothing changes.

    Example: shoal worklist done researcher-1 files a.txt --result 5 --data ./state --space crew
    """
    execute(_done(chosen(data, url, environment=os.environ), space, thread, name, key, result, by, json=json))


async def _done(target: Target, space: str, thread: str, name: str, key: str, result: str, by: str, *, json: bool) -> None:
    value = json_of(result, "--result")
    async with opened(target) as store:
        found = await store.space(space).thread(thread).worklist(name).done(key, result=value, by=by)
    if json:
        emit({"first": found.first, "by": found.by, "result": found.result})
    else:
        line("done" if found.first else f"was done already by {to_text(found.by)}: {to_text(found.result)}")
