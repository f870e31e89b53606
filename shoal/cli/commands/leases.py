"""`shoal lease`: who holds the leases of a space, and running a program under one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from shoal.cli.arguments import age_of
from shoal.cli.command import Run, Work, in_store
from shoal.cli.options import PANEL, Follow, Wait
from shoal.cli.output import to_text
from shoal.cli.terminal import Listing
from shoal.client.store import Store
from shoal.kinds.lease.handle.leases import Leasing
from shoal.names import check_name
from shoal.protocol.requests import LeaseState

lease = typer.Typer(no_args_is_help=True, help="Leases: who holds them, and running a program under one.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lease, or of the thread.", show_default=False)]
OfThread = Annotated[bool, typer.Option("--thread", help="The lease of the thread of this name.")]

_KILL_S = 5.0  # After which a program that does not end is killed.


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.add_typer(lease, name="lease", rich_help_panel=PANEL)


@lease.command(name="list")
@in_store
def list_leases(run: Run) -> Work:
    """List the leases of a space that are held.

    Example: shoal lease list --url http://127.0.0.1:7400 --space crew
    """

    async def work(store: Store) -> None:
        check_name("space", run.space)
        with Listing("lease", "of", "holder", "fence", "until", "waiting", json=run.json, none="no lease is held.") as rows:
            for state in await store.space(run.space).leases():
                rows.add(_described(state), _text(state), *_cells(state))

    return work


@lease.command()
@in_store
def show(run: Run, name: Name, thread: OfThread = False, follow: Follow = False) -> Work:
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


@lease.command(name="run", context_settings={"ignore_unknown_options": True})
@in_store
def run_under(
    run: Run,
    name: Name,
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


def _cells(state: LeaseState) -> tuple[str, ...]:
    of = "thread" if state.thread else "space"
    return state.lease, of, state.holder, str(state.fence), _until(state), ", ".join(state.waiting)


def _text(state: LeaseState) -> str:
    name = f"{'thread ' if state.thread else ''}{to_text(state.lease)}"
    if not state.held:
        return f"{name}  free"
    waiting = f"  waiting: {', '.join(map(to_text, state.waiting))}" if state.waiting else ""
    return f"{name}  held by {to_text(state.holder)}  fence {state.fence}  until {_until(state)} unless renewed{waiting}"


def _until(state: LeaseState) -> str:
    return datetime.fromtimestamp(state.until_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if state.held else ""
