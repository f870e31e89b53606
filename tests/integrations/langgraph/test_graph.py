from __future__ import annotations

import json
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from shoal.integrations.langgraph import ShoalSaver
from tests.cli.conftest import clean_environment
from tests.integrations.langgraph import graph
from tests.integrations.langgraph.graph import CONFIG, START_STATE, build, drive
from tests.support import forked

PATIENCE_S = 60


def shown(state: Any) -> Any:
    """A snapshot without ids and times, which are drawn anew in each run."""
    tasks = [
        (task.name, [one.value for one in task.interrupts], task.error, task.result, task.state is not None)
        for task in state.tasks
    ]
    metadata = {name: value for name, value in (state.metadata or {}).items() if name in ("source", "step")}
    return state.values, state.next, metadata, tasks


def history(compiled: Any) -> list[Any]:
    return [shown(state) for state in compiled.get_state_history(CONFIG)]


def travelled(saver: BaseCheckpointSaver[str]) -> list[Any]:
    """A run with its interrupts; then back to the review with another answer, an edited state, and a copy of it."""
    compiled = build(saver)
    told: list[Any] = [drive(compiled), history(compiled)]
    past = next(state for state in compiled.get_state_history(CONFIG) if state.next == ("review",))
    compiled.invoke(None, past.config)
    told.append(shown(compiled.get_state(CONFIG)))
    compiled.invoke(Command(resume="no"), CONFIG)
    told.append(shown(compiled.get_state(CONFIG, subgraphs=True)))
    edited = compiled.update_state(past.config, {"notes": ["edited"]}, as_node="gather")
    told.append(shown(compiled.get_state(edited)))
    compiled.invoke(None, edited)
    copied = compiled.update_state(past.config, None, as_node="__copy__")
    told.append(shown(compiled.get_state(copied)))
    told.append(history(compiled))
    told.append([shown(state) for state in compiled.get_state_history(CONFIG, filter={"source": "fork"})])
    told.append([shown(state) for state in compiled.get_state_history(CONFIG, before=edited, limit=3)])
    return told


@pytest.fixture(scope="module")
def reference() -> list[Any]:
    return travelled(InMemorySaver())


def test_a_graph_that_travels_in_time_shows_what_the_reference_shows(reference: list[Any], tmp_path: Path) -> None:
    with ShoalSaver.open(tmp_path / "state") as saver:
        assert travelled(saver) == reference
    with ShoalSaver.open(tmp_path / "state") as saver:
        assert history(build(saver)) == reference[6]


def test_the_same_over_the_network(reference: list[Any], url: str) -> None:
    with ShoalSaver.connect(url, space="travelled") as saver:
        assert travelled(saver) == reference


async def test_the_same_graph_runs_asynchronously(saver: ShoalSaver) -> None:
    compiled = build(saver)
    await compiled.ainvoke(START_STATE, CONFIG)
    await compiled.ainvoke(Command(resume="yes"), CONFIG)
    inner = (await compiled.aget_state(CONFIG, subgraphs=True)).tasks[0].state
    assert (inner.values["draft"], inner.next) == ("a draft", ("sign",))
    final = await compiled.ainvoke(Command(resume="Ada"), CONFIG)
    assert final == drive(build(InMemorySaver()))


# One before the first checkpoint, one in a fan-out, one in the subgraph; `make integrations` kills at the others too.
KILLS = ["plan", "work-1", "sign"]
MORE_KILLS = [pytest.param(node, marks=pytest.mark.integrations) for node in ("gather", "review", "reviewed", "write")]


@pytest.mark.parametrize("kill_at", [*KILLS, *MORE_KILLS])
def test_a_killed_graph_goes_on_where_it_was(kill_at: str, tmp_path: Path) -> None:
    command = ["--", graph.__file__, str(tmp_path), kill_at]
    killed = forked.run(command, clean_environment(), timeout=PATIENCE_S, imports=forked.LANGGRAPH)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with ShoalSaver.open(tmp_path / "state") as saver:
        resumed = drive(build(saver, partial(graph.note, tmp_path)))
    assert json.loads(json.dumps(resumed)) == drive(build(InMemorySaver()))
    entered = Counter((tmp_path / "entered").read_text().split())
    calm: Counter[str] = Counter()
    drive(build(InMemorySaver(), lambda node: calm.update([node])))
    # The step that was under way runs again (its parallel tasks may, too); no other does.
    again = {"work-0", "work-1", "work-2"} if kill_at.startswith("work") else {"review"} if kill_at == "reviewed" else set()
    again |= {kill_at}
    for node in calm:
        assert calm[node] <= entered[node] <= calm[node] + (node in again), (node, entered)
    assert entered[kill_at] == calm[kill_at] + 1
