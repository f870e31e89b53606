"""The verdict: each account that differs from the recount is found, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.demo.crew import Figures
from shoal.demo.screen import Found, expected, judge

RECOUNTED = {
    "a.py": Figures(1, 10, 2, 1, 3, 1),
    "b.py": Figures(1, 20, 4, 0, 1, 5),
    "c.py": Figures(1, 30, 6, 2, 0, 0),
}
EVENTS = "agent-1, events for c.py"


def truthful() -> Found:
    """What a store holds after two agents surveyed the three modules: the first has a.py and c.py."""
    return Found(expected(RECOUNTED, agents=2), {"agent-1": ["id2", "id1"], "agent-2": ["id3"]}, 3, 0)


def judged(**found: Found) -> list[str]:
    return [one.where for one in judge(RECOUNTED, found, agents=2)]


def test_the_recount_demands_all_four_accounts() -> None:
    accounts = truthful().accounts
    assert accounts["library, b.py"] == RECOUNTED["b.py"]._asdict()
    assert accounts["{totals}/lines"] == 60
    assert accounts[EVENTS] == [RECOUNTED["c.py"]._asdict()]
    assert (accounts["agent-1, checkpoints"], accounts["agent-1, heads"]) == (2, {"main": 1})
    assert accounts["agent-1, modules done"] == ["a.py", "c.py"]
    assert accounts["agent-1, figures"] == Figures(2, 40, 8, 3, 3, 1)._asdict()


def put(where: str, value: object) -> tuple[Callable[[dict[str, Any]], None], str]:
    return lambda accounts: accounts.update({where: value}), where


def take(where: str) -> tuple[Callable[[dict[str, Any]], None], str]:
    return lambda accounts: accounts.pop(where), where


PLANTED = {
    "an entry is missing": take("library, b.py"),
    "an entry is one function off": put("library, b.py", RECOUNTED["b.py"]._replace(functions=5)._asdict()),
    "an entry is invented": put("library, z.py", {}),
    "an add is lost": put("{totals}/lines", 40),
    "an add is counted twice": put("{totals}/modules", 4),
    "an event is lost": take(EVENTS),
    "an event is doubled": put(EVENTS, [RECOUNTED["c.py"]._asdict()] * 2),
    "an event is another agent's": put("agent-1, events for b.py", [RECOUNTED["b.py"]._asdict()]),
    "an event's figures are wrong": put(EVENTS, [{}]),
    "a checkpoint is lost": put("agent-1, checkpoints", 1),
    "a thread is forked": put("agent-1, heads", {"main": 2}),
    "a thread has another branch": put("agent-1, heads", {"main": 1, "side": 1}),
    "the state is an older one": put("agent-1, modules done", ["a.py"]),
    "the state's figures are wrong": put("agent-1, figures", Figures(2, 41, 8, 3, 3, 1)._asdict()),
    "a thread is empty": take("agent-1, checkpoints"),
}


def test_truthful_stores_agree() -> None:
    assert judged(alone=truthful()) == []
    assert judged(first=truthful(), second=truthful(), third=truthful()) == []


@pytest.mark.answers("worker-of-the-demonstration-that-miscounts")
@pytest.mark.parametrize("lie", PLANTED)
@pytest.mark.parametrize("node", ["first", "second"])
def test_a_lie_on_one_node_is_found_there_alone(lie: str, node: str) -> None:
    plant, where = PLANTED[lie]
    liar = truthful()
    plant(liar.accounts)
    assert judged(**{"first": truthful(), "second": truthful(), node: liar}) == [f"{node}: {where}"]


def test_an_agent_without_modules_needs_no_thread() -> None:
    alone = {"a.py": RECOUNTED["a.py"]}
    assert judge(alone, {"store": Found(expected(alone, agents=1), {"agent-1": [], "agent-2": None}, 1, 0)}, agents=2) == []


def test_nodes_that_differ_only_in_ids_or_order_are_found() -> None:
    other = truthful()._replace(exact={"agent-1": ["id1", "id2"], "agent-2": ["id3"]})
    assert judged(first=truthful(), second=other) == ["second and first: agent-1"]
