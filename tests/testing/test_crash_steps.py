"""Agents that work by steps are killed everywhere: no effect twice, none lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shoal.client.store import Store
from shoal.errors import StepUnresolved
from shoal.testing import Report, crash_everywhere

Call = Callable[..., Awaitable[Any]]


def world() -> dict[str, Call]:
    sent: list[str] = []

    async def send(what: str) -> str:
        sent.append(what)
        return f"sent {what}"

    async def was_sent(what: str) -> bool:
        return what in sent

    return {"send": send, "was_sent": was_sent}


async def cautious(store: Store, send: Call, was_sent: Call) -> None:
    """Stops where it is not known what happened; a human would go on."""
    thread = store.space("s").thread("t")
    try:
        for what in ("bill", "letter"):
            await thread.step("send", key=what, call=lambda what=what: send(what))
    except StepUnresolved:
        return


async def asking(store: Store, send: Call, was_sent: Call) -> None:
    """Asks the other side what became of what is unresolved, and goes on."""
    thread = store.space("s").thread("t")
    for record in await thread.unresolved():
        if await was_sent(record.key):
            await thread.resolve(record, "result", value=f"sent {record.key}", by="agent")
        else:
            await thread.resolve(record, "retry", by="agent")
    done = [await thread.step("send", key=what, call=lambda what=what: send(what)) for what in ("bill", "letter")]
    await thread.save({"done": done}, key="done", durability="quorum")


async def careless(store: Store, send: Call, was_sent: Call) -> None:
    """Says of what must not be repeated that it may be."""
    thread = store.space("s").thread("t")
    for what in ("bill", "letter"):
        await thread.step("send", key=what, call=lambda what=what: send(what), idempotent=True)


def tried(agent: Callable[..., Awaitable[Any]], nodes: int) -> Report:
    # The journal tells which steps were resolved: it is not the same after a crash, and should not be.
    return crash_everywhere(
        agent,
        tools=world,
        reads=["was_sent"],
        nodes=nodes,
        normalise=lambda name, content: [] if name.startswith("journal") else content,
    )


def problems(report: Report, kind: str) -> list[str]:
    return [problem.text for trial in report.bad for problem in trial.problems if problem.kind == kind]


@pytest.mark.parametrize("nodes", [1, 3])
def test_stopping_at_an_unresolved_step_repeats_nothing(nodes: int) -> None:
    report = tried(cautious, nodes)
    assert problems(report, "twice") == []
    assert problems(report, "raised") == []
    # And it does stop: what was begun and not sent, or not followed by the rest, is missing.
    assert problems(report, "lost") != []


@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_asking_the_outside_does_everything_once(nodes: int) -> None:
    tried(asking, nodes).raise_if_bad()


def test_a_step_that_is_called_idempotent_and_is_not_is_found() -> None:
    assert "send('bill'): 2 times instead of 1" in problems(tried(careless, 1), "twice")
