"""`shoal steps`, `shoal pause`, `shoal approve`: what agents do, and the humans who look after them."""

from __future__ import annotations

import json as jsonlib
import os
from typing import Annotated, Any, cast

import typer
from msgspec import structs

from shoal import values
from shoal.cli.absence import check_thread
from shoal.cli.execution import execute
from shoal.cli.output import emit, line, to_text
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.threads import PANEL, Branch, ThreadName
from shoal.client.attempts import StepRecord
from shoal.client.export import step_record
from shoal.client.standing import Standing
from shoal.client.thread import Thread

By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who says so; it is kept in the journal.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the journal.")]
_HOW = ("result", "retry", "abandon")


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(steps)
    app.command(rich_help_panel=PANEL)(resume)
    app.command(rich_help_panel=PANEL)(audit)
    app.command(rich_help_panel=PANEL)(pause)
    app.command(rich_help_panel=PANEL)(approve)


def steps(
    words: Annotated[
        list[str],
        typer.Argument(metavar="THREAD | resolve THREAD KEY result|retry|abandon", show_default=False),
    ],
    open_: Annotated[bool, typer.Option("--open", help="Only those of which nobody knows how they ended.")] = False,
    value: Annotated[str, typer.Option("--value", metavar="JSON", help="For `resolve … result`: the result.")] = "null",
    by: By = "",
    reason: Reason = "",
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """List a thread's steps in their order; or settle one that is open: `steps resolve THREAD KEY retry`.

    Example: shoal steps resolve support-1 call-42 result --value '{"paid": true}' --by ana --url http://n1:7400
    """
    target = chosen(data, url, environment=os.environ)
    match words:
        case [thread]:
            execute(_steps(target, space, thread, only_open=open_, json=json))
        case ["resolve", thread, key, how] if how in _HOW:
            execute(_resolve(target, space, thread, [key, how], value=_parsed(value), by=by, reason=reason, json=json))
        case _:
            raise typer.BadParameter("give THREAD, or: resolve THREAD KEY result|retry|abandon")


def _parsed(text: str) -> Any:
    try:
        return values.from_json(jsonlib.loads(text))
    except ValueError as error:
        raise typer.BadParameter(f"--value is no JSON: {error}") from None


async def _steps(target: Target, space: str, name: str, *, only_open: bool, json: bool) -> None:
    async with opened(target) as store:
        await check_thread(store, space, name)
        async for record in store.space(space).thread(name).steps(open=only_open):
            _print(record, json=json)


async def _resolve(
    target: Target, space: str, name: str, said: list[str], *, value: Any, by: str, reason: str, json: bool
) -> None:
    key, how = said
    async with opened(target) as store:
        thread: Thread = store.space(space).thread(name)
        _print(await thread.resolve(key, cast("Any", how), value=value, by=by, reason=reason), json=json)


def _print(record: StepRecord, *, json: bool) -> None:
    if json:
        emit(step_record(record))
        return
    notes = [f"{len(record.attempts)} attempts"] if len(record.attempts) > 1 else []
    if record.state == "open":
        notes.append(f"held by {record.holder or 'somebody'} since {record.since:%Y-%m-%d %H:%M:%S}Z")
    if record.error and record.state == "failed":
        notes.append(to_text(dict(record.error)))
    if record.state == "done":
        notes.append(to_text(record.result))
    line(f"{record.begun:%Y-%m-%d %H:%M:%S}Z  {record.state:<9}  {record.name}  [{record.key}]  {'  '.join(notes)}".rstrip())


def pause(
    thread: ThreadName,
    reason: Reason = "",
    by: By = "",
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Hold a thread's steps until somebody approves.

    Example: shoal pause support-1 --reason "too dear" --by ana --url http://n1:7400
    """
    execute(_hold(chosen(data, url, environment=os.environ), space, thread, reason, by=by, json=json))


async def _hold(target: Target, space: str, name: str, reason: str, *, by: str, json: bool) -> None:
    async with opened(target) as store:
        _print_standing(await store.space(space).thread(name).pause(reason, by=by), json=json)


def approve(
    thread: ThreadName,
    reason: Reason = "",
    by: By = "",
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Let a thread go on that is paused, or waits for a human.

    Example: shoal approve support-1 --by ana --url http://n1:7400
    """
    execute(_free(chosen(data, url, environment=os.environ), space, thread, reason, by=by, json=json))


async def _free(target: Target, space: str, name: str, reason: str, *, by: str, json: bool) -> None:
    async with opened(target) as store:
        _print_standing(await store.space(space).thread(name).approve(reason=reason, by=by), json=json)


def _print_standing(standing: Standing, *, json: bool) -> None:
    if json:
        emit({"status": standing.status, "reason": standing.reason, "by": standing.by})
    else:
        line(standing.status)


def resume(
    thread: ThreadName,
    branch: Branch = "main",
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Show what an agent would go on from: the newest state by quorum, and why.

    Example: shoal resume support-1 --url http://n1:7400
    """
    execute(_resume(chosen(data, url, environment=os.environ), space, thread, branch, json=json))


async def _resume(target: Target, space: str, name: str, branch: str, *, json: bool) -> None:
    async with opened(target) as store:
        found = await store.space(space).thread(name).resume(branch=branch)
    shown = {} if found.checkpoint is None else found.checkpoint.redacted
    if not json:
        line(found.reason.text)
        for record in found.open:
            _print(record, json=False)
        line(to_text(shown, indent=2))
        return
    emit(
        {
            "checkpoint": found.reason.head,
            "state": shown,
            "at": found.at,
            "stack": found.stack,
            "open": [step_record(record) for record in found.open],
            "events": [{"id": event.id, "key": event.key, "event": event.event} for event in found.events],
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


def audit(
    thread: ThreadName,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Show checkpoints, steps, events and moves in one time line, and which checkpoint was known at each.

    Example: shoal audit support-1 --url http://n1:7400
    """
    execute(_audit(chosen(data, url, environment=os.environ), space, thread, json=json))


async def _audit(target: Target, space: str, name: str, *, json: bool) -> None:
    async with opened(target) as store:
        await check_thread(store, space, name)
        for entry in await store.space(space).thread(name).audit():
            if json:
                emit({**structs.asdict(entry), "time": entry.time.isoformat()})
                continue
            by = f"  by {entry.by}" if entry.by else ""
            known = f"  knowing {entry.known[:12]}" if entry.known else ""
            shown = entry.id if entry.kind == "checkpoint" else f"[{entry.id}]" if entry.kind == "step" else ""
            data = f"  {to_text(entry.data)}" if entry.data or entry.kind != "checkpoint" else ""
            line(f"{entry.time:%Y-%m-%d %H:%M:%S}Z  {entry.text} {shown}{by}{known}{data}".rstrip())
