from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import to_builtins

from shoal.api import health
from shoal.api.derived import show
from shoal.api.health import Metrics
from shoal.cli.commands import doctor
from shoal.errors import ShoalError
from shoal.node.conditions.watcher import CONDITIONS
from shoal.protocol.requests import ConditionsView
from simulation.world.fleet import Fleet, Member
from tests import conditions

NOTICED_S = 15.0
LOOKS_S = 0.25
PAGE = Path(__file__).parents[3] / "shoal/page/views/cluster/problems.js"
_LINE_BY_LINE = """
import { createInterface } from 'node:readline'
globalThis.location = { origin: 'http://a:1' }
for await (const line of createInterface({ input: process.stdin })) console.log(JSON.stringify(problems(JSON.parse(line))))
"""

Times = dict[str, tuple[float, float, float]]
"""By condition: after how many seconds its node's status showed it, its log told it, and it was gone after what mends it."""

Page = Callable[[ConditionsView], set[str]]
"""The names of the conditions that the page shows, each with what it means and its command."""


def names(member: Member) -> list[str]:
    """What the node's status shows, which looks at nothing itself."""
    return [each.name for each in member.node.service.status().conditions]


async def noticed(fleet: Fleet, is_true: Callable[[], object]) -> None:
    """Wait until this is true, in the time in which a condition must be noticed, and be gone.

    Raises:
        TimeoutError: it is not.
    """
    await fleet.until(is_true, NOTICED_S, look_s=LOOKS_S)


@pytest.fixture(scope="session")
def times() -> Iterator[Times]:
    """Is filled by the tests; written as a table to the file that SHOAL_CONDITION_TIMES names."""
    found: Times = {}
    yield found
    if file := os.environ.get("SHOAL_CONDITION_TIMES"):
        rows = [f"| {name} | {' | '.join(f'{each:.1f}' for each in seconds)} |" for name, seconds in sorted(found.items())]
        heads = "| condition | in status after, s | in the log after, s | gone after, s |\n|---|---|---|---|"
        most = [f"{max(column):.1f}" for column in zip(*found.values(), strict=True)]
        Path(file).write_text("\n".join([heads, *rows, f"| the longest of {len(found)} | {' | '.join(most)} |"]) + "\n")


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page | None]:
    """The page's own module; None where there is no Node.js."""
    if shutil.which("node") is None:
        yield None
        return
    script = tmp_path_factory.mktemp("page") / "problems.mjs"
    script.write_text(PAGE.read_text() + _LINE_BY_LINE)
    with subprocess.Popen(["node", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, told = process.stdin, process.stdout

        def shown(view: ConditionsView) -> set[str]:
            asked.write(json.dumps(to_builtins(show(_exchange(), view))) + "\n")
            asked.flush()
            found = [(each["says"], each["means"], each["command"]) for each in json.loads(told.readline())]
            placed = {each.name: each.mends.replace("--url URL", "--url http://a:1") for each in view.standing}
            return {each.name for each in view.standing if (each.says, each.means, placed[each.name]) in found}

        yield shown
        asked.close()


def _exchange(call: Any = None) -> Any:
    """As much of an exchange over HTTP as an answer without a body needs."""

    async def answer(reply: Any) -> Any:
        return reply

    return SimpleNamespace(call=call, answer=answer, stopping=asyncio.Event())


async def ready(member: Member) -> set[str]:
    """The names that `/readyz` tells, whether the node is ready or not."""
    try:
        answer: Any = await health.readyz(_exchange(member.node.session().call))
    except ShoalError as error:
        return {*error.detail["conditions"]}  # type: ignore[misc]
    return {*answer.conditions}


async def faces(member: Member, page: Page | None) -> dict[str, set[str]]:
    """Which conditions each face of a node shows as true, by the face's name."""
    async with member.store() as store:
        view, status, cluster = await store.conditions(), await store.status(), await store.cluster()
    asked = [doctor.Asked(member.address, view=view)]
    metrics = Metrics().scrape(status, cluster, view).decode()
    return {
        "GET /v1/cluster/conditions": {each.name for each in view.standing},
        "status": {each.name for each in status.conditions},
        "readyz": await ready(member),
        "doctor": {each.name for each, _ in doctor._gathered(asked)},
        "metrics": set(re.findall(r'^shoal_condition{condition="([^"]+)"} 1.0$', metrics, re.MULTILINE)),
        **({} if page is None else {"page": page(view)}),
    }


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """The lines of the log about a condition."""
    lines = [record.getMessage() for record in caplog.records if record.name == "shoal.conditions"]
    return [line for line in lines if line.startswith(f"condition {name} ")]


def has_alert(name: str) -> bool:
    """Whether the alerts have it, or it needs none."""
    condition = CONDITIONS[name]
    return condition.severity == "note" or conditions.expression_of(condition) in conditions.rules().replace('\\"', '"')


def is_known(view: ConditionsView, name: str) -> bool:
    return name in view.looked


@pytest.fixture(autouse=True)
def _logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.conditions")
