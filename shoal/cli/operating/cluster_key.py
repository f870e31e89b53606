"""`shoal cluster rotate-key` and `shoal cluster rebuild`: a cluster gets another key, or goes on after it lost its majority.

`shoal cluster rotate-key`: a cluster gets another key while it runs, in steps that its nodes take one after another.

Laws:
- The file goes one step further only if every member has what it says now, in its own words. A member that does not answer,
  is of an older version, or has its key from its settings does not have it.
- The file on the disk is the only state: a command that was interrupted, or is repeated, goes on from the file.
- A new change begins only if that is asked for, so that a repeated command begins none. No key is printed.

`shoal cluster rebuild`: what is left of a cluster that lost its majority is shown, and goes on once somebody agrees.

Law: what is done is what was shown. If it has changed in between, nothing is done, and it must be looked at again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from shoal.cli.arguments import DryRun, Yes
from shoal.cli.execution import Json, Target, Url, agreed, chosen, execute, failure, opened
from shoal.cli.output import emit, line, note, table
from shoal.errors import ShoalError
from shoal.protocol.requests import ClusterView, NodeStatus, RebuildView
from shoal.records import NamedTuple
from shoal.transport.keyring import Keyring, name_of, read, strangers

_LOOK_S = 0.5
_ANSWER_S = 10.0  # For one node.

_File = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="The file that nodes have as cluster_key_file, or that is copied to them."),
]
_New = Annotated[bool, typer.Option("--new", help="Draw a new key, and begin to change to it.")]
_Within = Annotated[
    float,
    typer.Option("--within", metavar="SECONDS", min=0, help="How long to wait for the nodes to load each step's file."),
]


class Seat(NamedTuple):
    """The state of one member, as far as it is known."""

    member: str
    names: list[str] | None  # As `Keyring.names`; None: it has not said.
    trouble: str  # Why it takes no part in a change; else empty.


def rotate_key(file: _File = None, url: Url = None, new: _New = False, within: _Within = 30.0, json: Json = False) -> None:
    """Change the cluster's key while the nodes run, or show which nodes have which key.

    Give the URLs of all members. FILE is what the nodes read as SHOAL_CLUSTER_KEY_FILE. The command writes each of three steps
    into it (both keys are accepted; the new one is proven; the old one is gone), each once all members have the one before.
    If they read copies of FILE, copy it to them after each step, and run the command again. It may be interrupted and repeated.

    Example: shoal cluster rotate-key ./cluster.key --new --url http://n1:7400,http://n2:7400,http://n3:7400
    """
    target = chosen(None, url, environment=os.environ)
    if target.url is None:
        raise typer.BadParameter("give the URLs of all members with --url.")
    if new and file is None:
        raise typer.BadParameter("name the file of the key before --new.")
    urls = [each.strip() for each in target.url.split(",") if each.strip()]
    execute(_rotate(file, urls, is_new=new, within_s=within, json=json))


async def _rotate(file: Path | None, urls: Sequence[str], *, is_new: bool, within_s: float, json: bool) -> None:
    seats = await _asked(urls)
    if file is None:
        _show(seats, json=json)
        return
    ring = read(file)
    _check(seats)
    if outside := strangers(ring, {seat.member: seat.names or [] for seat in seats}):
        raise failure(
            f"a node with {file} could not be linked to {', '.join(outside)}: they have other keys. Nothing was changed. "
            "Name the file that they have, or a copy of it."
        )
    is_begun = ring.next is not None
    while True:
        if lacking := await _awaited(ring, urls, within_s=within_s):
            raise failure(
                f"{', '.join(lacking)} have not loaded {file}, which has {_told(ring)}. The key was not changed any further. "
                "If they read copies, copy it to them (mode 0600). Then run this command again."
            )
        if ring.next is not None:
            ring, is_begun = ring.next, True
        elif is_new and not is_begun:
            ring, is_begun = ring.begun(secrets.token_hex(32)), True
        else:
            break
        _write(file, ring)
        if not json:
            line(f"{file} has {_told(ring)}; waiting until all members have loaded it")
    _show(await _asked(urls), json=json)
    if not is_begun:
        note(f"no change is under way: all members have {ring.names[0]} alone. Begin one with --new.")
    elif not json:
        line(f"done: all members have {ring.names[0]} alone.")


def _told(ring: Keyring) -> str:
    """The step, for people."""
    if ring.new:
        return f"{name_of(ring.key)}, and {name_of(ring.new)} accepted beside it"
    return f"{name_of(ring.key)}, and {name_of(ring.old)} accepted still" if ring.old else f"{name_of(ring.key)} alone"


async def _awaited(ring: Keyring, urls: Sequence[str], *, within_s: float) -> list[str]:
    """The members that do not have these keys in that time."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + within_s
    while True:
        seats = await _asked(urls)
        _check(seats)
        lacking = _lacking(ring, seats)
        if not lacking or loop.time() > ends_at:
            return lacking
        await asyncio.sleep(_LOOK_S)


def _lacking(ring: Keyring, seats: Sequence[Seat]) -> list[str]:
    return [seat.member for seat in seats if seat.names != ring.names]


def _check(seats: Sequence[Seat]) -> None:
    """Check that all members take part.

    Raises:
        Failed: one does not.
    """
    troubles = [f"{seat.member}: {seat.trouble}" for seat in seats if seat.trouble]
    if troubles:
        raise failure("the key was not changed any further, because not every member takes part.\n" + "\n".join(troubles))


async def _asked(urls: Sequence[str]) -> list[Seat]:
    """The answers of all members, in the order of their names."""
    answers = await asyncio.gather(*map(_ask, urls), return_exceptions=True)
    views, seats, why = [], {}, []
    for url, answer in zip(urls, answers, strict=True):
        if isinstance(answer, ShoalError | TimeoutError):
            why.append(f"{url}: {answer.message if isinstance(answer, ShoalError) else f'no answer within {_ANSWER_S:g} s'}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            status, view = answer
            views.append(view)
            seats[status.node] = Seat(view.members[0].name, status.cluster_keys, _trouble(status))
    if not views:
        raise failure("no node answered. Nothing was changed.\n" + "\n".join(why))
    reasons = f" ({'; '.join(why)})" if why else ""
    for view in views:
        for member in view.members:
            if member.part != "removed" and member.name not in {seat.member for seat in seats.values()}:
                missing = f"it gave no answer: name its URL, too, start it, or `shoal cluster forget` it{reasons}"
                seats[member.name] = Seat(member.name, None, missing)
    return sorted(seats.values())


async def _ask(url: str) -> tuple[NodeStatus, ClusterView]:
    async with asyncio.timeout(_ANSWER_S), opened(chosen(None, url, environment={})) as store:
        return await store.status(), await store.cluster()


def _trouble(status: NodeStatus) -> str:
    if status.cluster_keys is None:
        return f"it runs version {status.version}, which cannot change its key while it runs: upgrade it first"
    if not status.cluster_key_file:
        return (
            "its key is in its settings, or it has none: put the key into a file, and restart it with SHOAL_CLUSTER_KEY_FILE "
            "in the place of SHOAL_CLUSTER_KEY, one node after another"
        )
    return status.cluster_key_trouble


def _show(seats: Sequence[Seat], *, json: bool) -> None:
    if json:
        for seat in seats:
            emit(seat._asdict())
        return
    table([("member", "keys"), *((seat.member, _named(seat.names)) for seat in seats)])
    for seat in seats:
        if seat.trouble:
            line(f"{seat.member}: {seat.trouble}")


def _named(names: list[str] | None) -> str:
    return "unknown" if names is None else ", ".join(names) or "none"


def _write(file: Path, ring: Keyring) -> None:
    """Replace the file at once; it keeps its owner and group, and who of the group may read it. A link still leads to it."""
    from shoal.storage.layout import replace_file  # Most commands of this group need no storage.

    try:
        before, linked = file.stat(), file.resolve()
        replace_file(linked, ring.text.encode())
        if os.geteuid() == 0:
            os.chown(file, before.st_uid, before.st_gid)
        file.chmod(before.st_mode & 0o770)
    except OSError as error:
        raise failure(f"{file} cannot be replaced: {error.strerror}. The key was not changed any further.") from None


_LeasesAfter = Annotated[
    float | None,
    typer.Option(
        "--leases-after",
        metavar="SECONDS",
        min=0,
        help="How long clients of lost members may still hold leases; 0 if none of them runs. \\[default: as long as any may]",
    ),
]


def rebuild(
    url: Url = None, json: Json = False, yes: Yes = False, dry_run: DryRun = False, leases_after: _LeasesAfter = None
) -> None:
    """Let what is left of a cluster go on, once so many members or disks are lost that there is no majority.

    Start every node that still has its directory, also one whose disk was replaced by an empty one. Stop the others for good:
    they are refused from then on, and come back with an empty directory and `shoal cluster add`. Data stays as it is; leases,
    claims, compare-and-set and the list of members go on from what the survivors know.

    Example: shoal cluster rebuild --dry-run --url http://n3:7400
    """
    execute(_rebuild(chosen(None, url, environment=os.environ), json=json, yes=yes, dry_run=dry_run, leases_after=leases_after))


async def _rebuild(target: Target, *, json: bool, yes: bool, dry_run: bool, leases_after: float | None) -> None:
    async with opened(target) as store:
        view = await store.rebuild_cluster()
        is_asked = not json and not yes
        if not json:
            show(view, leases_after=leases_after)
        if dry_run or not view.plan:
            if json:
                emit(document(view))
            return
        if is_asked:
            agreed("Are those that would be given up stopped, and is this what shall go on?", yes=False)
        elif json and not yes:
            raise failure("with --json, say --yes or --dry-run. Nothing was written.")
        made = await store.rebuild_cluster(view.plan, leases_after=leases_after)
        if json:
            emit(document(made))
        else:
            line(f"rebuilt: epoch {made.epoch} has begun. Add nodes to it with `shoal cluster add HOST:PORT`.")


def document(view: RebuildView) -> dict[str, object]:
    """The view as JSON."""
    parts = {name: [msgspec.structs.asdict(each) for each in getattr(view, name)] for name in ("survivors", "given_up")}
    return msgspec.structs.asdict(view) | parts


def show(view: RebuildView, *, leases_after: float | None) -> None:
    """Print what is left, what would be given up, and what may be lost."""
    line(f"epoch {view.epoch}. These members answer, and would be kept:")
    rows = [("member", "directory", "votes", "keys", "operations", "lacks")]
    for each in view.survivors:
        votes = f"{each.votes} in term {each.term}" if each.term else "none" if each.register == "empty" else "some are missing"
        if each.copy_of:
            votes += f", as copy of {each.copy_of[:8]}"
        lacks = ", ".join(f"{count} that {name} held" for name, count in each.lacks.items())
        state = f"{each.operations} (a learner)" if each.learner else str(each.operations)
        rows.append((each.name, each.node[:8], votes, str(each.keys), state, lacks or "-"))
    table(rows)
    for gone in view.given_up:
        away = f"not linked for {gone.away_ms / 1000:.0f} s" if gone.away_ms else "another directory is there"
        line(f"given up: {gone.name}, directory {gone.node[:8] or 'unknown'}: {away}")
    for lost in view.may_be_lost:
        line(f"may be lost: {lost}")
    if not view.plan:
        line(f"{view.reason}." if view.reason else "nothing to do.")
        return
    after_s = view.leases_after_ms / 1000 if leases_after is None else leases_after
    if after_s:
        line(
            f"leases: none is granted to another client for {after_s:.0f} s, in which a client of a lost member may hold one. "
            "If no such client runs: --leases-after 0"
        )
    line(f"plan {view.plan}")
