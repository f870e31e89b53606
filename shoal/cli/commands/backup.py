"""`shoal backup` and `shoal restore`: a backup in a bucket or a directory, and stores, spaces and threads made of it.

A command that reads a bucket does so from this machine, with the credentials of its environment. The others ask a node.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from shoal.cli.arguments import age_of, moment_of
from shoal.cli.commands.transfer import As, Resume, show_report
from shoal.cli.execution import FAILED, Data, Json, Target, Url, chosen, encryption_key, ensured, execute, opened
from shoal.cli.output import Listing, ago, emit, line, moment, note, pairs, shown_bytes
from shoal.config import Config
from shoal.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from shoal.backup.bucket import Bucket
    from shoal.cli.bringing import Brought, Subject
    from shoal.node.backup.folding import Progress
    from shoal.protocol.requests import BackupView

PANEL = "Run"

At = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="Nothing later, such as '2026-11-27 18:00'. \\[default: all]")
]
Place = Annotated[
    str,
    typer.Argument(metavar="URL", help="file:///DIR, s3://BUCKET/PREFIX, gs://… or az://CONTAINER/PREFIX.", show_default=False),
]
Known = Annotated[
    str | None,
    typer.Argument(metavar="[URL]", help="The backup. \\[default: the one that the node of --url or --data ships to]"),
]

Scratch = Annotated[
    Path | None, typer.Option("--scratch", metavar="DIR", help="Where there is room for a whole store, for a while.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help="Back up a cluster to a bucket or a directory, and look at the backup.")
    for command in (init, off, status):
        group.command()(command)
    group.command("list")(list_moments)
    group.command("verify")(verify_backup)
    app.add_typer(group, name="backup", rich_help_panel=PANEL)
    app.command(rich_help_panel=PANEL)(restore)


def init(
    place: Place,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="AGE",
            help="How long each moment can be restored: 30d, 1d at least; 0: for ever. \\[default: as it is, else for ever]",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Have all nodes ship what they hold to a bucket, by turns and from now on. The place is empty, or this cluster's own.

    Each node needs the credentials in its environment, such as AWS_ACCESS_KEY_ID: docs/BACKUP.md. Give the same place again to
    change how long moments are kept.

    Example: shoal backup init file:///mnt/backup/prod --keep 30d --url http://127.0.0.1:7400
    """
    kept = None if keep is None else age_of(keep)
    execute(_declare(chosen(data, url, environment=os.environ), place, kept, json=json))


def off(data: Data = None, url: Url = None, json: Json = False) -> None:
    """Have no node ship any more. What is in the bucket stays there, and can be restored.

    Example: shoal backup off --url http://127.0.0.1:7400
    """
    execute(_declare(chosen(data, url, environment=os.environ), "", None, json=json))


async def _declare(target: Target, place: str, keep: timedelta | None, *, json: bool) -> None:
    async with opened(target) as store:
        view = await store.backup.init(place, keep=keep) if place else await store.backup.off()
    if json:
        emit(msgspec.structs.asdict(view))
    elif place:
        line(f"all nodes ship to {view.url} from now on; the backup's cluster is {view.cluster}")
        line(f"each moment is kept for {_age(view.keep_ms)}")
    else:
        line("no node ships any more; what is in the bucket stays there")


def status(data: Data = None, url: Url = None, json: Json = False) -> None:
    """Show where a cluster is backed up, and how far that is, as the asked node knows. The exit code is 1 if it fails.

    Example: shoal backup status --url http://127.0.0.1:7400
    """
    execute(_status(chosen(data, url, environment=os.environ), json=json))


async def _status(target: Target, *, json: bool) -> None:
    async with opened(target) as store:
        view = await store.backup.status()
    emit(msgspec.structs.asdict(view)) if json else _show(view)
    if view.state == "failing":
        raise typer.Exit(FAILED)


def _show(view: BackupView) -> None:
    if view.state == "none":
        line("there is no backup: declare one with `shoal backup init URL`")
        return
    is_known = view.covered_ms or view.manifest  # Otherwise the node has not read the bucket yet.
    held = "all that the node holds" if view.state == "current" else f"all that it held {view.lag_ms / 1000:.1f} s ago"
    shown: dict[str, Any] = {
        "backup": view.url,
        "cluster": view.cluster,
        "state": view.state,
        "trouble": view.trouble,
        "in the bucket": held if view.covered_ms else "not known yet",
        "can be restored since": moment(view.earliest_ms, later=True) if view.earliest_ms else "",
        "each moment is kept": f"for {_age(view.keep_ms)}",
        "last manifest": f"{view.manifest}, {moment(view.manifest_ms)}" if view.manifest else "none yet" if is_known else "",
        "objects": f"{view.objects:,}, {shown_bytes(view.bytes)}" if is_known else "",
        "shipped since the start": f"{view.shipped:,} operations, {shown_bytes(view.shipped_bytes)}",
        "verified": _since(view.verified_ms) if is_known else "not known yet",
    }
    pairs({name: value for name, value in shown.items() if value})
    for skipped in view.skipped:
        line(f"not shipped: {skipped}")


def _age(ms: int) -> str:
    return f"{ms / 86_400_000:g} days" if ms else "ever"


def _since(ms: int) -> str:
    return ago(datetime.fromtimestamp(ms / 1000, UTC)) if ms else "never: run `shoal backup verify`"


def list_moments(place: Known = None, data: Data = None, url: Url = None, json: Json = False) -> None:
    """List what a backup holds: the span of moments that can be restored, and its objects.

    Example: shoal backup list file:///mnt/backup/prod
    """
    execute(_list(place, data, url, json=json))


async def _list(place: str | None, data: Path | None, url: str | None, *, json: bool) -> None:
    from shoal.backup.bucket import read
    from shoal.node.backup.restoring import earliest

    bucket = await _bucket(place, data, url)
    catalogue = await read(bucket)
    assert catalogue.head is not None
    if not json:
        first, last = moment(earliest(catalogue), later=True), moment(catalogue.head.through_ms)
        line(f"{bucket.store.url}: every moment from {first} to {last}, {shown_bytes(catalogue.size)}")
    rows = [(pack, "operations") for pack in catalogue.segments.values()] + [(p, "rows") for p in catalogue.packs.values()]
    with Listing("made", "kind", "from", "to", "operations", "bytes", json=json) as listing:
        for pack, kind in sorted(rows, key=lambda row: row[0].made_ms):
            shown = {"name": pack.name, "kind": kind, "made_ms": pack.made_ms, "bytes": pack.size}
            shown |= {"operations": pack.operations, "first_ms": pack.first_ms, "last_ms": pack.last_ms}
            times = (moment(pack.first_ms), moment(pack.last_ms)) if pack.operations else ("", "")
            counted = f"{pack.operations:,}" if pack.operations else ""
            cells = (moment(pack.made_ms), kind, *times, counted, shown_bytes(pack.size))
            listing.add(shown, "  ".join(filter(None, (*cells, pack.name))), *cells)


def verify_backup(
    place: Known = None,
    at: At = None,
    scratch: Scratch = None,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Restore a backup into a scratch directory, and check all of it: hashes, chains, and that the log makes the rows.

    Every object is read, and the rows are compared with the signed statements that the nodes keep. A sound result is noted in
    the bucket, and shown in the status of the nodes. The exit code is 1 on any damage.

    Example: shoal backup verify file:///mnt/backup/prod
    """
    execute(_verify(place, None if at is None else _ms(at), scratch, data, url, json=json))


async def _verify(
    place: str | None, at_ms: int | None, scratch: Path | None, data: Path | None, url: str | None, *, json: bool
) -> None:
    from shoal.node.backup.restoring import verified

    bucket = await _bucket(place, data, url)
    try:
        directory = tempfile.TemporaryDirectory(dir=scratch, prefix="shoal-verify-")
    except OSError as error:
        where = scratch or tempfile.gettempdir()
        raise InvalidInput(
            f"a scratch directory cannot be made in {where}: {error.strerror}. Nothing was verified. Name another --scratch."
        ) from None
    with directory as made:
        outcome = await verified(bucket, Path(made) / "state", moment=at_ms, config=Config(encryption_key=encryption_key.get()))
    report = outcome.report
    if report is None or outcome.restored is None:
        if json:
            emit({"sound": False, "objects": outcome.objects, "sealed": outcome.sealed, "checked": "hashes of objects"})
        else:
            line(f"{outcome.objects:,} objects read, and none is altered or missing")
            line(
                f"NOT verified: {outcome.sealed:,} of them are sealed, and what they hold was not checked. Give the master key:"
            )
            line("shoal --encryption-key file:master.key backup verify …")
        raise typer.Exit(FAILED)
    if json:
        emit(
            {
                "sound": report.sound,
                "objects": outcome.objects,
                "operations": outcome.restored.operations,
                "through_ms": outcome.restored.through_ms,
                "moment_ms": outcome.restored.moment_ms,
                "problems": report.problems,
                "trusted": report.trusted,
            }
        )
    else:
        through = moment(outcome.restored.through_ms)
        line(f"{outcome.objects:,} objects read; restored {outcome.restored.partitions:,} partitions, whole through {through}")
        for trusted in report.trusted:
            line(trusted)
        for problem in report.problems:
            line(f"problem: {problem}")
        line("sound" if report.sound else "NOT sound")
    if not report.sound:
        raise typer.Exit(FAILED)


def restore(
    place: Place,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="The directory to make: missing or empty. Of a part: a store.", show_default=False
        ),
    ] = None,
    url: Url = None,
    at: At = None,
    space: Annotated[
        str | None, typer.Option("--space", metavar="NAME", help="This space alone, into a store.", show_default=False)
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="NAME", help="This thread of the space alone, into a store.", show_default=False),
    ] = None,
    name: As = None,
    resume: Resume = False,
    scratch: Scratch = None,
    json: Json = False,
) -> None:
    """Make a new store of a backup, as everything was at a moment; or bring one space or thread of it into a store that runs.

    Times without a zone are this machine's. A whole store goes into an empty directory. It has a new identity, and is a member
    of no cluster: start a node with it alone, or as the first of a new cluster. With shoal --encryption-key it is encrypted.
    With --space or --thread what is there stays as it is: a thread or space of that name must be missing, or gets another
    name with --as. What came is compared; if anything differs, the exit code is 1.

    Example: shoal restore file:///mnt/backup/prod --at '2026-11-27 18:00' --data ./state
    """
    at_ms = None if at is None else _ms(at)
    if space is None and thread is None:
        if url is not None or name is not None or resume or scratch is not None:
            raise typer.BadParameter("--url, --as, --resume and --scratch are for one --space or --thread.")
        if data is None:
            raise typer.BadParameter("name the directory to make with --data DIR.")
        execute(_restore(place, data, at_ms, json=json))
        return
    from shoal.cli.bringing import Subject

    subject = Subject(place, space or os.environ.get("SHOAL_SPACE") or "default", thread, name, at_ms)
    target = chosen(data, url, environment=os.environ)
    report = execute(_bring(subject, target, scratch, resume=resume, json=json)).report
    if not report.whole:
        raise typer.Exit(FAILED)


async def _bring(subject: Subject, target: Target, scratch: Path | None, *, resume: bool, json: bool) -> Brought:
    from shoal.cli.bringing import bring

    async with ensured(target) as store:
        brought = await bring(
            *(subject, store), scratch=scratch, resume=resume, encryption=encryption_key.get(), progress=_teller(json=json)
        )
    restored, report = brought
    if json:
        emit({**msgspec.structs.asdict(report), "whole": report.whole, "restored": restored and restored._asdict()})
        return brought
    if restored is None:
        line("went on with what an earlier attempt had read of the backup")
    else:
        line(f"of the backup {restored.partitions:,} partitions were read, {shown_bytes(restored.bytes)}")
    show_report(report)
    return brought


def _teller(*, json: bool) -> Callable[[Progress], None]:
    """Tells how far a restore is, once a second."""
    told = 0.0

    def progress(done: Progress) -> None:
        nonlocal told
        if (now := time.monotonic()) - told >= 1 and not json:
            told = now
            of = f" of {shown_bytes(done.total)}" if done.total else ""
            note(f"{shown_bytes(done.bytes)}{of} read")

    return progress


async def _restore(place: str, data: Path, at_ms: int | None, *, json: bool) -> None:
    from shoal.node.backup import restoring

    began = time.monotonic()
    config = Config(encryption_key=encryption_key.get())
    made = await restoring.restore(place, data, moment=at_ms, config=config, progress=_teller(json=json))
    if json:
        emit(made._asdict())
        return
    took_s = time.monotonic() - began
    line(f"restored {made.partitions:,} partitions to {data}: {shown_bytes(made.bytes)} in {took_s:.1f} s")
    last, through = moment(made.moment_ms, later=True), moment(made.through_ms)
    line(f"nothing in it is later than {last}; the backup has everything until {through}")
    if at_ms is not None and at_ms > made.through_ms:
        line("what was written after that, up to the moment of --at, is in it only as far as it was shipped")
    line(f"start it with: shoal serve --data {data}")


async def _bucket(place: str | None, data: Path | None, url: str | None) -> Bucket:
    """The bucket at an address, or the one that a node ships to.

    Raises:
        NotFound: the node has no backup.
    """
    from shoal.backup.bucket import Bucket
    from shoal.node.environment import opened as open_bucket

    if place is None:
        async with opened(chosen(data, url, environment=os.environ)) as store:
            place = (await store.backup.status()).url
        if not place:
            raise NotFound("this cluster has no backup. Nothing was read. Declare one: shoal backup init URL")
    elif data is not None or url is not None:
        raise InvalidInput("give the address of the backup, or the node that ships to it (--url or --data); not both.")
    return Bucket(open_bucket(place), now=time.monotonic)


def _ms(text: str) -> int:
    return round(moment_of(text, "--at").timestamp() * 1000)
