"""`shoal retention` and `shoal tiering`: standing rules of what may go in a space, and to an object store.

docs/RETENTION.md, docs/TIERING.md.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from shoal.cli.arguments import PANEL, DryRun, KeepLast, OlderThan, Prefix, Yes, age_with_unit
from shoal.cli.execution import Data, Json, Target, Url, agreed, chosen, execute, opened
from shoal.cli.output import document, emit, line, note, note_empty, shown_bytes, span
from shoal.errors import NotFound
from shoal.kinds.retention.flows import Retained
from shoal.kinds.retention.handle import SpaceRetention
from shoal.kinds.tiering.handle import SpaceTiering
from shoal.protocol.requests import RetentionRule, RetentionRules, TieringView

Space = Annotated[str, typer.Argument(metavar="SPACE", help="The space.", show_default=False)]
Threads = Annotated[
    str | None,
    typer.Option("--threads-older-than", metavar="AGE", help="Whole threads to which nothing was written for so long."),
]
Events = Annotated[str | None, typer.Option("--events-older-than", metavar="AGE", help="Events of journals older than this.")]
Finished = Annotated[
    str | None,
    typer.Option(
        "--finished-older-than", metavar="AGE", help="Items of worklists that were done before; they can be added again."
    ),
]
Labelled = Annotated[
    bool,
    typer.Option("--keep-labelled", help="Keep whole threads that have a labelled checkpoint. Those checkpoints stay anyway."),
]

Place = Annotated[
    str, typer.Argument(metavar="PLACE", help="s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR.", show_default=False)
]
Idle = Annotated[
    str | None, typer.Option("--idle", metavar="AGE", help="Threads to which nothing was written for so long, as in 30d.")
]
Files = Annotated[bool, typer.Option("--blobs", help="Files as soon as they are put; they stay there when they are read.")]

_SHOWN_MAX = 20  # Threads that a person is shown.
_STAYS = {
    "head": "heads of branches",
    "recent": "among the last",
    "young": "young enough",
    "labelled": "with a label",
    "open step": "of open steps",
    "fork": "at forks",
    "no bound": "without a bound",
}


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help="Standing rules: which checkpoints, events and threads of a space may go.")
    group.command("set")(set_rule)
    group.command("show")(show_rules)
    group.command("unset")(unset_rule)
    group.command("run")(run_rules)
    app.add_typer(group, name="retention", rich_help_panel=PANEL)
    group = typer.Typer(
        no_args_is_help=True, help="Idle threads in an object store: their bytes go there, and come back on read."
    )
    group.command("set")(set_place)
    group.command("show")(show_place)
    group.command("unset")(unset_place)
    group.command("run")(move_now)
    app.add_typer(group, name="tiering", rich_help_panel=PANEL)


def set_rule(
    space: Space,
    prefix: Prefix = "",
    keep_last: KeepLast = None,
    older_than: OlderThan = None,
    threads_older_than: Threads = None,
    events_older_than: Events = None,
    finished_older_than: Finished = None,
    keep_labelled: Labelled = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Set a rule, in place of the one of the same prefix: from now on the nodes let go what it lets go.

    --keep-last and --older-than are about the checkpoints of each branch. With both, one goes only if neither keeps it.
    With --dry-run it says what that would be now. Heads, labelled checkpoints, those of open steps and forks always stay.

    Example: shoal retention set crew --keep-last 20 --keep-labelled --older-than 30d --dry-run --data ./state
    """
    bounds: dict[str, Any] = {
        "prefix": prefix,
        "keep_last": keep_last,
        "older_than": age_with_unit("--older-than", older_than),
        "threads_older_than": age_with_unit("--threads-older-than", threads_older_than),
        "events_older_than": age_with_unit("--events-older-than", events_older_than),
        "finished_older_than": age_with_unit("--finished-older-than", finished_older_than),
        "keep_labelled": keep_labelled,
    }

    async def work(retention: SpaceRetention) -> None:
        if dry_run:
            _show_retained(space, await retention.preview(**bounds), json=json)
        else:
            view = await retention.set(**bounds, yes=yes)
            _show(view, json=json)
            if view.all_labelled and not json:
                _note_labelled()

    _execute(space, work, data, url)


def show_rules(space: Space, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Show the rules of a space, and what the node did by them.

    Example: shoal retention show crew --data ./state
    """

    async def work(retention: SpaceRetention) -> None:
        _show(await retention.get(), json=json)

    _execute(space, work, data, url)


def unset_rule(
    space: Space, prefix: Prefix = "", dry_run: DryRun = False, data: Data = None, url: Url = None, json: Json = False
) -> None:
    """Remove the rule of a prefix; with --dry-run, show the rules that would be left. What went by it stays gone.

    Example: shoal retention unset crew --data ./state
    """

    async def work(retention: SpaceRetention) -> None:
        known = [rule.prefix for rule in (await retention.get()).rules]
        if known and prefix not in known:  # In a script that removes what may be gone, no rule at all is no mistake.
            raise NotFound(
                f"space {space!r} has no rule of retention for the prefix {prefix!r}; it has rules for: "
                f"{', '.join(map(repr, known))}. Nothing was written."
            )
        view = await retention.unset(prefix, dry_run=dry_run)
        if dry_run and not json:
            line("nothing was changed. These rules would be left:")
        _show(view, json=json)

    _execute(space, work, data, url)


def run_rules(
    space: Space, dry_run: DryRun = False, yes: Yes = False, data: Data = None, url: Url = None, json: Json = False
) -> None:
    """Carry the rules of a space out now; with --dry-run, say what would go.

    Example: shoal retention run crew --dry-run --data ./state
    """
    if not dry_run:
        agreed(f"Let go what the rules of space {space} let go, on every node, for good?", yes=yes)

    async def work(retention: SpaceRetention) -> None:
        _show_retained(space, await (retention.preview() if dry_run else retention.run()), json=json)

    _execute(space, work, data, url)


def _execute(space: str, work: Callable[[SpaceRetention], Awaitable[None]], data: Path | None, url: str | None) -> None:
    async def run(target: Target) -> None:
        async with opened(target) as store:
            await work(store.space(space).retention)

    execute(run(chosen(data, url, environment=os.environ)))


def _show(view: RetentionRules, *, json: bool) -> None:
    if json:
        emit(document(view))
        return
    if view.is_empty:
        note_empty(view.space)
    if not view.rules:
        line(f"space {view.space} has no rules: nothing goes by itself")
        return
    for rule in view.rules:
        line(_sentence(rule))
    if not view.is_in_charge:
        line("another node carries them out")
    elif view.waits_for:
        line(f"{view.waits_for}")
    if view.checkpoints or view.threads or view.events or view.finished or view.due:
        line(
            f"since this node started, by all rules: {view.checkpoints:,} checkpoints, {view.events:,} events, "
            f"{view.finished:,} done items and {view.threads:,} threads went, {shown_bytes(view.bytes)}; {view.due:,} are due"
        )


def _note_labelled() -> None:
    """Tell that a rule about checkpoints can let none go."""
    note(
        "all checkpoints that were looked at have labels, and --keep-last and --older-than let none with a label go: nothing "
        "will go by them. Of graphs of LangGraph, --threads-older-than lets whole threads go, and saver.prune old checkpoints: "
        "docs/RETENTION.md#langgraph"
    )


def _sentence(rule: RetentionRule) -> str:
    where = f"threads {rule.prefix}*" if rule.prefix else "all threads"
    if rule.trouble:
        return f"{where}: nothing goes, because {rule.trouble}"
    parts: list[str] = []
    if rule.keep_last is not None or rule.older_than_ms is not None:
        last = "" if rule.keep_last is None else f"keep the last {rule.keep_last:,} checkpoints of a branch"
        age = "" if rule.older_than_ms is None else span(rule.older_than_ms)
        both = f"{last}, and what is younger than {age}" if age else last
        parts.append(both if last else f"checkpoints go that are older than {age}")
    if rule.events_older_than_ms is not None:
        parts.append(f"events go after {span(rule.events_older_than_ms)}")
    if rule.finished_older_than_ms is not None:
        parts.append(f"done items of worklists go after {span(rule.finished_older_than_ms)}")
    if rule.threads_older_than_ms is not None:
        unless = " unless they have a label" if rule.keep_labelled else ""
        parts.append(f"whole threads go {span(rule.threads_older_than_ms)} after the last write{unless}")
    others = f" (and what {rule.rivals} other rules keep that were set at the same time)" if rule.rivals else ""
    return f"{where}: {'; '.join(parts)}{others}"


def _show_retained(space: str, found: Retained, *, json: bool) -> None:
    if json:
        emit(msgspec.to_builtins(found))
        return
    goes = "would go" if found.dry_run else "went"
    for each in found.by_thread[:_SHOWN_MAX]:
        whole = "all of it: " if each.deletes else ""
        done = f"{each.finished:,} done items, " if each.finished else ""
        size = shown_bytes(each.bytes)
        line(f"{each.thread}  {whole}{each.checkpoints:,} checkpoints, {each.events:,} events, {done}{size}")
    if len(found.by_thread) > _SHOWN_MAX:
        line(f"… and {len(found.by_thread) - _SHOWN_MAX:,} threads more (--json lists them all)")
    line(
        f"of {found.looked_at:,} threads of space {space}, {found.checkpoints:,} checkpoints, {found.events:,} events, "
        f"{found.finished:,} done items and {found.threads:,} whole threads {goes}: {shown_bytes(found.bytes)}"
    )
    if found.stays:
        line(f"checkpoints that stay: {', '.join(f'{count:,} {_STAYS.get(why, why)}' for why, count in found.stays.items())}")
    if not found.looked_at:
        note(f"space {space!r} has no thread that these rules are about: check its name, and the prefix")
    if found.leaves_nothing and found.dry_run:
        line("nothing but heads would be left, or no thread: setting such a rule takes --yes")


# ── tiering ──────────────────────────────────────────────────────────────────


def set_place(
    space: Space,
    place: Place,
    idle: Idle = None,
    files: Files = False,
    dry_run: DryRun = False,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Have the bytes of idle threads moved to an object store, by each node from now on. They come back when they are read.

    With --blobs, files go there within a minute, and stay there; without --idle nothing else goes.

    With --dry-run the address is tried, and it says what would move from this node now. Credentials come from the environment
    of the nodes. The node writes, reads and deletes there before anything is recorded.

    Example: shoal tiering set crew s3://bucket/cold --idle 30d --url http://n1:7400
    """
    idle_s = age_with_unit("--idle", idle)

    async def set_it(tiering: SpaceTiering) -> TieringView:
        return await tiering.set(place, idle=idle_s, files=files, dry_run=dry_run)

    _execute_tiering(space, set_it, data, url, json=json, dry_run=dry_run)


def show_place(space: Space, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Show where idle threads of a space go, and what the node has there.

    Example: shoal tiering show crew --data ./state
    """
    _execute_tiering(space, lambda tiering: tiering.get(), data, url, json=json)


def unset_place(space: Space, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Move nothing any more, and bring all back. Nodes do that by themselves; `show` says what is still away.

    Example: shoal tiering unset crew --data ./state
    """
    _execute_tiering(space, lambda tiering: tiering.unset(), data, url, json=json)


def move_now(space: Space, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Move now what is idle, at this node, or bring back what is to come back, rather than within a minute.

    Example: shoal tiering run crew --data ./state
    """
    _execute_tiering(space, lambda tiering: tiering.run(), data, url, json=json)


def _execute_tiering(
    space: str,
    work: Callable[[SpaceTiering], Awaitable[TieringView]],
    data: Path | None,
    url: str | None,
    *,
    json: bool,
    dry_run: bool = False,
) -> None:
    async def run(target: Target) -> None:
        async with opened(target) as store:
            _show_tiering(await work(store.space(space).tiering), json=json, counts=dry_run)

    execute(run(chosen(data, url, environment=os.environ)))


def _show_tiering(view: TieringView, *, json: bool, counts: bool = False) -> None:
    if json:
        emit(document(view))
        return
    if counts:
        line(
            f"{view.idle_threads:,} threads of space {view.space} would move from this node now, {shown_bytes(view.idle_bytes)}"
        )
        line("nothing was recorded, and nothing moved")
        return
    if view.url and view.files:
        line(f"files of space {view.space} go to {view.url} as soon as they are put, and stay there")
    if view.url and view.idle_ms:
        line(f"threads of space {view.space} go to {view.url} once nothing was written to them for {span(view.idle_ms)}")
    if not view.url:
        line(f"threads of space {view.space} go nowhere" + ("; what is away comes back" if view.away_bytes else ""))
    if view.last_ms:
        line(f"this node has {shown_bytes(view.away_bytes)} of it there, in {view.packs:,} objects")
    else:
        line(f"this node has not looked yet at what it has there: `shoal tiering run {view.space}` does")
    if view.moved_bytes or view.fetched or view.failed:
        line(
            f"since it started, for all spaces: {shown_bytes(view.moved_bytes)} moved, {view.fetched:,} objects fetched "
            f"({shown_bytes(view.fetched_bytes)}), {view.failed:,} fetches failed"
        )
    if view.trouble:
        line(view.trouble)
