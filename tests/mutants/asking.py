"""Bugs in which threads are listed as asking, and what they are shown to ask."""

from __future__ import annotations

import pytest

from shoal.crdt.rows import Rows
from shoal.kinds.label import asks
from shoal.kinds.label import state as labels
from shoal.node.catalog import Catalog
from tests.mutants.mutant import Mutant


def a_new_question_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asks, "may_ask", lambda label, content: False)


def a_checkpoint_after_its_question_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asks, "is_touched", lambda rows, label: False)


def a_snapshot_brings_no_question(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asks.Watch, "is_asking", property(lambda self: False))


def the_first_checkpoint_is_the_one_that_asks(patch: pytest.MonkeyPatch) -> None:
    def asked_at(rows: Rows) -> str | None:
        return next((label for label, _ in labels.listed(rows, asks.ROOT, limit=1)), None)

    patch.setattr(asks, "asked_at", asked_at)


def a_thread_that_asked_once_is_listed_for_ever(patch: pytest.MonkeyPatch) -> None:
    sound = Catalog.set_asking
    patch.setattr(Catalog, "set_asking", lambda self, into, target, now: sound(self, into, target, True) if now else None)


MUTANTS = (
    Mutant(a_new_question_is_not_looked_at, "a question that is written lists no thread", ("4", "10"), profile="asking"),
    Mutant(
        a_checkpoint_after_its_question_is_not_looked_at,
        "a question that came before its checkpoint lists no thread",
        ("4", "10"),
        profile="asking",
    ),
    Mutant(a_snapshot_brings_no_question, "a snapshot lists no thread that asks", ("4", "10"), profile="asking"),
    Mutant(the_first_checkpoint_is_the_one_that_asks, "the first checkpoint asks, not the last", ("3", "10"), profile="asking"),
    Mutant(
        a_thread_that_asked_once_is_listed_for_ever,
        "a thread is never struck off those that ask",
        ("4", "10"),
        profile="asking",
    ),
)
