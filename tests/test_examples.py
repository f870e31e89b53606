"""What the examples show runs, and shows what it says."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

import shoal
from tests.support import forked

PATIENCE_S = 120
EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reviewers_path_and_the_agents_are_both_in_the_audit() -> None:
    draft, entries = asyncio.run(example("support_agent").reviewed())
    assert draft == "You owe 120; take ten days."
    told = [(entry.kind, entry.text) for entry in entries]
    assert told.count(("step", "billing done")) == 1
    assert told.count(("step", "search failed")) == 2
    assert ("checkpoint", "saved on main") in told
    [reviewed] = [entry for entry in entries if entry.text == "saved on reviewed"]
    assert reviewed.by == "reviewer"
    [billing] = [entry for entry in entries if entry.text == "billing begun"]
    assert billing.known == ""
    [approval] = [entry for entry in entries if entry.kind == "event" and entry.by == "reviewer"]
    assert approval.known == reviewed.id


SHOWN = {
    "blackboard": (
        "confirm tea/oolong: done by ann, who was asked to confirm tea/oolong",
        "All 3 nodes report:",
        "oolong comes from Fujian",
    ),
    "crash_safe_agent": (
        "── naive ──",
        "twice: charge('order-1', 120): 2 times instead of 1",
        "twice: notify('order-1', 'paid'): 2 times instead of 1",
        "differs: counter shop/revenue is 320 instead of 200",
        "── mended ──\n43 points where the agent can be killed, 86 runs: all ended like the run without a crash.",
    ),
    "crew": ("points where the agent can be killed", "all ended like the run without a crash."),
    "langgraph_crew": ("writer-2 has finished: introduction on coffee, method on coffee, results on coffee",),
    "support_agent": ("points where the agent can be killed, 86 runs: all ended like the run without a crash.",),
}
"""What a program must show."""


LONG = {"crew"}
"""Programs that crash agents at hundreds of points: `make thorough` runs them."""


PROGRAMS = [
    pytest.param(path, marks=(pytest.mark.thorough,) if path.stem in LONG else (), id=path.stem)
    for path in sorted(EXAMPLES.glob("*.py"))
]


def anew(program: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """As people run it."""
    command = [sys.executable, "-W", "error", str(program)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def again(program: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """It is forked from a process that has imported what takes long."""
    imports = forked.LANGGRAPH if "langgraph" in program.stem else ""
    return forked.run(["--", str(program)], timeout=PATIENCE_S, directory=directory, imports=imports)


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_example_runs_twice_as_it_is_and_is_in_the_list(program: Path, tmp_path: Path) -> None:
    for runs in range(2):
        finished = again(program, tmp_path) if runs else anew(program, tmp_path)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout
        assert [text for text in SHOWN.get(program.stem, ()) if text not in finished.stdout] == []
        assert "the moon" not in finished.stdout
        if not any(tmp_path.iterdir()):
            break  # It left nothing, so that a second run would be the first one again.
    assert f"({program.name})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(LONG))
def test_an_example_that_runs_long_is_in_the_list_too(name: str) -> None:
    assert f"({name}.py)" in (EXAMPLES / "README.md").read_text()


async def test_the_researchers_of_the_crew_buy_each_page_once(tmp_path: Path) -> None:
    """Where nobody is killed; agents of a crew that are killed at every point are in `testing/test_leased_agents.py`."""
    crew = example("crew")
    bought: list[str] = []

    async def buy(page: str, *, key: str) -> str:
        bought.append(page)
        return f"what {page} says"

    async with shoal.open(tmp_path) as store:
        await crew.run(store, buy)
    assert sorted(bought) == sorted(page for pages in crew.PAGES.values() for page in pages)


def test_the_blackboards_check_finds_a_page_that_nobody_paid_for() -> None:
    blackboard = example("blackboard")
    pages, facts = blackboard.expected()
    assert pages == set(blackboard.WEB)
    assert "tea/oolong" in facts

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with shoal.open(directory) as store:
                space = store.space("crew")
                for url, fact in facts.items():
                    await space.items.put(("findings", url.split("/")[0]), url, {"fact": fact, "sureness": 1.0})
                await space.set("seen").add(*pages)
                await blackboard.check(space)

    with pytest.raises(AssertionError, match="was spent on 11 pages"):
        asyncio.run(run())
