"""Replicas are compared by all that a client can read."""

from __future__ import annotations

import pytest

from simulation.judging.checkers import InvariantViolated
from simulation.judging.found import Found
from simulation.judging.replicas import check_replicas


def found() -> Found:
    return Found(
        threads={"t": {"id-2": 2, "id-1": 1}},
        journals={"t": {"e-1": 3, "e-2": 4}},
        counters={"c": 7},
        registers={"r": [5, 6]},
        documents={"d": [8, 9]},
        heads={"t": {"main": ["id-2", "id-1"]}},
        parents={"t": {"id-2": [], "id-1": []}},
        forms={"d": "aa"},
    )


def test_equal_replicas_pass_in_whatever_order_a_map_lists_its_keys() -> None:
    other = found()
    other.documents["d"] = [9, 8]
    check_replicas({"n1": found(), "n2": other, "n3": found()})


@pytest.mark.answers("node-that-lost-or-invented")
@pytest.mark.parametrize(
    ("kind", "told", "name", "held"),
    [
        ("threads", "thread", "t", {"id-2": 2}),
        ("journals", "journal", "t", {"e-2": 4, "e-1": 3}),
        ("counters", "counter", "c", 8),
        ("registers", "register", "r", [6, 5]),
        ("documents", "document", "d", [8]),
        ("heads", "heads of thread", "t", {"main": ["id-1", "id-2"]}),
        ("parents", "parents in thread", "t", {"id-2": ["id-1"], "id-1": []}),
        ("forms", "content of document", "d", "ab"),
        ("counters", "counter", "new", 1),
    ],
)
def test_every_difference_is_found_with_object_and_nodes(kind: str, told: str, name: str, held: object) -> None:
    other = found()
    getattr(other, kind)[name] = held
    with pytest.raises(InvariantViolated) as caught:
        check_replicas({"n1": found(), "n2": found(), "n3": other})
    [culprit] = caught.value.culprits
    assert culprit.startswith(f"{told} {name} in space trial: n2 holds")
    assert "n3" in culprit
