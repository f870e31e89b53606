"""Figures as a table for the terminal, and as Markdown for `RESULTS.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, Measured, Section
from benchmarks.machine import LOAD


def show(console: Console, section: Section) -> None:
    table = Table(title=section.title, title_justify="left", title_style="bold")
    for heading in ("figure", "median", "least", "greatest", "target", ""):
        table.add_column(heading, justify="left" if heading in ("figure", "") else "right")
    for figure in section.figures:
        style = {True: "green", False: "bold red", None: ""}[figure.met]
        table.add_row(*_cells(figure), style=style)
    console.print(table)


def markdown(found: Mapping[str, Measured], *, plots: str) -> str:
    """By benchmark's name; the plot of each is `plots`/NAME.svg."""
    missed = [figure for each in found.values() for figure in each.section.figures if figure.met is False]
    parts = ["# Measured figures", _summary(missed), _INTRODUCTION, *_machines(list(found.values()))]
    for name, each in found.items():
        section = each.section
        told = f"`python -m benchmarks --only {name}`, {each.date}, load before: {each.facts[LOAD]}."
        parts += [f"## {section.title}", section.method, told, f"![{section.title}]({plots}/{name}.svg)"]
        parts.append(_table(section.figures))
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = (
    "Written by `python -m benchmarks --write` (`make bench` measures all). A section's figures were measured in one run, "
    "whose day and load stand above them. The machine is a shared one, and its disk is the measure of much below: compare "
    "ratios, which are taken within a run, not figures of different machines or days."
)


def _summary(missed: Sequence[Figure]) -> str:
    if not missed:
        return "Every target was met."
    listed = "\n".join(f"- {figure.name}: {_number(figure, figure.value)}, target {_target(figure)}" for figure in missed)
    return f"**Targets missed:**\n\n{listed}"


def _machines(found: Sequence[Measured]) -> list[str]:
    """Each machine on which something here was measured, without the load, which is each section's."""
    machines: dict[tuple[tuple[str, str], ...], None] = {}
    for each in found:
        machines[tuple((name, value) for name, value in each.facts.items() if name != LOAD)] = None
    return ["\n".join(f"- {name}: {value}" for name, value in facts) for facts in machines]


def _table(figures: Sequence[Figure]) -> str:
    lines = ["| figure | median | least | greatest | target | |", "|---|---:|---:|---:|---:|---|"]
    lines += ["| " + " | ".join(_cells(figure)) + " |" for figure in figures]
    return "\n".join(lines)


def _cells(figure: Figure) -> list[str]:
    spread = [""] * 2 if len(figure.samples) == 1 else [_number(figure, bound) for bound in _extremes(figure)]
    verdict = {True: "met", False: "**missed**", None: ""}[figure.met]
    return [figure.name, _number(figure, figure.value), *spread, _target(figure), verdict]


def _extremes(figure: Figure) -> tuple[float, float]:
    return min(figure.samples), max(figure.samples)


def _target(figure: Figure) -> str:
    return "" if figure.target is None else f"{figure.target.bound} {_number(figure, figure.target.value)}"


def _number(figure: Figure, value: float) -> str:
    if value >= 100 or value == int(value):
        text = f"{value:,.0f}"
    elif value < 0.1:
        text = f"{value:.3f}"
    else:
        text = f"{value:.2f}".rstrip("0") if value < 10 else f"{value:.1f}"
    return f"{text} {figure.unit}".strip()
