"""`shoal space` and `shoal subject`: deletions in several steps, which cannot be undone, and what they find.

Quotas are here as well, because all commands of a space are one group.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from shoal.cli.arguments import PANEL, DryRun, Run, Work, Yes, bytes_of, in_store
from shoal.cli.execution import FAILED, Data, Json, Target, Url, agreed, chosen, execute, opened
from shoal.cli.output import emit, line, note_empty, shown_bytes
from shoal.config import Config
from shoal.errors import Unsupported
from shoal.workflows.spaces import DeleteSpace

if TYPE_CHECKING:
    from shoal.client.store import Store
    from shoal.workflows.subjects import SubjectErased, SubjectKind, SubjectTag

_ALONE_S = 60.0
_POLL_S = 0.1


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    group = typer.Typer(
        no_args_is_help=True, help="The quota of a space; its deletion with everything in it, and of its keys as well."
    )
    group.command("delete")(delete_space)
    group.command("erase")(erase_space)
    group.command("quota")(quota_of_space)
    app.add_typer(group, name="space", rich_help_panel=PANEL)
    subjects = typer.Typer(no_args_is_help=True, help="Find and erase all data of one person: docs/SUBJECTS.md.")
    for command in (tag, untag):
        subjects.command()(command)
    subjects.command("find")(find_subject)
    subjects.command("erase")(erase_subject)
    app.add_typer(subjects, name="subject", rich_help_panel=PANEL)


def delete_space(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="The space.", show_default=False)],
    yes: Yes = False,
    dry_run: DryRun = False,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Delete everything in a space on every node: threads, documents, items and all other objects. This cannot be undone.

    Example: shoal space delete crew --yes --data ./state
    """
    if not dry_run:
        agreed(f"Delete everything in space {space} on every node, for good?", yes=yes)
    execute(_delete_space(chosen(data, url, environment=os.environ), space, json=json, dry_run=dry_run))


async def _delete_space(target: Target, space: str, *, json: bool, dry_run: bool) -> None:
    async with opened(target) as store:
        if dry_run:
            found = await DeleteSpace(space, dry_run=True).run(store.connection, key=None, durability="local")
        else:
            found = await store.space(space).delete()
    if json:
        emit({"space": space, "deleted": found.deleted, "left": found.left})
        return
    counts = ", ".join(f"{kind} {count:,}" for kind, count in found.deleted.items())
    done = "would be deleted" if dry_run else "deleted"
    line(f"{done} from space {space}: {counts}" if counts else f"there was nothing in space {space}")
    if found.left and not dry_run:
        line(f"{found.left:,} objects were written meanwhile and are there now")


def erase_space(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="The space.", show_default=False)],
    yes: Yes = False,
    dry_run: DryRun = False,
    within: Annotated[
        float | None,
        typer.Option("--within", metavar="SECONDS", min=0.0, help="Wait so long for the keys. \\[default: 0; with --data 60]"),
    ] = None,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Delete everything in a space, and have each node destroy the space's keys. This cannot be undone: docs/ENCRYPTION.md.

    A node destroys them once all nodes hold the deletions, and nothing that they seal is left. The exit code is 1 while the
    asked node still has them.

    Example: shoal space erase crew --yes --url http://127.0.0.1:7400
    """
    if dry_run:
        execute(_delete_space(chosen(data, url, environment=os.environ), space, json=json, dry_run=True))
        return
    agreed(f"Erase everything in space {space} on every node, for good?", yes=yes)
    execute(_erase_space(chosen(data, url, environment=os.environ), space, within_s=within, json=json))


async def _erase_space(target: Target, space: str, *, within_s: float | None, json: bool) -> None:
    # Nobody else uses the directory meanwhile, so nobody waits for an answer that goes early.
    alone = None if target.data is None else Config(encryption_erase_s=1.0)
    async with opened(target, config=alone) as store:
        if not (await store.status()).master_key:
            raise Unsupported(
                "the directory of this node is not encrypted, so there is no key. Nothing was deleted. "
                f"Delete the space instead: shoal space delete {space}"
            )
        found = await store.space(space).delete()
        left_s = within_s if within_s is not None else 0.0 if alone is None else _ALONE_S
        while (is_left := space in (status := await store.status()).keys_wait_for) and left_s > 0:
            await asyncio.sleep(_POLL_S)
            left_s -= _POLL_S
    if json:
        emit({"space": space, "deleted": found.deleted, "left": found.left, "destroyed": not is_left and not found.left})
    elif is_left:
        owners = f" It waits for {', '.join(status.garbage_waits_for)}." if status.garbage_waits_for else ""
        line(f"deleted everything in space {space}. Its keys are not destroyed yet.{owners} `shoal status` says when they are.")
    elif found.left:
        line(f"{found.left:,} objects were written in space {space} meanwhile and are there now: its keys stay")
    else:
        line(f"erased space {space}: this node has no keys of it any more")
    if is_left or found.left:
        raise typer.Exit(FAILED)


def quota_of_space(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="The space.", show_default=False)],
    bytes: Annotated[str | None, typer.Option("--bytes", metavar="SIZE", help="The bytes of its rows, such as 10GiB.")] = None,
    objects: Annotated[int | None, typer.Option("--objects", metavar="N", min=0, help="Its objects.")] = None,
    writes_per_s: Annotated[
        float | None, typer.Option("--writes-per-s", metavar="N", min=0, help="Its writes a second, at each node.")
    ] = None,
    watchers: Annotated[int | None, typer.Option("--watchers", metavar="N", min=0, help="Its watches, at each node.")] = None,
    documents: Annotated[
        int | None, typer.Option("--documents", metavar="N", min=0, help="Its open documents, at each node.")
    ] = None,
    leases: Annotated[
        int | None, typer.Option("--leases", metavar="N", min=0, help="Its leases and claims of work, held or waited for.")
    ] = None,
    presences: Annotated[
        int | None, typer.Option("--presences", metavar="N", min=0, help="The clients that are present in it.")
    ] = None,
    default: Annotated[
        bool,
        typer.Option("--default", help="Forget what was set before: the nodes' configuration holds, but for what is named."),
    ] = False,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show what a space may use and what it uses at the serving node; with limits, set these. 0 is no limit.

    Example: shoal space quota crew --bytes 10GiB --writes-per-s 200 --url http://127.0.0.1:7400
    """
    named = {"objects": objects, "writes_per_s": writes_per_s, "watchers": watchers, "documents": documents}
    named |= {"leases": leases, "presences": presences}
    limits = {name: limit for name, limit in named.items() if limit is not None}
    if bytes is not None:
        limits["bytes"] = bytes_of(bytes)
    execute(_quota_of_space(chosen(data, url, environment=os.environ), space, limits, default=default, json=json))


async def _quota_of_space(target: Target, space: str, limits: dict[str, float], *, default: bool, json: bool) -> None:
    async with opened(target) as store:
        handle = store.space(space)
        found = await handle.quota()
        if limits or default:
            wanted: dict[str, Any] = limits if default else found.recorded | limits
            found = await handle.set_quota(**wanted)
        while not found.is_counted and target.data is not None:  # Nobody else writes there: it is soon done.
            await asyncio.sleep(_POLL_S)
            found = await handle.quota()
    if json:
        emit(msgspec.to_builtins(msgspec.structs.asdict(found)))
        return
    if found.is_empty:
        note_empty(space)
    for name in msgspec.structs.asdict(found.limits):
        limit, used = getattr(found.limits, name), getattr(found.used, name)
        shown = shown_bytes if name == "bytes" else lambda number: f"{number:,g}"
        source = "" if name in found.recorded or not limit else " (the node's configuration)"
        line(f"{name:<13}{shown(used):>12} of {shown(limit) if limit else 'any'}{source}")
    if not found.is_counted:
        line("bytes and objects are being counted: these are those counted so far")
    if found.trouble:
        line(f"{found.trouble}: the node's configuration holds instead")


Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="The data subject's id.", show_default=False)]
Kind = Annotated[str, typer.Argument(metavar="KIND", help="thread, document, items, map, set, …", show_default=False)]
Named = Annotated[str, typer.Argument(metavar="NAME", help="The object; of items their namespace.", show_default=False)]
Part = Annotated[str, typer.Argument(metavar="PART", help="A key, a member or an event's id. \\[default: the whole object]")]
Spaces = Annotated[list[str] | None, typer.Option("--in", metavar="SPACE", help="Only in this space; may be repeated.")]


@in_store
def tag(run: Run, subject: Subject, kind: Kind, name: Named, part: Part = "") -> Work:
    """Tag an object that carries data about a person, so that `find` and `erase` find it. It need not exist yet.

    Example: shoal subject tag ana thread intake-7 --data ./state --space clinic
    """

    async def work(store: Store) -> None:
        changed = await store.space(run.space).subjects.tag(subject, cast("SubjectKind", kind), name, part)
        run.show({"tagged": changed}, "tagged" if changed else "it was tagged already")

    return work


@in_store
def untag(
    run: Run, subject: Subject, kind: Kind, name: Named, part: Part = "", yes: Yes = False, dry_run: DryRun = False
) -> Work:
    """Remove a tag, so that `find` and `erase` pass the object over. The object stays.

    Example: shoal subject untag ana thread intake-7 --yes --data ./state --space clinic
    """
    if not dry_run:
        agreed(f"Remove the tag of {kind} {name} with {subject}, so that its data is not erased with that person's?", yes=yes)

    async def work(store: Store) -> None:
        if dry_run:
            tags = await store.space(run.space).subjects.find(subject)
            is_there = any((each.kind, each.name, each.part) == (kind, name, part) for each in tags)
            run.show({"removed": is_there}, "would be removed" if is_there else "there is no such tag")
            return
        changed = await store.space(run.space).subjects.untag(subject, cast("SubjectKind", kind), name, part)
        run.show({"removed": changed}, "removed" if changed else "there was no such tag")

    return work


def find_subject(subject: Subject, within: Spaces = None, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Show all that is tagged with a person, in all spaces.

    Example: shoal subject find ana --data ./state
    """
    execute(_find_subject(chosen(data, url, environment=os.environ), subject, within, json=json))


async def _find_subject(target: Target, subject: str, spaces: list[str] | None, *, json: bool) -> None:
    async with opened(target) as store:
        for space in spaces or [name async for name in store.spaces()]:
            for found in await store.space(space).subjects.find(subject):
                if json:
                    emit({"space": space, **msgspec.structs.asdict(found)})
                else:
                    line(f"{space}  {_shown(found)}")


def erase_subject(
    subject: Subject,
    yes: Yes = False,
    dry_run: DryRun = False,
    within: Spaces = None,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Delete all that is tagged with a person, in all spaces, on every node. This cannot be undone: docs/SUBJECTS.md.

    The exit code is 1 if something could not be erased, or was tagged meanwhile: run it again.

    Example: shoal subject erase ana --yes --data ./state
    """
    if dry_run:
        execute(_find_subject(chosen(data, url, environment=os.environ), subject, within, json=json))
        return
    agreed(f"Delete all that is tagged with {subject} on every node, for good?", yes=yes)
    execute(_erase_subject(chosen(data, url, environment=os.environ), subject, within, json=json))


async def _erase_subject(target: Target, subject: str, spaces: list[str] | None, *, json: bool) -> None:
    is_complete = True
    async with opened(target) as store:
        for space in spaces or [name async for name in store.spaces()]:
            report = await store.space(space).subjects.erase(subject)
            is_complete &= report.is_complete
            if not report.objects and not report.left:
                continue
            if json:
                emit(msgspec.structs.asdict(report) | {"objects": [msgspec.structs.asdict(each) for each in report.objects]})
                continue
            for each in report.objects:
                line(f"{space}  {_shown(each)}  {each.outcome}" + f": {each.reason}" * bool(each.reason))
            if report.waits_for:
                line(f"{space}  the bytes stay until these nodes hold the deletions: {', '.join(report.waits_for)}")
    if not is_complete:
        raise typer.Exit(FAILED)


def _shown(found: SubjectTag | SubjectErased) -> str:
    return f"{found.kind} {found.name}" + f" {found.part}" * bool(found.part)
