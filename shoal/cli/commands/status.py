"""`shoal status` and `shoal spaces`: a store as a whole.

Law: no handle is imported, so that these commands start fast.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

import msgspec
import typer

from shoal.cli.execution import execute
from shoal.cli.options import PANEL
from shoal.cli.output import emit, line, moment, pairs, table
from shoal.cli.target import Data, Json, Target, Url, chosen, opened
from shoal.cli.terminal import Listing, ago, is_terminal, size
from shoal.protocol.requests import ClusterView


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(status)
    app.command(rich_help_panel=PANEL)(spaces)


_LABELS = {name: f"{name} since the start" for name in ("operations", "commits", "died", "repaired")}


def status(data: Data = None, url: Url = None, json: Json = False) -> None:
    """Show the status of a node and of its peers: which are linked, and how many operations each lacks.

    Example: shoal status --url http://127.0.0.1:7400
    """
    execute(_status(chosen(data, url, environment=os.environ), json=json))


async def _status(target: Target, *, json: bool) -> None:
    async with opened(target) as store:
        found, cluster = msgspec.structs.asdict(await store.status()), await store.cluster()
    if json:
        members = [msgspec.structs.asdict(member) for member in cluster.members]
        emit({**found, "cluster": {**msgspec.structs.asdict(cluster), "members": members}})
        return
    started_ms = found.pop("started_ms")
    found["started"] = moment(started_ms)
    if is_terminal():
        found["started"] = ago(datetime.fromtimestamp(started_ms / 1000, UTC))
        found["bytes_on_disk"] = size(found["bytes_on_disk"])
    pairs({_LABELS.get(name, name.replace("_", " ")): value for name, value in found.items() if value not in ("", [])})
    if cluster.size > 1:
        _show_cluster(cluster)


def _show_cluster(cluster: ClusterView) -> None:
    line()
    line(f"cluster {cluster.cluster}: {cluster.size} owners, {cluster.quorum} are a quorum; digest {cluster.digest[:16]}")
    rows = [("member", "state", "operations", "lacks", "by", "waiting")]
    bytes_of = size if is_terminal() else lambda count: f"{count} B"
    for member in cluster.members:
        behind = f"{member.lag_ms / 1000:.1f} s" if member.lacks else "-"
        rows.append(
            (member.name, member.state, str(member.operations), str(member.lacks), behind, bytes_of(member.waiting_bytes))
        )
    if is_terminal():
        with Listing(*rows[0], json=False) as members:
            for row in rows[1:]:
                members.add(None, "", *row)
    else:
        table(rows)
    for member in cluster.members:
        if member.reason:
            line(f"{member.name}: {member.reason}")
    for progress in cluster.learning:
        line(f"a learner, so this node counts in no quorum yet: {progress}")
    for differing in cluster.clocks:
        line(f"clocks differ: {differing}")
    for lacking in cluster.truncated:
        line(f"left behind: {lacking}")
    for disagreement in cluster.disagreements:
        line(f"members differ: {disagreement}")
    for difference in cluster.differing:
        line(f"differs: {difference}")
    for refused in cluster.quarantined:
        line(f"quarantined: {refused}")


def spaces(data: Data = None, url: Url = None, json: Json = False) -> None:
    """List the spaces, one name per line.

    Example: shoal spaces --data ./state
    """
    execute(_spaces(chosen(data, url, environment=os.environ), json=json))


async def _spaces(target: Target, *, json: bool) -> None:
    async with opened(target) as store:
        with Listing("space", json=json, none="nothing was written to this store yet.") as rows:
            async for name in store.spaces():
                rows.add(name, name, name)
