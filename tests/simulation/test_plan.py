"""Plans as data: in and out of JSON, and nothing else taken for one."""

from __future__ import annotations

import pickle

import pytest

from shoal.errors import InvalidValue
from simulation.drawing import draw
from simulation.plan import Act, Crash, Plan, from_json, to_json


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(8, 50))])
def test_a_plan_comes_back_from_json_as_it_was(seed: int) -> None:
    plan = draw(seed, profile="storm")
    assert from_json(to_json(plan)) == plan


@pytest.mark.answers("seed-1230")
def test_equal_plans_give_equal_text_wherever_they_come_from() -> None:
    plan = draw(1230)
    travelled = pickle.loads(pickle.dumps(plan))
    assert travelled == plan
    assert to_json(travelled) == to_json(plan) == to_json(from_json(to_json(plan)))


def test_a_field_that_a_saved_plan_does_not_have_takes_its_default() -> None:
    old = (
        b'{"seed": 7, "faults": [{"event": "crash", "at": 1.0, "node": "n1"}], "acts": [{"at": 2, "agent": 0, "kind": "save"}]}'
    )
    assert from_json(old) == Plan(seed=7, faults=[Crash(at=1.0, node="n1")], acts=[Act(at=2.0, agent=0, kind="save")])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"seed": "x"}',
        b'{"seed": 1, "faults": [{"event": "rain", "at": 1}]}',
        b'{"seed": 1, "nodes": 0}',
        b"\xff",
    ],
)
def test_a_malformed_plan_is_refused_with_a_reason(text: bytes) -> None:
    with pytest.raises(InvalidValue, match="plan"):
        from_json(text)


def test_each_purpose_has_a_randomness_of_its_own_that_hangs_on_the_seed_alone() -> None:
    one, other = Plan(seed=1), Plan(seed=1, nodes=5, acts=[Act(at=1.0, agent=0, kind="save")])
    assert one.random_for("network").random() == other.random_for("network").random()
    assert one.random_for("network").random() != one.random_for("disk").random()
    assert one.random_for("network").random() != Plan(seed=2).random_for("network").random()
