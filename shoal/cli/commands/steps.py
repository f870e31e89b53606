"""`shoal steps`, `pause`, `approve` and `resume`: the steps of agents, and people's decisions on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from shoal.cli.absence import check_thread
from shoal.cli.arguments import json_of
from shoal.cli.command import Run, Work, in_store
from shoal.cli.options import PANEL, Branch, By, Reason, Result, ThreadName
from shoal.cli.output import emit, line, to_text
from shoal.cli.terminal import Listing, ago, show_value
from shoal.kinds.step.flows import StepRecord
from shoal.kinds.step.handle.resume import Standing
from shoal.kinds.thread.flows.export import event_record, step_record
from shoal.kinds.thread.handle.thread import Thread

if TYPE_CHECKING:
    from shoal.client.store import Store

_HOW = ("result", "retry", "abandon")


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(steps)
    app.command(rich_help_panel=PANEL)(resume)
    app.command(rich_help_panel=PANEL)(pause)
    app.command(rich_help_panel=PANEL)(approve)


@in_store
def steps(
    run: Run,
    words: Annotated[
        list[str],
        typer.Argument(metavar="THREAD | resolve THREAD KEY result|retry|abandon", show_default=False),
    ],
    open_: Annotated[bool, typer.Option("--open", help="Only steps whose outcome is unknown.")] = False,
    result: Result = "null",
    by: By = "",
    reason: Reason = "",
) -> Work:
    """List a thread's steps in order, or settle an open one: `steps resolve THREAD KEY retry`.

    Example: shoal steps resolve support-1 call-42 result --result '{"paid": true}' --by ana --url http://n1:7400
    """
    match words:
        case [thread]:
            return _list(run, thread, only_open=open_)
        case ["resolve", thread, key, how] if how in _HOW:
            value = json_of(result, "--result")
            return _resolve(
                run, thread, lambda handle: handle.resolve(key, cast("Any", how), value=value, by=by, reason=reason)
            )
        case _:
            raise typer.BadParameter("give THREAD, or: resolve THREAD KEY result|retry|abandon")


def _list(run: Run, name: str, *, only_open: bool) -> Work:
    async def work(store: Store) -> None:
        await check_thread(store, run.space, name)
        none = f"thread {name!r} has no {'open ' if only_open else ''}steps."
        with Listing("begun", "state", "name", "key", "notes", json=run.json, none=none) as rows:
            async for record in store.space(run.space).thread(name).steps(open=only_open):
                cells = (ago(record.begun), record.state, record.name, record.key, "  ".join(_notes(record)))
                rows.add(step_record(record), _line(record), *cells)

    return work


def _resolve(run: Run, name: str, resolve: Callable[[Thread], Awaitable[StepRecord]]) -> Work:
    async def work(store: Store) -> None:
        record = await resolve(store.space(run.space).thread(name))
        run.show(step_record(record), _line(record))

    return work


def _notes(record: StepRecord) -> list[str]:
    notes = [f"{len(record.attempts)} attempts"] if len(record.attempts) > 1 else []
    if record.state == "open":
        notes.append(f"held by {record.holder or 'somebody'} since {record.since:%Y-%m-%d %H:%M:%S}Z")
    if record.error and record.state == "failed":
        notes.append(to_text(dict(record.error)))
    if record.state == "done":
        notes.append(to_text(record.result))
    return notes


def _line(record: StepRecord) -> str:
    notes = "  ".join(_notes(record))
    return f"{record.begun:%Y-%m-%d %H:%M:%S}Z  {record.state:<9}  {record.name}  [{record.key}]  {notes}".rstrip()


@in_store
def pause(
    run: Run,
    thread: ThreadName,
    reason: Reason = "",
    by: By = "",
) -> Work:
    """Pause a thread's steps until a person approves.

    Example: shoal pause support-1 --reason "too dear" --by ana --url http://n1:7400
    """

    async def work(store: Store) -> None:
        _print_standing(await store.space(run.space).thread(thread).pause(reason, by=by), json=run.json)

    return work


@in_store
def approve(
    run: Run,
    thread: ThreadName,
    reason: Reason = "",
    by: By = "",
) -> Work:
    """Let a thread continue that is paused or waits for a person.

    Example: shoal approve support-1 --by ana --url http://n1:7400
    """

    async def work(store: Store) -> None:
        handle = store.space(run.space).thread(thread)
        await check_thread(store, run.space, thread)  # A mistyped name would be approved, and the right one go on waiting.
        _print_standing(await handle.approve(reason=reason, by=by), json=run.json)

    return work


def _print_standing(standing: Standing, *, json: bool) -> None:
    if json:
        emit({"status": standing.status, "reason": standing.reason, "by": standing.by})
    else:
        line(standing.status)


@in_store
def resume(
    run: Run,
    thread: ThreadName,
    branch: Branch = "main",
) -> Work:
    """Show the state from which an agent would resume: the newest state by quorum, and the reason.

    Example: shoal resume support-1 --url http://n1:7400
    """

    async def work(store: Store) -> None:
        found = await store.space(run.space).thread(thread).resume(branch=branch)
        shown = {} if found.checkpoint is None else found.checkpoint.redacted
        if not run.json:
            line(found.reason.text)
            for record in found.open:
                line(_line(record))
            show_value(shown)
            return
        emit(
            {
                "checkpoint": found.reason.head,
                "state": shown,
                "at": found.at,
                "stack": found.stack,
                "open": [step_record(record) for record in found.open],
                "events": [event_record(event) for event in found.events],
                "reason": {
                    "text": found.reason.text,
                    "other_heads": list(found.reason.other_heads),
                    "skipped": list(found.reason.skipped),
                    "unresolved": list(found.reason.unresolved),
                    "quorum": found.reason.quorum,
                    "staleness": found.reason.staleness,
                },
            }
        )

    return work
