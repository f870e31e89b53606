"""`shoal audit`: who did what in a thread, and proof that nothing was altered since a signed statement."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from shoal.cli.arguments import PANEL, Run, ThreadName, Work, in_store
from shoal.cli.derived import group_of
from shoal.cli.execution import FAILED, Data, Json, Target, Url, chosen, execute, opened
from shoal.cli.finding import SHORT, check_thread
from shoal.cli.output import Listing, ago, emit, line, note, plain, to_text
from shoal.errors import InvalidInput
from shoal.names import RESERVED

if TYPE_CHECKING:
    from shoal.audit.verification import Archive, Report
    from shoal.client.store import Store
    from shoal.protocol.requests import Statement


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    group = group_of("audit")
    group.command(name="thread")(timeline)
    for command in (sign, export, verify):
        group.command()(command)
    app.add_typer(group, name="audit", rich_help_panel=PANEL)


@in_store
def timeline(run: Run, thread: ThreadName) -> Work:
    """Show checkpoints, steps, events and moves in one time line, with the newest checkpoint at each.

    Example: shoal audit thread support-1 --url http://n1:7400
    """

    async def work(store: Store) -> None:
        await check_thread(store, run.space, thread)
        headings = ("age", "what", "by", "knowing", "data")
        with Listing(*headings, json=run.json, none=f"nothing happened to thread {thread!r}.") as rows:
            for entry in await store.space(run.space).thread(thread).audit():
                by = f"  by {entry.by}" if entry.by else ""
                known = f"  knowing {entry.known[:SHORT]}" if entry.known else ""
                shown = entry.id if entry.kind == "checkpoint" else f"[{entry.id}]" if entry.kind == "step" else ""
                data = f"{to_text(entry.data)}" if entry.data or entry.kind != "checkpoint" else ""
                told = f"{entry.text} {shown}{by}{known}{f'  {data}' if data else ''}"
                what = f"{entry.text} {shown[:SHORT] if entry.kind == 'checkpoint' else shown}"
                rows.add(
                    {**structs.asdict(entry), "time": entry.time.isoformat()},
                    f"{entry.time:%Y-%m-%d %H:%M:%S}Z  {told}".rstrip(),
                    *(ago(entry.time), what, entry.by, entry.known[:SHORT] if entry.known else "", data),
                )

    return work


_TOLD_MAX = 20  # Lines on what was not compared.

Since = Annotated[
    Path | None, typer.Option("--since", metavar="FILE", help="Only what came after this statement, from `shoal audit sign`.")
]
Statements = Annotated[
    list[Path] | None, typer.Argument(metavar="[STATEMENT]...", help="Files from `shoal audit sign`.", show_default=False)
]
Archives = Annotated[
    list[Path] | None, typer.Option("--archive", metavar="FILE", help="An archive from `shoal audit export`; repeatable.")
]
Signers = Annotated[
    list[str] | None,
    typer.Option(
        "--signer", metavar="FINGERPRINT", help="Believe only statements that this key signed; repeatable.", show_default=False
    ),
]


def sign(data: Data = None, url: Url = None) -> None:
    """Print a signed statement of all that the node holds. Keep it elsewhere: nobody can alter what it covers unseen.

    Example: shoal audit sign --url http://n1:7400 > 2026-11.statement
    """

    async def work(store: Store) -> None:
        from shoal.audit import statements

        statement = await store.sign_heads()
        line(statements.to_text(statement))
        roots, partitions = len(statement.roots or ()), len({head.partition for head in statement.heads})
        note(
            f"node {statement.node.hex()}, {len(statement.heads)} logs, the rows of {roots} of {partitions} partitions, "
            f"key {statements.fingerprint(statement.key)}"
        )
        if roots < partitions:
            note("The node goes on with the rows of the others: sign again for a statement on them.")

    _run(chosen(data, url, environment=os.environ), work)


def export(data: Data = None, url: Url = None, since: Since = None) -> None:
    """Print the operations of a node as JSON Lines, with their  What has left the log is only in older archives.

    Example: shoal audit export --url http://n1:7400 --since 2026-11.statement > 2026-12.jsonl
    """
    from shoal.audit import statements, verification

    begun = None if since is None else statements.read(since)

    async def work(store: Store) -> None:
        async for each in verification.lines(store.connection.session.call, since=begun):
            line(each)

    _run(chosen(data, url, environment=os.environ), work)


def verify(
    files: Statements = None,
    data: Data = None,
    url: Url = None,
    archive: Archives = None,
    signer: Signers = None,
    json: Json = False,
) -> None:
    """Prove that nothing before these statements was altered, removed or back-dated; and what the nodes keep of each other.

    Without a store, archives alone are checked. The exit code is 1 if anything is wrong.

    Example: shoal audit verify 2026-10.statement --url http://n1:7400 --archive 2026-11.jsonl
    """
    from shoal.audit import statements
    from shoal.audit.verification import Archive

    given = [statements.read(file) for file in files or ()]
    archives = [Archive(file) for file in archive or ()]
    is_alone = bool(archives) and data is None and url is None and not {"SHOAL_DATA", "SHOAL_URL"} & os.environ.keys()
    target = None if is_alone else chosen(data, url, environment=os.environ)
    report = execute(_verified(target, given, archives, set(signer or ())))
    if json:
        emit(
            {**report._asdict(), "findings": [[each.kind.value, each.text] for each in report.findings], "sound": report.sound}
        )
    else:
        _print(report)
    if not report.sound:
        raise typer.Exit(FAILED)


def _run(target: Target, work: Work) -> None:
    async def run() -> None:
        async with opened(target) as store:
            await work(store)

    execute(run())


async def _verified(target: Target | None, given: list[Statement], archives: list[Archive], keys: set[str]) -> Report:
    from shoal.audit import statements
    from shoal.audit.verification import verify

    def trusted(found: list[Statement]) -> list[Statement]:
        strange = {statements.fingerprint(each.key) for each in found} - keys if keys else set()
        if strange:
            raise InvalidInput(
                f"a statement is signed with the key {min(strange)}, which is not one of --signer. Nothing else was checked."
            )
        return found

    trusted([*given, *(archive.statement for archive in archives)])
    if target is None:
        return await verify(given, None, archives=archives)
    async with opened(target) as store:
        kept = [each async for each in _kept(store)]
        return await verify([*given, *trusted(kept)], store.connection.session.call, archives=archives)


async def _kept(store: Store) -> AsyncIterator[Statement]:
    """The statements that the nodes keep (`audit_interval_s`)."""
    from shoal.audit import statements

    space = store.space(RESERVED)
    async for thread in space.threads(statements.THREADS):
        async for event in space.thread(thread).journal.read(skip_trimmed=True):
            if not event.erased:  # The chain of statements shows that one is missing.
                yield statements.from_text(event.event)


def _print(report: Report) -> None:
    for finding in report.findings:
        line(f"{finding.kind.value}: {plain(finding.text)}")
    counted = f"{report.statements} statement{'' if report.statements == 1 else 's'} on {report.logs} logs"
    line(
        f"{counted}: {report.proved} claims proved by {report.operations} operations, {report.gone} on what has left the log "
        "and is in no archive."
    )
    if report.statements:
        line(f"{report.rows} times a partition's rows, as the node says that they are now, are those that a statement covers.")
    for told in report.uncompared[:_TOLD_MAX]:
        line(f"not compared: {told}")
    if len(report.uncompared) > _TOLD_MAX:
        line(f"not compared: … and {len(report.uncompared) - _TOLD_MAX} more")
    if not report.sound:
        line("NOT SOUND: what is listed above contradicts a signed statement.")
    elif not report.statements:
        line("There is no statement, so nothing was proved: `shoal audit sign` makes one.")
    elif report.gone:
        line("No contradiction was found. What has left the log and is in no archive was not proved.")
    elif report.uncompared:
        line(
            "No contradiction was found. All operations that a statement covers are proved; rows named above were not compared."
        )
    else:
        line("sound: nothing that a statement covers was altered, removed or back-dated.")
