"""The demo's final report: the work, its cost, and every difference from the recount."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.demo.course import NodeProgress, Outage
from shoal.demo.nodes import node_name
from shoal.demo.progress import Kill
from shoal.demo.survey import Figures
from shoal.demo.verdict import Disagreement
from shoal.records import NamedTuple

DIFFERENCES_SHOWN = 20
_WIDTH_SHOWN = 200


class Summary(NamedTuple):
    """The figures of a run on one store."""

    figures: Figures
    agents: int
    checkpoints: int
    operations: int  # Operations acknowledged to the agents, over all lives.
    bytes_on_disk: int
    kills: Sequence[Kill]
    seconds: float  # From the first start of the worker to the end of its last life.


def print_summary(console: Console, summary: Summary) -> None:
    """Print the table of a run on one store."""
    _print_table(console, _rows(summary))


def _print_table(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)


def _rows(summary: Summary) -> list[tuple[str, str]]:
    kills = [
        (f"kill -9, number {nth}", f"{kill.in_the_air} modules half written, back after {kill.resumed_s or 0:.2f} s")
        for nth, kill in enumerate(summary.kills, start=1)
    ]
    return [
        *_figures(summary.figures),
        ("agents", f"{summary.agents}"),
        ("checkpoints", f"{summary.checkpoints:,}"),
        ("operations acknowledged", f"{summary.operations:,}"),
        ("bytes on disk", f"{summary.bytes_on_disk:,}"),
        *kills,
        ("survey took", f"{summary.seconds:.1f} s"),
    ]


def _figures(figures: Figures) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), f"{value:,}") for name, value in figures._asdict().items()]


class ClusterSummary(NamedTuple):
    """The figures of a run on three nodes."""

    figures: Figures
    agents: int
    checkpoints: int
    operations: int  # Operations acknowledged to the agents by a majority of the nodes.
    nodes: Sequence[NodeProgress]
    outage: Outage
    seconds: float  # From the start of the agents to the end of the last one.


def print_cluster_summary(console: Console, summary: ClusterSummary) -> None:
    """Print the table of a run on three nodes."""
    _print_table(console, _cluster_rows(summary))


def _cluster_rows(summary: ClusterSummary) -> list[tuple[str, str]]:
    outage = summary.outage
    return [
        *_figures(summary.figures),
        ("agents", f"{summary.agents}"),
        ("checkpoints", f"{summary.checkpoints:,}"),
        ("operations acknowledged by a quorum", f"{summary.operations:,}"),
        *((f"operations on {node_name(nth)}", f"{node.operations:,}") for nth, node in enumerate(summary.nodes)),
        ("bytes on disk, all nodes", f"{sum(node.bytes_on_disk for node in summary.nodes):,}"),
        (f"kill -9 of {node_name(outage.node)}", f"{outage.in_the_air} modules half written"),
        ("its agents back at work", f"{_seconds(outage.failed_over_s)} after the kill"),
        (f"{node_name(outage.node)} was away", f"{_seconds(outage.down_s)}, and missed {outage.missed:,} operations"),
        ("time to catch up", f"{_seconds(outage.caught_up_s)}"),
        ("survey took", f"{summary.seconds:.1f} s"),
    ]


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f} s"


def print_verdict(console: Console, differences: Sequence[Disagreement], *, agreed: str) -> None:
    """Print `agreed` if there are no differences; else the number of differences and the first of them."""
    if not differences:
        console.print(f"[bold green]agreed[/]: {agreed}", highlight=False, soft_wrap=True)
        return
    console.print(f"[bold red]{len(differences)} differences[/] from the recount:", highlight=False)
    for where, expected, found in differences[:DIFFERENCES_SHOWN]:
        console.print(f"  {escape(where)}", highlight=False, soft_wrap=True)
        console.print(f"    - expected  {escape(_short(expected))}", highlight=False, soft_wrap=True)
        console.print(f"    + in store   {escape(_short(found))}", highlight=False, soft_wrap=True)
    if len(differences) > DIFFERENCES_SHOWN:
        console.print(f"  … and {len(differences) - DIFFERENCES_SHOWN} more", highlight=False)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _WIDTH_SHOWN else f"{text[:_WIDTH_SHOWN]}… ({len(text)} characters)"
