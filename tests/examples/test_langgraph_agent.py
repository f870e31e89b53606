"""The example, run as its first lines say, each time in a process of its own: in a new interpreter in `test_examples.py`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.support import forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "langgraph_agent.py"


def run(*command: str) -> str:
    done = forked.run(["--", *command], clean_environment(), timeout=PATIENCE_S, imports=forked.LANGGRAPH)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shoal(*command: str) -> str:
    done = forked.run(["-m", "shoal", *command], clean_environment(), timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_answer_of_another_process_is_acted_on(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    assert run(str(EXAMPLE), state) == "waits: refund 120 €?\n"
    assert run(str(EXAMPLE), state, "yes") == "done: looked up the order, refunded\n"
    where = ("--data", state, "--space", "langgraph", "--json")
    shown = json.loads(shoal("show", "order-17", *where))
    assert shown["state"]["log"] == ["looked up the order", "refunded"]
    log = [json.loads(row) for row in shoal("log", "order-17", *where).splitlines()]
    assert [row["metadata"]["step"] for row in log] == [2, 1, 0, -1]
    text = shoal("log", "order-17", *where[:-1])
    assert '{"source": "loop", "step": 2, "parents": {}}' in text
    assert "label /" in text
