"""The demo's last words: what was done, what it cost, and every difference from the recount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shoal.demo.progress import Kill
from shoal.demo.survey import Figures
from shoal.demo.verdict import Disagreement

DIFFERENCES_SHOWN = 20
_WIDTH_SHOWN = 200


class Summary(NamedTuple):
    figures: Figures
    agents: int
    checkpoints: int
    operations: int  # Acknowledged to the agents, over all lives.
    bytes_on_disk: int
    kills: Sequence[Kill]
    seconds: float  # From the first start of the worker to the end of its last life.


def print_summary(console: Console, summary: Summary) -> None:
    """The table at the end."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    for name, value in _rows(summary):
        table.add_row(name, value)
    console.print(table)


def _rows(summary: Summary) -> list[tuple[str, str]]:
    figures = [(name.replace("_", " "), f"{value:,}") for name, value in summary.figures._asdict().items()]
    kills = [
        (f"kill -9, number {nth}", f"{kill.in_the_air} modules half written, back after {kill.resumed_s or 0:.2f} s")
        for nth, kill in enumerate(summary.kills, start=1)
    ]
    return [
        *figures,
        ("agents", f"{summary.agents}"),
        ("checkpoints", f"{summary.checkpoints:,}"),
        ("operations acknowledged", f"{summary.operations:,}"),
        ("bytes on disk", f"{summary.bytes_on_disk:,}"),
        *kills,
        ("survey took", f"{summary.seconds:.1f} s"),
    ]


def print_verdict(console: Console, differences: Sequence[Disagreement]) -> None:
    """One line if everything agreed; else the differences, the first of them in full."""
    if not differences:
        console.print("[bold green]agreed[/]: document, counters, journals and threads equal the recount.", highlight=False)
        return
    console.print(f"[bold red]{len(differences)} differences[/] from the recount:", highlight=False)
    for where, expected, found in differences[:DIFFERENCES_SHOWN]:
        console.print(f"  {escape(where)}", highlight=False, soft_wrap=True)
        console.print(f"    - recounted  {escape(_short(expected))}", highlight=False, soft_wrap=True)
        console.print(f"    + in store   {escape(_short(found))}", highlight=False, soft_wrap=True)
    if len(differences) > DIFFERENCES_SHOWN:
        console.print(f"  … and {len(differences) - DIFFERENCES_SHOWN} more", highlight=False)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _WIDTH_SHOWN else f"{text[:_WIDTH_SHOWN]}… ({len(text)} characters)"
