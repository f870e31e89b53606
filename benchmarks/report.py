"""Figures as a table for the terminal, and as Markdown for `RESULTS.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, Section


def show(console: Console, section: Section) -> None:
    table = Table(title=section.title, title_justify="left", title_style="bold")
    for heading in ("figure", "median", "least", "greatest", "target", ""):
        table.add_column(heading, justify="left" if heading in ("figure", "") else "right")
    for figure in section.figures:
        style = {True: "green", False: "bold red", None: ""}[figure.met]
        table.add_row(*_cells(figure), style=style)
    console.print(table)


def markdown(sections: Sequence[Section], *, facts: Mapping[str, str], date: str, command: str, seconds: float) -> str:
    missed = [figure for section in sections for figure in section.figures if figure.met is False]
    parts = ["# Measured figures", _summary(missed), _origin(facts, date=date, command=command, seconds=seconds)]
    for section in sections:
        parts += [f"## {section.title}", section.method, _table(section.figures)]
    return "\n\n".join(parts) + "\n"


def _summary(missed: Sequence[Figure]) -> str:
    if not missed:
        return "Every target was met."
    listed = "\n".join(f"- {figure.name}: {_number(figure, figure.value)}, target {_target(figure)}" for figure in missed)
    return f"**Targets missed:**\n\n{listed}"


def _origin(facts: Mapping[str, str], *, date: str, command: str, seconds: float) -> str:
    rows = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return (
        f"Written by `{command}` on {date}, in one run of {seconds:.0f} s. The machine is a shared one, and its disk is "
        f"the measure of much below: compare ratios, not figures of different machines.\n\n{rows}"
    )


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
