"""Commands that follow changes, or last as long as a program: `shoal watch`, `events`, `presence`, `lease`, `worklist`.

The commands of leases and worklists that are one request are derived. `presence` is not present itself: presence belongs to
connections, so a store's directory has none.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated, Any, cast

import typer

from shoal.api.http.headers import opaque, shown_opaque
from shoal.cli.arguments import PANEL, Follow, LimitOrAll, Prefix, Run, ThreadName, Wait, Work, age_of, in_store
from shoal.cli.commands.threads import event_cells, event_line
from shoal.cli.derived import group_of
from shoal.cli.finding import check_thread
from shoal.cli.output import Listing, emit, line, moment, note, to_text
from shoal.client.store import Store
from shoal.client.watching import Change, Reset
from shoal.errors import InvalidInput
from shoal.kinds.lease.handle.leases import Leasing
from shoal.kinds.presence.handle import Presence, PresenceChange, PresentMember
from shoal.kinds.thread.flows.audit import event_record
from shoal.names import check_name
from shoal.protocol.requests import LeaseState

Lease = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lease, or of the thread.", show_default=False)]
OfThread = Annotated[bool, typer.Option("--thread", help="The lease of the thread of this name.")]
Worklist = Annotated[str, typer.Argument(metavar="WORKLIST", help="The worklist's name.", show_default=False)]

_KILL_S = 5.0  # After which a program that does not end is killed.
_NOBODY = 0  # `presence` has no Yjs client id of its own.


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    for command in (watch, presence, events):
        app.command(rich_help_panel=PANEL)(command)
    worklists = group_of("worklist")
    worklists.command()(claim)
    app.add_typer(worklists, name="worklist", rich_help_panel=PANEL)
    leases = group_of("lease")
    leases.command()(show)
    leases.command(name="run", context_settings={"ignore_unknown_options": True})(run_under)
    app.add_typer(leases, name="lease", rich_help_panel=PANEL)


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


@in_store
def presence(
    run: Run,
    document: Annotated[
        str | None, typer.Option("--document", metavar="NAME", help="In this document, instead of the space itself.")
    ] = None,
    follow: Follow = False,
    limit: LimitOrAll = None,
) -> Work:
    """List the clients that are present in a space or a document, editors included; --follow prints who joins and leaves.

    Example: shoal presence --url http://127.0.0.1:7400 --space crew --document plan
    """
    if run.target.url is None:
        raise InvalidInput("presence is known only to a running node, not to a directory. Nothing was read. Give --url URL.")

    async def work(store: Store) -> None:
        looking = _looking(store, run.space, document)
        if follow:
            await _follow(looking, limit, json=run.json)
            return
        members = (await looking.members())[:limit]
        for member in members:
            run.show(_member_fields(member), _told(member))
        if not members and not run.json:
            note(f"nobody is here: {_place(run.space, document)}.")

    return work


def _looking(store: Store, space: str, document: str | None) -> Presence:
    check_name("space", space)
    name = "" if document is None else check_name("document", document)
    return Presence(store.connection.session, space, name, client_id=_NOBODY, config=store.connection.config)


async def _follow(looking: Presence, limit: int | None, *, json: bool) -> None:
    shown = 0
    async with aclosing(looking.changes()) as changes:
        async for change in changes:
            emit({"change": change.kind, **_member_fields(change.member)}) if json else line(_changed(change))
            shown += 1
            if shown == limit:
                return


def _member_fields(member: PresentMember) -> dict[str, Any]:
    return {"id": member.id, "state": member.state}


def _told(member: PresentMember) -> str:
    return f"{member.id}  {to_text(member.state)}"


def _changed(change: PresenceChange) -> str:
    return f"{change.kind:<7}  {_told(change.member)}"


def _place(space: str, document: str | None) -> str:
    return f"space {space!r}" if document is None else f"document {document!r} of space {space!r}"


@in_store
def events(
    run: Run,
    thread: ThreadName,
    after: Annotated[
        str, typer.Option("--after", metavar="CURSOR", help="Only events after this one; --json shows cursors.")
    ] = "",
    follow: Follow = False,
    limit: LimitOrAll = None,
) -> Work:
    """Print a thread's journal, oldest first.

    Example: shoal events researcher-1 --follow --url http://127.0.0.1:7400 --space crew
    """
    cursor = opaque(after, "--after")

    async def work(store: Store) -> None:
        if not follow:  # With --follow, waiting for the first event is normal.
            await check_thread(store, run.space, thread)
        journal = store.space(run.space).thread(thread).journal
        none = (
            ""
            if follow
            else f"the journal of {thread!r} has no such events."
            if after
            else f"the journal of {thread!r} is empty."
        )
        async with aclosing(journal.read(after=cursor, limit=limit, follow=follow)) as found:
            # With --follow events are shown line by line, because a table would wait for its end.
            with Listing("age", "key", "event", json=run.json, none=none, streams=follow) as rows:
                async for event in found:
                    fields = event_record(event) | {"cursor": shown_opaque(event.cursor)}
                    rows.add(fields, event_line(event), *event_cells(event))

    return work


@in_store
def claim(
    run: Run,
    thread: ThreadName,
    name: Worklist,
    ttl: Annotated[str, typer.Option("--ttl", metavar="AGE", help="Expire after this time: 30d, 12h, 90m or 45s.")] = "10m",
    wait: Wait = 0.0,
    holder: Annotated[str | None, typer.Option("--holder", metavar="NAME", help="The worker's name, for people.")] = None,
) -> Work:
    """Claim the next item: nobody else gets it for --ttl. The ticket is for complete and fail.

    It exits with status 1 if there is none. It needs a running node: a claim of a store on this machine would end with
    this command.

    Example: shoal worklist claim researcher-1 files --url http://127.0.0.1:7400 --space crew
    """
    if run.target.url is None:
        raise InvalidInput(
            "a claim of a store on this machine would end with this command. Nothing was claimed. Run `shoal serve`, and use "
            "--url; or claim in Python, in the process that does the work."
        )

    async def work(store: Store) -> None:
        items = store.space(run.space).thread(thread).worklist(name)
        job = await items.claim(ttl=age_of(ttl).total_seconds(), wait=wait, holder=holder)
        if job is None:
            run.show(None, "there is nothing to claim.")
            raise typer.Exit(1)
        value = "" if job.value is None else f"  {to_text(job.value)}"
        run.show(
            {"key": job.item, "value": job.value, "attempt": job.attempt, "fence": job.fence, "ticket": job.ticket},
            f"[{to_text(job.item)[1:-1]}]{value}  attempt {job.attempt}  ticket {job.ticket}",
        )

    return work


@in_store
def show(run: Run, name: Lease, thread: OfThread = False, follow: Follow = False) -> Work:
    """Show who holds a lease, and who waits for it; --follow prints each change.

    Example: shoal lease show nightly --url http://127.0.0.1:7400 --space crew
    """

    async def work(store: Store) -> None:
        leasing = _leasing(store, run.space, name, is_thread=thread, ttl=30.0, wait=0.0)
        if not follow:
            state = await leasing.state()
            run.show(_described(state), _text(state))
            return
        async with aclosing(leasing.watch()) as states:
            async for state in states:
                run.show(_described(state), _text(state))

    return work


@in_store
def run_under(
    run: Run,
    name: Lease,
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM…", help="The program and its arguments.", show_default=False)
    ],
    thread: OfThread = False,
    ttl: Annotated[str, typer.Option("--ttl", metavar="AGE", help="Expire after this time: 30d, 12h, 90m or 45s.")] = "30s",
    wait: Wait = 0.0,
) -> Work:
    """Run a program while the lease is held, and exit as it does. If the lease is lost, the program is ended.

    The lease is renewed while the program runs. It expires after --ttl if this command dies, or reaches no node.

    Example: shoal lease run nightly --url http://127.0.0.1:7400 -- ./report.sh
    """

    async def work(store: Store) -> None:
        async with _leasing(store, run.space, name, is_thread=thread, ttl=age_of(ttl).total_seconds(), wait=wait):
            process = await asyncio.create_subprocess_exec(*program)
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                process.terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_KILL_S):
                        await process.wait()
                if process.returncode is None:
                    process.kill()
                raise
        if status:
            raise typer.Exit(status)

    return work


def _leasing(store: Store, space: str, name: str, *, is_thread: bool, ttl: float, wait: float) -> Leasing:
    found = store.space(check_name("space", space))
    return found.thread(name).lease(ttl=ttl, wait=wait) if is_thread else found.lease(name, ttl=ttl, wait=wait)


def _described(state: LeaseState) -> dict[str, Any]:
    return {
        "lease": state.lease,
        "thread": state.thread,
        "held": state.held,
        "holder": state.holder,
        "fence": state.fence,
        "ttl": state.ttl / 1000,
        "until": _until(state),
        "waiting": state.waiting,
    }


def _text(state: LeaseState) -> str:
    name = f"{'thread ' if state.thread else ''}{to_text(state.lease)}"
    if not state.held:
        return f"{name}  free"
    waiting = f"  waiting: {', '.join(map(to_text, state.waiting))}" if state.waiting else ""
    return f"{name}  held by {to_text(state.holder)}  fence {state.fence}  until {_until(state)} unless renewed{waiting}"


def _until(state: LeaseState) -> str:
    return datetime.fromtimestamp(state.until_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if state.held else ""
