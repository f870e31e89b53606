from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest

from shoal.api.metrics import Metrics
from shoal.cli.commands import doctor
from shoal.node.conditions.table import CONDITIONS
from shoal.protocol.requests import ConditionsView
from simulation.world.fleet import Fleet, Member
from tests import conditions

NOTICED_S = 15.0
LOOKS_S = 0.25


def names(member: Member) -> list[str]:
    """What the node's status shows, which looks at nothing itself."""
    return [each.name for each in member.node.service.status().conditions]


async def noticed(fleet: Fleet, is_true: Callable[[], object]) -> None:
    """Wait until this is true, in the time in which a condition must be noticed, and be gone.

    Raises:
        TimeoutError: it is not.
    """
    await fleet.until(is_true, NOTICED_S, look_s=LOOKS_S)


async def faces(member: Member) -> dict[str, set[str]]:
    """Which conditions each face of a node shows as true, by the face's name."""
    async with member.store() as store:
        view, status, cluster = await store.conditions(), await store.status(), await store.cluster()
    asked = [doctor.Asked(member.address, view)]
    metrics = Metrics().scrape(status, cluster, view).decode()
    return {
        "GET /v1/cluster/conditions": {each.name for each in view.standing},
        "status": {each.name for each in status.conditions},
        "doctor": {each.name for each, _ in doctor._gathered(asked)},
        "metrics": set(re.findall(r'^shoal_condition{condition="([^"]+)"} 1.0$', metrics, re.MULTILINE)),
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
