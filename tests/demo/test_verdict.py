"""The verdict: each account that differs from the recount is found, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.demo.survey import Figures
from shoal.demo.verdict import Found, ThreadFound, judge, judge_nodes

RECOUNTED = {
    "a.py": Figures(1, 10, 2, 1, 3, 1),
    "b.py": Figures(1, 20, 4, 0, 1, 5),
    "c.py": Figures(1, 30, 6, 2, 0, 0),
}


def event(module: str) -> dict[str, Any]:
    return {"module": module, "figures": RECOUNTED[module]._asdict()}


def truthful() -> Found:
    """What a store holds after two agents surveyed the three modules: the first has a.py and c.py."""
    return Found(
        entries={module: figures._asdict() for module, figures in RECOUNTED.items()},
        counters=Figures(3, 60, 12, 3, 4, 6)._asdict(),
        threads=[
            ThreadFound(
                state={"done": ["a.py", "c.py"], "figures": Figures(2, 40, 8, 3, 3, 1)._asdict()},
                checkpoints=2,
                heads={"main": ["id2"]},
                events=[event("a.py"), event("c.py")],
            ),
            ThreadFound(
                state={"done": ["b.py"], "figures": RECOUNTED["b.py"]._asdict()},
                checkpoints=1,
                heads={"main": ["id1"]},
                events=[event("b.py")],
            ),
        ],
    )


def with_thread(found: Found, **changes: Any) -> Found:
    first, second = found.threads
    return found._replace(threads=[first._replace(**changes), second])


PLANTED: dict[str, tuple[Callable[[Found], Found], str]] = {
    "an entry is missing": (
        lambda f: f._replace(entries={k: f.entries[k] for k in ("a.py", "c.py")}),
        "document library, b.py",
    ),
    "an entry is one function off": (
        lambda f: f._replace(entries={**f.entries, "b.py": RECOUNTED["b.py"]._replace(functions=5)._asdict()}),
        "document library, b.py",
    ),
    "an entry is invented": (lambda f: f._replace(entries={**f.entries, "z.py": {}}), "document library, z.py"),
    "an add is lost": (lambda f: f._replace(counters={**f.counters, "lines": 40}), "counter {totals}/lines"),
    "an add is counted twice": (lambda f: f._replace(counters={**f.counters, "modules": 4}), "counter {totals}/modules"),
    "an event is lost": (lambda f: with_thread(f, events=[event("a.py")]), "journal of agent-1, events for c.py"),
    "an event is doubled": (
        lambda f: with_thread(f, events=[event("a.py"), event("c.py"), event("c.py")]),
        "journal of agent-1, events for c.py",
    ),
    "an event is another agent's": (
        lambda f: with_thread(f, events=[event("a.py"), event("c.py"), event("b.py")]),
        "journal of agent-1, events for b.py",
    ),
    "an event's figures are wrong": (
        lambda f: with_thread(f, events=[event("a.py"), {**event("c.py"), "figures": {}}]),
        "journal of agent-1, c.py",
    ),
    "a checkpoint is lost": (lambda f: with_thread(f, checkpoints=1), "thread agent-1, checkpoints"),
    "a module was saved twice": (lambda f: with_thread(f, checkpoints=3), "thread agent-1, checkpoints"),
    "a thread is forked": (lambda f: with_thread(f, heads={"main": ["id2", "id3"]}), "thread agent-1, heads of main"),
    "the state is an older one": (
        lambda f: with_thread(f, state={"done": ["a.py"], "figures": Figures(2, 40, 8, 3, 3, 1)._asdict()}),
        "thread agent-1, modules done",
    ),
    "the state's figures are wrong": (
        lambda f: with_thread(f, state={"done": ["a.py", "c.py"], "figures": Figures(2, 41, 8, 3, 3, 1)._asdict()}),
        "thread agent-1, figures",
    ),
    "a thread is empty": (
        lambda f: with_thread(f, state={}, checkpoints=0, heads={}),
        "thread agent-1, checkpoints",
    ),
}


def test_a_truthful_store_agrees() -> None:
    assert judge(RECOUNTED, truthful()) == []


@pytest.mark.answers("worker-of-the-demonstration-that-miscounts")
@pytest.mark.parametrize("lie", PLANTED)
def test_a_planted_lie_is_found_where_it_is(lie: str) -> None:
    plant, where = PLANTED[lie]
    assert where in [difference.where for difference in judge(RECOUNTED, plant(truthful()))]


def test_an_agent_without_modules_needs_no_thread() -> None:
    found = truthful()
    idle = ThreadFound(state={}, checkpoints=0, heads={}, events=[])
    own = ThreadFound(
        state={"done": ["a.py"], "figures": RECOUNTED["a.py"]._asdict()},
        checkpoints=1,
        heads={"main": ["id1"]},
        events=[event("a.py")],
    )
    alone = {"a.py": RECOUNTED["a.py"]}
    entries = {"a.py": found.entries["a.py"]}
    assert judge(alone, Found(entries, RECOUNTED["a.py"]._asdict(), [own, idle])) == []


def on_three_nodes(**differing: Found) -> dict[str, Found]:
    return {"node-1": truthful(), "node-2": truthful(), "node-3": truthful(), **differing}


def test_three_nodes_that_hold_the_same_agree() -> None:
    assert judge_nodes(RECOUNTED, on_three_nodes()) == []


@pytest.mark.parametrize("lie", PLANTED)
@pytest.mark.parametrize("node", ["node-1", "node-2", "node-3"])
def test_a_lie_on_one_node_is_found_on_that_node_alone(lie: str, node: str) -> None:
    plant, where = PLANTED[lie]
    found = [difference.where for difference in judge_nodes(RECOUNTED, on_three_nodes(**{node: plant(truthful())}))]
    assert f"{node}: {where}" in found
    assert {place.split(":")[0] for place in found if " and " not in place.split(":")[0]} == {node}


DIFFERENT: dict[str, tuple[Callable[[Found], Found], str]] = {
    "another head": (lambda f: with_thread(f, heads={"main": ["id9"]}), "thread agent-1, heads"),
    "another branch": (lambda f: with_thread(f, heads={"main": ["id2"], "side": ["id1"]}), "thread agent-1, heads"),
    "another order of events": (lambda f: with_thread(f, events=[event("c.py"), event("a.py")]), "thread agent-1, events"),
    "more in the state": (
        lambda f: with_thread(f, state={**f.threads[0].state, "position": 9}),
        "thread agent-1, state",
    ),
    "another entry": (lambda f: f._replace(entries={**f.entries, "a.py": {}}), "document library, a.py"),
    "another sum": (lambda f: f._replace(counters={**f.counters, "lines": 1}), "counter {totals}/lines"),
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_differences_between_two_nodes_are_found(difference: str) -> None:
    plant, where = DIFFERENT[difference]
    found = judge_nodes(RECOUNTED, on_three_nodes(**{"node-3": plant(truthful())}))
    assert f"node-3 and node-1: {where}" in [one.where for one in found]
