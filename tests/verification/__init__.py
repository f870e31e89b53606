"""The tables of docs/VERIFICATION.md: what must not happen, and the tests that hold it.

A row stands in one of the .toml files beside this module. A test names the rows that it answers:
`@pytest.mark.answers("log-grows-for-ever")`, with `note=` if a reader of the page needs one. The page's beginning is written
by hand; `python -m tests.reference` writes everything below the line `MARK`.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.mutants.catalogue import ALL

HERE = Path(__file__).parent
TESTS = HERE.parent
PAGE = TESTS.parent / "docs" / "VERIFICATION.md"
MARK = "<!-- `python -m tests.reference` writes everything below this line. -->"
DASH = "–"


class Table(NamedTuple):
    file: str
    heading: str
    columns: dict[str, str]  # A key of each row → the head of its column.
    tests: str  # The head of the column of tests.
    words: str = ""  # Between the heading and the table.


TABLES = (
    Table("invariants", "## The invariants", {"number": "", "invariant": "invariant"}, "held by"),
    Table(
        "failures",
        "## What went wrong in systems like this one",
        {"wrong": "what goes wrong", "answer": "the answer"},
        "test",
        "Each row is a bug that a named system had, or one that was measured. Each named test fails without the remedy.",
    ),
    Table(
        "rocksdb",
        "### RocksDB used from Python",
        {"wrong": "what goes wrong", "answer": "the answer"},
        "test",
        "Each row was measured.",
    ),
    Table(
        "composed",
        "### Faults that compose",
        {"wrong": "what goes wrong", "answer": "the answer"},
        "test",
        "These bugs were found in Shoal by combining two or three legal faults.",
    ),
    Table(
        "growth",
        "### A log that does not grow for ever",
        {"wrong": "what goes wrong", "answer": "the answer"},
        "test",
    ),
    Table(
        "seeds",
        "## What the simulator found",
        {"seed": "seed", "violation": "violation", "fixed": "fixed in"},
        "held by",
        "All of these bugs are fixed. Each plan in `tests/simulation/plans` runs first from then on and must pass.",
    ),
    Table(
        "planted",
        "## Planted bugs",
        {"bug": "the bug"},
        "found by",
        "A check that cannot fail proves nothing. These tests run the checks above against a planted bug and fail if they do "
        "not find it.",
    ),
)

HUNTS = """## Hunts for mutants
{drawn} bugs were found by drawn plans, in {seeds:g} seeds (median; some were looked for before plans had
[parts](SIMULATION.md#parts)), {seeds_max} at most, the others by plans that were made by hand or that earlier versions
had drawn. The shrunken plans have {events:g} events (median), {events_max} at most; no events means that the writes with
which the verdict begins, on every healed node, are enough. Seconds are real, on one busy core, without the shrinking.
A bug without figures has a plan that finds it, and its hunt was not recorded.
"""


class Answer(NamedTuple):
    test: str  # `file::test`, relative to `tests/`.
    note: str


@cache
def rows(file: str) -> dict[str, dict[str, str]]:
    """The rows of a table, by their names, in order."""
    return tomllib.loads((HERE / f"{file}.toml").read_text())


@cache
def answers() -> dict[str, list[Answer]]:
    """For each row that tests name: those tests, in the order of their files and lines."""
    found: dict[str, list[Answer]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        if "mark.answers(" in text:
            for function in ast.parse(text).body:
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    test = f"{path.relative_to(TESTS).as_posix()}::{function.name}"
                    for row, note in _marked(function):
                        found[row].append(Answer(test, note))
    return dict(found)


def _marked(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    for call in function.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.answers":
            notes = [ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg == "note"]
            for row in call.args:
                yield ast.literal_eval(row), "".join(notes)


def page() -> str:
    """The page: its beginning as it stands, and the tables below the mark."""
    beginning = PAGE.read_text().partition(MARK)[0]
    return f"{beginning}{MARK}\n\n" + "\n\n".join([*(_written(table) for table in TABLES), _hunts()]) + "\n"


def _written(table: Table) -> str:
    lines = [table.heading, *([table.words, ""] if table.words else [])]
    lines += _head([*table.columns.values(), table.tests])
    for name, row in rows(table.file).items():
        lines.append(_line([*(row[key] for key in table.columns), _held(answers().get(name, []), row.get("also", ""))]))
    return "\n".join(lines)


def _held(found: list[Answer], also: str) -> str:
    """The tests, those without a note first, and what else holds the row."""
    notes: dict[str, list[str]] = {"": []}
    for answer in found:
        notes.setdefault(answer.note, []).append(f"`{answer.test}`")
    parts = [(f"{note}: " if note else "") + ", ".join(tests) for note, tests in notes.items() if tests]
    return "; ".join([*parts, *([also] if also else [])])


@cache
def hunts() -> dict[str, dict[str, Any]]:
    """The figures of mutants: how many plans were drawn until one found it, that plan and what it broke, seconds, events."""
    return tomllib.loads((HERE / "hunts.toml").read_text())


def _hunts() -> str:
    found = hunts()
    seeds = [hunt["seeds"] for hunt in found.values() if isinstance(hunt.get("seeds"), int)]
    events = [hunt["events"] for hunt in found.values()]
    words = HUNTS.format(
        drawn=len(seeds), seeds=median(seeds), seeds_max=max(seeds), events=median(events), events_max=max(events)
    )
    lines = [words, *_head(["the bug", "should break", "seeds", "found by, and broken", "seconds", "events"])]
    for name, mutant in sorted(ALL.items(), key=lambda each: each[0] not in found):
        hunt = found.get(name, {})
        figures = [str(hunt.get(key, DASH)) for key in ("seeds", "found", "seconds", "events")]
        lines.append(_line([f"{mutant.breaks} (`{name}`)", ", ".join(mutant.invariants), *figures]))
    return "\n".join(lines)


def _head(columns: list[str]) -> list[str]:
    return [_line(columns), "|---" * len(columns) + "|"]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
