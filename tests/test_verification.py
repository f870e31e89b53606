"""What docs/VERIFICATION.md names exists."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

from simulation.judging import checkers, replicas, sessions
from tests.mutants.catalogue import ALL, PLANS
from tests.node.verification.test_verify import DAMAGE

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs" / "VERIFICATION.md").read_text()


def missing(text: str) -> list[str]:
    """The tests that a text names and that do not exist."""
    absent = []
    for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", text):
        path = TESTS / file
        if not path.exists() or not re.search(rf"^(async )?def {test}\(", path.read_text(), re.MULTILINE):
            absent.append(f"{file}::{test}")
    return absent


def test_every_test_that_is_named_exists() -> None:
    assert TEXT.count("::") > 80
    assert missing(TEXT) == []


def test_a_test_that_does_not_exist_is_noticed() -> None:
    assert missing("`test_verification.py::test_absent` and `absent.py::test_x`") == [
        "test_verification.py::test_absent",
        "absent.py::test_x",
    ]


def test_every_checker_that_is_named_exists_and_every_one_that_exists_is_named() -> None:
    named = set(re.findall(r"`(check_\w+|DotLedger)`", TEXT))
    names = (name for module in (checkers, replicas, sessions) for name in vars(module))
    there = {name for name in names if re.fullmatch(r"check_\w+|DotLedger", name)}
    assert named == there - {"check_found", "check_storage"}  # Which only call the others.


def test_every_row_has_a_test_or_says_what_it_waits_for() -> None:
    tables = TEXT.split("## What went wrong")[1].split("## Planted bugs")[0]
    told = [line for line in tables.splitlines() if line.startswith("| ") and not line.startswith("| what goes wrong")]
    assert len(told) >= 36
    assert [row for row in told if "::" not in row and "not built yet" not in row and "with prune" not in row] == []


def test_the_kinds_of_damage_are_counted_right() -> None:
    counted = re.search(r"(\d+) kinds of damage", TEXT)
    assert counted is not None
    assert int(counted[1]) == len(DAMAGE)


def test_figures_of_mutants_are_those_of_the_table() -> None:
    chapter = TEXT.split("## Mutants")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in chapter.splitlines() if "(`" in line and line[0] == "|"
    ]
    seeds = [int(row[2]) for row in rows if row[2].isdigit()]
    events = [int(row[-1]) for row in rows]
    assert f"{len(seeds)} of its bugs were found by drawn plans, in {median(seeds):g} seeds (median;" in chapter
    assert f"{max(seeds)} at most" in chapter
    assert f"the shrunken plans have {median(events):g} events (median), {max(events)} at most" in chapter


def test_every_mutant_has_a_plan_that_finds_it() -> None:
    assert {plan.stem for plan in PLANS.glob("*.json")} == set(ALL)
