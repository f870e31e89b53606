"""`shoal worklist`: the worklists of a thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal import values
from shoal.cli.absence import check_thread
from shoal.cli.arguments import age_of, json_of
from shoal.cli.command import Run, Work, in_store
from shoal.cli.options import PANEL, By, Reason, Result, ThreadName, Wait
from shoal.cli.output import to_text
from shoal.cli.terminal import Listing, ago
from shoal.errors import InvalidInput
from shoal.kinds.worklist.flows import item_id
from shoal.kinds.worklist.handle.worklist import WorklistItem
from shoal.protocol.requests import CompleteItem, FailItem

if TYPE_CHECKING:
    from shoal.client.store import Store

worklist = typer.Typer(no_args_is_help=True, help="A thread's worklists: list items, add some, claim and complete them.")

Name = Annotated[str, typer.Argument(metavar="WORKLIST", help="The worklist's name.", show_default=False)]
ItemKey = Annotated[str, typer.Argument(metavar="KEY", help="The item's key.", show_default=False)]
Ticket = Annotated[str, typer.Option("--ticket", metavar="TICKET", help="The claim's ticket, as claim printed it.")]


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
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="0 to 9; the greatest is claimed first.")] = 0,
    attempts: Annotated[
        int, typer.Option("--attempts", metavar="N", help="After so many claims they are dead letters. \\[default: the node's]")
    ] = 0,
) -> Work:
    """Add keys to a worklist. A key that was added before is not added again.

    Example: shoal worklist add researcher-1 files a.txt b.txt --data ./state --space crew
    """

    async def work(store: Store) -> None:
        worklist = store.space(run.space).thread(thread).worklist(name)
        added = await worklist.add(keys, by=by, priority=priority, attempts_max=attempts)
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


@worklist.command(name="claim")
@in_store
def claim(
    run: Run,
    thread: ThreadName,
    name: Name,
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


@worklist.command(name="complete")
@in_store
def complete(
    run: Run, thread: ThreadName, name: Name, key: ItemKey, ticket: Ticket, result: Result = "null", by: By = ""
) -> Work:
    """Complete an item that you have claimed. If the claim has ended, nothing is written.

    Example: shoal worklist complete researcher-1 files a.txt --ticket 3.0123456789abcdef0123456789abcdef --space crew
    """
    value = json_of(result, "--result")
    fence, token = _ticket(ticket)

    async def work(store: Store) -> None:
        packed = values.encode(value, where="--result")
        request = CompleteItem(run.space, thread, name, item_id(key), fence, token, packed, by)
        await store.connection.write(request, key=None, durability=None)
        run.show({"key": key}, "completed")

    return work


@worklist.command(name="fail")
@in_store
def fail(
    run: Run,
    thread: ThreadName,
    name: Name,
    key: ItemKey,
    ticket: Ticket,
    reason: Reason = "",
    retry_in: Annotated[float, typer.Option("--retry-in", metavar="SECONDS", help="How long nobody gets it.")] = 0.0,
    by: By = "",
) -> Work:
    """Give back an item that you have claimed. After its last attempt it is a dead letter.

    Example: shoal worklist fail researcher-1 files a.txt --ticket 3.0123456789abcdef0123456789abcdef --reason "no answer"
    """
    fence, token = _ticket(ticket)

    async def work(store: Store) -> None:
        request = FailItem(run.space, thread, name, item_id(key), fence, token, reason, round(retry_in * 1000), by)
        reply = await store.connection.write(request, key=None, durability=None)
        run.show(
            {"key": key, "dead": reply.dead, "attempt": reply.attempt}, "a dead letter now" if reply.dead else "given back"
        )

    return work


@worklist.command(name="dead")
@in_store
def dead(
    run: Run,
    thread: ThreadName,
    name: Name,
    revive: Annotated[str, typer.Option("--revive", metavar="KEY", help="Put this dead letter back.")] = "",
    by: By = "",
) -> Work:
    """List the dead letters: items that were claimed too often and not completed. --revive puts one back.

    Example: shoal worklist dead researcher-1 files --data ./state --space crew
    """

    async def work(store: Store) -> None:
        items = store.space(run.space).thread(thread).worklist(name)
        if revive:
            await items.revive(revive, by=by)
            run.show({"key": revive}, "put back")
            return
        await check_thread(store, run.space, thread)
        none = f"there are no dead letters in worklist {name!r} of thread {thread!r}."
        with Listing("age", "key", "attempts", "by", "reason", json=run.json, none=none) as rows:
            async for item in items.dead():
                tried = item.tried
                assert tried is not None  # Dead letters were tried.
                rows.add(
                    {"key": item.key, "value": item.value, "attempts": tried.attempt, "by": tried.by, "reason": tried.reason},
                    f"[{to_text(item.key)[1:-1]}]  {tried.attempt} attempts  by {to_text(tried.by)}: {to_text(tried.reason)}",
                    *(ago(item.time), item.key, str(tried.attempt), tried.by, tried.reason),
                )

    return work


def _ticket(text: str) -> tuple[int, str]:
    fence, _, token = text.partition(".")
    if not (fence.isdecimal() and len(fence) < 19 and token):
        raise InvalidInput(f"a ticket is what claim printed, such as 3.0123…; got {text[:80]!r}. Nothing was written.")
    return int(fence), token
