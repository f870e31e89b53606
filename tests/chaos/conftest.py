"""A trial that kept every promise, small enough to plant a break in it."""

from __future__ import annotations

import asyncio

import pytest

from chaos import processes
from chaos.evidence import Evidence, Options, Recovery
from chaos.faults import Strike
from simulation.judging.found import Found
from simulation.judging.history import Acknowledged, Event, Failed, History, Invoked, LetGo, Refused, Shown, amount
from tests.support import forked

NODES = ("n1", "n2", "n3")


@pytest.fixture(autouse=True)
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's mounts are seen by the process that forks its nodes, which is older: no command moves this one apart."""
    monkeypatch.setattr(processes, "mount_apart", lambda: None)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes and machines of a trial are forked; a trial that is a process of its own starts them as it does elsewhere."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", forked.create_subprocess_exec)


def found() -> Found:
    return Found(
        threads={"agent-0": {"two": 2, "one": 1}},
        journals={"crew-0": {"e-3": 3}},
        counters={"crew-0": amount(4)},
        registers={"agent-0": [5]},
        documents={"crew-0": [6]},
        heads={"agent-0": {"main": ["two"]}},
        parents={"agent-0": {"two": ["one"], "one": []}},
        forms={"crew-0": "aa"},
    )


@pytest.fixture
def events() -> list[Event]:
    return [
        Invoked(1, "save", "agent-0", "agent-0"),
        Acknowledged(1, "one", node="n1"),
        Shown("agent-0", "save", "agent-0", ids=["one"], node="n1"),
        Invoked(2, "save", "agent-0", "agent-0"),
        Acknowledged(2, "two", node="n1"),
        Invoked(3, "append", "crew-0", "agent-0"),
        Acknowledged(3, "e-3", node="n1"),
        Invoked(4, "add", "crew-0", "agent-0"),
        Acknowledged(4, value=amount(4), node="n2"),
        Invoked(5, "assign", "agent-0", "agent-0"),
        Acknowledged(5, node="n2"),
        Invoked(6, "edit", "crew-0", "agent-0"),
        Acknowledged(6, node="n2"),
        Invoked(7, "save", "agent-0", "agent-0"),
        Failed(7, "no", "session-behind", "n2"),
        LetGo("agent-0", "agent-0", "session-behind"),
        Refused("agent-0", "crew-0", "disconnected", "n2"),
        Shown("agent-0", "save", "agent-0", ids=["two"], node="n2"),
    ]


@pytest.fixture
def evidence() -> Evidence:
    return Evidence(
        options=Options(faults=["kill"], seed=1),
        recoveries=[Recovery(Strike("kill", "n1", 1.0, 1.5, 2.0), [0.5, 0.7], 0.3, 0.1)],
        equal_s=0.2,
        seconds=10.0,
        founds={node: found() for node in NODES},
        damage={node: [] for node in NODES},
    )


@pytest.fixture
def history(events: list[Event]) -> History:
    return History(events)
