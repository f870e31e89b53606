"""`shoal status` and `shoal cluster`: a store as a whole, and who the members of its cluster are.

A change of the members goes on by itself: its command waits until it is done and prints each step, unless `--no-wait` is given.

Law: no handle is imported, so that these commands start fast.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from shoal.cli.arguments import PANEL
from shoal.cli.execution import Data, Json, Target, Url, chosen, execute, opened
from shoal.cli.operating.cluster_key import rebuild, rotate_key
from shoal.cli.operating.top import top, usage
from shoal.cli.operating.upgrading import upgrade_check, wait
from shoal.cli.output import Listing, ago, emit, is_terminal, line, moment, note, pairs, size, table
from shoal.client.store import Store
from shoal.protocol.requests import ClusterView, Member, MembersView, NodeStatus, StandingCondition

if TYPE_CHECKING:
    from shoal.cli.leftovers import Leftover

_UNKNOWN = ("unknown", "unknown", "unknown")


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(status)
    app.command(rich_help_panel=PANEL)(top)
    app.command(rich_help_panel=PANEL)(usage)
    group = typer.Typer(no_args_is_help=True, help="Show, add, drain, replace and forget the nodes of a cluster.")
    for command in (members, add, drain, replace, forget, cancel, wait, upgrade_check, rebuild, leftovers, rotate_key):
        group.command()(command)
    app.add_typer(group, name="cluster", rich_help_panel=PANEL)


_LABELS = {name: f"{name} since the start" for name in ("operations", "commits", "died", "repaired")}
_LOOK_S = 0.25  # Between two looks at a change that is under way.

Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the other nodes reach it.", show_default=False)]
Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The directory of the removed node, which is stopped.", show_default=False)
]
Issue = Annotated[bool, typer.Option("--issue", help="Issue them again in the cluster, as far as that disturbs nothing there.")]
Old = Annotated[str, typer.Argument(metavar="OLD", help="The address of the member that leaves.", show_default=False)]
New = Annotated[str, typer.Argument(metavar="NEW", help="The address of the node that joins.", show_default=False)]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Begin the change, and do not wait until it is done.")]


def status(data: Data = None, url: Url = None, json: Json = False) -> None:
    """Show the status of a node and of its peers: which are linked, and how many operations each lacks.

    Example: shoal status --url http://127.0.0.1:7400
    """
    execute(_status(chosen(data, url, environment=os.environ), json=json))


async def _status(target: Target, *, json: bool) -> None:
    async with opened(target) as store:
        status, cluster = await store.status(), await store.cluster()
    if json:
        found = msgspec.structs.asdict(status)
        members = [member.shown() for member in cluster.members]
        found["conditions"] = [msgspec.structs.asdict(each) for each in status.conditions]
        emit({**found, "cluster": {**msgspec.structs.asdict(cluster), "members": members}})
        return
    pairs(told(status))
    if cluster.size > 1:
        _show_cluster(cluster)
    _show_conditions(status.conditions)


def told(status: NodeStatus) -> dict[str, Any]:
    """A status as a person is shown it, by labels: without what is empty, or for programs."""
    found = msgspec.structs.asdict(status)
    del found["conditions"]
    del found["tokens_refused"]  # For metrics: most of them are strangers'.
    del found["disk_free_bytes"], found["disk_full_ms"]  # For metrics and conditions; `shoal top` shows them.
    del found["speaks"], found["together"]  # For `shoal cluster upgrade-check`.
    if not found["cluster_keys"]:
        del found["cluster_key_file"], found["cluster_keys"]
    if not found["master_key"]:
        del found["data_keys"]
    if found["register_founded"]:
        del found["register_founded"]
    verified_ms, _ = found.pop("backup_verified_ms"), found.pop("backup_begun_ms")
    if found["backup"]:
        found["backup_verified"] = _moment(verified_ms) or "never"
    else:
        del found["backup_lag_ms"], found["backup_bytes"]
    if status.state == "read-only" and not status.serves:
        found["state"] = "no-member"  # As `/readyz` says: its disk is well.
    found["retention_last"] = _moment(found.pop("retention_last_ms"))
    found["certificate_expires"] = _moment(found.pop("tls_ends_ms"))
    found["tokens_end"] = _moment(found.pop("tokens_end_ms"))
    started_ms = found.pop("started_ms")
    found["started"] = moment(started_ms)
    if is_terminal():
        found["started"] = ago(datetime.fromtimestamp(started_ms / 1000, UTC))
        found["bytes_on_disk"] = size(found["bytes_on_disk"])
    return {_LABELS.get(name, name.replace("_", " ")): value for name, value in found.items() if value not in ("", [])}


def _moment(ms: int) -> str:
    return moment(ms) if ms else ""


def _show_cluster(cluster: ClusterView) -> None:
    line()
    line(f"cluster {cluster.cluster}: {cluster.size} owners, {cluster.quorum} are a quorum; digest {cluster.digest[:16]}")
    if cluster.epoch:
        change = f"; {cluster.change} is under way (`shoal cluster members`)" if cluster.change else ""
        line(f"epoch {cluster.epoch} of the members{change}")
    rows = [("member", "state", "operations", "lacks", "by", "waiting")]
    bytes_of = size if is_terminal() else lambda count: f"{count} B"
    for member in cluster.members:
        held = (str(member.operations), str(member.lacks), f"{member.lag_ms / 1000:.1f} s" if member.lacks else "-")
        rows.append((member.name, _state(member), *(held if member.told else _UNKNOWN), bytes_of(member.waiting_bytes)))
    if is_terminal():
        with Listing(*rows[0], json=False) as members:
            for row in rows[1:]:
                members.add(None, "", *row)
    else:
        table(rows)
    for member in cluster.members:
        if member.reason:
            line(f"{member.name}: {member.reason}")
    if cluster.snapshots_due:
        line(
            f"taking snapshots: {cluster.snapshots_due} partitions to go, {cluster.snapshots_taken} taken, "
            f"{bytes_of(cluster.snapshot_bytes)} arrived"
        )


def _show_conditions(found: list[StandingCondition]) -> None:
    """The conditions that stand, each with the command that mends it; `shoal doctor` asks all members."""
    for each in found:
        line()
        line(f"{each.severity}: {each.says}")
        line(f"  {each.name}: {each.mends}   (docs/{each.page})")


def _state(member: Member) -> str:
    return member.state if member.part == "member" else f"{member.state}, {member.part}"


def members(url: Url = None, json: Json = False) -> None:
    """Show who the members are, as a node knows, and how far a change is.

    Example: shoal cluster members --url http://n1:7400
    """
    execute(_members(chosen(None, url, environment=os.environ), json=json))


def add(address: Address, url: Url = None, json: Json = False, no_wait: NoWait = False) -> None:
    """Add a node. Start it with an empty directory and --join naming any member; it waits until it is added.

    Example: shoal cluster add n4:7400 --url http://n1:7400
    """
    _change(lambda store: store.add_member(address), url, json=json, no_wait=no_wait)


def drain(address: Address, url: Url = None, json: Json = False, no_wait: NoWait = False) -> None:
    """Remove a node that is up, once the others hold all that it holds. Stop it when the command is done.

    Example: shoal cluster drain n3:7400 --url http://n1:7400
    """
    _change(lambda store: store.drain_member(address), url, json=json, no_wait=no_wait)


def replace(old: Old, new: New, url: Url = None, json: Json = False, no_wait: NoWait = False) -> None:
    """Put a new node in the place of a member: it is drained if it is up, and forgotten if not.

    Example: shoal cluster replace n3:7400 n4:7400 --url http://n1:7400
    """
    _change(lambda store: store.replace_member(old, new), url, json=json, no_wait=no_wait)


def forget(address: Address, url: Url = None, json: Json = False, no_wait: NoWait = False) -> None:
    """Remove a node that is down for good. Its directory is refused from then on; what only it held is lost.

    If a node got an empty directory at its old address, name the lost one by its id, as `shoal cluster members` shows it.

    Example: shoal cluster forget n3:7400 --url http://n1:7400
    """
    _change(lambda store: store.forget_member(address), url, json=json, no_wait=no_wait)


def cancel(url: Url = None, json: Json = False, no_wait: NoWait = False) -> None:
    """Take back the change that is under way.

    Example: shoal cluster cancel --url http://n1:7400
    """
    _change(lambda store: store.cancel_change(), url, json=json, no_wait=no_wait)


def leftovers(directory: Directory, url: Url = None, json: Json = False, issue: Issue = False) -> None:
    """List the objects of which only the directory of a node that is no member holds some writes, and how many.

    Nothing is changed. With --issue these writes are issued again in the cluster, as far as they can be beside what it has;
    the rest is named, and stays in the directory.

    Example: shoal cluster leftovers ./n3 --url http://n1:7400
    """
    target = chosen(None, url, environment=os.environ)
    if target.url is None:
        raise typer.BadParameter("give the address of a member with --url.")
    execute(_leftovers(directory, target.url, json=json, is_issued=issue))


async def _leftovers(directory: Path, url: str, *, json: bool, is_issued: bool) -> None:
    from shoal.cli.leftovers import lacking  # It opens a store, which takes time to import.

    found = await lacking(directory, url)
    if is_issued:
        await _issue(directory, url, found, json=json)
    for leftover in [] if is_issued else found:
        count = f"{leftover.operations} operation{'' if leftover.operations == 1 else 's'}"
        told = f"{leftover.kind} {leftover.name} of space {leftover.space}: {count}"
        shown = {name: getattr(leftover, name) for name in ("kind", "space", "name", "operations")}
        emit(shown) if json else line(told)
    if not found and not json:
        note("the cluster holds everything that is in this directory's log.")


async def _issue(directory: Path, url: str, found: list[Leftover], *, json: bool) -> None:
    from shoal.cli.leftovers import issue

    staying = 0
    async for issued in issue(directory, url, found):
        staying += bool(issued.stays)
        told = "; ".join(filter(None, (issued.done, issued.stays))) or "nothing had to be issued"
        emit(issued._asdict()) if json else line(f"{issued.kind} {issued.name} of space {issued.space}: {told}")
    if staying and not json:
        note(f"{staying} of {len(found)} objects hold something that was not issued: keep {directory} until you have looked.")


def _change(begin: Callable[[Store], Awaitable[MembersView]], url: str | None, *, json: bool, no_wait: bool) -> None:
    execute(_changed(begin, chosen(None, url, environment=os.environ), json=json, no_wait=no_wait))


async def _members(target: Target, *, json: bool) -> None:
    async with opened(target) as store:
        _show(await store.members(), json=json)


async def _changed(begin: Callable[[Store], Awaitable[MembersView]], target: Target, *, json: bool, no_wait: bool) -> None:
    async with opened(target) as store:
        view = await begin(store)
        told: set[str] = set()
        before: set[str] = set()
        while view.change and not no_wait:
            step, waiting = _step(view), _waiting(view)
            for text in (
                () if json else (step, *sorted(before.intersection(waiting)))
            ):  # What lasts for two looks is worth a line.
                if text not in told:
                    note(text)
            told |= {step, *before.intersection(waiting)}
            before = set(waiting)
            await asyncio.sleep(_LOOK_S)
            view = await store.members()
        _show(view, json=json)


def _step(view: MembersView) -> str:
    return f"epoch {view.epoch}: {view.change}: {'both lists decide' if view.step == 'joint' else 'the present members decide'}"


def _waiting(view: MembersView) -> list[str]:
    """The reason for which the change waits."""
    waiting = [
        f"{seat.name} {seat.progress}" for seat in view.members if seat.progress and not seat.progress.endswith("caught up")
    ]
    return [*waiting, *([view.trouble] if view.trouble else [])]


def _show(view: MembersView, *, json: bool) -> None:
    if json:
        parts = {
            name: [msgspec.structs.asdict(each) for each in getattr(view, name)] for name in ("members", "removed", "lost")
        }
        emit(msgspec.structs.asdict(view) | parts)
        return
    line(f"epoch {view.epoch}: {len([seat for seat in view.members if seat.part != 'joining'])} members")
    table(
        [("node", "part", "state", "progress"), *((each.name, each.part, each.state, each.progress) for each in view.members)]
    )
    if view.change:
        line(f"under way: {view.change} ({view.step})")
    if view.trouble:
        line(f"it does not go on yet: {view.trouble}")
    for waiting in view.waiting:
        line(f"{waiting} asks to join: shoal cluster add {waiting}")
    for removed in view.removed:
        how = "drained" if removed.handed_over else "forgotten"
        line(f"{removed.name} was {how} in epoch {removed.epoch} (directory {removed.node[:8] or 'unknown'})")
    for lost in view.lost:
        line(f"{lost.name} lost directory {lost.node[:8]}; if it is gone for good: shoal cluster forget {lost.node[:8]}")
