"""`shoal cluster rebuild`: what is left of a cluster that lost its majority is shown, and goes on once somebody agrees.

Law: what is done is what was shown. If it has changed in between, nothing is done, and it must be looked at again.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer

from shoal.cli.arguments import DryRun, Yes
from shoal.cli.execution import agreed, execute, failure
from shoal.cli.output import emit, line, table
from shoal.cli.target import Json, Target, Url, chosen, opened
from shoal.protocol.requests import RebuildView

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
