"""docs/VERIFICATION.md: every row has a test, and every test and checker that pages name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulation.judging import checkers, replicas, sessions
from tests import verification
from tests.mutants.catalogue import ALL, PLANS
from tests.node.verification.test_verify import DAMAGE

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
TEXT = verification.PAGE.read_text()
WITHOUT_TEST = {"placement-from-gossip"}  # Not built yet.


def missing(text: str) -> list[str]:
    """The tests that a text names and that do not exist."""
    absent = []
    for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", text):
        path = TESTS / file
        if not path.exists() or not re.search(rf"^(async )?def {test}\(", path.read_text(), re.MULTILINE):
            absent.append(f"{file}::{test}")
    return absent


@pytest.mark.parametrize("page", ["VERIFICATION.md", "CHAOS.md", "SIMULATION.md"])
def test_every_test_that_is_named_exists(page: str) -> None:
    assert missing((DOCS / page).read_text()) == []


def test_a_test_that_does_not_exist_is_noticed() -> None:
    assert missing("`test_verification.py::test_absent` and `absent.py::test_x`") == [
        "test_verification.py::test_absent",
        "absent.py::test_x",
    ]


def test_tests_answer_rows_that_exist() -> None:
    named = [name for table in verification.TABLES for name in verification.rows(table.file)]
    assert sorted(named) == sorted(set(named))
    assert verification.answers().keys() <= set(named)
    assert sum(map(len, verification.answers().values())) > 800


@pytest.mark.parametrize("table", verification.TABLES, ids=lambda table: table.file)
def test_every_row_is_held_by_a_test_or_plan(table: verification.Table) -> None:
    rows = verification.rows(table.file)
    held = {
        name for name, row in rows.items() if name in verification.answers() or re.search(r"\bplans? `", row.get("also", ""))
    }
    assert rows.keys() - held <= WITHOUT_TEST


def test_every_checker_that_is_named_exists_and_every_one_that_exists_is_named() -> None:
    named = set(re.findall(r"`(check_\w+|DotLedger)`", TEXT))
    names = (name for module in (checkers, replicas, sessions) for name in vars(module))
    there = {name for name in names if re.fullmatch(r"check_\w+|DotLedger", name)}
    assert named == there - {"check_found", "check_storage"}  # Which only call the others.


def test_the_kinds_of_damage_are_counted_right() -> None:
    counted = re.search(r"(\d+) kinds of damage", TEXT)
    assert counted is not None
    assert int(counted[1]) == len(DAMAGE)


def test_every_mutant_has_a_plan_that_finds_it() -> None:
    assert {plan.stem for plan in PLANS.glob("*.json")} == set(ALL)


def test_recorded_hunts_are_of_mutants_that_exist() -> None:
    assert verification.hunts().keys() <= ALL.keys()
