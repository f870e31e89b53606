"""`shoal worklist`: the worklists of a thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.absence import check_thread
from shoal.cli.arguments import json_of
from shoal.cli.command import Run, Work, in_store
from shoal.cli.options import PANEL, By, Result, ThreadName
from shoal.cli.output import to_text
from shoal.cli.terminal import Listing, ago
from shoal.client.thread.worklist import WorklistItem

if TYPE_CHECKING:
    from shoal.client.store import Store

worklist = typer.Typer(no_args_is_help=True, help="A thread's worklists: list items, add some, mark one as done.")

Name = Annotated[str, typer.Argument(metavar="WORKLIST", help="The worklist's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.add_typer(worklist, name="worklist", rich_help_panel=PANEL)


@worklist.command(name="list")
@in_store
def list_items(
    run: Run,
    thread: ThreadName,
    name: Name,
    done: Annotated[bool, typer.Option("--done", help="List done items, instead of pending ones.")] = False,
) -> Work:
    """List pending items in the order in which they were added.

    Example: shoal worklist list researcher-1 files --data ./state --space crew
    """

    async def work(store: Store) -> None:
        await check_thread(store, run.space, thread)
        work = store.space(run.space).thread(thread).worklist(name)
        found: AsyncIterator[WorklistItem] = work.finished() if done else work.pending()
        none = f"nothing {'was done' if done else 'is to be done'} in worklist {name!r} of thread {thread!r}."
        with Listing("age", "key", "value", "done by", "result", json=run.json, none=none) as rows:
            async for item in found:
                value = "" if item.value is None else to_text(item.value)
                results = "".join(f"  done by {to_text(end.by)}: {to_text(end.result)}" for end in item.done)
                rows.add(
                    _described(item),
                    f"{item.time:%Y-%m-%d %H:%M:%S}Z  [{to_text(item.key)[1:-1]}]{value and f'  {value}'}{results}",
                    *(ago(item.time), item.key, value),
                    *(", ".join(end.by for end in item.done), ", ".join(to_text(end.result) for end in item.done)),
                )

    return work


def _described(item: WorklistItem) -> dict[str, Any]:
    return {
        "key": item.key,
        "time": item.time.isoformat(),
        "value": item.value,
        "done": [{"by": end.by, "time": end.time.isoformat(), "result": end.result} for end in item.done],
    }


@worklist.command(name="add")
@in_store
def add(
    run: Run,
    thread: ThreadName,
    name: Name,
    keys: Annotated[list[str], typer.Argument(metavar="KEY…", help="The keys of the items to add.", show_default=False)],
    by: By = "",
) -> Work:
    """Add keys to a worklist. A key that was added before is not added again.

    Example: shoal worklist add researcher-1 files a.txt b.txt --data ./state --space crew
    """

    async def work(store: Store) -> None:
        added = await store.space(run.space).thread(thread).worklist(name).add(keys, by=by)
        run.show({"added": added}, f"{added} added")

    return work


@worklist.command(name="done")
@in_store
def done(
    run: Run,
    thread: ThreadName,
    name: Name,
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False)],
    result: Result = "null",
    by: By = "",
) -> Work:
    """Mark an item as done. If it was done before, nothing changes.

    Example: shoal worklist done researcher-1 files a.txt --result 5 --data ./state --space crew
    """
    value = json_of(result, "--result")

    async def work(store: Store) -> None:
        found = await store.space(run.space).thread(thread).worklist(name).done(key, result=value, by=by)
        run.show(
            {"first": found.first, "by": found.by, "result": found.result},
            "done" if found.first else f"was done already by {to_text(found.by)}: {to_text(found.result)}",
        )

    return work
