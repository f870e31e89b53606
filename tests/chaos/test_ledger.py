"""The ledger finds each planted break, and nothing in a sound trial."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.ledger import Deed, Holding, Step, broken_anywhere, broken_by

DEEDS = [
    Deed("effect", "worker-0", "step-1", 7),
    Deed("step", "worker-0", "step-1", 7),
    Deed("effect", "worker-0", "step-2", 8),
    Deed("add", "worker-0-0", value=1),
    Deed("add", "worker-0-0", value=2, outcome="unknown", code="outcome-unknown"),
    Deed("add", "worker-0-0", value=4, outcome="no", code="no-quorum"),
    Deed("grant", "budget-0", value=60),
    Deed("spend", "budget-0", value=5),
    Deed("spend", "budget-0", value=3, outcome="unknown", code="outcome-unknown"),
    Deed("put", "worker-0", "job-1"),
    Deed("put", "worker-0", "job-2", outcome="no", code="no-quorum"),
    Deed("done", "worker-0", "job-1"),
    Deed("save", "pruned-1", "abc", 9),
]


def holding() -> Holding:
    return Holding(
        counters={"worker-0-0": 3},
        budgets={"budget-0": (60, 5)},
        steps={"worker-0": {"step-1": Step("done", 7), "step-2": Step("open", None)}},
        jobs={"worker-0": {"job-1": "worker-0"}},
        saves={"pruned-1": {"abc": 9}},
    )


def test_a_sound_ledger_breaks_nothing() -> None:
    assert list(broken_by(DEEDS, holding())) == []
    assert list(broken_anywhere(DEEDS, {"n1": holding(), "n2": holding()})) == []


Plant = Callable[[Holding], object]


@pytest.mark.parametrize(
    ("plant", "invariant", "culprit"),
    [
        (lambda h: h.counters.update({"worker-0-0": 2}), "5", "counter worker-0-0 in space work holds 0x2: adds 0 are missing"),
        (lambda h: h.counters.update({"worker-0-0": 5}), "5", "counter worker-0-0 in space work holds 0x5"),
        (lambda h: h.budgets.update({"budget-0": (60, 0)}), "17", "spends of budget budget-0 in space work are 0"),
        (lambda h: h.budgets.update({"budget-0": (60, 61)}), "17", "budget budget-0 in space work: 61 of 60"),
        (lambda h: h.budgets.pop("budget-0"), "17", "grants of budget budget-0 in space work are 0"),
        (lambda h: h.steps["worker-0"].pop("step-2"), "14", "step step-2 of thread worker-0 in space work is not there"),
        (
            lambda h: h.steps["worker-0"].update({"step-2": Step("ready", None)}),
            "14",
            "step step-2 of thread worker-0 in space work is ready",
        ),
        (lambda h: h.steps["worker-0"].update({"step-1": Step("open", None)}), "3", "the result of step step-1"),
        (lambda h: h.jobs.clear(), "16", "item job-1 of worklist jobs, thread worker-0 in space work, put and acknowledged"),
        (
            lambda h: h.jobs["worker-0"].update({"job-1": ""}),
            "16",
            "item job-1 of worklist jobs, thread worker-0 in space work, done and acknowledged",
        ),
        (lambda h: h.jobs["worker-0"].update({"job-2": ""}), "13", "item job-2 of worklist jobs, thread worker-0"),
        (lambda h: h.saves.clear(), "3", "save abc of thread pruned-1 in space work"),
    ],
)
def test_lost_and_invented_data_of_a_node_is_found(plant: Plant, invariant: str, culprit: str) -> None:
    held = holding()
    plant(held)
    assert any(broken.invariant == invariant and broken.culprit.startswith(culprit) for broken in broken_by(DEEDS, held))
    assert any(broken.invariant == "4" for broken in broken_anywhere(DEEDS, {"n1": holding(), "n2": held}))


def test_an_effect_that_happened_twice_is_found() -> None:
    twice = [*DEEDS, Deed("effect", "worker-0", "step-1", 10)]
    [broken] = broken_anywhere(twice, {"n1": holding()})
    assert (broken.invariant, broken.culprit) == ("14", "step step-1 of thread worker-0 in space work, 2 times")
